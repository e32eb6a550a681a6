"""The right ways from which mutants are made: one sum, all at once or one by one, with a hook in each place that errs.

Keys, tiles and states are all parts: o (P, …, dv) and lse (P, …), a key being the part (v, s). So the two ways serve
every role, and a fault planted in one step can be planted in a merge, in a block and in a decode alike.
"""

import math

import numpy as np

from fdmath.attention.decode import key_ranges
from fdmath.attention.reference import causal_mask

NOTHING = -math.inf


def same(x):
    """x as it is: a hook at which nothing is done."""
    return x


# -- steps ----------------------------------------------------------------------------------------------


def as_given(o, lse):
    """The parts as they are."""
    return o, lse


def blanked(o, lse):
    """The parts with o = 0 where they are empty, whatever they held."""
    return np.where(lse[..., None] == NOTHING, 0, o), lse


def highest(lse):
    """The largest lse of the parts, −∞ where there are none."""
    return np.max(lse, axis=0, initial=NOTHING)


def zero_for_nothing(m):
    """The level that is subtracted: 0 in the place of −∞."""
    return np.where(m == NOTHING, 0, m)


def one_for_nothing(l):
    """The divisor: 1 in the place of 0."""
    return np.where(l == 0, 1, l)


def over_parts(w):
    """The sum over the parts."""
    return np.sum(w, axis=0)


def weighed(w, o):
    """Σ w·o over the parts."""
    return np.sum(w[..., None] * o, axis=0)


def level_plus_log(level, l, log=np.log):
    """lse = level + log l, −∞ where l = 0."""
    return np.where(l == 0, NOTHING, level + log(one_for_nothing(l)))


# -- the two ways ---------------------------------------------------------------------------------------


def at_once(o, lse, *, read=blanked, level=highest, finite=zero_for_nothing, exp=np.exp, total=over_parts, share=same,
            gathered=weighed, end=level_plus_log):
    """(o, lse) of all parts: one level, a weight a part, one sum of weights, one of values, one division."""
    o, lse = read(o, lse)
    m = finite(level(lse))
    w = exp(lse - m)
    l = total(w)
    return gathered(share(w), o) / one_for_nothing(l)[..., None], end(m, l)


def one_by_one(o, lse, *, level=np.maximum, factor=same, kept_sum=same, kept_mean=same, end=level_plus_log):
    """(o, lse) of all parts, each joined to what was gathered: (m, l, acc) with the running level."""
    o, lse = blanked(o, lse)
    m, l, acc = np.full_like(lse[:1].sum(axis=0), NOTHING), lse[:0].sum(axis=0), o[:0].sum(axis=0)
    for value, s in zip(o, lse, strict=True):
        new = level(m, s)
        base = zero_for_nothing(new)
        alpha, p = np.exp(m - base), np.exp(s - base)
        m, l = new, kept_sum(alpha * l + p)
        acc = factor(alpha)[..., None] * acc + p[..., None] * value
        divisor = one_for_nothing(l)[..., None]
        acc = acc if kept_mean is same else kept_mean(acc / divisor) * divisor
    return acc / one_for_nothing(l)[..., None], end(zero_for_nothing(m), l)


# -- the calls of each role -----------------------------------------------------------------------------


def merge_by(way):
    """The merge of two states by a way of joining parts."""
    return lambda o1, lse1, o2, lse2: way(np.stack([o1, o2]), np.stack([lse1, lse2]))


def block_by(way):
    """The state of a block of scores and values by a way of joining keys."""
    return lambda scores, v: way(np.repeat(v[:, None], len(scores), axis=1), scores.T)


def interleaved(x, heads):
    """k or v with a copy for each query head, h reading h // g."""
    return np.repeat(x, heads // x.shape[1], axis=1)


def root_of_d(d):
    """The factor on the scores."""
    return 1 / math.sqrt(d)


def over_keys(q, k, v, seen, *, way=at_once, scale=root_of_d, spread=interleaved):
    """(o, lse) of q (B, Hq, Nq, d) over the keys that are seen (B, Hq, Nq, N), joined by a way."""
    k, v = (spread(x, q.shape[1]) for x in (k, v))
    scores = np.asarray(scale(q.shape[-1]), q.dtype) * (q @ np.swapaxes(k, -1, -2))
    scores = np.where(seen, scores, NOTHING)
    values = np.broadcast_to(np.moveaxis(v, -2, 0)[..., None, :], (v.shape[-2], *q.shape[:-1], v.shape[-1]))
    return way(values, np.moveaxis(scores, -1, 0))


def all_keys(q, k, causal=False):
    """The mask in which every query sees every key."""
    return np.ones((*q.shape[:-1], k.shape[-2]), bool)


def bottom_right(q, k, causal):
    """The mask of a call: the last query sees the last key."""
    return all_keys(q, k) & causal_mask(np, q.shape[-2], k.shape[-2], k) if causal else all_keys(q, k)


def in_use(q, k, seq_lens):
    """The mask of the slots before each length."""
    return all_keys(q, k) & (np.arange(k.shape[-2]) < seq_lens[:, None, None, None])


def partial_by(mask=all_keys, **steps):
    """Attention over some keys, nothing masked, its steps as given."""
    return lambda q, k, v: over_keys(q, k, v, mask(q, k), **steps)


def attention_by(mask=bottom_right, **steps):
    """Attention with a causal flag, its steps as given."""
    return lambda q, k, v, causal: over_keys(q, k, v, mask(q, k, causal), **steps)


def as_even_as_possible(slots, num_splits):
    """The (start, stop) of each split."""
    return key_ranges(slots, num_splits=num_splits)


def decode_by(mask=in_use, ranges=as_even_as_possible, merged=at_once, **steps):
    """Decoding over lengths in splits, the splits' states merged, each step as given."""
    def fn(q, k, v, seq_lens, num_splits):
        seen = mask(q, k, seq_lens)
        parts = [over_keys(q, k[..., a:b, :], v[..., a:b, :], seen[..., a:b], **steps)
                 for a, b in ranges(k.shape[-2], num_splits)]
        return merged(*map(np.stack, zip(*parts, strict=True)))

    return fn
