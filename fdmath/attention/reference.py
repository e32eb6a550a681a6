"""Attention by definition and its gradient by definition; checks, masks and head grouping for all calls.

Inside, the query heads that share a KV head are folded into its rows: q (…, Hq, Nq, d) becomes
(…, Hkv, g·Nq, d) with g = Hq/Hkv, so that query head h reads KV head h // g without a copy of k or v.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState
from fdmath.attention.softmax import partial_state


@dataclass(frozen=True)
class Call:
    """One checked attention call: grouped arrays in working format, and what decides who sees what.

    q (…, Hkv, g·Nq, d) already scaled, in working format; k (…, Hkv, N, d) and v (…, Hkv, N, dv) as they came,
    to be read through `key_rows` and `value_rows`; mask None or (…, Hq, Nq, N).
    Rows of q that see no key, and of k and v that no query sees, may hold anything until `without_unseen`.
    """

    xp: object
    q: object
    k: object
    v: object
    group: int
    queries: int
    causal: bool
    mask: object
    out_shape: tuple
    out_dtype: str
    stats_dtype: str
    scale: float
    threads: int

    @property
    def keys(self):
        return self.k.shape[-2]

    @property
    def work(self):
        """The name of the format that the work is done in."""
        return backends.float_name(self.q)

    def key_rows(self, start=0, stop=None):
        """k of keys start ≤ j < stop in working format; only these are converted."""
        return backends.cast(self.k[..., start:stop, :], self.work)

    def value_rows(self, start=0, stop=None):
        """v of keys start ≤ j < stop in working format; only these are converted."""
        return backends.cast(self.v[..., start:stop, :], self.work)

    def scores(self, start, stop):
        """The scaled scores of keys start ≤ j < stop, (…, Hkv, g·Nq, stop − start); −∞ where not visible.

        Each score is the product of the scaled q with k; what that rounds is bounded by `score_error`.
        """
        with backends.quiet():
            products = self.q @ self.xp.matrix_transpose(self.key_rows(start, stop))
        visible = self.visible(start, stop)
        return products if visible is None else backends.filled(self.xp, products, ~visible, float("-inf"))

    def visible(self, start, stop, head=()):
        """A boolean array that broadcasts to the scores of keys start ≤ j < stop; None if all are visible.

        head: the indices (…, h) of one KV head, whose rows are then meant alone.
        """
        seen = None
        if self.causal:
            seen = causal_mask(self.xp, self.queries, self.keys, self.k, start, stop)
            seen = self.xp.tile(seen, (self.group, 1))
        if self.mask is not None:
            *batch, first = head or (0,)
            own = (*batch, slice(first * self.group, (first + 1) * self.group)) if head else ()
            allowed = self.mask[own][..., start:stop]
            rows = self.q.shape[:-1] if not head else self.q.shape[-2:-1]
            allowed = self.xp.reshape(allowed, (*rows, stop - start))
            seen = allowed if seen is None else seen & allowed
        return seen

    def without_unseen(self):
        """The same call with zeros in place of what nothing reads: queries without a key, keys without a query.

        A score of −∞ hides what they hold from the result; its gradient is a product with them, and 0·NaN is NaN.
        Nothing is copied where all is read.
        """
        visible = self.visible(0, self.keys)
        if visible is None:
            return self
        blank = {"q": ~self.xp.any(visible, axis=-1), "k": ~self.xp.any(visible, axis=-2)}
        blank["v"] = blank["k"]
        return replace(self, **{name: backends.filled(self.xp, getattr(self, name), rows[..., None], 0.0)
                                for name, rows in blank.items() if bool(self.xp.any(rows))})

    def in_memory(self):
        """The same call with its arrays as NumPy sees them in the memory of the CPU; None where it cannot."""
        arrays = {name: getattr(self, name) for name in ("q", "k", "v", "mask")}
        seen = {name: backends.in_memory(x) for name, x in arrays.items() if x is not None}
        return None if any(x is None for x in seen.values()) else replace(self, xp=backends.numpy_namespace, **seen)

    def finish(self, state):
        """The result of the call: the LSEState with the heads ungrouped and o rounded once to its format."""
        o, lse = state.finalize()
        o = self.xp.reshape(o, self.out_shape)
        return LSEState(backends.cast(o, self.out_dtype), self.xp.reshape(lse, self.out_shape[:-1]))


def causal_mask(xp, queries, keys, like, start=0, stop=None):
    """The boolean mask aligned bottom-right, query i sees key j iff j ≤ i + Nkv − Nq, for start ≤ j < stop: (Nq, …)."""
    device = getattr(like, "device", None)
    i = xp.arange(queries, device=device)[:, None]
    j = xp.arange(start, keys if stop is None else stop, device=device)[None, :]
    return j <= i + (keys - queries)


def prepare(q, k, v, *, causal=False, scale=None, mask=None, out_dtype=None, stats_dtype=None):
    """The checked and grouped Call for q (…, Hq, Nq, d), k (…, Hkv, Nkv, d), v (…, Hkv, Nkv, dv).

    Raises TypeError for kinds and dtypes, ValueError for shapes and values, before any work is done.
    """
    xp = backends.array_namespace(q=q, k=k, v=v, **({} if mask is None else {"mask": mask}))
    names = {name: backends.float_name(x, name) for name, x in (("q", q), ("k", k), ("v", v))}
    for name in ("k", "v"):
        if names[name] != names["q"]:
            raise TypeError(f"{name} must have the dtype of q, {names['q']}; got {names[name]}")
    check_shapes(q, k, v)
    if not isinstance(causal, (bool, np.bool_)):
        raise TypeError(f"causal must be True or False; got {causal!r}")
    scale = check_scale(scale, q.shape[-1])
    work = backends.working(names["q"])
    if math.isinf(backends.cast(np.asarray(scale), work)):
        raise ValueError(f"scale must be finite in {work}; got {scale!r}")
    out = names["q"] if out_dtype is None else backends.float_name(out_dtype, "out_dtype")
    stats = work if stats_dtype is None else backends.float_name(stats_dtype, "stats_dtype")
    out_shape = (*q.shape[:-1], v.shape[-1])
    mask = check_mask(xp, mask, (*q.shape[:-1], k.shape[-2]))
    group = q.shape[-3] // k.shape[-3] if q.ndim > 2 else 1
    queries, q = q.shape[-2], backends.cast(q, work)
    folded = xp.reshape(q, (*k.shape[:-2], group * queries, q.shape[-1]))
    hides = bool(causal) and queries > 1  # aligned bottom-right, a single query sees every key
    call = Call(xp, folded * scale, k, v, group, queries, hides, mask, out_shape, out, stats, scale,
                backends.threads(q))
    return call


def check_shapes(q, k, v):
    """Nothing; raises ValueError where q, k and v do not belong together, naming the argument."""
    for name, x in (("q", q), ("k", k), ("v", v)):
        if x.ndim < 2:
            raise ValueError(f"{name} must have at least 2 axes, (…, heads, rows, dim); got shape {tuple(x.shape)}")
        if x.ndim != q.ndim:
            raise ValueError(f"{name} must have as many axes as q, {q.ndim}; got shape {tuple(x.shape)}")
        if tuple(x.shape[:-3]) != tuple(q.shape[:-3]):
            raise ValueError(f"{name} must have the leading axes of q, {tuple(q.shape[:-3])}; got "
                             f"{tuple(x.shape[:-3])} (they are never broadcast)")
    if k.shape[-1] != q.shape[-1]:
        raise ValueError(f"k must have the head dimension of q, {q.shape[-1]}; got {k.shape[-1]}")
    if q.shape[-1] < 1:
        raise ValueError("q must have a head dimension of at least 1; got 0")
    if tuple(v.shape[:-1]) != tuple(k.shape[:-1]):
        raise ValueError(f"v must have the heads and keys of k, {tuple(k.shape[:-1])}; got {tuple(v.shape[:-1])}")
    if q.ndim > 2 and (k.shape[-3] == 0 or q.shape[-3] % k.shape[-3]):
        raise ValueError(f"q must have a number of heads that is a multiple of the KV heads, {k.shape[-3]}; "
                         f"got {q.shape[-3]}")


def check_scale(scale, dim):
    """The scale as a Python float: 1/√d by default; TypeError for no number, ValueError if it is not finite."""
    if scale is None:
        return 1.0 / math.sqrt(dim)
    try:
        finite = math.isfinite(scale)
    except OverflowError:
        finite = False
    except (TypeError, ValueError, RuntimeError):
        raise TypeError(f"scale must be a real number; got {scale!r}") from None
    if not finite:
        raise ValueError(f"scale must be finite; got {scale!r}")
    return float(scale)


def check_mask(xp, mask, shape):
    """The boolean mask broadcast to the shape (…, Hq, Nq, Nkv); None if there is none."""
    if mask is None:
        return None
    if "bool" not in str(mask.dtype):
        raise TypeError(f"mask must be boolean, True where a key is visible; got {mask.dtype}")
    missing = [a for a, b in zip(reversed(mask.shape), reversed(shape), strict=False) if a not in (1, b)]
    if mask.ndim > len(shape) or missing:
        raise ValueError(f"mask must broadcast to {tuple(shape)}; got {tuple(mask.shape)}")
    return xp.broadcast_to(mask, tuple(shape))


def attention(q, k, v, *, causal=False, scale=None, mask=None, out_dtype=None, stats_dtype=None):
    """The attention state (o, lse) of all visible keys by definition: o = softmax(scale·q·kᵀ)·v.

    q: (…, Hq, Nq, d); k: (…, Hkv, Nkv, d); v: (…, Hkv, Nkv, dv), of one float dtype, NumPy or torch; two
    axes mean one head. o: (…, Hq, Nq, dv) in q's dtype or out_dtype; lse: (…, Hq, Nq), natural logarithm,
    float32 (float64 for float64) or stats_dtype. scale: 1/√d by default. causal: bottom-right aligned.
    mask: boolean, True = visible. A row that sees no key is (0, −∞). Differentiable in o and lse (torch).
    Raises TypeError, ValueError (see `prepare`). Source: document A, 2.1.1.
    """
    call = prepare(q, k, v, causal=causal, scale=scale, mask=mask, out_dtype=out_dtype, stats_dtype=stats_dtype)
    call = call.without_unseen()
    return call.finish(partial_state(call.scores(0, call.keys), call.value_rows(), stats_dtype=call.stats_dtype))


def attention_gradient(do, dlse, q, k, v, *, causal=False, scale=None, mask=None):
    """(dq, dk, dv) by definition: P from the scores, dS = P∘(dP − D + dlse), the three products.

    do: (…, Hq, Nq, dv); dlse: (…, Hq, Nq) or None; q, k, v as for `attention`. D = rowsum(do∘o). The
    gradients of k and v are summed over the query heads of a group. Empty rows contribute 0.
    Source: document B, backward; claims:B36, B62, faults:H1.
    """
    call = prepare(q, k, v, causal=causal, scale=scale, mask=mask).without_unseen()
    xp, name = call.xp, backends.float_name(q)
    with backends.quiet():
        scores = call.scores(0, call.keys)
        values = call.value_rows()
        o, lse = partial_state(scores, values)
        shape = tuple(o.shape)
        do = xp.reshape(backends.cast(do, backends.float_name(o)), shape)
        dlse = 0.0 * lse if dlse is None else xp.reshape(backends.cast(dlse, backends.float_name(o)), shape[:-1])
        level = xp.where(lse == float("-inf"), 0.0, lse)
        p = xp.exp(scores - level[..., None])
        slope = xp.where(lse == float("-inf"), 0.0, dlse) - xp.sum(do * o, axis=-1)
        ds = p * (do @ xp.matrix_transpose(values) + slope[..., None])
    dq = xp.reshape(ds @ call.key_rows() * call.scale, tuple(q.shape))
    dk, dv = xp.matrix_transpose(ds) @ call.q, xp.matrix_transpose(p) @ do
    return tuple(backends.cast(x, name) for x in (dq, dk, dv))
