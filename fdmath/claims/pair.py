"""Document A, section 2.3: the pair (o, S), S the log-sum-exp of a tile's scores, and the operator ⊕."""

from fractions import Fraction
from types import SimpleNamespace

import numpy as np

from fdmath.algebra.merge import combine_acc, combine_mlo, flat, merge
from fdmath.algebra.printed import flat_as_printed_A_2_3_4, merge_as_printed_A_2_3_5, merge_as_printed_A_3_2_1
from fdmath.algebra.rounding import format_of, merge_budget, unit_roundoff
from fdmath.algebra.state import LSEState, MLOState, identity
from fdmath.attention.softmax import logsumexp, partial_state
from fdmath.bench.associativity import LEVELS, apart, three_states
from fdmath.bench.online import operations
from fdmath.bench.stored_statistics import measure, scores_at
from fdmath.claims import cases, exact
from fdmath.claims.cases import percent
from fdmath.claims.claim import Observed, check
from fdmath.claims.programs import call, number, pairs
from fdmath.claims.triple import RANKS, symbolic_tiles
from fdmath.cost.decode import pair_saving
from fdmath.verify import reference

PRINTED = (merge_as_printed_A_2_3_5, merge_as_printed_A_3_2_1)
"""⊕ as the document prints it: by its definition, and in the stable form of its algorithm."""


def symbolic_pairs(ranks):
    """(Σ eˢ, o, pairs): of five keys on symbols, and the pairs (o, S) of their three tiles, S = m + log l."""
    scores, v, tiles = symbolic_tiles(ranks)
    return *exact.definition(scores, v), [(o, m + np.log(as_numbers(l))) for m, l, o in tiles]


def as_numbers(x):
    """The array with its plain numbers as constants that have a logarithm."""
    return np.vectorize(exact.Number.of, otypes=[object])(x)


def is_state(pair, total, o):
    """Whether a pair of one row on symbols is (o, log total)."""
    return bool(pair[1][0].exp() == total and pair[0][0, 0] == o)


def exact_pairs():
    """Whether three pairs merged by 2.3.4, and by a chain of each printed ⊕, are the attention output and its sum."""
    found = []
    for ranks in RANKS:
        total, o, (a, b, c) = symbolic_pairs(ranks)
        found.append(is_state(flat_as_printed_A_2_3_4(*map(np.stack, zip(a, b, c, strict=True))), total, o))
        found += [is_state(plus(*plus(*a, *b), *c), total, o) for plus in PRINTED]
    return found


@check("A22")
def exponential_of_lse():
    """e^S on symbols, and e^lse of the oracle's balls beside Σ eˢ taken with 60 digits."""
    inside = [is_state(flat_as_printed_A_2_3_4(*map(np.stack, zip(*parts, strict=True))), total, o)
              for total, o, parts in map(symbolic_pairs, RANKS)]
    for rng, rows, keys, _ in cases.shapes(22, 20):
        scores, v = cases.draw(rng, rows, keys)
        inside += [abs(sums - middle) <= middle * wide for sums, middle, wide in lse_sums(scores, v)]
    return Observed(inside=inside, figure=f"{len(RANKS)} identities; {len(inside) - len(RANKS)} random rows in balls")


def lse_sums(scores, v):
    """(Σ eˢ, e^lse, what the radius of lse allows) of each row, with 60 digits."""
    import mpmath

    right = reference.block(scores, v).enclosure
    with mpmath.workdps(60):
        for row, middle, radius in zip(scores.tolist(), right.lse_mid.ravel(), right.lse_rad.ravel(), strict=True):
            yield mpmath.fsum(map(mpmath.exp, row)), mpmath.exp(float(middle)), mpmath.expm1(float(radius))


@check("A23")
def shifted_lse():
    """m + log Σ e^(s−m) of random rows in float64, within its bound; the exact value between max and max + log n."""
    import mpmath

    inside = []
    for rng, rows, keys, _ in cases.shapes(23, 30):
        scores, v = cases.draw(rng, rows, keys)
        state = LSEState(partial_state(scores, v).o, logsumexp(scores))
        inside.append(cases.right(state, scores, v, cases.bound(scores, v, keys)))
        with mpmath.workdps(60):
            for row in scores.tolist():
                lse, top = mpmath.log(mpmath.fsum(map(mpmath.exp, row))), max(row)
                inside.append(bool(top <= lse <= top + mpmath.log(keys)))
    equal = float(logsumexp(np.zeros(8)))
    return Observed(inside=inside, figure=f"{len(inside)} cases; eight equal scores of 0: {equal:.6f} = log 8")


