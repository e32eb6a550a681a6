"""Notebook 05: merge many pairs by a tree, a whole level at a time."""

import math

import numpy as np

from fdmath.algebra.merge import merge
from fdmath.algebra.state import LSEState, canonical
from fdmath.verify.subject import Subject

HINTS = (
    "One level is one call: `merge(o[0::2], lse[0::2], o[1::2], lse[1::2])` merges all pairs of neighbours. Repeat "
    "until one part is left, and return that one.",
    "With an odd number of parts the last one has no neighbour. Append the state of no keys, which changes nothing: "
    "$o = 0$, lse $= -\\infty$ (`np.zeros_like`, `np.full_like`, `np.concatenate`).",
)


def my_tree(merge, o, lse):
    """(o, lse) of all parts together, one call of `merge` a level: o has shape (P, R, dv), lse has shape (P, R), P ≥ 1.

    merge(o1, lse1, o2, lse2) → (o, lse) merges as many pairs of parts as its arrays hold.
    """
    raise NotImplementedError


def answer(merge, o, lse):
    """(o, lse) of all parts together, one call of `merge` a level: o has shape (P, R, dv), lse has shape (P, R), P ≥ 1.

    merge(o1, lse1, o2, lse2) → (o, lse) merges as many pairs of parts as its arrays hold.
    """
    while len(o) > 1:
        if len(o) % 2:
            o = np.concatenate([o, np.zeros_like(o[:1])])
            lse = np.concatenate([lse, np.full_like(lse[:1], -np.inf)])
        o, lse = merge(o[0::2], lse[0::2], o[1::2], lse[1::2])
    return o[0], lse[0]


def subject(fn):
    """The Subject that a reader's tree is: a merge of many that must call ⊕ ⌈log₂ P⌉ times for P parts."""
    def merge_many(o, lse):
        calls, parts = [], len(o)
        result = fn(lambda *sides: calls.append(None) or pair_merge(*sides), *canonical(LSEState(o, lse)))
        levels = math.ceil(math.log2(parts))
        if len(calls) != levels:
            raise ValueError(f"merge was called {len(calls)} times for {parts} parts; a tree takes {levels}, one a "
                             "level")
        return result

    return Subject(fn.__name__, "merge_many", merge_many)


def pair_merge(o1, lse1, o2, lse2):
    """(o, lse) of ⊕ of pairs given as plain arrays."""
    return tuple(merge(LSEState(o1, lse1), LSEState(o2, lse2)))


def sample():
    """Arguments of a first call: ⊕, and two parts of one row."""
    return pair_merge, np.zeros((2, 1, 1), np.float32), np.zeros((2, 1), np.float32)
