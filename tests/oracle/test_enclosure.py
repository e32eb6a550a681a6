"""Judgement of states: intervals that hold, radii that are honest, three verdicts each shown."""

import math
import sys
from fractions import Fraction
from types import SimpleNamespace

import mpmath
import numpy as np
import pytest
from flint import arb, ctx
from hypothesis import example, given
from hypothesis import strategies as st

from fdmath.oracle import Enclosure, certified_attention, certified_block, certified_merge, certified_merge_acc, sharper
from fdmath.oracle.enclosure import round_up

NO_BUDGET = (0.0, 0.0)
SMALLEST = 5e-324  # the smallest subnormal, an input


def ordinary():
    """The enclosure of two rows of three keys, with nothing special about them."""
    rng = np.random.default_rng(7)
    return certified_attention(rng.standard_normal((2, 4)), rng.standard_normal((3, 4)), rng.standard_normal((3, 5)))


def exact_example():
    """An enclosure whose o = 5/2 and lse = 0 are balls of radius 0."""
    return certified_merge_acc([0.0, 0.0], [0.25, 0.75], [[1.0], [1.5]])


def one_empty_row():
    """The enclosure of a row without keys."""
    return certified_block(np.full((1, 2), -np.inf), np.ones((2, 3)))


def ball_of_width_one():
    """An enclosure that knows o only as 1 ± 1/2; lse = 0 exactly."""
    wide, zero = (np.array([x], dtype=object) for x in (arb(1, 0.5), arb(0)))
    return Enclosure.from_balls(wide.reshape(1, 1), zero, wide.reshape(1, 1), np.zeros(1, dtype=bool), 128)


def changed(array, value):
    """A copy of an array with its first element replaced."""
    array = array.copy()
    array.flat[0] = value
    return array


@example(1, -1075)  # half the smallest subnormal, on either side of zero
@example(-1, -1075)
@given(st.integers(-(2**130), 2**130), st.integers(-1200, 890))
def test_rounding_up_gives_the_least_double_above(mantissa, power):
    with ctx.workprec(256):
        value = arb(mantissa) * arb(2) ** power
    rounded, exact = round_up(value), Fraction(mantissa) * Fraction(2) ** power
    assert exact <= Fraction(rounded) and Fraction(math.nextafter(rounded, -math.inf)) < exact


def test_rounding_up_beyond_the_largest_double():
    beyond = arb(2) ** 1024
    assert round_up(beyond) == math.inf and round_up(-beyond) == -sys.float_info.max


def test_midpoints_are_the_nearest_doubles_and_radii_hold_their_rounding():
    enclosure = ordinary()
    for ball, middle, radius in zip(
        enclosure.o_ball.ravel(), enclosure.o_mid.ravel(), enclosure.o_rad.ravel(), strict=True
    ):
        with ctx.workprec(300):
            assert abs(ball - arb(middle)) <= arb(radius)
            assert radius <= math.ulp(middle) / 2 * (1 + 2.0**-40)  # nearest: half an ulp, the ball's 2**-70, round_up
    assert enclosure.contains((enclosure.o_mid, enclosure.lse_mid))


@pytest.mark.parametrize("direction", [-math.inf, math.inf])
def test_the_interval_holds_no_neighbour_of_the_midpoint(direction):
    enclosure = ordinary()
    neighbour = math.nextafter(enclosure.o_mid.flat[0], direction)
    assert not enclosure.contains((changed(enclosure.o_mid, neighbour), enclosure.lse_mid))
    neighbour = math.nextafter(enclosure.lse_mid.flat[0], direction)
    assert not enclosure.contains((enclosure.o_mid, changed(enclosure.lse_mid, neighbour)))


def test_a_state_is_a_record_or_a_pair_of_any_float_dtype():
    enclosure = exact_example()
    assert enclosure.contains(SimpleNamespace(o=np.float16([2.5]), lse=np.float32(0.0)))
    assert enclosure.contains(([2.5], 0.0))
    assert not enclosure.contains(SimpleNamespace(o=np.float16([2.25]), lse=np.float32(0.0)))


def test_errors_bound_the_distance_from_the_exact_value_tightly(second_opinion):
    scores, v = [[0.3, -1.1]], [[1.0], [2.0]]
    enclosure, state = certified_block(scores, v), (np.array([[1.2]]), np.array([0.5]))
    (o,), lse, _ = second_opinion.attend(scores[0], v)
    o_err, lse_err = enclosure.errors(state)
    with mpmath.workprec(600):
        for bound, exact in ((o_err[0, 0], abs(o - 1.2)), (lse_err[0], abs(lse - 0.5))):
            below = math.nextafter(float(bound), 0.0)  # the next double down no longer bounds it
            assert mpmath.mpf(below) < exact <= mpmath.mpf(float(bound))


def test_errors_of_fp64_states_are_seen_below_the_rounding_of_the_midpoint():
    enclosure = ordinary()
    o_err, _ = enclosure.errors((enclosure.o_mid, enclosure.lse_mid))
    assert np.array_equal(o_err, enclosure.o_rad) and o_err.min() > 0
    assert enclosure.verdict((enclosure.o_mid, enclosure.lse_mid), (o_err, enclosure.lse_rad)) == "pass"
    assert enclosure.verdict((enclosure.o_mid, enclosure.lse_mid), (o_err / 2, enclosure.lse_rad)) == "fail"
    assert enclosure.verdict((enclosure.o_mid, enclosure.lse_mid), (o_err, enclosure.lse_rad / 2)) == "fail"


