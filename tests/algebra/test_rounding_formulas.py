"""Each bound is its theorem's formula: evaluated a second time, number by number, in 50 digits.

That a bound is never broken is shown elsewhere; that it is no looser than its theorem is shown here. The formats are so
coarse that every term of a formula is a visible part of its value.
"""

import mpmath
import numpy as np
import pytest
from mpmath import mpf

from fdmath import AccState, LSEState, MLOState, flat, identity
from fdmath.algebra import rounding
from fdmath.algebra.rounding import (
    KAPPA,
    Budget,
    Format,
    _Carried,
    _Fold,
    block_budget,
    chain_budget,
    finish_budget,
    flat_budget,
    fold_budget,
    format_of,
    merge_budget,
    no_error,
    score_error,
    unit_roundoff,
)
from tests.algebra.states import KINDS

# A bound is a sum of terms ≥ 0 of at most 100 operations each, on exponents of at most 64; where a logarithm is taken
# it is of 1 + x with x above 2⁻¹². Its relative rounding in float64 is below 8192 units of 2⁻⁵³.
FLOAT64 = mpf(2) ** -40
COARSE = (Format(2.0**-5, 2.0**-9, 3.0), Format(2.0**-8, 2.0**-20, 4.0))


@pytest.fixture(autouse=True)
def fifty_digits():
    with mpmath.workdps(50):
        yield


def is_(value, formula):
    """Whether a float is the formula's value but for its own rounding in float64."""
    value = mpf(float(value))
    return value == formula or abs(value - formula) <= FLOAT64 * formula


def is_budget(bound, formula):
    """Whether every element of a Budget is formula(row, column) = (ε, η)."""
    wanted = [(i, c, *formula(i, c)) for i, c in np.ndindex(bound.o.shape)]
    return bool(wanted) and all(is_(bound.o[i, c], eps) and is_(bound.lse[i], eta) for i, c, eps, eta in wanted)


def sizes(fmt):
    """u, u′ = −log(1 − u), u/(1 − 5u), the loss by underflow and κ of a format."""
    u = mpf(fmt.u)
    return u, -mpmath.log(1 - u), u / (1 - 5 * u), mpf(fmt.tiny), mpf(fmt.kappa)


def parts_of(kind, count, seed, rows=4):
    """Random states in float64 and the errors that they carry; rows of ties, of equal o, and of each side far below."""
    rng = np.random.default_rng(seed)
    states, errors = [], []
    for number in range(count):
        o = rng.standard_normal((rows, 2))
        o[1] = 0.5
        level = 3 * rng.standard_normal(rows) + [0, 0, 0, 8 * (-1) ** number]
        level[2] = 1.25
        mass = np.ones(rows) if kind is LSEState else 4.0 ** rng.uniform(-1, 1, rows)
        mass[0] /= 64 if kind is not LSEState else 1  # the sum of both stays below 1
        payload = o * mass[:, None] if kind is AccState else o
        states.append(LSEState(o, level) if kind is LSEState else kind(level, mass, payload))
        errors.append(Budget(rng.random((rows, 2)) / 8, rng.random(rows) / 8))
    return states, errors


class Row:
    """One row and column of a state and its Budget, as numbers of 50 digits: o, ε, η and S, and m and l of triples."""

    def __init__(self, state, budget, i, c):
        self.eps, self.eta = mpf(float(budget.o[i, c])), mpf(float(budget.lse[i]))
        payload = mpf(float(state.payload[i, c]))
        if isinstance(state, LSEState):
            self.o, self.S, self.m, self.l = payload, mpf(float(state.lse[i])), mpf(float(state.lse[i])), mpf(1)
        else:
            self.m, self.l = mpf(float(state.m[i])), mpf(float(state.l[i]))
            self.o = payload / self.l if isinstance(state, AccState) else payload
            self.S = self.m + mpmath.log(self.l)


def rows_of(states, errors, i, c):
    """The Row of each state at row i and column c."""
    return [Row(s, e, i, c) for s, e in zip(states, errors, strict=True)]


def together(rows):
    """(S, shares, o) of rows merged, without an error."""
    whole = mpmath.log(mpmath.fsum(mpmath.exp(r.S) for r in rows))
    shares = [mpmath.exp(r.S - whole) for r in rows]
    return whole, shares, mpmath.fsum(w * r.o for w, r in zip(shares, rows, strict=True))


