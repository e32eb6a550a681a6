"""Claims A54 to A66: document A's algorithm and code for the pair (section 3.2)."""

import itertools
import math

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.order import flat
from fdmath.algebra.printed import (
    flat_as_printed_A_2_3_4,
    merge_as_printed_A_2_3_5,
    merge_as_printed_A_3_2_1,
)
from fdmath.algebra.rounding import (
    KAPPA,
    Budget,
    block_budget,
    chain_budget,
    exact,
    fold_budget,
    format_of,
    unit_roundoff,
)
from fdmath.algebra.state import LSEState
from fdmath.attention.decode import key_ranges, split_kv_attention
from fdmath.attention.printed import (
    attention_as_printed_A_3_1_2,
    lse_streams_as_printed_A_3_2_2,
    multi_stream_as_printed_A_3_1_3,
)
from fdmath.attention.softmax import partial_state
from fdmath.claims.claim import Observed, check
from fdmath.claims.exact import definition, keys
from fdmath.claims.programs import (
    INF,
    call,
    normal_call,
    number,
    pairs,
    random_call,
    random_scores,
    right,
    stream_as_printed_A_3_2_2,
    text,
)
from fdmath.verify import reference

FORMATS = ("float16", "bfloat16", "float32", "float64")


def _pair(o, lse, dtype="float32"):
    """(o, lse) of one row, dv = 1, or of one row for each of two lists."""
    o, lse = np.atleast_1d(np.asarray(o, dtype=np.float64)), np.atleast_1d(np.asarray(lse, dtype=np.float64))
    return backends.cast(o[:, None], dtype), backends.cast(lse, dtype)


@check("A54")
def streams_start_with_the_identity():
    """(0, −∞) ⊕ a tile and a tile ⊕ (0, −∞), bit for bit in every format; and (0, −∞) ⊕ (0, −∞) (F3)."""
    rng = np.random.default_rng(1)
    inside = []
    for dtype in FORMATS:
        tile = _pair(rng.standard_normal(50), 20 * rng.standard_normal(50), dtype)
        nothing = _pair([0] * 50, [-INF] * 50, dtype)
        for merged in (merge_as_printed_A_3_2_1(*nothing, *tile), merge_as_printed_A_3_2_1(*tile, *nothing)):
            inside += [bool(np.all(x == y)) for x, y in zip(merged, tile, strict=True)]
    o, lse = merge_as_printed_A_3_2_1(*_pair(0, -INF), *_pair(0, -INF))
    return Observed(inside, figure=f"neutral bit for bit in {len(FORMATS)} formats, on both sides; as printed "
                    f"(0, -inf) ⊕ (0, -inf) = ({number(o)}, {number(lse)}), where the tile has no finite score either")


@check("A55")
def log_of_a_sum_by_log1p():
    """S_max + log(1 + e^(S_min − S_max)) on symbols in both orders, certified in floats; log1p against mpmath."""
    inside = []
    for ranks in itertools.permutations(range(2)):
        scores, v = keys(ranks)
        lse = merge_as_printed_A_3_2_1(v[:1, None], scores[:1], v[1:, None], scores[1:])[1]
        inside.append(lse[0].exp() == definition(scores, v)[0])
    for dtype in ("float32", "float64"):
        lses = np.stack([exact(x) for x in random_scores(2, 2, 50, dtype, 10.0)[0]])
        merged = merge_as_printed_A_3_2_1(*_pair(0 * lses[0], lses[0], dtype), *_pair(0 * lses[0], lses[1], dtype))
        states = [LSEState(np.zeros((50, 1)), x) for x in lses]
        found = reference.merged(states).judge(LSEState(*merged), chain_budget(states, format_of(dtype)))
        inside.append(found.verdict == "pass")
    worst = _log1p_error()
    inside.append(worst <= KAPPA)
    figure = f"exact in both orders; {2 * lses.shape[-1]} sums within T4; log1p of NumPy within {worst:.2f} u"
    return Observed(inside, figure=figure)


