"""Notebook 03: write ⊕ for the spelling (m, l, acc)."""

import numpy as np

from fdmath.algebra.state import AccState
from fdmath.verify.subject import Subject

HINTS = (
    "Bring both sides to one reference level first: the larger of $m_1$ and $m_2$. Moving a side from level "
    "$m_1$ to level $m$ multiplies its `l` and its `acc` by the same factor, $e^{m_1-m}$. Then add.",
    "Try two empty sides: $m$ is $-\\infty$, and $-\\infty-(-\\infty)$ is NaN. Subtract 0 instead of $m$ where $m$ "
    "is $-\\infty$. Then try an empty side whose `acc` holds NaN: a factor of 0 does not remove it, `np.where` does.",
)


def my_merge(m1, l1, acc1, m2, l2, acc2):
    """(m, l, acc) of both sets of keys together; m and l have shape (R,), acc has shape (R, dv)."""
    raise NotImplementedError


def answer(m1, l1, acc1, m2, l2, acc2):
    """(m, l, acc) of both sets of keys together; m and l have shape (R,), acc has shape (R, dv)."""
    m = np.maximum(m1, m2)
    level = np.where(m == -np.inf, 0, m)
    alpha, beta = np.exp(m1 - level)[:, None], np.exp(m2 - level)[:, None]
    acc = np.where(alpha > 0, alpha * acc1, 0) + np.where(beta > 0, beta * acc2, 0)
    return m, alpha[:, 0] * l1 + beta[:, 0] * l2, acc


def subject(fn):
    """The Subject that a reader's function is: a merge of AccStates."""
    return Subject(fn.__name__, "merge", fn, kind=AccState)


def sample():
    """Arguments of a first call: one row on each side."""
    one, two = np.ones(1, np.float32), np.full((1, 2), 2, np.float32)
    return one, one, two, one, one, two
