"""Document B, the forward: which loop is outside, how many thread blocks that gives, and what is read how often."""

from fractions import Fraction

import numpy as np

from fdmath.attention.flash import flash_attention
from fdmath.attention.flash1 import flash_attention_1
from fdmath.bench import journal
from fdmath.claims.claim import Observed, check
from fdmath.cost.counts import Counts
from fdmath.cost.decode import thread_blocks
from fdmath.cost.flash import Grid, flash1_traffic, forward_traffic, loop_order_ratio
from fdmath.cost.hardware import A100
from fdmath.cost.occupancy import fills, forward_thread_blocks

SHAPES = ((8, 12, 2, 3), (7, 13, 3, 4), (6, 6, 2, 2))
"""(queries, keys, B_r, B_c) of calls that are run and written down."""

EXAMPLE = {"batch": 1, "heads": 32}
"""The document's: one sequence, 32 heads, of 4096 queries in blocks of 64."""


def journals(algorithm):
    """The Journal of the algorithm on each of SHAPES."""
    rng = np.random.default_rng(26)
    for queries, keys, block_m, block_n in SHAPES:
        q, k, v = (rng.standard_normal((n, 2)) for n in (queries, keys, keys))
        yield journal.journal_of(algorithm, q, k, v, block_m=block_m, block_n=block_n)


def workers(written_down):
    """The number of workers that can go about the blocks without a word, by what they load, read and store."""
    return int(journal.owners(written_down).max()) + 1


@check("B26")
def keys_outside():
    """The order in which FlashAttention-1 visits the blocks, written down, and whether its blocks can be shared out."""
    inside = []
    for found in journals(flash_attention_1):
        columns = [key for _, key in found.visits]
        inside += [columns == sorted(columns), len(set(columns)) > 1, workers(found) == 1]
    return Observed(inside=inside, figure=f"{len(SHAPES)} shapes: all query blocks with one key block before the next; "
                                          "every block tied to the others, so one thread block a head")