def _log1p_error():
    """The largest relative error of float32 log1p on (0, 1] in u, against mpmath, at 500 places."""
    mpmath = backends.load("importlib:import_module")("mpmath")
    x = np.exp(-8 * np.random.default_rng(3).random(500)).astype(np.float32)
    right = [mpmath.log1p(mpmath.mpf(float(t))) for t in x]
    errors = [float(abs(mpmath.mpf(float(y)) / r - 1)) for y, r in zip(np.log1p(x), right, strict=True)]
    return max(errors) / unit_roundoff(x)


@check("A56")
def merged_output_is_the_weighted_mean():
    """o₁e^(S₁−S) + o₂e^(S₂−S) on symbols in both orders; and the sum of the two weights in floats."""
    inside = []
    for ranks in itertools.permutations(range(2)):
        scores, v = keys(ranks)
        o = merge_as_printed_A_3_2_1(v[:1, None], scores[:1], v[1:, None], scores[1:])[0]
        inside.append(o[0, 0] == definition(scores, v)[1])
    sums = {(dtype, s): number(merge_as_printed_A_3_2_1(*_pair(1, s, dtype), *_pair(1, s, dtype))[0])
            for dtype, s in (("float32", 1000.0), ("bfloat16", 2.0), ("bfloat16", 256.0))}
    figure = "exact in both orders; the two weights of equal S, which should add to 1, add to " + ", ".join(
        f"{x:.7g} ({dtype}, S = {s:g})" for (dtype, s), x in sums.items())
    return Observed(inside, figure=figure)


@check("A57")
def a_large_difference_overflows():
    """Whether the bare e^S₁ + e^S₂ overflows where |S₁ − S₂| is large, and only there; and from which S on it does."""
    cases = [(100.0, 100.0), (0.0, -1000.0), (0.0, 0.0), (100.0, 0.0)]
    over = {(a, b): math.isinf(number(merge_as_printed_A_2_3_5(*_pair(1, a), *_pair(1, b))[1])) for a, b in cases}
    level = number(merge_as_printed_A_2_3_5(*_pair(1, 100), *_pair(1, 100))[1])
    inside = [x == (abs(a - b) >= 100) for (a, b), x in over.items()]
    limits = {dtype: _largest_exponent(dtype) for dtype in FORMATS[:3]}
    figure = ("; ".join(f"S = {a:g}, {b:g}: {'overflows' if x else 'fits'}" for (a, b), x in over.items())
              + "; e^S fits up to S = " + ", ".join(f"{x:.2f} ({dtype})" for dtype, x in limits.items()))
    return Observed(inside, figure=figure, counterexample=f"S = 100, 100 in float32, difference 0: S ⊕ S = {level}")


def _largest_exponent(dtype):
    """The largest number of a format whose exponential is finite in it, to the format's own spacing."""
    grid = np.unique(backends.cast(np.linspace(0, 100, 2**18), dtype))
    with backends.quiet():
        return number(np.max(grid[np.isfinite(np.exp(grid))]))


def exponential_as_printed_A_3_2_1(lse1, lse2):
    """e^(S_min − S_max) of two S in their format."""
    with backends.quiet():
        return np.exp(np.minimum(lse1, lse2) - np.maximum(lse1, lse2))


