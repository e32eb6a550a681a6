"""Notebook 01: write the safe softmax average of one block, in three passes, for scores of any format."""

import numpy as np

from fdmath.algebra.state import MLOState
from fdmath.verify.subject import Subject

HINTS = (
    "Three passes over the scores: the largest score `m` of each row; `l`, the sum of the weights $e^{s-m}$; "
    "`o`, the weights times the values, divided by `l`. Sixteen bits do not hold a long sum: turn scores and values "
    "into float32 first, unless they are float64 already.",
    "A score of $-\\infty$ is a key that the row does not see, and a row may see none: then $m = -\\infty$, and "
    "$-\\infty-(-\\infty)$ is NaN. Subtract 0 there instead, divide by 1 where `l` is 0. Without keys: "
    "`np.max(..., initial=-np.inf)`. The value of a key that no row sees may be NaN, and 0 times NaN is NaN: put 0 in "
    "its place with `np.where`.",
)


def my_average(scores, v):
    """(m, l, o) of one block: scores (Nq, N), −∞ where a key is not seen; v (N, dv); m, l (Nq,), o (Nq, dv).

    Scores and v may be float16, bfloat16, float32 or float64. Of a row that sees no key: m = −∞, l = 0, o = 0.
    """
    raise NotImplementedError


def answer(scores, v):
    """(m, l, o) of one block: scores (Nq, N), −∞ where a key is not seen; v (N, dv); m, l (Nq,), o (Nq, dv).

    Scores and v may be float16, bfloat16, float32 or float64. Of a row that sees no key: m = −∞, l = 0, o = 0.
    """
    work = np.float64 if scores.dtype == np.float64 else np.float32
    scores, v = scores.astype(work), v.astype(work)
    m = np.max(scores, axis=-1, initial=-np.inf)
    weights = np.exp(scores - np.where(m == -np.inf, 0, m)[:, None])
    l = np.sum(weights, axis=-1)
    seen = np.any(scores > -np.inf, axis=0)
    return m, l, weights @ np.where(seen[:, None], v, 0) / np.where(l == 0, 1, l)[:, None]


def subject(fn):
    """The Subject that a reader's function is: a block of triples, asked in every format."""
    return Subject(fn.__name__, "block", fn, kind=MLOState, dtypes=("float32", "float64", "float16", "bfloat16"))


def sample():
    """Arguments of a first call: one query, two keys."""
    return np.zeros((1, 2), np.float32), np.ones((2, 1), np.float32)
