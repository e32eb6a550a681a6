"""The error budgets T1 to T6: never broken by us, broken by the printed ⊕, and never empty promises."""

import math
from unittest.mock import patch

import numpy as np
import pytest

from fdmath import AccState, LSEState, MLOState, flat, merge, merge_all, ring, sequential, streams, tree
from fdmath.algebra import printed, rounding
from fdmath.algebra.printed import flat_as_printed_A_2_3_4, merge_as_printed_A_3_2_1
from fdmath.algebra.rounding import (
    Budget,
    Format,
    block_budget,
    chain_budget,
    fold_budget,
    format_of,
    in_float64,
    merge_budget,
    score_error,
    unit_roundoff,
)
from fdmath.bench.adversary import Adversary
from tests.algebra.judgement import certified, finished, judge
from tests.algebra.libraries import holds, values
from tests.algebra.states import KINDS, LEVELS, empty_states, random_state, state

WORK = ("float32", "float64")
ROWS = 60 * len(LEVELS)
SHOWN = 0.01  # a bound that no case here brings within a factor 100 would be an empty promise


def every_level():
    """A column of levels, each of LEVELS as often as the others, in turn."""
    return np.resize(LEVELS, ROWS)


def hard_pairs(lib, kind, rng, dtype):
    """Two states built to be hard: ties and near ties, gaps where e^−Δ is subnormal, cancelling and extreme o."""
    rows = np.arange(ROWS) // len(LEVELS)
    gap = np.choose(rows % 6, [0.0, 1e-6 * rng.random(ROWS), rng.random(ROWS), 10 * rng.random(ROWS),
                               rng.uniform(80, 110, ROWS), rng.uniform(700, 750, ROWS)])  # fmt: skip
    # A triple forms l·o, so its o may reach the format's maximum over 2l only; l is below 100 here.
    largest = np.finfo(dtype).max / (2 if kind is LSEState else 200)
    size = np.choose(rows // 6 % 5, [1.0, 1.0, 1e-30, largest, np.finfo(dtype).smallest_subnormal * 8])
    o = rng.standard_normal((2, ROWS, 3))
    o[1] = np.where(rng.random((ROWS, 3)) < 0.3, -o[0] * np.exp(np.minimum(gap, 60))[:, None], o[1])
    o = np.clip(o, -4, 4) / 4 * size[:, None]
    levels = every_level() + np.array([np.zeros(ROWS), -gap]) + rng.random(ROWS)
    masses = [1.0, 1.0] if kind is LSEState else 100.0 ** rng.random((2, ROWS))
    order = rng.permutation(2)
    return [state(lib, kind, levels[i], o[i], dtype, masses[i]) for i in order]


def random_pairs(lib, kind, rng, dtype):
    """Two random states."""
    return [random_state(lib, kind, rng, (ROWS, 3), every_level(), dtype=dtype) for _ in range(2)]


# T5: one ⊕


@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("build", [random_pairs, hard_pairs])
def test_one_merge_is_within_its_budget(lib, kind, dtype, build):
    a, b = build(lib, kind, np.random.default_rng(1), dtype)
    budget = merge_budget(in_float64(a), in_float64(b), format_of(dtype))
    worst = judge(certified([a, b]), *finished(merge(a, b), budget))
    assert SHOWN <= worst.o and SHOWN <= worst.lse


def test_the_printed_pair_breaks_the_budget_of_one_merge(lib):
    # claims:A56, A62: its weights need not sum to 1, by up to |S|u.
    ones = np.ones((ROWS, 1))
    levels = 1000.0 + np.random.default_rng(2).standard_normal((2, ROWS))
    a, b = (state(lib, LSEState, x, ones) for x in levels)
    budget = merge_budget(in_float64(a), in_float64(b), format_of("float32"))
    printed = LSEState(*merge_as_printed_A_3_2_1(*a, *b))
    assert certified([a, b]).verdict(printed, tuple(budget)) == "fail"
    assert judge(certified([a, b]), merge(a, b), budget).o < 1 < np.max(np.abs(values(printed.o) - 1) / budget.o)


# Small merges that went wrong somewhere (faults.md), as lists of (o, lse)

SMALL = {
    "A3 one against one": [(0.0, 0.0), (1.0, 0.0)],
    "A7 far below any stand-in for -inf": [(0.0, -1e4), (1.0, -2e4)],
    "B4 descending by 200": [(1.0, 3.0), (5.0, -197.0)],
    "B5 a rescale by log 2": [(1.0, 0.0), (4.0, math.log(2.0))],
    "D1 3072 keys and 64": [(0.0, math.log(3072.0)), (1.0, math.log(64.0))],
    "D2 Z = 2 and Z = 8": [(0.0, math.log(2.0)), (10.0, math.log(8.0))],
    "D13 statistics near 100": [(0.0, 99.8), (1.0, 100.2)],
    "E1 a gap of 90": [(1.0, 0.0), (2.0, 90.0)],
    "E2 two values that overflow alone": [(1.0, 710.0), (3.0, 711.0)],
    "E3 a gap of 18, beneath 1 + x": [(0.0, 0.0), (0.0, -18.0)],
    "E4 Z = e and e^2": [(0.0, 1.0), (1.0, 2.0)],
    "E6 three parts": [(1.0, 0.0), (2.0, 0.0), (3.0, 0.0)],
}
ORDERS = {
    "flat": flat,
    "sequential": sequential,
    "tree": tree,
    "streams(3)": streams(3),
    "streams(4, then=flat)": streams(4, then=flat),
    "streams(100)": streams(100),
    "ring(2)": ring(2),
}


@pytest.mark.parametrize("parts", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("order", [flat, sequential])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", WORK)
def test_small_merges_that_went_wrong_somewhere(lib, parts, order, kind, dtype):
    states = [state(lib, kind, [lse], [[o]], dtype) for o, lse in parts]
    for some in (states, states[::-1]):
        judge(certified(some), *finished(merge_all(some, order), fold_budget(some, order, format_of(dtype))))


# T1, T3 and T6: many ⊕


def random_parts(lib, kind, rng, count, dtype):
    """A list of random states, some rows of which are empty; every level of LEVELS."""
    rows = ROWS // 5
    parts = [random_state(lib, kind, rng, (rows, 2), np.resize(LEVELS, rows), dtype=dtype) for _ in range(count)]
    nothing = [values(x) for x in empty_states(lib, kind, rows, 2)[0]]
    for i, s in enumerate(parts):
        gone = rng.random(rows) < 0.1
        parts[i] = kind(*(lib.array(np.where(gone[:, None] if x is s.payload else gone, y, values(x)), dtype)
                          for x, y in zip(s, nothing, strict=True)))  # fmt: skip
    return parts


@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_fold_is_within_its_budget(lib, kind, order, dtype):
    rng, fmt = np.random.default_rng(3), format_of(dtype)
    for count in (2, 5, 33):
        parts = random_parts(lib, kind, rng, count, dtype)
        worst = judge(certified(parts), *finished(merge_all(parts, order), fold_budget(parts, order, fmt)))
        assert SHOWN <= worst.o and SHOWN <= worst.lse


def test_a_chain_whose_every_sum_is_a_tie_away_from_the_worst(lib):
    # Near 2²⁰ float32 has spacing ⅛ and an lse errs by up to 1/16 a merge: linear error bounds fall short here.
    steps = np.array([[0, 8, 3, 22, 0], [0, 8, 3, 6, 9], [0, 17, 2, 4, 6], [0, 8, 19, 14, 0]]) / 8
    grid = np.stack(np.meshgrid(0, range(24), range(24), 0, 0), axis=-1).reshape(-1, 5) / 8
    levels = 2.0**20 + np.concatenate([steps, grid]).T
    signs = np.where(np.arange(5) % 2, 1.0, -1.0)[:, None, None]
    parts = [state(lib, LSEState, x, np.broadcast_to(sign, (len(x), 1))) for x, sign in zip(levels, signs, strict=True)]
    for order in ORDERS.values():
        for count in (3, 4, 5):
            some = parts[:count]
            budget = fold_budget(some, order, format_of("float32"))
            worst = judge(certified(some), *finished(merge_all(some, order), budget))
            assert SHOWN <= worst.o and SHOWN <= worst.lse


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_the_errors_of_the_parts_are_carried(lib, kind, order):
    # The parts are known in float64 and stored in bfloat16: their errors are far above those of the fold.
    rng = np.random.default_rng(4)
    known = [random_state(lib, kind, rng, (80, 2), 1.0, dtype="float64") for _ in range(6)]
    exact_m = [s if kind is LSEState else kind(lib.array(values(s.m), "bfloat16"), s.l, s.payload) for s in known]
    known = [type(s)(*(lib.array(values(x), "float64") for x in s)) for s in exact_m]
    stored = [s.map(lambda x: lib.array(values(lib.array(values(x), "bfloat16")))) for s in known]
    errors = []
    for a, b in zip(known, stored, strict=True):
        statistic = np.abs(values(a.lse) - values(b.lse) if kind is LSEState else np.log(values(b.l) / values(a.l)))
        o, o_stored = (values(s.finalize().o) for s in (a, b))
        quotients = unit_roundoff("float64") * (np.abs(o) + np.abs(o_stored))  # where o is acc/l, in float64
        errors.append(Budget(np.abs(o - o_stored) + quotients, statistic))
    budget = fold_budget(stored, order, format_of("float32"), errors)
    worst = judge(certified(known), *finished(merge_all(stored, order), budget))
    assert SHOWN <= worst.o and SHOWN <= worst.lse
    without = fold_budget(stored, order, format_of("float32"))
    assert certified(known).verdict(*finished(merge_all(stored, order), without)) == "fail"


def test_the_printed_flat_formula_breaks_the_budget_of_flat(lib):
    # claims:A29: Σ e^(S_b − S) is 1 only up to |S|u; divided by the sum of the weights used, it is.
    ones = np.ones((ROWS, 1))
    parts = [state(lib, LSEState, 1000.0 + np.random.default_rng(i).standard_normal(ROWS), ones) for i in range(8)]
    budget = fold_budget(parts, flat, format_of("float32"))
    columns = (lib.array(np.stack([values(x) for x in column])) for column in zip(*parts, strict=True))
    printed = LSEState(*flat_as_printed_A_2_3_4(*columns))
    assert certified(parts).verdict(printed, tuple(budget)) == "fail"
    assert np.max(np.abs(values(printed.o) - 1) / budget.o) > 1 > judge(certified(parts), merge_all(parts), budget).o


# T4: a chain of the printed ⊕


@pytest.mark.parametrize("dtype", WORK)
@pytest.mark.parametrize("count", [2, 8, 64])
def test_the_printed_chain_is_within_its_wide_budget(lib, dtype, count):
    rng = np.random.default_rng(5)
    # Zero-mean values hide that the weights do not sum to 1; ones show it (claims, section 3, test design).
    ones = np.ones((ROWS // 4, 1))
    parts = [state(lib, LSEState, np.resize(LEVELS, ROWS // 4) + rng.standard_normal(ROWS // 4), ones, dtype)
             for _ in range(count)]  # fmt: skip

    def printed(a, b):
        return LSEState(*merge_as_printed_A_3_2_1(*a, *b))

    worst = judge(certified(parts), merge_all(parts, lambda _, states: sequential(printed, states)),
                  chain_budget(parts, format_of(dtype)))  # fmt: skip
    assert SHOWN <= worst.o and SHOWN <= worst.lse


@pytest.mark.parametrize("count", [1, 2, 64])
def test_the_wide_budget_knows_the_level_that_the_chain_itself_reaches(lib, count):
    # Each of B merges rounds an lse that may have grown to log B, although no part is above 0.
    fmt = format_of("float32")
    parts = [state(lib, LSEState, np.zeros(1), np.ones((1, 1)))] * count
    a_merge = chain_budget(parts, fmt).lse / (count * fmt.u) - (2 * fmt.kappa + 2)
    assert np.all(a_merge >= math.log(count) / 2)


def on_the_worst_machine(bits, count, level, rows=1000):
    """The largest error over T4, of o and of lse, of printed chains on a machine that errs by all that it may."""
    fmt, rng = Format(2.0**-bits, 2.0**-200), np.random.default_rng(7)
    machine = Adversary(fmt, rng)
    parts = [LSEState(np.ones((rows, 1)), level + rng.standard_normal(rows)) for _ in range(count)]
    o, lse = (machine.number(x) for x in parts[0])
    with patch.object(printed.backends, "array_namespace", lambda **arrays: machine):
        for part in parts[1:]:
            o, lse = merge_as_printed_A_3_2_1(o, lse, *map(machine.number, part))
    right, budget = flat(None, parts), chain_budget(parts, fmt)
    return [np.max(np.abs(np.asarray(x) - y) / b) for x, y, b in zip((o, lse), right, budget, strict=True)]


@pytest.mark.parametrize("count", [2, 8, 32])
@pytest.mark.parametrize(("bits", "level"), [(8, 0), (8, 30), (12, 100), (24, 1000)])
def test_the_printed_chain_on_the_worst_machine_is_within_its_wide_budget(bits, level, count):
    assert all(SHOWN <= worst <= 1 for worst in on_the_worst_machine(bits, count, level))


def test_products_of_roundings_count_where_there_are_many_coarse_ones(monkeypatch):
    o, _ = on_the_worst_machine(4, 16, 10)
    assert o <= 1
    monkeypatch.setattr(rounding, "_chain_products", lambda count, level, fmt: (0.0, 0.0 * level))
    o, _ = on_the_worst_machine(4, 16, 10)
    assert not o <= 1


def test_however_coarse_the_statistics_no_more_than_the_number_of_parts_is_lost():
    # 64 keys of a level at which bfloat16 forgets log 2: S never grows, every weight is 1, and o is 64 instead of 1.
    fmt, part = format_of("bfloat16"), LSEState(np.ones((1, 1)), np.full(1, 256.0))
    _, factor = rounding._chain_products(64, part.lse, fmt)
    assert 63 <= factor < math.inf


# Empty rows cost nothing


@pytest.mark.parametrize("kind", KINDS)
def test_a_row_without_keys_has_no_budget(lib, kind):
    for nothing in empty_states(lib, kind, 2, 3):
        for budget in (
            merge_budget(in_float64(nothing), in_float64(nothing), format_of("float32")),
            fold_budget([nothing] * 3, flat, format_of("float32")),
            fold_budget([nothing] * 3, tree, format_of("float32")),
        ):
            assert holds(budget.o, np.zeros((2, 3))) and holds(budget.lse, np.zeros(2))


@pytest.mark.parametrize("kind", KINDS)
def test_a_part_without_keys_leaves_the_bound_of_the_others_finite(lib, kind):
    full = random_state(lib, kind, np.random.default_rng(8), (2, 3))
    for nothing in empty_states(lib, kind, 2, 3):
        budget = fold_budget([full, nothing, full], flat, format_of("float32"))
        assert np.all(np.isfinite(budget.o)) and np.all(np.isfinite(budget.lse))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_side_passes_the_budget_of_the_other_on(lib, kind):
    full = in_float64(random_state(lib, kind, np.random.default_rng(6), (2, 3)))
    carried = Budget(np.full((2, 3), 0.25), np.full(2, 0.5))
    for written in empty_states(lib, kind, 2, 3):
        nothing, free = in_float64(written), Budget(np.zeros((2, 3)), np.zeros(2))
        for arguments in ((full, nothing, carried, free), (nothing, full, free, carried)):
            a, b, of_a, of_b = arguments
            budget = merge_budget(a, b, format_of("float32"), of_a, of_b)
            assert holds(budget.o, carried.o) and holds(budget.lse, carried.lse)


def test_a_weight_far_below_u_keeps_the_error_of_its_exponent():
    """1 − w rounds to 1 there, and w(1 − w) must not round to 0 with it (found by "association orders")."""
    near, far = (in_float64(LSEState(np.array([[o]]), np.array([lse]))) for o, lse in ((0.0, 0.0), (1.0, -90.0)))
    fmt = format_of("float64")
    assert merge_budget(near, far, fmt).o.item() >= fmt.u * 90 * np.exp(-90)


def test_a_score_that_may_be_off_by_thousands_still_has_a_budget():
    """With one value only, no error of a weight moves o, however large it is (found by "shift" in bfloat16)."""
    bound = block_budget(np.zeros((1, 2)), np.ones((2, 1)), format_of("float32"), 4096.0)
    assert not np.any(np.isnan(bound.o))
    assert np.all(np.isfinite(bound.o))


def test_a_flat_bound_whose_carried_errors_overflow_is_infinite_and_never_nan():
    parts = [LSEState(np.zeros((1, 1)), np.zeros(1)) for _ in range(2)]
    budget = fold_budget(parts, flat, format_of("float32"), [Budget(np.zeros((1, 1)), np.full(1, 1000.0))] * 2)
    assert all(np.all(x == np.inf) for x in budget)


@pytest.mark.parametrize("dtype, gap, size", [("float32", -97.06, 1e30), ("float64", -749.2, 1e300)])
@pytest.mark.parametrize("l", [1.0, 1e-1, 1e-3, 1e-6])
@pytest.mark.parametrize("kind", [MLOState, AccState])
def test_a_weight_that_underflows_beside_a_small_l_is_counted(kind, l, dtype, gap, size):
    # The level is free, so l may be below 1; its product with a small weight then rounds below the normal numbers.
    a, b = (MLOState(np.full(1, m, dtype), np.full(1, l, dtype), np.full((1, 1), o, dtype)).to(kind)
            for m, o in ((0, 0), (gap, size)))
    exact, budget = merge(in_float64(a), in_float64(b)), merge_budget(in_float64(a), in_float64(b), format_of(dtype))
    assert np.all(np.abs(merge(a, b).to(MLOState).o - exact.to(MLOState).o) <= budget.o)


def test_a_scale_that_is_subnormal_is_counted():
    for scale, q, k in ((2e-45, 1e38, 1e7), (1e-40, 1e20, 1e20)):
        q, k = np.float32([[q]]), np.float32([[k]])
        got = (q * np.float32(scale)) @ k.T
        exact = np.float64(scale) * q.astype(np.float64) @ k.astype(np.float64).T
        assert np.abs(got - exact) <= score_error(q, k, scale, format_of("float32"))
