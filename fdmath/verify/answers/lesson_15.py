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

    What it returns is not looked at: the result is read from the arrays of the left side.
    """
    def written(o1, lse1, o2, lse2):
        kept = o2.copy(), lse2.copy()
        fn(o1, lse1, o2, lse2)
        for name, was, now in zip(("o2", "lse2"), kept, (o2, lse2), strict=True):
            if not np.array_equal(was, now, equal_nan=True):
                raise ValueError(f"{name} must stay as it is; it was {was.tolist()} and is {now.tolist()}")

    return Subject(fn.__name__, "merge", written, in_place=True, log_base=2)


def sample():
    """Arguments of a first call: one row on each side."""
    return np.ones((1, 2), np.float32), np.ones(1, np.float32), np.full((1, 2), 2, np.float32), np.ones(1, np.float32)
