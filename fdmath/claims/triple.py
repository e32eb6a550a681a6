"""Document A, section 2.2: the triple (m, ℓ, o) of a tile, and how triples are merged."""

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.merge import merge_all
from fdmath.algebra.order import sequential
from fdmath.algebra.printed import flat_as_printed_A_2_2_2
from fdmath.algebra.rounding import format_of, smallest_subnormal
from fdmath.algebra.state import AccState, MLOState
from fdmath.attention.levels import state_at_levels
from fdmath.attention.printed import definition_as_printed_A_2_1_1
from fdmath.attention.softmax import partial_state
from fdmath.claims import cases, exact
from fdmath.claims.claim import Observed, check
from fdmath.verify import reference

TILES = ((0, 2), (2, 4), (4, 5))
"""Three tiles of five keys, the last one short."""
RANKS = ((0, 1, 2, 3, 4), (4, 3, 2, 1, 0), (2, 4, 0, 3, 1))
"""Orders of five scores: the maximum in the last tile, the first, the middle of one."""


def tile_as_printed_A_2_2_1(scores, v, level=None):
    """(m, l, o) of a tile, m the largest score or the level given: scores (R, N), v (N, dv), of numbers of any kind."""
    m = np.max(scores, axis=-1) if level is None else level
    with backends.quiet():
        weights = np.exp(scores - m[..., None])
        l = np.sum(weights, axis=-1)  # noqa: E741
        return m, l, weights @ v / l[..., None]


def symbolic_tiles(ranks, levels=None):
    """(scores, v, triples): five keys on symbols, and the triple of each of TILES.

    levels: the number of the score that serves a tile as its level, in place of its maximum; those from the fifth on
    are of no key.
    """
    scores, v = exact.keys(ranks)
    chosen = [None] * len(TILES) if levels is None else [scores[i:i + 1] for i in levels]
    tiles = [tile_as_printed_A_2_2_1(scores[None, a:b], v[a:b, None], level)
             for (a, b), level in zip(TILES, chosen, strict=True)]
    return scores[:TILES[-1][1]], v[:TILES[-1][1]], tiles


def exact_triples():
    """Whether the triples of three tiles, merged as 2.2.2 prints it, are the softmax's sum and the attention output."""
    found = []
    for ranks in RANKS:
        scores, v, tiles = symbolic_tiles(ranks)
        total, o = exact.definition(scores, v)
        m, l, merged = flat_as_printed_A_2_2_2(*map(np.stack, zip(*tiles, strict=True)))
        found += [m[0].exp() * l[0] == total, merged[0, 0] == o]
    return found


@check("A14")
def shifting_avoids_overflow():
    """The tile formula with and without the shift on far scores in float32; a hidden tile; a score that overflows."""
    far = [np.float32([row]) for row in ([1000, 999], [-1000, -1001], [3e38, -3e38], [88, 89])]
    v = np.float32([[1], [3]])
    shifted = [np.isfinite(tile_as_printed_A_2_2_1(s, v)[2]).all() for s in far]
    bare = [np.isfinite(definition_as_printed_A_2_1_1(s, v)[0]).all() for s in far]
    hidden = tile_as_printed_A_2_2_1(np.float32([[-np.inf, -np.inf]]), v)[2]
    with backends.quiet():
        large = np.float16([[256, 0]]) * np.float16(256)
    over = tile_as_printed_A_2_2_1(large, v.astype(np.float16))[2]
    return Observed(
        inside=shifted,
        outside=[np.isfinite(hidden).all(), np.isfinite(over).all()],
        figure=f"{len(far)} pairs of float32 scores up to 3e38: finite with the shift in {sum(shifted)}, without it in "
               f"{sum(bare)}; both keys hidden: {hidden.item()}; float16, q = k = 256: score {large[0, 0]}, o = "
               f"{over.item()}",
        counterexample=f"scores (-inf, -inf): o = {hidden.item()}")


