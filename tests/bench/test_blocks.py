"""Errors over block sizes lie within their bounds, the units are what they say, and what is wrong is outside."""

import numpy as np
import pytest

import fdmath
from fdmath.attention.flash import flash_attention
from fdmath.bench import blocks, grid, headline


@pytest.fixture(scope="module")
def case():
    return grid.synthetic(128, "float32", levels=(0, 30))


@pytest.mark.parametrize("block_n", [16, 48, 128])
def test_both_algorithms_lie_within_their_bounds(case, block_n):
    rows = list(blocks.measure(case, block_n))
    assert [(r.algorithm, r.source) for r in rows] == [(name, level) for name in blocks.ALGORITHMS for level in (0, 30)]
    assert all(0 < r.ratio <= 1 and r.error <= r.bound for r in rows)


def test_the_error_is_that_of_the_call_in_units_of_the_last_place(case):
    row = next(r for r in blocks.measure(case, 32) if (r.algorithm, r.source) == ("FlashAttention-2", 0))
    error = case.exact.errors(flash_attention(case.q, case.k, case.v, block_n=32))[0][0]
    assert row.error == np.max(error / case.exact.scale_o[0] * 2**24)  # a power of two moves no bit


def test_a_wrong_algorithm_is_outside(case, monkeypatch):
    def loses_a_key(q, k, v, block_n):
        return flash_attention(q, k[..., :-1, :], v[..., :-1, :], block_n=block_n)

    wrong = {"FlashAttention-2": (loses_a_key, fdmath.AccState)}
    monkeypatch.setattr(blocks, "ALGORITHMS", wrong)
    assert all(r.ratio > 1 for r in blocks.measure(case, 32) if r.source == 0)


@pytest.mark.parametrize("stats", ["float32", "bfloat16"])
def test_both_chains_with_lower_statistics_lie_within_their_bounds(stats):
    high = headline.synthetic(30, rows=4, keys=256)
    rows = [r for size in (16, 256) for r in blocks.with_statistics(high, stats, size)]
    assert all(0 <= r.ratio <= 1 and r.error <= r.bound for r in rows) and len(rows) == 4


def test_a_sum_rounded_to_bfloat16_shows_in_acc_and_not_in_o():
    first, second = blocks.with_statistics(headline.synthetic(0, rows=8, keys=1024), "bfloat16", 16)
    assert second.error > 8 * first.error


def test_the_times_are_of_both_algorithms_and_the_definition():
    timings = blocks.times(32, [16, 32], dim=4, causal=True, rounds=1)
    assert list(timings) == [(name, b) for name in blocks.ALGORITHMS for b in (16, 32)] + ["definition"]
    assert all(t.least > 0 for t in timings.values())
