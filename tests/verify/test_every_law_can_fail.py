"""Every law kills a wrong subject that is wrong in the way that the law is about, and lets fdmath's own pass."""

from dataclasses import replace

import numpy as np
import pytest

from fdmath.algebra.merge import merge
from fdmath.algebra.printed import merge_as_printed_A_2_3_5
from fdmath.algebra.state import AccState, LSEState
from fdmath.attention.reference import attention
from fdmath.attention.softmax import partial_state
from fdmath.verify import LAWS, Subject, verify
from fdmath.verify.cases import CallCase
from fdmath.verify.reference import Certified, same
from fdmath.verify.subjects import own_subjects
from tests.verify import wrong, wrong_backward


def changed(change):
    """The right merge with its (o, lse) changed."""
    return lambda o1, lse1, o2, lse2: change(*merge(LSEState(o1, lse1), LSEState(o2, lse2)))


def leaning_left(o1, lse1, o2, lse2):
    """The left side weighs a tenth of a per cent too much."""
    return tuple(merge(LSEState(o1, lse1 + np.asarray(0.001, lse1.dtype)), LSEState(o2, lse2)))


def level_ignored(m1, l1, acc1, m2, l2, acc2):
    """l and acc are added as they stand, whatever level they are taken against."""
    return np.maximum(m1, m2), l1 + l2, acc1 + acc2


def first_key_twice(scores, v):
    """The first key of a block is counted twice."""
    return tuple(partial_state(np.concatenate([scores[:, :1], scores], axis=1), np.concatenate([v[:1], v])))


def zero_times_nan(scores, v):
    """Weights of 0 are multiplied with whatever v holds in slots that no row sees."""
    m = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(np.isinf(m), 0, m))
    l = p.sum(-1)
    return p @ v / np.where(l == 0, 1, l)[:, None], m[:, 0] + np.log(np.where(l == 0, 1, l))


def doubled_after_use(q, k, v):
    """q is overwritten after it was used."""
    state = tuple(attention(q, k, v))
    q *= 2
    return state


def mask_forgotten(q, k, v, causal):
    """The causal flag is not looked at."""
    return tuple(attention(q, k, v))


def lse_detached(o1, lse1, o2, lse2):
    """The gradient through lse is dropped (faults:H1)."""
    return tuple(merge(LSEState(o1, lse1.detach()), LSEState(o2, lse2.detach())))


KILLERS = {
    "anchor": ("merge", wrong.d1_base_two_weights, {}),
    "closure": ("merge", wrong.d1_base_two_weights, {}),
    "associativity": ("merge", leaning_left, {}),
    "bitwise associativity": ("merge", changed(lambda o, lse: (o, lse)), {"claims": ("bitwise associativity",)}),
    "association orders": ("merge", wrong.d13_bf16_lse, {}),
    "commutativity": ("merge", leaning_left, {}),
    "left identity": ("merge", wrong.a7_clamped, {}),
    "right identity": ("merge", wrong.a7_clamped, {}),
    "empty": ("merge", wrong.a1_unguarded, {}),
    "shift": ("merge", merge_as_printed_A_2_3_5, {}),
    "reference level": ("merge", level_ignored, {"kind": AccState}),
    "permutation": ("block", first_key_twice, {}),
    "partition independence": ("decode", wrong.c4_one_shared_lse, {}),
    "duplicate keys": ("merge", wrong.larger_level_wins, {}),
    "convexity": ("merge", changed(lambda o, lse: (o + 1, lse)), {}),
    "v is 1": ("merge", changed(lambda o, lse: (o * np.asarray(1.001, o.dtype), lse)), {}),
    "counting": ("merge", wrong.d1_base_two_weights, {}),
    "lse bounds": ("merge", changed(lambda o, lse: (o, lse + 2)), {}),
    "linearity": ("merge", changed(lambda o, lse: (np.abs(o), lse)), {}),
    "round trip": ("merge", leaning_left, {}),
    "poison": ("block", zero_times_nan, {}),
    "seen NaN": ("block", wrong.swallowed_nan, {}),
    "causality": ("attention", mask_forgotten, {}),
    "inputs kept": ("partial", doubled_after_use, {}),
    "gradient": ("merge", lse_detached, {"library": "torch"}),
    "gradient of o": ("attention", wrong_backward.forward, {"backward": wrong_backward.g1_tiled}),
    "gradient of lse": ("attention", wrong_backward.forward, {"backward": wrong_backward.h1_lse_dropped}),
    "sum over a group": ("attention", wrong_backward.forward, {"backward": wrong_backward.g4_first_head}),
    "delta": ("attention", wrong_backward.forward, {"backward": wrong_backward.no_delta}),
    "weights sum to 1": ("attention", wrong_backward.forward, {"backward": wrong_backward.h3_base_two}),
    "gradient causality": ("attention", wrong_backward.forward, {"backward": wrong_backward.causal_forgotten}),
    "gradient of nothing": ("attention", wrong_backward.forward, {"backward": wrong_backward.h8_unguarded}),
    "gradient poison": ("decode", wrong_backward.forward_by_lengths, {"backward": wrong_backward.f10_zero_times_nan}),
}


