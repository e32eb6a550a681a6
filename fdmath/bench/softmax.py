"""What rounding does to a softmax, to its scores, weights and output, each measured beside its proven bound.

The exact values are those of ball arithmetic, or of float64, which the same bound certifies with u = 2⁻⁵³:
its radius there, 2⁻²⁹ of the bound, is added to the error. Scores and values come in float32 or less.
"""

import math
from dataclasses import dataclass

import ml_dtypes
import numpy as np

import fdmath
from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.attention.reference import prepare
from fdmath.attention.softmax import partial_state
from fdmath.bench.headline import certified

FLOAT32, FLOAT64 = rounding.format_of("float32"), rounding.format_of("float64")


@dataclass(frozen=True)
class ExpRange:
    """The scores of a format at which e^s, rounded once to it, is neither 0 nor infinite: least ≤ s ≤ most.

    Below `normal` the weight has lost digits: it is smaller than the smallest normal number.
    """

    least: float
    normal: float
    most: float


def exp_range(dtype):
    """The ExpRange of "float16", "bfloat16" or "float32", its ends numbers of that format.

    A result rounds to infinity from the largest number plus half its spacing on, and to 0 up to half the
    smallest subnormal. Raises ValueError for another format.
    """
    if dtype not in ("float16", "bfloat16", "float32"):
        raise ValueError(f"dtype must be float16, bfloat16 or float32; got {dtype!r}")
    info = ml_dtypes.finfo(dtype)
    largest = float(info.max)
    too_large = largest + largest * rounding.unit_roundoff(dtype) / (2 - 2 * rounding.unit_roundoff(dtype))
    return ExpRange(
        _neighbour(math.log(rounding.smallest_subnormal(dtype) / 2), dtype, math.inf),
        _neighbour(math.log(float(info.smallest_normal)), dtype, math.inf),
        _neighbour(math.log(too_large), dtype, -math.inf),
    )


def _neighbour(x, dtype, towards):
    """The number of a format nearest to x on the side of `towards` (±∞)."""
    rounded = backends.cast(np.asarray(x), dtype)
    if float(rounded) != x and (float(rounded) < x) == (towards > 0):
        rounded = np.nextafter(rounded, np.asarray(towards, rounded.dtype))
    return float(rounded)


@dataclass(frozen=True, eq=False)
class Measured:
    """Errors and their proven bounds, arrays of one shape in the same unit; a result that is no number errs by ∞."""

    error: np.ndarray
    bound: np.ndarray

    @property
    def holds(self):
        """Whether every error lies within its bound."""
        return bool(np.all(self.error <= self.bound))

    @property
    def worst(self):
        """The largest error and the largest bound, as floats."""
        return float(np.max(self.error)), float(np.max(self.bound))


def weight_errors(scores, m):
    """The relative errors of e^(s−m) in float32, in units of u: bound expm1(u(|s − m| + κ)) / u.

    scores, m: float32 arrays of one shape, s ≤ m, near enough that e^(s−m) is a normal number.
    """
    with backends.quiet():
        got = rounding.exact(np.exp(scores - m))
    distance = rounding.exact(m) - rounding.exact(scores)
    exact = np.exp(-distance)
    radius = np.expm1(FLOAT64.u * (distance + FLOAT64.kappa))  # of the float64 weight; twice it, as got errs by < 1
    return Measured((np.abs(got - exact) / exact + 2 * radius) / FLOAT32.u,
                    np.expm1(FLOAT32.u * (distance + FLOAT32.kappa)) / FLOAT32.u)


def score_errors(q, k, scale=None):
    """The errors of the scores of an attention call in float32, in units of u·scale·Σ|q||k|: bound γ_(d+2) / u.

    q: (…, Nq, d), k: (…, N, d), float32 or less; error and bound (…, Nq, N). Source: notebook 01.
    """
    call = prepare(q, k, k, scale=scale)
    got = rounding.exact(call.scores(0, call.keys)).reshape(*q.shape[:-1], k.shape[-2])
    exact, radius = _scores(q, k, call.scale, FLOAT64)
    unit = FLOAT32.u * _scores(np.abs(q), np.abs(k), abs(call.scale), FLOAT64)[0]
    return Measured((np.abs(got - exact) + radius) / unit, rounding.score_error(q, k, call.scale, FLOAT32) / unit)


def _scores(q, k, scale, fmt):
    """scale·q·kᵀ in float64, and the bound on its error in a format."""
    exact = scale * (rounding.exact(q) @ np.swapaxes(rounding.exact(k), -1, -2))
    return exact, rounding.score_error(q, k, scale, fmt)


def block_errors(scores, v, block=partial_state):
    """The errors of the o of one block, in units of u·Σp|v|, where the scores are exact: bound `block_budget`.

    scores: (R, N), v: (N, dv), float32. block: (scores, v) → (o, lse), held to the bound of the shifted form.
    """
    o, lse = block(scores, v)
    budget = rounding.block_budget(scores, v, FLOAT32)
    return _of_output(certified(scores, v).exact, (o[:, None], lse[:, None]), budget.o[:, None])


def call_errors(q, k, v):
    """The errors of the o of a float32 attention call, in units of u·Σp|v|: the scores round, then the block.

    q: (…, Nq, d), k: (…, N, d), v: (…, N, dv), float32 or less. The bound is `block_budget` with each score off
    by what `score_error` allows.
    """
    q, k, v = (backends.cast(x, "float32") for x in (q, k, v))
    scale = 1 / math.sqrt(q.shape[-1])
    exact, radius = _scores(q, k, scale, FLOAT64)
    budget = rounding.block_budget(exact, v, FLOAT32, radius + rounding.score_error(q, k, scale, FLOAT32))
    return _of_output(fdmath.certified_attention(q, k, v), fdmath.attention(q, k, v), budget.o)


def _of_output(exact, state, bound):
    """The Measured o of a state beside its exact Enclosure."""
    unit = FLOAT32.u * exact.scale_o
    return Measured(exact.errors(state)[0] / unit, bound / unit)


def inputs_at(level, keys, dim, heads=4, dv=4, seed=0):
    """(q, k, v) in float32 whose scores are level + N(0, 1), level > 0, every product of the sum about level/√d.

    q: (heads, 1, dim), k: (heads, keys, dim), v: (heads, keys, dv), standard normal.
    """
    rng = np.random.default_rng(seed)
    size = math.sqrt(level / math.sqrt(dim))
    q = np.full((heads, 1, dim), size)
    k = size + rng.standard_normal((heads, keys, dim)) / size
    return tuple(x.astype(np.float32) for x in (q, k, rng.standard_normal((heads, keys, dv))))
