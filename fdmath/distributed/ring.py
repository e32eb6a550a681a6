"""Ring attention: every rank keeps its queries, keys and values travel around, and the states merge by ⊕.

Hop h brings rank r the keys of rank r − h, so it folds them in `fdmath.ring(r)`'s order. What the next hop needs is
sent before a block is computed, so that the two overlap.
"""

from itertools import accumulate

import torch

from fdmath import _backends as backends
from fdmath.algebra.merge import merge
from fdmath.algebra.state import LSEState, identity
from fdmath.attention.decode import split_kv_attention
from fdmath.attention.differentiable import with_gradient
from fdmath.attention.flash import flash_attention, flash_attention_backward
from fdmath.attention.reference import prepare
from fdmath.distributed.layout import check_layout, placed, rows_of
from fdmath.distributed.wire import Wire

KEYS, GRADIENTS = "passing keys and values on", "passing gradients on"


def ring_attention(q, k, v, group=None, causal=False, *, layout=None, scale=None, traffic=None):
    """The attention state (o, lse) of this rank's queries over the keys of all ranks.

    q (…, Hq, Nq, d), k (…, Hkv, n, d), v (…, Hkv, n, dv): this rank's rows, torch tensors, on every rank of one dtype
    and equal but for Nq and n, which may be 0. layout: the rows of each rank (`contiguous`, `zigzag`, or your own), the
    same on all of them; None: each rank's rows follow those of the rank before, and ranks that were given different
    things say so. causal: row i sees keys j ≤ i, so that queries and keys are the same rows. o in q's dtype, lse in
    float32 (float64 for float64). traffic: a `Traffic` to add to.
    Every rank must call it, and go backward if one does: differentiable in o and lse, dk and dv travelling beside k
    and v. Bit for bit the same each time for a number of ranks and a layout. Raises TypeError, ValueError for
    arguments, before keys are sent; RuntimeError that names the operation where another rank is gone or silent.
    Source: Liu et al. 2023 (Ring Attention); document A, 5.4; claims:A76, faults:F7, H4, H6.
    """
    call = prepare(q, k, v, causal=causal, scale=scale)
    if backends.library(q) != "torch":
        raise TypeError("q must be a torch tensor; got a NumPy array")
    wire = Wire("ring_attention", group, traffic)
    layout = None if layout is None else check_layout(layout, wire.size)
    if layout and rows_of(layout)[wire.rank] != k.shape[-2]:
        raise ValueError(f"k must have the {rows_of(layout)[wire.rank]} rows that layout gives rank {wire.rank}; got "
                         f"{k.shape[-2]}")
    if causal and q.shape[-2] != k.shape[-2]:
        raise ValueError(f"q must have the {k.shape[-2]} rows of k, since causal is asked for; got {q.shape[-2]}")
    layout = layout or _in_order(wire, q, k, v, bool(causal), call.scale)
    ring = _Ring(wire, layout, bool(causal), call.scale)
    return LSEState(*with_gradient("ring_attention", ring.forward, ring.backward, q, k, v))


def _in_order(wire, q, k, v, causal, scale):
    """The layout in which each rank's rows follow those of the rank before; the ranks tell one another how many."""
    alike = {"dtype": backends.float_name(q), "heads": (*q.shape[:-2], *k.shape[-3:-2]), "d": k.shape[-1],
             "dv": v.shape[-1], "causal": causal, "scale": scale}
    stops = list(accumulate(wire.lengths(k, alike)))
    return [[run] for run in zip([0, *stops[:-1]], stops, strict=True)]


