"""Every wrong implementation is killed by the law named for it, and the laws that it obeys let it pass."""

from dataclasses import replace

import pytest

from fdmath.verify import Subject, verify
from fdmath.verify.subjects import EXACT, own_subjects
from tests.verify import wrong

# What fdmath's own convex ⊕ declares: mutants of it are judged by its own bound.
OURS = {"claims": ("T5", "T6")}
KILLS = [
    ("A1", "merge", wrong.a1_unguarded, "empty", {}),
    ("A3", "block", wrong.a3_zero_for_empty, "empty", {}),
    ("A6", "merge", wrong.a6_multiplied_payload, "right identity", {}),
    ("A7", "merge", wrong.a7_clamped, "left identity", {}),
    ("B4", "block", wrong.b4_block_maximum, "anchor", {}),
    ("B5", "block", wrong.b5_inverted_rescale, "anchor", {}),
    ("C1", "decode", wrong.c1_floored_splits, "counting", {}),
    ("C4", "decode", wrong.c4_one_shared_lse, "partition independence", {}),
    ("D1", "merge", wrong.d1_base_two_weights, "anchor", {}),
    ("D4", "block", wrong.d4_mixed_bases, "counting", {}),
    ("D13", "merge", wrong.d13_bf16_lse, "anchor", {}),
    ("E1", "merge", wrong.e1_overflowing_softplus, "anchor", {}),
    ("E3", "merge", wrong.e3_log_not_log1p, "anchor", OURS),
    ("E5", "merge", wrong.e5_written_before_read, "anchor", {"in_place": True}),
    ("E6", "merge_many", wrong.e6_running_lse_not_updated, "anchor", {}),
    ("monoid", "merge", wrong.larger_level_wins, "anchor", {}),
]


@pytest.mark.parametrize(("fault", "role", "fn", "law", "declared"), KILLS, ids=[k[0] for k in KILLS])
def test_fault_is_killed_by_its_law(fault, role, fn, law, declared):
    report = verify(Subject(fault, role, fn, **declared), [law], cases=200)
    cell = report.cells[law, fault]
    assert (cell.verdict, report.exit_code) == ("fail", 1)
    assert cell.counterexample


@pytest.mark.parametrize("law", ["associativity", "commutativity", "left identity", "right identity", "empty"])
def test_monoid_laws_alone_are_met_by_a_wrong_merge(law):
    subject = Subject("larger level wins", "merge", wrong.larger_level_wins)
    assert verify(subject, [law], cases=100).exit_code == 0


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
