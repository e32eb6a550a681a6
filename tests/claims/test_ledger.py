"""The ledger: each statement of the two documents once, with a check or a source, and the verdict that is computed."""

import re

import pytest

from fdmath.claims import checks, judge, ledger
from fdmath.claims.rows import MODULES

DOCUMENTS = {"A": 79, "B": 95}
"""How many statements of each document there are."""
LESSONS = range(16)


def test_every_statement_is_there_once():
    assert [claim.id for claim in ledger()] == [f"{d}{n:02d}" for d, count in DOCUMENTS.items()
                                                for n in range(1, count + 1)]


def test_every_check_is_of_a_claim():
    assert set(checks()) <= {claim.id for claim in ledger()}


def test_every_module_of_checks_is_listed(root):
    files = (root / "fdmath" / "claims").glob("*.py")
    with_checks = {file.stem for file in files if re.search(r"^@check\(", file.read_text(encoding="utf-8"), re.M)}
    assert with_checks == set(MODULES)


@pytest.mark.parametrize("claim", ledger(), ids=lambda claim: claim.id)
def test_a_row_says_what_it_must(claim):
    check = checks().get(claim.id)
    assert check or claim.sources
    assert ("cited" in claim.how) == bool(claim.sources)
    assert (check is None) == (set(claim.how) == {"cited"})
    assert claim.statement.count("$") % 2 == 0 and claim.conditions.count("$") % 2 == 0
    assert bool(claim.conditions) == (claim.verdict != "holds")
    assert claim.lesson and set(claim.lesson) <= set(LESSONS)
    assert check is None or check.__doc__


@pytest.mark.parametrize("claim", ledger(), ids=lambda claim: claim.id)
def test_the_verdict_is_the_expected_one(claim, keep):
    outcome = judge(claim, checks().get(claim.id))
    keep(outcome)
    assert outcome.verdict == (claim.verdict if outcome.check else "cited"), outcome
    assert outcome.figure and not outcome.error
    if claim.verdict in ("refuted", "conditional") and outcome.check:
        assert outcome.counterexample
