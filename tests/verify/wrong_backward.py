"""Backward passes with one slip each, those of faults.md sections F to I that a law must kill; `right` has none."""

import math
from functools import partial

import numpy as np

from fdmath.attention.reference import attention, causal_mask

NOTHING = -np.inf


def forward(q, k, v, causal):
    """The forward pass of all of them, by definition."""
    return tuple(attention(q, k, v, causal=causal))


def forward_by_lengths(q, k, v, seq_lens, num_splits):
    """The forward pass of a decode."""
    return tuple(attention(q, k, v, mask=in_use(q, k, seq_lens)))


def in_use(q, k, seq_lens):
    """The mask (B, Hq, Nq, N) of the slots before each length."""
    return np.broadcast_to(np.arange(k.shape[-2]) < seq_lens[:, None, None, None], (*q.shape[:-1], k.shape[-2]))


def under_the_mask(q, k, causal):
    """The mask (B, Hq, Nq, N) of what a call sees."""
    rows, keys = q.shape[-2], k.shape[-2]
    seen = causal_mask(np, rows, keys, k) if causal else np.ones((rows, keys), bool)
    return np.broadcast_to(seen, (*q.shape[:-1], keys))


def blanked(do, dlse, q, k, v, seen):
    """Zeros in rows that see nothing and in slots that no row sees."""
    rows, slots = seen.any(-1), seen.any((1, 2))[:, None]
    do, q = (np.where(rows[..., None], x, 0) for x in (do, q))
    return do, np.where(rows, dlse, 0), q, *(np.where(slots[..., None], x, 0) for x in (k, v))


def weights(s, lse, seen):
    """P made anew, 0 where not visible."""
    return np.where(seen, np.exp(s - np.where(lse == NOTHING, 0, lse)), 0)


def slope(do, o, dlse):
    """delta, from which dlse is taken."""
    return np.sum(do * o, axis=-1) - dlse


