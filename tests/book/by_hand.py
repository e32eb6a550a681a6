"""What fdmath's own formulas make of the page's keys, every operation rounded to the format, op by op.

`combine_acc`, `combine_mlo`, `combine_lse` and the printed merge are the package's; they are given numbers that round
after each operation, and exponentials and logarithms that are the exact ones, rounded (mpmath, 400 bits).
"""

import math
from functools import partial
from types import SimpleNamespace

import mpmath
import numpy as np
from ml_dtypes import bfloat16

from fdmath.algebra.merge import combine_acc, combine_lse, combine_mlo
from fdmath.algebra.printed import merge_as_printed_A_3_2_1

BITS = 400
SPELLINGS = {"acc": ("m", "l", "acc"), "mlo": ("m", "l", "o"), "pair": ("o", "lse"), "printed": ("o", "lse")}
TRIPLES = {"acc": combine_acc, "mlo": combine_mlo}


def to_float32(x):
    """The float32 nearest to a double or an mpmath number, as a double."""
    if isinstance(x, mpmath.mpf):
        _, power = mpmath.frexp(x)
        quantum = mpmath.ldexp(1, max(power - 24, -149))
        x = float(mpmath.nint(x / quantum) * quantum)
    with np.errstate(over="ignore"):
        return float(np.float32(x))


def to_bfloat16(x):
    """The bfloat16 nearest to the nearest float32, as a double."""
    return float(bfloat16(np.float32(to_float32(x))))


# For each of the page's formats: what rounds an operation, and what rounds a finished state.
FORMATS = {"fp64": (float, float), "fp32": (to_float32, to_float32), "bf16": (to_bfloat16, to_bfloat16),
           "stored": (to_float32, to_bfloat16)}  # fmt: skip


class Number:
    """A number that rounds after every operation; an array of one element as far as a ⊕ can tell."""

    def __init__(self, value, rounded):
        self.value, self.rounded = np.float64(value), rounded

    def __getitem__(self, _):
        return self

    def __eq__(self, other):
        return self.value == float_of(other)

    def __gt__(self, other):
        return self.value > float_of(other)

    __hash__ = None

    def _of(self, operation, left, right):
        with np.errstate(all="ignore"):
            return Number(self.rounded(getattr(np, operation)(float_of(left), float_of(right))), self.rounded)

    def __add__(self, other):
        return self._of("add", self, other)

    def __sub__(self, other):
        return self._of("subtract", self, other)

    def __mul__(self, other):
        return self._of("multiply", self, other)

    def __truediv__(self, other):
        return self._of("divide", self, other)

    __radd__, __rmul__ = __add__, __mul__


def float_of(x):
    """The value of a Number or of a plain number, as a NumPy double."""
    return x.value if isinstance(x, Number) else np.float64(x)


def exactly(function, x):
    """function(x) to 400 bits, rounded once; IEEE's answers for ±∞ and NaN are left to NumPy."""
    value = float(x.value)
    if not math.isfinite(value):
        with np.errstate(all="ignore"):
            return Number(np.float64(float(function(mpmath.mpf(value)))), x.rounded)
    with mpmath.workprec(BITS):
        return Number(x.rounded(function(mpmath.mpf(value))), x.rounded)


def namespace(base):
    """What a ⊕ asks of an array library, for Numbers; exp, log and log1p in the given base."""
    def log(x):
        return mpmath.ninf if x == 0 else mpmath.log(x) / (mpmath.log(2) if base == 2 else 1)

    def choose(best, x, y):
        return x if math.isnan(x.value) or best(y.value, x.value) == x.value else y  # NaN of either side stays

    return SimpleNamespace(
        exp=partial(exactly, lambda x: mpmath.mpf(2)**x if base == 2 else mpmath.exp(x)),
        log=partial(exactly, log), log1p=partial(exactly, lambda x: log(1 + x)),
        maximum=partial(choose, max), minimum=partial(choose, min), where=lambda c, x, y: x if c else y,
    )  # fmt: skip


def is_empty(spelling, state):
    """Whether a state, a dict of Numbers, has no keys."""
    if "lse" in state:
        return state["lse"] == -math.inf
    return state["m"] == -math.inf or state["l"] == 0


