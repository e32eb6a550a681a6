"""Wrong attention and decode calls: masks, splits, groups, the layout and meaning of lse."""

import math
from functools import partial

import numpy as np

from fdmath.attention.decode import key_ranges
from fdmath.verify.mutants.merges import guard_written_back, log_in_base_two, lse_of_the_first_two
from fdmath.verify.mutants.record import Mutant, call, lengths
from fdmath.verify.mutants.ways import (
    NOTHING,
    all_keys,
    as_even_as_possible,
    as_given,
    at_once,
    attention_by,
    bottom_right,
    decode_by,
    highest,
    in_use,
    one_by_one,
    partial_by,
    root_of_d,
    same,
)
from fdmath.verify.subject import Subject

PARTIAL = Subject("attention over some keys", "partial", partial_by())
ATTENTION = Subject("attention, causal or not", "attention", attention_by())
DECODE = Subject("decode in splits", "decode", decode_by())
FIXED = {"way": one_by_one, "merged": one_by_one}


def tiles(size):
    """The splits of a fixed number of keys, whatever num_splits."""
    return lambda slots, num_splits: key_ranges(slots, tile=size)


SAME_BITS = Subject("decode in tiles of 2", "decode", decode_by(**FIXED, ranges=tiles(2)),
                    claims=("partition independence", "batch mates"))
LN2 = math.log(2)

# -- empty rows -------------------------------------------------------------------------------------------


def finite_for_nothing(q, k, v, causal):
    """A row that sees nothing returns a finite lse and the mean of v."""
    o, lse = ATTENTION.fn(q, k, v, causal)
    nothing = lse == NOTHING
    return np.where(nothing[..., None], v.mean(), o), np.where(nothing, -1e4, lse)


def divided_by_zero(q, k, v, seq_lens, num_splits):
    """A sequence of no keys is divided by the sum of its weights, 0."""
    o, lse = DECODE.fn(q, k, v, seq_lens, num_splits)
    return np.where(lse[..., None] == NOTHING, math.nan, o), lse


def one_nan_for_all(q, k, v):
    """One NaN reaches all heads and sequences, by a scale that they share."""
    o, lse = PARTIAL.fn(q, k, v)
    return o * (0 * o.sum() + 1), lse


def marker_elsewhere(q, k, v, seq_lens, num_splits):
    """The lse of a sequence without keys is written at the place of the next one."""
    o, lse = DECODE.fn(q, k, v, seq_lens, num_splits)
    lse[(np.flatnonzero(seq_lens == 0) + 1) % len(lse)] = NOTHING
    return o, lse


# -- splits -----------------------------------------------------------------------------------------------


