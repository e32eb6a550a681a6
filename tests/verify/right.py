"""Right ways to compute attention states that are not ours: a judge that refuses one of them raises a false alarm.

NumPy alone, each from its description. Beside them stand the rows of faults.md's "Not bugs": any finite shift for the
maximum, the running lse among them; a merge from lse alone; a second mask on full blocks; a lazy rescale; splits that
differ from one another in a bit; 1/√d of the d that was padded.
"""

import functools
import math

import numpy as np

NOTHING = -np.inf
LOG2_E = math.log2(math.e)


# -- pieces ------------------------------------------------------------------------------------------------


def exp_from(s, m):
    """e^(s − m), 0 where s is −∞."""
    return np.exp(np.where(s == NOTHING, NOTHING, s - np.where(m == NOTHING, 0, m)))


def log_or_nothing(l):
    """log l, −∞ for 0."""
    return np.where(l == 0, NOTHING, np.log(np.where(l == 0, 1, l)))


def times(w, o, lse):
    """w·o, 0 where lse says that o is of no keys, whatever it holds."""
    return np.where((lse == NOTHING)[..., None], 0, w[..., None] * o)


def divided(acc, l):
    """acc/l, 0 for 0/0."""
    return acc / np.where(l == 0, 1, l)[..., None]


# -- merges of two ------------------------------------------------------------------------------------------


def by_logaddexp(o1, lse1, o2, lse2):
    """As the papers print it: lse by logaddexp, weights from it, never divided by their sum (v ≡ 1 off by |lse|·u)."""
    lse = np.logaddexp(lse1, lse2)
    return times(exp_from(lse1, lse), o1, lse1) + times(exp_from(lse2, lse), o2, lse2), lse


def by_two_sigmoids(o1, lse1, o2, lse2):
    """Each weight a sigmoid of its own, so that they sum to 1 but for a rounding or two."""
    gap = np.where((lse1 == NOTHING) & (lse2 == NOTHING), 0, lse2 - lse1)
    w1, w2 = np.where(lse1 == NOTHING, 0, 1 / (1 + np.exp(gap))), np.where(lse2 == NOTHING, 0, 1 / (1 + np.exp(-gap)))
    high, low = np.maximum(lse1, lse2), np.minimum(lse1, lse2)
    return times(w1, o1, lse1) + times(w2, o2, lse2), high + np.log1p(exp_from(low, high))


def in_base_two(o1, lse1, o2, lse2):
    """Natural lse in and out, powers and logarithms of 2 inside."""
    unit = np.asarray(LOG2_E, lse1.dtype)
    a, b = lse1 * unit, lse2 * unit
    m = np.maximum(a, b)
    m = np.where(m == NOTHING, 0, m)
    w1, w2 = np.exp2(a - m), np.exp2(b - m)
    l = w1 + w2
    lse = np.where(l == 0, NOTHING, m + np.log2(np.where(l == 0, 1, l))) / unit
    return divided(times(w1, o1, lse1) + times(w2, o2, lse2), l), lse


def in_float64(o1, lse1, o2, lse2):
    """Worked out in float64 and rounded once."""
    o, lse = by_logaddexp(*(x.astype(np.float64) for x in (o1, lse1, o2, lse2)))
    return o.astype(o1.dtype), lse.astype(lse1.dtype)


def lazily(o1, lse1, o2, lse2):
    """The level is that of the first side until the second is more than 8 above it."""
    level = np.where(lse2 - np.where(lse1 == NOTHING, 0, lse1) > 8, lse2, lse1)
    level = np.where(lse1 == NOTHING, lse2, level)
    w1, w2 = exp_from(lse1, level), exp_from(lse2, level)
    l = w1 + w2
    return divided(times(w1, o1, lse1) + times(w2, o2, lse2), l), level + log_or_nothing(l)


# -- merges of many -----------------------------------------------------------------------------------------


def all_from_lse(os, lses):
    """All from lse alone, not from (m, l): the total first, then each weight against it."""
    lse = np.logaddexp.reduce(lses, axis=0)
    return np.sum(times(exp_from(lses, lse), os, lses), axis=0), lse


def one_by_one(os, lses):
    """A chain of merges of two."""
    o, lse = os[0], lses[0]
    for part in zip(os[1:], lses[1:], strict=True):
        o, lse = by_two_sigmoids(o, lse, *part)
    return np.where((lse == NOTHING)[:, None], 0, o), lse