@check("A58")
def the_exponential_of_a_difference():
    """Whether e^(S_min − S_max) lies in (0, 1]: down to the format's range, beyond it, and for two equal infinities."""
    inside, outside, ends, seen = [], [], {}, set()
    for dtype in FORMATS:
        smallest = np.log(format_of(dtype).tiny)  # half the smallest subnormal number: what is below rounds to 0
        low, end, far = (backends.cast(np.array(x), dtype) for x in
                         (np.linspace(smallest + 1, 0, 1001), [0, -INF], [2 * smallest, -INF]))
        near = exponential_as_printed_A_3_2_1(low, end[0])
        beyond = exact(exponential_as_printed_A_3_2_1(end, far))
        inside.append(bool(np.all((near > 0) & (near <= 1))))
        outside += [0 < x <= 1 for x in beyond.tolist()]
        ends[dtype] = smallest
        seen |= set(map(str, beyond.tolist()))  # as text, so that one NaN is another
    figure = ("in (0, 1] down to about " + ", ".join(f"{x:.2f} ({dtype})" for dtype, x in ends.items())
              + f"; below, and for two equal infinities: {' or '.join(sorted(seen))}")
    return Observed(inside, outside, figure, "S = 0, -200 in float32: "
                    f"{number(exponential_as_printed_A_3_2_1(*np.float32([0, -200]))):g}")


@check("A59")
def two_steps_over_the_streams():
    """(3a) and (3b) as printed, on symbols, three streams in every order."""
    inside = []
    for ranks in itertools.permutations(range(3)):
        scores, v = keys(ranks)
        o, lse = flat_as_printed_A_2_3_4(v[:, None, None], scores[:, None])
        inside += [o[0, 0] == definition(scores, v)[1], lse[0].exp() == definition(scores, v)[0]]
    return Observed(inside, figure="o and S equal the definition as rational functions in 6 orders of three streams")


def log_as_printed_A_3_2_2(l):  # noqa: E741
    """log(l + 1e-12) in the format of l."""
    with backends.quiet():
        return np.log(l + l.dtype.type(1e-12))  # the document's number, no tolerance


@check("A60")
def the_added_1e_12_is_safe():
    """log(l + 1e-12): what float64 loses by it (F5b), whether l needs it, and a guarded tile without keys (F5)."""
    scores, v = random_scores(4, 6, 40, "float64")
    l = np.sum(np.exp(scores - np.max(scores, axis=-1, keepdims=True)), axis=-1)  # noqa: E741
    both = [split_kv_attention(*call(scores, v, "float64"), tile=4).o, pairs(*call(scores, v, "float64"), tile=4)]
    right, bound = reference.block(scores[:, None], v[..., None]), _flat_bound(scores, v, "float64", 4)
    without, found = (right.judge(LSEState(o.reshape(bound.o.shape), right.lse), bound) for o in both)
    short = l.astype(np.float32)
    low = np.all(log_as_printed_A_3_2_2(short) == np.log(short))
    phantom = float(log_as_printed_A_3_2_2(np.zeros(1)).item())
    given = {s: number(flat_as_printed_A_2_3_4(np.array([[0.0], [7.0]]), np.array([phantom, s]))[0])
             for s in (-20.0, -28.0, -40.0)}
    inside = [found.verdict == "pass", *(x == 7 for x in given.values())]
    figure = (f"l of {l.size} tiles is {l.min():.3g} at least; float64, tile 4: error {found.miss.error:.1e} with it, "
              f"{without.miss.error:.1e} without; float32: log l {'is the same' if low else 'changes'}; a guarded tile "
              f"without keys becomes S = {phantom:.2f}, so that K = [-inf, s], V = [5, 7] gives "
              + ", ".join(f"{x:.4g} at s = {s:g}" for s, x in given.items()))
    return Observed(inside, figure=figure, counterexample=f"K = [-inf, -28], V = [5, 7]: {given[-28.0]:.3g}, right 7")


def _flat_bound(scores, v, dtype, tile):
    """The Budget T3 of tiles merged at once, o (rows, 1, 1); nothing is asked of lse."""
    fmt = format_of(dtype)
    parts = [(scores[:, None, a:b], v[:, a:b, None]) for a, b in key_ranges(scores.shape[-1], tile)]
    states = [partial_state(s, x) for s, x in parts]
    bound = fold_budget(states, flat, fmt, [block_budget(s, x, fmt) for s, x in parts])
    return Budget(bound.o, np.full(bound.lse.shape, INF))