@check("A24")
def reduction_of_traffic():
    """The share of the numbers of a state that the pair saves, beside a third; and of its bytes with a float16 o."""
    dims = (64, 128, 256)
    told = 1 - Fraction(2, 3)  # as the table of section 3.3 counts: 3 numbers a tile, then 2
    smallest = next(dim for dim in range(1, 256) if pair_saving(dim) != told)
    half = {dim: pair_saving(dim, payload=2) for dim in dims}
    return Observed(
        inside=[pair_saving(dim) == told for dim in dims],
        figure="saved: " + ", ".join(f"{percent(pair_saving(dim))} at d = {dim}" for dim in dims) + "; with o in "
               "float16: " + ", ".join(percent(share) for share in half.values())
               + f"; {percent(pair_saving(1), 1)} at d = 1",
        counterexample=f"d = {smallest}: {smallest + 2} numbers against {smallest + 1}, "
                       f"{percent(pair_saving(smallest), 0)} less")


@check("A25")
def lse_of_level_and_sum():
    """S = m + log ℓ on symbols; what storing S in float32 rounds away, beside u·|S|, at several levels."""
    import mpmath

    inside, lost = [], {}
    for ranks in RANKS:
        _, _, tiles = symbolic_tiles(ranks)
        inside += [(m + np.log(as_numbers(l)))[0].exp() == m[0].exp() * l[0] for m, l, _ in tiles]
    fmt = format_of("float32")
    for level in (1, 100, 10000):
        state = three_states(level, MLOState, "float32", 200, seed=25)[0]
        errors = [abs(mpmath.mpf(float(s)) - float(m) - mpmath.log(float(l)))
                  for s, m, l in zip(state.to(LSEState).lse, state.m, state.l, strict=True)]
        lse = np.abs(state.to(LSEState).lse.astype(np.float64))
        allowed = fmt.u * (lse + (1 + fmt.kappa) * np.log(state.l.astype(np.float64)))
        inside += [bool(error <= bound) for error, bound in zip(errors, allowed, strict=True)]
        lost[level] = float(max(errors)) / fmt.u
    return Observed(inside=inside, figure="exact; S stored in float32 is off by up to "
                    + ", ".join(f"{u:.0f} u at level {level}" for level, u in lost.items()))


@check("A26")
def same_information():
    """Two triples of one S, exactly and as `fdmath` stores it: whether S tells e^m·ℓ, and whether m and ℓ."""
    two, one = exact.Number.of(2), exact.Number.of(1)
    triples = [(one.log(), two), (two.log(), one)]  # (m, l): (0, 2) and (log 2, 1)
    first, second = (m + l.log() for m, l in triples)
    stored = [MLOState(np.array(m), np.array(l), np.ones(1)).to(LSEState).lse.item()
              for m, l in ((0.0, 2.0), (np.log(2.0), 1.0))]
    shared = first == second and stored[0] == stored[1]
    return Observed(
        inside=[first.exp() == triples[0][0].exp() * triples[0][1], not shared or triples[0] == triples[1]],
        figure=f"S of (m, l) = (0, 2) and of (log 2, 1): e^S = {first.exp()!r} and {second.exp()!r}",
        counterexample=f"(m, l) = (0, 2) and (log 2, 1) share S = {stored[0]:.6f}" if shared else "")


@check("A27")
def same_output():
    """o of each tile on symbols, against its maximum and against 0; fdmath's pair and triple of a tile, bit for bit."""
    inside = []
    for ranks in RANKS:
        scores, v, tiles = symbolic_tiles(ranks)
        for (start, stop), (_, _, o) in zip(((0, 2), (2, 4), (4, 5)), tiles, strict=True):
            inside.append(o[0, 0] == exact.definition(scores[start:stop], v[start:stop])[1])
    for rng, rows, keys, _ in cases.shapes(27, 30):
        tile = cases.draw(rng, rows, keys, dtype="float32")
        inside.append(np.array_equal(partial_state(*tile, LSEState).o, partial_state(*tile, MLOState).o))
    return Observed(inside=inside, figure=f"{len(inside) - 30} identities; 30 random tiles bit for bit")


@check("A28")
def lse_of_lses():
    """S of all keys on symbols, from the S of three tiles; random tiles of fdmath, lse within its bound."""
    symbolic, drawn = exact_pairs()[::3], cases.is_attention(LSEState, 28, 30)
    return Observed(inside=[*symbolic, *drawn], figure=f"{len(symbolic)} identities; {len(drawn)} random shapes")


