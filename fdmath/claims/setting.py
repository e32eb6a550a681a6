"""Document A, sections 1 and 2.1: what attention is, why decoding leaves a GPU idle, and what cutting the keys does."""

import numpy as np

import fdmath
from fdmath.algebra.merge import merge, merge_all
from fdmath.algebra.rounding import format_of, merge_budget, unit_roundoff
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.attention.decode import key_ranges
from fdmath.attention.printed import attention_as_printed_A_3_1_2
from fdmath.attention.softmax import partial_state, softmax_safe
from fdmath.bench.records import newest
from fdmath.claims import cases
from fdmath.claims.cases import percent
from fdmath.claims.claim import Observed, check
from fdmath.claims.pair import exact_pairs
from fdmath.claims.programs import call, number, pairs
from fdmath.claims.triple import exact_triples
from fdmath.cost.decode import (
    arithmetic_intensity,
    busy_share,
    decode_flop,
    kv_cache_bytes,
    merge_transcendentals,
    pair_saving,
    ridge,
    thread_blocks,
)
from fdmath.cost.hardware import A100, DEVICES, H200
from fdmath.cost.roofline import bound_by

CONTEXTS = (32 * 1024, 64 * 1024)
"""The lengths of the KV cache that 2.1.2 names."""
HEADS = 32
"""The heads of the models that both documents speak of."""


@check("A01")
def most_multiprocessors_idle():
    """The share of SMs with a thread block in a decode step without a split, and what a split gained on the H200."""
    head, rows = newest("decode-h200")
    mine = [r for r in rows if r["study"] == "splits" and r["batch"] == 1 and r["keys"] == 2 * CONTEXTS[1]]
    mine = [r for r in mine if r["q_heads"] == HEADS]
    whole, best = (pick(mine, key=lambda r: r["us"]) for pick in (max, min))
    idle = {batch: busy_share(thread_blocks(HEADS, batch), A100) for batch in (1, 2, 4)}
    few = [busy_share(thread_blocks(heads), device) < 1 / 2 for heads in (1, HEADS) for device in DEVICES.values()]
    return Observed(
        inside=[*few, whole["num_splits"] == 1, best["us"] < whole["us"]],
        outside=[share < 1 / 2 for share in idle.values()],
        figure=f"{HEADS} heads on an A100's {A100.multiprocessors} SMs: "
               + ", ".join(f"batch {b}: {percent(s, 1)} busy" for b, s in idle.items())
               + f"; recorded on {head['device']}, {head['date']}, batch 1, {HEADS} heads over {whole['kv_heads']} KV "
               f"heads, {whole['keys']} keys: {whole['us']:g} µs in one piece, {best['us']:g} µs in "
               f"{best['num_splits']}",
        counterexample=f"batch 4 of {HEADS} heads: {thread_blocks(HEADS, 4)} thread blocks, "
                       f"{A100.multiprocessors} SMs")


@check("A02")
def tiles_attended_and_merged():
    """Both codings on symbols, and split_kv_attention of random shapes within its proven bound of the exact answer."""
    drawn = cases.is_attention(MLOState, 2, 15) + cases.is_attention(LSEState, 3, 15)
    return Observed(
        inside=[*exact_triples(), *exact_pairs(), *drawn],
        figure=f"{len(exact_triples()) + len(exact_pairs())} identities of rational functions; {len(drawn)} random "
               f"shapes in float64, each within its bound")


@check("A03")
def precision_unchanged():
    """Two equal keys in bfloat16 by the document's pairs, tile by tile and at once; float32 pairs at level 1000."""
    scores, v = [256, 256], [1, 1]
    q, k, values = call(scores, v, "bfloat16")
    split = number(pairs(q, k, values, tile=1))
    whole = number(attention_as_printed_A_3_1_2(q, k, values, d_model=1, num_heads=1))
    keys = {"keys": 32, "level": 1000}
    apart, together = (cases.worst(LSEState, "float32", tile=tile, **keys) for tile in (2, 32))
    allowed = cases.allowed(LSEState, "float32", tile=32, **keys)
    return Observed(
        inside=[split == whole, apart <= allowed],
        figure=f"bfloat16: {split:g} in two tiles, {whole:g} in one; float32 pairs at level 1000, 32 keys: "
               f"{apart:.0f} u·Σp|v| in tiles of 2, {together:.1f} in one tile, whose bound is {allowed:.0f}",
        counterexample=f"bfloat16, two keys of score 256, v = 1, tiles of one key: {split:g}, right {whole:g}")


