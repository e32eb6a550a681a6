"""Notebook 15: write ⊕ as a kernel's convention has it: lse in base 2, the result written over the left side."""

import numpy as np

from fdmath.verify.subject import Subject

HINTS = (
    "In base 2 a side of lse $S$ weighs $2^S$. The usual merge with `np.exp2` and `np.log2` in place of `np.exp` and "
    "`np.log` is right, level, guards and all. An array is written over by `o1[:] = …`; `o1 = …` only gives the name "
    "to another array.",
    "Make both weights before you write anything: once `lse1` holds the new lse, the weight of the left side cannot be "
    "made any more. And a weight of 0 does not remove what an empty side holds: `np.where` does.",
)


def my_merge(o1, lse1, o2, lse2):
    """(o1, lse1), written over by the state of both sides: o1 (R, dv), lse1 (R,); o2 and lse2 stay as they are.

    lse is in base 2, −∞ for a row without keys, whose o may hold anything before and is 0 after.
    """
    raise NotImplementedError


def answer(o1, lse1, o2, lse2):
    """(o1, lse1), written over by the state of both sides: o1 (R, dv), lse1 (R,); o2 and lse2 stay as they are.

    lse is in base 2, −∞ for a row without keys, whose o may hold anything before and is 0 after.
    """
    level = np.maximum(lse1, lse2)
    level = np.where(level == -np.inf, 0, level)
    w1, w2 = np.exp2(lse1 - level)[:, None], np.exp2(lse2 - level)[:, None]
    total = w1 + w2
    o1[:] = (np.where(w1 > 0, w1 * o1, 0) + np.where(w2 > 0, w2 * o2, 0)) / np.where(total > 0, total, 1)
    lse1[:] = level + np.log2(total[:, 0])
    return o1, lse1


def subject(fn):
    """The Subject that a reader's function is: a merge in base 2 and in place, whose right side must stay as it was.

    The result is read from the arrays of the left side; one that was returned in others instead is said.
    """
    def written(o1, lse1, o2, lse2):
        left, kept = (o1.copy(), lse1.copy()), (o2.copy(), lse2.copy())
        returned = fn(o1, lse1, o2, lse2)
        if returned is not None and _same(left, (o1, lse1)) and not _same(returned, (o1, lse1)):
            raise ValueError("o1 and lse1 must be written over; they are as they were, and the result is elsewhere")
        for name, was, now in zip(("o2", "lse2"), kept, (o2, lse2), strict=True):
            if not np.array_equal(was, now, equal_nan=True):
                raise ValueError(f"{name} must stay as it is; it was {was.tolist()} and is {now.tolist()}")

    return Subject(fn.__name__, "merge", written, in_place=True, log_base=2)


def _same(arrays, others):
    """Whether two tuples of arrays hold the same numbers, NaN equal to NaN."""
    return len(arrays) == len(others) and all(
        np.array_equal(x, y, equal_nan=True) for x, y in zip(arrays, others, strict=True))


def sample():
    """Arguments of a first call: one row on each side."""
    return np.ones((1, 2), np.float32), np.ones(1, np.float32), np.full((1, 2), 2, np.float32), np.ones(1, np.float32)
