"""Claims A38 to A53: document A's algorithm and code for the triple (section 3.1)."""

import itertools
import math

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.order import sequential, tree
from fdmath.algebra.printed import flat_as_printed_A_2_2_2
from fdmath.algebra.rounding import exact, unit_roundoff
from fdmath.algebra.state import AccState, MLOState
from fdmath.attention.decode import key_ranges, split_kv_attention
from fdmath.attention.printed import (
    attention_as_printed_A_3_1_2,
    multi_stream_as_printed_A_3_1_3,
    online_as_printed_A_3_1_1,
    single_stream_as_printed_A_3_1_2,
)
from fdmath.attention.softmax import partial_state
from fdmath.claims.claim import Observed, check
from fdmath.claims.exact import definition, keys
from fdmath.claims.programs import (
    INF,
    call,
    merged_triples,
    normal_call,
    number,
    random_call,
    random_scores,
    right,
    triple,
    watched,
    within,
)
from fdmath.cost.decode import FLOAT16, FLOAT32, partial_traffic

TILE, STREAMS = 256, 5
"""Document A's defaults for its programs of triples."""

TRIPLES = {"single": single_stream_as_printed_A_3_1_2, "multi": multi_stream_as_printed_A_3_1_3}
ONE_STREAM = {"single": {}, "multi": {"num_streams": 1}}
"""The programs of triples, and the options with which both take the tiles one after the other."""


@check("A38")
def slices_cover_the_keys():
    """Each key in just one tile, for N and tile up to 12; on the printed program the values are unit vectors."""
    whole = [[j for a, b in key_ranges(n, tile) for j in range(a, b)] == list(range(n))
             for n in range(13) for tile in range(1, 14)]
    weighed = [_weights_of_equal_keys(n, tile) for n in range(1, 13) for tile in range(1, 14)]
    alike = [bool(np.all(w == 1 / np.float32(n))) for (n, _), w in
             zip(itertools.product(range(1, 13), range(1, 14)), weighed, strict=True)]
    return Observed([*whole, *alike], figure=f"{len(whole)} cuts, {len(alike)} runs: every key counts once")


def _weights_of_equal_keys(n, tile):
    """The n weights by which the printed program of streams, with one stream, takes n keys of equal score."""
    q, k, v = np.zeros((1, 1, 1, n), np.float32), np.ones((1, 1, n, n), np.float32), np.eye(n, dtype=np.float32)
    return multi_stream_as_printed_A_3_1_3(q, k, v[None, None], tile=tile, num_streams=1)


@check("A39")
def scores_are_scaled_by_the_dimension_of_q():
    """The printed program against certified attention with scale 1/√d; and a product beyond float16 (F11)."""
    inside = [right(single_stream_as_printed_A_3_1_2, *normal_call(dim, 9, dim)) for dim in (1, 3, 64, 128)]
    big = [np.full((1, 1, rows, 128), 32.0, np.float16) for rows in (1, 2)]
    big[1][..., 1, :] = 0
    v = np.repeat(np.array([7.0, 5.0], np.float16)[None, None, :, None], 128, axis=-1)
    dot = number(np.sum(exact(big[0]) ** 2))
    after, before = single_stream_as_printed_A_3_1_2(*big, v), split_kv_attention(*big, v).o
    figure = (f"d = 1, 3, 64, 128 within the bound; scaled after the product in float16, d = 128, the dot product "
              f"{dot:g} overflows though {dot / math.sqrt(128):g} would fit: o = {number(after[..., 0])}; q scaled "
              f"first in float32: {number(before[..., 0]):g}")
    return Observed(inside, figure=figure)


@check("A40")
def recurrence_makes_the_state_of_the_tile():
    """The recurrence (1c) run on symbols, in every order of three scores; its rounding beside the tile formula's."""
    inside = []
    for ranks in itertools.permutations(range(3)):
        scores, v = keys(ranks)
        m, l, o = online_as_printed_A_3_1_1(scores[None], v[:, None])
        inside += [m[0].exp() * l[0] == definition(scores, v)[0], o[0, 0] == definition(scores, v)[1]]
    errors = [(name, n, *_recurrence_and_tile(name, n, rows))
              for name, n, rows in (("float32", 256, 300), ("bfloat16", 4096, 64))]
    figure = "; ".join(f"{name}, N = {n}: recurrence {online:.2f} u rms of Σp|v|, tile formula {tile:.2f} u"
                       for name, n, online, tile in errors)
    return Observed(inside, figure=f"exact in 6 orders; {figure}; the recurrence divides N·d times, the tile d times")


