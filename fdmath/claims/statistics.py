"""Document B, one stored scalar: what the backward needs of the forward, how large it is and how exact."""

import math

import numpy as np

import fdmath
from fdmath.algebra.merge import combine_acc, merge_all
from fdmath.algebra.order import sequential
from fdmath.algebra.rounding import format_of
from fdmath.algebra.state import AccState
from fdmath.attention.flash import flash_attention
from fdmath.attention.flash1 import flash_attention_1
from fdmath.attention.printed import algorithm_2_as_printed_B
from fdmath.attention.softmax import partial_state
from fdmath.bench import stored_statistics
from fdmath.claims import exact
from fdmath.claims.claim import Observed, check
from fdmath.claims.deferred import ORDERS, chain
from fdmath.claims.gradients import near_definition, small_case
from fdmath.cost.counts import Counts
from fdmath.cost.flash import Grid, backward_traffic, flash1_traffic, forward_traffic

LEVELS = (0, 10, 100, 1000)
"""Levels of the scores at which what is stored is measured."""


@check("B13")
def what_is_kept():
    """Which statistics each algorithm leaves in HBM, counted; and m + log l against log Σ e^s on symbols (M5)."""
    one, two = Counts(), Counts()
    for algorithm, counts in ((flash_attention_1, one), (flash_attention, two)):
        algorithm(*np.ones((3, 6, 2)), block_m=2, block_n=3, counts=counts)
    inside = [set(one.written) == {"o", "m", "l"}, set(two.written) == {"o", "lse"}, two.written["lse"] == 6]
    for ranks in ORDERS:
        scores, v, m, l, _ = chain(combine_acc, "acc", ranks)
        inside.append(m + l.log() == exact.definition(scores, v)[0].log())
    return Observed(inside=inside, figure=f"left in HBM: FlashAttention-1 {', '.join(sorted(one.written))}; "
                                          f"FlashAttention-2 {', '.join(sorted(two.written))}")


@check("B14")
def weights_from_one_scalar():
    """e^(s−L) against e^(s−m)/l on symbols (M6), then both in float32 within their bounds, level by level."""
    inside = []
    for ranks in ORDERS:
        scores, v, m, l, _ = chain(combine_acc, "acc", ranks)
        total, _ = exact.definition(scores, v)
        for s in scores:
            inside += [(s - (m + l.log())).exp() == (s - m).exp() / l, (s - m).exp() / l == s.exp() / total]
    rows = {level: _both_ways(level) for level in LEVELS}
    inside += [row.ratio <= 1 for both in rows.values() for row in both.values()]
    scores = stored_statistics.scores_at(LEVELS[-1])
    sums = np.sum(stored_statistics.weights_from(scores, *stored_statistics.stored(scores, "lse", "float32")),
                  axis=-1, dtype=np.float64)
    words = "; ".join(f"level {level}: {both['lse'].error:.0f} u from L, {both['m and l'].error:.1f} u from m and l"
                      for level, both in rows.items())
    return Observed(inside=inside, figure=f"float32: {words}; ΣP at level {LEVELS[-1]} is off by up to "
                                          f"{np.max(np.abs(sums - 1)):.1e}")


def _both_ways(level, stats="float32"):
    """name → Row of the weights recomputed from L, and from m and l, stored in the format `stats`."""
    scores = stored_statistics.scores_at(level)
    return {kind: stored_statistics.measure(scores, kind, stats) for kind in stored_statistics.KINDS}


@check("B15")
def what_the_backward_needs():
    """Algorithm 2 given L and D = rowsum(dO∘O), and given L alone (D = 0), against the gradients by definition."""
    inside, outside = [], []
    for seed in range(4):
        q, k, v, o, do, lse, right, budget = small_case(seed)
        for cases, of_o in ((inside, o), (outside, 0 * o)):
            got = algorithm_2_as_printed_B(q, k, v, of_o, do, lse, 2, 3, write_back=True)
            cases.append(near_definition(got, right, budget))
    one = np.ones((1, 1))
    k = v = np.array([[0.0], [1.0]])
    o, lse = fdmath.attention(one, k, v, scale=1.0)
    with_d, without = (algorithm_2_as_printed_B(one, k, v, x, one, lse, write_back=True)[0].item() for x in (o, 0 * o))
    return Observed(inside=inside, outside=outside, figure=f"dQ of the counterexample with D: {with_d:.4f}",
                    counterexample=f"scores (0, 1), V = (0, 1), dO = 1, L alone: dQ = {without:.4f}, not {with_d:.4f}")


