"""What comes in: exact conversion, visibility, and refusal of what has no exact answer."""

import numpy as np


def require(condition, name, expected, got):
    """Nothing; raises ValueError naming the argument, what was expected and what came."""
    if not condition:
        raise ValueError(f"{name}: expected {expected}, got {got}")


def exact_float64(values, name):
    """The NumPy fp64 array equal to a floating-point array, value by value.

    Takes NumPy arrays (ml_dtypes formats included), torch tensors on any device, and
    nested lists of floats.  Raises TypeError for a dtype that fp64 does not contain.
    """
    if hasattr(values, "detach"):
        values = values.detach().cpu()
        if not values.is_floating_point():
            raise TypeError(f"{name}: expected a floating-point dtype of at most 64 bits, got {values.dtype}")
        values = values.double().numpy()
    values = np.asarray(values)
    if values.dtype.kind in "biu" or not np.can_cast(values.dtype, np.float64):
        raise TypeError(f"{name}: expected a floating-point dtype of at most 64 bits, got {values.dtype}")
    return values.astype(np.float64)


def boolean(values, name, shape):
    """The boolean array of `shape` that a mask broadcasts to; all True for None."""
    if values is None:
        return np.ones(shape, dtype=bool)
    values = np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)
    if values.dtype != bool:
        raise TypeError(f"{name}: expected booleans, True = visible, got {values.dtype}")
    try:
        return np.broadcast_to(values, shape)
    except ValueError:
        raise ValueError(f"{name}: expected a shape that broadcasts to {shape}, got {values.shape}") from None


def seen_values(values, seen, name):
    """`values` (…, n, width) with zeros where `seen` (…, n) is False, never reading what is not seen.

    Raises ValueError if a seen value is not finite: the definition then has no real answer.
    """
    values = np.where(seen[..., None], values, 0.0)
    require(bool(np.all(np.isfinite(values))), name, "finite values at every visible place", "NaN or an infinity")
    return values


def exponent(values):
    """The least integer e with |x| < 2**e for every x of a finite array; 0 for none or zeros."""
    largest = float(np.max(np.abs(values), initial=0.0))
    return int(np.frexp(largest)[1])


def head_groups(q, k, v, causal, mask):
    """The calls of one KV head each: q (G, R, d), k (G, N, d), v (G, N, dv), seen (G, R, N).

    The R rows are the queries of all query heads that read the KV head.  q is
    (…, Hq, Nq, d), k (…, Hkv, Nkv, d), v (…, Hkv, Nkv, dv), with at least 2 axes (one head).
    Raises ValueError for shapes that do not fit.
    """
    require(min(q.ndim, k.ndim, v.ndim) >= 2 and q.ndim == k.ndim == v.ndim, "q, k, v",
            "at least 2 axes, the same number each", f"shapes {q.shape}, {k.shape}, {v.shape}")  # fmt: skip
    require(q.shape[-1] == k.shape[-1] >= 1, "k", f"head dim {q.shape[-1]} >= 1", k.shape[-1])
    require(k.shape[:-1] == v.shape[:-1], "v", f"shape {k.shape[:-1]} but for its last axis", v.shape)
    if q.ndim == 2:
        q, k, v = q[None], k[None], v[None]
    require(q.shape[:-3] == k.shape[:-3], "k", f"leading axes {q.shape[:-3]}", k.shape[:-3])
    (heads, rows), (kv_heads, keys) = q.shape[-3:-1], k.shape[-3:-1]
    require(kv_heads > 0 and heads % kv_heads == 0, "q", f"a multiple of {kv_heads} heads", heads)
    seen = boolean(mask, "mask", (*q.shape[:-1], keys))
    if causal:
        # Bottom-right: the last query sees the last key.
        seen = seen & (np.arange(keys) <= np.arange(rows)[:, None] + keys - rows)
    groups = int(np.prod(k.shape[:-2], dtype=int))
    rows = rows * (heads // kv_heads)
    return (
        q.reshape(groups, rows, q.shape[-1]),
        k.reshape(groups, keys, k.shape[-1]),
        v.reshape(groups, keys, v.shape[-1]),
        seen.reshape(groups, rows, keys),
    )
