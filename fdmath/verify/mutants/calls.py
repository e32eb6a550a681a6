"""Wrong attention calls: masks, groups, the layout and meaning of lse, the memory that they read and write."""

import math
from functools import partial

import numpy as np

from fdmath.verify.mutants.record import Mutant, call
from fdmath.verify.mutants.ways import (
    NOTHING,
    all_keys,
    at_once,
    attention_by,
    bottom_right,
    highest,
    partial_by,
    root_of_d,
)
from fdmath.verify.subject import Subject

PARTIAL = Subject("attention over some keys", "partial", partial_by())
ATTENTION = Subject("attention, causal or not", "attention", attention_by())

# -- empty rows, other rows ------------------------------------------------------------------------------


def finite_for_nothing(q, k, v, causal):
    """A row that sees nothing returns a finite lse and the mean of v."""
    o, lse = ATTENTION.fn(q, k, v, causal)
    nothing = lse == NOTHING
    return np.where(nothing[..., None], v.mean(), o), np.where(nothing, -1e4, lse)


def all_or_nothing(q, k, v, causal):
    """Every row is empty where one is."""
    o, lse = ATTENTION.fn(q, k, v, causal)
    return (o * 0, np.full_like(lse, NOTHING)) if np.any(lse == NOTHING) else (o, lse)


def one_nan_for_all(q, k, v):
    """One NaN reaches all heads and sequences, by a scale that they share."""
    o, lse = PARTIAL.fn(q, k, v)
    return o * (0 * o.sum() + 1), lse


def one_level_for_all(lse):
    """The largest lse of all rows, for each of them."""
    m = highest(lse)
    return np.full_like(m, m.max(initial=NOTHING))


# -- what lse means --------------------------------------------------------------------------------------


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


# -- masks -----------------------------------------------------------------------------------------------


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


# -- heads and their width -------------------------------------------------------------------------------


def tiled(x, heads):
    """k or v with a copy for each query head, h reading h mod Hkv."""
    return np.tile(x, (1, heads // x.shape[1], 1, 1))


def group_as_modulus_and_stride(q, k, v):
    """Work item h takes head (h mod g)·g + h // g, which visits every head only where g is the number of KV heads."""
    o, lse = PARTIAL.fn(q, k, v)
    group, items = q.shape[1] // k.shape[1], np.arange(q.shape[1])
    done = np.isin(items, items % group * group + items // group)[:, None]
    return np.where(done[..., None], o, 0), np.where(done, lse, NOTHING)


def of_the_padded_d(d):
    """The factor of d padded to a multiple of 4, and one more tile."""
    return 1 / math.sqrt(4 * (d // 4 + 1))


def columns_left_out(q, k, v):
    """The columns of d beyond 256 are not multiplied."""
    return PARTIAL.fn(np.where(np.arange(q.shape[-1]) < 256, q, 0), k, v)


def columns_not_written(q, k, v):
    """The columns of o beyond 256 stay 0."""
    o, lse = PARTIAL.fn(q, k, v)
    return np.where(np.arange(o.shape[-1]) < 256, o, 0), lse


# -- memory ----------------------------------------------------------------------------------------------


def doubled_after_use(q, k, v):
    """q is overwritten after it was used."""
    state = PARTIAL.fn(q, k, v)
    q *= 2
    return state


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


MUTANTS = [
    Mutant("a finite lse for a row of no keys", ATTENTION, finite_for_nothing, "A4", "anchor",
           call(1, True, queries=2)),
    Mutant("a NaN shared by all heads", PARTIAL, one_nan_for_all, "A5", "seen NaN",
           tuple(np.where(np.arange(2)[:, None, None, None] == 1, math.nan, x).astype(x.dtype)
                 for x in call(2, batch=2))),
    Mutant("lse converted twice", PARTIAL, with_lse(lambda lse: lse * lse.dtype.type(math.log(2))), "D3", "counting",
           call(4)),
    Mutant("m without the scale", PARTIAL, unscaled_level, "D4", "anchor", call(3, level=4.0)),
    Mutant("layout guessed from the sizes", PARTIAL, layout_guessed, "D7", "anchor", call(3, heads=2, queries=2)),
    Mutant("padded rows read", PARTIAL, padded_rows_read, "D9", "counting", call(2, heads=2, queries=3)),
    Mutant("lse of zeros", PARTIAL, with_lse(np.zeros_like), "D11", "counting", call(2)),
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
    Mutant("scale of a padded d", PARTIAL, partial_by(scale=of_the_padded_d), "F13", "anchor", call(2, level=4.0)),
    Mutant("heads tiled over groups", PARTIAL, partial_by(spread=tiled), "G1", "grouped heads", call(2, heads=4, kv=2)),
    Mutant("group as modulus and stride", PARTIAL, group_as_modulus_and_stride, "G2", "grouped heads",
           call(2, heads=8, kv=2)),
    Mutant("one maximum for the batch", PARTIAL, partial_by(way=partial(at_once, level=one_level_for_all)), "B7",
           "anchor", tuple(np.where(np.arange(2)[:, None, None, None] == 1, x, -400).astype(x.dtype) if i == 1 else x
                                for i, x in enumerate(call(2, batch=2)))),
    Mutant("every row empty where one is", ATTENTION, all_or_nothing, "D10", "empty rows", call(1, True, queries=2)),
    Mutant("results in one workspace", PARTIAL, in_one_workspace(), "", "determinism", call(2)),
    Mutant("strides ignored", PARTIAL, strides_ignored, "H13", "strides",
           tuple(np.asarray(x, order="F") for x in call(2, heads=2, queries=2))),
    Mutant("d beyond 256 left out", PARTIAL, columns_left_out, "", "wide heads", call(2, d=300)),
    Mutant("o beyond 256 not written", PARTIAL, columns_not_written, "", "wide heads",
           tuple(np.repeat(x, 300, axis=-1) if i == 2 else x for i, x in enumerate(call(2)))),
    Mutant("q overwritten after use", PARTIAL, doubled_after_use, "", "inputs kept", call(2)),
]
