"""The probe on what holds bit for bit and what is overwritten: a pair of functions for each habit."""

import numpy as np
import pytest

from fdmath.verify import Subject
from fdmath.verify.probe import answer, begin, probe
from tests.verify.speakers import merger, speaker, summed

FIRST = ("log_base", "lse_layout")


def found(name, fn, role, by=None, **declared):
    """The Trait found of one habit."""
    subject = Subject("mine", role, fn, **declared)

    def run(task, *args):
        asked = (*FIRST, by or name)
        return begin(subject, *args) if task == "begin" else answer(subject, *args) if args[-1] in asked else []

    return probe(subject, run=run)[name]


def lopsided(o1, lse1, o2, lse2):
    """A right merge whose rounding depends on the order of the parts."""
    w = 1 / (1 + np.exp(lse1 - lse2))
    return o1 + w[:, None] * (o2 - o1), lse1 + np.log1p(np.exp(lse2 - lse1))


def exact(o1, lse1, o2, lse2):
    """No merge, but its numbers are of few bits whatever the order: the larger of each."""
    return np.maximum(o1, o2), np.maximum(lse1, lse2)


def folded(two):
    def fn(o, lse):
        state = o[0], lse[0]
        for part in zip(o[1:], lse[1:], strict=True):
            state = two(*state, *part)
        return state

    return fn


@pytest.mark.parametrize(("fn", "commutes"), [(merger(), True), (lopsided, False)])
def test_whether_a_merge_commutes(fn, commutes):
    assert found("commutativity", fn, "merge").value is commutes


@pytest.mark.parametrize(("two", "commutes"), [(exact, True), (lopsided, False)])
def test_whether_the_order_of_many_matters(two, commutes):
    assert found("commutativity", folded(two), "merge_many").value is commutes


@pytest.mark.parametrize(("fn", "associates"), [(exact, True), (merger(), False)])
def test_whether_a_merge_associates(fn, associates):
    assert found("associativity", fn, "merge").value is associates


def test_a_claim_of_bits_is_held_against_them():
    assert found("commutativity", lopsided, "merge", claims=("commutativity",)).contradicted
    assert not found("commutativity", lopsided, "merge").contradicted
    assert found("associativity", merger(), "merge", claims=("bitwise associativity",)).contradicted


@pytest.mark.parametrize("splits", ["used", "ignored"])
def test_whether_num_splits_takes_effect(splits):
    fn = speaker("decode", splits=splits)
    assert found("splits", fn, "decode").value is (splits == "used")
    invariant = found("split_invariance", fn, "decode", by="splits")
    assert invariant.value is (splits == "ignored")
    assert ("3 and 3 of 3" if splits == "used" else "0 and 0 of 3") in invariant.evidence


@pytest.mark.parametrize("p", ["float64", "bfloat16"])
@pytest.mark.parametrize("lost", [0, 1])
def test_a_key_that_an_uneven_split_loses_is_seen(p, lost):
    def fn(q, k, v, seq_lens, num_splits):
        return speaker("decode", p=p)(q, k, v, seq_lens - lost * (seq_lens % num_splits), num_splits)

    trait = found("each key once", fn, "decode", by="splits")
    assert trait.value is not bool(lost)
    assert ("15.015 to 16.016 with 3" in trait.evidence) is ("a fault" in trait.evidence) is bool(lost)


def test_bits_are_called_bits():
    page = str(probe(Subject("mine", "merge", merger())))
    assert "associative in bits" in page and "associativity" not in page


def moved_by_mates(fn, axis=0):
    """fn whose o is rounded as if it were added to the number of rows and taken off again."""
    def call(*args):
        o, lse = fn(*args)
        count = np.float32(args[0].shape[axis])
        return (o + count - count if count > 1 else o), lse

    return call


@pytest.mark.parametrize("role", ["partial", "decode", "attention", "merge", "merge_many", "block"])
@pytest.mark.parametrize("invariant", [True, False])
def test_whether_mates_matter(role, invariant):
    def row_by_row(scores, v):
        rows = [summed(s[None].astype(np.float64), v) for s in scores]
        return tuple(np.concatenate(x).astype(scores.dtype) for x in zip(*rows, strict=True))

    fn = {"merge": merger(), "merge_many": folded(merger()), "block": row_by_row}.get(role) or speaker(role)
    axis = 1 if role == "merge_many" else 0
    assert found("batch_invariance", fn if invariant else moved_by_mates(fn, axis), role).value is invariant


# -- hazards ----------------------------------------------------------------------------------------------


def in_place(o1, lse1, o2, lse2):
    o, lse = merger()(o1, lse1, o2, lse2)
    o1[...], lse1[...] = o, lse


def scribbling(q, k, v):
    result = speaker("partial")(q, k, v)
    k *= 0
    return result


def into_an_operand(o1, lse1, o2, lse2):
    o, lse = merger()(o1, lse1, o2, lse2)
    o2[...] = o
    return o2, lse


class Workspace:
    """A call that returns the same o every time."""

    def __call__(self, q, k, v):
        o, lse = speaker("partial")(q, k, v)
        if getattr(self, "o", np.empty(0)).shape != o.shape:
            self.o = np.empty_like(o)
        self.o[...] = o
        return self.o, lse


@pytest.mark.parametrize(("fn", "role", "writes", "lies"), [
    (merger(), "merge", False, "none"), (in_place, "merge", True, "operand"), (scribbling, "partial", True, "none"),
    (into_an_operand, "merge", True, "operand"), (Workspace(), "partial", False, "workspace"),
    (speaker("partial"), "partial", False, "none"), (lambda o1, lse1, o2, lse2: (o1, lse2), "merge", False, "operand")])
def test_what_is_written_and_where_results_lie(fn, role, writes, lies):
    written = found("in_place", fn, role)
    assert written.value is writes and written.contradicted is writes
    assert found("aliasing", fn, role, by="in_place").value == lies


def test_which_operand_is_written_is_said():
    assert found("in_place", scribbling, "partial").evidence == "it changes k"
    assert found("in_place", in_place, "merge").evidence == "it changes o1, lse1"
    assert "returns nothing" in found("aliasing", in_place, "merge", by="in_place").evidence
    assert found("aliasing", into_an_operand, "merge", by="in_place").evidence == "result 1 lies in o2"


def test_one_that_may_write_need_not():
    assert not found("in_place", merger(), "merge", in_place=True).contradicted
    assert not found("in_place", in_place, "merge", in_place=True).contradicted


def test_torch_tensors_are_watched_too():
    torch = pytest.importorskip("torch")

    def fn(o1, lse1, o2, lse2):
        lse = torch.logaddexp(lse1, lse2)
        o1.copy_((lse1 - lse).exp()[:, None] * o1 + (lse2 - lse).exp()[:, None] * o2)
        return o1, lse

    assert found("in_place", fn, "merge", library="torch").value is True
    assert found("aliasing", fn, "merge", by="in_place", library="torch").value == "operand"
