"""What a broken law of gradients shows, and that the right backward passes obey every law that asks for one."""

from dataclasses import replace

import pytest

from fdmath.verify import LAWS, verify
from fdmath.verify.mutants import MUTANTS
from fdmath.verify.mutants.backward_passes import CALL, LENGTHS, RING


@pytest.mark.parametrize("name", ["no delta", "gradients NaN", "causal mask top-left backward"])
def test_the_loss_stands_in_the_counterexample(name):
    mutant = MUTANTS[name]
    report = verify(mutant.subject(), [mutant.killer], cases=50)
    cell = report.cells[mutant.killer, name]
    assert (cell.verdict, report.exit_code) == ("fail", 1)
    assert "do = " in cell.counterexample and "dlse = " in cell.counterexample


@pytest.mark.parametrize("subject", [CALL, RING, LENGTHS], ids=lambda s: s.name)
def test_a_right_backward_pass_obeys_every_law_that_asks_for_one(subject):
    laws = [law.name for law in LAWS.values()
            if law.concerns(subject) and not law.concerns(replace(subject, backward=None))]
    report = verify(subject, laws, cases=10)
    assert report.exit_code == 0, report.failures()
    assert {cell.verdict for cell in report.cells.values()} == {"pass"} and len(laws) >= 7
