"""Probes: inputs of one decode step with their exact answer, which a wrong kernel cannot give. Needs torch.

Normal numbers alone do not judge: a key among N weighs 1/N there, less than one rounding of o. So a decode is asked
three times, each time at the same place in memory: with normal numbers ("random"), with a few keys that carry all of o
("weighted"), and with v ≡ 1 ("ones").
"""

import math
from typing import NamedTuple

import torch

import fdmath
from fdmath.algebra.rounding import smallest_subnormal
from fdmath.bench.decode import most_errors
from fdmath.verify.cases import CallCase

PLACES = 64
"""The keys of each KV head, at most, that carry o in the weighted probe."""


class _Heads(NamedTuple):
    heads: str


class Probe(NamedTuple):
    """Inputs and what is right: q (B, Hq, Nq, d), k, v (B, Hkv, N, d); o and lse in float64.

    size: the largest scale·Σ|q||k| of a score. spread: Σp|v|, of o's shape. total: the largest Σ|v| of a head's column.
    """

    name: str
    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    o: torch.Tensor
    lse: torch.Tensor
    size: float
    spread: torch.Tensor
    total: float

    @property
    def inputs(self):
        """(q, k, v)."""
        return self.q, self.k, self.v

    def ratios(self, o, lse, rounding):
        """{err_o, err_lse}: the largest error beside what a call of that Rounding may err here; right is at most 1.

        NaN for another shape, and where a number is NaN; None where no lse is returned.
        """
        dtype = str(self.q.dtype).removeprefix("torch.")
        most = most_errors(dtype, rounding, self.q.shape[-1], self.k.shape[-2], self.size, float(self.lse.abs().max()))
        most_o = most["err_o"] * self.spread + smallest_subnormal(dtype) / 2 * (self.total + 1)
        return {"err_o": largest(o, self.o, most_o), "err_lse": None if lse is None else
                largest(lse, self.lse, most["err_lse"])}


def largest(got, right, unit=1.0):
    """The largest |got − right| / unit; NaN for another shape, or if one is NaN."""
    return float(((got.double() - right).abs() / unit).max()) if got.shape == right.shape else math.nan


def exact(q, k, v, scale=None, heads="interleaved"):
    """(o, lse) of attention by definition in float64, on the tensors' device; heads: as a Subject declares them."""
    order = _order(q, k, v, heads)
    state = fdmath.attention(q[:, order].double(), k.double(), v.double(), scale=scale)
    return [x[:, torch.argsort(order)] for x in state]


def _order(q, k, v, heads):
    return torch.as_tensor(CallCase(q, k, v).heads_in_order(_Heads(heads)), device=q.device)


def probes(q, k, v, scale=None, heads="interleaved"):
    """The list of three Probes: "random", which is these normal numbers, "weighted" and "ones"."""
    random = probe("random", q, k, v, scale, heads)
    ones = random._replace(name="ones", v=torch.ones_like(v), o=torch.ones_like(random.o),
                           spread=torch.ones_like(random.o), total=float(k.shape[-2]))
    return [random, probe("weighted", *weighted(q, k, v, scale), scale, heads), ones]


def probe(name, q, k, v, scale=None, heads="interleaved"):
    """The Probe of these inputs."""
    o, lse = exact(q, k, v, scale, heads)
    spread, _ = exact(q, k, v.abs(), scale, heads)
    total = float(v.abs().double().sum(-2).max())
    return Probe(name, q, k, v, o, lse, _size(q, k, scale, _order(q, k, v, heads)), spread, total)


def _size(q, k, scale, order):
    """The largest scale·Σ|q||k|; q with the heads of a KV head as its rows."""
    grouped = q[:, order].abs().double().unflatten(1, (k.shape[1], -1)).flatten(2, 3)
    return abs(_scale(q, scale)) * float((grouped @ k.abs().double().mT).max())


def _scale(q, scale):
    return q.shape[-1] ** -0.5 if scale is None else scale


def weighted(q, k, v, scale=None, seed=0):
    """(q, k, v) with a few keys in all parts of the cache, each of which carries a column of o, and v = 0 elsewhere.

    The last coordinate of q is 1, so that of k is a number added to the score: −log N of most keys. The few, one in
    each of up to PLACES equal parts, have scores drawn from −1 to 0, and v = 1 in a column of their own; d columns, but
    three keys at least. So together they weigh more than all the others, whatever N is, and o shows each weight: a lost
    key is a lost column. Weights differ from head to head: another head's o is seen too. Of four parts in a row the
    first gives its first key, the last its last, so that both sides of a tile's border are among them, and the newest
    key is; the other two give one drawn at random.
    """
    q, k, v = (x.clone() for x in (q, k, v))
    (batch, heads, keys, dim), scale = v.shape, torch.tensor(_scale(q, scale), dtype=torch.float64)
    count, most, numbers = min(keys, PLACES, max(3, dim)), torch.finfo(k.dtype).max, torch.Generator().manual_seed(seed)
    drawn, levels = torch.rand(2, batch, heads, count, generator=numbers, dtype=torch.float64)
    part = torch.arange(count)
    first, last = part * keys // count, (part + 1) * keys // count - 1
    inside = first + (drawn * (last + 1 - first)).long()
    places = torch.where(part % 4 == 0, first, torch.where(part % 4 == 3, last, inside))
    places[..., -1] = keys - 1
    at = torch.arange(batch)[:, None, None], torch.arange(heads)[:, None], places
    at = [x.to(k.device) for x in at]
    q[..., -1] = 1
    k[..., -1] = float((-math.log(keys) / scale).clamp(-most, most))
    v.zero_()
    k[*at] = 0
    k[*at, -1] = (-levels / scale).clamp(-most, most).to(k)
    v[*at, (part % dim).to(k.device)] = 1
    return q, k, v
