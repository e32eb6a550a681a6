"""What products of float32 lose in TF32, whose numbers have eleven bits: of factors, of scores, of a state.

Matrix units round a factor to eleven bits, or cut off what is beyond them. The losses here are those of exact
arithmetic on such factors; what float32 rounds besides is counted where it always is, and products of the two are
dropped, but for a thousandth.
"""

import math

import numpy as np

from fdmath.algebra import rounding
from fdmath.algebra.rounding import Budget, Format
from fdmath.attention.softmax import partial_state

TF32 = Format(2.0**-10, 2.0**-136)
"""The most that a factor loses, of itself and below the normal range: it may be cut off, so that is twice TF32's u."""
EXACT = Format(0.0, 0.0)
"""What factors lose in IEEE arithmetic."""


def cut_from(x, factors):
    """What the numbers x may lose as factors of the Format `factors`."""
    return factors.u * np.abs(x) + factors.tiny


def cut_product(x, y, factors):
    """What x @ y may lose where both are cut to the Format `factors` first."""
    return np.abs(x) @ cut_from(y, factors) + cut_from(x, factors) @ (np.abs(y) + cut_from(y, factors))


def cut_scores(q, k, scale):
    """What the scores scale·q·kᵀ (…, Nq, N) lose; the scale may be on the product, on q or on both of its factors."""
    turned = np.swapaxes(k, -1, -2)
    below = np.sum(np.abs(q), axis=-1)[..., None] + np.sum(np.abs(turned), axis=-2)[..., None, :]
    return abs(scale) * cut_product(q, turned, TF32) + TF32.tiny * below


def eleven_bits(x):
    """(x rounded to eleven bits, x cut off there) of numbers x of float64, down to the last bit of TF32's range."""
    _, exponent = np.frexp(x)
    unit = np.maximum(exponent - 11, -136)
    scaled = np.ldexp(x, -unit)
    return np.ldexp(np.rint(scaled), unit), np.ldexp(np.trunc(scaled), unit)


def lost_of_state(scores, v, of_scores):
    """The Budget of what a state (o, lse) loses: its scores err by of_scores, P and v are cut, and l sums either P.

    scores (…, Nq, N), −∞ hidden; v (…, N, dv); both exact. Weights that are off move o within the values that a row
    sees, and lse by no more than the scores. v is known, and so is what it loses.
    """
    seen = np.where(scores > -np.inf, 0.0, -np.inf)
    of_scores = np.where(seen == 0, of_scores, 0.0)
    moved = rounding.block_budget(scores, v, EXACT, of_scores)
    spread = _highest(seen, v) + _highest(seen, -v)
    of_o = np.minimum(moved.o, spread)
    of_lse = np.minimum(np.log1p(moved.lse), np.max(of_scores, axis=-1, initial=0.0))
    of_v = np.max([np.abs(x - v) for x in eleven_bits(v)], axis=0)
    size, cut = [_mean(scores, x, seen, of_scores) for x in (np.abs(v), of_v)], TF32.u
    of_o = of_o + (cut * size[0] + size[1]) / (1 - cut) + TF32.tiny * (1 + np.sum(np.abs(v), axis=-2, keepdims=True))
    return Budget(of_o * (1 + cut), of_lse - math.log1p(-cut))


def _mean(scores, x, seen, of_scores):
    """A bound on the weighted mean of x ≥ 0 (…, N, dv) with weights whose scores err by of_scores."""
    moved = rounding.block_budget(scores, x, EXACT, of_scores).o
    return np.minimum(partial_state(scores, x).o + moved, _highest(seen, x))


def _highest(seen, x):
    """The largest of x (…, N, dv) that a row sees, (…, Nq, dv); 0 where it sees none. seen: 0, or −∞ for hidden."""
    columns = [np.max(seen + x[..., None, :, c], axis=-1, initial=-np.inf) for c in range(x.shape[-1])]
    highest = np.stack(columns, axis=-1) if columns else np.zeros((*seen.shape[:-1], 0))
    return np.where(np.isneginf(highest), 0.0, highest)