def _recurrence_and_tile(dtype, count, rows):
    """The rms errors in u·Σp|v| of (1c), key by key, and of the tile's formula, both in the format."""
    scores, v = random_scores(2, rows, count, dtype)
    right, size = _by_definition(scores, v)
    low = [backends.cast(x, dtype) for x in (scores, v)]
    online = online_as_printed_A_3_1_1(low[0], low[1].T[..., None])[2][:, 0]
    return [_rms(exact(o), right, size, dtype) for o in (online, _tile_formula(*low))]


def _tile_formula(scores, v):
    """o of tiles (rows, N): weights in the format, sums in float32 rounded once, as matrix units take them."""
    name = backends.float_name(scores)
    weights = np.exp(scores - np.max(scores, axis=-1, keepdims=True))
    total, acc = (backends.cast(np.sum(backends.cast(x, "float32"), axis=-1), name)
                  for x in (weights, backends.cast(weights, "float32") * backends.cast(v, "float32")))
    return acc / total


def _by_definition(scores, v):
    """(o, Σ p|v|) of rows of scores and values (rows, N), in float64."""
    return [partial_state(scores[:, None], x[..., None]).o[:, 0, 0] for x in (v, np.abs(v))]


def _rms(o, right, size, dtype):
    """The root mean square of the errors of o in units of u·Σp|v|."""
    return math.sqrt(np.mean(((o - right) / size) ** 2)) / unit_roundoff(dtype)


@check("A41")
def tile_formula_makes_the_same_state():
    """The direct formula, which is 2.2.2 over tiles of one key, beside (1c) on symbols, in every order of three."""
    inside = []
    for ranks in itertools.permutations(range(3)):
        scores, v = keys(ranks)
        online = online_as_printed_A_3_1_1(scores[None], v[:, None])
        direct = flat_as_printed_A_2_2_2(scores[:, None], np.ones((3, 1), dtype=object), v[:, None, None])
        inside += [x.flat[0] == y.flat[0] for x, y in zip(online, direct, strict=True)]
    return Observed(inside, figure="m, l and o equal as rational functions in 6 orders of three scores")


LIGHT = 100
"""Here a reduce kernel is called light if it reads at most 1/LIGHT of the numbers that the tiles read."""


@check("A42")
def reduce_kernel_is_light():
    """(d + 2)/(2·tile·d) of the KV cache's numbers, by tile: at the documents' 256 keys, and at few."""
    def share(tile, dim, number=FLOAT16):
        return partial_traffic(MLOState, tile, dim, payload=number, statistic=number, passes=1)

    inside = [share(tile, dim) * LIGHT <= 1 for tile in (TILE, 2048) for dim in (64, 128, 256)]
    outside = [share(tile, dim) * LIGHT <= 1 for tile in (4, 16) for dim in (64, 128, 256)]
    figure = (f"d = 128: {float(share(TILE, 128)):.2%} at tiles of {TILE} keys, {float(share(4, 128)):.1%} at 4; "
              f"{float(share(TILE, 128, FLOAT32)):.2%} and {float(share(4, 128, FLOAT32)):.1%} with float32 partials")
    return Observed(inside, outside, figure, f"tile = 4, d = 64: {float(share(4, 64)):.1%}")


