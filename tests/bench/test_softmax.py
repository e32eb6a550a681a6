"""The measurements of notebook 01: thresholds of e^s, and errors of weights, scores and outputs within their bounds."""

import math

import ml_dtypes
import numpy as np
import pytest

import fdmath
from fdmath.algebra import rounding
from fdmath.attention.printed import definition_as_printed_A_2_1_1
from fdmath.bench import softmax
from fdmath.bench.softmax import block_errors, call_errors, exp_range, inputs_at, score_errors, weight_errors

FORMATS = ("float16", "bfloat16", "float32")
RNG = np.random.default_rng(1)
Q, K, V = (RNG.standard_normal(shape).astype(np.float32) for shape in ((3, 2, 24), (3, 40, 24), (3, 40, 3)))


def in_format(x, dtype):
    """The exact float x as a number of a format."""
    return np.asarray(x, ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_ends_are_numbers_of_the_format_and_the_next_ones_are_outside(dtype):
    flint = pytest.importorskip("flint")
    ends, u = exp_range(dtype), rounding.unit_roundoff(dtype)
    largest = flint.arb(float(ml_dtypes.finfo(dtype).max))
    half_a_step = largest * flint.arb(u) / (2 - 2 * flint.arb(u))
    smallest = flint.arb(rounding.smallest_subnormal(dtype))

    def power(x, steps):
        x = in_format(x, dtype)
        for _ in range(abs(steps)):
            x = np.nextafter(x, in_format(math.copysign(math.inf, steps), dtype))
        return flint.arb(float(x)).exp()

    assert all(float(in_format(x, dtype)) == x for x in (ends.least, ends.normal, ends.most))
    assert power(ends.most, 0) < largest + half_a_step < power(ends.most, 1)
    assert power(ends.least, -1) < smallest / 2 < power(ends.least, 0)
    assert power(ends.normal, -1) < flint.arb(float(ml_dtypes.finfo(dtype).smallest_normal)) < power(ends.normal, 0)


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_exponential_of_the_library_overflows_and_vanishes_there(dtype):
    ends, away = exp_range(dtype), in_format(math.inf, dtype)
    inside = [in_format(x, dtype) for x in (ends.most, ends.least)]
    outside = [np.nextafter(x, side) for x, side in zip(inside, (away, -away), strict=True)]
    with np.errstate(all="ignore"):
        assert [0 < float(np.exp(x)) < math.inf for x in inside] == [True, True]
        assert [float(np.exp(x)) for x in outside] == [math.inf, 0.0]


def test_another_format_is_refused():
    with pytest.raises(ValueError, match="dtype must be float16, bfloat16 or float32; got 'float64'"):
        exp_range("float64")


def test_weights_err_within_their_bound_and_a_wrong_level_does_not(monkeypatch):
    m = RNG.uniform(1, 2, 500).astype(np.float32)
    scores = (m - RNG.uniform(0, 60, 500)).astype(np.float32)
    measured = weight_errors(scores, m)
    assert measured.holds and measured.error.shape == measured.bound.shape == (500,)
    exp = np.exp
    monkeypatch.setattr(np, "exp", lambda x: exp(x + x.dtype.type(2**-18)) if x.dtype == np.float32 else exp(x))
    assert not weight_errors(scores, m).holds


def test_scores_err_within_their_bound_and_scores_of_a_lower_format_do_not(monkeypatch):
    measured = score_errors(Q, K)
    assert measured.holds and measured.error.shape == measured.bound.shape == (3, 2, 40)
    assert measured.worst[1] >= 26
    half = tuple(x.astype(np.float16) for x in (Q, K))
    assert score_errors(*half, scale=0.3).holds
    prepare = softmax.prepare
    monkeypatch.setattr(softmax, "prepare", lambda q, k, v, scale: prepare(
        rounding.round_to(q, "float16"), k, v, scale=scale))
    assert not score_errors(Q, K).holds


def test_the_float64_scores_are_as_near_to_the_exact_ones_as_their_radius_says():
    sums = pytest.importorskip("fdmath.oracle.sums")
    scale = 1 / math.sqrt(24)
    got, radius = softmax._scores(Q[0], K[0], scale, softmax.FLOAT64)
    exact = sums.scores(Q[0].astype(float), K[0].astype(float), scale)
    gaps = sums.elementwise(lambda ball, x: ball - x, exact, got)
    assert all(abs(gap) <= bound for gap, bound in zip(gaps.flat, radius.flat, strict=True))


def test_a_block_errs_within_its_bound_and_the_bare_definition_only_where_it_does_not_overflow():
    noise = RNG.standard_normal((2, 40)).astype(np.float32)
    for level in (-120, -40, 0, 40, 120):
        scores = np.float32(level) + noise
        assert block_errors(scores, V[0]).holds
        assert block_errors(scores, V[0], definition_as_printed_A_2_1_1).holds == (abs(level) < 80)
    assert math.isinf(block_errors(scores, V[0], definition_as_printed_A_2_1_1).worst[0])


def test_a_call_errs_within_its_bound_and_a_wrong_scale_does_not(monkeypatch):
    assert call_errors(Q, K, V).holds
    assert call_errors(*(x.astype(np.float16) for x in (Q, K, V))).holds
    attention = fdmath.attention
    monkeypatch.setattr(fdmath, "attention", lambda q, k, v: attention(q, k, v, scale=0.2042))
    assert not call_errors(Q, K, V).holds


@pytest.mark.parametrize("level, dim", [(1, 64), (1000, 16)])
def test_inputs_stand_at_their_level(level, dim):
    q, k, v = inputs_at(level, 300, dim)
    assert (q.shape, k.shape, v.shape) == ((4, 1, dim), (4, 300, dim), (4, 300, 4))
    scores = q.astype(float) @ np.swapaxes(k.astype(float), -1, -2) / math.sqrt(dim)
    assert np.all(np.abs(np.mean(scores, axis=-1) - level) < 0.5) and np.all(np.abs(np.std(scores, axis=-1) - 1) < 0.3)
    call_errors(q, k, v)