@check("A04")
def both_are_attention():
    """Both codings on symbols and on random shapes; what the words "up to rounding" stand for, in u·Σp|v|."""
    drawn = [case for kind in (MLOState, AccState, LSEState) for case in cases.is_attention(kind, 4, 20)]
    errors = {(name, level): cases.worst(kind, "float32", level=level)
              for name, kind in (("triple", MLOState), ("pair", LSEState)) for level in (0, 100000)}
    return Observed(
        inside=[*exact_triples(), *exact_pairs(), *drawn],
        figure="exactly equal; in float32 the largest error of 8 rows of 256 keys, in u·Σp|v|: "
               + ", ".join(f"{name} at level {level}: {error:.1f}" for (name, level), error in errors.items()))


@check("A05")
def pair_is_better():
    """The numbers that the pair saves, and the exponentials and logarithms of one ⊕ of each as printed."""
    dims = (64, 128, 256)
    pair, triple = (sum(merge_transcendentals(kind, printed=True).values()) for kind in (LSEState, MLOState))
    return Observed(
        inside=[pair_saving(dim) > 0 for dim in dims],
        outside=[pair <= triple],
        figure="traffic: less by " + ", ".join(f"{percent(pair_saving(dim))} at d = {dim}" for dim in dims)
               + f"; one ⊕ as printed: {pair} exponentials and logarithms for the pair, {triple} for the triple",
        counterexample=f"one ⊕ of two rows: {pair} against {triple} exponentials and logarithms")


@check("A06")
def softmax_of_scores_times_values():
    """fdmath.attention in float64, and the oracle's balls, against Σ eˢ·v / Σ eˢ taken with 60 digits."""
    import mpmath

    judged = []
    for rng, rows, keys, _ in cases.shapes(6, 20):
        scores, v = cases.draw(rng, rows, keys)
        q, k = np.ones((rows, 1, 1)), scores[..., None]
        exact = fdmath.certified_attention(q, k, np.broadcast_to(v, (rows, *v.shape)))
        with mpmath.workdps(60):
            weights = [[mpmath.exp(s) for s in row] for row in scores.tolist()]
            sums = [[mpmath.fdot(row, column) / mpmath.fsum(row) for column in v.T.tolist()] for row in weights]
            apart = [abs(x - mpmath.mpf(mid)) <= mpmath.mpf(rad)
                     for x, mid, rad in zip(np.ravel(sums), exact.o_mid.ravel(), exact.o_rad.ravel(), strict=True)]
        state = fdmath.attention(q, k, np.broadcast_to(v, (rows, *v.shape)))
        budget = cases.bound(scores, v, keys)
        judged += [all(apart), exact.verdict(state, (budget.o[:, None], budget.lse[:, None])) == "pass"]
    return Observed(inside=judged, figure=f"{len(judged) // 2} random shapes, each element in the oracle's ball")


@check("A07")
def softmax_in_open_interval():
    """Softmax of one score, of a far score in float32, and the sum of 1000 weights in float32."""
    one, far = softmax_safe(np.zeros(1)), softmax_safe(np.float32([0, -200]))
    plain = softmax_safe(np.float32([0, 1]))
    many = softmax_safe(np.random.default_rng(7).standard_normal(1000).astype(np.float32)).astype(np.float64)
    missed = abs(float(many.sum()) - 1)
    return Observed(
        inside=[np.all((0 < p) & (p < 1)) for p in (plain, one, far)] + [missed == 0],
        figure=f"one score: {one[0]:g}; float32, scores 0 and -200: {far[0]:g} and {far[1]:g}; 1000 weights sum to 1 "
               f"but for {missed / unit_roundoff('float32'):.1f} u",
        counterexample=f"softmax of one number: {one[0]:g}")


