"""Softmax in every number of passes, logsumexp, and the state of one block."""

import math

import numpy as np
import pytest

from fdmath import AccState, LSEState, MLOState, identity, partial_state, sequential
from fdmath.algebra.rounding import (
    KAPPA,
    Budget,
    block_budget,
    finish_budget,
    fold_budget,
    format_of,
    round_to,
    unit_roundoff,
)
from fdmath.attention.softmax import logsumexp, online_state, softmax_naive, softmax_online, softmax_safe
from tests.algebra.judgement import judge
from tests.algebra.libraries import FORMATS, dtype_name, holds, same, same_state, values
from tests.algebra.states import KINDS, LEVELS

INF, NAN = math.inf, math.nan
SHOWN = 0.01  # a bound that no case here brings within a factor 100 would be an empty promise
SHIFTED = (softmax_safe, softmax_online)
EVERY = (softmax_naive, *SHIFTED)


def certified(scores, v):
    """The oracle's enclosure of a block."""
    return pytest.importorskip("fdmath.oracle").certified_block(values(scores), values(v))


# Softmax


@pytest.mark.parametrize("softmax", EVERY)
@pytest.mark.parametrize("dtype", FORMATS)
def test_softmax_of_small_rows_is_exact(lib, softmax, dtype):
    for scores, weights in (
        ([3.0], [1.0]),
        ([0.0, 0.0], [0.5, 0.5]),
        ([1.0, 1.0, 1.0, 1.0], [0.25] * 4),
        ([0.0, -800.0], [1.0, 0.0]),
        ([5.0, -INF], [1.0, 0.0]),
    ):
        result = softmax(lib.array([scores], dtype))
        assert holds(result, [weights]) and dtype_name(result) == dtype


@pytest.mark.parametrize("softmax", EVERY)
def test_softmax_is_that_of_the_definition(lib, softmax):
    # The weights are the o of a block whose values are the unit vectors.
    rng = np.random.default_rng(1)
    scores = lib.array(3 * rng.standard_normal((20, 9)))
    v = lib.array(np.eye(9))
    exact, fmt = certified(scores, v), format_of("float32")
    budget = block_budget(scores, v, fmt)
    if softmax is softmax_online:  # a weight errs as in a block, l as a chain of one-key states, the quotient by u
        keys = [partial_state(scores[:, j:j + 1], v[:1, :0], AccState) for j in range(9)]
        chain = fold_budget(keys, sequential, fmt).lse[:, None]
        distance = values(scores).max(axis=-1, keepdims=True) - values(scores)
        errors = np.expm1(fmt.u * (distance + KAPPA) + chain) + fmt.u
        budget = Budget(exact.o_mid * errors + fmt.tiny, budget.lse)
    assert judge(exact, LSEState(softmax(scores), logsumexp(scores)), budget).o >= SHOWN


def test_only_the_shifted_ones_survive_a_high_level(lib):
    for level in (89.0, 1e4, -1e4):
        scores = lib.array([level, level])
        assert holds(softmax_naive(scores), [NAN, NAN])
        for softmax in SHIFTED:
            assert holds(softmax(scores), [0.5, 0.5])


@pytest.mark.parametrize("softmax", SHIFTED)
@pytest.mark.parametrize("dtype", FORMATS)
def test_rows_without_a_score_are_zeros(lib, softmax, dtype):
    scores = lib.array([[-INF, -INF], [0.0, -INF]], dtype)
    result = softmax(scores)
    assert holds(result, [[0.0, 0.0], [1.0, 0.0]]) and dtype_name(result) == dtype
    assert holds(softmax(lib.array(np.zeros((3, 0)), dtype)), np.zeros((3, 0)))


@pytest.mark.parametrize("softmax", SHIFTED)
def test_a_common_shift_changes_no_bit(lib, softmax):
    scores = np.random.default_rng(2).integers(-64, 64, (5, 7)) / 8
    plain = softmax(lib.array(scores))
    for shift in (1024.0, -(2.0**20)):  # these sums are exact
        assert same(softmax(lib.array(scores + shift)), plain)


