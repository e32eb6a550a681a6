"""Checks of document B's sections on decoding: why it is different, and FlashDecoding's three steps: B67 to B81."""

import math
from fractions import Fraction
from functools import reduce
from types import SimpleNamespace

import numpy as np

from fdmath import certified_attention
from fdmath.algebra.merge import combine_acc, flat, merge, merge_all
from fdmath.algebra.order import sequential
from fdmath.algebra.printed import atomic_merge_as_printed_B
from fdmath.algebra.rounding import fold_budget, format_of
from fdmath.algebra.state import AccState, LSEState
from fdmath.attention.decode import key_ranges
from fdmath.attention.flash import flash_attention
from fdmath.attention.warps import forward_split_k, shares
from fdmath.bench import decode as recorded
from fdmath.bench.atomics import interleavings, maxima_first
from fdmath.bench.published import BLOG, BLOG_HEADS
from fdmath.claims import cases, exact, tables
from fdmath.claims.cases import percent
from fdmath.claims.claim import Observed, check
from fdmath.claims.judged import chain_bound
from fdmath.cost import decode as cost
from fdmath.cost.flash import Grid
from fdmath.cost.hardware import A100
from fdmath.cost.models import CODELLAMA_34B, LLAMA_3_8B
from fdmath.cost.occupancy import fills, forward_thread_blocks
from fdmath.cost.shared import SharedCounts
from fdmath.cost.step import tokens_that_outweigh

LENGTHS = tuple(2**i for i in range(9, 17))
"""The lengths of document B's benchmark: 512 to 65536 keys."""

A100_MEMORY = 80 * 10**9
"""The bytes of the A100 of `fdmath.cost.hardware`, by its name."""


@check("B67")
def thread_blocks_of_a_decode_step():
    """The thread blocks of FlashAttention-2 with one query, for 512 to 65536 keys: batch · heads, whatever the keys."""
    inside = [forward_thread_blocks(Grid(1, keys), heads, batch) == cost.thread_blocks(heads, batch)
              for keys in LENGTHS for heads, batch in ((32, 1), (8, 4))]
    return Observed(inside=inside, figure=f"32 heads, batch 1: {cost.thread_blocks(32)} blocks from {LENGTHS[0]} keys "
                    f"to {LENGTHS[-1]}")


@check("B68")
def share_of_a_card_at_batch_1():
    """The SMs of an A100 that 1, 16 and 32 blocks keep busy, the FLOP that any decode can use, the blog's bandwidth."""
    busy = {blocks: cost.busy_share(blocks, A100) for blocks in (1, 16, cost.thread_blocks(32))}
    row = next(row for row in BLOG if row.keys == 65536)
    rate = cost.kv_cache_bytes(row.keys, BLOG_HEADS["dim"], BLOG_HEADS["kv_heads"]) / row.flash_attention * 1e6
    shares_read = [percent(rate / x, 1) for x in (A100.bandwidth, tables.A100_40GB.bandwidth)]
    return Observed(inside=[busy[32] < Fraction(1, 100)], figure=(
        f"busy SMs: {', '.join(f'{n} blocks {percent(x)}' for n, x in busy.items())}; tensor FLOP that a perfect "
        f"16-bit decode uses: {percent(cost.peak_share(cost.arithmetic_intensity(), A100))}; the blog's FlashAttention "
        f"at {row.keys} keys reads {rate / 1e9:.0f} GB/s, {' to '.join(shares_read)} of the bandwidth"),
        counterexample=f"32 heads, batch 1: 32 blocks on {A100.multiprocessors} SMs, {percent(busy[32], 1)}; "
        f"{percent(busy[1])} is one block")


