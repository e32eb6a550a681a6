"""Right functions that speak many conventions, written from their definitions in NumPy for the probe to be tried on."""

import math

import ml_dtypes
import numpy as np

FORMATS = {"bfloat16": ml_dtypes.bfloat16, "float16": np.float16, "float32": np.float32, "float64": np.float64}


def rounded(x, name):
    """x rounded to a format and back in float64; "tf32" rounds the last 13 bits of float32 away."""
    with np.errstate(over="ignore"):
        if name != "tf32":
            return np.asarray(x).astype(FORMATS[name]).astype(np.float64)
        bits = np.asarray(x, np.float32).view(np.uint32)
        even = (bits >> np.uint32(13)) & np.uint32(1)
        return ((bits + np.uint32(0xFFF) + even) & ~np.uint32(0x1FFF)).view(np.float32).astype(np.float64)


def summed(scores, v, *, base=math.e, none=-np.inf, none_o=0.0, p="float64", stats="float64", divide=True, first=False):
    """(o, lse) of scores (…, N), −∞ hidden, and v (N, dv) or (…, N, dv), by the words of its options.

    base: of lse. none, none_o: lse and o of no keys. p, stats: formats of the weights and of m, l and lse. divide: o is
    divided by l. first: weights are divided by l before they are rounded.
    """
    with np.errstate(invalid="ignore", divide="ignore"):
        m = scores.max(axis=-1, initial=-np.inf)
        weights = np.exp(scores - np.where(np.isneginf(m), 0, m)[..., None])
        l = weights.sum(axis=-1)
        weights = weights / l[..., None] if first else weights
        weights = np.where(np.isneginf(scores), 0, weights)
        o = np.einsum("...n,...nd->...d", rounded(weights, p), v)
        o = o / l[..., None] if divide and not first else o
        lse = rounded((m + np.log(l)) / math.log(base), stats)
    empty = np.isneginf(m)
    return np.where(empty[..., None], none_o, o), np.where(empty, none, lse)


def speaker(role="attention", *, heads="interleaved", causal="bottom_right", layout="heads_first", scale=None,
            scores="float64", splits="ignored", **options):
    """A function of the roles partial, decode or attention, in float64 inside, its results in q's format.

    scale: a function of d. scores: the format to which q and k are rounded. splits: "used" has each split summed apart.
    """
    def fn(q, k, v, *rest):
        dtype = q.dtype
        q, k, v = (np.asarray(x).astype(np.float64) for x in (q, k, v))
        group = q.shape[1] // k.shape[1]
        which = np.arange(q.shape[1])
        which = which % k.shape[1] if heads == "tiled" else which // group
        k, v = k[:, which], v[:, which]
        s = rounded(q, scores) @ rounded(k, scores).swapaxes(-1, -2)
        s = s * (q.shape[-1] ** -0.5 if scale is None else scale(q.shape[-1]))
        s = np.where(_sees(role, rest, s.shape, causal), s, -np.inf)
        o, lse = summed(s, v[:, :, None], **options)
        if splits == "used" and role == "decode":
            o = _added_in_parts(s, v, rest[1])
        lse = lse.swapaxes(1, 2) if layout == "heads_last" else lse
        return o.astype(dtype), np.ascontiguousarray(lse).astype(np.float64 if dtype == np.float64 else np.float32)

    return fn


def _sees(role, rest, shape, causal):
    """Which keys each query sees, as causal or the lengths say."""
    rows, keys = np.arange(shape[-2])[:, None], np.arange(shape[-1])
    if role == "decode":
        return keys < np.asarray(rest[0])[:, None, None, None]
    if role == "attention" and rest[0] and causal != "ignored":
        return keys <= rows + (shape[-1] - shape[-2] if causal == "bottom_right" else 0)
    return np.ones(shape[-2:], bool)


def _added_in_parts(s, v, parts):
    """o in float32, its sums taken split by split."""
    weights = np.exp(s - s.max(axis=-1, keepdims=True)).astype(np.float32)
    chunks = np.array_split(np.arange(s.shape[-1]), parts)
    o, l = np.float32(0), np.float32(0)
    for chunk in chunks:
        o = o + weights[..., chunk] @ v[..., chunk, :].astype(np.float32)
        l = l + weights[..., chunk].sum(axis=-1, keepdims=True)
    return o / l


def merger(*, base=math.e, weighed=None, weights="float64", levels="float64", empty=-np.inf):
    """A merge of two pairs: lse in `base`, weights in the base `weighed`, both formats as named; `empty` is neutral."""
    def fn(o1, lse1, o2, lse2):
        dtype = o1.dtype
        b = weighed or base
        s = [np.where(np.asarray(x) == empty, -np.inf, np.asarray(x).astype(np.float64)) for x in (lse1, lse2)]
        s = [np.where(np.isneginf(x), x, rounded(x, levels)) for x in s]
        m = np.maximum(*s)
        with np.errstate(invalid="ignore", divide="ignore"):
            w = [rounded(np.power(float(b), x - np.where(np.isneginf(m), 0, m)), weights) for x in s]
            lse = np.logaddexp(*(x * math.log(base) for x in s)) / math.log(base)
        total = np.where(np.isneginf(m), 1, w[0] + w[1])
        o = sum(np.where(x[:, None] == 0, 0, x[:, None] * y) for x, y in zip(w, (o1, o2), strict=True))
        return (o / total[:, None]).astype(dtype), np.where(np.isneginf(m), empty, lse).astype(dtype)

    return fn
