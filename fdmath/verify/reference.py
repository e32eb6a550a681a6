"""The right answer of a case, certified: by the oracle's balls, or by float64 with its own proven bound.

Without python-flint a float64 evaluation stands in, and its radius is fdmath's own bound in float64:
far below any float32 budget, so float32 subjects are judged as surely; a float64 subject may be undecided.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.algebra.merge import merge_all
from fdmath.algebra.order import sequential
from fdmath.algebra.rounding import Budget
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.attention.softmax import partial_state

try:
    from fdmath import oracle
except ImportError:  # python-flint is an extra
    oracle = None


class Miss(NamedTuple):
    """The entry at which a Finding is worst: where ("o[0, 1]"), what came, the right value ± radius, error, budget."""

    where: str
    got: float
    right: float
    radius: float
    error: float
    budget: float

    def __str__(self):
        return (f"{self.where}: got {self.got!r}, expected {self.right!r}, "
                f"error {self.error:.3g}, budget {self.budget:.3g}")

    @classmethod
    def at(cls, name, index, *arrays):
        """The Miss of the entry `index` of arrays (got, right, radius, error, budget), each broadcast to the first.

        A number where there should be nothing is judged as infinitely wrong, and told by how much it is.
        """
        place = [int(i) for i in index]
        shape = arrays[0].shape
        got, right, *rest, error, budget = (float(np.broadcast_to(x, shape)[index]) for x in arrays)
        error = abs(got - right) if math.isinf(error) and math.isfinite(got - right) else error
        return cls(name + (str(place) if place else ""), got, right, *rest, error, budget)


@dataclass(frozen=True)
class Finding:
    """What a law found on one case: the worst error / budget, whether it held bit for bit, and where it was worst.

    miss: the numbers behind `detail`, where it is about one entry. shown: the inputs that the subject was given,
    where they are not those of the case itself.
    """

    ratio: float
    bitwise: bool = False
    verdict: str = "pass"
    detail: str = ""
    shown: object = None
    miss: Miss | None = None

    def __and__(self, other):
        """The worse of two findings."""
        worse = max(self, other, key=lambda f: (_RANK[f.verdict], f.ratio))
        return replace(worse, bitwise=self.bitwise and other.bitwise)

    def on(self, shown):
        """The finding with the inputs that it was made on."""
        return replace(self, shown=shown)


UNDECIDED_BITS = 1200
"""Bits added where a verdict is undecided: enough for budgets of a few of the smallest float64 numbers."""

_RANK = {"pass": 0, "undecided": 1, "fail": 2}
HOLDS = Finding(0.0, True)


@dataclass(frozen=True, eq=False)
class Certified:
    """The right (o, lse) as an oracle Enclosure, seen through a permutation of the heads if one is given.

    again: computes the Enclosure anew, for a verdict that its precision left undecided.
    """

    enclosure: object
    again: Callable
    heads: np.ndarray | None = None

    @classmethod
    def of(cls, certify, *args, **kwargs):
        """The enclosure certify(*args, **kwargs)."""
        again = partial(certify, *args, **kwargs)
        return cls(again(), again)

    def reordered(self, heads):
        return Certified(self.enclosure, self.again, np.argsort(heads))

    @property
    def o(self):
        return self._out(self.enclosure.o_mid)

    @property
    def lse(self):
        return self._out(self.enclosure.lse_mid)

    def judge(self, state, budget):
        """The Finding of a state (any spelling) against the exact values, compared inside the balls."""
        pair = as_pair(state)
        into = (lambda x: x) if self.heads is None else (lambda x: x[:, self.heads])
        bound = (into(budget.o), into(budget.lse))
        o, lse = into(pair.o), _asked(into(pair.lse), self.enclosure.lse_mid, bound[1])
        errors = self.enclosure.errors((o, lse))
        verdict = self.enclosure.verdict((o, lse), tuple(np.where(np.isfinite(b), b, np.inf) for b in bound))
        if verdict == "undecided" and self.enclosure.precision < UNDECIDED_BITS:
            with oracle.sharper(UNDECIDED_BITS):
                return Certified(self.again(), self.again, self.heads).judge(state, budget)
        right, radii = self.enclosure, (self.enclosure.o_rad, self.enclosure.lse_rad)
        return _finding(errors, bound, (right.o_mid, right.lse_mid), (o, lse), verdict, radii=radii)

    def _out(self, x):
        return x if self.heads is None else x[:, np.argsort(self.heads)]


@dataclass(frozen=True, eq=False)
class Approximate:
    """The right (o, lse) in float64, with a radius that holds its own rounding."""

    o: np.ndarray
    lse: np.ndarray
    radius: Budget

    def reordered(self, heads):
        return Approximate(self.o[:, heads], self.lse[:, heads],
                           Budget(self.radius.o[:, heads], self.radius.lse[:, heads]))

    def judge(self, state, budget):
        """The Finding of a state against the float64 values, their radius given to both sides."""
        pair = as_pair(state)
        pair = LSEState(pair.o, _asked(pair.lse, self.lse, budget.lse))
        errors = gaps(pair, LSEState(self.o, self.lse))
        upper = tuple(e + r for e, r in zip(errors, self.radius, strict=True))
        certain = all(np.all(e - r <= b) for e, r, b in zip(errors, self.radius, budget, strict=True))
        passed = all(np.all(e <= b) for e, b in zip(upper, budget, strict=True))
        verdict = "pass" if passed else ("undecided" if certain else "fail")
        return _finding(errors, tuple(budget), (self.o, self.lse), (pair.o, pair.lse), verdict,
                        radii=tuple(self.radius))


def same(got, want, budget):
    """The Finding of two computed states that should be equal within a budget; a raw NaN equals a raw NaN."""
    if isinstance(got, LSEState):
        got = LSEState(got.o, _asked(got.lse, want.lse, tuple(budget)[1]))
    errors = gaps(as_pair(got), as_pair(want))
    bitwise = type(got) is type(want) and all(equal(x, y) for x, y in zip(got, want, strict=True))
    bound = tuple(np.broadcast_to(b, e.shape) for b, e in zip(budget, errors, strict=True))
    passed = all(np.all(e <= b) for e, b in zip(errors, bound, strict=True))
    pair, right = as_pair(got), as_pair(want)
    return _finding(errors, bound, (right.o, right.lse), (pair.o, pair.lse), "pass" if passed else "fail", bitwise)


def _asked(lse, right, bound):
    """lse as it is judged: what is right where the bound is infinite throughout, for nothing is asked of it then."""
    return right if np.all(np.isposinf(bound)) else lse


def exactly(got, want):
    """The Finding of two states that must be equal bit for bit, NaN to NaN: passed or failed by their bits alone."""
    if all(equal(x, y) for x, y in zip(got, want, strict=True)):
        return HOLDS
    pair, right = as_pair(got), as_pair(want)
    alike = [np.isnan(x) & np.isnan(y) for x, y in zip(pair, right, strict=True)]
    errors = [np.where(nan, 0.0, gap) for nan, gap in zip(alike, gaps(pair, right), strict=True)]
    none = [np.zeros(e.shape) for e in errors]
    return replace(_finding(errors, none, tuple(right), tuple(pair), "fail"), ratio=math.inf)


def lawful(states):
    """A failing Finding where a state that the subject returned is none (NaN, +∞, o not finite); None if all are."""
    for i, state in enumerate(states):
        pair = as_pair(state)
        seen = ~np.isneginf(pair.lse)
        if not (np.all(np.isfinite(pair.lse[seen])) and np.all(np.isfinite(pair.o[seen]))):
            text = f"part {i + 1} came back as no lawful state: o = {pair.o.tolist()}, lse = {pair.lse.tolist()}"
            return Finding(math.inf, False, "fail", text)
    return None


def is_nan(o, rows):
    """The Finding that o (…, dv) is NaN throughout the rows (…) that are true."""
    wrong = np.argwhere(rows[..., None] & ~np.isnan(o))
    if not len(wrong):
        return HOLDS
    at = tuple(wrong[0])
    return Finding(math.inf, False, "fail", f"o{[int(i) for i in at]}: got {float(o[at])!r}, expected nan")


def equal(x, y):
    """Whether two arrays hold equal values, NaN equal to NaN and −0 to +0, in the same dtype and shape."""
    return x.dtype == y.dtype and x.shape == y.shape and bool(np.all((x == y) | ((x != x) & (y != y))))


def as_pair(state):
    """The state as a float64 (o, lse), as it stands: an empty row keeps what it holds."""
    with backends.quiet():
        if isinstance(state, LSEState):
            return LSEState(rounding.exact(state.o), rounding.exact(state.lse))
        raw = type(state)(*(rounding.exact(x) for x in state))
        pair = raw.to(LSEState)
    return LSEState(np.where(np.isneginf(pair.lse)[..., None], raw.payload, pair.o), pair.lse)


def gaps(got, want):
    """(|o − o'|, |lse − lse'|), 0 where equal (infinities included), infinite where either is NaN."""
    def gap(x, y):
        with np.errstate(invalid="ignore", over="ignore"):
            apart = np.abs(x - y)
        return np.where(x == y, 0.0, np.where(np.isnan(apart), np.inf, apart))

    return gap(got.o, want.o), gap(got.lse, want.lse)


def _finding(errors, budgets, right, got, verdict, bitwise=False, radii=(0.0, 0.0)):
    """The Finding of errors (o, lse) within budgets, each a pair of arrays; right ± radii is what should have come."""
    ratios = [_ratio(e, b) for e, b in zip(errors, budgets, strict=True)]
    worst = [float(np.max(r, initial=0.0)) for r in ratios]
    which = 0 if worst[0] >= worst[1] else 1
    if not ratios[which].size:
        return Finding(0.0, bitwise, verdict)
    at = np.unravel_index(np.argmax(ratios[which]), ratios[which].shape)
    columns = (got[which], right[which], radii[which], errors[which], budgets[which])
    miss = Miss.at(("o", "lse")[which], at, *(np.asarray(x) for x in columns))
    return Finding(worst[which], bitwise, verdict, str(miss), miss=miss)


def _ratio(error, budget):
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(error == 0, 0.0, np.where(np.isnan(error), np.inf, error / budget))


def merged(parts):
    """The certified ⊕ of states of one kind, taken as exact numbers."""
    columns = [np.stack([np.asarray(x) for x in c]) for c in zip(*parts, strict=True)]
    if oracle is not None:
        by_kind = {LSEState: "certified_merge", MLOState: "certified_merge_mlo", AccState: "certified_merge_acc"}
        return Certified.of(getattr(oracle, by_kind[type(parts[0])]), *columns)
    exact = [rounding.in_float64(p) for p in parts]
    whole = as_pair(merge_all(exact, sequential))  # pairwise, so that a lone part is its own exact answer
    bound = rounding.fold_budget(exact, sequential, rounding.format_of("float64"))
    return Approximate(whole.o, whole.lse, bound)


def block(scores, v):
    """The certified state of one block of scores (−∞ = not visible)."""
    if oracle is not None:
        return Certified.of(oracle.certified_block, scores, v)
    scores, v = rounding.exact(scores), rounding.exact(v)
    state = partial_state(scores, v)
    return Approximate(state.o, state.lse, rounding.block_budget(scores, v, rounding.format_of("float64")))


def attention(q, k, v, scale, visible):
    """The certified attention of q over k, v where `visible`; scale None for 1/√d."""
    if oracle is not None:
        return Certified.of(oracle.certified_attention, q, k, v, scale=scale, mask=visible)
    q, k, v = (rounding.exact(x) for x in (q, k, v))
    group = q.shape[-3] // k.shape[-3]
    k, v = (np.repeat(x, group, axis=-3) for x in (k, v))
    seen = np.any(visible, axis=-2)[..., None]
    k, v = np.where(seen, k, 0.0), np.where(seen, v, 0.0)
    scale = 1 / math.sqrt(q.shape[-1]) if scale is None else scale
    scores = np.where(visible, scale * (q @ np.swapaxes(k, -1, -2)), -np.inf)
    fmt, state = rounding.format_of("float64"), partial_state(scores, v)
    lost = np.where(visible, rounding.score_error(q, k, scale, fmt), 0.0)
    return Approximate(state.o, state.lse, rounding.block_budget(scores, v, fmt, lost))