@check("A09")
def one_multiprocessor_works():
    """The SMs that have a thread block: one for each head of each sequence, as far as there are SMs."""
    working = {(heads, batch): busy_share(thread_blocks(heads, batch), A100) * A100.multiprocessors
               for heads, batch in ((1, 1), (HEADS, 1), (HEADS, 4))}
    return Observed(
        inside=[working[1, 1] == 1],
        outside=[count == 1 for count in working.values()],
        figure=f"of the {A100.multiprocessors} SMs of an A100, by (heads, batch): "
               + ", ".join(f"{int(count)} {place}" for place, count in working.items()),
        counterexample=f"{HEADS} heads at batch 1: {int(working[HEADS, 1])} SMs")


@check("A10")
def reading_the_cache_is_the_bottleneck():
    """The roofline of a decode step at both lengths, heads alone and grouped, and the recorded share of the floor."""
    groups = (1, 4, 8)
    sides = [bound_by(decode_flop(keys, 128, q_heads=group), kv_cache_bytes(keys, 128), device)
             for keys in CONTEXTS for group in groups for device in DEVICES.values()]
    head, rows = newest("decode-h200")
    best = max((r for r in rows if r["keys"] >= CONTEXTS[0] and r["implementation"] == "fdmath"),
               key=lambda r: r["share_of_floor"])
    flops = ", ".join(f"{int(arithmetic_intensity(group))}" for group in groups)
    return Observed(
        inside=[side == "memory" for side in sides],
        figure=f"{flops} FLOP a byte for {', '.join(map(str, groups))} query heads a KV head; an A100 needs "
               f"{float(ridge(A100)):.0f}, an H200 {float(ridge(H200)):.0f}; recorded on {head['device']}, "
               f"{head['date']}: {percent(best['share_of_floor'], 1)} of the time to read {best['keys']} keys once")


@check("A11")
def tiles_of_one_size():
    """The sizes of the tiles that the keys are cut into, and a short tile filled up with zeros."""
    whole, ragged = (sorted({stop - start for start, stop in key_ranges(keys, 4)}) for keys in (8, 10))
    scores, v = np.full((1, 3), -5.0), np.ones((3, 1))
    padded = partial_state(np.pad(scores, ((0, 0), (0, 1))), np.pad(v, ((0, 1), (0, 0)))).o.item()
    plain = partial_state(scores, v).o.item()
    return Observed(
        inside=[whole == [4]],
        outside=[ragged == [4]],
        figure=f"10 keys in tiles of 4: sizes {ragged}; three scores of -5, v = 1 and a key of zeros: {padded:.4f}, "
               f"right {plain:g}",
        counterexample=f"10 keys in tiles of 4: the last tile has {min(ragged)}")


@check("A12")
def a_multiprocessor_each():
    """Whether there are as many SMs as tiles of 256 keys, from short caches to those of 2.1.2."""
    tiles = {keys: len(key_ranges(keys, 256)) for keys in (1024, *CONTEXTS)}
    return Observed(
        inside=[tiles[1024] <= A100.multiprocessors],
        outside=[count <= A100.multiprocessors for count in tiles.values()],
        figure=f"tiles of 256 keys beside {A100.multiprocessors} SMs: "
               + ", ".join(f"{count} of {keys} keys" for keys, count in tiles.items()),
        counterexample=f"{max(tiles)} keys: {max(tiles.values())} tiles for {A100.multiprocessors} SMs")


@check("A13")
def local_results_do_not_add():
    """The outputs of two tiles added, beside their ⊕: of v ≡ 1, and of random tiles."""
    a, b = (partial_state(np.zeros((1, 2)), np.ones((2, 1))) for _ in range(2))
    differ = []
    for rng, rows, keys, _ in cases.shapes(13, 20):
        left, right = (partial_state(*cases.draw(rng, rows, keys)) for _ in range(2))
        added, fmt = left.o + right.o, format_of("float64")
        rounded = merge_budget(left, right, fmt).o + fmt.u * np.abs(added)
        differ.append(np.any(np.abs(added - merge(left, right).o) > rounded))
    added, merged = (a.o + b.o).item(), merge_all([a, b]).o.item()
    return Observed(
        inside=[added != 1, merged == 1, *differ],
        figure=f"two tiles of v = 1: added {added:g}, merged {merged:g}; {len(differ)} random pairs of tiles differ")
