"""Every intermediate state of a fold, as a table: for notebooks, exercises and pencil work."""

import math
from functools import partial
from typing import NamedTuple

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.merge import check_alike, check_order, combine_acc, flat, join, merge
from fdmath.algebra.state import AccState, MLOState, canonical, identity


class TraceRow(NamedTuple):
    """One step: `step` names it, m is the new level, alpha the factor that rescaled the old sum to it.

    lse and the exponentials are in the base of the trace.
    """

    step: str
    m: object
    alpha: object
    l: object  # noqa: E741
    acc: object
    o: object
    lse: object


class Trace(tuple):
    """The rows of a fold in the order in which they came about; prints as a table."""

    def __str__(self):
        cells = [TraceRow._fields, *([_text(x) for x in row] for row in self)]
        widths = [max(len(row[i]) for row in cells) for i in range(len(TraceRow._fields))]
        return "\n".join("  ".join(c.rjust(w) for c, w in zip(row, widths, strict=True)).rstrip() for row in cells)

    __repr__ = __str__

    def _repr_html_(self):
        head = "".join(f"<th>{name}</th>" for name in TraceRow._fields)
        rows = ("".join(f"<td>{_text(x)}</td>" for x in row) for row in self)
        return f"<table><tr>{head}</tr>" + "".join(f"<tr>{r}</tr>" for r in rows) + "</table>"


def _text(x):
    if isinstance(x, str):
        return x
    values = x.tolist() if hasattr(x, "tolist") else x
    return ", ".join(f"{v:.6g}" for v in np.ravel(values).tolist())


def trace_keys(scores, v, base=math.e):
    """The online recurrence key by key: the state of the first 1, 2, …, N keys, with α of every step.

    scores: (N,) in the given base (math.e or 2); v: (N, dv) or (N,). Each key is ⊕-ed to the running
    AccState as a state of one key; a score of −∞ is a key that is not seen. With base=2 and integer
    scores every digit is exact in every format.
    Source: document A, 3.1.1 (1c) with deferred normalisation.
    """
    xp = backends.array_namespace(scores=scores, v=v)
    if scores.ndim != 1 or v.ndim not in (1, 2) or v.shape[0] != scores.shape[0]:
        raise ValueError(f"scores must be (N,) and v (N,) or (N, dv); got {tuple(scores.shape)} and {tuple(v.shape)}")
    exp, log = backends.exp_log(xp, base)
    work = backends.working(backends.float_name(scores, "scores"), backends.float_name(v, "v"))
    scores, v = backends.cast(scores, work), backends.cast(v, work)
    v = v[:, None] if v.ndim == 1 else v
    rows, running = [], identity((), v.shape[1], AccState, like=scores)
    with backends.quiet():
        for i in range(scores.shape[0]):
            key = canonical(AccState(scores[i, ...], xp.ones_like(scores[i, ...]), v[i, ...]))
            before, running = running, join(xp, running, key, partial(combine_acc, exp=exp))
            rows.append(_row(f"key {i + 1}", running, _factor(xp, before.m, running.m, exp), log))
    return Trace(rows)


def trace(states, order):
    """The parts, then every state that `order` makes by merging two of them, in the order made.

    alpha is the factor e^(m_left − m) that rescaled the left operand (1 for a part as it stands, 0 where
    that is empty). The columns m, l, acc are those of the AccState spelling. `flat` merges once: one row.
    """
    states = list(states)
    check_alike(states)
    recorder = _Recorder([canonical(s) for s in states])
    check_order(order)(recorder, recorder.parts)
    return Trace(recorder.rows)


class _Recorder:
    """⊕, and `flat` of many at once, each adding a row to a trace."""

    def __init__(self, parts):
        self.parts = parts
        self.rows = [_row(f"part {i + 1}", s, _left_factor(s, s)) for i, s in enumerate(parts)]

    def __call__(self, a, b):
        return self._record("merge", a, merge(a, b))

    def flat(self, states):
        return self._record("flat", states[0], flat(merge, states))

    def _record(self, name, left, merged):
        count = sum(row.step.startswith(name) for row in self.rows)
        step = f"{name} {count + 1}" if name == "merge" else name
        self.rows.append(_row(step, merged, _left_factor(left, merged)))
        return merged


def _left_factor(a, merged):
    xp = backends.array_namespace(a=a.payload)
    return _factor(xp, a.to(AccState).m, merged.to(AccState).m, xp.exp)


def _factor(xp, m, new, exp):
    """The factor from level m to the level `new` ≥ m; 0 from the level of the empty state, −∞, even to itself."""
    return exp(m - backends.filled(xp, new, new == float("-inf"), 0.0))


def _row(step, state, alpha, log=None):
    xp = backends.array_namespace(state=state.payload)
    log = log or xp.log
    acc, mlo = state.to(AccState), state.to(MLOState)
    with backends.quiet():
        return TraceRow(step, acc.m, alpha, acc.l, acc.acc, mlo.o, acc.m + log(acc.l))
