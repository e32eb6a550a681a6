"""A certified result, and the judgement of a computed state against it."""

import math
from dataclasses import dataclass, field

import numpy as np
from flint import arb, ctx

from .inputs import exact_float64, require
from .sums import elementwise, exact


def round_up(value):
    """The smallest fp64 number not below an exact ball `value`, as a float; +∞ beyond the largest."""
    nearest = float(value)
    return nearest if arb(nearest) >= value else math.nextafter(nearest, math.inf)


def _nearest(balls):
    """The fp64 numbers nearest to the midpoints of an object array of balls."""
    return elementwise(lambda ball: float(ball.mid()), balls).astype(np.float64)


def _distance(balls, values):
    """The pair (lower, upper) of fp64 bounds on |value - ball|; infinite where value is not finite.

    Both bounds are rounded upwards, which loses nothing against a budget b held in fp64:
    a <= b exactly when round_up(a) <= b, and a > b exactly when round_up(a) > b.
    """
    finite = np.isfinite(values)
    gaps = elementwise(lambda ball, value: ball - arb(value), balls, np.where(finite, values, 0.0))
    lower = elementwise(lambda gap: round_up(gap.abs_lower()), gaps).astype(np.float64)
    upper = elementwise(lambda gap: round_up(gap.abs_upper()), gaps).astype(np.float64)
    return np.where(finite, lower, np.inf), np.where(finite, upper, np.inf)


@dataclass(frozen=True, eq=False)
class Enclosure:
    """Intervals that certainly hold the exact o (…, Nq, dv) and lse (…, Nq), natural logarithm.

    The exact o lies within o_rad of o_mid, elementwise, and lse within lse_rad of lse_mid
    (fp64; the radii include the rounding of the midpoints to fp64).  The far narrower
    balls themselves are o_ball and lse_ball (object arrays of `flint.arb`); judgement uses
    them, so an fp64 state is judged as finely as an fp16 one.

    scale_o is an fp64 upper bound of Σ p|v| of each element of o, the unit in which error
    budgets are stated.  rows_empty (…, Nq) marks rows without a visible key: there
    o = 0 and lse = -∞ exactly, and a state must have just that, whatever the budget.
    (For directional derivatives o and lse are those of the derivative, rows_empty is
    all False and an empty row holds exact zeros.)
    precision is the number of bits the balls were computed with.
    """

    o_mid: np.ndarray
    o_rad: np.ndarray
    lse_mid: np.ndarray
    lse_rad: np.ndarray
    scale_o: np.ndarray = field(repr=False)
    rows_empty: np.ndarray = field(repr=False)
    o_ball: np.ndarray = field(repr=False)
    lse_ball: np.ndarray = field(repr=False)
    precision: int = field(repr=False)

    @classmethod
    def from_balls(cls, o_ball, lse_ball, scale_ball, rows_empty, precision):
        """The enclosure of object arrays of balls; where rows_empty, the balls are 0 and mean (0, -∞)."""
        with ctx.workprec(precision):
            o_mid, lse_mid = _nearest(o_ball), _nearest(lse_ball)
            o_rad, lse_rad = _distance(o_ball, o_mid)[1], _distance(lse_ball, lse_mid)[1]
            scale_o = _distance(scale_ball, np.zeros(scale_ball.shape))[1]
        lse_mid = np.where(rows_empty, -np.inf, lse_mid)
        return cls(o_mid, o_rad, lse_mid, lse_rad, scale_o, rows_empty, o_ball, lse_ball, precision)

    def contains(self, state):
        """Whether every value of a state lies in the fp64 intervals mid ± rad.

        state is anything with .o and .lse, or a pair (o, lse), of the enclosure's shapes.
        Raises ValueError for other shapes and TypeError for what is not floating-point.
        """
        intervals = exact(self.o_mid), exact(np.where(self.rows_empty, 0.0, self.lse_mid))
        (_, o_far), (_, lse_far) = self._distances(state, *intervals)
        return bool(np.all(o_far <= self.o_rad) and np.all(lse_far <= self.lse_rad))

    def errors(self, state):
        """The pair (o_err, lse_err) of certified fp64 upper bounds on a state's error.

        Infinite where the state is NaN or infinite, and in empty rows that do not hold
        exactly o = 0, lse = -∞.  Shapes and errors raised as in `contains`.
        """
        (_, o_err), (_, lse_err) = self._distances(state, self.o_ball, self.lse_ball)
        return o_err, lse_err

    def verdict(self, state, budget):
        """The judgement of a state, one of "pass", "fail", "undecided".

        budget is a pair (o_budget, lse_budget) of fp64 arrays that broadcast to o and lse.
        "pass": every element certainly lies within its budget of the exact value.
        "fail": some element certainly does not, or is NaN or wrongly infinite, or an empty
        row is not exactly o = 0, lse = -∞.  "undecided": the balls are too wide to say.
        Raises ValueError for a negative or NaN budget, and as `contains` does.
        """
        bounds = self._distances(state, self.o_ball, self.lse_ball)
        budgets = [_budget(b, lower.shape) for b, (lower, _) in zip(budget, bounds, strict=True)]
        if any(np.any(_outside(lower, b)) for (lower, _), b in zip(bounds, budgets, strict=True)):
            return "fail"
        passed = all(np.all(upper <= b) for (_, upper), b in zip(bounds, budgets, strict=True))
        return "pass" if passed else "undecided"

    def _distances(self, state, o_ball, lse_ball):
        """The pairs (lower, upper) of distances of o and of lse, infinite where an empty row is not empty."""
        o, lse = self._read(state)
        empty_o, empty_lse = self.rows_empty[..., None], self.rows_empty
        wrong_o, wrong_lse = empty_o & (o != 0), empty_lse & (lse != -np.inf)
        with ctx.workprec(self.precision):
            o_bounds = _distance(o_ball, o)
            lse_bounds = _distance(lse_ball, np.where(empty_lse, 0.0, lse))
        return (
            tuple(np.where(wrong_o, np.inf, bound) for bound in o_bounds),
            tuple(np.where(wrong_lse, np.inf, bound) for bound in lse_bounds),
        )

    def _read(self, state):
        """The fp64 arrays (o, lse) of a state, checked for shape."""
        o, lse = (state.o, state.lse) if hasattr(state, "lse") else state
        o, lse = exact_float64(o, "state.o"), exact_float64(lse, "state.lse")
        require(o.shape == self.o_mid.shape, "state.o", f"shape {self.o_mid.shape}", o.shape)
        require(lse.shape == self.lse_mid.shape, "state.lse", f"shape {self.lse_mid.shape}", lse.shape)
        return o, lse


def _outside(lower, budget):
    """Where a distance of at least `lower` breaks its budget; an infinite one always does."""
    return (lower > budget) | np.isinf(lower)


def _budget(budget, shape):
    """The budget as an fp64 array of `shape`."""
    budget = np.broadcast_to(np.asarray(budget, dtype=np.float64), shape)
    require(bool(np.all(budget >= 0)), "budget", "numbers >= 0", "a negative number or NaN")
    return budget