# -- blocks ------------------------------------------------------------------------------------------------


def seen_values(scores, v):
    """v with 0 in the slots that no row sees."""
    return np.where(np.any(scores > NOTHING, axis=0)[:, None], v, 0)


def against(scores, v, level):
    """The state of a block with the given finite level (rows,) instead of the maximum."""
    p = exp_from(scores, level[:, None])
    l = p.sum(-1)
    return divided(p @ seen_values(scores, v), l), np.where(l == 0, NOTHING, level + log_or_nothing(l))


def maximum(scores):
    """The largest score of each row, 0 where there is none."""
    m = np.max(scores, axis=-1, initial=NOTHING)
    return np.where(m == NOTHING, 0, m)


def worked(fn):
    """fn in float32 where inputs have 16 bits."""
    @functools.wraps(fn)
    def run(scores, v):
        work = np.float64 if v.dtype == np.float64 else np.float32
        return fn(scores.astype(work), v.astype(work))

    return run


ABOVE = 20


def from_above(scores, v):
    """A level ABOVE the maximum: what is less than e^ABOVE times the smallest number is lost."""
    return against(scores, v, maximum(scores) + np.asarray(ABOVE, scores.dtype))


def from_below(scores, v):
    """A level 5 below the maximum."""
    return against(scores, v, maximum(scores) - np.asarray(5, scores.dtype))


def by_powers_of_two(scores, v):
    """Powers of 2 inside, scores scaled by log₂e on the way in."""
    unit = np.asarray(LOG2_E, scores.dtype)
    s = scores * unit
    m = maximum(s)
    p = np.exp2(s - m[:, None])
    l = p.sum(-1)
    lse = np.where(l == 0, NOTHING, m + np.log2(np.where(l == 0, 1, l))) / unit
    return divided(p @ seen_values(scores, v), l), lse


def key_by_key(scores, v, patience=8.0):
    """Online, rescaled only where a score is more than `patience` above the level (a lazy rescale)."""
    rows, level = len(scores), np.full(len(scores), NOTHING, scores.dtype)
    l, acc = np.zeros(rows, scores.dtype), np.zeros((rows, v.shape[-1]), scores.dtype)
    for s, x in zip(scores.T, seen_values(scores, v), strict=True):
        stale = (s > NOTHING) & ((level == NOTHING) | (s > np.where(level == NOTHING, 0, level) + patience))
        new = np.where(stale, s, level)
        alpha, p = np.where(l == 0, 0, exp_from(level, new)), exp_from(s, new)
        l, acc, level = alpha * l + p, alpha[:, None] * acc + times(p, x, s), new
    return divided(acc, l), np.where(l == 0, NOTHING, level + log_or_nothing(l))


def against_the_running_lse(scores, v):
    """Online with the running lse as the level: l stays near 1, and says by how much the level is off."""
    rows, level = len(scores), np.full(len(scores), NOTHING, scores.dtype)
    l, acc = np.zeros(rows, scores.dtype), np.zeros((rows, v.shape[-1]), scores.dtype)
    for s, x in zip(scores.T, seen_values(scores, v), strict=True):
        new = np.logaddexp(np.where(l == 0, NOTHING, level + log_or_nothing(l)), s)
        alpha, p = np.where(l == 0, 0, exp_from(level, new)), exp_from(s, new)
        l, acc, level = alpha * l + p, alpha[:, None] * acc + times(p, x, s), new
    return divided(acc, l), np.where(l == 0, NOTHING, level + log_or_nothing(l))


def tile_by_tile(scores, v, width=16):
    """Tiles merged one after the other as pairs, in the form that does not divide by its weights."""
    state = masked_twice(scores[:, :width], v[:width])
    for start in range(width, len(v), width):
        part = slice(start, start + width)
        state = by_logaddexp(*state, *masked_twice(scores[:, part], v[part]))
    return state


def masked_twice(scores, v):
    """A second pass of the mask over scores that have it already."""
    return against(np.where(scores == NOTHING, NOTHING, scores), v, maximum(scores))


# -- calls --------------------------------------------------------------------------------------------------


