"""The bound on gradients: it holds what a wrong o and lse cost, and no less than that is asked of it."""

import numpy as np

from fdmath import flash_attention, flash_attention_backward
from fdmath.attention.gradient_budget import gradient_budget
from fdmath.attention.reference import attention_gradient
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
