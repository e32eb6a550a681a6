"""Notebook 13: causal attention of a batch of prompts that are padded on the left."""

import numpy as np

from fdmath.verify.subject import Subject

FIRST = "anchor"

PADDING = 3
"""Slots before the first token of the judge's sequences, with NaN in them."""

HINTS = (
    "The last query stands at the last key, so query `i` stands at `i + N - Nq`, where `N` and `Nq` count padding too. "
    "In sequence `b` it sees the keys from `starts[b]` up to its own place. Query head `h` reads KV head `h // g` with "
    "`g = Hq // Hkv`.",
    "A query that stands before `starts[b]` sees no key; its row is 0. Padding may hold NaN, and 0 times NaN is NaN, "
    "so slice it away: a score of $-10000$ or a weight of 0 does not hide it.",
)


def my_padded_attention(q, k, v, starts):
    """o (B, Hq, Nq, dv) of q (B, Hq, Nq, d), k (B, Hkv, N, d), v (B, Hkv, N, dv), causal, starts (B,) integers.

    Sequence b has the keys starts[b] ≤ j < N; what is before is padding. Scores are q·k / √d.
    """
    raise NotImplementedError


def answer(q, k, v, starts):
    """o (B, Hq, Nq, dv) of q (B, Hq, Nq, d), k (B, Hkv, N, d), v (B, Hkv, N, dv), causal, starts (B,) integers.

    Sequence b has the keys starts[b] ≤ j < N; what is before is padding. Scores are q·k / √d.
    """
    o = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype)
    group, cached = q.shape[1] // k.shape[1], k.shape[2] - q.shape[2]
    for b, h, i in np.ndindex(q.shape[:3]):
        seen = slice(starts[b], max(starts[b], i + cached + 1))
        scores = k[b, h // group, seen] @ (q[b, h, i] * q.shape[-1] ** -0.5)
        if len(scores):
            weights = np.exp(scores - scores.max())
            o[b, h, i] = weights @ v[b, h // group, seen] / weights.sum()
    return o


def subject(fn):
    """The Subject that a reader's function is: attention, asked for in a padded batch."""
    return Subject(fn.__name__, "attention", lambda *call: in_a_padded_batch(fn, *call), lse=False)


def in_a_padded_batch(fn, q, k, v, causal):
    """o of attention by fn(q, k, v, starts), for which the sequences stand behind PADDING slots of NaN.

    In front of the batch is one sequence without padding. A prompt, Nq = N, has padding among its queries too, and
    ValueError is raised unless fn leaves 0 there. Not causal: each query is the last one of a call of its own.
    """
    if not causal and q.shape[2] > 1:
        alone = [in_a_padded_batch(fn, q[:, :, [i]], k, v, True) for i in range(q.shape[2])]
        return np.concatenate(alone, axis=2)
    before = PADDING if q.shape[2] == k.shape[2] else 0
    starts = np.array([0] + [PADDING] * len(q))
    o = fn(_padded(q, before), _padded(k, PADDING), _padded(v, PADDING), starts)
    if not np.all(np.asarray(o[1:, :, :before]) == 0):
        raise ValueError("the rows of queries that are padding must be 0")
    return o[1:, :, before:]


def _padded(x, slots):
    """x (B, H, n, d) behind so many slots of NaN, and in front of it one sequence of ones in all of them."""
    nothing = np.full((*x.shape[:2], slots, x.shape[3]), np.nan, x.dtype)
    return np.concatenate([np.ones((1, x.shape[1], x.shape[2] + slots, x.shape[3]), x.dtype),
                           np.concatenate([nothing, x], axis=2)])


def sample():
    """Arguments of a first call: one head, two keys, one of them padding."""
    q, k, v = (np.ones((1, 1, 2, 1), np.float32) for _ in range(3))
    return q, k, v, np.array([1])
