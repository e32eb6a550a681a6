"""Notebook 02: write the update of (m, l, acc) by one more key."""

import numpy as np

from fdmath.algebra.state import AccState
from fdmath.verify.subject import Subject

HINTS = (
    "The new level is the larger of `m` and `s`. What was gathered so far moves to it by the factor $e^{m-m'}$, `l` "
    "and `acc` alike; the new key weighs $e^{s-m'}$. Nothing is divided here.",
    "Before the first visible key $m=-\\infty$, and the key may be hidden, $s=-\\infty$: then $m'=-\\infty$ and "
    "$-\\infty-(-\\infty)$ is NaN. Subtract 0 instead of $m'$ there. A hidden key may hold NaN in `v`, and a weight "
    "of 0 does not remove it: `np.where` does, where `s` is $-\\infty$. (The NaN of a *visible* key must come out.)",
)


def my_update(m, l, acc, s, v):
    """(m, l, acc) with one more key: m, l and its score s have shape (R,), acc (R, dv), its value v (dv,)."""
    raise NotImplementedError


def answer(m, l, acc, s, v):
    """(m, l, acc) with one more key: m, l and its score s have shape (R,), acc (R, dv), its value v (dv,)."""
    new = np.maximum(m, s)
    level = np.where(new == -np.inf, 0, new)
    shrink, weight = np.exp(m - level), np.exp(s - level)
    term = np.where(s[:, None] == -np.inf, 0, weight[:, None] * v)
    return new, shrink * l + weight, shrink[:, None] * acc + term


def subject(fn):
    """The Subject that a reader's function is: the block that visits its keys once, updating by fn."""
    def block(scores, v):
        nothing = np.zeros(len(scores), scores.dtype)
        state = nothing - np.inf, nothing, np.zeros((len(scores), v.shape[1]), v.dtype)
        for j in range(len(v)):
            state = fn(*state, scores[:, j], v[j])
        return state

    return Subject(fn.__name__, "block", block, kind=AccState)


def sample():
    """Arguments of a first call: one row, which has seen one key."""
    one, two = np.ones(1, np.float32), np.full((1, 2), 2, np.float32)
    return one, one, two, one, two[0]
