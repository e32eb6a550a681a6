"""The backward pass of a subject: conventions, the certified path, bounds that hold what they name, wrong shapes."""

import math
from dataclasses import replace
from functools import partial

import ml_dtypes
import numpy as np
import pytest

from fdmath.algebra.merge import merge
from fdmath.algebra.state import LSEState
from fdmath.attention.gradient_budget import gradient_budget
from fdmath.attention.reference import attention
from fdmath.verify import LAWS, Subject, verify
from fdmath.verify import backward as backward_module
from fdmath.verify.backward import BackwardCase, compare
from fdmath.verify.cases import CallCase
from fdmath.verify.mutants import backward_passes as wrong
from fdmath.verify.subjects import own_subjects
from tests.attention.calls import random_call

RIGHT = Subject("right", "attention", wrong.forward, wrong.right)
PLAIN = replace(RIGHT, backward=None)
GRADIENTS = [law.name for law in LAWS.values() if law.concerns(RIGHT) and not law.concerns(PLAIN)]
LN2 = math.log(2)


def case(seed=1, heads=(4, 2), queries=3, keys=5, dtype="float32", causal=True, level=1.0):
    """A CallCase of random numbers that every format holds."""
    call = random_call(seed, heads, queries, keys, 4, 2, batch=(2,))
    q, k, v = (x.astype(dtype) for x in (call.q * level, call.k, call.v))
    return CallCase(q, k, v, causal)


def in_base_two(do, dlse, q, k, v, o, lse, causal):
    """The right gradients of a subject whose lse, and gradient of lse, are in base 2."""
    dlse, lse = (dlse / LN2).astype(dlse.dtype), (lse * LN2).astype(lse.dtype)
    return wrong.right(do, dlse, q, k, v, o, lse, causal)


def forward_in_base_two(q, k, v, causal):
    o, lse = wrong.forward(q, k, v, causal)
    return o, (lse / LN2).astype(lse.dtype)


def with_heads_last(fn):
    """fn with lse (and dlse) laid out (B, Nq, H)."""
    turn = lambda x: np.swapaxes(x, -1, -2)  # noqa: E731

    def forward(q, k, v, causal):
        o, lse = fn(q, k, v, causal)
        return o, turn(lse)

    def backward(do, dlse, q, k, v, o, lse, causal):
        return wrong.right(do, turn(dlse), q, k, v, o, turn(lse), causal)

    return forward, backward


def in_tiled_order(q, k):
    """The places of query heads that read h mod Hkv, in the house's order."""
    return np.arange(q.shape[1]).reshape(-1, k.shape[1]).T.reshape(-1)


def tiled_forward(q, k, v, causal):
    order = in_tiled_order(q, k)
    return tuple(x[:, np.argsort(order)] for x in wrong.forward(q[:, order], k, v, causal))


def tiled_backward(do, dlse, q, k, v, o, lse, causal):
    order = in_tiled_order(q, k)
    dq, dk, dv = wrong.right(*(x[:, order] for x in (do, dlse, q)), k, v, o[:, order], lse[:, order], causal)
    return dq[:, np.argsort(order)], dk, dv


CONVENTIONS = {
    "base 2": Subject("s", "attention", forward_in_base_two, in_base_two, log_base=2),
    "heads last": Subject("s", "attention", *with_heads_last(wrong.forward), lse_layout="heads_last"),
    "tiled heads": Subject("s", "attention", tiled_forward, tiled_backward, heads="tiled"),
}


@pytest.mark.parametrize("subject", CONVENTIONS.values(), ids=CONVENTIONS)
def test_declared_conventions_hold_backward_too(subject):
    report = verify(subject, [*GRADIENTS, "gradient"], cases=8)
    assert report.exit_code == 0, report.failures()
    plain = replace(subject, log_base=math.e, lse_layout="heads_first", heads="interleaved")
    assert verify(plain, ["gradient of o", "gradient of lse"], cases=40).exit_code == 1


