"""Checks of document B's block sizes and of its Algorithms 1 and 2: claims B51 to B66."""

from fractions import Fraction
from unittest.mock import patch

import numpy as np

from fdmath.algebra.state import LSEState
from fdmath.attention import flash, flash1, printed
from fdmath.attention.flash import flash_attention, flash_attention_backward
from fdmath.attention.flash1 import flash_attention_1
from fdmath.attention.gradient_budget import gradient_budget
from fdmath.attention.reference import attention_gradient, causal_mask
from fdmath.attention.warps import backward_split_k, backward_split_q, forward_split_q
from fdmath.bench import journal
from fdmath.claims.claim import Observed, check
from fdmath.claims.judged import attends, chain_bound
from fdmath.cost import occupancy
from fdmath.cost import warps as traffic
from fdmath.cost.counts import Counts, Machine
from fdmath.cost.flash import Grid, backward_matmul_flop, forward_matmul_flop
from fdmath.cost.hardware import A100
from fdmath.cost.shared import SharedCounts

SHAPES = ((7, 9, 3), (6, 6, 4), (1, 5, 2), (4, 8, 1))
BLOCKS = ((2, 3), (3, 2), (4, 4), (64, 64))
"""Queries, keys and d of the calls that are tried; queries and keys a block, ragged ones among them."""


