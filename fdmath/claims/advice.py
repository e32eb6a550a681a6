"""Claims A67 to A76: what document A compares (3.3), lists (4), sums up and advises (5)."""

import itertools

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.order import sequential
from fdmath.algebra.printed import (
    flat_as_printed_A_2_2_2,
    flat_as_printed_A_2_3_4,
    merge_as_printed_A_2_3_5,
    merge_as_printed_A_3_2_1,
)
from fdmath.algebra.rounding import exact, unit_roundoff
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.attention.printed import (
    lse_streams_as_printed_A_3_2_2,
    multi_stream_as_printed_A_3_1_3,
    online_as_printed_A_3_1_1,
    single_stream_as_printed_A_3_1_2,
)
from fdmath.attention.softmax import partial_state
from fdmath.claims.claim import Observed, check
from fdmath.claims.exact import definition, keys
from fdmath.claims.programs import (
    call,
    merged_pairs,
    merged_triples,
    number,
    pairs,
    random_call,
    random_scores,
    right,
    triple,
    watched,
)
from fdmath.cost.decode import FLOAT16, FLOAT32, pair_saving
from fdmath.cost.distributed import ring_bytes, tree_bytes

SECTIONS = (
    "1", "2", "2.1", "2.1.1", "2.1.2", "2.1.3", "2.2", "2.2.1", "2.2.2", "2.2.3", "2.3", "2.3.1", "2.3.2", "2.3.3",
    "2.3.4", "2.3.5", "2.3.6", "3", "3.1", "3.1.1", "3.1.2", "3.1.3", "3.2", "3.2.1", "3.2.2", "3.3", "4", "5", "5.1",
    "5.2", "5.3", "5.4",
)  # fmt: skip
"""The numbers of document A's sections, as its headings have them."""


@check("A67")
def who_needs_the_global_value_first():
    """What each program reads: the triple's with the largest score last, and the pair's global merge."""
    scores, v = random_scores(1, 1, 12, "float32")
    q, k, v = call(np.sort(scores), v)
    tiles, seen = watched(k)
    one_pass = right(lambda *x, tile: single_stream_as_printed_A_3_1_2(q, tiles, v, tile), q, k, v, tile=3)
    starts = [index[1].start for _, index in seen.reads if len(index) == 3]  # [..., start:stop, :]
    os, lses = np.ones((4, 1, 1)), np.arange(4.0)[:, None]
    lses, seen = watched(lses)
    flat_as_printed_A_2_3_4(os, lses)
    times = [sum(index[0] == b for _, index in seen.reads if index[1:] == (...,)) for b in range(4)]
    needs_it_first = not (one_pass and len(set(starts)) == len(starts))
    figure = (f"triples: maximum in the last tile, tiles read in the order {starts}, each once, and the result is "
              f"{'right' if one_pass else 'wrong'}; pairs: the global merge reads each S at least {min(times)} "
              "times, for S_global and then for the weights")
    return Observed([needs_it_first, max(times) == 1], figure=figure,
                    counterexample=f"4 streams: S is read {times} times")


@check("A68")
def which_is_the_more_stable():
    """The errors of the two programs on the same scores, V = 1, by level and format; and the maxima that each takes."""
    errors = {(dtype, level): [_worst(f, dtype, level) for f in (single_stream_as_printed_A_3_1_2, pairs)]
              for dtype, level in (("float32", 0.0), ("float32", 100.0), ("float32", 1000.0), ("bfloat16", 100.0))}
    x, seen = watched(np.ones((1, 1)))
    merge_as_printed_A_3_2_1(x, x[:, 0], x, x[:, 0])
    maxima = seen.calls["maximum"]
    two = [number(f(*call([256.0, 256.0], [1.0, 1.0], "bfloat16"), tile=1))
           for f in (single_stream_as_printed_A_3_1_2, pairs)]
    figure = ("largest |o − 1| in u, triple and pair: "
              + "; ".join(f"{dtype}, level {s:g}: {a:.0f}, {b:.0f}" for (dtype, s), (a, b) in errors.items())
              + f"; a merge of pairs takes {maxima} maximum to shift by")
    return Observed([*(b <= a for a, b in errors.values()), maxima == 0], figure=figure,
                    counterexample=f"bfloat16, two keys of score 256, V = 1: triple {two[0]:g}, pair {two[1]:g}")


def _worst(program, dtype, level):
    """The largest |o − 1| of a program in u: 16 rows of 2048 normal scores about a level, tiles of 64, V = 1."""
    scores, _ = random_scores(2, 16, 2048, dtype, level)
    o = program(*call(scores, np.ones(scores.shape), dtype), tile=64)
    return float(np.max(np.abs(exact(o) - 1)) / unit_roundoff(dtype))