def rounded_down(q, k, v, seq_lens, num_splits):
    """⌊n/S⌋ keys a split: the newest keys are ignored."""
    return DECODE.fn(q, k, v, num_splits * (seq_lens // num_splits), num_splits)


def with_unused_slots(o, lse):
    """Four slots are merged at least, those beyond the splits (0, 0) from before."""
    more = [(0, max(0, 4 - len(lse))), *[(0, 0)] * (o.ndim - 1)]
    return at_once(np.pad(o, more), np.pad(lse, more[:-1]))


def first_four(o, lse):
    """A lane a split, and four lanes: later splits are not merged."""
    return at_once(o[:4], lse[:4])


def one_lse_for_all(q, k, v, seq_lens, num_splits):
    """Every split writes the one lse, and an idle split writes last."""
    o, lse = DECODE.fn(q, k, v, seq_lens, num_splits)
    return o, np.where((seq_lens < num_splits)[:, None, None], NOTHING, lse)


def one_key_at_least(slots, num_splits):
    """Splits of one key at least: a split without keys counts a key of its neighbour again."""
    return [(a, b) if b > a else (max(a - 1, 0), max(a - 1, 0) + 1) for a, b in as_even_as_possible(slots, num_splits)]


def planned_for_four(q, k, seq_lens):
    """The plan of a capture at length 4: later keys belong to no split."""
    return in_use(q, k, np.minimum(seq_lens, 4))


def counted_from_the_split(q, k, v, seq_lens, num_splits):
    """Every split compares the place of a key within itself with the length of the whole."""
    seen = in_use(q, k, seq_lens)
    for a, b in as_even_as_possible(k.shape[-2], num_splits):
        seen[..., a:b] = np.arange(b - a) < seq_lens[:, None, None, None]
    return decode_by(mask=lambda *_: seen)(q, k, v, seq_lens, num_splits)


def up_to_the_tile(q, k, seq_lens):
    """The tail mask is skipped: slots up to the next multiple of 2 are counted."""
    return in_use(q, k, -(-seq_lens // 2) * 2)


def one_too_many(q, k, seq_lens):
    """The length is off by one: the slot after the last key is attended."""
    return in_use(q, k, seq_lens + 1)


def newest_missed(q, k, seq_lens):
    """The length is that of before the newest key was written."""
    return in_use(q, k, seq_lens - 1)


def masked_scores_alone(q, k, v, seq_lens, num_splits):
    """Unused slots have weight 0, and what they hold in v is multiplied with it."""
    return decode_by(way=partial(at_once, read=as_given))(q, k, v, seq_lens, num_splits)


def heads_of_lse_permuted(q, k, v, seq_lens, num_splits):
    """Groups and queries were swapped for the call; lse is swapped back on the path of one split only."""
    o, lse = DECODE.fn(q, k, v, seq_lens, num_splits)
    if num_splits > 1:
        lse = lse.reshape(len(lse), k.shape[1], -1).swapaxes(1, 2).reshape(lse.shape)
    return o, lse


def by_the_batch(q, k, v, seq_lens, num_splits):
    """Tiles of as many keys as there are sequences: what a row gets has other bits beside other rows."""
    return decode_by(**FIXED, ranges=tiles(len(q)))(q, k, v, seq_lens, num_splits)


# -- what lse means ---------------------------------------------------------------------------------------


def in_base_two(way):
    """The way with lse of its result in base 2."""
    def fn(o, lse):
        o, lse = way(o, lse)
        return o, (lse / LN2).astype(o.dtype)

    return fn


def with_lse(change):
    """The attention over some keys with its lse changed."""
    def fn(q, k, v):
        o, lse = PARTIAL.fn(q, k, v)
        return o, change(lse)

    return fn


def unscaled_level(q, k, v):
    """m without the scale, log l with it."""
    o, lse = PARTIAL.fn(q, k, v)
    scores = q @ np.swapaxes(np.repeat(k, q.shape[1] // k.shape[1], axis=1), -1, -2)
    m = scores.max(-1) if scores.size else np.zeros_like(lse)
    return o, lse + (m * (1 - root_of_d(q.shape[-1]))).astype(lse.dtype)


def layout_guessed(q, k, v):
    """lse is turned to (tokens, heads) and back by its sizes, which tell nothing where they are equal."""
    o, lse = PARTIAL.fn(q, k, v)
    turned = np.swapaxes(lse, 1, 2)
    return o, turned.copy() if turned.shape == lse.shape else lse


def padded_rows_read(q, k, v):
    """lse lies in a buffer whose rows are padded to 4 queries, and is read as if they were not."""
    o, lse = PARTIAL.fn(q, k, v)
    buffer = np.zeros((*lse.shape[:2], -(-lse.shape[2] // 4) * 4), lse.dtype)
    buffer[..., : lse.shape[2]] = lse
    return o, buffer.reshape(-1)[: lse.size].reshape(lse.shape)


# -- masks ------------------------------------------------------------------------------------------------


def top_left(q, k, causal):
    """The causal mask aligned top-left: query i sees the keys j ≤ i."""
    return all_keys(q, k) & np.tril(np.ones((q.shape[-2], k.shape[-2]), bool)) if causal else all_keys(q, k)


def forgotten(q, k, causal):
    """The causal flag is not looked at."""
    return all_keys(q, k)


def in_the_first_tile(q, k, causal):
    """The causal mask is applied to the first tile of 2 keys only."""
    return bottom_right(q, k, causal) | (np.arange(k.shape[-2]) >= 2)


def without_its_own(q, k, causal):
    """A query does not see its own key."""
    if not causal:
        return all_keys(q, k)
    rows, slots = q.shape[-2], k.shape[-2]
    return all_keys(q, k) & (np.arange(slots) < np.arange(rows)[:, None] + slots - rows)


def every_hop_causal(q, k, causal):
    """A ring of two hops, causal on each as if it were the diagonal one."""
    half = k.shape[-2] // 2
    hops = (bottom_right(q, k[..., :half, :], causal), bottom_right(q, k[..., half:, :], causal))
    return np.concatenate(hops, axis=-1)


def padded_keys(q, k, v, *mask):
    """q, k, v with keys of zeros up to a multiple of 4, which no mask hides."""
    more = [(0, 0), (0, 0), (0, -k.shape[-2] % 4), (0, 0)]
    return q, np.pad(k, more), np.pad(v, more)


def tail_not_masked(q, k, v):
    """Keys are padded with zeros to a multiple of 4, and counted."""
    return PARTIAL.fn(*padded_keys(q, k, v))


def beyond_the_last_key(q, k, v, causal):
    """The bound of a causal row is a whole tile of 2: where the keys end with a tile, the last row reads one beyond."""
    if not causal or k.shape[-2] % 2 or not k.shape[-2]:
        return ATTENTION.fn(q, k, v, causal)
    more = [(0, 0), (0, 0), (0, 1), (0, 0)]
    seen = np.pad(bottom_right(q, k, causal), [*more[:2], (0, 0), (0, 1)])
    seen[..., -1, -1] = True
    return attention_by(mask=lambda *_: seen)(q, np.pad(k, more), np.pad(v, more), causal)


def of_the_padded_d(d):
    """The factor of d padded to a multiple of 4, and one more tile."""
    return 1 / math.sqrt(4 * (d // 4 + 1))


# -- groups -----------------------------------------------------------------------------------------------


def tiled(x, heads):
    """k or v with a copy for each query head, h reading h mod Hkv."""
    return np.tile(x, (1, heads // x.shape[1], 1, 1))


def group_as_modulus_and_stride(q, k, v):
    """Work item h takes head (h mod g)·g + h // g, which visits every head only where g is the number of KV heads."""
    o, lse = PARTIAL.fn(q, k, v)
    group, items = q.shape[1] // k.shape[1], np.arange(q.shape[1])
    done = np.isin(items, items % group * group + items // group)[:, None]
    return np.where(done[..., None], o, 0), np.where(done, lse, NOTHING)


# -- memory -----------------------------------------------------------------------------------


def doubled_after_use(q, k, v):
    """q is overwritten after it was used."""
    state = PARTIAL.fn(q, k, v)
    q *= 2
    return state


def idle_spoiled(o, lse):
    """The state of a split, whose o is NaN where the split has no keys."""
    o, lse = at_once(o, lse)
    return np.where(lse[..., None] == NOTHING, math.nan, o), lse


def clamped_merge(o, lse):
    """The splits merged, those without keys with an lse of −1e4."""
    return at_once(o, np.maximum(lse, np.asarray(-1e4, lse.dtype)))


def natural_again(o, lse):
    """The splits merged as if their lse were natural, and the result taken back from base 2."""
    o, lse = at_once(o, lse)
    return o, (lse * LN2).astype(o.dtype)


def in_one_workspace():
    """An attention that returns o in a buffer of its own, the same at every call of a shape."""
    buffers = {}

    def fn(q, k, v):
        o, lse = PARTIAL.fn(q, k, v)
        buffer = buffers.setdefault((o.shape, o.dtype.name), np.empty_like(o))
        buffer[...] = o
        return buffer, lse

    return fn


def strides_ignored(q, k, v):
    """q, k and v are read as flat memory, whatever their strides."""
    return PARTIAL.fn(*(x.ravel(order="K").reshape(x.shape) for x in (q, k, v)))


def columns_left_out(q, k, v):
    """The columns of d beyond 256 are not multiplied."""
    return PARTIAL.fn(np.where(np.arange(q.shape[-1]) < 256, q, 0), k, v)


def columns_not_written(q, k, v):
    """The columns of o beyond 256 stay 0."""
    o, lse = PARTIAL.fn(q, k, v)
    return np.where(np.arange(o.shape[-1]) < 256, o, 0), lse


def one_level_for_all(lse):
    """The largest lse of all rows, for each of them."""
    m = highest(lse)
    return np.full_like(m, m.max(initial=NOTHING))


def all_or_nothing(q, k, v, causal):
    """Every row is empty where one is."""
    o, lse = ATTENTION.fn(q, k, v, causal)
    return (o * 0, np.full_like(lse, NOTHING)) if np.any(lse == NOTHING) else (o, lse)


TAIL = call(7, lengths(7), 2)
SHORT = call(3, lengths(3), 4)

MUTANTS = [
    Mutant("idle splits unguarded", DECODE, decode_by(merged=partial(at_once, finite=same)), "A1", "empty",
           call(2, lengths(0), 2)),
    Mutant("0 for a split of no keys", DECODE, decode_by(way=partial(at_once, end=guard_written_back)), "A3",
           "partition independence", SHORT),
    Mutant("a finite lse for a row of no keys", ATTENTION, finite_for_nothing, "A4", "anchor",
           call(1, True, queries=2)),
    Mutant("0/0 in a padding slot", DECODE, divided_by_zero, "A5", "empty", call(3, lengths(0, 3), 1, batch=2)),
    Mutant("a NaN shared by all heads", PARTIAL, one_nan_for_all, "A5", "seen NaN",
           tuple(np.where(np.arange(2)[:, None, None, None] == 1, math.nan, x).astype(x.dtype)
                 for x in call(2, batch=2))),
    Mutant("NaN in an idle split", DECODE, decode_by(way=idle_spoiled, merged=partial(at_once, read=as_given)), "A6",
           "partition independence", SHORT),
    Mutant("idle splits at -1e4", DECODE, decode_by(merged=clamped_merge), "A7", "empty", call(2, lengths(0), 2)),
    Mutant("n // S keys a split", DECODE, rounded_down, "C1", "counting", TAIL),
    Mutant("unused slots merged", DECODE, decode_by(merged=with_unused_slots), "C3", "partition independence", TAIL),
    Mutant("four lanes for the splits", DECODE, decode_by(merged=first_four), "C3", "partition independence",
           call(9, lengths(9), 9)),
    Mutant("one lse for all splits", DECODE, one_lse_for_all, "C4", "partition independence", SHORT),
    Mutant("a split of no keys counts one", DECODE, decode_by(ranges=one_key_at_least), "C5",
           "partition independence", SHORT),
    Mutant("the plan of another length", DECODE, decode_by(mask=planned_for_four), "C6", "permutation", TAIL),
    Mutant("tail mask by the place in the split", DECODE, counted_from_the_split, "C8", "poison",
           call(6, lengths(5), 2)),
    Mutant("base-2 splits merged in base e", DECODE, decode_by(way=in_base_two(at_once), merged=natural_again), "D1",
           "partition independence", TAIL),
    Mutant("natural splits merged in base 2", DECODE,
           decode_by(merged=partial(at_once, exp=np.exp2, end=log_in_base_two)), "D2", "counting", TAIL),
    Mutant("lse converted twice", PARTIAL, with_lse(lambda lse: (lse * LN2).astype(lse.dtype)), "D3", "counting",
           call(4)),
    Mutant("m without the scale", PARTIAL, unscaled_level, "D4", "anchor", call(3, level=4.0)),
    Mutant("layout guessed from the sizes", PARTIAL, layout_guessed, "D7", "anchor", call(3, heads=2, queries=2)),
    Mutant("heads of lse permuted in splits", DECODE, heads_of_lse_permuted, "D8", "partition independence",
           call(3, lengths(3), 2, heads=4, kv=2)),
    Mutant("padded rows read", PARTIAL, padded_rows_read, "D9", "counting", call(2, heads=2, queries=3)),
    Mutant("the marker at another sequence", DECODE, marker_elsewhere, "D10", "empty rows",
           call(2, lengths(0, 2), 1, batch=2)),
    Mutant("lse of zeros", PARTIAL, with_lse(np.zeros_like), "D11", "counting", call(2)),
    Mutant("lse of the first two splits", DECODE, decode_by(merged=lse_of_the_first_two), "E6",
           "partition independence", call(5, lengths(5), 3)),
    Mutant("causal mask top-left", ATTENTION, attention_by(mask=top_left), "F1", "counting", call(4, True)),
    Mutant("causal flag forgotten", ATTENTION, attention_by(mask=forgotten), "F1", "causality",
           call(2, True, queries=2)),
    Mutant("a key beyond the last", ATTENTION, beyond_the_last_key, "F4", "counting", call(2, True)),
    Mutant("causal mask in the first tile", ATTENTION, attention_by(mask=in_the_first_tile), "F5", "causality",
           call(4, True, queries=2)),
    Mutant("every hop of a ring causal", ATTENTION, attention_by(mask=every_hop_causal), "F7", "closure",
           call(4, True, queries=2)),
    Mutant("a query without its own key", ATTENTION, attention_by(mask=without_its_own), "F8", "counting",
           call(2, True)),
    Mutant("padded keys counted", PARTIAL, tail_not_masked, "F9", "counting", call(3)),
    Mutant("slots up to the tile counted", DECODE, decode_by(mask=up_to_the_tile), "F9", "poison",
           call(4, lengths(3), 1)),
    Mutant("0 times unused slots", DECODE, masked_scores_alone, "F10", "poison",
           tuple(np.where(np.arange(3)[:, None] == 2, math.nan, x).astype(x.dtype) if i == 2 else x
                 for i, x in enumerate(call(3, lengths(2), 1)))),
    Mutant("a hole is attended", DECODE, decode_by(mask=one_too_many), "F11", "poison", call(3, lengths(2), 1)),
    Mutant("the newest key is missed", DECODE, decode_by(mask=newest_missed), "F11", "counting", TAIL),
    Mutant("scale of a padded d", PARTIAL, partial_by(scale=of_the_padded_d), "F13", "anchor", call(2, level=4.0)),
    Mutant("heads tiled over groups", PARTIAL, partial_by(spread=tiled), "G1", "anchor", call(2, heads=4, kv=2)),
    Mutant("decode with heads tiled", DECODE, decode_by(spread=tiled), "G1", "anchor",
           call(2, lengths(2), 1, heads=4, kv=2)),
    Mutant("group as modulus and stride", PARTIAL, group_as_modulus_and_stride, "G2", "grouped heads",
           call(2, heads=8, kv=2)),
    Mutant("one maximum for the batch", PARTIAL, partial_by(way=partial(at_once, level=one_level_for_all)), "B7",
           "anchor", tuple(np.where(np.arange(2)[:, None, None, None] == 1, x, -400).astype(x.dtype) if i == 1 else x
                                for i, x in enumerate(call(2, batch=2)))),
    Mutant("every row empty where one is", ATTENTION, all_or_nothing, "D10", "empty rows", call(1, True, queries=2)),
    Mutant("splits by num_splits, said to be fixed", SAME_BITS, decode_by(**FIXED), "C12", "partition independence",
           call(23, lengths(23), 3)),
    Mutant("splits by the batch", SAME_BITS, by_the_batch, "C12", "batch mates", call(7, lengths(7), 1)),
    Mutant("results in one workspace", PARTIAL, in_one_workspace(), "", "determinism", call(2)),
    Mutant("strides ignored", PARTIAL, strides_ignored, "H13", "strides",
           tuple(np.asarray(x, order="F") for x in call(2, heads=2, queries=2))),
    Mutant("d beyond 256 left out", PARTIAL, columns_left_out, "", "wide heads", call(2, d=300)),
    Mutant("o beyond 256 not written", PARTIAL, columns_not_written, "", "wide heads",
           tuple(np.repeat(x, 300, axis=-1) if i == 2 else x for i, x in enumerate(call(2)))),
    Mutant("q overwritten after use", PARTIAL, doubled_after_use, "", "inputs kept", call(2)),
]