def random_inputs(seed, queries, keys, dim, count=3):
    """`count` float64 matrices of normal numbers: q (queries, dim), then k, v, … (keys, dim)."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((queries if i == 0 else keys, dim)) for i in range(count)]


def is_attention(state, q, k, v, block, visible=None):
    """Whether (o, lse) certainly is softmax(q·kᵀ)·v, unscaled as in the listings, in blocks of `block` keys."""
    return attends(LSEState(*state), q, k, v, block_n=block, visible=visible, scale=1.0)


def are_gradients(found, do, q, k, v, block, visible=None):
    """The list, of dq, dk and dv, of whether each is the gradient of Σ do∘o: as near to the definition's as two may be.

    Both may err by the bound of `gradient_budget`, so that they lie within twice that of each other; NaN never does.
    """
    of_o, of_lse = chain_bound(q, k, v, block_n=block, visible=visible, scale=1.0)
    allowed = gradient_budget(do, None, q, k, v, of_o=of_o, of_lse=of_lse, scale=1.0, mask=visible)
    right = attention_gradient(do, None, q, k, v, scale=1.0, mask=visible)
    return [bool(np.all(np.abs(x - y) <= 2 * b)) for x, y, b in zip(found, right, allowed, strict=True)]


@check("B51")
def the_backwards_matrices_and_exchanges():
    """The matrices that the backward moves, and what its warps exchange with 2 and 4 warps, in both splits."""
    q, k, v, do = random_inputs(51, 8, 8, 2, count=4)
    o, lse = flash_attention(q, k, v)
    moved = Counts()
    flash_attention_backward(do, None, q, k, v, o, lse, counts=moved)
    matrices = {*moved.read, *moved.written, *moved.added} - {"lse", "dlse", "delta"}
    own, none = {"q", "k", "v", "do"}, SharedCounts()
    forward_split_q(q, k, v, warps=4, block_n=4, counts=none)
    exchanged = {}
    for split in backward_split_q, backward_split_k:
        for warps in 2, 4:
            counts = SharedCounts()
            split(do, np.sum(do * o, axis=-1), q, k, v, lse, warps=warps, block_m=4, counts=counts)
            exchanged[split.__name__, warps] = set(counts.written) - own
    inside = [matrices == {"q", "k", "v", "o", "do", "dq", "dk", "dv"}, *(bool(names) for names in exchanged.values())]
    by_rows, by_keys = (_names(exchanged[split.__name__, 4]) for split in (backward_split_q, backward_split_k))
    return Observed(inside=inside, figure=(
        f"{len(matrices)} matrices; exchanged among 4 warps, split-Q: {by_rows}, split-K: {by_keys}; in the forward "
        f"by split-Q: {_names(set(none.written) - own)}"))


def _names(names):
    return " and ".join(sorted(names)) or "nothing"


@check("B52")
def what_either_split_of_the_backward_exchanges():
    """What the two splits of the backward exchange, split-K over split-Q; neither says which one the paper meant."""
    ratio = {}
    for keys, dim in (64, 64), (128, 128), (256, 64), (512, 64):
        by_rows, by_keys = (law(64, keys, dim, 16) for law in (traffic.backward_split_q, traffic.backward_split_k))
        ratio[keys, dim] = Fraction(by_keys.bytes("dq"), by_rows.bytes("p", "ds"))
    found = ", ".join(f"{float(x):g} for {keys} keys and d = {dim}" for (keys, dim), x in ratio.items())
    return Observed(figure=f"both splits are right; bytes exchanged by split-K over those by split-Q, 4 warps: {found}")


@check("B53")
def larger_blocks_in_shared_memory_and_registers():
    """The bytes through shared memory a score as blocks grow, and what the largest ask of an A100."""
    keys, dim = 1024, 128
    a_score, barriers = {}, {}
    for rows, columns in (64, 64), (64, 128), (128, 64), (128, 128):
        counts = traffic.forward_split_q(rows, columns, dim, keys // columns)
        a_score[rows, columns], barriers[rows, columns] = Fraction(counts.bytes(), rows * keys), counts.barriers
    small, large = (64, 64), (128, 128)
    size = {d: occupancy.forward_tile_bytes(*large, d) for d in (64, 128, 256)}
    fits = {d: occupancy.limits(A100, 4, 32, x)["shared memory"] > 0 for d, x in size.items()}
    registers = sum(occupancy.accumulator_registers(128, width, 4) for width in (dim, 128))
    inside = [a_score[large] < a_score[small], barriers[large] < barriers[small],
              a_score[64, 128] <= a_score[small], a_score[128, 64] < a_score[small],
              fits[64] and not fits[256], registers > occupancy.MOST_REGISTERS]
    kib = ", ".join(f"d = {d}: {x // 1024} KiB {'fits' if fits[d] else 'does not fit'}" for d, x in size.items())
    return Observed(inside=inside, figure=(
        f"bytes a score, 64x64 to 128x128: {float(a_score[small]):.3g} to {float(a_score[large]):.3g}, barriers "
        f"{barriers[small]} to {barriers[large]} (more rows save bytes, more keys barriers); 128x128, of the "
        f"{occupancy.largest_block_bytes(A100) // 1024} KiB of an A100: {kib}; acc and scores in 4 warps, d = {dim}: "
        f"{registers} registers a thread of {occupancy.MOST_REGISTERS}"))


@check("B56")
def algorithm_1_is_attention():
    """Algorithm 1 as printed, against ball arithmetic: four shapes, four block sizes, the last blocks short."""
    inside, same = [], []
    for seed, shape in enumerate(SHAPES):
        q, k, v = random_inputs(seed, *shape)
        for block_m, block_n in BLOCKS:
            state = printed.algorithm_1_as_printed_B(q, k, v, block_m, block_n)
            ours = flash_attention(q, k, v, block_m=block_m, block_n=block_n, scale=1.0)
            inside.append(is_attention(state, q, k, v, block_n))
            same.append(all(np.array_equal(a, b) for a, b in zip(state, ours, strict=True)))
    return Observed(inside=inside, figure=(
        f"{sum(inside)} of {len(inside)} calls certified within their bound (float64), softmax(QKᵀ)V without the "
        f"1/√d; {sum(same)} of them bit for bit as this package's"))


@check("B57")
def line_12_rescales_by_the_right_factor():
    """Algorithm 1 where the maximum rises at every block, and line 12's two misprints in the paper beside it."""
    inside = []
    for rise in 1.0, 10.0, 100.0:
        q, k = np.ones((2, 1)), rise * np.arange(6.0)[:, None]
        v = random_inputs(57, 6, 6, 2)[2]
        state = printed.algorithm_1_as_printed_B(q, k, v, 1, 1)
        inside.append(is_attention(state, q, k, v, 1))
    q, k, v = np.ones((1, 1)), np.array([[0.0], [np.log(3)]]), np.array([[1.0], [0.0]])
    o, _ = printed.algorithm_1_as_printed_B(q, k, v, 1, 1)
    _, l, acc = printed.update_as_printed_FA2_line_10(  # noqa: E741
        np.zeros(1), np.ones(1), np.ones((1, 1)), k[1:].T, v[1:])
    inside.append(is_attention((o, np.log([4.0])), q, k, v, 1))
    return Observed(inside=inside, figure=(
        f"scores 0 and log 3, V = 1 and 0: {o.item():.4g}; the paper prints the factor inverted: "
        f"{(acc / l).item():.4g}"))


