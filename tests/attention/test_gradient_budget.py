"""The bound on gradients: it holds what a wrong o and lse cost, and no less than that is asked of it."""

import numpy as np
import pytest

from fdmath import flash_attention, flash_attention_backward
from fdmath.algebra.rounding import format_of, score_error, unit_roundoff
from fdmath.attention.gradient_budget import gradient_budget
from fdmath.attention.reference import attention, attention_gradient
from tests.attention.calls import NAN, random_call
from tests.attention.test_flash_backward import losses, within


def test_errors_of_the_saved_state_are_covered_and_counted():
    # lse and o off by 2⁻¹⁰, far above float64's own rounding: the terms of of_lse and of_o alone must hold it.
    call, off = random_call(1, (4, 2), 5, 7, 3, 2, causal=True), 2.0**-10
    do, dlse = losses(call)
    right = attention_gradient(do, dlse, call.q, call.k, call.v, causal=True)
    o, lse = flash_attention(call.q, call.k, call.v, causal=True)
    for in_lse, in_o in ((off, 0.0), (-off, 0.0), (0.0, off), (off, -off)):
        got = flash_attention_backward(do, dlse, call.q, call.k, call.v, o + in_o, lse + in_lse, causal=True)
        budget = gradient_budget(do, dlse, call.q, call.k, call.v, of_o=abs(in_o), of_lse=abs(in_lse), causal=True)
        within(got, right, budget)
        worst = [np.max(np.abs(g - r) / b) for g, r, b in zip(got, right, budget, strict=True)]
        assert worst[0] >= 0.05 and worst[1] >= 0.05 and (worst[2] >= 0.05 or not in_lse)  # no empty promise


def test_a_call_without_a_loss_has_no_error():
    call = random_call(2, (2, 1), 3, 5, 2)
    for bound in gradient_budget(np.zeros(call.q.shape), None, call.q, call.k, call.v):
        assert np.all(bound <= 2.0**-1000)  # a few of the smallest numbers, for underflow


@pytest.mark.parametrize("dlse, of_o", [(2.0, 0.0), (0.5, 3.0)])
def test_one_number_each_costs_what_is_written(dlse, of_o):
    # A key: P = 1, o = v, lse = s and dP − delta = dlse; d = dv = N = R = 1. The docstring's lines without underflow.
    do, q, k, v, scale, of_lse = 1.25, 0.75, 1.5, -0.5, 2.0, 2.0**-20
    fmt = format_of("float32")
    u, kappa = fmt.u, fmt.kappa

    def gamma(n):
        return n * u / (1 - n * u)

    of_p = np.expm1(score_error(np.array([[q]]), np.array([[k]]), scale, fmt).item() + of_lse + u * kappa)
    of_dp, of_delta = gamma(1) * abs(do * v), gamma(2) * (abs(do) * (abs(v) + of_o) + dlse) + abs(do) * of_o
    of_slope = (1 + u) * (of_dp + of_delta) + u * dlse
    of_ds = of_p * dlse + (1 + of_p) * of_slope + u * (1 + of_p) * (dlse + of_slope)
    in_product = of_ds + gamma(4) * (dlse + of_ds)
    written = scale * in_product * k, in_product * scale * q, (of_p + gamma(4) * (1 + of_p)) * do
    arrays = (np.float32([[x]]) for x in (q, k, v))
    budget = gradient_budget(np.array([[do]]), np.array([dlse]), *arrays, of_o=of_o, of_lse=of_lse, scale=scale)
    for bound, right in zip(budget, written, strict=True):
        assert abs(bound.item() - right) <= 100 * unit_roundoff("float64") * right  # what float64 rounds


def test_underflow_costs_half_the_smallest_number_an_operation():
    lost = format_of("float32").tiny
    # No loss, dv = 3, one key of 8: 2·3 + 3 operations for the slope, one for dS, and 1 + 3 for the product with k.
    q, k, v = np.float32([[0.0]]), np.float32([[8.0]]), np.float32([[1.0, 2.0, 3.0]])
    bound = gradient_budget(np.zeros((1, 3)), None, q, k, v, scale=1.0).dq.item()
    assert 10 * 8 * lost <= bound <= (10 + 4) * (1 + 8) * lost
    # P = e^−200 is off by κ of the smallest numbers, which a large do multiplies.
    q, k, v, do = np.float32([[1.0]]), np.float32([[0.0], [-200.0]]), np.float32([[1.0], [1.0]]), 2.0**20
    bound = gradient_budget(np.array([[do]]), None, q, k, v, scale=1.0).dv[1].item()
    assert 2 * 4 * do * lost <= bound <= (2 * 4 + 4) * (1 + do) * lost


def test_hidden_keys_and_rows_without_a_key_cost_nothing():
    call = random_call(4, None, 2, 3, 2, mask=np.array([[True, True, False], [False] * 3]))
    do, dlse = losses(call)
    do[1], dlse[1] = NAN, NAN
    dq, dk, dv = gradient_budget(do, dlse, call.q, call.k, call.v, mask=call.mask)
    assert all(np.isfinite(bound).all() for bound in (dq, dk, dv))
    for unread in (dq[1], dk[2], dv[2]):
        assert np.all(unread <= 2.0**-1000)  # a few of the smallest numbers, for underflow


