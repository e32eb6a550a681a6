"""Split-KV attention of one query token a sequence in the memory of a CPU: the same bits in few steps of Python.

A model asks for it once a layer and token, and at some thousand keys the checks and general forms of
`split_kv_attention` take about as long as its sums. Here q, k and v are trusted to belong together.
"""

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.merge import _ordered_sum
from fdmath.attention.cores import pays, states_in_place
from fdmath.attention.decode import key_ranges
from fdmath.attention.reference import Call


def single_token_output(q, k, v, scale, tile=None, num_splits=None):
    """o (B, Hq, 1, dv) as split_kv_attention gives it for kind=LSEState, order=flat, bit for bit; None for "ask it".

    q (B, Hq, 1, d), k (B, Hkv, N, d), v (B, Hkv, N, dv): float32 torch tensors, all keys visible. None where they are
    of another dtype or device, where torch follows a derivative, for many heads of few keys, and where a state is empty
    or not finite.
    """
    arrays = [backends.in_memory(x) if backends.float_name(x) == "float32" else None for x in (q, k, v)]
    if any(x is None for x in arrays) or q.shape[2] != 1:
        return None
    call = _call(*arrays, float(scale), backends.threads(q))
    if not pays(call):
        return None
    m, l, acc = states_in_place(call, key_ranges(call.keys, tile, num_splits))
    if not (np.isfinite(m).all() and l.all()):
        return None
    lse = m + np.log(l)  # the pair of each tile: o = acc / l, lse = m + log l
    weight = np.exp(lse - lse.max(axis=0))  # `flat`
    total = _ordered_sum(weight)
    o = _ordered_sum(weight[..., None] * (acc / l[..., None])) / total[..., None]
    return backends.from_memory(o.reshape(call.out_shape), q)


def _call(q, k, v, scale, threads):
    """The Call that `prepare` makes of these NumPy arrays."""
    batch, heads, _, dim = q.shape
    group = heads // k.shape[1]
    folded = q.reshape(batch, k.shape[1], group, dim) * scale
    return Call(np, folded, k, v, group, 1, False, None, (*q.shape[:-1], v.shape[-1]), "float32", "float32", scale,
                threads)