def top_left_forward(q, k, v, causal):
    """attention whose causal mask is aligned top-left: keys beyond the queries are seen by none."""
    kept = k.shape[-2] if not causal else min(q.shape[-2], k.shape[-2])
    rows = min(q.shape[-2], k.shape[-2]) if causal else q.shape[-2]
    first = wrong.forward(q[..., :rows, :], k[..., :kept, :], v[..., :kept, :], causal)
    rest = wrong.forward(q[..., rows:, :], k, v, False)
    return tuple(np.concatenate(pair, axis=2) for pair in zip(first, rest, strict=True))


def test_keys_that_a_top_left_mask_hides_are_asked_about():
    poisoned = Subject("s", "attention", top_left_forward, wrong.top_left, causal="top_left")
    report = verify(poisoned, ["gradient poison", "gradient of o"], cases=20)
    assert report.exit_code == 0, report.failures()
    assert not LAWS["gradient poison"].concerns(RIGHT)  # the last query sees every key


def test_every_small_gradient_is_certified(monkeypatch):
    pytest.importorskip("flint")
    asked, certify = [], backward_module.certified_gradient
    monkeypatch.setattr(backward_module, "certified_gradient",
                        lambda *args, **options: asked.append(args) or certify(*args, **options))
    subject = next(s for s in own_subjects(["numpy"]) if s.name == "flash_attention by columns, numpy")
    report = verify(subject, ["gradient of o", "gradient of lse"], cases=10)
    assert report.exit_code == 0 and len(asked) == 20
    assert sum(cell.cases for cell in report.cells.values()) == 26  # and 3 large ones each by the definition alone


def test_large_gradients_are_compared_with_the_definition():
    large = case(2, (6, 2), 3, 40)
    assert large.q.size > backward_module.MOST_CERTIFIED
    assert BackwardCase.of(large, RIGHT).judged().verdict == "pass"
    slip = replace(RIGHT, backward=wrong.g1_tiled)
    found = BackwardCase.of(large, slip).judged()
    assert found.verdict == "fail" and found.detail.startswith("d") and found.ratio > 1


def test_without_the_oracle_the_definition_judges_alone(monkeypatch):
    monkeypatch.setattr(backward_module, "certified_gradient", None)
    small = case(3, (1, 1), 2, 3)
    assert BackwardCase.of(small, RIGHT).judged().verdict == "pass"
    assert BackwardCase.of(small, replace(RIGHT, backward=wrong.no_delta)).judged().verdict == "fail"


def test_losses_are_on_o_on_lse_or_on_both():
    both, of_o, of_lse = (BackwardCase.of(case(), RIGHT, **on) for on in ({}, {"lse": False}, {"o": False}))
    assert np.all(both.do != 0) and np.all(both.dlse != 0)
    assert np.array_equal(of_o.do, both.do) and not of_o.dlse.any()
    assert np.array_equal(of_lse.dlse, both.dlse) and not of_lse.do.any()


def test_a_loss_in_float16_keeps_gradients_within_its_range():
    steep = case(4, dtype="float16")
    steep = replace(steep, k=np.where(np.arange(4) == 0, 6e4, steep.k).astype("float16"))
    one = BackwardCase.of(steep, RIGHT)
    assert max(np.max(np.abs(x)) for x in one.right) <= 2.0**14
    assert np.frexp(np.abs(one.do))[0].min() == np.frexp(np.abs(one.do))[0].max() == 0.5  # powers of two still
    assert max(np.max(np.abs(x)) for x in replace(one, do=one.do * 16, dlse=one.dlse * 16).right) > 2.0**14


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_p_rounded_to_16_bits_is_lawful_where_it_is_declared(dtype):
    def rounded_weights(s, lse, seen):
        return wrong.weights(s, lse, seen).astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype).astype(s.dtype)

    rounding = replace(RIGHT, backward=partial(wrong.right, p_of=rounded_weights))
    assert verify(rounding, ["gradient of o"], cases=20).exit_code == 1
    report = verify(replace(rounding, p_dtype=dtype), GRADIENTS, cases=10)
    assert report.exit_code == 0, report.failures()


def test_a_bound_is_that_of_the_state_and_the_formats():
    one = BackwardCase.of(case(6), RIGHT)
    exactly = gradient_budget(*one.inputs[:2], *(x.astype("float32") for x in one.inputs[2:]), **one.options)
    assert all(np.all(a >= b) for a, b in zip(one.bounds, exactly, strict=True))  # a saved state errs too
    slow = replace(one, subject=replace(RIGHT, exp_u=1000.0))
    assert np.all(slow.bounds[2] >= one.bounds[2]) and np.any(slow.bounds[2] > 10 * one.bounds[2])


