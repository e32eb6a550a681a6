"""Softmax in three passes, two and one, logsumexp, and the attention state of one block of scores."""

from fdmath import _backends as backends
from fdmath.algebra.merge import merge_all
from fdmath.algebra.order import sequential
from fdmath.algebra.state import AccState, LSEState, MLOState, check_kind


def softmax_naive(scores):
    """e^s / Σ e^s over the last axis, nothing subtracted: overflows at s > 88.7 in float32.

    scores: (…, N) in any float format; the work is done in that format. Source: document A, 2.1.1.
    """
    xp = _scores(scores)
    with backends.quiet():
        weights = xp.exp(scores)
        return weights / xp.sum(weights, axis=-1, keepdims=True)


def softmax_safe(scores):
    """Softmax over the last axis in three passes: the maximum, the sum of e^(s−m), the quotients.

    A row without a finite score is all zeros. scores: (…, N). Source: document A, section 4, max shift.
    """
    xp = _scores(scores)
    with backends.quiet():
        m = _reference_level(xp, scores)
        weights = xp.exp(scores - m)
        return weights / _one_where_zero(xp, xp.sum(weights, axis=-1, keepdims=True))


def softmax_online(scores):
    """Softmax over the last axis in two passes: (m, l) together, key by key, then the quotients.

    The first pass is the chain of ⊕ over states of one key (with no values: dv = 0).
    scores: (…, N). Source: Milakov and Gimelshein 2018; document A, section 4.
    """
    xp = _scores(scores)
    nothing = xp.zeros((*scores.shape, 0), dtype=scores.dtype)
    state = online_state(scores[..., None, :], nothing, AccState)
    with backends.quiet():
        weights = xp.exp(scores - xp.where(state.m == float("-inf"), 0.0, state.m))
        return backends.cast(weights / _one_where_zero(xp, state.l), backends.float_name(scores))


def logsumexp(scores):
    """log Σ e^s over the last axis (natural), as m + log Σ e^(s−m); −∞ where no score is finite.

    scores: (…, N), N ≥ 0. Source: document A, 2.3.1.
    """
    xp = _scores(scores)
    v = xp.zeros((*scores.shape[:-1], scores.shape[-1], 0), dtype=scores.dtype)
    return partial_state(scores[..., None, :], v).lse[..., 0]


def partial_state(scores, v, kind=LSEState, stats_dtype=None):
    """The attention state of one block of keys: m = max s, l = Σ e^(s−m), acc = Σ e^(s−m)·v, one product.

    scores: (…, Nq, N); v: (…, N, dv); statistics (…, Nq), o or acc (…, Nq, dv), in float32 (float64 for
    float64). A score of −∞ is a key that the row does not see; a key that no row sees may hold anything.
    N = 0 and unseen rows give the identity. stats_dtype names a lower format for m, l and lse: m is
    rounded *before* l is taken against it, so that nothing is lost by it; a score too large for that
    (`stored_level`) gives NaN. m is a constant of differentiation: the state does not depend on its
    reference level. acc, the sum of the weighted values, must fit the format.
    Raises ValueError for shapes, TypeError for dtypes and kinds. Source: document A, 2.2.1 and 2.3.3.
    """
    xp = backends.array_namespace(scores=scores, v=v)
    check_kind(kind)
    work = backends.working(backends.float_name(scores, "scores"), backends.float_name(v, "v"))
    if scores.ndim < 2 or v.ndim < 2 or tuple(scores.shape[:-2]) != tuple(v.shape[:-2]):
        raise ValueError(f"scores (…, Nq, N) and v (…, N, dv) must have equal leading axes; got "
                         f"{tuple(scores.shape)} and {tuple(v.shape)}")
    if scores.shape[-1] != v.shape[-2]:
        raise ValueError(f"v must have {scores.shape[-1]} keys, as scores has; got {v.shape[-2]}")
    stats = work if stats_dtype is None else backends.float_name(stats_dtype, "stats_dtype")
    scores, v = backends.cast(scores, work), backends.cast(v, work)
    with backends.quiet():
        return in_spelling(_block(xp, scores, v, stats), kind, stats)


def in_spelling(state, kind, stats):
    """The state in the spelling `kind`, its statistics in the format `stats`, o or acc in the format it has."""
    state = state.to(kind)
    return kind(*(x if x is state.payload else backends.cast(x, stats) for x in state))


def _block(xp, scores, v, stats):
    """The AccState of one block, m rounded to the format `stats`, all in working format.

    Without keys it is the identity by the same sums, which torch can still differentiate (to 0).
    """
    seen = xp.any(scores != float("-inf"), axis=-2)
    v = xp.where(seen[..., None], v, 0.0)
    top = stored_level(xp, _largest(xp, scores), stats)
    weights = xp.exp(scores - finite_level(xp, top)[..., None])
    return AccState(top, xp.sum(weights, axis=-1), weights @ v)


HIGHEST = 64.0
"""How far a stored level may lie from the largest score: e^±64 and the weights of all keys that count are normal."""


def stored_level(xp, top, stats):
    """The reference level m that a state stores: top as the format `stats` holds it.

    NaN where that is no lawful level: for +∞, and where the format is so coarse that m lies more than HIGHEST from top
    (bfloat16 from a score of 2¹⁵ on), so that weights would overflow or vanish.
    """
    work = backends.float_name(top)
    stored = backends.cast(backends.cast(top, stats), work)
    unlawful = (top == float("inf")) | (xp.abs(stored - top) > HIGHEST)
    return backends.filled(xp, stored, unlawful, float("nan"))


def finite_level(xp, m):
    """m with 0 in place of −∞, so that it can be subtracted from scores."""
    return backends.filled(xp, m, m == float("-inf"), 0.0)


def _largest(xp, scores):
    """The maximum over the last axis as a constant of differentiation, −∞ where there are no keys."""
    if scores.shape[-1] == 0:
        return xp.full(scores.shape[:-1], float("-inf"), dtype=scores.dtype, device=getattr(scores, "device", None))
    return xp.max(backends.constant(scores), axis=-1)


def online_state(scores, v, kind=MLOState):
    """The state of a block key by key: the chain of ⊕ over its one-key states, one pass over the keys.

    kind=MLOState is the recurrence as document A prints it (3.1.1, (1c)), o normalised at every key;
    AccState normalises once, at the end; LSEState adds pairs. scores: (…, Nq, N); v: (…, N, dv).
    """
    backends.array_namespace(scores=scores, v=v)
    keys = scores.shape[-1]
    if keys == 0:
        return partial_state(scores, v, kind)
    parts = (partial_state(scores[..., j:j + 1], v[..., j:j + 1, :], kind) for j in range(keys))
    return merge_all(list(parts), sequential)


def _scores(scores):
    """The namespace of a float array of scores with at least one axis."""
    xp = backends.array_namespace(scores=scores)
    backends.float_name(scores, "scores")
    if scores.ndim < 1:
        raise ValueError("scores must have at least one axis; got shape ()")
    return xp


def _reference_level(xp, scores):
    """The maximum over the last axis, kept as an axis of length 1; 0 where it is −∞ or there are no keys."""
    return finite_level(xp, _largest(xp, scores)[..., None])


def _one_where_zero(xp, x):
    """x with 1 in the places of zeros: a divisor for quotients whose numerator is 0 there."""
    return backends.filled(xp, x, x == 0, 1.0)
