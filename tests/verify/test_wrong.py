"""Wrong claims and half-right merges: what the monoid laws alone let pass, claims that do not hold."""

from dataclasses import replace

import pytest

from fdmath.verify import verify
from fdmath.verify.mutants import MUTANTS
from fdmath.verify.subjects import EXACT, own_subjects


@pytest.mark.parametrize("law", ["associativity", "commutativity", "left identity", "right identity", "empty"])
def test_monoid_laws_alone_are_met_by_a_wrong_merge(law):
    assert verify(MUTANTS["the larger level wins"].subject(), [law], cases=100).exit_code == 0


@pytest.mark.parametrize("title", ["merge m/l/o, numpy", "merge m/l/acc, numpy", "merge o/lse, numpy"])
def test_right_merges_pass_without_declaring_anything(title):
    subject = next(s for s in own_subjects(["numpy"]) if s.name == title)
    report = verify(replace(subject, claims=(), false=()), cases=20)
    assert report.exit_code == 0, report.failures()
    assert all(report.cells[law, title].bitwise for law in EXACT[:4])


def test_a_law_claimed_bitwise_fails_where_it_holds_only_within_its_bound():
    subject = next(s for s in own_subjects(["numpy"]) if s.name == "merge o/lse, numpy")
    report = verify(replace(subject, claims=("associativity",)), ["associativity"])
    assert report.exit_code == 1


def test_a_law_declared_false_fails_when_no_counterexample_is_found():
    subject = next(s for s in own_subjects(["numpy"]) if s.name == "merge o/lse, numpy")
    report = verify(replace(subject, false=("commutativity",)), ["commutativity"])
    assert report.cells["commutativity", subject.name].verdict == "fail"
