"""The kill matrix fails for each of its reasons, and prints, counts and writes what it found."""

import json
from dataclasses import replace
from functools import partial

import pytest

from fdmath import cli
from fdmath.verify import mutants_command
from fdmath.verify.judge import drawn
from fdmath.verify.laws import LAWS
from fdmath.verify.mutants import MUTANTS, matrix
from fdmath.verify.mutants.matrix import ENOUGH, breaks, broken, kill_matrix, killed_by_default

WRONG = MUTANTS["lse above its bounds"]
BOUNDS, ORDER = "lse bounds", "commutativity"


@pytest.fixture(autouse=True)
def impatient(monkeypatch):
    """A law that does not kill is not asked for long."""
    monkeypatch.setattr(matrix, "PATIENCE", 5)


def troubles(mutant, laws=(BOUNDS,), whole=False, **options):
    """What the matrix of one mutant says is wrong, and its exit code."""
    found = kill_matrix([mutant], list(laws), cases=10, whole=whole, **options)
    return found.troubles(), found.exit_code


def test_a_mutant_that_dies_as_it_should_is_no_trouble():
    assert troubles(WRONG) == ([], 0)


def test_a_mutant_that_survives_is_named():
    named = replace(WRONG, killer="")
    assert troubles(named, [ORDER]) == (["lse above its bounds: survives"], 1)


def test_a_law_that_kills_nothing_is_named():
    assert troubles(WRONG, [BOUNDS, ORDER], whole=True) == ([f"law {ORDER}: kills nothing"], 1)
    assert troubles(WRONG, [BOUNDS, ORDER]) == ([], 0)  # of some mutants that is not asked


def test_a_named_killer_that_does_not_kill_is_named():
    found, code = troubles(replace(WRONG, killer=ORDER), [BOUNDS, ORDER])
    assert (found, code) == ([f"lse above its bounds: not killed by {ORDER}, but by {BOUNDS}"], 1)


def test_a_mutant_that_no_longer_differs_is_named():
    found, code = troubles(replace(WRONG, fn=WRONG.right.fn))
    assert "lse above its bounds: gives what its ancestor gives on the stored input" in found and code == 1


def test_an_ancestor_that_breaks_a_law_is_named():
    found, code = troubles(replace(WRONG, right=WRONG.subject(), fn=lambda *args: WRONG.right.fn(*args)))
    assert code == 1 and any(text.startswith(f"ancestor {WRONG.name}: breaks {BOUNDS} on\npart 1: ") for text in found)


def test_what_cannot_run_is_named_and_code_2():
    def missing(*args):
        raise ImportError("no such package")

    found, code = troubles(replace(WRONG, right=replace(WRONG.right, fn=missing)))
    assert code == 2 and len(found) == 1 and "not run" in found[0] and "no such package" in found[0]


def test_what_needs_torch_is_named_where_that_is_missing(monkeypatch):
    monkeypatch.setattr(matrix, "find_spec", lambda name: None)
    assert troubles(MUTANTS["NaN through a masked row"]) == ([
        "NaN through a masked row: not run: torch is not installed"], 2)


def test_one_that_raises_breaks_the_law_and_an_undecided_one_does_not(monkeypatch):
    subject, law = WRONG.right, LAWS[BOUNDS]
    case, = drawn(law, subject, 1)
    assert not breaks(law, subject, case)
    assert breaks(law, replace(subject, fn=lambda *args: 1 / 0), case)
    finding = law.check(WRONG.subject(), case)
    for verdict, expected in (("fail", True), ("undecided", False), ("pass", False)):
        judged = replace(law, check=lambda *args, verdict=verdict: replace(finding, verdict=verdict))
        assert breaks(judged, subject, case) is expected


def test_a_claim_is_held_bit_for_bit():
    mutant = MUTANTS["other bits in another order"]
    law = LAWS["bitwise associativity"]
    inputs = drawn(law, mutant.subject(), 30)
    assert broken(law, mutant.subject(), inputs) is not None
    assert broken(LAWS["associativity"], mutant.subject(), inputs) is None


def test_the_matrix_is_printed_and_written(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(mutants_command, "MUTANTS", {WRONG.name: WRONG})
    monkeypatch.setattr(mutants_command, "kill_matrix", partial(kill_matrix, laws=[BOUNDS, ORDER]))
    assert mutants_command.main(["--only", "above", "--cases", "5", "--json", str(tmp_path / "m.json")]) == 0
    printed = capsys.readouterr().out
    assert "lse above its bounds  K." in printed
    assert "1 mutants, 1 dead; 1 kills by 2 laws; 2 cells of ancestors hold" in printed
    written = json.loads((tmp_path / "m.json").read_text(encoding="utf-8"))
    assert written["exit_code"] == 0 and written["troubles"] == [] and written["laws"] == [BOUNDS, ORDER]
    assert written["mutants"][0]["killers"] == [BOUNDS] and written["mutants"][0]["differs"] is True
    assert mutants_command.main(["--cases", "5"]) == 1  # all of them: one law kills nothing
    assert mutants_command.main(["--only", "above", "--cases", "5", "--json", str(tmp_path)]) == 2


def test_a_text_that_no_mutant_has_is_code_2(capsys):
    assert mutants_command.main(["--only", "no such"]) == 2
    assert "no mutant has 'no such'" in capsys.readouterr().err


def test_quick_asks_as_fdmath_verify_does_and_wants_nearly_all(capsys, monkeypatch):
    monkeypatch.setattr(matrix, "LAWS", {name: LAWS[name] for name in (ORDER, BOUNDS)})
    right = replace(WRONG, name="right after all", fn=lambda *args: WRONG.right.fn(*args))
    assert killed_by_default([WRONG]) == {WRONG.name: BOUNDS}
    for chosen, share, code in (([WRONG], "100.0%", 0), ([WRONG, right], "50.0%", 1)):
        monkeypatch.setattr(mutants_command, "MUTANTS", {m.name: m for m in chosen})
        assert mutants_command.main(["--quick"]) == code
        assert f"{share} of {len(chosen)} mutants killed" in capsys.readouterr().out
    monkeypatch.setattr(mutants_command, "trouble_of", lambda m: "no torch" if m is right else "")
    assert mutants_command.main(["--quick"]) == 2
    assert "right after all: not run: no torch\n100.0% of 1 mutants" in capsys.readouterr().out
    assert 0.9 < ENOUGH < 1


@pytest.mark.parametrize("words", [["mutants", "--help"]])
def test_the_command_is_in_the_table(words, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    assert end.value.code == 0 and "kill matrix" in capsys.readouterr().out