@pytest.mark.parametrize("softmax", EVERY)
def test_nan_and_infinite_scores_make_their_row_nan(lib, softmax):
    result = values(softmax(lib.array([[NAN, 0.0], [INF, 0.0], [0.0, 0.0]])))
    assert np.isnan(result[0]).all() and np.isnan(result[1]).any()
    assert result[2].tolist() == [0.5, 0.5]


def test_softmax_refuses_what_has_no_scores(lib):
    for softmax in (*EVERY, logsumexp):
        with pytest.raises(ValueError, match=r"^scores must have at least one axis; got shape \(\)$"):
            softmax(lib.array(0.0))
        with pytest.raises(TypeError, match=r"^scores must have a float dtype .*; got int32$"):
            softmax(lib.integers([1]))
        with pytest.raises(TypeError, match=r"^scores must be a NumPy array or a torch tensor; got list$"):
            softmax([1.0])


# logsumexp


def test_logsumexp_of_small_rows(lib):
    for dtype in FORMATS:
        x = logsumexp(lib.array([[3.0, -INF], [-INF, -INF], [7.0, -200.0]], dtype))
        assert holds(x, [3.0, -INF, 7.0])
        assert dtype_name(x) == ("float64" if dtype == "float64" else "float32")
    assert holds(logsumexp(lib.array(np.zeros((2, 0)))), [-INF, -INF])
    assert holds(logsumexp(lib.array([5.0])), 5.0)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_logsumexp_is_a_natural_logarithm_between_max_and_max_plus_log_n(lib, dtype):
    rng = np.random.default_rng(3)
    scores = lib.array(np.resize(LEVELS, (80, 1)) + 3 * rng.standard_normal((80, 9)), dtype)
    v = lib.array(np.zeros((9, 0)), dtype)
    result, budget = logsumexp(scores), block_budget(scores, v, format_of(dtype))
    assert judge(certified(scores, v), LSEState(lib.array(np.zeros((80, 0)), dtype), result), budget).lse >= SHOWN
    top = values(scores).max(axis=-1)
    assert np.all((top <= values(result)) & (values(result) <= top + math.log(9) + budget.lse))


# The state of a block


@pytest.mark.parametrize("online", [False, True])
def test_the_pencil_block_is_exact(lib, online):
    # Equal scores: every weight is 1. Tile {1, 2} of the pencil example: (m, l, acc, o) = (0, 2, 8, 4).
    make = online_state if online else partial_state
    scores, v = lib.array([[0.0, 0.0]]), lib.array([[2.0], [6.0]])
    assert all(map(holds, make(scores, v, AccState), ([0.0], [2.0], [[8.0]])))
    assert all(map(holds, make(scores, v, MLOState), ([0.0], [2.0], [[4.0]])))
    assert holds(make(scores, v, LSEState).o, [[4.0]])


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_block_is_within_its_budget(lib, kind, dtype):
    rng, fmt, pair = np.random.default_rng(4), format_of(dtype), kind is LSEState
    for keys in (1, 7, 64):
        spread = rng.choice([1e-6, 3.0, 40.0], (40, 1, 1))
        scores = np.resize(LEVELS, (40, 1, 1)) + spread * rng.standard_normal((40, 2, keys))
        scores = np.where(rng.random(scores.shape) < 0.1, -INF, scores)
        info = np.finfo(dtype)  # a block sums up to 64 weights of at most 1, on values of at most 4
        size = rng.choice([1.0, info.max / 512, 8 * info.smallest_subnormal], (40, 1, 1))
        v = rng.uniform(-4, 4, (40, keys, 3)) * size
        scores, v = lib.array(scores, dtype), lib.array(v, dtype)
        state = partial_state(scores, v, kind)
        budget = finish_budget(state, block_budget(scores, v, fmt, pair=pair), fmt, fmt, pair=pair)
        worst = judge(certified(scores, v), state.finalize(), budget)
        assert keys == 1 or min(worst.o, worst.lse) >= SHOWN