@check("A29")
def output_from_lses():
    """o by 2.3.4 on symbols; in float32 the sum of the weights, which is o for v = 1, printed and divided."""
    symbolic, drawn = exact_pairs()[::3], cases.is_attention(LSEState, 29, 30)
    u, sums = unit_roundoff("float32"), {}
    for level in (0, 1000):
        scores, _ = cases.draw(np.random.default_rng(29), 64, 256, level=level, dtype="float32")
        states, _ = cases.parts(scores, np.ones((256, 1), np.float32), 4)
        printed, _ = flat_as_printed_A_2_3_4(*map(np.stack, zip(*states, strict=True)))
        sums[level] = [np.max(np.abs(o.astype(np.float64) - 1)) / u for o in (printed, flat(merge, states).o)]
    return Observed(
        inside=[*symbolic, *drawn],
        figure=f"exact; v = 1 in float32, 64 tiles: off by {sums[0][0]:.0f} u at level 0 and {sums[1000][0]:.0f} u "
               f"at level 1000 as printed, by {sums[0][1]:.0f} u and {sums[1000][1]:.0f} u if divided by its weights")


@check("A30")
def union_is_merge():
    """⊕ of disjoint sets on symbols and of random ones within its bound; a set merged with itself."""
    inside = exact_pairs()
    for rng, rows, keys, _ in cases.shapes(30, 30):
        scores, v = cases.draw(rng, rows, keys + 1)
        cut = int(rng.integers(1, keys + 1))
        both = merge(partial_state(scores[:, :cut], v[:cut]), partial_state(scores[:, cut:], v[cut:]))
        inside.append(cases.right(both, scores, v, halves_bound(scores, v, cut)))
    total, o, (a, *_) = symbolic_pairs(RANKS[0])
    twice = PRINTED[0](*a, *a)
    state = partial_state(np.zeros((1, 2)), np.ones((2, 1)))
    once, more = state.lse.item(), merge(state, state).lse.item()
    return Observed(
        inside=inside, outside=[is_state(twice, a[1][0].exp(), a[0][0, 0])],
        figure=f"{len(inside)} disjoint unions; a set of two keys of score 0 merged with itself: S from {once:.4f} to "
               f"{more:.4f}",
        counterexample=f"I = J = two keys of score 0: S = {more:.4f}, right {once:.4f}")


def halves_bound(scores, v, cut):
    """The Budget of ⊕ of the first `cut` keys and the others."""
    fmt = format_of(scores)
    halves = [(scores[:, :cut], v[:cut]), (scores[:, cut:], v[cut:])]
    return merge_budget(*(partial_state(*half) for half in halves), fmt,
                        *(cases.block_budget(*half, fmt) for half in halves))


@check("A31")
def bare_exponentials():
    """⊕ by its definition on symbols; the scores from which it overflows as code."""
    inside = exact_pairs()[1::3]
    highest = {name: np.log(np.finfo(name).max, dtype="float64") for name in ("float16", "float32")}
    s = np.float32([89])
    o, lse = merge_as_printed_A_2_3_5(np.ones((1, 1), np.float32), s, np.ones((1, 1), np.float32), s)
    return Observed(
        inside=inside,
        figure=f"exact; e^S overflows above {highest['float32']:.2f} in float32, {highest['float16']:.2f} in float16: "
               f"two tiles of S = 89, v = 1 in float32 give ({o.item()}, {lse.item()})")


@check("A32")
def merge_is_associative():
    """Both bracketings on symbols, of pairs and triples; of random states in float32, within the proven bounds."""
    inside = []
    for ranks in RANKS:
        total, o, (a, b, c) = symbolic_pairs(ranks)
        inside += [is_state(bracketed, total, o) for plus in PRINTED
                   for bracketed in (plus(*plus(*a, *b), *c), plus(*a, *plus(*b, *c)))]
        inside += [triple_is(combine, payload, symbolic_tiles(ranks)[2], total, o, right)
                   for combine, payload in ((combine_mlo, "o"), (combine_acc, "acc")) for right in (False, True)]
    found = {(form, level): apart(level, form) for form in ("pair, as printed", "pair, convex", "m/l/o")
             for level in LEVELS if level != 10}
    inside += [one.ratio <= 1 for one in found.values()]
    told = [f"{form}: {', '.join(percent(one.bitwise, 0) for (f, _), one in found.items() if f == form)} agree bit for "
            f"bit, gaps up to {', '.join(f'{one.gap:.0f}' for (f, _), one in found.items() if f == form)} u"
            for form in ("pair, as printed", "m/l/o")]
    return Observed(inside=inside, figure="exact; float32 at levels 0, 100, 1000: " + "; ".join(told))


def triple_is(combine, payload, tiles, total, o, right):
    """Whether fdmath's own ⊕ of three triples on symbols is the state of all keys, bracketed to the left or right."""
    a, b, c = (SimpleNamespace(m=m, l=as_numbers(l), o=x, acc=as_numbers(l)[..., None] * x) for m, l, x in tiles)

    def plus(x, y):
        return SimpleNamespace(**dict(zip(("m", "l", payload), combine(np, x, y), strict=True)))

    both = plus(a, plus(b, c)) if right else plus(plus(a, b), c)
    mean = both.o[0, 0] if payload == "o" else both.acc[0, 0] / both.l[0]
    return bool(both.m[0].exp() * both.l[0] == total and mean == o)


