"""Attention of one query token a sequence in the memory of a CPU, in few steps of Python.

A model asks for it once a layer and token; at some thousand keys the checks and general forms of
`split_kv_attention` would take about as long as the sums. Here all keys are one part, which no ⊕ follows, the library
that holds the tensors computes on its own threads, and q, k and v are trusted to belong together.
"""

import math

from fdmath import _backends as backends


def single_token_attention(q, k, v, scale):
    """(o, lse), attention of one query token a sequence to all its keys; None for "ask split_kv_attention".

    q (B, Hq, 1, d), k (B, Hkv, N, d), v (B, Hkv, N, dv): torch tensors, N ≥ 1; o (B, Hq, 1, dv), lse (B, Hq, 1). The
    sums of split_kv_attention with num_splits=1 and kind=AccState, within the same budget. None where the tensors are
    not float32 on a CPU, where torch follows a derivative, and where an lse is not finite.
    """
    followed = k.requires_grad or v.requires_grad or backends.followed(q)
    if followed or not q.is_cpu or q.shape[2] != 1 or backends.float_name(q) != "float32":
        return None
    batch, heads, _, dim = q.shape
    scores = (q.reshape(batch, k.shape[1], heads // k.shape[1], dim) * scale) @ k.swapaxes(-1, -2)
    m = scores.amax(-1, keepdim=True)
    weights = scores.sub_(m).exp_()
    l = weights.sum(-1, keepdim=True)
    lse = m + l.log()
    if not math.isfinite(lse.sum().item()):
        return None
    return (weights @ v / l).reshape(batch, heads, 1, -1), lse.reshape(batch, heads, 1)