def test_exact_results_pass_without_a_budget_and_one_ulp_fails():
    enclosure = exact_example()
    assert enclosure.verdict(([2.5], 0.0), NO_BUDGET) == "pass"
    assert enclosure.verdict(([math.nextafter(2.5, 3)], 0.0), NO_BUDGET) == "fail"
    assert enclosure.verdict(([math.nextafter(2.5, 2)], 0.0), NO_BUDGET) == "fail"
    assert enclosure.verdict(([2.5], SMALLEST), NO_BUDGET) == "fail"
    assert enclosure.errors(([2.5], 0.0)) == ([0.0], 0.0)


def test_a_wide_ball_leaves_what_it_cannot_decide_undecided():
    enclosure = ball_of_width_one()
    assert enclosure.verdict(([[1.0]], [0.0]), (0.25, 0.0)) == "undecided"
    assert enclosure.verdict(([[1.0]], [0.0]), (0.75, 0.0)) == "pass"
    assert enclosure.verdict(([[2.0]], [0.0]), (0.25, 0.0)) == "fail"
    assert enclosure.verdict(([[2.0]], [0.0]), (0.75, 0.0)) == "undecided"
    assert enclosure.verdict(([[1.0]], [0.5]), (0.25, 0.0)) == "fail"  # a certain failure outweighs what is undecided


def test_one_undecided_element_keeps_the_call_undecided():
    balls = np.array([[arb(1), arb(1, 0.5)]], dtype=object)
    enclosure = Enclosure.from_balls(balls, balls[:, 0] * 0, balls, np.zeros(1, dtype=bool), 128)
    assert enclosure.verdict(([[1.0, 1.0]], [0.0]), (0.25, 0.0)) == "undecided"
    assert enclosure.verdict(([[1.0, 1.0]], [0.0]), ([[0.0, 0.75]], 0.0)) == "pass"


@pytest.mark.parametrize("wrong", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_never_passes(wrong):
    enclosure, unlimited = ordinary(), (math.inf, math.inf)
    for state in (
        (changed(enclosure.o_mid, wrong), enclosure.lse_mid),
        (enclosure.o_mid, changed(enclosure.lse_mid, wrong)),
    ):
        assert enclosure.verdict(state, unlimited) == "fail"
        assert not enclosure.contains(state)
        assert max(bounds.max() for bounds in enclosure.errors(state)) == math.inf
    assert enclosure.verdict((enclosure.o_mid, enclosure.lse_mid), unlimited) == "pass"


def test_an_empty_row_must_be_the_identity_whatever_the_budget():
    enclosure, zeros = one_empty_row(), np.zeros((1, 3))
    assert enclosure.contains((zeros, [-math.inf])) and enclosure.verdict((-zeros, [-math.inf]), NO_BUDGET) == "pass"
    for o, lse in ((zeros, 0.0), (zeros, math.nan), (zeros, math.inf), (zeros, -1e300),
                   (changed(zeros, SMALLEST), -math.inf), (changed(zeros, math.nan), -math.inf)):  # fmt: skip
        assert not enclosure.contains((o, [lse]))
        assert enclosure.verdict((o, [lse]), (math.inf, math.inf)) == "fail"
        assert max(bounds.max() for bounds in enclosure.errors((o, [lse]))) == math.inf


def test_budgets_broadcast_elementwise():
    enclosure = certified_block(np.zeros((2, 1)), np.ones((1, 3)))
    state = (np.array([[1.0, 1.5, 1.0], [1.0, 1.5, 1.0]]), np.zeros(2))
    assert enclosure.verdict(state, ([0.0, 0.5, 0.0], 0.0)) == "pass"
    assert enclosure.verdict(state, ([0.5, 0.0, 0.5], 0.0)) == "fail"
    assert enclosure.verdict(state, ([[0.5], [0.25]], 0.0)) == "fail"


@pytest.mark.parametrize("budget", [(-1.0, 0.0), (0.0, math.nan)])
def test_a_budget_that_is_no_bound_is_refused(budget):
    with pytest.raises(ValueError, match="budget"):
        exact_example().verdict(([2.5], 0.0), budget)


def test_states_of_another_shape_or_kind_are_refused():
    with pytest.raises(ValueError, match="state.o"):
        exact_example().errors(([2.5, 2.5], 0.0))
    with pytest.raises(ValueError, match="state.lse"):
        exact_example().errors(([2.5], [0.0]))
    with pytest.raises(TypeError, match="state.o"):
        exact_example().errors(([2], 0.0))


def test_sharper_decides_what_is_undecided():
    """log(1 + e^-1000) is 0 but for far less than 2**-96, and the budget is four of the smallest numbers."""
    os, lses = np.zeros((2, 1, 1)), np.array([[0.0], [-1000.0]])
    state, budget = (np.zeros((1, 1)), np.zeros(1)), (np.zeros((1, 1)), np.full(1, 4 * SMALLEST))
    assert certified_merge(os, lses).verdict(state, budget) == "undecided"
    with sharper(1200):
        assert certified_merge(os, lses).verdict(state, budget) == "pass"
    assert certified_merge(os, lses).precision < 1200
