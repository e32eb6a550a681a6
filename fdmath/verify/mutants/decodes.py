"""Wrong decodes: lengths and unused slots, splits and their merge."""

import math
from functools import partial

import numpy as np

from fdmath.attention.decode import key_ranges
from fdmath.verify.mutants.calls import tiled
from fdmath.verify.mutants.merges import guard_written_back, log_in_base_two, lse_of_the_first_two
from fdmath.verify.mutants.record import Mutant, call, lengths
from fdmath.verify.mutants.ways import (
    NOTHING,
    as_even_as_possible,
    as_given,
    at_once,
    decode_by,
    in_use,
    one_by_one,
    same,
)
from fdmath.verify.subject import Subject

DECODE = Subject("decode in splits", "decode", decode_by())
FIXED = {"way": one_by_one, "merged": one_by_one}
LN2 = math.log(2)


def tiles(size):
    """The splits of a fixed number of keys, whatever num_splits."""
    return lambda slots, num_splits: key_ranges(slots, tile=size)


SAME_BITS = Subject("decode in tiles of 2", "decode", decode_by(**FIXED, ranges=tiles(2)),
                    claims=("partition independence", "batch mates"))

# -- sequences without keys ------------------------------------------------------------------------------


def divided_by_zero(q, k, v, seq_lens, num_splits):
    """A sequence of no keys is divided by the sum of its weights, 0."""
    o, lse = DECODE.fn(q, k, v, seq_lens, num_splits)
    return np.where(lse[..., None] == NOTHING, math.nan, o), lse


def marker_elsewhere(q, k, v, seq_lens, num_splits):
    """The lse of a sequence without keys is written at the place of the next one."""
    o, lse = DECODE.fn(q, k, v, seq_lens, num_splits)
    lse[(np.flatnonzero(seq_lens == 0) + 1) % len(lse)] = NOTHING
    return o, lse


# -- splits ----------------------------------------------------------------------------------------------


def rounded_down(q, k, v, seq_lens, num_splits):
    """⌊n/S⌋ keys a split: the newest keys are ignored."""
    return DECODE.fn(q, k, v, num_splits * (seq_lens // num_splits), num_splits)


def one_key_at_least(slots, num_splits):
    """Splits of one key at least: a split without keys counts a key of its neighbour again."""
    return [(a, b) if b > a else (max(a - 1, 0), max(a - 1, 0) + 1) for a, b in as_even_as_possible(slots, num_splits)]


def counted_from_the_split(q, k, v, seq_lens, num_splits):
    """Every split compares the place of a key within itself with the length of the whole."""
    seen = in_use(q, k, seq_lens)
    for a, b in as_even_as_possible(k.shape[-2], num_splits):
        seen[..., a:b] = np.arange(b - a) < seq_lens[:, None, None, None]
    return decode_by(mask=lambda *_: seen)(q, k, v, seq_lens, num_splits)


def by_the_batch(q, k, v, seq_lens, num_splits):
    """Tiles of as many keys as there are sequences: what a row gets has other bits beside other rows."""
    return decode_by(**FIXED, ranges=tiles(len(q)))(q, k, v, seq_lens, num_splits)


def planned_for_four(q, k, seq_lens):
    """The plan of a capture at length 4: later keys belong to no split."""
    return in_use(q, k, np.minimum(seq_lens, 4))


# -- the merge of splits ---------------------------------------------------------------------------------


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


def idle_spoiled(o, lse):
    """The state of a split, whose o is NaN where the split has no keys."""
    o, lse = at_once(o, lse)
    return np.where(lse[..., None] == NOTHING, math.nan, o), lse


def clamped_merge(o, lse):
    """The splits merged, those without keys with an lse of −1e4."""
    return at_once(o, np.maximum(lse, np.asarray(-1e4, lse.dtype)))


def heads_of_lse_permuted(q, k, v, seq_lens, num_splits):
    """Groups and queries were swapped for the call; lse is swapped back on the path of one split only."""
    o, lse = DECODE.fn(q, k, v, seq_lens, num_splits)
    if num_splits > 1:
        lse = lse.reshape(len(lse), k.shape[1], -1).swapaxes(1, 2).reshape(lse.shape)
    return o, lse


def in_base_two(way):
    """The way with lse of its result in base 2."""
    def fn(o, lse):
        o, lse = way(o, lse)
        return o, (lse / LN2).astype(o.dtype)

    return fn


def natural_again(o, lse):
    """The splits merged as if their lse were natural, and the result taken back from base 2."""
    o, lse = at_once(o, lse)
    return o, (lse * LN2).astype(o.dtype)


# -- slots -----------------------------------------------------------------------------------------------


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


TAIL = call(7, lengths(7), 2)
SHORT = call(3, lengths(3), 4)

MUTANTS = [
    Mutant("idle splits unguarded", DECODE, decode_by(merged=partial(at_once, finite=same)), "A1", "empty",
           call(2, lengths(0), 2)),
    Mutant("0 for a split of no keys", DECODE, decode_by(way=partial(at_once, end=guard_written_back)), "A3",
           "partition independence", SHORT),
    Mutant("0/0 in a padding slot", DECODE, divided_by_zero, "A5", "empty", call(3, lengths(0, 3), 1, batch=2)),
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
    Mutant("heads of lse permuted in splits", DECODE, heads_of_lse_permuted, "D8", "partition independence",
           call(3, lengths(3), 2, heads=4, kv=2)),
    Mutant("the marker at another sequence", DECODE, marker_elsewhere, "D10", "empty rows",
           call(2, lengths(0, 2), 1, batch=2)),
    Mutant("lse of the first two splits", DECODE, decode_by(merged=lse_of_the_first_two), "E6",
           "partition independence", call(5, lengths(5), 3)),
    Mutant("slots up to the tile counted", DECODE, decode_by(mask=up_to_the_tile), "F9", "poison",
           call(4, lengths(3), 1)),
    Mutant("0 times unused slots", DECODE, masked_scores_alone, "F10", "poison",
           tuple(np.where(np.arange(3)[:, None] == 2, math.nan, x).astype(x.dtype) if i == 2 else x
                 for i, x in enumerate(call(3, lengths(2), 1)))),
    Mutant("a hole is attended", DECODE, decode_by(mask=one_too_many), "F11", "poison", call(3, lengths(2), 1)),
    Mutant("the newest key is missed", DECODE, decode_by(mask=newest_missed), "F11", "counting", TAIL),
    Mutant("decode with heads tiled", DECODE, decode_by(spread=tiled), "G1", "anchor",
           call(2, lengths(2), 1, heads=4, kv=2)),
    Mutant("splits by num_splits, said to be fixed", SAME_BITS, decode_by(**FIXED), "C12", "partition independence",
           call(23, lengths(23), 3)),
    Mutant("splits by the batch", SAME_BITS, by_the_batch, "C12", "batch mates", call(7, lengths(7), 1)),
]