def pair_formula(a, b, fmt):
    """(ε, η) of T5 with the errors carried."""
    u, _, few, tiny, kappa = sizes(fmt)
    whole, (wa, wb), o = together([a, b])
    w, gap, eta = min(wa, wb), abs(a.S - b.S) + a.eta + b.eta, a.eta + b.eta
    extra = w * (1 - w) * mpmath.expm1(eta + u * (gap + kappa))
    spread = abs(a.o - b.o) + a.eps + b.eps
    before = wa * a.eps + wb * b.eps + extra * spread
    weight = min(w + extra, mpf(1) / 2)
    eps = before + few * (4 * weight * spread + abs(o) + before) + 4 * tiny + 2 * kappa * tiny * spread
    carried = mpmath.log(wa * mpmath.exp(a.eta) + wb * mpmath.exp(b.eta))
    logs = u * (weight * (gap + kappa) + kappa * -mpmath.log(1 - weight))
    return eps, carried + (1 + u) * logs + u * (abs(whole) + carried) + 4 * tiny


def triple_formula(a, b, fmt):
    """(ε, η) of T6 for triples."""
    u, step, few, tiny, kappa = sizes(fmt)
    whole, (wa, wb), o = together([a, b])
    rescale = u * (abs(a.m - b.m) + kappa) + step
    spread = abs(a.o - b.o) + a.eps + b.eps
    before = wa * a.eps + wb * b.eps + wa * wb * mpmath.expm1(a.eta + b.eta + rescale) * spread
    mass = mpmath.exp(whole - max(a.m, b.m))
    floor, lost = 4 * tiny / min(1, mass), 2 * kappa * tiny * (1 + max(a.l, b.l)) / mass
    eps = before + few * (wa * abs(a.o) + wb * abs(b.o) + 3 * abs(o) + 4 * before) + floor + lost * spread
    eta_a, eta_b = (a.eta + rescale, b.eta) if a.m < b.m else (a.eta, b.eta + rescale)
    carried = mpmath.log(wa * mpmath.exp(eta_a) + wb * mpmath.exp(eta_b))
    return eps, carried + step + floor + lost


@pytest.mark.parametrize("fmt", COARSE)
@pytest.mark.parametrize("kind", KINDS)
def test_one_merge(kind, fmt):
    formula = pair_formula if kind is LSEState else triple_formula
    (a, b), (of_a, of_b) = parts_of(kind, 2, 1)
    bound = merge_budget(a, b, fmt, of_a, of_b)
    assert is_budget(bound, lambda i, c: formula(Row(a, of_a, i, c), Row(b, of_b, i, c), fmt))


def flat_formula(rows, fmt, pair):
    """(ε, η) of `flat`: T3 of pairs, T1 of triples."""
    u, step, _, tiny, kappa = sizes(fmt)
    whole, shares, o = together(rows)
    top, most, count = max(r.m for r in rows), max(r.eta for r in rows), len(rows)
    drifts = [u * (top - r.m + (r.eta + most if pair else 0) + kappa) + step + r.eta for r in rows]
    every = list(zip(shares, drifts, rows, strict=True))
    least = mpmath.fsum(p * mpmath.exp(-x) for p, x, _ in every)
    before = mpmath.fsum(p * (mpmath.exp(x) * r.eps + mpmath.expm1(x) * abs(r.o - o)) for p, x, r in every) / least
    size = mpmath.fsum(p * mpmath.exp(x) * (abs(r.o) + r.eps) for p, x, r in every) / least
    sums = mpmath.exp(whole - top)
    floor = (count + 3) * tiny / min(1, sums)
    lost = 2 * kappa * floor * mpmath.fsum(abs(r.o) for r in rows)
    more = mpmath.expm1(count * step)
    eps = before + more * ((1 + more) * size + abs(o) + before) + floor + lost
    eta = mpmath.log(mpmath.fsum(p * mpmath.exp(x) for p, x, _ in every)) + count * step + floor
    if pair:
        logarithm = u * kappa * (abs(mpmath.log(sums)) + eta + most)
        eta = eta + (1 + u) * logarithm + u * (abs(whole) + eta)
    return eps, eta