class Hand:
    """⊕ in every spelling, in one of the page's formats and one base; a state is a dict of Numbers."""

    def __init__(self, form, base, monkeypatch):
        self.op, self.keep = FORMATS[form]
        self.xp = namespace(base)
        monkeypatch.setattr("fdmath.algebra.printed.backends", SimpleNamespace(
            array_namespace=lambda **_: self.xp, quiet=lambda: np.errstate(all="ignore")))

    def number(self, x):
        """x, brought into the format as a stored number is."""
        return Number(self.keep(self.op(x)), self.op)

    def empty(self, spelling):
        """The state of no keys."""
        return {name: self.number(-math.inf if name in ("m", "lse") else 0.0) for name in SPELLINGS[spelling]}

    def key(self, spelling, score, value):
        """The state of one key."""
        given = {"m": score, "lse": score, "l": 1.0, "acc": value, "o": value}
        return {name: self.number(given[name]) for name in SPELLINGS[spelling]}

    def merge(self, spelling, a, b, level=None, exp=None):
        """a ⊕ b; an empty side is selected away unless a level is given, or the merge is the printed one."""
        if spelling == "printed":
            o, lse = merge_as_printed_A_3_2_1(a["o"], a["lse"], b["o"], b["lse"])
            return self.stored(spelling, (o, lse))
        if is_empty(spelling, a) and level is None:
            return self.empty(spelling) if is_empty(spelling, b) else b
        if is_empty(spelling, b) and level is None:
            return a
        if spelling == "pair":
            return self.stored(spelling, combine_lse(self.xp, SimpleNamespace(**a), SimpleNamespace(**b)))
        xp = self.xp if level is None else SimpleNamespace(**{**vars(self.xp), "maximum": lambda *_: level})
        return self.stored(spelling, TRIPLES[spelling](xp, SimpleNamespace(**a), SimpleNamespace(**b), exp))

    def stored(self, spelling, numbers):
        """The state as it is kept after a finished ⊕."""
        return {name: Number(self.keep(x.value), self.op) for name, x in zip(SPELLINGS[spelling], numbers, strict=True)}

    def read(self, spelling, state):
        """The state with o and lse beside what it stores: acc/l and m + log l."""
        if "lse" in state:
            return state
        if is_empty(spelling, state):
            return {**self.empty(spelling), **self.empty("pair")}
        o = state["acc"] / state["l"] if spelling == "acc" else state["o"]
        pair = self.stored("pair", (o, state["m"] + self.xp.log(state["l"])))
        return {**state, **pair}


# The level after a key of a finite score; m is −∞ before the first.
RULES = {
    "running": max, "forgotten": max, "first": lambda m, s: s if m == -math.inf else m, "own": lambda m, s: s,
    "floor": lambda m, s: max(m, s, 0.0), "zero": lambda m, s: 0.0,
}  # fmt: skip


def absorb(hand, spelling, rule, running, score, value):
    """The running state ⊕ one key, by a rule for the level; the pair has no level to choose."""
    key = hand.key(spelling, score, value)
    if rule == "running" or spelling in ("pair", "printed"):
        return hand.merge(spelling, running, key)
    score = key["m"]
    if score == -math.inf:
        return running
    before = running["m"].value
    level = hand.number(RULES[rule](before, score.value))
    exp = None
    if spelling == "mlo" and is_empty(spelling, running):  # the mean of one key is its value, not weight·value/weight
        return hand.stored(spelling, (level, hand.xp.exp(score - level), key["o"]))
    if rule == "forgotten" and before != -math.inf:
        factors = iter([lambda x: Number(1.0, hand.op), hand.xp.exp])

        def exp(x):
            return next(factors)(x)
    return hand.merge(spelling, running, key, level, exp)


def exact_answer(keys, base):
    """(o, lse, Σp|v|) of a list of (score, value) from the definition, to 400 bits; zeros and −∞ without a key."""
    seen = [(mpmath.mpf(s), mpmath.mpf(v)) for s, v in keys if s != -math.inf]
    if not seen:
        return mpmath.mpf(0), mpmath.ninf, mpmath.mpf(0)
    with mpmath.workprec(BITS):
        base = mpmath.mpf(2) if base == 2 else mpmath.e
        weights = [base**s for s, _ in seen]
        total = mpmath.fsum(weights)
        o = mpmath.fsum(w * v for w, (_, v) in zip(weights, seen, strict=True)) / total
        size = mpmath.fsum(w * abs(v) for w, (_, v) in zip(weights, seen, strict=True)) / total
        return o, mpmath.log(total) / mpmath.log(base), size
