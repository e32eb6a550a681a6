"""FlashDecoding of one query token a sequence in the memory of a CPU, in few steps of Python.

A model asks for it once a layer and token; at some thousand keys the checks and general forms of
`split_kv_attention` would take about as long as the sums. Here the tiles of all heads are computed at once, and
q, k and v are trusted to belong together.
"""

import numpy as np

from fdmath import _backends as backends

TILE = 128
"""Keys a tile: so small a product BLAS computes where its operands lie (see `cores.block_keys`)."""


def single_token_attention(q, k, v, scale, tile=TILE):
    """(o, lse), attention of one query token a sequence to all its keys; None for "ask split_kv_attention".

    q (B, Hq, 1, d), k (B, Hkv, N, d), v (B, Hkv, N, dv): torch tensors, N ≥ 1; o (B, Hq, 1, dv), lse (B, Hq, 1). The
    sums of split_kv_attention with this tile, kind=AccState, order=flat, within the same budget. None where the tensors
    are not float32 on a CPU, where torch follows a derivative, and where a tile's largest score is not finite.
    """
    arrays = [backends.in_memory(x) if backends.float_name(x) == "float32" else None for x in (q, k, v)]
    if q.shape[2] != 1 or any(x is None for x in arrays):
        return None
    rows, k, v = arrays
    batch, heads, _, dim = rows.shape
    rows = (rows.reshape(batch, k.shape[1], heads // k.shape[1], dim) * scale)[:, :, None]
    with backends.quiet():
        m, l, acc = (np.concatenate(x, axis=2) for x in zip(*_states(rows, k, v, tile), strict=True))
        if not np.isfinite(m).all():
            return None
        top = m.max(axis=2)
        weight = np.exp(m - top[:, :, None])  # `flat`, of triples
        total = (weight * l).sum(axis=2)
        o = (weight[..., None] * acc).sum(axis=2) / total[..., None]
        lse = top + np.log(total)
    return tuple(backends.from_memory(x, q) for x in (o.reshape(batch, heads, 1, -1), lse.reshape(batch, heads, 1)))


def _states(rows, k, v, tile):
    """The (m, l, acc) of the whole tiles, and of the short one after them: (B, Hkv, T, R), (…, R), (…, R, dv)."""
    keys = k.shape[2]
    whole = keys - keys % tile
    for start, stop, length in ((0, whole, tile), (whole, keys, keys - whole)):
        if start < stop:
            cut = (*k.shape[:2], -1, length)
            s = rows @ k[:, :, start:stop].reshape(*cut, k.shape[-1]).swapaxes(-1, -2)
            m = s.max(axis=-1)
            s -= m[..., None]
            p = np.exp(s, out=s)
            yield m, p.sum(axis=-1), p @ v[:, :, start:stop].reshape(*cut, v.shape[-1])
