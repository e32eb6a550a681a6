"""The backward pass of an attention call, as a subject declares it: run on a loss, bounded, and judged.

Every gradient is compared with the definition in float64; small ones, entry by entry, with balls that know no formula
of a backward pass (`certified_gradient`), of the whole call or of its first KV head.
"""

import math
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.algebra.rounding import Budget, exact, format_of
from fdmath.algebra.state import LSEState
from fdmath.attention.gradient_budget import gradient_budget, in_range
from fdmath.attention.reference import attention_gradient
from fdmath.attention.softmax import partial_state
from fdmath.verify.cases import CallCase
from fdmath.verify.reference import HOLDS, Certified, Finding, Miss, equal
from fdmath.verify.subject import SubjectError
from fdmath.verify.tf32 import EXACT, TF32, cut_from, cut_product

try:
    from fdmath.verify.certified_gradient import certified_gradient
except ImportError:  # python-flint is an extra
    certified_gradient = None

MOST_CERTIFIED = 96
"""The most numbers in q, k and v of which every gradient is certified: a few hundredths of a second."""

NAMES = ("dq", "dk", "dv")
MOST = 600.0
"""The largest exponent of a bound on a weight, so that it stays a number."""


def bounded(subject):
    """Whether the subject declares a backward pass of (o, lse), and nothing that its bound does not know.

    Coarse statistics are not known to it.
    """
    return subject.backward is not None and subject.lse and subject.stats_dtype is None