@check("A61")
def the_scale_of_a_tile():
    """The printed program with its class's defaults, heads of 64 numbers and of one; and its own reference (F8)."""
    one = call([0.0, 8.0], [0.0, 1.0])
    program, reference = (number(f(*one)) for f in (lse_streams_as_printed_A_3_2_2, attention_as_printed_A_3_1_2))
    right_o = 1 / (1 + math.exp(-8.0))
    inside = [right(lse_streams_as_printed_A_3_2_2, *made) for made in (normal_call(5, 9, 64), one)]
    figure = (f"d = 64: within the bound; d = 1: program {program:.4f}, its own reference {reference:.4f}, right "
              f"{right_o:.4f}: the class's comparison of the two {'passes' if program == reference else 'fails'}")
    return Observed(inside, figure=figure,
                    counterexample=f"default class, q = [1], K = [0, 8], V = [0, 1]: {program:.4f}")


@check("A62")
def merging_two_pairs_is_stable():
    """The printed ⊕ of pairs within its bound of level 0, there and at high levels; the length of a chain; overflow."""
    inside, outside, worst = [], [], {}
    for level in (0.0, 1.0, 100.0, 1000.0):
        lses = level + np.random.default_rng(6).random((2, 500))
        a, b = (_pair(np.ones(500), x) for x in lses)
        o, lse = merge_as_printed_A_3_2_1(*a, *b)
        low = [LSEState(np.ones((500, 1)), exact(x) - level) for _, x in (a, b)]
        error = np.abs(exact(o) - 1)
        worst[level] = np.max(error) / unit_roundoff("float32")
        case = bool(np.all(np.isfinite(lse)) and np.all(error <= chain_budget(low, format_of("float32")).o))
        (inside if level <= 1 else outside).append(case)
    chains = {count: _chain_error(count) for count in (2, 16, 128)}
    figure = ("V = 1, float32, largest error by level: " + ", ".join(f"{x:.0f} u at {s:g}" for s, x in worst.items())
              + "; by length of a chain at level 100: " + ", ".join(f"{x:.0f} u of {n}" for n, x in chains.items())
              + "; none overflows")
    twice = number(merge_as_printed_A_3_2_1(*_pair(1, 256, "bfloat16"), *_pair(1, 256, "bfloat16"))[0])
    return Observed(inside, outside, figure, f"bfloat16, two keys of score 256, V = 1: {twice:g}")


def _chain_error(count):
    """The largest |o − 1| in u of a chain of `count` printed pairs at level 100 with o = 1, float32, 100 rows."""
    lses = 100 + np.random.default_rng(7).random((count, 100))
    o, lse = _pair(np.ones(100), lses[0])
    for part in lses[1:]:
        o, lse = merge_as_printed_A_3_2_1(o, lse, *_pair(np.ones(100), part))
    return float(np.max(np.abs(exact(o) - 1)) / unit_roundoff("float32"))


@check("A63")
def one_test_for_all_rows():
    """The test for a stream's first tile, tiles guarded: two heads that agree on what is empty, and two that do not."""
    def stream(*levels):
        values = [5.0, 6.0, 7.0]
        return stream_as_printed_A_3_2_2([
            _pair([x if s > -INF else 0 for s in row], row) for x, row in zip(values, levels, strict=True)])[0]

    agree = [stream([-INF, -INF], [-INF, -INF], [0, 0]), stream([0, 0], [-INF, -INF], [-INF, -INF])]
    mixed = stream([-INF, 0], [-INF, 0], [0, 0])
    kept = merge_as_printed_A_3_2_1(*_pair(0, -INF), *_pair(7, 1.5))
    inside = [bool(np.all(agree[0] == 7)), bool(np.all(agree[1] == 5))]
    figure = (f"heads that agree: {text(agree[0])}, {text(agree[1])}; K = [-inf, -inf, 0] and [0, 0, 0], V = [5, 6, 7]:"
              f" {text(mixed)}, right [7, 6]; needless where the tile has a key: (0, -inf) ⊕ (7, 1.5) = "
              f"({number(kept[0]):g}, {number(kept[1]):g})")
    return Observed(inside, [bool(np.all(mixed.ravel() == [7, 6]))], figure,
                    f"2 heads, K = [[-inf, -inf, 0], [0, 0, 0]], V = [5, 6, 7], tile 1: {text(mixed)}")