def rows_of(q, k, v, mask, scale=None, block=masked_twice):
    """(o, lse) of a call, head by head, by a block's function; mask (B, Hq, Nq, N)."""
    work = np.float64 if q.dtype == np.float64 else np.float32
    group, scale = q.shape[1] // k.shape[1], np.asarray(scale or 1 / math.sqrt(q.shape[-1]), work)
    o, lse = np.empty((*q.shape[:-1], v.shape[-1]), q.dtype), np.empty(q.shape[:-1], work)
    for b, h in np.ndindex(q.shape[:2]):
        seen = mask[b, h]
        keys = np.where(np.any(seen, axis=0)[:, None], k[b, h // group].astype(work), 0)
        scores = np.where(seen, (q[b, h].astype(work) * scale) @ keys.T, NOTHING)
        state = block(scores, v[b, h // group].astype(work))
        o[b, h], lse[b, h] = state[0].astype(q.dtype), state[1]
    return o, lse


def bottom_right(q, k, causal):
    """The mask (B, Hq, Nq, N) of a call."""
    rows, keys = q.shape[-2], k.shape[-2]
    seen = np.tril(np.ones((rows, keys), bool), keys - rows) if causal else np.ones((rows, keys), bool)
    return np.broadcast_to(seen, (*q.shape[:-1], keys))


def scaled_first(q, k, v, causal):
    """q is multiplied by the scale before it meets k."""
    return rows_of(q, k, v, bottom_right(q, k, causal))


def padded(q, k, v, causal):
    """d and dv are filled up with zeros to a multiple of 8; the scale is that of the d that was given."""
    fill = lambda x: np.concatenate([x, np.zeros((*x.shape[:-1], -x.shape[-1] % 8), x.dtype)], axis=-1)  # noqa: E731
    o, lse = rows_of(*map(fill, (q, k, v)), bottom_right(q, k, causal), scale=1 / math.sqrt(q.shape[-1]))
    return o[..., : v.shape[-1]], lse


def groups_as_queries(q, k, v, causal):
    """The query heads of a group become rows of one head, and are put back (lse too)."""
    mask, kv = bottom_right(q, k, causal), k.shape[1]
    shape = (len(q), kv, q.shape[1] // kv * q.shape[2])
    o, lse = rows_of(q.reshape(*shape, q.shape[-1]), k, v, mask.reshape(*shape, k.shape[-2]))
    return o.reshape(*q.shape[:-1], v.shape[-1]), lse.reshape(q.shape[:-1])


def key_by_key_lazily(q, k, v, causal):
    """A lazy level, head by head."""
    return rows_of(q, k, v, bottom_right(q, k, causal), block=key_by_key)


def by_tiles_as_pairs(q, k, v, causal):
    """Tiles merged as pairs, head by head."""
    return rows_of(q, k, v, bottom_right(q, k, causal), block=tile_by_tile)


def top_left(q, k, v, causal):
    """The causal mask aligned top-left: a convention to be declared, no fault."""
    rows, keys = q.shape[-2], k.shape[-2]
    seen = np.tril(np.ones((rows, keys), bool)) if causal else np.ones((rows, keys), bool)
    return rows_of(q, k, v, np.broadcast_to(seen, (*q.shape[:-1], keys)))


def in_uneven_splits(q, k, v, seq_lens, num_splits):
    """Splits of ⌈n/S⌉ keys, the last ones short or empty, merged from lse alone: bits differ with S."""
    seen = np.broadcast_to(np.arange(k.shape[-2]) < seq_lens[:, None, None, None], (*q.shape[:-1], k.shape[-2]))
    size = max(1, -(-k.shape[-2] // num_splits))
    work = np.float64 if q.dtype == np.float64 else np.float32
    parts = []
    for start in range(0, max(1, k.shape[-2]), size):
        part = slice(start, start + size)
        o, lse = rows_of(*(x.astype(work) for x in (q, k[..., part, :], v[..., part, :])), seen[..., part])
        parts.append((o.reshape(-1, v.shape[-1]), lse.reshape(-1)))
    o, lse = all_from_lse(*map(np.stack, zip(*parts, strict=True)))
    return o.reshape(*q.shape[:-1], v.shape[-1]).astype(q.dtype), lse.reshape(q.shape[:-1])


def o_alone(q, k, v, causal):
    """The last step of a call that keeps its lse to itself."""
    return scaled_first(q, k, v, causal)[0]