@check("A33")
def merge_commutes_with_identity():
    """Sides exchanged on symbols; fdmath's ⊕ bit for bit, and with the identity; the printed one, fused and empty."""
    inside = []
    for ranks in RANKS:
        _, _, (a, b, _) = symbolic_pairs(ranks)
        both = [(plus(*a, *b), plus(*b, *a)) for plus in PRINTED]
        inside += [x[0][0, 0] == y[0][0, 0] and x[1][0] == y[1][0] for x, y in both]
    a, b, _ = three_states(0, LSEState, "float32", 4096, seed=33)
    nothing = identity(a.lse.shape, 1, like=a.o)
    inside += [same_bits(merge(a, b), merge(b, a)), same_bits(merge(a, nothing), a), same_bits(merge(nothing, a), a)]
    empty = merge_as_printed_A_3_2_1(*nothing, *nothing)
    fused = [fused_output(x, y) for x, y in ((a, b), (b, a))]
    return Observed(
        inside=inside,
        figure=f"exact; fdmath's ⊕ of {len(a.lse)} float32 states commutes bit for bit, the identity changes no bit; "
               f"as printed, ⊕ of two empty states is ({empty[0][0, 0]}, {empty[1][0]}), and with a fused multiply-add "
               f"{percent(np.mean(fused[0] != fused[1]), 0)} of o change with the order")


def same_bits(a, b):
    """Whether two states are equal in every number."""
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def fused_output(a, b):
    """o of the printed ⊕ with its second product and the sum rounded as one: float64 holds a float32 product."""
    _, lse = merge_as_printed_A_3_2_1(*a, *b)
    weight_a, weight_b = (np.exp(s.lse - lse)[..., None] for s in (a, b))
    return (a.o * weight_a + b.o.astype(np.float64) * weight_b).astype(np.float32)


@check("A34")
def theorem_2_3_6():
    """The pairs on symbols; 60 random shapes in float64; the document's program beside fdmath on the same keys."""
    symbolic, drawn = exact_pairs(), cases.is_attention(LSEState, 34, 60)
    scores, v = cases.draw(np.random.default_rng(34), 1, 512, dv=1)
    right = reference.block(scores, v).enclosure
    ours = float(right.errors(cases.split(scores, v, 64))[0].max())
    printed = number(pairs(*call(scores[0], v[:, 0], "float64"), tile=64))
    off = abs(printed - float(right.o_mid.item()))
    return Observed(
        inside=[*symbolic, *drawn],
        figure=f"{len(symbolic)} identities; {len(drawn)} random shapes within their bound; 512 keys in tiles of 64, "
               f"float64: off by {ours:.1e}, the document's program with its 1e-12 by {off:.1e}")


@check("A35")
def merges_without_a_reference():
    """The maxima that the stable ⊕ of pairs takes, and what the one without a maximum gives at level 1000."""
    a, b, _ = three_states(1000, LSEState, "float32", 1, seed=35)
    stable, bare = (operations(plus, *a, *b) for plus in PRINTED[::-1])
    bare_is_finite = np.isfinite(PRINTED[0](*a, *b)[1]).all()
    return Observed(
        inside=[stable["maximum"] == 0, bare_is_finite],
        figure=f"⊕ of pairs in the stable form takes {stable['maximum']} maximum a row; the form without "
               f"({bare['maximum']}) gives {PRINTED[0](*a, *b)[1].item()} at level 1000",
        counterexample=f"two tiles of level 1000 in float32, no reference: S = {PRINTED[0](*a, *b)[1].item()}")


@check("A36")
def only_coordinates_differ():
    """The largest relative error of the weights from a stored S, beside that from a stored m and ℓ and its bound."""
    found = {(level, kind): measure(scores_at(level), kind, "float32")
             for level in (0, 1000) for kind in ("lse", "m and l")}
    q, k, v = call([256, 256], [1, 1], "bfloat16")
    half = number(pairs(q, k, v, tile=1))
    return Observed(
        inside=[found[level, "lse"].error <= found[level, "m and l"].bound for level in (0, 1000)],
        figure="weights in float32, in u: " + "; ".join(
            f"level {level}: {found[level, 'lse'].error:.0f} from S, {found[level, 'm and l'].error:.1f} from (m, l)"
            for level in (0, 1000)),
        counterexample=f"bfloat16, two keys of score 256, v = 1, tiles of one key: pairs give {half:g}, right 1")


__all__ = ["exact_pairs", "symbolic_pairs"]