@check("A64")
def merging_all_streams():
    """The printed two steps over three streams: all with keys, one without, and the first two without (F3b)."""
    def merged(*parts):
        os, lses = (np.array(x) for x in zip(*parts, strict=True))
        return number(flat_as_printed_A_2_3_4(os[:, None], lses)[0])

    nothing, seven = (0.0, -INF), (7.0, 0.0)
    found = {"last two empty": merged(seven, nothing, nothing),
             "first empty": merged(nothing, seven, nothing), "first two empty": merged(nothing, nothing, seven)}
    inside = [right(pairs, *random_call(8, 2, 30), tile=4), *(found[x] == 7 for x in ("last two empty", "first empty"))]
    figure = "o = 7 with a key, 0 and S = -inf without: " + ", ".join(f"{name}: {x:g}" for name, x in found.items())
    return Observed(inside, [found["first two empty"] == 7], figure,
                    f"[(0, -inf), (0, -inf), (7, 0)]: {found['first two empty']}, right 7")


@check("A65")
def more_streams_than_tiles():
    """The printed program of pairs with one to seven streams over one to four tiles; that of triples beside it."""
    q, k, v = random_call(9, 2, 4)
    cases = [(count, tiles) for count in range(1, 8) for tiles in range(1, 5)]
    inside = [right(pairs, q, k[..., :n, :], v[..., :n, :], tile=1, num_streams=count) for count, n in cases]
    triples = [right(multi_stream_as_printed_A_3_1_3, q, k[..., :n, :], v[..., :n, :], tile=1, num_streams=count)
               for count, n in cases]
    few = sum(count > n for count, n in cases)
    figure = (f"{sum(inside)} of {len(inside)} right, {few} of them with more streams than tiles; of the program of "
              f"triples {sum(triples)}")
    return Observed(inside, figure=figure)


@check("A66")
def code_and_symbols_of_the_pair():
    """The table's rows run: with unit vectors for o the printed merge returns its own weights; log1p(e^x) certified."""
    inside = []
    for ranks in itertools.permutations(range(3)):
        scores, v = keys(ranks)
        total, _ = definition(scores, v)
        units = np.array([[[int(i == b) for i in range(3)]] for b in range(3)], dtype=object)
        weights, lse = flat_as_printed_A_2_3_4(units, scores[:, None])
        inside += [w * total == s.exp() for w, s in zip(weights[0], scores, strict=True)]
        inside.append(lse[0].exp() == total)
    x = -np.linspace(0, 30, 301)
    nothing = np.zeros((301, 1))
    computed, two = np.log1p(np.exp(x)), [LSEState(nothing, 0 * x), LSEState(nothing, x)]  # log(e⁰ + e^x)
    # exp errs by κu relatively, which moves log(1 + y), y = e^x, by y/(1 + y)·κu ≤ log(1 + y)·κu; log1p errs by κu.
    bound = Budget(nothing, 2 * KAPPA * unit_roundoff("float64") * computed)
    found = reference.merged(two).judge(LSEState(nothing, computed), bound)
    inside.append(found.verdict == "pass")
    return Observed(inside, figure="weights e^(S_b − S_g) as rational functions in 6 orders; log1p(e^x) within "
                    f"{2 * KAPPA * found.ratio:.2f} u in float64")