def grouped(x, kv):
    """x (B, Hq, …) as (B, Hkv, g, …)."""
    return x.reshape(len(x), kv, x.shape[1] // kv, *x.shape[2:])


def summed(x, kv):
    """Gradients of copies of k or v, summed over the query heads of each KV head."""
    return grouped(x, kv).sum(axis=2)


def copies(x, heads):
    """k or v with a copy for each query head, h reading h // g."""
    return np.repeat(x, heads // x.shape[1], axis=1)


def differentiated(do, dlse, q, k, v, o, lse, seen, *, blank=blanked, p_of=weights, delta=slope, over_group=summed,
                   spread=copies):
    """(dq, dk, dv) by the formulas of the backward pass, each step as given."""
    do, dlse, q, k, v = blank(do, dlse, q, k, v, seen)
    kv, scale = k.shape[1], np.asarray(1 / math.sqrt(q.shape[-1]), q.dtype)
    k, v = (spread(x, q.shape[1]) for x in (k, v))
    p = p_of(scale * (q @ np.swapaxes(k, -1, -2)), lse[..., None], seen)
    ds = p * (do @ np.swapaxes(v, -1, -2) - delta(do, o, dlse)[..., None])
    dk, dv = scale * (np.swapaxes(ds, -1, -2) @ q), np.swapaxes(p, -1, -2) @ do
    return scale * (ds @ k), over_group(dk, kv), over_group(dv, kv)


def right(do, dlse, q, k, v, o, lse, causal, **slip):
    """The gradients of `forward`."""
    return differentiated(do, dlse, q, k, v, o, lse, under_the_mask(q, k, causal), **slip)


def right_by_lengths(do, dlse, q, k, v, o, lse, seq_lens, num_splits, **slip):
    """The gradients of `forward_by_lengths`."""
    return differentiated(do, dlse, q, k, v, o, lse, in_use(q, k, seq_lens), **slip)


def changed(change):
    """A backward pass whose gradients are the right ones, changed."""
    return lambda *args: tuple(change(x) for x in right(*args))


def moved(x):
    """The entries of an array, each where its neighbour was."""
    return np.roll(x, 1).reshape(x.shape)


def causal_forgotten(do, dlse, q, k, v, o, lse, causal):
    """F1, H7: the causal flag is not looked at backward."""
    return right(do, dlse, q, k, v, o, lse, False)


def top_left(do, dlse, q, k, v, o, lse, causal):
    """F1: the causal mask is aligned top-left backward."""
    rows, keys = q.shape[-2], k.shape[-2]
    seen = np.tril(np.ones((rows, keys), bool)) if causal else np.ones((rows, keys), bool)
    return differentiated(do, dlse, q, k, v, o, lse, np.broadcast_to(seen, (*q.shape[:-1], keys)))


def padded_scale(do, dlse, q, k, v, o, lse, causal):
    """F13: 1/√d of the padded d."""
    q, k = (np.concatenate([x, np.zeros_like(x)], axis=-1) for x in (q, k))
    dq, dk, dv = right(do, dlse, q, k, v, o, lse, causal)
    half = q.shape[-1] // 2
    return dq[..., :half], dk[..., :half], dv


def tail_cut(do, dlse, q, k, v, o, lse, causal):
    """H10: rows beyond the last whole block of 2 are left out."""
    kept = np.arange(q.shape[-2]) < q.shape[-2] // 2 * 2
    return right(np.where(kept[:, None], do, 0), np.where(kept, dlse, 0), q, k, v, o, lse, causal)


def first_two_sequences(do, dlse, q, k, v, o, lse, causal):
    """Sequences after the second get no gradient."""
    kept = np.arange(len(q))[:, None, None] < 2
    return right(np.where(kept[..., None], do, 0), np.where(kept, dlse, 0), q, k, v, o, lse, causal)


def own_share(do, dlse, q, k, v, o, lse, causal):
    """H2: P is made from the lse of the second half of the keys, not from that of all."""
    half = k.shape[-2] // 2
    part = forward(q, k[..., half:, :], v[..., half:, :], causal)
    return right(do, dlse, q, k, v, *part, causal)


def unblanked(do, dlse, q, k, v, seen):
    """Whatever unseen slots and empty rows hold is multiplied with 0."""
    return do, dlse, q, k, v


h1_lse_dropped = partial(right, delta=lambda do, o, dlse: np.sum(do * o, axis=-1))
h3_base_two = partial(right, p_of=lambda s, lse, seen: np.where(seen, np.exp2(s - np.where(lse == NOTHING, 0, lse)), 0))
h8_unguarded = partial(right, p_of=lambda s, lse, seen: np.exp(np.where(seen, s, NOTHING) - lse), blank=unblanked)
h13_flat_delta = partial(right, delta=lambda do, o, dlse: np.sum(do * o.swapaxes(-1, -2).reshape(o.shape), -1) - dlse)
no_delta = partial(right, delta=lambda do, o, dlse: -dlse)
wrong_sign = partial(right, delta=lambda do, o, dlse: np.sum(do * o, axis=-1) + dlse)
g1_tiled = partial(right, spread=lambda x, heads: np.tile(x, (1, heads // x.shape[1], 1, 1)))
g4_first_head = partial(right, over_group=lambda x, kv: grouped(x, kv)[:, :, 0])
g4_two_heads = partial(right, over_group=lambda x, kv: grouped(x, kv)[:, :, :2].sum(axis=2))
g4_mean = partial(right, over_group=lambda x, kv: grouped(x, kv).mean(axis=2))
a8_zero_for_empty = partial(right, p_of=lambda s, lse, seen: np.where(
    seen | (lse == NOTHING), np.exp(s - np.where(lse == NOTHING, 0, lse)), 0), blank=unblanked)
f10_zero_times_nan = partial(right_by_lengths, blank=unblanked)