@dataclass(frozen=True, eq=False)
class BackwardCase:
    """A call and the loss Σ do·o + Σ dlse·lse, whose gradients do and dlse its formats hold exactly.

    call: a CallCase; subject: the one that it is put to; do (B, Hq, Nq, dv); dlse (B, Hq, Nq).
    """

    call: CallCase
    subject: object
    do: np.ndarray
    dlse: np.ndarray

    @classmethod
    def of(cls, call, subject, o=True, lse=True):
        """The case of a loss on o, on lse or on both: gradients of ±1, ±2, ±½, times a power of two.

        The power keeps the right gradients within a quarter of the range of the call's format.
        """
        rng = np.random.default_rng(20240117)
        shape = (*call.q.shape[:-1], call.v.shape[-1])
        do, dlse = (rng.choice([1.0, -1.0, 2.0, 0.5, -0.5], size) for size in (shape, shape[:-1]))
        one = cls(call, subject, do * o, dlse * lse)
        if call.dtype != "float16":
            return one
        top = max(np.max(np.abs(x), initial=0.0) for x in one.right)
        power = 2.0 ** min(0, 14 - math.frexp(top)[1])
        return replace(one, do=one.do * power, dlse=one.dlse * power)

    def run(self):
        """The gradients (dq, dk, dv) that the subject gives, as float64 arrays; SubjectError for other shapes."""
        subject, call = self.subject, self.call
        state = subject.call(*call.arguments(subject))
        call.adopted(subject, state)
        do = self.do.astype(call.q.dtype)
        dlse = subject.present_slope(self.dlse.astype(backends.working(call.dtype)))
        q, k, v, *rest = call.arguments(subject)
        got = subject.call_backward(subject.send(do), subject.send(dlse), q, k, v, *state, *rest)
        return adopted(got, [tuple(x.shape) for x in (call.q, call.k, call.v)])

    # -- the right answer; heads stand in the house's order inside, in the subject's outside ----------

    @cached_property
    def order(self):
        """The subject's query heads in the order in which head h reads KV head h // g."""
        return self.call.heads_in_order(self.subject)

    @cached_property
    def inputs(self):
        """(do, dlse, q, k, v) in float64, the heads in the house's order."""
        mine = (x[:, self.order] for x in (self.do, self.dlse, exact(self.call.q)))
        return *mine, exact(self.call.k), exact(self.call.v)

    @cached_property
    def options(self):
        """The scale and mask of the call, the heads in the house's order."""
        return {"scale": self.scale, "mask": self.call.visible(self.subject)[:, self.order]}

    @property
    def scale(self):
        return self.call.scale(self.subject)

    @cached_property
    def right(self):
        """The gradients by definition, in float64."""
        return self._outside(attention_gradient(*self.inputs, **self.options))

    @cached_property
    def bounds(self):
        """The bounds on the subject's errors: of a saved state within its budget, and what its formats add.

        Beyond `gradient_budget`: a P, a dS and a result below `flushed` may be taken for 0, scores and lse may carry a
        factor log₂e inside (3u of each), P may be rounded to the declared p_dtype before all products, and so may dS,
        all factors may be cut to TF32 where that is declared, and the result is rounded to the call's dtype (∞ where
        that may be beyond its range).
        """
        call, fmt = self.call, format_of(backends.working(self.call.dtype))
        saved, seen = call.budget(self.subject), call.levels(self.subject)
        top = np.max(np.where(np.isinf(seen), 0.0, np.abs(seen)), axis=-1, initial=0.0)
        of_lse = saved.lse + 3 * fmt.u * (top + math.log(max(call.k.shape[-2], 1)))
        of_lse = of_lse + fmt.u * max(0.0, self.subject.exp_u - fmt.kappa)
        saved = Budget(saved.o[:, self.order], of_lse[:, self.order])
        do, dlse, *arrays = self.inputs
        arrays = [x.astype(backends.working(call.dtype)) for x in arrays]
        bounds = gradient_budget(do, dlse, *arrays, of_o=saved.o, of_lse=saved.lse, **self.options)
        if tiny := self.subject.flushed:
            lost = _lost_by_rounding(*self.inputs, rounding.Format(0.0, tiny), **self.options)
            bounds = [b + x + tiny for b, x in zip(bounds, lost, strict=True)]
        if rounded := self.subject.p_format(call.dtype):
            coarse = format_of(rounded)
            lost = _lost_by_rounding(*self.inputs, coarse, **self.options)
            bounds = [(1 + coarse.u) ** 2 * b + x for b, x in zip(bounds, lost, strict=True)]
        if self.subject.factors(call.dtype) is TF32:
            off = call.cut_scores(self.subject)[:, self.order], saved.lse[..., None], saved.o
            lost = _lost_by_rounding(*self.inputs, TF32, TF32, off, **self.options)
            bounds = [(1 + TF32.u) ** 4 * b + x for b, x in zip(bounds, lost, strict=True)]
        bounds = self._outside(bounds)
        if call.dtype in ("float16", "bfloat16"):
            out = format_of(call.dtype)
            sizes = [np.abs(x) for x in self.right]
            bounds = [in_range(x, b + out.u * (x + b) + out.tiny, call.dtype)
                      for b, x in zip(bounds, sizes, strict=True)]
        return bounds

    def _outside(self, gradients):
        """The gradients with the heads of dq in the subject's order."""
        dq, dk, dv = gradients
        return [dq[:, np.argsort(self.order)], dk, dv]

    # -- judgement ------------------------------------------------------------------------------------

    def judged(self):
        """The Finding of the subject's gradients against the definition and, where that is small, certified ones."""
        got, wide = self.run(), self._in_float64()
        bounds = [a + b for a, b in zip(self.bounds, wide.bounds, strict=True)]  # the definition rounds too
        found = compare(got, self.right, bounds).on(self)
        if certified_gradient is None:
            return found
        if self.size <= MOST_CERTIFIED:
            return found & self._certified(got).on(self)
        lone = self.of_the_first_head()
        return found & lone._certified(lone.run()).on(lone) if lone.size <= MOST_CERTIFIED else found

    def _certified(self, got):
        """The Finding of gradients against the oracle's balls."""
        line = lambda xs: np.concatenate([np.ravel(x) for x in self._inside(xs)])[:, None]  # noqa: E731
        none = np.zeros(self.size)
        right = Certified.of(lambda: certified_gradient(*self.inputs, **self.options).enclosure)
        found = right.judge(LSEState(line(got), none), Budget(line(self.bounds), none))
        named = compare(got, self.right, self.bounds)
        return replace(found, bitwise=False, detail=f"certified: {named.detail}", miss=named.miss)

    def _inside(self, gradients):
        """The gradients with the heads of dq in the house's order."""
        dq, dk, dv = gradients
        return [dq[:, self.order], dk, dv]

    def _in_float64(self):
        """The same case in float64, its P not rounded."""
        call = replace(self.call, **{name: exact(getattr(self.call, name)) for name in ("q", "k", "v")})
        return replace(self, call=call, subject=replace(self.subject, p_dtype=None))

    @property
    def size(self):
        """How many numbers q, k and v hold."""
        return sum(x.size for x in (self.call.q, self.call.k, self.call.v))

    # -- other cases ----------------------------------------------------------------------------------

    def of_the_first_head(self):
        """The case of the first sequence, the first KV head and the query heads that read it, alone."""
        call, mine = self.call, self.call.kv_heads(self.subject) == 0
        lens = None if call.seq_lens is None else call.seq_lens[:1]
        lone = replace(call, q=call.q[:1, mine], k=call.k[:1, :1], v=call.v[:1, :1], seq_lens=lens)
        return replace(self, call=lone, do=self.do[:1, mine], dlse=self.dlse[:1, mine])

    def with_heads_apart(self):
        """The case in which every query head reads a copy of its KV head of its own."""
        index = self.call.kv_heads(self.subject)
        return replace(self, call=replace(self.call, k=self.call.k[:, index], v=self.call.v[:, index]))

    def __str__(self):
        return f"{self.call}\ndo = {self.do.tolist()}\ndlse = {self.dlse.tolist()}"


