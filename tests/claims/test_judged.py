"""The judge of the claims: attention passes, whatever the blocks; what is off by a little more than rounding fails."""

import numpy as np
import pytest

from fdmath import MLOState, attention, flash_attention
from fdmath.algebra.state import LSEState
from fdmath.attention.flash1 import flash_attention_1
from fdmath.claims.judged import attends, chain_bound


def call(seed, dtype="float64", queries=4, keys=9):
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((n, 3)).astype(dtype) for n in (queries, keys, keys)]


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("block_n", [1, 2, 4, 64])
def test_attention_attends(dtype, block_n):
    q, k, v = call(1, dtype)
    assert attends(flash_attention(q, k, v, block_n=block_n), q, k, v, block_n=block_n)
    assert attends(flash_attention_1(q, k, v, block_n=block_n), q, k, v, block_n=block_n, kind=MLOState)
    seen = np.tri(4, 9, 5, dtype=bool)
    assert attends(flash_attention(q, k, v, block_n=block_n, causal=True), q, k, v, block_n=block_n, visible=seen)
    assert attends(attention(q, k, v, scale=2.0), q, k, v, block_n=9, scale=2.0)


def test_what_is_off_does_not():
    q, k, v = call(2)
    o, lse = attention(q, k, v)
    budget = chain_bound(q, k, v, block_n=9)
    assert attends((o, lse), q, k, v, block_n=9)
    for wrong in ((o + 2 * budget.o, lse), (o, lse + 2 * budget.lse), (o * np.nan, lse)):
        assert not attends(LSEState(*wrong), q, k, v, block_n=9)
    assert not attends((o, lse), q, k, v, block_n=9, scale=1.0)
    assert not attends((o, lse), q, k[::-1], v, block_n=9)


def test_any_cut_of_the_keys_can_be_asked_for():
    q, k, v = call(3)
    halves = chain_bound(q, k, v, columns=[slice(0, 5), slice(5, 9)])
    assert all(np.array_equal(a, b) for a, b in zip(halves, chain_bound(q, k, v, block_n=5), strict=True))