@check("A15")
def sum_between_1_and_tile():
    """The least and the largest l of random tiles and of equal scores, in float32 and float64."""
    inside, seen = [], []
    for rng, rows, keys, _ in cases.shapes(15, 60, most=300):
        scores, v = cases.draw(rng, rows, keys, dtype=("float32", "float64")[keys % 2])
        for s in (scores, 0 * scores, 100 * scores):
            l = partial_state(s, v, MLOState).l  # noqa: E741
            inside.append(np.all((l >= 1) & (l <= keys)))
            seen += [(l.min(), l.max() / keys)]
    least, most = min(x for x, _ in seen), max(x for _, x in seen)
    half = np.zeros((1, 65536), np.float16)
    over = tile_as_printed_A_2_2_1(half, half.T)[1].item()
    return Observed(
        inside=inside,
        figure=f"{len(inside)} tiles in float32 and float64: the least l is {least:g}, the largest l / N "
               f"{most:g}; in float16 65536 equal keys sum to {over}, as 65504 is its largest number")


@check("A16")
def output_is_a_mean():
    """The weights on symbols: their sum; random tiles: o between the least and the largest v, within its bound."""
    scores, _ = exact.keys(RANKS[0])
    ones = np.array([exact.Number.of(1)] * len(scores), dtype=object)[:, None]
    mean = tile_as_printed_A_2_2_1(scores[None], ones)[2][0, 0]
    inside = [mean == 1]
    for rng, rows, keys, _ in cases.shapes(16, 30):
        scores, v = cases.draw(rng, rows, keys)
        o, (slack, _) = partial_state(scores, v).o, cases.bound(scores, v, keys)
        inside.append(np.all((v.min(axis=0) - slack <= o) & (o <= v.max(axis=0) + slack)))
    return Observed(inside=inside, figure=f"Σ weights / l = {mean!r} on symbols, each weight an exponential; "
                                          f"{len(inside) - 1} random tiles within the hull of v, but for their bound")


@check("A17")
def largest_of_the_maxima():
    """The level of all tiles merged, in each order, beside the largest of all scores, bit for bit."""
    inside = []
    for rng, rows, keys, tile in cases.shapes(17, 40):
        scores, v = cases.draw(rng, rows, keys, dtype="float32")
        scores[rng.random(scores.shape) < 1 / 4] = -np.inf
        states, _ = cases.parts(scores, v, tile, MLOState)
        inside += [np.array_equal(merge_all(states, order).m, scores.max(axis=-1)) for order in cases.ORDERS]
    return Observed(inside=inside, figure=f"{len(inside)} merges of random tiles, hidden keys among them, bit for bit")


@check("A18")
def sums_rescaled_and_added():
    """ℓ_g on symbols, for three orders of the scores; random tiles of fdmath, folded within their bound."""
    symbolic = [case for i, case in enumerate(exact_triples()) if i % 2 == 0]
    drawn = cases.is_attention(MLOState, 18, 20)
    return Observed(inside=[*symbolic, *drawn], figure=f"{len(symbolic)} identities; {len(drawn)} random shapes")


@check("A19")
def output_at_any_level():
    """o and ℓ_g on symbols with free numbers as levels; fdmath at levels far from the maxima, in exact powers of 2."""
    inside = []
    for ranks in RANKS:
        scores, v, tiles = symbolic_tiles((*ranks, 5, 9, 7), levels=(5, 6, 7))
        total, o = exact.definition(scores, v)
        m, l, merged = flat_as_printed_A_2_2_2(*map(np.stack, zip(*tiles, strict=True)))
        inside += [m[0].exp() * l[0] == total, merged[0, 0] == o]
    identities = len(inside)
    scores, v = np.array([0.0, 0.0, 1.0, 2.0]), np.array([[2.0], [6.0], [0.0], [3.0]])
    keys = [AccState(s, np.ones(()), x) for s, x in zip(scores, v, strict=True)]
    for levels in ([0, 0, 1, 2], [2, 2, 2, 2], [9, -9, 30, -30]):
        _, l, acc = state_at_levels(keys, np.array(levels, dtype=float), base=2)  # noqa: E741
        weights = 2.0 ** scores
        inside += [np.ldexp(l, levels[-1]) == weights.sum(), np.ldexp(acc, levels[-1]).item() == weights @ v[:, 0]]
    return Observed(inside=inside, figure=f"{identities} identities with free levels; scores 0, 0, 1, 2 in base 2 at "
                                          f"levels up to 30 away: o = {(acc / l).item():g}, exactly")


