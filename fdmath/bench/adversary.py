"""A machine that rounds as badly as the model of `fdmath.algebra.rounding` allows, for ⊕ as it stands.

It is handed to the package's own formulas in place of NumPy: every rounding, in every element, errs by the
whole of what the model grants, up or down at random. A bound that is proved holds on it; a bound that forgot
a rounding, or a product of two errors, does not, if u is coarse enough to show them.
"""

import numpy as np

from fdmath.algebra import rounding
from fdmath.algebra.merge import _flat_of_parts, combine_acc, combine_lse, combine_mlo, flat, stack
from fdmath.algebra.state import AccState, LSEState, MLOState

COMBINE = {LSEState: combine_lse, MLOState: combine_mlo, AccState: combine_acc}


class Adversary:
    """The functions of an array library that ⊕ uses, each off by all that the Format `fmt` grants it."""

    def __init__(self, fmt, rng):
        self.fmt, self.rng = fmt, rng

    def number(self, x):
        """The float64 array x as Numbers of this machine, as it stands."""
        numbers = np.asarray(x).view(Number)
        numbers.machine = self
        return numbers

    def sign(self, x):
        """−1 or +1 for each element of x."""
        return self.rng.choice([-1.0, 1.0], np.shape(x))

    def rounded(self, x, by=1.0):
        """x·(1 ± by·u)."""
        return self.number(np.asarray(x) * (1 + by * self.fmt.u * self.sign(x)))

    def exp(self, x):
        """e^(x ± κu); exact at 0, and at most 1 for x ≤ 0."""
        x = np.asarray(x)
        high = np.exp(x + self.fmt.kappa * self.fmt.u * self.sign(x))
        return self.number(np.where(x == 0, 1.0, np.where(x < 0, np.minimum(high, 1.0), high)))

    def log(self, x):
        """log x·(1 ± κu)."""
        return self.rounded(np.log(np.asarray(x)), self.fmt.kappa)

    def log1p(self, x):
        """log(1 + x)·(1 ± κu)."""
        return self.rounded(np.log1p(np.asarray(x)), self.fmt.kappa)

    def where(self, condition, x, y):
        """x where the condition holds, else y, exactly."""
        return self.number(np.where(*map(np.asarray, (condition, x, y))))

    maximum, minimum, max = (staticmethod(getattr(np, name)) for name in ("maximum", "minimum", "max"))


class Number(np.ndarray):
    """An array of float64 numbers of an Adversary: what is computed from it is rounded by that machine.

    What every format computes exactly stays exact: a sum with 0, a product with a power of two.
    """

    def __array_finalize__(self, parent):
        self.machine = getattr(parent, "machine", None)

    def _rounded(self, operation, other, exact):
        x, y = np.asarray(self), np.asarray(other)
        result = operation(x, y)
        return self.machine.number(np.where(exact(x, y), result, self.machine.rounded(result)))

    def __add__(self, other):
        return self._rounded(np.add, other, _a_zero)

    def __sub__(self, other):
        return self._rounded(np.subtract, other, _a_zero)

    def __mul__(self, other):
        return self._rounded(np.multiply, other, lambda x, y: _is_power_of_two(x) | _is_power_of_two(y))

    def __truediv__(self, other):
        return self._rounded(np.divide, other, lambda x, y: _is_power_of_two(y))

    __radd__ = __add__


def _a_zero(x, y):
    return (x == 0) | (y == 0)


def _is_power_of_two(x):
    return np.abs(np.frexp(x)[0]) == 0.5


def worst_merge(states, fmt, errors, order=None, seed=0):
    """(o, lse) in float64 of a ⊕ b, or of `flat` of many, on an Adversary whose operands are off by all they may.

    states: float64, of one kind, (R, dv) and (R,), no row empty; errors: a Budget of each. order: None for ⊕ of two,
    or flat. lse is m + log l, exactly, for triples, and o is acc/l, exactly, for AccState. Many rows alike show
    many choices of signs.
    """
    machine = Adversary(fmt, np.random.default_rng(seed))
    off = [_off(machine, state, budget) for state, budget in zip(states, errors, strict=True)]
    kind = type(off[0])
    if order is flat:
        result = _flat_of_parts(machine, stack(off).map(machine.number))
    else:
        result = COMBINE[kind](machine, *(s.map(machine.number) for s in off))
    return kind(*map(np.asarray, result)).to(LSEState)


def _off(machine, state, budget):
    """The state with o and the exponent moved by ± their budgets."""
    o = (state if state.payload_name == "o" else state.to(MLOState)).o
    o = o + machine.sign(o) * budget.o
    if isinstance(state, LSEState):
        return LSEState(o, state.lse + machine.sign(state.lse) * budget.lse)
    l = state.l * np.exp(machine.sign(state.l) * budget.lse)  # noqa: E741
    return type(state)(state.m, l, o if state.payload_name == "o" else o * l[..., None])


def share_of_budget(kind, fmt, parts=2, order=None, rows=20_000, carried=True, seed=0):
    """The largest error of o, and of lse, over its budget, of random states merged once on an Adversary.

    parts: how many; two are merged by ⊕ (order=None), any number by order=flat. Levels lie around 4, gaps from 0
    to 30, masses from 1 to 64, values agree, oppose and cancel; carried: whether the operands come with errors of up
    to 8u on o and 64u on the exponent. The budgets are widened by the float64 roundings of the judge.
    """
    rng = np.random.default_rng(seed)
    states = [_random_state(kind, rng, rows) for _ in range(parts)]
    errors = [_random_errors(rng, fmt, rows) if carried else rounding.no_error(s) for s in states]
    bound = rounding.flat_budget if order is flat else lambda ab, fmt, of: rounding.merge_budget(*ab, fmt, *of)
    got, exact = worst_merge(states, fmt, errors, order, seed), flat(None, [s.to(LSEState) for s in states])
    judge = 16 * rounding.unit_roundoff("float64")  # sixteen roundings at most lie between the two
    sizes = 1.0, 1 + np.abs(exact.lse)
    return tuple(float(np.max(np.abs(x - right) / (budget + judge * size)))
                 for x, right, budget, size in zip(got, exact, bound(states, fmt, errors), sizes, strict=True))


def _random_state(kind, rng, rows):
    level = 4 + rng.choice([0.0, 1.0, 1.0, 10.0, 30.0], rows) * rng.random(rows)
    o = rng.choice([-1.0, 1.0, 1.0], (rows, 1)) * rng.choice([1.0, rng.random()], (rows, 1))
    if kind is LSEState:
        return LSEState(o, level)
    l = 64.0 ** rng.random(rows)  # noqa: E741
    return kind(level, l, o if kind is MLOState else o * l[:, None])


def _random_errors(rng, fmt, rows):
    size = rng.choice([0.0, 1.0], rows) * fmt.u
    return rounding.Budget(8 * size[:, None] * rng.random((rows, 1)), 64 * size * rng.random(rows))