@check("A69")
def which_is_the_simpler():
    """exp and log of one printed merge of each, and all array operations of both programs, counted as they run."""
    counted = {}
    x = np.ones((1, 1))
    for name, run in (("pair", lambda a: merge_as_printed_A_3_2_1(a, a[:, 0], a, a[:, 0])),
                      ("triple", lambda a: merged_triples(*[triple(a[:, 0], a[:, 0], a)] * 2))):
        array, seen = watched(x)
        run(array)
        counted[name] = {f: seen.calls[f] for f in ("exp", "log1p") if seen.calls[f]}
    total = {"pair": _calls(lse_streams_as_printed_A_3_2_2), "triple": _calls(multi_stream_as_printed_A_3_1_3)}
    simpler = [sum(counted["pair"].values()) < sum(counted["triple"].values()), total["pair"] < total["triple"]]
    figure = "; ".join(f"a merge of {name}s: {' + '.join(f'{n} {f}' for f, n in counted[name].items())}, the program "
                       f"on 6 tiles and 3 streams: {total[name]} array operations" for name in ("pair", "triple"))
    return Observed(simpler, figure=f"{figure}; a tile's pair takes a log more", counterexample="one merge: "
                    f"{sum(counted['pair'].values())} transcendental functions, not {sum(counted['triple'].values())}")


def _calls(program):
    """How many operations on whole arrays a printed program asks of NumPy: 6 tiles of 4 keys, 3 streams, from k on."""
    q, k, v = random_call(4, 1, 24)
    k, seen = watched(k)
    program(q, k, v, tile=4, num_streams=3)
    return sum(seen.calls.values())


@check("A70")
def section_2_4():
    """Whether there is a section 2.4; and what it would prove: both flat merges equal, on symbols, in every order."""
    equal = []
    for ranks in itertools.permutations(range(3)):
        scores, v = keys(ranks)
        equal += [x == y for x, y in zip(*_both_flat(scores, v), strict=True)]
    last = max(name for name in SECTIONS if name.startswith("2.") and name.count(".") == 1)
    figure = (f"of {len(SECTIONS)} headings {SECTIONS.count('2.4')} are of 2.4; the equality itself holds in "
              f"{sum(equal)} of {len(equal)} cases")
    return Observed(["2.4" in SECTIONS, *equal], figure=figure, counterexample=f"{last} is followed by 3")


def _both_flat(scores, v):
    """((o, e^S) of the flat merge of triples, the same of pairs), of tiles of one key of symbols."""
    m, l, o = flat_as_printed_A_2_2_2(scores[:, None], np.ones((len(scores), 1), dtype=object), v[:, None, None])
    o_pairs, lse = flat_as_printed_A_2_3_4(v[:, None, None], scores[:, None])
    return (o[0, 0], m[0].exp() * l[0]), (o_pairs[0, 0], lse[0].exp())


@check("A71")
def mathematics_listed():
    """Max shift and the online recurrence on symbols in every order of three; log(ab) = log a + log b by SymPy."""
    sympy = backends.load("importlib:import_module")("sympy")
    a, b = sympy.symbols("a b", positive=True)
    inside = [sympy.expand_log(sympy.log(a * b)) == sympy.log(a) + sympy.log(b)]
    for ranks in itertools.permutations(range(3)):
        scores, v = keys(ranks)
        total, _ = definition(scores, v)
        shifted = np.exp(scores - np.max(scores))
        weights = shifted / (shifted[0] + shifted[1] + shifted[2])
        inside += [w * total == s.exp() for w, s in zip(weights, scores, strict=True)]
        m, l, _ = online_as_printed_A_3_1_1(scores[None], v[:, None])
        inside.append(m[0].exp() * l[0] == total)
    low, high = sympy.log(-a), sympy.log(-b)
    free = sympy.expand_log(sympy.log((-a) * (-b))) == low + high
    return Observed(inside, figure=f"{len(inside)} identities; for negative a and b log(ab) is "
                    f"{'' if free else 'not '}log a + log b")


@check("A72")
def order_of_merging():
    """Every order of three tiles, chain and tree, on symbols; how many floats come of 200 orders of 64 tiles."""
    inside = []
    for order in itertools.permutations(range(3)):
        scores, v = keys((1, 0, 2))
        total, mean = definition(scores, v)
        parts = [(v[b:b + 1, None], scores[b:b + 1]) for b in order]
        left = merged_pairs(merged_pairs(parts[0], parts[1]), parts[2])
        other = merged_pairs(parts[0], merged_pairs(parts[1], parts[2]))
        inside += [o[0, 0] == mean and lse[0].exp() == total for o, lse in (left, other)]
    found = {dtype: [_results_of_orders(dtype, seed) for seed in range(2)] for dtype in ("float32", "bfloat16")}
    outside = [count == 1 for runs in found.values() for run in runs for count, _ in run]
    figure = f"exact: {sum(inside)} of {len(inside)} orders and bracketings alike; 200 orders of 64 tiles: "
    figure += "; ".join(
        f"{dtype}, {name}: {_span(run[i][0] for run in runs)} results {_span((run[i][1] for run in runs), '.1e')} apart"
        for dtype, runs in found.items() for i, name in enumerate(("pairs", "triples")))
    return Observed(inside, outside, figure, f"float32, 64 tiles: {found['float32'][0][0][0]} results")