@pytest.mark.parametrize("p_dtype", ["float16", "bfloat16"])
def test_rounded_weights_are_within_a_budget_that_says_so(lib, p_dtype):
    # As kernels do: P is rounded before P·v, l sums it unrounded (faults:B11).
    rng, fmt = np.random.default_rng(10), format_of("float32")
    scores, v = lib.array(3 * rng.standard_normal((40, 2, 16))), lib.array(rng.standard_normal((40, 16, 3)))
    m, l, _ = partial_state(scores, v, AccState)
    weights = round_to(lib.module.exp(scores - m[..., None]), p_dtype)
    o, lse = AccState(m, l, weights @ v).finalize()
    exact, plain = certified(scores, v), block_budget(scores, v, fmt)
    told = block_budget(scores, v, fmt, p_dtype=p_dtype)
    assert judge(exact, LSEState(o, lse), told).o >= SHOWN
    assert exact.verdict(LSEState(o, lse), tuple(plain)) == "fail"


@pytest.mark.parametrize("kind", KINDS)
def test_the_online_recurrence_is_within_its_budget(lib, kind):
    rng, fmt, pair = np.random.default_rng(5), format_of("float32"), kind is LSEState
    scores = np.resize(LEVELS, (24, 1, 1)) + 3 * rng.standard_normal((24, 2, 11))
    scores = lib.array(np.where(rng.random(scores.shape) < 0.2, -INF, scores))
    v = lib.array(rng.standard_normal((24, 11, 3)))
    state = online_state(scores, v, kind)
    keys = [partial_state(scores[..., j:j + 1], v[..., j:j + 1, :], kind) for j in range(11)]
    budget = finish_budget(state, fold_budget(keys, sequential, fmt), fmt, fmt, pair=pair)
    worst = judge(certified(scores, v), state.finalize(), budget)
    assert min(worst.o, worst.lse) >= SHOWN
    assert same_state(online_state(scores[..., :0], v[..., :0, :], kind), identity((24, 2), 3, kind, like=scores))


@pytest.mark.parametrize("kind", KINDS)
def test_the_level_of_a_triple_is_the_largest_score(lib, kind):
    # claims:A15, A17: exact in floating point, and 1 ≤ l ≤ N.
    scores = np.random.default_rng(6).standard_normal((4, 9))
    state = partial_state(lib.array(scores), lib.array(np.ones((9, 1))), kind)
    if kind is LSEState:
        assert np.all(values(state.lse) >= values(lib.array(scores)).max(axis=-1))
    else:
        assert holds(state.m, values(lib.array(scores)).max(axis=-1))
        assert np.all((values(state.l) >= 1) & (values(state.l) <= 9))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_formats_of_a_block(lib, kind, dtype):
    scores, v = lib.array(np.zeros((2, 3)), dtype), lib.array(np.ones((3, 1)), dtype)
    work = "float64" if dtype == "float64" else "float32"
    assert {dtype_name(x) for x in partial_state(scores, v, kind)} == {work}
    assert {dtype_name(x) for x in partial_state(scores, lib.array(np.ones((3, 1)), "float64"), kind)} == {"float64"}
    lowered = partial_state(scores, v, kind, stats_dtype="bfloat16")
    assert dtype_name(lowered.payload) == work
    assert all(dtype_name(x) == "bfloat16" for x in lowered if x is not lowered.payload)


@pytest.mark.parametrize("stats", ["float16", "bfloat16"])
def test_the_level_is_rounded_before_l_is_taken_against_it(lib, stats):
    # claims:M-c: rounding m afterwards would shift every weight by up to ½ at level 1000.
    rng = np.random.default_rng(7)
    scores, v = lib.array(1000.3 + rng.standard_normal((50, 9))), lib.array(rng.standard_normal((9, 2)))
    m, l, acc = partial_state(scores, v, AccState, stats_dtype=stats)
    assert same(m, lib.array(values(scores).max(axis=-1), stats))
    distance = values(scores) - values(m)[:, None]
    weight, u = np.exp(distance), unit_roundoff("float32")
    error = weight * (np.expm1(u * (np.abs(distance) + KAPPA)) + 9 * u)  # of exp, and of a sum of 9 in any order
    l_error, mass = error.sum(axis=-1), weight.sum(axis=-1)
    assert np.all(np.abs(values(acc) - weight @ values(v)) <= error @ np.abs(values(v)))
    assert np.all(np.abs(values(l) - mass) <= l_error + unit_roundoff(stats) * (mass + l_error))