def test_what_may_leave_16_bits_has_no_bound():
    wide = BackwardCase.of(case(6, dtype="float16"), replace(RIGHT, exp_u=3e7)).bounds
    assert all(np.all((b <= np.finfo(np.float16).max) | np.isinf(b)) and np.any(np.isinf(b)) for b in wide)
    assert all(np.all(np.isfinite(b)) for b in BackwardCase.of(case(6, dtype="float16"), RIGHT).bounds)


def test_a_sum_over_a_group_has_no_bound_where_a_part_has_none():
    unbounded, wide = replace(RIGHT, exp_u=3e7), case(6, dtype="float16")
    assert any(np.any(np.isinf(b)) for b in BackwardCase.of(wide, unbounded).bounds)
    found = LAWS["sum over a group"].check(unbounded, wide)
    assert found.verdict == "pass" and found.ratio <= 1


@pytest.mark.parametrize(("backward", "text"), [
    (lambda *args: wrong.right(*args)[:2], "backward must return dq, dk, dv of the shapes"),
    (lambda *args: wrong.right(*args)[::-1], "backward must return dq, dk, dv of the shapes"),
    (lambda *args: None, "backward must return dq, dk, dv, 3 arrays; got NoneType"),
    (lambda *args: 1 / 0, "backward raised ZeroDivisionError"),
])  # fmt: skip
def test_what_is_no_gradient_is_named(backward, text):
    report = verify(replace(RIGHT, backward=backward), ["gradient of o"], cases=5)
    assert report.exit_code == 1 and text in report.cells["gradient of o", "right"].counterexample


def test_coarse_statistics_have_no_bound_and_are_not_asked():
    assert not LAWS["gradient of o"].concerns(replace(RIGHT, stats_dtype="bfloat16"))


def test_no_nan_is_within_any_bound():
    x = np.array([1.0, 2.0])
    same = compare([x], [x], [np.zeros(2)], ["dv"])
    assert same.verdict == "pass" and same.bitwise
    for got, want, bound in (([1.0, math.nan], x, 9.0), (x, [1.0, 3.0], math.nan), (x, [1.0, 3.0], np.nextafter(1, 0))):
        found = compare([np.array(got)], [np.array(want)], [np.full(2, bound)], ["dv"])
        assert found.verdict == "fail" and not found.bitwise and found.detail.startswith("dv[1]")
    assert compare([x], [np.array([1.0, 3.0])], [np.ones(2)], ["dv"]).verdict == "pass"


def in_torch(fn):
    """fn of NumPy's attention signature by fdmath's own attention, on torch: (o, lse) changed by fn."""
    return lambda q, k, v, causal: fn(*attention(q, k, v, causal=causal))


AUTOGRAD = {
    "base 2": {"fn": in_torch(lambda o, lse: (o, lse / LN2)), "log_base": 2},
    "heads last": {"fn": in_torch(lambda o, lse: (o, lse.mT)), "lse_layout": "heads_last"},
}


@pytest.mark.parametrize("declared", AUTOGRAD.values(), ids=AUTOGRAD)
def test_declared_conventions_hold_by_autograd_too(declared):
    pytest.importorskip("torch")
    pytest.importorskip("flint")
    report = verify(Subject("s", "attention", library="torch", **declared), ["gradient"], cases=15)
    assert report.exit_code == 0, report.failures()


def test_a_merge_in_base_two_is_differentiated_in_base_two():
    pytest.importorskip("torch")
    pytest.importorskip("flint")

    def fn(o1, lse1, o2, lse2, factor=1.0):
        o, lse = merge(LSEState(o1, lse1 * LN2), LSEState(o2, lse2 * LN2))
        return o, factor * lse / LN2

    subject = Subject("s", "merge", fn, library="torch", log_base=2)
    assert verify(subject, ["gradient"], cases=15).exit_code == 0
    doubled = replace(subject, fn=lambda *args: fn(*args, factor=2.0))
    assert verify(doubled, ["gradient"], cases=15).exit_code == 1