@check("B16")
def half_of_the_statistics():
    """Numbers a row, counted: stored, then read by the backward with D, then beside 16-bit q and dO of d = 128."""
    rows, dim = 4096, 128
    one_pass = Grid(rows, rows, rows, rows)  # a single block: each statistic is written, and read, once
    first, second = flash1_traffic(one_pass, dim, dim)[1], forward_traffic(one_pass, dim, dim)[1]
    read = backward_traffic(one_pass, dim, dim)[0]
    before, after = first["m"] + first["l"], second["lse"]
    read_before, read_after = before + read["delta"], read["lse"] + read["delta"]
    spared = 4 * (read_before - read_after) / (2 * 2 * read["q"])  # dO is as large as q
    return Observed(inside=[2 * after == before], outside=[2 * read_after == read_before],
                    figure=f"a row: stored {before // rows} and {after // rows}, read by the backward "
                           f"{read_before // rows} and {read_after // rows}; spared {spared:.1%} of the bytes of q, dO",
                    counterexample=f"the backward reads D too: {read_after // rows} numbers a row, not half of "
                                   f"{read_before // rows}")


def sum_of_exponentials(scores, block):
    """l of one row of scores, carried through blocks of keys as Algorithm 1 does."""
    scores = np.asarray(scores, np.float64)[None]
    parts = [partial_state(scores[:, j:j + block], np.ones((len(scores[0, j:j + block]), 1)), AccState)
             for j in range(0, scores.shape[1], block)]
    return merge_all(parts, sequential).l.item()


@check("B17")
def range_of_the_sum():
    """l of rows of equal scores, and of a row that sees nothing, against [1, B_c]: one block, two blocks, many."""
    rows = {(64, 64): 0.0, (2, 1): 0.0, (4096, 64): 0.0, (2, 2): -math.inf}
    found = {size: sum_of_exponentials([score] * size[0], size[1]) for size, score in rows.items()}
    return Observed(inside=[1 <= l <= block for (_, block), l in found.items()],
                    figure=f"4096 equal scores in blocks of 64: l = {found[4096, 64]:.0f}; a row that sees no key: "
                           f"{found[2, 2]:.0f}; one block of 64: {found[64, 64]:.0f}",
                    counterexample=f"2 equal scores in blocks of 1: l = {found[2, 1]:.0f}")


@check("B18")
def range_of_its_logarithm():
    """log l of rows whose maximum is 0, certified, against [0, log B_c]; then how large it can be at 65536 keys."""
    inside, certified = [], {}
    for scores, block in (([0.0, -1.0, -1.0], 3), ([0.0, 0.0], 1), ([0.0] * 4096, 64)):
        exact_lse = fdmath.certified_attention(np.ones((1, 1)), np.array(scores)[:, None], np.ones((len(scores), 1)),
                                               scale=1.0)
        low, high = (exact_lse.lse_mid + sign * exact_lse.lse_rad for sign in (-1, 1))
        certified[len(scores)] = high.item()
        inside.append(bool(low.item() >= 0 and high.item() <= math.log(block)))
    return Observed(inside=inside, figure=f"4096 equal scores in blocks of 64: log l = {certified[4096]:.2f}, log B_c "
                                          f"= {math.log(64):.2f}; at 65536 keys at most {math.log(65536):.1f}",
                    counterexample=f"2 equal scores in blocks of 1: log l = {certified[2]:.3f}, log B_c = 0")


@check("B19")
def precision_of_the_scalar():
    """Weights from a stored L against the bound of those from a stored m and l, by format and level.

    m is a score and is stored as it is; L is a new number, rounded by up to |L|·u.
    """
    inside, words = [], []
    for stats in ("float32", "bfloat16"):
        for level in LEVELS:
            both = _both_ways(level, stats)
            inside.append(both["lse"].error <= both["m and l"].bound)
            words.append(f"{stats} level {level}: {both['lse'].error * format_of(stats).u:.1e}")
    scores = np.full((1, 2), 256, np.float32)
    total = np.sum(stored_statistics.weights_from(scores, *stored_statistics.stored(scores, "lse", "bfloat16")))
    return Observed(inside=inside, figure="relative error of P from a stored L: " + ", ".join(words),
                    counterexample=f"two keys of score 256, L in bfloat16: ΣP = {total:.0f}, right 1")


__all__ = ["LEVELS", "sum_of_exponentials"]