class _Ring:
    """One call: who has which rows, and the two directions of differentiation."""

    def __init__(self, wire, layout, causal, scale):
        self.wire, self.layout, self.lengths = wire, layout, rows_of(layout)
        self.causal, self.scale = causal, scale

    def forward(self, q, k, v):
        """(o, lse) of this rank's rows."""
        name, like = backends.float_name(q), q.new_empty(0, dtype=_working(q))
        states = [identity(q[..., rows, 0].shape, v.shape[-1], like=like) for rows in self._rows(q)]
        for source, keys, values in self._around(k, v):
            for i, rows, columns, diagonal in self._blocks(source, q):
                arrays = q[..., rows, :], keys[..., columns, :], values[..., columns, :]
                states[i] = merge(states[i], _block_state(*arrays, diagonal, self.scale))
        o, lse = torch.cat([s.o for s in states], -2), torch.cat([s.lse for s in states], -1)
        return backends.cast(o, name), lse

    def backward(self, do, dlse, q, k, v, o, lse):
        """(dq, dk, dv) of this rank's rows; dk and dv of a rank's keys follow them and make one hop more, home."""
        dq, coming = torch.zeros_like(q, dtype=_working(q)), None
        for source, keys, values in self._around(k, v):
            dk, dv = (torch.zeros_like(x, dtype=_working(q)) for x in (keys, values))
            for _, rows, columns, diagonal in self._blocks(source, q):
                deep = (..., rows, slice(None))
                do_, q_, o_, k_, v_ = _ready(do[deep], q[deep], o[deep], keys[..., columns, :], values[..., columns, :])
                parts = flash_attention_backward(do_, dlse[..., rows].contiguous(), q_, k_, v_, o_,
                                                 lse[..., rows].contiguous(), causal=diagonal, scale=self.scale)
                for whole, part, place in zip((dq, dk, dv), parts, (rows, columns, columns), strict=True):
                    whole[..., place, :] += part
            if coming:
                dk, dv = (before + here for before, here in zip(coming.wait(), (dk, dv), strict=True))
            if self.wire.size > 1:
                coming = self.wire.pass_on(GRADIENTS, (dk, dv), self._shapes(source - 1, k, v), tag=2)
        dk, dv = coming.wait() if coming else (dk, dv)
        return tuple(backends.cast(x, backends.float_name(q)) for x in (dq, dk, dv))

    def _around(self, k, v):
        """(source, k, v) of each rank in turn, this one first; the next ones are under way while these are used."""
        wire, held = self.wire, (k, v)
        for hop in range(wire.size):
            source = (wire.rank - hop) % wire.size
            more = hop + 1 < wire.size
            coming = wire.pass_on(KEYS, held, self._shapes(source - 1, k, v)) if more else None
            yield source, *held
            held = coming.wait() if more else None

    def _shapes(self, rank, *arrays):
        """The shapes that arrays like these have on another rank, counted modulo the size of the group."""
        return [(*x.shape[:-2], self.lengths[rank % self.wire.size], x.shape[-1]) for x in arrays]

    def _rows(self, q):
        """The slices of this rank's queries that see different keys: its runs with a causal mask, else all at once."""
        return [rows for rows, _ in placed(self._own)] if self.causal else [slice(0, q.shape[-2])]

    @property
    def _own(self):
        return self.layout[self.wire.rank] or [(0, 0)]

    def _blocks(self, source, q):
        """(i, rows, keys, diagonal): the blocks that are not hidden, of the keys that came from `source`.

        The rule of a hop: keys of the same run are seen up to the diagonal, those of an earlier run all, those of a
        later one not at all. Source: faults:F7.
        """
        if not self.causal:
            yield 0, slice(0, q.shape[-2]), slice(0, self.lengths[source]), False
            return
        for i, (rows, own) in enumerate(placed(self._own)):
            for columns, there in placed(self.layout[source]):
                if there[0] < there[1] and there[0] <= own[0] < own[1]:
                    yield i, rows, columns, there == own


def _block_state(q, k, v, causal, scale):
    """The state of one block in working format; on a GPU by FlashAttention's kernels, which round o to q's dtype."""
    if q.is_cuda:
        state = flash_attention(q.contiguous(), k.contiguous(), v.contiguous(), causal=causal, scale=scale)
        return state.map(lambda x: x.to(_working(q)))
    return split_kv_attention(q, k, v, causal=causal, scale=scale, out_dtype=_working(q))


def _working(x):
    """The dtype that the work on x is done in."""
    return backends.dtype_of(x, backends.working(backends.float_name(x)))


def _ready(*arrays):
    """The arrays as a block's gradient takes them: on a GPU in their own format, for its kernels."""
    return [x.contiguous() if x.is_cuda else x.to(_working(x)) for x in arrays]

