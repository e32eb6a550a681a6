"""The laws phase: every law asked of every one of fdmath's subjects, a test a cell, 50 cases each."""

import pytest

from fdmath.verify.judge import ask
from fdmath.verify.laws import LAWS
from fdmath.verify.subjects import own_subjects

CELLS = [(law, s) for s in own_subjects() for law in LAWS.values() if law.concerns(s)]


@pytest.mark.parametrize(("law", "subject"), CELLS, ids=[f"{law.name}-{s.name}" for law, s in CELLS])
def test_law(law, subject):
    cell = ask(law, subject)
    assert cell.verdict == "pass", cell.counterexample
    assert cell.cases >= 50 or cell.grade == "false"  # a counterexample ends the search