def _span(values, form="d"):
    """The least and the largest of some values."""
    values = list(values)
    return f"{min(values):{form}} to {max(values):{form}}"


def _results_of_orders(dtype, seed, orders=200, tiles=64):
    """(count of distinct o, their spread) of chains over permuted tiles of 64 keys, of printed pairs and of triples."""
    scores, v = random_scores(seed, tiles, 64, "float64")
    state = partial_state(scores[:, None], v[..., None], MLOState).map(lambda x: backends.cast(x[:, 0], dtype))
    lses = backends.cast(exact(state.m) + np.log(exact(state.l)), dtype)
    places = np.argsort(np.random.default_rng(seed).random((orders, tiles)), axis=-1).T
    pair = sequential(merged_pairs, [(state.o[p], lses[p]) for p in places])[0]
    acc = state.o * state.l[:, None]
    whole = sequential(merged_triples, [triple(state.m[p], state.l[p], acc[p]) for p in places])
    results = [np.ravel(exact(o)) for o in (pair, whole.acc / whole.l[:, None])]
    return [(len(np.unique(o)), float(np.max(o) - np.min(o))) for o in results]


@check("A73")
def formulas_of_the_summary():
    """5.1 and 5.2 as printed, and ⊕ with bare exponentials, on symbols, in every order of three tiles."""
    inside = []
    for ranks in itertools.permutations(range(3)):
        scores, v = keys(ranks)
        total, mean = definition(scores, v)
        for o, z in _both_flat(scores, v):
            inside += [o == mean, z == total]
        o, lse = sequential(lambda a, b: merge_as_printed_A_2_3_5(*a, *b),
                            [(v[b:b + 1, None], scores[b:b + 1]) for b in range(3)])
        inside += [o[0, 0] == mean, lse[0].exp() == total]
    return Observed(inside, figure=f"{len(inside)} identities of rational functions")


@check("A74")
def a_third_less_to_send():
    """The share that the pair saves of a triple, by d; and in an exchange by sums, where any spelling sends d + 2."""
    shares = {dim: pair_saving(dim) for dim in (1, 64, 128, 256)}
    mixed = pair_saving(128, FLOAT16, FLOAT32)
    reduced = [tree_bytes(kind, 1, 128, 4, "reduce") for kind in (LSEState, AccState)]
    figure = (", ".join(f"d = {dim}: {float(x):.2%}" for dim, x in shares.items())
              + f"; d = 128 with a float16 o: {float(mixed):.2%}; by all-reduce {reduced[0]} bytes as pairs, "
              f"{reduced[1]} as triples")
    return Observed([x * 3 == 1 for dim, x in shares.items() if dim > 1], figure=figure,
                    counterexample=f"d = 2: {float(pair_saving(2)):.0%}")


@check("A76")
def any_order_in_a_ring():
    """Pairs merged in every rank's order, on symbols; triples too; and what a ring's messages hold."""
    scores, v = keys((1, 2, 0))
    total, mean = definition(scores, v)
    pair, triples = [], []
    for order in itertools.permutations(range(3)):
        parts = [(v[b:b + 1, None], scores[b:b + 1]) for b in order]
        o, lse = sequential(merged_pairs, parts)
        pair.append(o[0, 0] == mean and lse[0].exp() == total)
        whole = sequential(merged_triples, [triple(s, np.ones(1, dtype=object), x) for x, s in parts])
        triples.append(whole.acc[0, 0] * whole.m[0].exp() == mean * total and whole.l[0] * whole.m[0].exp() == total)
    sent, states = ring_bytes(1024, 128, 4), [tree_bytes(kind, 1, 128, 4) for kind in (LSEState, AccState)]
    figure = (f"pairs right in {sum(pair)} of {len(pair)} orders, triples in {sum(triples)}; a ring of 4 ranks sends "
              f"{sent} bytes of K and V a rank for 1024 keys, d = 128, and no state; an all-gather of states "
              f"{states[0]} as pairs, {states[1]} as triples")
    return Observed(pair, [not all(triples)], figure,
                    f"3 parts as triples: {sum(triples)} of {len(triples)} orders are right")