@check("A43")
def reference_verifies_the_tiled_code():
    """The class's own reference beside its tiled program, heads of d_model/num_heads = 64 numbers and of one."""
    many, one = normal_call(3, 9, 64), call([0.0, 8.0], [0.0, 1.0])
    reference, tiled = (number(f(*one)) for f in (attention_as_printed_A_3_1_2, single_stream_as_printed_A_3_1_2))
    right_o = 1 / (1 + math.exp(-8.0))
    inside = [within(attention_as_printed_A_3_1_2(*made), *made) for made in (many, one)]
    figure = f"d = 64: within the bound; d = 1: reference {reference:.4f}, tiled {tiled:.4f}, right {right_o:.4f}"
    return Observed(inside, figure=figure, counterexample="default class, q = [1], K = [0, 8], V = [0, 1]: "
                    f"the reference says {reference:.4f}")


@check("A44")
def single_stream_computes_attention():
    """The printed program on random calls, and beyond its conditions: −∞, no keys, 16 bits, grouped heads, dv ≠ d."""
    program = single_stream_as_printed_A_3_1_2
    inside = [right(program, *random_call(4, 3, 40, dtype), tile)
              for dtype in ("float32", "float64") for tile in (1, 3, 40)]
    empty = program(*call([-INF, 0.0], [5.0, 7.0]), tile=1)
    nothing = program(*call(np.empty((1, 0)), np.empty((1, 0))))
    half = np.repeat([0.0, 1.0], 32768)
    halves = program(*call(np.zeros(65536), half, "float16"))
    with np.errstate(all="ignore"):
        late = program(*call(np.zeros(131072), np.repeat(half, 2), "bfloat16"))
    outside = [number(empty) == 7, number(nothing) == 0, number(halves) == 0.5, number(late) == 0.5,
               _runs(program, heads=(4, 2), widths=(2, 2)), _runs(program, heads=(1, 1), widths=(2, 3))]
    figure = (f"{len(inside)} calls within the bound; K = [-inf, 0], tile 1: {number(empty)}; no keys: "
              f"{number(nothing)}; float16, 65536 equal keys, half V = 1: {number(halves)}; bfloat16, "
              f"131072: {number(late)} (right: 0.5)")
    return Observed(inside, outside, figure, f"K = [-inf, 0], V = [5, 7], tile 1: {number(empty)}, right 7")


def _runs(program, heads, widths):
    """Whether a program takes Hq and Hkv heads, and values of another width than the keys', and keeps that width."""
    q, k = (np.ones((1, h, 2, widths[0]), np.float32) for h in heads)
    try:
        return program(q, k, np.ones((1, heads[1], 2, widths[1]), np.float32)).shape == (1, heads[0], 2, widths[1])
    except ValueError:
        return False


@check("A45")
def first_tile_needs_its_test():
    """What `tile_idx > 0` guards: e^(−∞ − m) is 0 anyway for finite m; a first tile that is all −∞ passes it."""
    formats = ("float16", "bfloat16", "float32", "float64")
    zeros = [number(np.exp(backends.cast(np.array(-INF), f) - backends.cast(np.array(m), f))) == 0
             for f in formats for m in (-300.0, 0.0, 300.0)]
    first = single_stream_as_printed_A_3_1_2(*call([-INF, 0.0], [5.0, 7.0]), tile=1)
    figure = (f"e^(-inf - m) = 0 in {sum(zeros)} of {len(zeros)} cases, so that without the test 0 is multiplied by 0; "
              f"a first tile of -inf passes the test: {number(first)}")
    return Observed([*zeros, right(single_stream_as_printed_A_3_1_2, *random_call(5, 3, 20), tile=4)],
                    [number(first) == 7], figure, f"K = [-inf, 0], V = [5, 7], tile 1: {number(first)}, right 7")