@check("A20")
def exponentials_chain():
    """e^(a−b)·e^(b−c) beside e^(a−c): on symbols, in float32 with a ≤ b ≤ c within its bound, and out of order."""
    import mpmath

    a, b, c = exact.keys((0, 1, 2))[0]
    inside, fmt = [(a - b).exp() * (b - c).exp() == (a - c).exp()], format_of("float32")
    for row in np.sort(50 * np.random.default_rng(20).standard_normal((200, 3)).astype(np.float32)):
        product, distance = chained(*row), abs(float(row[0] - row[1])) + abs(float(row[1] - row[2]))
        exactly = mpmath.exp(mpmath.mpf(float(row[0])) - mpmath.mpf(float(row[2])))
        allowed = exactly * mpmath.expm1(fmt.u * (distance + 2 * fmt.kappa) + fmt.step)
        # Each factor is at most 1 and may underflow, and so may their product.
        inside.append(bool(abs(mpmath.mpf(float(product)) - exactly) <= allowed + 3 * smallest_subnormal("float32")))
    wrong = chained(*np.float32([100, 0, 100]))
    return Observed(
        inside=inside, outside=[wrong == 1],
        figure=f"exact; float32, {len(inside) - 1} ordered triples within their bound; a = c = 100, b = 0: {wrong:g}",
        counterexample=f"float32, a = c = 100, b = 0: {wrong:g}, right 1")


def chained(a, b, c):
    """e^(a−b)·e^(b−c) in the format of the arguments."""
    with backends.quiet():
        return np.exp(a - b) * np.exp(b - c)


@check("A21")
def theorem_2_2_3():
    """The numerator and the denominator on symbols; 60 random shapes in float64 by triples, in three orders."""
    symbolic, drawn = exact_triples(), cases.is_attention(MLOState, 21, 60)
    scores, v = np.random.default_rng(21).standard_normal((8, 256)), np.random.default_rng(22).random((256, 4))
    got, right = cases.split(scores, v, 32, MLOState), reference.block(scores, v).enclosure
    return Observed(
        inside=[*symbolic, *drawn],
        figure=f"{len(symbolic)} identities; {len(drawn)} random shapes in float64 within their bound; 8 rows of 256 "
               f"keys in tiles of 32: off by {float(right.errors(got)[0].max()):.1e} at most")


@check("A79")
def local_maximum_is_running():
    """The maximum of each tile beside the running maximum: the level after so many tiles folded one by one."""
    states = [partial_state(np.array([[s]]), np.ones((1, 1)), MLOState) for s in (1.0, 0.0)]
    running = [merge_all(states[:count], sequential).m.item() for count in (1, 2)]
    local = [state.m.item() for state in states]
    return Observed(
        inside=[ours == so_far for ours, so_far in zip(local, running, strict=True)],
        figure=f"tiles with the scores (1) and (0): maxima {local[0]:g}, {local[1]:g}; running maxima "
               f"{running[0]:g}, {running[1]:g}",
        counterexample=f"tiles (1), (0): the second has m = {local[1]:g}, the running maximum is {running[1]:g}")


__all__ = ["exact_triples", "symbolic_tiles", "tile_as_printed_A_2_2_1"]