@pytest.mark.parametrize("fmt", COARSE)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("count", [1, 3])
def test_many_at_once(kind, fmt, count):
    states, errors = parts_of(kind, count, 2)
    bound = flat_budget(states, fmt, errors)
    assert is_budget(bound, lambda i, c: flat_formula(rows_of(states, errors, i, c), fmt, kind is LSEState))
    folded = fold_budget(states, flat, fmt, errors)
    assert all(np.array_equal(x, y) for x, y in zip(folded, bound, strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_fold_without_errors_carries_none(kind):
    states, _ = parts_of(kind, 2, 3)
    free = [Budget(np.zeros((4, 2)), np.zeros(4))] * 2
    for order in (flat, lambda plus, parts: plus(*parts)):
        lone, told = (fold_budget(states, order, COARSE[0], errors) for errors in (None, free))
        assert all(np.array_equal(x, y) for x, y in zip(lone, told, strict=True))


def products_formula(count, level, fmt):
    """(η, f) of a chain with no product of roundings dropped."""
    u, step, _, _, kappa = sizes(fmt)
    one = u * (level + mpf(1.2) * kappa + 1) / (1 - count * u) if count * u < 1 else mpmath.inf
    grown = 1 + (count - 1) * one / (1 - one) if one < 1 else mpmath.inf
    rest = u * mpmath.log(count) + (count - 1) * (kappa * u + 2 * step)
    return (count - 1) * one if count > 1 else mpf(0), mpmath.expm1(mpmath.log(min(count, grown)) + rest)


@pytest.mark.parametrize("fmt", [*COARSE, Format(2.0**-12, 2.0**-30)])
@pytest.mark.parametrize("count", [1, 2, 3, 32, 40])
def test_the_products_of_roundings_of_a_chain(count, fmt):
    levels = np.array([0.0, 3.0, 40.0])
    slips, factors = rounding._chain_products(count, levels, fmt)
    for slip, factor, level in zip(slips, factors, levels, strict=True):
        wanted = products_formula(count, mpf(level), fmt)
        assert is_(slip, wanted[0]) and is_(factor, wanted[1])


def test_a_rounding_of_just_1_leaves_the_number_of_parts():
    # λ = u(Λ + 1)/(1 − Bu) = ⅛·6/(1 − ¼) is 1 exactly, and 1 − λ is never divided by.
    fmt = Format(0.125, 2.0**-20, 0.0)
    _, got = rounding._chain_products(2, np.full(1, 5.0), fmt)
    assert is_(got[0], products_formula(2, mpf(5), fmt)[1])


def chain_formula(rows, fmt):
    """(ε, η) of T4, the exact forms where they are larger."""
    u, _, _, tiny, kappa = sizes(fmt)
    count, size = len(rows), max(abs(r.o) for r in rows)
    level = max(abs(r.S) for r in rows) + mpmath.log(count)
    slip, factor = products_formula(count, level, fmt)
    eps, eta = max(r.eps for r in rows), max(r.eta for r in rows)
    o = max(count * u * (3 * level + 3 * kappa + 6), factor) * size + count * 8 * tiny * (1 + size)
    lse = max(count * u * (level + 2 * kappa + 2), slip)
    return o + eps + 2 * mpmath.expm1(eta) * size, lse + 4 * count * tiny + eta


@pytest.mark.parametrize("count, fmt, level", [
    (1, COARSE[0], 0.0), (2, COARSE[1], 3.0), (3, COARSE[0], 0.0), (3, COARSE[1], 40.0), (31, COARSE[0], 0.0),
    (32, COARSE[0], 0.0), (3, Format(2.0**-24, 2.0**-150, 4.0), 1.0), (20, Format(2.0**-8, 2.0**-20, 4.0), 200.0),
])  # fmt: skip
def test_any_chain_of_printed_merges(count, fmt, level):
    states, errors = parts_of(LSEState, count, 4)
    states = [LSEState(s.o, s.lse - level) for s in states]
    bound = chain_budget(states, fmt, errors)
    assert is_budget(bound, lambda i, c: chain_formula(rows_of(states, errors, i, c), fmt))


def test_an_empty_part_of_a_chain_counts_as_a_part_of_level_and_size_0():
    one, nothing, zero = (
        LSEState(np.full((1, 1), o), np.full(1, lse)) for o, lse in ((2.0, 0.25), (np.nan, -np.inf), (0.0, 0.0))
    )
    for others in ([], [one]):
        beside = [chain_budget([*others, other], COARSE[0]) for other in (nothing, zero)]
        assert all(np.array_equal(x, y) for x, y in zip(*beside, strict=True))


@pytest.mark.parametrize("fmt", COARSE)
@pytest.mark.parametrize("scale", [0.25, -3.0])
def test_scores(fmt, scale):
    rng = np.random.default_rng(5)
    q, k = rng.standard_normal((2, 3)), rng.uniform(-1, 1, (4, 3))
    u, _, _, tiny, _ = sizes(fmt)
    ops = 5  # d + 2

    gamma = ops * u / (1 - ops * u)
    [bound] = score_error(q[None], k[None], scale, fmt)
    for i, j in np.ndindex(2, 4):
        terms = mpmath.fsum(abs(mpf(a) * mpf(b)) for a, b in zip(q[i].tolist(), k[j].tolist(), strict=True))
        under = ops * tiny * (1 + mpf(np.abs(k).max()) + abs(mpf(scale))) + 2 * tiny * terms
        assert is_(bound[i, j], gamma * abs(mpf(scale)) * terms + under)


def block_formula(scores, errors, v, fmt, pair, rounded):
    """(ε, η) of one row of `partial_state`: lists of scores, of their errors and of values."""
    u, _, _, tiny, kappa = sizes(fmt)
    top, keys = max(scores), len(scores)
    mass = mpmath.fsum(mpmath.exp(s - top) for s in scores)
    shares = [mpmath.exp(s - top) / mass for s in scores]
    drifts = [e + u * (top - s + kappa) if p > 0 else mpf(0) for s, e, p in zip(scores, errors, shares, strict=True)]
    every = list(zip(shares, drifts, v, strict=True))
    o = mpmath.fsum(p * y for p, _, y in every)
    least = mpmath.fsum(p * mpmath.exp(-x) for p, x, _ in every)
    moved = mpmath.fsum(p * mpmath.expm1(x) * abs(y - o) for p, x, y in every) / least
    floor = (keys + 2) * tiny * (1 + 2 * kappa * max(abs(y) for y in v))
    size = mpmath.fsum(p * abs(y) for p, _, y in every)
    eps = moved + (keys * u + 2 * rounded) * size + (keys + 1) * u * abs(o) + floor
    eta = mpmath.fsum(p * mpmath.expm1(x) for p, x, _ in every) + keys * u + 2 * rounded
    eta = eta + (keys + 2) * tiny * 2 * kappa
    return eps, eta + (u * (kappa * mpmath.log(mass) + abs(top + mpmath.log(mass))) if pair else 0)


@pytest.mark.parametrize("fmt", COARSE)
@pytest.mark.parametrize("pair", [True, False])
@pytest.mark.parametrize("p_dtype", [None, "bfloat16"])
def test_a_block(fmt, pair, p_dtype):
    rng = np.random.default_rng(6)
    scores, v, errors = 2 * rng.standard_normal((3, 5)) - 2, rng.uniform(-1, 1, (5, 2)), rng.random((3, 5)) / 16
    scores[1, 2] = -np.inf  # a key that one row does not see
    batches = [np.stack([np.zeros(x.shape), x]) for x in (scores, v, errors)]
    batch = block_budget(*batches[:2], fmt, batches[2], pair, p_dtype)
    bound = Budget(batch.o[1], batch.lse[1])
    rounded = mpf(unit_roundoff(p_dtype)) if p_dtype else mpf(0)

    def formula(i, c):
        numbers = ([mpf(x) for x in xs.tolist()] for xs in (scores[i], errors[i], v[:, c]))
        return block_formula(*numbers, fmt, pair, rounded)

    assert is_budget(bound, formula)


def test_no_error_of_a_weight_moves_the_mean_of_equal_values():
    # However far an exponent may be off: infinite times 0 is 0 here.
    fmt = COARSE[0]
    u, _, few, tiny, kappa = sizes(fmt)
    parts, errors = (
        [LSEState(np.full((1, 1), 2.0), np.zeros(1))] * 2,
        [Budget(np.zeros((1, 1)), np.full(1, 1000.0))] * 2,
    )
    assert is_(merge_budget(*parts, fmt, *errors).o[0, 0], few * 2 + 4 * tiny)
    triples = [s.to(MLOState) for s in parts]
    assert is_(merge_budget(*triples, fmt, *errors).o[0, 0], few * (2 + 3 * 2) + 4 * tiny)
    block = block_budget(np.zeros((1, 3)), np.full((3, 1), 2.0), fmt, 4096.0)
    assert is_(block.o[0, 0], (3 * u) * 2 + 4 * u * 2 + 5 * tiny * (1 + 2 * kappa * 2))


def test_a_block_without_a_seen_key_has_no_budget_and_hidden_values_cost_nothing():
    scores, v = np.array([[-1.5, -np.inf], [-np.inf, -np.inf]]), np.array([[0.125], [1e9]])
    bound, lone = block_budget(scores, v, COARSE[0]), block_budget(scores[:1, :1], v[:1], COARSE[0])
    assert bound.o[1] == 0 and bound.lse[1] == 0
    assert 0 < bound.o[0] <= 2 * lone.o[0]  # one key more in the sums, whatever it holds
    formula = block_formula([mpf(-1.5), -mpmath.inf], [mpf(0)] * 2, [mpf(0.125), mpf(0)], COARSE[0], True, 0)
    assert is_(bound.o[0, 0], formula[0]) and is_(bound.lse[0], formula[1])
    nothing = block_budget(np.zeros((4, 2, 0)), np.zeros((4, 0, 3)), COARSE[0])
    assert nothing.o.shape == (4, 2, 3) and not nothing.o.any()
    assert nothing.lse.shape == (4, 2) and not nothing.lse.any()
    told = block_budget(scores, v, COARSE[0], 0.0, True, None)
    assert all(np.array_equal(x, y) for x, y in zip(bound, told, strict=True))
    assert block_budget(scores[:1], np.zeros((2, 0)), COARSE[0]).o.shape == (1, 0)


@pytest.mark.parametrize("kind, pair", [(LSEState, True), (MLOState, False), (AccState, False), (AccState, True)])
@pytest.mark.parametrize("out", COARSE)
def test_a_finished_call(kind, pair, out):
    fmt = COARSE[0]
    u, _, _, _, kappa = sizes(fmt)
    (state, _), (budget, _) = parts_of(kind, 2, 7)

    def formula(i, c):
        row = Row(state, budget, i, c)
        eps = row.eps + (0 if pair else u * abs(row.o))
        eta = row.eta + (0 if pair else u * (kappa * abs(row.S - row.m) + abs(row.S)))
        return eps + (mpf(out.u) * (abs(row.o) + eps) + mpf(out.tiny) if out != fmt else 0), eta

    bound = finish_budget(state, budget, fmt, out, pair=pair)
    assert is_budget(bound, formula)
    untold = finish_budget(state, budget, fmt, out)
    assert all(np.array_equal(x, y) for x, y in zip(bound, untold, strict=True)) is pair


def test_an_empty_row_of_a_finished_call_has_no_budget():
    nothing = MLOState(np.full(1, -np.inf), np.zeros(1), np.zeros((1, 2)))
    for pair in (True, False):
        bound = finish_budget(nothing, Budget(np.ones((1, 2)), np.ones(1)), *COARSE, pair=pair)
        assert not bound.o.any() and not bound.lse.any()


def test_no_error_has_the_shapes_of_its_state():
    free = no_error(identity((2, 3), 4))
    assert free.o.shape == (2, 3, 4) and free.lse.shape == (2, 3) and not free.o.any() and not free.lse.any()


@pytest.mark.parametrize("record, equal", [(Format, True), (Budget, False), (_Carried, False), (_Fold, True)])
def test_records_are_frozen_and_those_of_arrays_are_not_compared(record, equal):
    assert record.__dataclass_params__.frozen and record.__dataclass_params__.eq is equal


def test_a_format_has_its_roundings():
    fmt = format_of("bfloat16")
    assert fmt == Format(2.0**-8, 2.0**-134) and fmt.kappa == KAPPA == 4.0
    assert format_of("float64").tiny == 2.0**-1074 and format_of("float32", 2.0).kappa == 2.0
