"""FlashDecoding: attention split along the keys, a state for every tile, and ⊕ over the tiles.

Document A's two programs are kind=AccState, order=streams(5, then=tree) (3.1.3) and
kind=LSEState, order=streams(4, then=flat) (3.2.2); its single stream (3.1.2) is order=sequential.
"""

from itertools import pairwise

from fdmath import _backends as backends
from fdmath.algebra.merge import check_order, flat, merge_all, stack
from fdmath.algebra.order import whole
from fdmath.algebra.state import LSEState, check_kind
from fdmath.attention.cores import pays, states_in_place
from fdmath.attention.reference import prepare
from fdmath.attention.softmax import in_spelling, partial_state

DEFAULT_TILE = 2048

# What backend="auto" may take; a module is imported only when its backend runs, or is asked whether it can.
_IMPLEMENTATIONS = {
    "numpy": "fdmath.attention.decode:split_kv_by_states",
    "torch": "fdmath.attention.decode:split_kv_by_states",
    "triton": "fdmath.kernels.backend:split_kv_by_kernel",
}
_REFUSAL = "fdmath.kernels.backend:refusal"


def key_ranges(keys, tile=None, num_splits=None):
    """The (start, stop) of each part of `keys` keys: tiles of `tile`, the last short, or num_splits even parts.

    num_splits parts differ in size by at most one, the larger ones first, and some are empty if there are more
    parts than keys (⌊n/S⌋ keys a part would lose the last ones: faults:C1). Neither given: tiles of DEFAULT_TILE keys.
    Raises as `check_cut` does.
    """
    tile, num_splits = check_cut(tile, num_splits)
    if num_splits is not None:
        size, larger = divmod(keys, num_splits)
        starts = [i * size + min(i, larger) for i in range(num_splits + 1)]
        return list(pairwise(starts))
    tile = tile or DEFAULT_TILE
    return [(start, min(start + tile, keys)) for start in range(0, keys, tile)] or [(0, 0)]


def check_cut(tile, num_splits):
    """(tile, num_splits) as ints or None; TypeError for no integer, ValueError for one below 1 or for both given."""
    if tile is not None and num_splits is not None:
        raise ValueError(f"give tile or num_splits, not both; got tile={tile} and num_splits={num_splits}")
    return (None if tile is None else whole(tile, "tile", least=1),
            None if num_splits is None else whole(num_splits, "num_splits", least=1))


def split_kv_attention(q, k, v, *, tile=None, num_splits=None, kind=LSEState, order=flat, causal=False, scale=None,
                       mask=None, out_dtype=None, stats_dtype=None, backend="auto"):
    """The attention state (o, lse) of all visible keys, by FlashDecoding: per-tile states ⊕-ed in an order.

    Arguments and result as for `attention`. tile: keys a tile (the last one short); num_splits: as even as
    possible, empty parts allowed; give at most one. kind: the spelling in which states are kept and merged.
    order: sequential, tree, flat, streams(n, then=…), ring(r). stats_dtype: a lower format for m, l and lse.
    backend: "auto", "numpy", "torch" or "triton" (a GPU kernel; "auto" takes it for CUDA tensors where it can do what
    is asked). Differentiable in o and lse (torch).
    Raises TypeError, ValueError for arguments, RuntimeError for a named backend that cannot run.
    Source: document A, section 3; document B, FlashDecoding.
    """
    name = choose_backend(backend, q, k, v, kind=kind, order=order, mask=mask, out_dtype=out_dtype,
                          stats_dtype=stats_dtype)
    tile, num_splits = check_cut(tile, num_splits)
    run = backends.load(_IMPLEMENTATIONS[name])
    return run(q, k, v, tile=tile, num_splits=num_splits, kind=kind, order=order, causal=causal, scale=scale,
               mask=mask, out_dtype=out_dtype, stats_dtype=stats_dtype)


def split_kv_by_states(q, k, v, *, tile, num_splits, kind, order, causal, scale, mask, out_dtype, stats_dtype):
    """The same, written with `partial_state` and `merge_all`, in the arrays' own library."""
    check_kind(kind)
    check_order(order)
    call = prepare(q, k, v, causal=causal, scale=scale, mask=mask, out_dtype=out_dtype, stats_dtype=stats_dtype)
    # No order of the caller's is given these states, and NumPy is quicker with the few numbers that they are.
    here = (call.in_memory() if order is flat else None) or call
    states = tile_states(here, key_ranges(call.keys, tile, num_splits), kind)
    return here.finish(merge_all(states, order)).map(lambda x: backends.from_memory(x, q))


def tile_states(call, ranges, kind=LSEState):
    """The states of the keys start ≤ j < stop for each of the ranges, along a leading axis, heads still grouped.

    On a CPU, where no derivative is asked for, the cores share the tiles and work in place (`cores.py`); not so for
    many heads of few keys.
    """
    if pays(call) and (here := call.in_memory()):
        states = states_in_place(here, ranges)
        with backends.quiet():
            return in_spelling(states.map(lambda x: backends.from_memory(x, call.q)), kind, call.stats_dtype)
    call = call.without_unseen()
    return stack([
        partial_state(call.scores(start, stop), call.value_rows(start, stop), kind, call.stats_dtype)
        for start, stop in ranges
    ])


def backend_for(q, k, v):
    """The name of the backend that backend="auto" takes for these arrays where nothing more is asked."""
    return choose_backend("auto", q, k, v)


def choose_backend(backend, q, k, v, **asked):
    """The name of the backend that runs: the one named; for "auto" Triton on CUDA tensors if it can, else the arrays'.

    asked: the arguments of `split_kv_attention` that a kernel may not know. Raises as `choose` does.
    """
    return choose(backend, _refusal, q, k, v, **asked)


def choose(backend, refusal, q, k, v, **asked):
    """The name of the backend that runs, where refusal(q, k, v, **asked) says why the kernel cannot, or nothing.

    Raises ValueError for an unknown name, RuntimeError where the one named cannot run on these arrays or do what is
    asked.
    """
    backends.array_namespace(q=q, k=k, v=v)
    own = backends.library(q)
    if backend == "auto":
        on_gpu = own == "torch" and q.is_cuda
        return "triton" if on_gpu and not _reason(refusal, q, k, v, **asked) else own
    if backend not in ("numpy", "torch", "triton"):
        raise ValueError(f'backend must be "auto", "numpy", "torch" or "triton"; got {backend!r}')
    if own != ("torch" if backend == "triton" else backend):
        raise RuntimeError(f"backend {backend!r} cannot run on arrays of {own}")
    if backend == "triton" and (reason := _reason(refusal, q, k, v, **asked)):
        raise RuntimeError(f"backend 'triton' cannot run: {reason}")
    return backend


def _reason(refusal, q, k, v, **asked):
    """Why the Triton kernel cannot run here or do what is asked, as a text; an empty one where it can."""
    try:
        return refusal(q, k, v, **asked) or ""
    except ImportError as error:
        return f"{error.name} is not installed"


def _refusal(q, k, v, **asked):
    """What the kernel's own module says."""
    return backends.load(_REFUSAL)(q, k, v, **asked)
