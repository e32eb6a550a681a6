"""Notebook 08: write what one program of the merge kernel does, in NumPy."""

import numpy as np

from fdmath.verify.subject import Subject

AT_ONCE = 2
"""Parts that the judge lets a program take at a time, so that few parts are already several steps."""

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


def subject(fn):
    """The Subject that a reader's function is: a merge of many pairs, one program a row, AT_ONCE parts a step."""
    def merge_many(o, lse):
        states = [fn(Parts(o[:, row], AT_ONCE), Parts(lse[:, row], AT_ONCE), AT_ONCE) for row in range(o.shape[1])]
        if not states:
            return np.zeros(o.shape[1:], o.dtype), np.zeros(0, o.dtype)
        return np.stack([o for o, _ in states]), np.array([lse for _, lse in states], o.dtype)

    return Subject(fn.__name__, "merge_many", merge_many)


def sample():
    """Arguments of a first call: three parts, one column."""
    return np.ones((3, 1), np.float32), np.zeros(3, np.float32), AT_ONCE