@check("B69")
def blocks_against_length():
    """Thread blocks as the context doubles: with as many sequences as memory holds, and with a fixed batch."""
    room = A100_MEMORY - LLAMA_3_8B.weight_bytes()
    batch = {n: room // LLAMA_3_8B.cache_bytes(n) for n in LENGTHS}
    full = [cost.thread_blocks(LLAMA_3_8B.q_heads, batch[n]) for n in LENGTHS]
    fixed = [forward_thread_blocks(Grid(1, n), LLAMA_3_8B.q_heads) for n in LENGTHS]
    slower = [LLAMA_3_8B.cache_bytes(b) > LLAMA_3_8B.cache_bytes(a) for a, b in zip(LENGTHS, LENGTHS[1:], strict=False)]
    return Observed(inside=[*slower, *(a > b for a, b in zip(full, full[1:], strict=False))],
                    outside=[a > b for a, b in zip(fixed, fixed[1:], strict=False)], figure=(
        f"Llama-3-8B, {LENGTHS[0]} to {LENGTHS[-1]} keys: an A100 of 80 GB holds {batch[LENGTHS[0]]} to "
        f"{batch[LENGTHS[-1]]} sequences, {full[0]} to {full[-1]} blocks; batch 1: {fixed[0]} to {fixed[-1]}"),
        counterexample=f"batch 1, {LLAMA_3_8B.q_heads} heads: {fixed[0]} blocks at {LENGTHS[0]} keys and at twice as "
        "many")


@check("B70")
def traffic_against_batch():
    """Bytes of cache and weights of CodeLlama-34B against the batch, and where the cache has more."""
    model, keys = CODELLAMA_34B, 4096
    one, weights, tokens = model.cache_bytes(keys), model.weight_bytes(), tokens_that_outweigh(model)
    inside = [model.cache_bytes(keys, batch) == batch * one for batch in (1, 2, 64)]
    inside += [model.cache_bytes(tokens) > weights >= model.cache_bytes(tokens - 1)]
    return Observed(inside=inside, figure=(
        f"CodeLlama-34B, 16 bits: {model.cache_bytes(1)} bytes a token, {weights / 1e9:.1f} GB of weights at any "
        f"batch; the cache has more from {tokens} tokens on, batch {-(-tokens // keys)} at {keys} keys"))


@check("B71")
def cache_beside_weights_in_the_benchmark():
    """The cache beside the weights in the benchmark that the document explains: batch 1, 512 to 65536 keys."""
    model = CODELLAMA_34B
    share = {n: Fraction(model.cache_bytes(n), model.weight_bytes()) for n in LENGTHS}
    busy = cost.busy_share(cost.thread_blocks(BLOG_HEADS["q_heads"]), A100)
    last, old = LENGTHS[-1], tables.attention_ms(tables.published("flash_attention"), LENGTHS[-1])
    return Observed(inside=[x > 1 for x in share.values()], figure=(
        f"cache / weights at batch 1: {percent(share[LENGTHS[0]], 1)} to {percent(share[last], 1)}; what the old "
        f"kernel lacks is blocks: {BLOG_HEADS['q_heads']} heads a card keep {percent(busy, 1)} of the SMs busy"),
        counterexample=f"{last} keys, batch 1: the cache has {percent(share[last], 0)} of the weights' bytes, yet by "
        f"the blog's table the old attention takes {old:.0f} ms beside {tables.weights_ms():.1f} ms for the weights")


@check("B72")
def blocks_of_split_k_and_of_split_kv():
    """Thread blocks where keys are cut among the warps of a block, as FlashAttention-1 does, and among blocks."""
    heads, pieces = 8, 4
    q, k, v = (np.random.default_rng(72).standard_normal((n, 2)) for n in (1, 16, 16))
    counts = SharedCounts()
    forward_split_k(q, k, v, warps=pieces, block_n=8, counts=counts)  # one block: a head and its queries
    among_warps, among_blocks = cost.thread_blocks(heads), cost.thread_blocks(heads, pieces=pieces)
    return Observed(inside=[among_warps == among_blocks], figure=(
        f"{heads} heads, keys in {pieces}: among warps {among_warps} blocks that exchange through shared memory "
        f"({counts.written['out']} numbers, {counts.barriers} barriers here), among blocks {among_blocks}"),
        counterexample=f"one head, one query: split-K has {cost.thread_blocks(1)} block, split-KV in {pieces} pieces "
        f"{cost.thread_blocks(1, pieces=pieces)}")


@check("B73")
def rows_for_four_warps():
    """How many of four warps get a row: of one query with a KV head of its own, and of a packed group of heads."""
    idle = {rows: sum(part.start == part.stop for part in shares(rows, 4)) for rows in (1, 4, 8)}
    return Observed(inside=[idle[1] > 0], outside=[idle[4] > 0, idle[8] > 0], figure=(
        f"idle warps of 4: {idle[1]} with one row, {idle[4]} with the 4 rows of a group of 4 heads, {idle[8]} with 8"),
        counterexample=f"4 query heads over one KV head, packed: 4 rows, {idle[4]} warps of 4 idle")


@check("B74")
def chunks_are_views():
    """The memory of the pieces of K and V, for even splits and ragged tiles: that of the whole, where it lies."""
    k = np.zeros((2, 3, 37, 4), np.float32)
    address = lambda x: x.__array_interface__["data"][0]  # noqa: E731
    inside = []
    for cut in {"num_splits": 5}, {"tile": 8}:
        for start, stop in key_ranges(37, **cut):
            piece = k[..., start:stop, :]
            inside += [piece.base is k, address(piece) == address(k) + start * k.strides[-2]]
    return Observed(inside=inside, figure=f"{len(inside) // 2} pieces, all views at their place in the whole")


@check("B75")
def unnormalised_output_with_lse_alone():
    """Two states with the same Õ and L: alone, and merged with one and the same third state."""
    stored = [AccState(*(np.array(x, np.float64) for x in state)) for state in
              (([0.0], [1.0], [[1.0]]), ([-math.log(2)], [2.0], [[1.0]]))]
    third = AccState(np.zeros(1), np.ones(1), np.zeros((1, 1)))
    written = [(s.acc.item(), s.to(LSEState).lse.item()) for s in stored]
    alone, merged = ([s.finalize().o.item() for s in states] for states in (stored, [merge(s, third) for s in stored]))
    inside = [alone[0] == alone[1], merged[0] == merged[1]] if written[0] == written[1] else []
    return Observed(inside=inside, figure=(
        f"(Õ, L) = {written[0]} written for both; o alone {alone[0]:g} and {alone[1]:g}, with a third key of value 0 "
        f"{merged[0]:.3g} and {merged[1]:.3g}"),
        counterexample=f"(m, l, Õ) = (0, 1, 1) and (-log 2, 2, 1): the same (Õ, L), o = {alone[0]:g} and {alone[1]:g}")


def released_splits(programs, blocks, multiprocessors, most=128):
    """The number of splits that flash-attention 2 takes, for blocks of keys in one head and programs without a split.

    Of the counts that change how many blocks a split has, the least whose rounds of programs are filled to 85 % of the
    best; one split where 80 % of the places are taken without any. A multiprocessor has two places.
    Source: flash-attention, csrc/flash_attn/flash_api.cpp, described there in words.
    """
    places = 2 * multiprocessors
    if 5 * programs >= 4 * places:
        return 1
    each = {n: -(-blocks // n) for n in range(1, min(most, places, blocks) + 1)}
    filled = {n: Fraction(programs * n, places * -(-programs * n // places)) for n in each
              if n == 1 or each[n] != each[n - 1]}
    return next(n for n, share in filled.items() if 20 * share >= 17 * max(filled.values()))


@check("B76")
def pieces_and_multiprocessors():
    """Whether ⌈N/256⌉ pieces of two KV heads fill the 108 SMs of an A100 at batch 1, and where that begins."""
    heads, size = BLOG_HEADS["kv_heads"], 256
    blocks = {n: cost.thread_blocks(heads, pieces=-(-n // size)) for n in LENGTHS}
    needed = cost.pieces_to_fill(A100, heads=heads)
    first = (needed - 1) * size + 1
    edge = [fills(cost.thread_blocks(heads, pieces=-(-n // size)), A100) for n in (first, first - 1)]
    splits = {n: released_splits(heads, n // 128, A100.multiprocessors) for n in (32768, 65536)}
    return Observed(inside=[*(fills(blocks[n], A100) for n in LENGTHS if n >= first), edge[0]],
                    outside=[*(fills(blocks[n], A100) for n in LENGTHS if n < first), edge[1]], figure=(
        f"{needed} pieces a head are needed: from {first} keys on (all pieces full: {needed * size}); the released "
        f"rule takes at most 128 splits: {', '.join(f'{s} at {n} keys' for n, s in splits.items())}"),
        counterexample=f"{LENGTHS[0]} keys: {blocks[LENGTHS[0]]} blocks")


def chain(scores, v):
    """(m, l, acc) of symbolic keys, one after the other: the online softmax of one piece."""
    one = np.array([exact.Number.of(1)], dtype=object)
    return joined([SimpleNamespace(m=scores[i:i + 1], l=one, acc=v[i:i + 1, None]) for i in range(len(v))])


def joined(parts):
    """The (m, l, acc) of all parts, each rescaled to the larger of two levels and added."""
    return reduce(lambda a, b: SimpleNamespace(**dict(zip("m l acc".split(), combine_acc(np, a, b), strict=True))),
                  parts)


def exactly(cuts):
    """Whether pieces of four symbolic keys, merged from (m, l, acc), give the definition, for orders of the maxima."""
    found = []
    for ranks in (0, 1, 2, 3), (3, 2, 1, 0), (1, 3, 0, 2):
        scores, v = exact.keys(ranks)
        merged = joined([chain(scores[a:b], v[a:b]) for a, b in cuts])
        total, o = exact.definition(scores, v)
        found.append(merged.m[0].exp() * merged.l[0] == total and np.ravel(merged.acc)[0] / merged.l[0] == o)
    return found


@check("B77")
def merge_of_all_pieces():
    """The restored formula on symbols, for pieces of one key and of two, and on random pieces in ball arithmetic."""
    symbolic = exactly([(0, 1), (1, 2), (2, 3), (3, 4)]) + exactly([(0, 2), (2, 4)]) + exactly([(0, 1), (1, 4)])
    numbers = cases.is_attention(AccState, seed=77, count=9)
    return Observed(inside=[*symbolic, *numbers], figure=(
        f"exact on {len(symbolic)} symbolic cases; {sum(numbers)} of {len(numbers)} random calls within their bound"))


@check("B78")
def softmax_on_two_levels():
    """Online softmax inside each piece and again across the pieces: on symbols, and run by FlashAttention-2 on both."""
    symbolic = exactly([(0, 2), (2, 4)])
    inside = []
    for seed, (queries, keys, cut) in enumerate(((3, 16, 8), (2, 23, 5), (1, 40, 13))):
        q, k, v = (np.random.default_rng(seed).standard_normal((n, 4)) for n in (queries, keys, keys))
        ranges = [slice(*x) for x in key_ranges(keys, tile=cut)]
        pieces = [flash_attention(q, k[j], v[j], block_n=3, scale=1.0) for j in ranges]
        errors = [chain_bound(q, k[j], v[j], block_n=3, scale=1.0) for j in ranges]
        for order in flat, sequential:
            state = merge_all(pieces, order)
            allowed = fold_budget(pieces, order, format_of("float64"), errors)
            inside.append(certified_attention(q, k, v, scale=1.0).verdict(state, tuple(allowed)) == "pass")
    return Observed(inside=[*symbolic, *inside], figure=(
        f"exact on {len(symbolic)} symbolic cases; {sum(inside)} of {len(inside)} calls, FlashAttention-2 in each "
        "piece and ⊕ across them, within their bound"))


@check("B79")
def merge_by_atomics():
    """The two tiles of the pencil example (base 2), folded by atomics in every order of their steps, in fractions."""
    parts = [(0, Fraction(2), Fraction(8)), (2, Fraction(3, 2), Fraction(3))]
    orders = list(interleavings((3, 3)))
    right = {order: _atomic_o(parts, order) == Fraction(5, 2) for order in orders}
    behind = [right[order] for order in orders if maxima_first(order, len(parts))]
    apart = [(0, 1.0, 0.0), (10, 1.0, 1.0)]
    first, second = (atomic_merge_as_printed_B(apart, order, math.exp) for order in
                     ((0, 0, 0, 1, 1, 1), (1, 1, 1, 0, 0, 0)))
    wrong = sorted({_atomic_o(parts, order) for order in orders if not right[order]})
    return Observed(inside=list(right.values()), figure=(
        f"wrong in {list(right.values()).count(False)} of {len(orders)} orders (o = {' or '.join(map(str, wrong))}, "
        f"right 5/2); with all maxima before any addition right in {sum(behind)} of {len(behind)}"),
        counterexample=f"m = 0 and 10, l = 1 and 1, V = 0 and 1, one block after the other: l = {first[1]:g}, "
        f"o = {first[2] / first[1]:g}; right {second[1]:.7f} and {second[2] / second[1]:.5f}")


def _atomic_o(parts, order):
    """acc / l as the blocks leave it, base 2, in fractions."""
    _, l, acc = atomic_merge_as_printed_B(parts, order, lambda x: Fraction(2) ** x)  # noqa: E741
    return acc / l


@check("B81")
def traffic_of_partial_outputs():
    """The traffic of the pieces' states beside the cache; negligible where the fit of the read floor errs by more."""
    head, _ = recorded.recorded()
    noise = head["ceilings"]["floor"]["misfit"]
    share = {(group, tile): cost.partial_traffic(LSEState, tile, 128, group=group)
             for group, tile in ((1, 256), (1, 512), (8, 4096), (8, 256), (8, 64), (8, 32))}
    halves = [2 * cost.partial_traffic(LSEState, 2 * tile, 128) == cost.partial_traffic(LSEState, tile, 128)
              for tile in (32, 64, 128)]
    found = ", ".join(f"{percent(x, 1)} (g = {g}, {tile} keys)" for (g, tile), x in share.items())
    return Observed(inside=[*halves, *(share[key] < noise for key in ((1, 256), (1, 512), (8, 4096)))],
                    outside=[share[key] < noise for key in ((8, 256), (8, 64), (8, 32))], figure=(
        f"fp32 states written and read, of the 16-bit cache, d = 128: {found}; the line through measured reads errs "
        f"by up to {percent(noise, 1)} ({head['device']}, {head['date']})"),
        counterexample=f"8 heads a KV head, pieces of 32 keys: {percent(share[8, 32], 0)} of the cache's bytes")