def adopted(got, shapes, names="dq, dk, dv"):
    """The arrays that backward returned in float64; SubjectError unless they have these shapes, one each."""
    try:
        gradients = [exact(x) for x in got]
    except (TypeError, ValueError) as error:
        raise SubjectError(f"backward must return {names}, {len(shapes)} arrays; got {type(got).__name__}") from error
    found = [x.shape for x in gradients]
    if found != shapes:
        raise SubjectError(f"backward must return {names} of the shapes {shapes}; got {found}")
    return gradients


def compare(got, want, bounds, names=NAMES):
    """The Finding of gradients (dq, dk, dv), or of those named, that should equal others within bounds; no NaN does."""
    found = HOLDS
    for name, x, y, bound in zip(names, got, want, bounds, strict=True):
        found = found & _entries(name, x, y, np.broadcast_to(bound, x.shape))
    return found


def _entries(name, got, want, bound):
    """The Finding of the entries of one gradient, named by the worst."""
    if not got.size:
        return HOLDS
    with np.errstate(invalid="ignore", divide="ignore"):
        error = np.where(got == want, 0.0, np.abs(got - want))
        ratio = np.where(error == 0, 0.0, np.where(np.isnan(error), np.inf, error / bound))
    at = np.unravel_index(np.argmax(ratio), ratio.shape)
    miss = Miss.at(name, at, got, want, np.zeros(()), error, bound)
    verdict = "pass" if np.all(error <= bound) else "fail"
    return Finding(float(ratio[at]), equal(got, want), verdict, str(miss), miss=miss)


def _lost_by_rounding(do, dlse, q, k, v, coarse, factors=EXACT, off=(0.0, 0.0, 0.0), *, scale, mask):
    """What (dq, dk, dv) lose where P, of which dS may be made, and dS are rounded to the format `coarse`.

    factors: the Format of q, k, v and do as factors. off: the errors of the scores (B, Hq, Nq, N) by that, and those of
    the saved lse and o, which `gradient_budget` counts for themselves: here they make P larger, `most` at most.
    """
    kv, group = k.shape[1], q.shape[1] // k.shape[1]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    scores = np.where(mask, scale * (q @ np.swapaxes(k, -1, -2)), -np.inf)
    o, lse = partial_state(scores, v)
    empty = np.isneginf(lse)
    of_scores, of_lse, of_o = off
    exponent = scores - np.where(empty, 0.0, lse)[..., None] + of_lse
    p, most = (np.exp(np.minimum(x, MOST)) for x in (exponent, exponent + of_scores))
    slope = np.where(empty, 0.0, np.sum(do * o, axis=-1) - dlse)
    slope = np.abs(do @ np.swapaxes(v, -1, -2) - slope[..., None]) + np.sum(np.abs(do) * of_o, axis=-1, keepdims=True)
    of_slope = cut_product(do, np.swapaxes(v, -1, -2), factors)
    of_p = np.where(mask, most - p + coarse.u * most + coarse.tiny, 0.0)
    most = np.where(mask, most + coarse.u * most + coarse.tiny, 0.0)
    ds = most * (slope + of_slope)
    of_ds = np.where(mask, of_p * slope + most * of_slope + coarse.u * ds + coarse.tiny, 0.0)
    ds, rows = ds + of_ds, lambda x: np.swapaxes(x, -1, -2)
    of_q = of_ds @ np.abs(k) + ds @ cut_from(k, factors)
    of_k = rows(of_ds) @ np.abs(q) + rows(ds) @ cut_from(q, factors)
    of_v = rows(of_p) @ np.abs(do) + rows(most) @ cut_from(do, factors)
    of_k, of_v = (x.reshape(len(x), kv, group, *x.shape[2:]).sum(axis=2) for x in (of_k, of_v))
    return abs(scale) * of_q, abs(scale) * of_k, of_v


def roundings(count):
    """A bound on the relative error of `count` additions in float64, in which a law adds what a subject returned."""
    return count * rounding.unit_roundoff("float64") * 2


__all__ = ["BackwardCase", "adopted", "bounded", "compare", "roundings"]