@check("A46")
def normalising_a_tile_is_undone():
    """o·l on symbols, the multiplications and divisions counted, the rounding of both forms, and no overflow spared."""
    scores, v = keys((1, 0, 2))
    m, l, o = flat_as_printed_A_2_2_2(scores[:, None], np.ones((3, 1), dtype=object), v[:, None, None])
    total, mean = definition(scores, v)
    inside = [o[0, 0] * l[0] * m[0].exp() == total * mean]
    counts, errors = {}, {}
    for name, options in ONE_STREAM.items():
        program = TRIPLES[name]
        q, k, x = random_call(6, 1, 8)
        k, seen = watched(k)
        program(q, k, x, tile=4, **options)
        counts[name] = seen.calls["multiply"] + seen.calls["divide"]
        scores, v = random_scores(7, 500, 1024, "float32")
        errors[name] = _rms(exact(program(*call(scores, v), **options)).ravel(), *_by_definition(scores, v), "float32")
    over = [number(TRIPLES[name](*call([0.0, 0.0], [4e4, 4e4], "float16"), tile=2, **options))
            for name, options in ONE_STREAM.items()]
    figure = (f"multiplications and divisions of arrays for 2 tiles: {counts['single']} against {counts['multi']} "
              f"without; rms error {errors['single']:.3f} u against {errors['multi']:.3f} u of Σp|v|; float16, "
              f"one tile of V = 4e4 twice: {over[0]}, and {over[1]} without")
    return Observed(inside, figure=figure)


@check("A47")
def streams_run_in_parallel():
    """Which thread reads which tile, and in which order: of the program as it is printed."""
    q, k, v = random_call(8, 1, 12)
    k, seen = watched(k)
    multi_stream_as_printed_A_3_1_3(q, k, v, tile=2, num_streams=3)
    starts = [index[1].start for _, index in seen.reads if len(index) == 3]  # [..., start:stop, :]
    threads = len({thread for thread, _ in seen.reads})
    figure = (f"{len(starts)} tiles for 3 streams, read by {threads} thread in the order {starts}: a stream is an "
              "accumulator, and the loop takes one tile after the other")
    return Observed([threads > 1, starts != sorted(starts)], figure=figure,
                    counterexample=f"3 streams, {len(starts)} tiles: {threads} thread")