@check("B27")
def queries_outside():
    """The order in which FlashAttention-2 visits the blocks, and the workers that need no word of one another."""
    inside, counted = [], []
    for (queries, _, block_m, _), found in zip(SHAPES, journals(flash_attention), strict=True):
        rows = [query for query, _ in found.visits]
        counted.append(workers(found))
        inside += [rows == sorted(rows), counted[-1] == -(-queries // block_m)]
        owner = journal.owners(found)
        inside.append(all(len(set(line)) == 1 for line in owner.tolist()))
    return Observed(inside=inside, figure=f"workers that share nothing: {', '.join(map(str, counted))}, one a row of "
                                          "blocks")


@check("B28")
def number_of_thread_blocks():
    """The thread blocks of the document's example, by the law of each algorithm."""
    before, after = thread_blocks(**EXAMPLE), forward_thread_blocks(Grid(4096, 4096, 64, 64), **EXAMPLE)
    other = forward_thread_blocks(Grid(4096, 4096, 128, 128), **EXAMPLE)
    return Observed(inside=[before == 32, after == 32 * 64 == 2048, fills(after, A100)],
                    figure=f"{before} become {after}; {other} with B_r = 128")


@check("B29")
def occupancy_for_good():
    """Whether all 108 SMs of an A100 have a thread block: long sequences of many heads and of one, and of one query."""
    calls = {
        "4096 queries, 32 heads": forward_thread_blocks(Grid(4096, 4096, 64, 64), **EXAMPLE),
        "4096 queries, 1 head": forward_thread_blocks(Grid(4096, 4096, 64, 64), heads=1),
        "decoding at 65536 keys, 32 heads": forward_thread_blocks(Grid(1, 65536), **EXAMPLE),
    }
    few, short = calls["4096 queries, 1 head"], forward_thread_blocks(Grid(512, 512, 128, 128), heads=8)
    return Observed(inside=[fills(count, A100) for count in calls.values()],
                    figure="thread blocks for 108 SMs: " + ", ".join(f"{name} {n}" for name, n in calls.items())
                    + f"; short ones, which the document leaves out: 512 queries, 8 heads, B_r = 128 {short}",
                    counterexample=f"one head, 4096 queries, B_r = 64: {few} thread blocks")


def counted(algorithm, queries, keys, block_m, block_n):
    """The Counts of a call of d = 2 on ones."""
    did = Counts()
    algorithm(np.ones((queries, 2)), *np.ones((2, keys, 2)), block_m=block_m, block_n=block_n, counts=did)
    return did


@check("B30")
def keys_are_read_again():
    """The numbers of K and V read, counted: T_r·N·d each by FlashAttention-2, N·d by FlashAttention-1."""
    inside = []
    for queries, keys, block_m, block_n in SHAPES:
        one, two = (counted(f, queries, keys, block_m, block_n) for f in (flash_attention_1, flash_attention))
        inside += [two.read[name] == -(-queries // block_m) * keys * 2 for name in "kv"]
        inside += [one.read[name] == keys * 2 for name in "kv"]
    read = forward_traffic(Grid(4096, 4096, 64, 64), 128, 128)[0]["k"] // (4096 * 128)
    return Observed(inside=inside, figure=f"4096 queries, B_r = 64: each number of K and V is read {read} times")


@check("B31")
def queries_and_outputs():
    """How often each number of Q and O is read, counted: T_c times by FlashAttention-1, once by FlashAttention-2."""
    inside = []
    for queries, keys, block_m, block_n in SHAPES:
        one, two = (counted(f, queries, keys, block_m, block_n) for f in (flash_attention_1, flash_attention))
        often = {name: (one.read[name] // (queries * 2), two.read[name] // (queries * 2)) for name in "qo"}
        inside += [often[name] == (-(-keys // block_n), 1) for name in "qo"]
    written = one.written["o"] // (queries * 2), two.written["o"] // (queries * 2)
    return Observed(inside=inside, figure=f"6 keys in blocks of 2: Q read {often['q'][0]} times, then {often['q'][1]}; "
                                          f"O read {often['o'][0]} times and written {written[0]} times, then read "
                                          f"{often['o'][1]} times and written {written[1]} time",
                    counterexample=f"any call: FlashAttention-2 reads O {often['o'][1]} times, it only writes it")


@check("B32")
def order_of_the_traffic():
    """K and V read by FlashAttention-2, over N²d²/M, for B_r = M/(4d): the same number for all N, d and M.

    With B_r fixed, as kernels have it, over N²d: again the same, whatever M is.
    """
    ratios, fixed = set(), set()
    for keys in (1024, 4096, 16384):
        for dim in (64, 128):
            for numbers in (2**15, 2**16, 2**17):
                read, _ = forward_traffic(Grid(keys, keys, numbers // (4 * dim), 64), dim, dim)
                ratios.add((read["k"] + read["v"]) * numbers / (keys * dim) ** 2)
            read, _ = forward_traffic(Grid(keys, keys, 128, 64), dim, dim)
            fixed.add((read["k"] + read["v"]) / (keys**2 * dim))
    return Observed(inside=[len(ratios) == 1, ratios == {2 * 4.0}],
                    figure=f"(K + V) / (N²d²/M) = {', '.join(map(str, ratios))} throughout; with B_r = 128, "
                           f"(K + V) / (N²d) = {', '.join(map(str, fixed))}, whatever M is")


@check("B34")
def who_is_read_again():
    """All numbers of Q, K, V, O moved by FlashAttention-1 over those of FlashAttention-2: from 1 to 3/2 for all T."""
    ratios = {}
    for count in (1, 4, 64, 512):
        grid, names = Grid(64 * count, 64 * count, 64, 64), "qkvo"
        one, two = (sum(side[name] for side in law(grid, 128, 128) for name in names)
                    for law in (flash1_traffic, forward_traffic))
        ratios[count] = Fraction(one, two) == loop_order_ratio(count) and 2 * two < 2 * one < 3 * two
    one, two = (counted(f, 6, 6, 2, 2) for f in (flash_attention_1, flash_attention))
    moved = [sum(side[name] for side in (did.read, did.written) for name in "qkvo") for did in (one, two)]
    inside = [*ratios.values(), Fraction(*moved) == loop_order_ratio(3)]
    return Observed(inside=inside, figure=f"(3T+2)/(2T+2): {float(loop_order_ratio(64)):.2f} at T = 64")


__all__ = ["SHAPES", "counted", "journals", "workers"]
