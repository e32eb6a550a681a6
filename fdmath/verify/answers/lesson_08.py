"""Notebook 08: write what one program of the merge kernel does, in NumPy."""

import numpy as np

from fdmath.algebra.state import LSEState
from fdmath.verify.cases import StateCase
from fdmath.verify.subject import Subject

AT_ONCE = 2
"""Parts that the judge lets a program take at a time, so that few parts are already several steps."""

ALSO = (1, 3, 16)
"""Other numbers of parts a step, with which the calls of more than AT_ONCE parts are made again."""

HINTS = (
    "Read `merge_kernel` line by line. Between two steps of its loop a program keeps three things: the level so far "
    "(it starts as $-\\infty$), `total`, the sum of the $c_b = e^{S_b - S}$, and `acc`, the sum of $c_b\\,o_b$. When a "
    "step brings a larger $S_b$, both sums are moved to the new level by `alpha` $= e^{\\text{old} - \\text{new}}$, as "
    "in notebook 02.",
    "As long as all parts seen so far are empty the level is $-\\infty$, and $-\\infty - (-\\infty)$ is NaN: subtract "
    "0 then, and in the end divide by 1 instead of 0. The `o` of an empty part may hold NaN: select 0 in its place "
    "with `np.where`, before multiplying.",
)


def my_program(o_parts, lse_parts, at_once):
    """(o, lse) of one row of all parts together: o_parts (P, dv), lse_parts (P,), P ≥ 1; o (dv,), lse a number.

    The parts are read forwards, by slices of at most `at_once`; a step has its slice and what the steps before left.
    """
    raise NotImplementedError


def answer(o_parts, lse_parts, at_once):
    """(o, lse) of one row of all parts together: o_parts (P, dv), lse_parts (P,), P ≥ 1; o (dv,), lse a number.

    The parts are read forwards, by slices of at most `at_once`; a step has its slice and what the steps before left.
    """
    level, total, acc = -np.inf, 0, 0
    for first in range(0, len(lse_parts), at_once):
        s, y = lse_parts[first:first + at_once], o_parts[first:first + at_once]
        y = np.where(s[:, None] == -np.inf, 0, y)
        top = max(level, s.max())
        reference = 0 if top == -np.inf else top
        alpha, c = np.exp(level - reference), np.exp(s - reference)
        total, acc, level = alpha * total + c.sum(), alpha * acc + c @ y, top
    divisor = 1 if total == 0 else total
    return acc / divisor, level + np.log(divisor)


class Parts:
    """Parts in memory, as a program reads them: forwards, at most `at_once` at a time; else ValueError.

    parts: (P, …). A step may read its slice twice. NumPy's functions take a slice, not all parts (TypeError).
    """

    def __init__(self, parts, at_once):
        self._parts, self._at_once, self._begun = parts, at_once, 0
        self.shape, self.dtype = parts.shape, parts.dtype

    def __len__(self):
        return len(self._parts)

    def __getitem__(self, index):
        asked = np.ravel(np.arange(len(self))[index[0] if isinstance(index, tuple) else index])
        if len(asked) > self._at_once:
            raise ValueError(f"a step may read {self._at_once} parts at most; asked for {len(asked)}")
        first = min(asked, default=self._begun)
        if first < self._begun:
            raise ValueError(f"parts are read forwards; asked for part {first} after part {self._begun}")
        self._begun = first
        return self._parts[index]

    def __array__(self, dtype=None, copy=None):
        raise TypeError("parts are read by slices, such as lse_parts[first:first + at_once]")

    def __getattr__(self, name):
        raise AttributeError(f"parts are read by slices, such as lse_parts[first:first + at_once]; they have no {name}")


def subject(fn):
    """The Subject that a reader's function is: a merge of many pairs, one program a row, AT_ONCE parts a step.

    In calls of more parts than AT_ONCE it is asked further(…) about the first row.
    """
    def merge_many(o, lse):
        got = by_rows(fn, o, lse, AT_ONCE)
        if len(lse) > AT_ONCE:
            further(fn, judged, [x[:1] for x in got], o[:, :1], lse[:, :1])
        return got

    judged = Subject(fn.__name__, "merge_many", merge_many)
    return judged


def by_rows(fn, o, lse, at_once):
    """(o (R, dv), lse (R,)) that fn makes of the parts o (P, R, dv), lse (P, R), a row a call."""
    states = [fn(Parts(o[:, row], at_once), Parts(lse[:, row], at_once), at_once) for row in range(o.shape[1])]
    if not states:
        return np.zeros(o.shape[1:], o.dtype), np.zeros(0, o.dtype)
    return np.stack([o for o, _ in states]), np.array([lse for _, lse in states], o.dtype)


def further(fn, judged, got, o, lse):
    """Nothing; ValueError where fn, right AT_ONCE parts a step, is wrong with other steps, or near the lowest level.

    An empty part is not one with a very low lse: a level that starts at −1e30 takes the one for the other. If `got`
    is wrong already, the law that asked for it will say so.
    """
    trouble = referee(judged, o, lse)
    if trouble(got):
        return
    for at_once in ALSO:
        if found := trouble(by_rows(fn, o, lse, at_once)):
            raise ValueError(f"with at_once = {at_once}: {found}")
    low = np.finfo(lse.dtype).min / 2  # room for a factor log₂e, in base 2
    parts = np.array([[[np.nan]], [[2]]], o.dtype), np.array([[-np.inf], [low]], lse.dtype)
    if found := referee(judged, *parts)(by_rows(fn, *parts, AT_ONCE)):
        raise ValueError(f"with an empty part and one of o = 2, lse = {low:.2g}: {found}")


def referee(judged, o, lse):
    """A function of an (o, lse): where it misses the ⊕ of the parts o (P, R, dv), lse (P, R), in words; "" if right."""
    case = StateCase(tuple(map(LSEState, o, lse)))
    right, budget = case.certified(), case.budget(judged)

    def trouble(got):
        finding = right.judge(LSEState(*got), budget)
        return finding.detail if finding.verdict == "fail" else ""

    return trouble


def sample():
    """Arguments of a first call: three parts, one column."""
    return np.ones((3, 1), np.float32), np.zeros(3, np.float32), AT_ONCE