def test_a_killer_is_named_for_every_law():
    assert set(KILLERS) == set(LAWS)


@pytest.mark.parametrize("law", LAWS)
def test_the_law_can_fail(law):
    role, fn, declared = KILLERS[law]
    assert verify(Subject("wrong", role, fn, **declared), [law], cases=200).cells[law, "wrong"].verdict == "fail"


def test_a_nan_that_reaches_another_head_is_refused():
    report = verify(Subject("wrong", "partial", wrong.nan_in_every_head), ["seen NaN"], cases=50)
    assert "got nan, expected 0.0" in report.cells["seen NaN", "wrong"].counterexample


@pytest.mark.parametrize("bad", ["k", "v"])
def test_a_nan_reaches_the_rows_of_its_own_head_that_see_it(bad):
    case = CallCase(*(np.ones(shape, np.float32) for shape in ((2, 4, 2, 2), (2, 2, 2, 2), (2, 2, 2, 1))), causal=True)
    (spoiled, seen, apart) = list(case.spoiled(Subject("any", "attention", attention)))[2 if bad == "k" else 3]
    assert np.argwhere(np.isnan(getattr(spoiled, bad)))[:, :3].tolist() == [[0, 0, 1]] * getattr(spoiled, bad).shape[-1]
    assert np.argwhere(seen).tolist() == [[0, 0, 1], [0, 1, 1]]  # the last query alone sees the last key
    assert not apart[0, :2].any() and apart[0, 2:].all() and apart[1].all()


def test_the_last_key_in_use_is_spoiled_where_lengths_differ():
    arrays = (np.ones(shape, np.float32) for shape in ((2, 2, 1, 2), (2, 1, 5, 2), (2, 1, 5, 1)))
    case = CallCase(*arrays, seq_lens=np.array([3, 5]))
    spoiled = list(case.spoiled(Subject("any", "decode", attention)))
    at = {tuple(np.argwhere(np.isnan(one.v))[0][:3].tolist()) for one, _, _ in spoiled if np.isnan(one.v).any()}
    assert at == {(0, 0, 0), (0, 0, 2)}
    assert all(seen[0].all() and not seen[1].any() and np.array_equal(apart, ~seen) for _, seen, apart in spoiled)


def test_an_error_is_held_to_its_budget_and_not_to_a_multiple():
    one = LSEState(np.zeros((1, 1)), np.zeros(1))
    for off in (LSEState(np.ones((1, 1)), np.zeros(1)), LSEState(np.zeros((1, 1)), np.ones(1))):
        enough, short = ((np.full((1, 1), b), np.full(1, b)) for b in (1.0, np.nextafter(1.0, 0.0)))
        assert same(off, one, enough).verdict == "pass"
        assert same(off, one, short).verdict == "fail"


def test_a_merge_off_by_twice_its_budget_is_refused(monkeypatch):
    """fdmath's own ⊕ with the bound halved to below its true error would be refused: budgets are not padded."""
    subject = next(s for s in own_subjects(["numpy"]) if s.name == "merge o/lse, numpy")
    judged = []
    honest = Certified.judge
    monkeypatch.setattr(Certified, "judge", lambda self, state, budget: honest(self, state, replace(
        budget, o=budget.o / 4, lse=budget.lse / 4)))
    judged.append(verify(subject, ["anchor"], cases=400).exit_code)
    assert judged == [1]
