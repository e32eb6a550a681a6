"""Notebook 07: write FlashDecoding for a batch of sequences of different lengths."""

import numpy as np

from fdmath.verify.subject import Subject

HINTS = (
    "Query head `h` reads KV head `h // g` with `g = Hq // Hkv`, and sequence `b` has only its first `seq_lens[b]` "
    "keys. Cut *those* into `num_splits` parts, part `i` from `i * n // num_splits` to `(i + 1) * n // num_splits`. "
    "Each part gives `m`, `l` and `acc`; fold them by ⊕ (notebook 03, equation 10) into a running state that "
    "starts as `m` $= -\\infty$, `l = 0`, `acc = 0`. At the end `o = acc / l` and the log-sum-exp is `m + log(l)`.",
    "With more parts than keys some parts are empty and have no largest score: they add nothing, so skip them. A "
    "sequence of length 0 is the state of no keys, `o = 0` and $-\\infty$. Slots beyond the length may hold NaN, and "
    "0 times NaN is NaN: slice them away instead of giving them the weight 0.",
)


def my_decode(q, k, v, seq_lens, num_splits):
    """(o, lse) of one query a head: q (B, Hq, 1, d), k (B, Hkv, N, d), v (B, Hkv, N, dv), seq_lens (B,) integers.

    Sequence b has the keys 0 ≤ j < seq_lens[b]. o: (B, Hq, 1, dv), lse: (B, Hq, 1); scores are q·k / √d.
    """
    raise NotImplementedError


def answer(q, k, v, seq_lens, num_splits):
    """(o, lse) of one query a head: q (B, Hq, 1, d), k (B, Hkv, N, d), v (B, Hkv, N, dv), seq_lens (B,) integers.

    Sequence b has the keys 0 ≤ j < seq_lens[b]. o: (B, Hq, 1, dv), lse: (B, Hq, 1); scores are q·k / √d.
    """
    o, lse = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), np.full(q.shape[:-1], -np.inf, q.dtype)
    group = q.shape[1] // k.shape[1]
    for b, h in np.ndindex(q.shape[:2]):
        n, m, l, acc = int(seq_lens[b]), -np.inf, 0, 0
        for i in range(num_splits):
            part = slice(i * n // num_splits, (i + 1) * n // num_splits)
            scores = k[b, h // group, part] @ (q[b, h, 0] * q.shape[-1] ** -0.5)
            if len(scores) == 0:
                continue
            new = max(m, scores.max())
            weights, alpha = np.exp(scores - new), np.exp(m - new)
            m, l, acc = new, alpha * l + weights.sum(), alpha * acc + weights @ v[b, h // group, part]
        if n:
            o[b, h, 0], lse[b, h, 0] = acc / l, m + np.log(l)
    return o, lse


def subject(fn):
    """The Subject that a reader's function is: a decode step."""
    return Subject(fn.__name__, "decode", fn)


def sample():
    """Arguments of a first call: one head, two keys, two parts."""
    q, k, v = (np.ones((1, 1, n, 1), np.float32) for n in (1, 2, 2))
    return q, k, v, np.array([2]), 2
