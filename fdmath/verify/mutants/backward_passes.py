"""Wrong backward passes, of calls and of merges, one slip each; those whose names begin with `right` have none."""

import math
from functools import partial

import numpy as np

from fdmath.attention.reference import attention
from fdmath.verify.mutants.merges import as_bfloat16
from fdmath.verify.mutants.record import Mutant, call, lengths, parts, states
from fdmath.verify.mutants.ways import NOTHING, at_once, blanked, bottom_right, in_use, interleaved, merge_by
from fdmath.verify.subject import Subject


def forward(q, k, v, causal):
    """The forward pass of all of them, by definition."""
    return tuple(attention(q, k, v, causal=causal))


def forward_by_lengths(q, k, v, seq_lens, num_splits):
    """The forward pass of a decode."""
    return tuple(attention(q, k, v, mask=in_use(q, k, seq_lens)))


# -- steps ----------------------------------------------------------------------------------------------


def cleaned(do, dlse, q, k, v, seen):
    """Zeros in rows that see nothing and in slots that no row sees."""
    rows, slots = seen.any(-1), seen.any((1, 2))[:, None]
    do, q = (np.where(rows[..., None], x, 0) for x in (do, q))
    return do, np.where(rows, dlse, 0), q, *(np.where(slots[..., None], x, 0) for x in (k, v))


def not_cleaned(do, dlse, q, k, v, seen):
    """Whatever unseen slots and empty rows hold is multiplied with 0."""
    return do, dlse, q, k, v


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


def differentiated(do, dlse, q, k, v, o, lse, seen, *, clean=cleaned, p_of=weights, delta=slope, kept=lambda ds: ds,
                   over_group=summed, spread=interleaved):
    """(dq, dk, dv) by the formulas of the backward pass, each step as given."""
    do, dlse, q, k, v = clean(do, dlse, q, k, v, seen)
    kv, scale = k.shape[1], np.asarray(1 / math.sqrt(q.shape[-1]), q.dtype)
    k, v = (spread(x, q.shape[1]) for x in (k, v))
    p = p_of(scale * (q @ np.swapaxes(k, -1, -2)), lse[..., None], seen)
    ds = kept(p * (do @ np.swapaxes(v, -1, -2) - delta(do, o, dlse)[..., None]))
    dk, dv = scale * (np.swapaxes(ds, -1, -2) @ q), np.swapaxes(p, -1, -2) @ do
    return scale * (ds @ k), over_group(dk, kv), over_group(dv, kv)


# -- ancestors ------------------------------------------------------------------------------------------


def right(do, dlse, q, k, v, o, lse, causal, **slip):
    """The gradients of `forward`."""
    return differentiated(do, dlse, q, k, v, o, lse, bottom_right(q, k, causal), **slip)


def right_by_lengths(do, dlse, q, k, v, o, lse, seq_lens, num_splits, **slip):
    """The gradients of `forward_by_lengths`."""
    return differentiated(do, dlse, q, k, v, o, lse, in_use(q, k, seq_lens), **slip)


