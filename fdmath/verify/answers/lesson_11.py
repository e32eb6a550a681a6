"""Notebook 11: join the states of the warps of a thread block, through the memory that they share."""

import numpy as np

from fdmath.algebra.state import AccState
from fdmath.attention.softmax import partial_state
from fdmath.attention.warps import shares
from fdmath.cost.shared import SharedMemory
from fdmath.cost.warps import forward_split_k
from fdmath.verify.subject import Subject

FIRST = "anchor"

WARPS = 3
"""Warps of the judge's block: often one of them has no key, or no row."""

HINTS = (
    "Before the barrier each warp `w` writes what it has, three pieces under three names, as matrices: "
    "`shared.write(\"max\", m[:, None], w)`, and so on; `acc` is a matrix already. After it, whoever is to finish the "
    "rows `mine` reads those rows of *every* warp's pieces, `shared.read(\"max\", u, mine)`, and joins them by "
    "equation (6): the largest $m$, a factor for each warp, two sums.",
    "A warp without a key has $m=-\\infty$. If all are so, $-\\infty-(-\\infty)$ is NaN: subtract 0 then, and divide "
    "by 1 in place of $l=0$. Read only the rows that you finish: the judge counts. Rows come back as matrices: "
    "`m` and `l` of `n` rows have the shape `(n, 1)`.",
)


def my_exchange(shared, states, rows):
    """(o, lse) of all keys, o (R, dv), lse (R,), from the states of the warps, which meet in shared memory only.

    states: for each warp (m (R,), l (R,), acc (R, dv)) of its own keys; rows: for each warp the slice of rows that
    it finishes. shared.write(name, matrix, warp), shared.barrier(), shared.read(name, warp, rows).
    """
    raise NotImplementedError


def answer(shared, states, rows):
    """(o, lse) of all keys, o (R, dv), lse (R,), from the states of the warps, which meet in shared memory only.

    states: for each warp (m (R,), l (R,), acc (R, dv)) of its own keys; rows: for each warp the slice of rows that
    it finishes. shared.write(name, matrix, warp), shared.barrier(), shared.read(name, warp, rows).
    """
    for w, (m, l, acc) in enumerate(states):
        for name, piece in ("max", m[:, None]), ("sum", l[:, None]), ("out", acc):
            shared.write(name, piece, w)
    shared.barrier()
    o, lse = [], []
    for mine in rows:
        m, l, acc = (np.stack([shared.read(name, u, mine) for u in range(len(states))])
                     for name in ("max", "sum", "out"))
        level = m.max(axis=0)
        factor = np.exp(m - np.where(level == -np.inf, 0, level))
        total = np.sum(factor * l, axis=0)
        o.append(np.sum(factor * acc, axis=0) / np.where(total == 0, 1, total))
        lse.append((level + np.log(total))[:, 0])
    return np.concatenate(o), np.concatenate(lse)


def subject(fn):
    """The Subject that a reader's function is: the state of a block of keys that are shared out among WARPS warps."""
    return Subject(fn.__name__, "block", lambda scores, v: exchanged(fn, scores, v))


def exchanged(fn, scores, v):
    """(o, lse) by `fn` from warps that have made states of their keys.

    Raises ValueError where more numbers are written or read than one exchange needs, or too few are read.
    """
    shared, rows = SharedMemory(), shares(len(scores), WARPS)
    states = [partial_state(scores[:, keys], v[keys], AccState) for keys in shares(len(v), WARPS)]
    got = fn(shared, [(s.m, s.l, s.acc) for s in states], rows)
    if scores.shape[0] and v.shape[1]:
        _check_counts(shared.counts, *scores.shape[:1], *v.shape[1:])
    return got


def _check_counts(counts, rows, width):
    """Nothing; raises ValueError for counts that are not those of one exchange.

    At most what the maxima (which every warp may read, and once more those of its rows), sums and products are; at
    least the products are read.
    """
    law = forward_split_k(rows, 1, width, 1, WARPS)
    where = f"{rows} rows of {width} values, {WARPS} warps"
    for words, got, side, more in (("writes", counts.written, law.written, 0),
                                   ("reads", counts.read, law.read, law.written["max"])):
        most = sum(side[name] for name in ("max", "sum", "out")) + more
        if got.total() > most:
            raise ValueError(f"it moves too much, {words} {got.total()} numbers where {most} will do: {where}")
    if counts.read.total() < law.read["out"]:
        read, products = counts.read.total(), law.read["out"]
        raise ValueError(f"it reads {read} numbers, less than the {products} of the products: {where}")


def sample():
    """Arguments of a first call: two warps with a key each, two rows."""
    state = np.zeros(2), np.ones(2), np.ones((2, 1))
    return SharedMemory(), [state, state], shares(2, 2)