def test_a_level_beyond_the_statistics_is_nan_and_not_empty(lib):
    scores, v = lib.array([[70000.0, 0.0], [7.0, -INF], [-INF, -INF]]), lib.array([[1.0], [2.0]])
    for kind in KINDS:
        o, lse = partial_state(scores, v, kind, stats_dtype="float16").finalize()
        assert holds(o, [[NAN], [1.0], [0.0]]) and holds(lse, [NAN, 7.0, -INF])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_a_block_without_keys_is_the_identity(lib, kind, dtype):
    work = lib.array([0.0], "float64" if dtype == "float64" else "float32")
    nothing = identity((2, 3), 4, kind, like=work)
    none, masked = (lib.array(np.full((2, 3, keys), -INF), dtype) for keys in (0, 5))
    assert same_state(partial_state(none, lib.array(np.zeros((2, 0, 4)), dtype), kind), nothing)
    for payload in (0.0, 1.0, NAN, INF):
        assert same_state(partial_state(masked, lib.array(np.full((2, 5, 4), payload), dtype), kind), nothing)


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_that_no_row_sees_may_hold_anything(lib, kind):
    rng = np.random.default_rng(8)
    scores, v = rng.standard_normal((2, 3, 5)), rng.standard_normal((2, 5, 4))
    scores[0, :, [1, 3]], scores[1, :, 0], scores[1, 1] = -INF, -INF, -INF
    plain = partial_state(lib.array(scores), lib.array(v), kind)
    for poison in (NAN, INF, -INF):
        bad = v.copy()
        bad[0, [1, 3]], bad[1, 0] = poison, poison
        assert same_state(partial_state(lib.array(scores), lib.array(bad), kind), plain)


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_no_number_makes_its_row_nan(lib, kind):
    v = lib.array([[1.0], [2.0]])
    o, lse = partial_state(lib.array([[NAN, 0.0], [INF, 0.0], [0.0, 0.0]]), v, kind).finalize()
    assert holds(o, [[NAN], [NAN], [1.5]]) and np.isnan(values(lse)[:2]).all()
    scores = lib.array(np.zeros((2, 1, 2)))
    o, lse = partial_state(scores, lib.array([[[NAN], [2.0]], [[1.0], [2.0]]]), kind).finalize()
    assert holds(o, [[[NAN]], [[1.5]]]) and same(lse[:1], lse[1:])


def test_ones_are_one_within_the_rounding_of_the_product(lib):
    rng = np.random.default_rng(9)
    scores = lib.array(np.resize(LEVELS, (80, 1)) + rng.standard_normal((80, 33)))
    o = values(partial_state(scores, lib.array(np.ones((33, 1)))).o)
    # Both sums of the same 33 positive terms, in whatever order, then one quotient.
    assert np.all(np.abs(o - 1) <= (2 * 33 + 1) * unit_roundoff("float32"))


def test_bad_blocks_are_refused_by_name(lib):
    scores, v = lib.array(np.zeros((2, 3, 5))), lib.array(np.zeros((2, 5, 4)))
    with pytest.raises(ValueError, match=r"^v must have 5 keys, as scores has; got 3$"):
        partial_state(scores, v[:, :3])
    for s, x in ((scores, v[0]), (scores[:1], v), (scores[0, 0], v[0]), (scores[0], v[0, 0])):
        with pytest.raises(ValueError, match=r"^scores \(…, Nq, N\) and v \(…, N, dv\) must have equal leading axes"):
            partial_state(s, x)
    with pytest.raises(TypeError, match=r"^kind must be MLOState, AccState or LSEState; got 'pair'$"):
        partial_state(scores, v, "pair")
    with pytest.raises(TypeError, match=r"^v must have a float dtype .*; got int32$"):
        partial_state(scores, lib.integers(np.zeros((2, 5, 4))))
    with pytest.raises(TypeError, match=r"^stats_dtype must have a float dtype .*; got int8$"):
        partial_state(scores, v, stats_dtype="int8")
    with pytest.raises(TypeError, match=r"^v must be a NumPy array or a torch tensor; got list$"):
        partial_state(scores, [[1.0]])