@check("A48")
def streams_compute_attention():
    """Where the printed program is NaN, up to 19 streams and tiles; with its defaults up to 513 keys."""
    def lost(tiles, streams, tile=1):
        o = multi_stream_as_printed_A_3_1_3(*call(np.zeros(tiles), np.ones(tiles)), tile=tile, num_streams=streams)
        return math.isnan(number(o))

    cases = [(streams, tiles) for streams in range(1, 20) for tiles in range(1, 20)]
    law = sum(lost(tiles, streams) == (tiles <= 2 * (streams // 2) - 2) for streams, tiles in cases)
    by_default = {n: lost(n, STREAMS, TILE) for n in (1, TILE, 2 * TILE, 2 * TILE + 1)}
    first = number(multi_stream_as_printed_A_3_1_3(*call([0.0], [7.0])))
    figure = (f"NaN if and only if tiles ≤ 2⌊streams/2⌋ − 2: {law} of {len(cases)} cases; with the defaults "
              + ", ".join(f"N = {n}: {'NaN' if x else 'right'}" for n, x in by_default.items()))
    return Observed([not x for x in by_default.values()], figure=figure,
                    counterexample=f"K = [0], V = [7], defaults: {first}, right 7")


@check("A49")
def tree_has_log_levels():
    """Levels and merges of the tree over S streams, counted; and the printed program's bits are this tree's."""
    inside = []
    for count in range(1, 65):
        merges = []
        depth = tree(lambda a, b, merges=merges: merges.append(1) or max(a, b) + 1, [0] * count)
        inside += [depth == math.ceil(math.log2(count)), len(merges) == count - 1]
    alike = [_bits_of_the_tree(count) for count in range(2, 10)]
    return Observed([*inside, *alike], figure=f"⌈log₂ S⌉ levels, S − 1 merges for S = 1 … 64; {sum(alike)} of "
                    f"{len(alike)} printed reductions have the bits of this tree")


def _one_key_states(scores, v):
    """(m, l, acc) of each key of one row, float32, as the printed program holds them."""
    return [triple(s, np.ones_like(s), x[:, None]) for s, x in zip(scores.T, v.T, strict=True)]


def _bits_of_the_tree(count):
    """Whether the printed program with as many streams as keys returns the bits of `_printed_tree`."""
    scores, v = (x.astype(np.float32) for x in random_scores(count, 2, count, "float32"))
    whole = tree(merged_triples, _one_key_states(scores, v))
    printed = multi_stream_as_printed_A_3_1_3(*call(scores, v), tile=1, num_streams=count)
    return bool(np.all(printed.ravel() == (whole.acc / whole.l[:, None]).ravel()))


@check("A50")
def lists_need_no_copy():
    """The tree over a list of states that cannot be written to: it ends, and list and states are as before."""
    scores, v = (x.astype(np.float32) for x in random_scores(9, 2, 7, "float32"))
    states = _one_key_states(scores, v)
    for state in states:
        state.l.setflags(write=False)
    scores.setflags(write=False)
    v.setflags(write=False)
    before, held = list(states), [state.l.copy() for state in states]
    whole = tree(merged_triples, states)
    printed = multi_stream_as_printed_A_3_1_3(*call(scores, v), tile=1, num_streams=7)
    inside = [all(x is y for x, y in zip(states, before, strict=True)),
              all(np.array_equal(x.l, y) for x, y in zip(states, held, strict=True)),
              bool(np.all(printed.ravel() == (whole.acc / whole.l[:, None]).ravel()))]
    return Observed(inside, figure="7 states that cannot be written to: reduced without a copy, to the same bits")


@check("A51")
def the_running_output_is_the_tiles_output():
    """O_curr beside o of a tile of two keys: in the two spellings, and where only o fits float16."""
    scores, v = np.zeros((1, 2)), np.ones((2, 1))
    acc, o = (number(partial_state(scores, v, kind).payload) for kind in (AccState, MLOState))
    over = number(multi_stream_as_printed_A_3_1_3(*call([0.0, 0.0], [4e4, 4e4], "float16"), tile=2, num_streams=1))
    figure = f"two equal keys, V = 1: O_curr = {acc:g}, o = {o:g}; float16, V = 4e4 twice: the program gives {over}"
    return Observed([acc == o, over == 4e4], figure=figure, counterexample=f"K = [0, 0], V = [1, 1]: O_curr = {acc:g}")


@check("A52")
def numerator_and_denominator_are_the_global_sums():
    """The running pair after each of three tiles beside Σ e^(m_b − m_g)·l_b (·o_b) with the global m_g, on symbols."""
    inside, outside, apart = [], [], ""
    for ranks in itertools.permutations(range(3)):
        scores, v = keys(ranks)
        parts = [triple(scores[b:b + 1], np.ones(1, dtype=object), v[b:b + 1, None]) for b in range(3)]
        for tiles in (1, 2, 3):
            running = sequential(merged_triples, parts[:tiles])
            weights = [(s - max(scores)).exp() for s in scores[:tiles]]
            denominator, numerator = (sum(x[1:], start=x[0]) for x in
                                      (weights, [w * x for w, x in zip(weights, v[:tiles], strict=True)]))
            same = running.l[0] == denominator and running.acc[0, 0] == numerator
            (inside if tiles == 3 else outside).append(same)
            apart = apart or ("" if same else f"tile {tiles} of 3: denominator {running.l[0]}, formula {denominator}")
    figure = (f"after the last tile equal in {sum(inside)} of {len(inside)} orders; before it in {sum(outside)} of "
              f"{len(outside)}, where the largest score had come already")
    return Observed(inside, outside, figure, f"{apart} (w = e^s)")


@check("A53")
def new_m_is_the_global_maximum():
    """new_M of each printed merge of a tree over eight streams beside the largest of all, the largest in each place."""
    root, inner = [], []
    for place in range(8):
        made = _maxima([float(i == place) for i in range(8)])
        root.append(made[-1] == 1)
        inner += [m == 1 for m in made[:-1]]
    figure = f"global at the root in {sum(root)} of {len(root)} trees, below it in {sum(inner)} of {len(inner)} merges"
    return Observed(root, inner, figure, f"maxima 0, 0, 0, 1: the merges take {_maxima([0, 0, 0, 1])}")


def _maxima(levels):
    """The new maximum of each printed merge of the tree over one key of each level, in the order made."""
    made, one = [], np.ones(1)

    def merged(a, b):
        made.append(merged_triples(a, b))
        return made[-1]

    tree(merged, [triple(np.array([level], float), one, one[:, None]) for level in levels])
    return [int(state.m.item()) for state in made]
