"""Decoding over a KV cache that lies on several ranks: each makes the state of its keys, and only states are sent."""

import torch

from fdmath import _backends as backends
from fdmath.algebra.merge import check_order, flat, merge_all
from fdmath.algebra.state import AccState, LSEState, canonical, check_kind
from fdmath.attention.decode import choose_backend, key_ranges, split_kv_attention, tile_states
from fdmath.attention.differentiable import without_gradient
from fdmath.attention.reference import prepare
from fdmath.attention.softmax import finite_level
from fdmath.distributed.wire import Wire

LEVELS, SUMS, STATES = "all-reduce of the largest level", "all-reduce of the sums", "all-gather of the states"


def tree_decode(q, k_shard, v_shard, group=None, *, kind=LSEState, exchange="gather", order=flat, causal=False,
                scale=None, out_dtype=None, traffic=None):
    """The attention state (o, lse) of the queries over the keys of all ranks, the same bits on each of them.

    q (…, Hq, Nq, d): the same on every rank; k_shard (…, Hkv, n, d), v_shard (…, Hkv, n, dv): this rank's part of the
    cache, in the order of the ranks, n ≥ 0. torch tensors; o in q's dtype or out_dtype. kind: the spelling of the
    states that are sent (a GPU kernel makes pairs, converted here). exchange="gather": every rank gets all states and
    folds them by ⊕ in the order; "reduce": the level is the maximum over the ranks, then the rescaled sums are added,
    where any spelling sends d + 2 numbers a row: the pair saves nothing. causal: aligned bottom-right over the whole
    cache. traffic: a `Traffic` to add to. It has no gradient. Raises TypeError, ValueError for arguments, before
    states are sent; RuntimeError that names the operation where another rank is gone or silent. Only a causal call of
    several queries sees that ranks were given different things; otherwise the transport may end the process.
    Source: Shyam et al. 2024 (Tree Attention); document A, 5.4; claims:A24, A74.
    """
    check_kind(kind)
    check_order(order)
    if exchange not in _EXCHANGES:
        raise ValueError(f'exchange must be "gather" or "reduce"; got {exchange!r}')
    call = prepare(q, k_shard, v_shard, causal=causal, scale=scale, out_dtype=out_dtype)
    if backends.library(q) != "torch":
        raise TypeError("q must be a torch tensor; got a NumPy array")
    wire = Wire("tree_decode", group, traffic)

    def run(q, k, v):
        alike = {"dv": v.shape[-1], "scale": call.scale, "kind": kind.__name__, "exchange": exchange}
        mask = _seen(wire, q, k, alike) if call.causal else None
        state = _own_state(q, k, v, kind, mask, call.scale)
        return tuple(call.finish(_EXCHANGES[exchange](wire, canonical(state), order)))

    refusal = "tree_decode has no gradient; ring_attention has one"
    return LSEState(*without_gradient("tree_decode", run, q, k_shard, v_shard, refusal=refusal))


def _seen(wire, q, k, alike):
    """The boolean mask (Nq, n) of this rank's keys: query i sees key j of the whole cache iff j ≤ i + N − Nq.

    The ranks tell one another how many keys they hold, and that q and what stands in `alike` are alike.
    """
    lengths = wire.lengths(k, {"dtype": backends.float_name(q), "shape of q": tuple(q.shape), **alike})
    total, before, queries = sum(lengths), sum(lengths[:wire.rank]), q.shape[-2]
    i, j = torch.arange(queries, device=k.device)[:, None], torch.arange(k.shape[-2], device=k.device)
    return before + j <= i + total - queries


def _own_state(q, k, v, kind, mask, scale):
    """The state of this rank's keys, unrounded; heads grouped or not, the numbers lie in the same order."""
    work = backends.working(backends.float_name(q))
    if choose_backend("auto", q, k, v, mask=mask, out_dtype=work) == "triton":
        return split_kv_attention(q, k, v, scale=scale, out_dtype=work).to(kind)
    call = prepare(q, k, v, mask=mask, scale=scale)
    return merge_all(tile_states(call, key_ranges(call.keys), kind))


def _gathered(wire, state, order):
    """⊕ over the states of all ranks in an order; each sends d + 1 numbers a row (the pair) or d + 2."""
    parts = wire.gather(STATES, torch.cat([x if x is state.payload else x[..., None] for x in state], -1))
    return merge_all([_state_of(type(state), part) for part in parts], order)


def _state_of(kind, numbers):
    """The state whose arrays lie side by side along the last axis, in the order in which they are written."""
    if kind is LSEState:
        return LSEState(numbers[..., :-1], numbers[..., -1])
    return kind(numbers[..., 0], numbers[..., 1], numbers[..., 2:])


def _reduced(wire, state, order):
    """The state of all ranks' keys by two sums over the ranks: M = max m, then Σ e^(m−M)·l and Σ e^(m−M)·l·o.

    This is `flat` of the states, added in the order of the group's own all-reduce; `order` is not asked.
    """
    m, l, acc = state.to(AccState)  # noqa: E741
    top = wire.largest(LEVELS, m)
    shrink = torch.exp(m - finite_level(torch, top))
    sums = wire.total(SUMS, torch.cat([(shrink * l)[..., None], shrink[..., None] * acc], -1))
    return AccState(top, sums[..., 0], sums[..., 1:])


_EXCHANGES = {"gather": _gathered, "reduce": _reduced}