def in_halves(x):
    """The keys of the two hops of a ring, the first hop the larger."""
    half = -(-x.shape[-2] // 2)
    return x[..., :half, :], x[..., half:, :]


def right_ring(do, dlse, q, k, v, o, lse, causal, *, hops=in_halves):
    """The gradients of `forward`, hop by hop over the keys: the dq add up, dk and dv stand side by side."""
    seen = np.swapaxes(bottom_right(q, k, causal), -1, -2)
    taken = zip(*map(hops, (k, v)), in_halves(seen), strict=True)
    dq, dk, dv = zip(*(differentiated(do, dlse, q, a, b, o, lse, np.swapaxes(c, -1, -2)) for a, b, c in taken),
                     strict=True)
    return sum(dq), np.concatenate(dk, axis=-2), np.concatenate(dv, axis=-2)


def right_of_parts(do, dlse, o, lse, *, share=lambda lse, total: np.exp(lse - total), of_o=lambda x: x,
                   of_lse=lambda x: x):
    """(do, dlse) of parts o (P, R, dv), lse (P, R) that were merged: each gets its weight of both."""
    o, lse = blanked(o, lse)
    mean, total = at_once(o, lse)
    p = share(lse, np.where(total == NOTHING, 0, total))
    return p[..., None] * do, p * (of_lse(dlse) + of_o(np.sum(do * (o - mean), axis=-1)))


def of_two(backward):
    """The gradients (do1, dlse1, do2, dlse2) of a merge of two by those of its parts."""
    def fn(do, dlse, o1, lse1, o2, lse2):
        (do1, do2), (dlse1, dlse2) = backward(do, dlse, np.stack([o1, o2]), np.stack([lse1, lse2]))
        return do1, dlse1, do2, dlse2

    return fn


CALL = Subject("attention with its gradient", "attention", forward, right)
RING = Subject("attention with a gradient by hops", "attention", forward, right_ring)
LENGTHS = Subject("decode with its gradient", "decode", forward_by_lengths, right_by_lengths)
PAIR = Subject("merge with its gradient", "merge", merge_by(at_once), of_two(right_of_parts))
MANY = Subject("merge of many with its gradient", "merge_many", at_once, right_of_parts)

# -- slips ----------------------------------------------------------------------------------------------


def changed(change):
    """A backward pass whose gradients are the right ones, changed."""
    return lambda *args: tuple(change(x) for x in right(*args))


def moved(x):
    """The entries of an array, each where its neighbour was."""
    return np.roll(x, 1).reshape(x.shape)


def causal_forgotten(do, dlse, q, k, v, o, lse, causal):
    """The causal flag is not looked at backward."""
    return right(do, dlse, q, k, v, o, lse, False)


def top_left(do, dlse, q, k, v, o, lse, causal):
    """The causal mask is aligned top-left backward."""
    rows, slots = q.shape[-2], k.shape[-2]
    seen = np.tril(np.ones((rows, slots), bool)) if causal else np.ones((rows, slots), bool)
    return differentiated(do, dlse, q, k, v, o, lse, np.broadcast_to(seen, (*q.shape[:-1], slots)))


def padded_scale(do, dlse, q, k, v, o, lse, causal):
    """1/√d of the padded d."""
    q, k = (np.concatenate([x, np.zeros_like(x)], axis=-1) for x in (q, k))
    dq, dk, dv = right(do, dlse, q, k, v, o, lse, causal)
    half = q.shape[-1] // 2
    return dq[..., :half], dk[..., :half], dv


def only_rows(kept, do, dlse, q, k, v, o, lse, causal):
    """The gradients of a loss on the rows that are kept (B, Hq, Nq)."""
    return right(np.where(kept[..., None], do, 0), np.where(kept, dlse, 0), q, k, v, o, lse, causal)


def tail_cut(do, dlse, q, *rest):
    """Rows beyond the last whole block of 2 are left out."""
    kept = np.arange(q.shape[-2]) < q.shape[-2] // 2 * 2
    return only_rows(np.broadcast_to(kept, q.shape[:-1]), do, dlse, q, *rest)


def first_two_sequences(do, dlse, q, *rest):
    """Sequences after the second get no gradient."""
    kept = np.arange(len(q))[:, None, None] < 2
    return only_rows(np.broadcast_to(kept, q.shape[:-1]), do, dlse, q, *rest)


def own_share(do, dlse, q, k, v, o, lse, causal):
    """P is made from the lse of the second half of the keys, not from that of all."""
    half = k.shape[-2] // 2
    part = forward(q, k[..., half:, :], v[..., half:, :], causal)
    return right(do, dlse, q, k, v, *part, causal)


def first_hop_again(x):
    """The keys of the first hop in the place of those of every hop (seen as far as the hop is long)."""
    first, second = in_halves(x)
    return first, first[..., : second.shape[-2], :]


def sizes_of_the_last_hop(do, dlse, q, k, v, o, lse, causal):
    """Every hop has the size of the last: the keys of the first that are more get no gradient, and give none."""
    first, last = in_halves(np.arange(k.shape[-2])[:, None])
    kept = np.isin(np.arange(k.shape[-2]), [*first[: len(last), 0], *last[:, 0]])
    seen = bottom_right(q, k, causal) & kept
    return differentiated(do, dlse, q, k, v, o, lse, seen)


def transposed_twice(do, dlse, q, k, v, *rest):
    """Heads and keys of k and v are exchanged once more, which no shape tells where they are as many."""
    if k.shape[1] != k.shape[2]:
        return right(do, dlse, q, k, v, *rest)
    return right(do, dlse, q, *(np.swapaxes(x, 1, 2) for x in (k, v)), *rest)


def in_base_two(s, lse, seen):
    """P by exp2 of a natural lse."""
    return np.where(seen, np.exp2(s - np.where(lse == NOTHING, 0, lse)), 0)


def unguarded(s, lse, seen):
    """P where a row of no keys gives −∞ − (−∞)."""
    return np.exp(np.where(seen, s, NOTHING) - lse)


def zero_for_empty(s, lse, seen):
    """P with lse = 0 in rows of no keys, which are then not masked."""
    return np.where(seen | (lse == NOTHING), np.exp(s - np.where(lse == NOTHING, 0, lse)), 0)


h1_lse_dropped = partial(right, delta=lambda do, o, dlse: np.sum(do * o, axis=-1))
h3_base_two = partial(right, p_of=in_base_two)
h8_unguarded = partial(right, p_of=unguarded, clean=not_cleaned)
h13_flat_delta = partial(right, delta=lambda do, o, dlse: np.sum(do * o.swapaxes(-1, -2).reshape(o.shape), -1) - dlse)
no_delta = partial(right, delta=lambda do, o, dlse: -dlse)
wrong_sign = partial(right, delta=lambda do, o, dlse: np.sum(do * o, axis=-1) + dlse)
g1_tiled = partial(right, spread=lambda x, heads: np.tile(x, (1, heads // x.shape[1], 1, 1)))
g4_first_head = partial(right, over_group=lambda x, kv: grouped(x, kv)[:, :, 0])
g4_two_heads = partial(right, over_group=lambda x, kv: grouped(x, kv)[:, :, :2].sum(axis=2))
g4_mean = partial(right, over_group=lambda x, kv: grouped(x, kv).mean(axis=2))
a8_zero_for_empty = partial(right, p_of=zero_for_empty, clean=not_cleaned)
f10_zero_times_nan = partial(right_by_lengths, clean=not_cleaned)

# -- the mutants ----------------------------------------------------------------------------------------

ONES = np.ones((1, 2), np.float32)


def loss(q, k, v, *rest):
    """The arguments of a backward: a loss on o and lse, each row's slope of its own, and the call."""
    rows = np.arange(q[..., 0].size, dtype=np.float32).reshape(q.shape[:-1]) + 1
    return np.repeat(rows[..., None], v.shape[-1], axis=-1), 1 - 2 * rows, q, k, v, *rest


def wide(q, k, v, *rest):
    """The call with two columns of values, the second squares of the first."""
    return q, k, np.concatenate([v, v**2], axis=-1), *rest


SMALL = loss(*call(3, False, queries=2))
CAUSAL = loss(*call(3, True, queries=2))
EMPTY = loss(*call(1, True, queries=2, level=200.0))
GROUP = loss(*call(2, False, heads=3))
TWO = (ONES[:, :1], ONES[:, 0], *states((1, 1), (3, 2)))
THREE = (ONES[:, :1], ONES[:, 0], *parts((1, 0), (2, 0), (3, 1)))


def wrong(name, fn, fault, killer, apart=SMALL, right=CALL):
    """A Mutant of a backward pass."""
    return Mutant(name, right, fn, fault, killer, apart, place="backward")


MUTANTS = [
    wrong("lse 0 for a row of no keys, backward", a8_zero_for_empty, "A8", "gradient of nothing", EMPTY),
    wrong("causal mask top-left backward", top_left, "F1", "gradient of o", CAUSAL),
    wrong("0 times unused slots, backward", f10_zero_times_nan, "F10", "gradient poison",
          tuple(np.where(np.arange(3)[:, None] == 2, np.nan, x).astype(x.dtype) if i == 4 else x
                for i, x in enumerate(loss(*call(3, lengths(2), 1)))), LENGTHS),
    wrong("scale of a padded d, backward", padded_scale, "F13", "gradient of lse"),
    wrong("heads tiled backward", g1_tiled, "G1", "gradient of o", loss(*call(2, False, heads=4, kv=2))),
    wrong("gradient of a group's first head", g4_first_head, "G4", "sum over a group", GROUP),
    wrong("gradient of a group's two heads", g4_two_heads, "G4", "sum over a group", GROUP),
    wrong("mean over a group", g4_mean, "G4", "sum over a group", GROUP),
    wrong("gradient of lse dropped", h1_lse_dropped, "H1", "gradient of lse"),
    wrong("gradient of lse, wrong sign", wrong_sign, "H1", "delta"),
    wrong("P from a part's own lse", own_share, "H2", "weights sum to 1"),
    wrong("natural lse in exp2, backward", h3_base_two, "H3", "weights sum to 1"),
    wrong("the first hop's keys in every hop", partial(right_ring, hops=first_hop_again), "H4", "gradient of o",
          right=RING),
    wrong("keys and heads exchanged twice", transposed_twice, "H5", "delta", loss(*call(2, False, heads=2, kv=2))),
    wrong("sizes of the last hop", sizes_of_the_last_hop, "H6", "weights sum to 1", right=RING),
    wrong("causal flag forgotten backward", causal_forgotten, "H7", "gradient causality", CAUSAL),
    wrong("rows of no keys unguarded, backward", h8_unguarded, "H8", "gradient of nothing", EMPTY),
    wrong("rows after the last whole block", tail_cut, "H10", "weights sum to 1", loss(*call(2, False, queries=3))),
    wrong("dS rounded before its sum", partial(right, kept=as_bfloat16), "H11", "gradient of o"),
    wrong("scores rounded backward", partial(right, p_of=lambda s, lse, seen: weights(as_bfloat16(s), lse, seen)),
          "H11", "weights sum to 1"),
    wrong("delta of flat memory", h13_flat_delta, "H13", "delta", loss(*wide(*call(3, False, queries=2)))),
    wrong("no delta", no_delta, "", "delta"),
    wrong("sequences after the second", first_two_sequences, "", "gradient of o", loss(*call(2, False, batch=3))),
    wrong("gradients of 0", changed(np.zeros_like), "I3", "gradient of lse"),
    wrong("constant gradients", changed(lambda x: np.full_like(x, 0.5)), "I2", "gradient of o"),
    wrong("gradients permuted", changed(moved), "I2", "gradient of lse"),
    wrong("gradients NaN", changed(lambda x: np.full_like(x, np.nan)), "I1", "gradient of o"),
    wrong("a merge's gradient without that of lse", of_two(partial(right_of_parts, of_lse=np.zeros_like)), "H1",
          "gradient", TWO, PAIR),
    wrong("a merge's weights held constant", of_two(partial(right_of_parts, of_o=np.zeros_like)), "H1", "gradient", TWO,
          PAIR),
    wrong("a merge's parts by their own lse", partial(right_of_parts, share=lambda lse, total: np.where(
        lse == NOTHING, 0, 1.0)), "H2", "gradient", THREE, MANY),
    wrong("NaN towards an empty part", partial(right_of_parts, share=lambda lse, total: np.exp(
        lse - np.where(lse == NOTHING, NOTHING, total))), "H8", "gradient",
        (ONES[:, :1], ONES[:, 0], *parts((1, 0), (0, NOTHING))), MANY),
]
