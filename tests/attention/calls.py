"""Attention calls to try, each with what it must give: the oracle's enclosure and the budget of a whole call.

Nothing here is taken from the code under test but the budgets' own functions: heads are repeated, masks are
written out, and scores are formed in float64.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from fdmath import LSEState, flat, merge_all, partial_state
from fdmath.algebra.rounding import block_budget, finish_budget, fold_budget, format_of, score_error

INF, NAN = math.inf, math.nan


@dataclass(frozen=True, eq=False)
class Call:
    """The arguments of one call as float64 numbers that every format under test can hold.

    What it must give is the same for both libraries and is computed once.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    causal: bool = False
    mask: np.ndarray | None = None
    scale: float | None = None

    def arrays(self, lib, dtype):
        """q, k and v in a library."""
        return [lib.array(x, dtype) for x in (self.q, self.k, self.v)]

    def options(self, lib):
        """The keyword arguments of the call."""
        mask = None if self.mask is None else lib.mask(self.mask)
        return {"causal": self.causal, "scale": self.scale, "mask": mask}

    def visible(self):
        """The boolean array (…, Hq, Nq, Nkv), written out."""
        seen = np.ones((*self.q.shape[:-1], self.k.shape[-2]), dtype=bool)
        if self.mask is not None:
            seen = seen & self.mask
        queries, keys = seen.shape[-2:]
        if self.causal:
            for i, j in np.ndindex(queries, keys):
                if j > i + keys - queries:  # the last query sees the last key
                    seen[..., i, j] = False
        return seen

    def repeated(self):
        """k and v with a copy for each query head."""
        group = self.q.shape[-3] // self.k.shape[-3] if self.q.ndim > 2 else 1
        return (np.repeat(x, group, axis=-3) if group > 1 else x for x in (self.k, self.v))

    def factor(self):
        """The scale as a number."""
        return 1 / math.sqrt(self.q.shape[-1]) if self.scale is None else self.scale

    @cache  # noqa: B019 - calls live as long as the tests
    def certified(self):
        """The oracle's enclosure."""
        oracle = pytest.importorskip("fdmath.oracle")
        return oracle.certified_attention(self.q, self.k, self.v, causal=self.causal, scale=self.scale, mask=self.mask)

    @cache  # noqa: B019
    def budget(self, dtype, ranges=None, kind=LSEState, order=flat):
        """The Budget of o and lse for inputs of a dtype, a tuple of tiles (start, stop) and an order; or whole."""
        fmt, out = format_of("float64" if dtype == "float64" else "float32"), format_of(dtype)
        k, v = self.repeated()
        scores = self.factor() * (self.q @ np.swapaxes(k, -1, -2))
        scores = np.where(self.visible(), scores, -INF)
        error = score_error(self.q, k, self.factor(), fmt)
        parts, errors, pair = [], [], kind is LSEState
        for start, stop in ranges or [(0, k.shape[-2])]:
            block, held = scores[..., start:stop], v[..., start:stop, :]
            parts.append(partial_state(block, held, kind))
            errors.append(block_budget(block, held, fmt, error[..., start:stop], pair=pair))
        merged = merge_all(parts, order)
        return finish_budget(merged, fold_budget(parts, order, fmt, errors), fmt, out, pair=pair)


def numbers(rng, *shape):
    """Normal numbers with 7 significant bits, so that every format holds them exactly."""
    mantissa, exponent = np.frexp(rng.standard_normal(shape))
    return np.ldexp(np.round(mantissa * 128) / 128, exponent)


def random_call(seed, heads, queries, keys, dim, width=None, batch=(), **options):
    """A Call with random arrays; heads is (Hq, Hkv), or None for arrays of two axes."""
    rng = np.random.default_rng(seed)
    (q_heads, kv_heads) = ((heads[0],), (heads[1],)) if heads else ((), ())
    width = dim if width is None else width
    shapes = ((*batch, *q_heads, queries, dim), (*batch, *kv_heads, keys, dim), (*batch, *kv_heads, keys, width))
    return Call(*(numbers(rng, *shape) for shape in shapes), **options)


def random_mask(seed, *shape):
    """A random mask, some rows of which hide everything."""
    rng = np.random.default_rng(seed)
    mask = rng.random(shape) < 0.6
    return mask & (rng.random((*shape[:-1], 1)) < 0.8)


def as_on_gpu(x):
    """The torch tensor x of the CPU as one that says it lies on a GPU, for what is decided before any work."""
    return x.as_subclass(type("OnGpu", (type(x),), {"is_cuda": True}))


CALLS = {
    "decode, d = 64": random_call(1, (2, 2), 1, 37, 64),
    "two axes": random_call(2, None, 3, 7, 5),
    "grouped heads, dv < d": random_call(3, (4, 2), 3, 13, 5, 4, batch=(2,)),
    "one KV head, dv > d, Nq > N": random_call(4, (3, 1), 5, 2, 2, 7),
    "causal, N > Nq": random_call(5, (2, 1), 5, 11, 3, causal=True),
    "causal, empty rows": random_call(6, (4, 2), 4, 2, 3, causal=True),
    "mask of every shape": random_call(7, (4, 2), 3, 13, 5, batch=(2,), mask=random_mask(7, 2, 4, 3, 13)),
    "mask of the keys alone": random_call(8, (2, 2), 2, 9, 3, batch=(2,), mask=random_mask(8, 9)),
    "mask and causal": random_call(9, (4, 2), 3, 7, 4, batch=(2,), mask=random_mask(9, 2, 1, 3, 7), causal=True),
    "no key visible": random_call(10, (2, 1), 2, 5, 3, mask=np.zeros((1, 1), dtype=bool)),
    "no keys": random_call(11, (2, 1), 2, 0, 3),
    "one key": random_call(12, (2, 1), 2, 1, 3),
    "d = 80, dv = 1": random_call(13, (2, 1), 2, 23, 80, 1),
    "d = 128": random_call(14, (1, 1), 1, 31, 128, 3),
    "d = 256": random_call(15, (1, 1), 2, 17, 256, 2),
    "dv = 0": random_call(16, (2, 1), 2, 5, 3, 0),
    "no queries": random_call(17, (2, 1), 0, 5, 3, causal=True),
    "no sequences": random_call(18, (2, 1), 2, 5, 3, batch=(0,)),
    "a scale": random_call(19, (2, 1), 3, 11, 4, scale=-2.5),
    "a scale of 0": random_call(20, (2, 1), 3, 11, 4, scale=0.0),
    "scores near 1000": random_call(21, (2, 1), 3, 19, 4, scale=300.0),
}
