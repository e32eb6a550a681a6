"""Attention over streams of key and value tiles: in three passes over the keys, in two, in one.

A stream is anything that can be iterated again and again, such as a list of tiles. Scores are computed from
the keys wherever they are needed and are never kept, as on a chip that has no room for them. q is (…, Nq, d)
and already scaled, a tile of keys (…, t, d), of values (…, t, dv), t ≥ 1; every score must be finite (there is
no mask). Each function returns the LSEState of all keys, in the arrays' own format, NumPy or torch.
Source: Milakov and Gimelshein 2018 for softmax alone; Rabe and Staats 2021, Dao et al. 2022 with the output.
"""

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState


def three_passes(q, keys, values):
    """The state by the definition: the largest score, then the sum of weights, then the weighted sum of values."""
    xp = backends.array_namespace(q=q)
    m = float("-inf")
    for k in keys:
        m = _raised(xp, m, _scores(xp, q, k))
    l = 0.0
    for k in keys:
        l = l + xp.sum(_weights(xp, q, k, m), axis=-1)
    return LSEState(_weighted_sum(xp, q, keys, values, m, l), m + xp.log(l))


def two_passes(q, keys, values):
    """The state with level and sum in one pass (the online normaliser), then the weighted sum of values."""
    xp = backends.array_namespace(q=q)
    m, l = float("-inf"), 0.0
    for k in keys:
        scores = _scores(xp, q, k)
        new = _raised(xp, m, scores)
        l = l * xp.exp(m - new) + xp.sum(xp.exp(scores - new[..., None]), axis=-1)
        m = new
    return LSEState(_weighted_sum(xp, q, keys, values, m, l), m + xp.log(l))


def one_pass(q, keys, values):
    """The state with level, sum and output together, divided once, at the end (deferred normalisation)."""
    xp = backends.array_namespace(q=q)
    m, l, acc = float("-inf"), 0.0, 0.0
    for k, v in zip(keys, values, strict=True):
        scores = _scores(xp, q, k)
        new = _raised(xp, m, scores)
        shrink, weights = xp.exp(m - new), xp.exp(scores - new[..., None])
        l, acc = l * shrink + xp.sum(weights, axis=-1), acc * shrink[..., None] + weights @ v
        m = new
    return LSEState(acc / l[..., None], m + xp.log(l))


def _scores(xp, q, k):
    """The scores of a tile of keys, (…, Nq, t)."""
    return q @ xp.matrix_transpose(k)


def _raised(xp, m, scores):
    """The running maximum m raised to the largest of the new scores."""
    top = xp.max(scores, axis=-1)
    return xp.maximum(top, xp.full_like(top, m) if isinstance(m, float) else m)


def _weights(xp, q, k, m):
    """e^(s − m) for a tile of keys."""
    return xp.exp(_scores(xp, q, k) - m[..., None])


def _weighted_sum(xp, q, keys, values, m, l):
    """Σ (e^(s − m) / l)·v: the last pass of an algorithm that knows m and l."""
    o = 0.0
    for k, v in zip(keys, values, strict=True):
        o = o + _weights(xp, q, k, m) / l[..., None] @ v
    return o
