"""What the backward loses by recomputing P from one stored lse, beside P from a level m and a sum l kept apart.

Errors are relative, |P̂ − P|/P, the largest of a row of weights, in units of u of the format in which the statistics
are stored; the work is done in float32. The scores count as exact. Source: claims:B14, B19.
"""

import numpy as np

import fdmath
from fdmath.algebra.rounding import format_of
from fdmath.algebra.state import LSEState, MLOState
from fdmath.bench.headline import Row, tile_errors

KINDS = {"lse": LSEState, "m and l": MLOState}


def scores_at(level, rows=8, keys=64, seed=0):
    """Scores level + N(0, 1) in float32, shape (rows, keys)."""
    noise = np.random.default_rng(seed).standard_normal((rows, keys))
    return np.float32(level) + noise.astype(np.float32)


def stored(scores, kind, stats):
    """The statistics of each row as the forward leaves them in the format `stats`: (lse,) or (m, l), widened again."""
    state = fdmath.partial_state(scores, scores[0, :, None], KINDS[kind], stats_dtype=stats)
    return tuple(getattr(state, name).astype(scores.dtype) for name in state.names if name != "o")


def weights_from(scores, lse_or_m, l=None):  # noqa: E741
    """P (rows, keys) as the backward recomputes it: e^(s − lse), or e^(s − m)/l where l is given too."""
    weights = np.exp(scores - lse_or_m[:, None])
    return weights if l is None else weights / l[:, None]


def weight_bound(scores, kind, stats):
    """The bound on |P̂ − P|/P, (rows, keys): expm1(η + u(|s − r| + κ)), and u more for the division by l.

    η bounds the error of the stored exponent, lse or m + log l (`tile_errors`); r is the number subtracted. Only for
    the pair does η grow with the level: u_stored·|lse|.
    """
    fmt = format_of(scores)
    (budget,) = tile_errors(scores, scores[0, :, None], KINDS[kind], stats, tile=scores.shape[-1])
    distance = np.abs(scores.astype(np.float64) - stored(scores, kind, stats)[0].astype(np.float64)[:, None])
    divided = fmt.step if kind == "m and l" else 0.0
    return np.expm1(budget.lse[:, None] + fmt.u * (distance + fmt.kappa) + divided)


def exact_weights(scores):
    """The enclosure whose o (rows, 1, keys) is P: attention with the identity matrix for v."""
    ones, keys = np.ones((len(scores), 1, 1), scores.dtype), scores.shape[-1]
    eye = np.broadcast_to(np.eye(keys, dtype=scores.dtype), (len(scores), keys, keys))
    return fdmath.certified_attention(ones, scores[..., None], eye, scale=1.0)


def measure(scores, kind, stats):
    """The Row of one way, "lse" or "m and l", of storing the statistics of these scores in the format `stats`."""
    exact, got = exact_weights(scores), weights_from(scores, *stored(scores, kind, stats))
    right = exact.o_mid[:, 0]
    error = exact.errors((got[:, None], exact.lse_mid))[0][:, 0] / right
    bound, u = weight_bound(scores, kind, stats), format_of(stats).u
    return Row(*(float(np.max(x)) for x in (error / u, bound / u, error / bound)))
