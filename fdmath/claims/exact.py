"""Exact exponentials: the documents' formulas run on symbols, by the very code that computes with them.

Each weight w = eˢ is a free symbol, so that a score is the Level log w, and every step of a merge is a rational
function of the weights and values (SymPy's polynomial fields, in canonical form: equal means equal everywhere). NumPy
passes exp, log and log1p of an object array on to its elements, so that a function written for arrays runs unchanged.
A maximum needs an order: each symbol has a value too, and comparisons are made of those. What is proved is then an
identity of rational functions: it holds for all weights, whatever reference level the comparisons led to.
"""

import numpy as np

from fdmath import _backends as backends


class Number:
    """A rational function of the symbols, and its value at the place that decides comparisons."""

    __slots__ = ("formula", "value")

    def __init__(self, formula, value):
        self.formula, self.value = formula, value

    @classmethod
    def of(cls, x):
        """x itself, or a plain number as a constant."""
        return x if isinstance(x, cls) else cls(int(x), int(x))

    def __add__(self, other):
        other = Number.of(other)
        return Number(self.formula + other.formula, self.value + other.value)

    def __mul__(self, other):
        other = Number.of(other)
        return Number(self.formula * other.formula, self.value * other.value)

    def __truediv__(self, other):
        return Number(self.formula / other.formula, self.value / other.value)

    __radd__, __rmul__ = __add__, __mul__

    def __eq__(self, other):
        return bool(self.formula == Number.of(other).formula)

    def log(self):
        """The Level whose exponential this is."""
        return Level(self)

    def log1p(self):
        """The Level log(1 + this)."""
        return Level(self + 1)

    def __repr__(self):
        return str(self.formula)


class Level:
    """The real number log w of a Number w > 0. A difference of levels is the level of a quotient."""

    __slots__ = ("weight",)

    def __init__(self, weight):
        self.weight = weight

    def __add__(self, other):
        return Level(self.weight * other.weight)

    def __sub__(self, other):
        return Level(self.weight / other.weight)

    def exp(self):
        """The Number w."""
        return self.weight

    def __eq__(self, other):
        return self.weight == other.weight

    def __ge__(self, other):
        return self.weight.value >= other.weight.value

    def __gt__(self, other):
        return self.weight.value > other.weight.value

    def __le__(self, other):
        return other >= self

    def __lt__(self, other):
        return other > self

    def __repr__(self):
        return f"log({self.weight})"


def keys(ranks):
    """(scores, v) of len(ranks) keys: Levels of free symbols, (N,), that compare as the ranks do; free values, (N,)."""
    count = len(ranks)
    sympy = backends.load("importlib:import_module")("sympy")
    names = [f"{letter}{i + 1}" for letter in "wv" for i in range(count)]
    _, *symbols = sympy.field(names, sympy.QQ)
    places = [sympy.QQ(x) for x in [*(2**rank for rank in ranks), *range(3, 3 + count)]]  # no two sums of w tie
    numbers = list(map(Number, symbols, places))
    return _objects(map(Level, numbers[:count])), _objects(numbers[count:])


def definition(scores, v):
    """(Σ w, Σ w·v / Σ w) of keys given by `keys`: the denominator of the softmax, and the attention output."""
    weights = [s.exp() for s in scores]
    total = sum(weights[1:], start=weights[0])
    products = [w * x for w, x in zip(weights, v, strict=True)]
    return total, sum(products[1:], start=products[0]) / total


def _objects(items):
    """The 1-d object array of the items."""
    items = list(items)
    array = np.empty(len(items), dtype=object)
    array[:] = items
    return array
