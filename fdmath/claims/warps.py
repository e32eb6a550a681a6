"""Document B, the warps of a thread block in the forward: what each of them owns and what must pass between them."""

import numpy as np

from fdmath.attention.printed import score_rows_as_printed_B
from fdmath.attention.warps import forward_split_k, forward_split_q, shares
from fdmath.claims.claim import Observed, check
from fdmath.claims.judged import attends
from fdmath.cost import warps as laws
from fdmath.cost.shared import SharedCounts

WARPS = 4
EXCHANGED = {"max", "sum", "out"}
"""What warps write for one another: row maxima, row sums, products with V."""

SHAPES = ((8, 12), (7, 13), (1, 9), (9, 4))
"""(queries, keys) of calls that are run in tiles of 4 keys."""


def random_call(queries, keys):
    """q, k and v of one head of d = 3, float64."""
    rng = np.random.default_rng(queries)
    return [rng.standard_normal((n, 3)) for n in (queries, keys, keys)]


def covers(slices, count, warps):
    """Whether the slices, as many in turn as there are warps, cut range(count) into pieces: none twice, none left."""
    turns = [slices[i:i + warps] for i in range(0, len(slices), warps)]
    return all([j for s in turn for j in range(count)[s]] == list(range(count)) for turn in turns)


@check("B46")
def keys_shared_out():
    """What each warp of split-K reads, written down: all of Q, and of every tile of K and V a slice of its own."""
    inside = []
    for queries, keys in SHAPES:
        counts, call = SharedCounts(), random_call(queries, keys)
        state = forward_split_k(*call, warps=WARPS, block_n=keys, counts=counts)
        inside += [counts.taken["q"] == [slice(0, queries)] * WARPS, covers(counts.taken["k"], keys, WARPS),
                   counts.taken["k"] == counts.taken["v"], attends(state, *call, columns=shares(keys, WARPS))]
    return Observed(inside=inside, figure=f"{WARPS} warps, a tile of 12 keys: keys "
                                          + ", ".join(f"{s.start}-{s.stop - 1}" for s in shares(12, WARPS)))


@check("B47")
def slices_of_scores():
    """The warps' slices of QKᵀ added, as the document says, against the rows of scores; by keys, then by d (figure)."""
    inside = []
    for queries, keys in ((2, 4), (2, 8), (3, 12)):
        q, k, _ = random_call(queries, keys)
        added = score_rows_as_printed_B([q @ k[part].T for part in shares(keys, WARPS)])
        inside.append(np.array_equal(added, q @ k.T))
    q, k = np.ones((1, 1)), np.array([[0.0], [1.0]])
    slices = [q @ k[part].T for part in shares(2, 2)]
    whole, added = q @ k.T, score_rows_as_printed_B(slices)
    by_dim = np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    summed = score_rows_as_printed_B([by_dim[0][:, [c]] @ by_dim[1][:, [c]].T for c in range(2)])
    return Observed(inside=inside,
                    figure="side by side they are the row; added they are right where d is cut, and not the keys: "
                           f"{np.array_equal(summed, by_dim[0] @ by_dim[1].T)}",
                    counterexample=f"q = 1, k = (0, 1), a key a warp: the row is {whole[0].tolist()}, the sum of the "
                                   f"slices {added[0].tolist()}")


@check("B48")
def cost_of_the_exchange():
    """What one more tile makes the warps of split-K write for one another: counts. How much time that takes is open."""
    one, two = (laws.forward_split_k(64, 64, 128, tiles, WARPS) for tiles in (1, 2))
    written = two.written - one.written
    return Observed(figure=f"a tile, B_r = 64, d = 128, {WARPS} warps: {written['max'] + written['sum']} statistics, "
                           f"{written['out']} products written, {two.barriers - one.barriers} barriers; no time is "
                           "published that takes the exchange alone")


@check("B49")
def rows_shared_out():
    """What split-Q passes through shared memory, counted: Q, K and V; and its result, certified."""
    inside = []
    for queries, keys in SHAPES:
        counts, call = SharedCounts(), random_call(queries, keys)
        state = forward_split_q(*call, warps=WARPS, block_n=4, counts=counts)
        inside += [not EXCHANGED & set(counts.written), covers(counts.taken["q"], queries, WARPS),
                   attends(state, *call, block_n=4)]
    other = set(laws.forward_split_k(8, 4, 3, 3, WARPS).written) & EXCHANGED
    return Observed(inside=inside, figure=f"written: q, k, v; split-K writes {', '.join(sorted(other))} too")


@check("B50")
def largest_part_of_the_gain():
    """The bytes through shared memory by either split, 16 tiles: counts, which cannot say what the gain is made of."""
    size = (64, 64, 128, 16, WARPS)
    split_k, for_itself, once = (law.bytes() for law in (
        laws.forward_split_k(*size), laws.forward_split_q(*size), laws.forward_split_q(*size, group=WARPS)))
    return Observed(figure=f"B_r = B_c = 64, d = 128, 16 tiles: split-K {split_k}, split-Q {for_itself}, with one "
                           f"reading for all warps {once} bytes; no time is published that changes the split alone")


__all__ = ["EXCHANGED", "SHAPES", "WARPS", "covers"]
