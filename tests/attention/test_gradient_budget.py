"""The bound on gradients: it holds what a wrong o and lse cost, and no less than that is asked of it."""

import numpy as np
import pytest

from fdmath import flash_attention, flash_attention_backward
from fdmath.attention.gradient_budget import gradient_budget
from fdmath.attention.reference import attention, attention_gradient
from tests.attention.calls import random_call
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


@pytest.mark.parametrize("arrays", [
    ([[1e20]], [[1.0]], [[1.0], [2.0]], [[1e30], [-1e30]]),  # do·v
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


def test_a_gradient_beyond_16_bits_has_no_bound_and_one_within_has():
    q, k, v = (np.array(x, np.float16) for x in ([[1.0]], [[1.0], [-1.0]], [[300.0], [-300.0]]))
    for size, beyond in ((100.0, False), (1e4, True)):
        bound = gradient_budget(np.full((1, 1), size), None, q, k, v).dq
        assert np.isinf(bound).all() == beyond and not np.isnan(bound).any()