@check("B58")
def the_start_of_algorithm_1():
    """The start O = 0, ℓ = 0, m = −∞: where each row sees a key of its first block, and where one does not."""
    q, k, v = random_inputs(58, 6, 6, 2)
    causal = causal_mask(np, 6, 6, k)
    late = np.ones((6, 6), bool)
    late[0, :2] = False
    starts = [(None, False), (causal, False)], [(causal, True), (late, False)]
    inside, outside = ([_alg_1_is_right(q, k, v, seen, down) for seen, down in cases] for cases in starts)
    one = np.ones((1, 1))
    o, _ = printed.algorithm_1_as_printed_B(one, np.zeros((2, 1)), np.array([[5.0], [7.0]]), 1, 1,
                                            np.array([[False, True]]))
    return Observed(inside, outside, figure=f"every row sees a key of its first block: {sum(inside)} of {len(inside)} "
                    "right; under a causal mask with the blocks from last to first, and with one row's first block "
                    f"hidden: {sum(outside)} of {len(outside)}",
                    counterexample=f"one row, two keys, the first hidden, blocks of one key, V = 5, 7: {o.item()}, "
                    "right 7")


def _alg_1_is_right(q, k, v, visible, descending=False):
    """Whether Algorithm 1 as printed, in blocks of 2 and 2, gives attention."""
    o, lse = printed.algorithm_1_as_printed_B(q, k, v, 2, 2, visible, descending)
    return is_attention((o, lse), q, k, v, 2, visible)


@check("B59")
def the_end_of_algorithm_1():
    """Lines 14 and 15 with rows that see a key, and with one that sees none."""
    q, k, v = random_inputs(59, 4, 4, 2)
    blind = np.ones((4, 4), bool)
    blind[0] = False
    seen = causal_mask(np, 4, 4, k)
    o, lse = printed.algorithm_1_as_printed_B(q, k, v, 2, 2, blind)
    row = printed.algorithm_1_as_printed_B(np.ones((1, 1)), np.full((2, 1), -np.inf), np.array([[5.0], [7.0]]), 1, 1)
    return Observed(inside=[_alg_1_is_right(q, k, v, None), _alg_1_is_right(q, k, v, seen)],
                    outside=[_alg_1_is_right(q, k, v, blind)],
                    figure=f"a row that sees no key: O = {o[0, 0]}, L = {lse[0]}; right is 0, and -inf for merging, "
                    "+inf for the backward",
                    counterexample=f"one row, K = -inf, -inf, V = 5, 7: O = {row[0].item()}, L = {row[1].item()}")


@check("B60")
def the_listed_lines_against_flash_attention_1():
    """The four listed lines, run side by side with FlashAttention-1: what each asks for, and that the result is one."""
    q, k, v = random_inputs(60, 8, 8, 4)
    steps = {step.line: step for step in journal.side_by_side(q, k, v, block_m=4, block_n=4)}
    own = {fn: _least_tops(fn, q, k, v) for fn in (flash_attention, flash_attention_1)}
    line_10 = min(own[flash_attention_1]) == 1 > min(own[flash_attention])
    inside = [steps["3, 6"].changed, line_10, steps["12"].changed, steps["15"].changed]
    inside += [is_attention(fn(q, k, v, block_m=4, block_n=4, scale=1.0), q, k, v, 4) for fn in own]
    more = [line for line, step in steps.items() if step.changed and not journal.listed(step)]
    return Observed(inside=inside, figure=(
        f"lines {', '.join(journal.LISTED)} differ, and both algorithms are attention; not listed, but asking for "
        f"something else too: lines {', '.join(more)}"))