def test_16_bits_are_rounded_once_more():
    call = random_call(3, (2, 1), 3, 5, 2)
    wide, narrow = (gradient_budget(*losses(call), *(x.astype(t) for x in (call.q, call.k, call.v)))
                    for t in ("float32", "float16"))  # fmt: skip
    right = attention_gradient(*losses(call), call.q, call.k, call.v)
    for w, n, g in zip(wide, narrow, right, strict=True):
        assert np.all(n - w >= 2.0**-11 * np.abs(g))


def errors(do, *arrays, scale):
    """(errors, budgets) of float32 gradients by FlashAttention-2, its saved state off by its own budget."""
    right = attention_gradient(do.astype(float), None, *(x.astype(float) for x in arrays), scale=scale)
    o, lse = flash_attention(*arrays, scale=scale)
    exact = attention(*(x.astype(float) for x in arrays), scale=scale)
    off = {"of_o": np.abs(o - exact.o), "of_lse": np.abs(lse - exact.lse)}
    got = flash_attention_backward(do, None, *arrays, o, lse, scale=scale)
    budget = gradient_budget(do, None, *arrays, **off, scale=scale)
    return [np.abs(g - r) for g, r in zip(got, right, strict=True)], budget


@pytest.mark.parametrize("scale", [2.0**-126, 2.0**-131 / 5, 2.0**-139 / 5, -(2.0**-139) / 5])
def test_a_scale_below_the_normal_numbers_of_the_format_is_covered(scale):
    # scale·q loses up to half the smallest number, which a large dS multiplies; the scale itself is rounded so.
    do, q, v = np.float32([[1.0]]), np.float32([[1.5]]), np.float32([[1e9], [-1e9]])
    for k in (np.zeros((2, 1), np.float32), np.float32([[3e10], [-1e10]])):
        lost, budget = errors(do, q, k, v, scale=scale)
        assert all(np.all(e <= b) for e, b in zip(lost, budget, strict=True))
        assert abs(scale) > 2.0**-133 or lost[1].max() >= 0.1 * budget.dk.max()  # no empty promise
    assert abs(scale) > 2.0**-133 or lost[0].max() >= 0.1 * budget.dq.max()


@pytest.mark.parametrize("factor, beside", [(2.0**10, 0.0), (1.0, 2.0**20)])
def test_a_product_with_k_that_underflows_is_covered(factor, beside):
    # dS = ±2⁻⁶¹ on k = 1.5·2⁻⁸⁹ is ¾ of the smallest number: what is lost is scaled, and no less beside a large column.
    do, q, v = np.float32([[2.0**-60]]), np.float32([[0.0, 0.0]]), np.float32([[1.0], [-1.0]])
    lost, budget = errors(do, q, np.float32([[1.5 * 2.0**-89, beside], [0.0, beside]]), v, scale=factor)
    assert all(np.all(e <= b) for e, b in zip(lost, budget, strict=True))
    assert lost[0][0, 0] == factor * 2.0**-151


@pytest.mark.parametrize("arrays", [
    ([[1e20]], [[1.0]], [[1.0], [2.0]], [[1e30], [-1e30]]),  # do·v
    ([[1.0]], [[1.0]], [[1.0], [0.0]], [[2e38], [-2e38]]),  # do·v − delta
    ([[1.0]], [[1.0]], [[1e20], [2e20]], [[1e20], [-1e20]]),  # dS·k
    ([[1.0]], [[1e20]], [[1e20], [-1e20]], [[1.0], [2.0]]),  # scores
    ([[1.0]], [[1e38]], [[0.0], [0.0]], [[1.0], [2.0]]),  # scale·q, and ∞·0
])  # fmt: skip
def test_what_overflows_has_no_bound(arrays):
    do, q, k, v = (np.array(x, np.float32) for x in arrays)
    assert np.isinf(gradient_budget(do, None, q, k, v, scale=10.0).dq).all()
    assert not any(np.isnan(x).any() for x in gradient_budget(do, do[:, 0], q, k, v, scale=10.0))
    small = gradient_budget(do * 2**-100, None, q * 2**-100, k * 2**-100, v * 2**-100, scale=1.0)
    assert all(np.isfinite(x).all() for x in small)


def test_what_is_large_and_does_not_overflow_has_a_bound():
    # do·v and delta of 1e25 each: their product would overflow, but nothing multiplies them.
    do, q, k, v = (np.float32(x) for x in ([[1e10]], [[1.0]], [[1.0], [0.0]], [[1e15], [-1e15]]))
    assert all(np.isfinite(bound).all() for bound in gradient_budget(do, None, q, k, v))


def test_a_gradient_beyond_16_bits_has_no_bound_and_one_within_has():
    q, k, v = (np.array(x, np.float16) for x in ([[1.0]], [[1.0], [-1.0]], [[300.0], [-300.0]]))
    for size, beyond in ((100.0, False), (1e4, True)):
        bound = gradient_budget(np.full((1, 1), size), None, q, k, v).dq
        assert np.isinf(bound).all() == beyond and not np.isnan(bound).any()
