"""Notebook 00: write the attention state of one block of keys."""

import numpy as np

from fdmath.verify.subject import Subject

HINTS = (
    "Three steps: the largest score `m` of each row; the weights $e^{s-m}$; then `l`, the sum of the weights, and "
    "`o`, the weighted mean `weights @ v / l`. The log-sum-exp is `m + log(l)`.",
    "A score of $-\\infty$ is a key that the row does not see. A row that sees no key has $m=-\\infty$: subtract 0 "
    "there, divide by 1 where `l` is 0, and let the log-sum-exp be $-\\infty$. A block without keys has no largest "
    "score: `np.max(..., initial=-np.inf)`. A key that no row sees may hold NaN in `v`, and a weight of 0 times NaN "
    "is NaN: replace such rows of `v` with `np.where`.",
)


def my_block(scores, v):
    """(o, lse) of one block: scores (Nq, N), −∞ where a key is not seen; v (N, dv); o (Nq, dv), lse (Nq,).

    N may be 0, and a row may see no key: its o is 0, its lse −∞. Where no row sees key j, v[j] may hold NaN.
    """
    raise NotImplementedError


def answer(scores, v):
    """(o, lse) of one block: scores (Nq, N), −∞ where a key is not seen; v (N, dv); o (Nq, dv), lse (Nq,).

    N may be 0, and a row may see no key: its o is 0, its lse −∞. Where no row sees key j, v[j] may hold NaN.
    """
    m = np.max(scores, axis=-1, initial=-np.inf)
    weights = np.exp(scores - np.where(m == -np.inf, 0, m)[:, None])
    l = np.sum(weights, axis=-1)
    divisor = np.where(l == 0, 1, l)
    seen = np.any(scores > -np.inf, axis=0)
    o = weights @ np.where(seen[:, None], v, 0) / divisor[:, None]
    return o, m + np.log(divisor)


def subject(fn):
    """The Subject that a reader's function is: a block."""
    return Subject(fn.__name__, "block", fn)


def sample():
    """Arguments of a first call: one query, two keys."""
    return np.zeros((1, 2), np.float32), np.ones((2, 1), np.float32)