def _least_tops(algorithm, q, k, v):
    """The least of the rows' largest e^(s − m), for each block of scores: 1 where m is the block's own maximum."""
    found = []

    class Watching(Machine):
        def exp(self, x):
            weights = super().exp(x)
            if x.shape[-1] > 1:
                found.append(float(np.min(np.max(weights, axis=-1))))
            return weights

    module = flash if algorithm is flash_attention else flash1
    with patch.object(module, "Machine", Watching):
        algorithm(q, k, v, block_m=4, block_n=4, scale=1.0)
    return found


@check("B61")
def algorithm_2_gives_the_gradients():
    """Algorithm 2 run serially, each dQ_i written back, against the definition: shapes, blocks, a causal mask."""
    inside = []
    for seed, (queries, keys, dim) in enumerate(SHAPES):
        q, k, v = random_inputs(seed, queries, keys, dim)
        for block_m, block_n in BLOCKS:
            for visible in None, causal_mask(np, queries, keys, k):
                found = _gradients(q, k, v, block_m, block_n, visible)
                inside += are_gradients(found, _loss(q, v), q, k, v, block_n, visible)
    return Observed(inside=inside, figure=f"{sum(inside)} of {len(inside)} gradients within the bound (float64), run "
                    "serially and with dQ_i written back in line 14")


def _loss(q, v):
    """do of a loss of small whole numbers, (Nq, dv)."""
    return np.arange(q.shape[0] * v.shape[1]).reshape(q.shape[0], -1) % 5 - 2.0


def _gradients(q, k, v, block_m=2, block_n=2, visible=None, write_back=True):
    """(dQ, dK, dV) by Algorithms 1 and 2 as printed."""
    o, lse = printed.algorithm_1_as_printed_B(q, k, v, block_m, block_n, visible)
    return printed.algorithm_2_as_printed_B(q, k, v, o, _loss(q, v), lse, block_m, block_n, visible, write_back)


@check("B62")
def delta_is_the_mean_of_dp():
    """rowsum(dO∘O) and rowsum(P∘dP) in fractions, on random whole numbers: P any row that sums to 1."""
    rng = np.random.default_rng(62)
    inside = []
    for _ in range(100):
        weights, v, do = (rng.integers(low, 9, size).tolist() for low, size in ((1, 4), (-8, (4, 3)), (-8, 3)))
        p = [Fraction(w, sum(weights)) for w in weights]
        o = [sum(p[j] * v[j][c] for j in range(4)) for c in range(3)]
        dp = [sum(do[c] * v[j][c] for c in range(3)) for j in range(4)]
        inside.append(sum(a * b for a, b in zip(do, o, strict=True)) == sum(a * b for a, b in zip(p, dp, strict=True)))
    return Observed(inside=inside, figure=f"{sum(inside)} of {len(inside)} rows equal, exactly")


@check("B63")
def loads_of_o_in_the_inner_loop():
    """Algorithm 2 with O, and with another O of the same D, which the lines of the loop could tell apart; O read.

    dO = 1 throughout, so that D = rowsum(dO∘O) stays, bit for bit, when the two columns of O change places.
    """
    q, k, v = random_inputs(63, 8, 12, 2)
    o, lse = printed.algorithm_1_as_printed_B(q, k, v, 4, 4)
    do, counts = np.ones_like(o), Counts()
    found, other = (printed.algorithm_2_as_printed_B(q, k, v, x, do, lse, 4, 4, write_back=True) for x in
                    (o, o[:, ::-1]))
    changed = [name for name, a, b in zip(("dQ", "dK", "dV"), found, other, strict=True) if not np.array_equal(a, b)]
    flash_attention_backward(do, None, q, k, v, o, lse, block_m=4, block_n=4, scale=1.0, counts=counts)
    return Observed(inside=are_gradients(found, do, q, k, v, 4), outside=[bool(changed)], figure=(
        f"line 8 as listed reads T_c·N·d = {3 * o.size} numbers of O in 3 column blocks; read once, for D alone, are "
        f"{counts.read['o']}"),
        counterexample=f"O with its columns exchanged, D the same: {_names(changed)} of dQ, dK, dV changes a bit")


@check("B64")
def line_14_as_listed():
    """dQ of Algorithm 2 as listed, where nothing is written back, and with a store added."""
    q, k, v = np.ones((1, 1)), np.array([[0.0], [1.0]]), np.array([[0.0], [1.0]])
    o, lse = printed.algorithm_1_as_printed_B(q, k, v)
    dq = {stored: printed.algorithm_2_as_printed_B(q, k, v, o, np.ones((1, 1)), lse, write_back=stored)
          for stored in (False, True)}
    right = {stored: are_gradients(found, np.ones((1, 1)), q, k, v, 64) for stored, found in dq.items()}
    return Observed(inside=right[False], figure=(
        f"as listed dQ = {dq[False][0].item():g}, dK and dV right: {all(right[False][1:])}; written back, dQ = "
        f"{dq[True][0].item():.4g}, all right: {all(right[True])}"),
        counterexample=f"scores 0, 1, V = 0, 1, dO = 1: dQ = {dq[False][0].item():g} in place of "
        f"{dq[True][0].item():.4g}")


@check("B65")
def products_forward_and_backward():
    """The matrix FLOP of both passes, counted while they run and by the laws, with and without a causal mask."""
    inside = []
    for causal in False, True:
        q, k, v = random_inputs(65, 8, 8, 4)
        forward, backward = Counts(), Counts()
        options = {"block_m": 2, "block_n": 4, "causal": causal}
        o, lse = flash_attention(q, k, v, counts=forward, **options)
        flash_attention_backward(_loss(q, v), None, q, k, v, o, lse, counts=backward, **options)
        grid = Grid(8, 8, 2, 4, causal=causal)
        inside += [2 * backward.matmul_flop == 5 * forward.matmul_flop,
                   forward.matmul_flop == forward_matmul_flop(grid, 4, 4),
                   backward.matmul_flop == backward_matmul_flop(grid, 4, 4)]
    grid = Grid(1, 1)
    narrow = Fraction(backward_matmul_flop(grid, 128, 64), forward_matmul_flop(grid, 128, 64))
    return Observed(inside=inside, figure=(
        f"{backward.matmul_flop} FLOP backward for {forward.matmul_flop} forward, a ratio of "
        f"{Fraction(backward.matmul_flop, forward.matmul_flop)}; values half as wide as keys would make it "
        f"{float(narrow):.3g}"))


@check("B66")
def algorithm_2_with_a_scale():
    """dQ for q·kᵀ/√d: of the scaled Q as it comes, and multiplied by 1/√d at the end."""
    inside, outside, times = [], [], {}
    for dim in 4, 16:
        q, k, v = random_inputs(66, 4, 6, dim)
        scale = 1 / np.sqrt(dim)  # 1/2, 1/4: exact
        dq, dk, dv = _gradients(q * scale, k, v)
        inside += are_gradients((dq, dk, dv), _loss(q, v), q * scale, k, v, 2)
        right = flash_attention_backward(_loss(q, v), None, q, k, v, *flash_attention(q, k, v))[0]
        wrong, mended = (np.max(np.abs(x - right)) for x in (dq, dq * scale))
        outside.append(bool(wrong <= mended))
        times[dim] = f"{np.median(dq / right):g} times too large with d = {dim}"
    return Observed(inside, outside, figure=(
        f"dQ, dK and dV of the scaled Q: {sum(inside)} of {len(inside)} right; for Q itself dQ is "
        f"{', '.join(times.values())}; multiplied by 1/√d, off by {mended:.1e}"),
        counterexample=f"dQ {times[4]}")


