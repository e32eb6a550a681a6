"""FlashAttention-2 forward and backward, block by block, every operation and every number moved counted.

The lines numbered in the code are those of the two algorithms in document B. What differs from the listings is what
they leave open: a row that has seen no key keeps level −∞ and weight 0, any block may come first, blocks may be
ragged, and the gradient of lse is taken too. The algorithms as printed: `fdmath.attention.printed`.
"""

from functools import partial

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState
from fdmath.attention.decode import choose
from fdmath.attention.differentiable import with_gradient, without_gradient
from fdmath.attention.reference import prepare
from fdmath.attention.softmax import finite_level
from fdmath.attention.tiles import Tiles, arrangement, record
from fdmath.cost.counts import Counts, Machine

_KERNELS = "fdmath.kernels.flash:"
INF = float("inf")


def flash_attention(q, k, v, *, block_m=None, block_n=None, order=None, causal=False, scale=None, mask=None,
                    backend="auto", counts=None):
    """The attention state (o, lse) of all visible keys, by FlashAttention-2.

    Arguments and result as for `attention`. block_m queries and block_n keys a block (128 each by default, the last
    ones short); order: the order in which each row block takes the key blocks, a permutation of their indices. counts:
    a `Counts` to add to. backend: "auto" (long calls on a Hopper card: the kernel for it), "numpy", "torch" or
    "triton" (the readable kernels). Kernels choose their own blocks, take no order, counts or mask, and their gradients
    round dS to the inputs' dtype: prefer bfloat16 where float16 loses it, below 6e-5 and beyond 65504. Differentiable
    in o and lse (torch), from o and lse alone; a double backward raises.
    Raises TypeError, ValueError for arguments, RuntimeError for a named backend that cannot run.
    Source: document B, Algorithm 1.
    """
    own = {"block_m": block_m, "block_n": block_n, "order": order, "counts": counts}
    if choose(backend, _refusal, q, k, v, mask=mask, **own) == "triton":
        return backends.load(_KERNELS + "flash_attention_by_kernel")(q, k, v, causal, scale, fastest=backend == "auto")
    options = {"causal": causal, "scale": scale, "mask": mask, "block_m": block_m, "block_n": block_n}
    run = partial(_forward, order=order, counts=counts, **options)
    return LSEState(*with_gradient("flash_attention", run, partial(_backward, **options), q, k, v))


def flash_attention_backward(do, dlse, q, k, v, o, lse, *, block_m=None, block_n=None, causal=False, scale=None,
                             mask=None, order=None, by="columns", backend="auto", counts=None):
    """The gradients (dq, dk, dv) of a loss with gradients do and dlse, by FlashAttention-2, in q's dtype.

    do, o: (…, Hq, Nq, dv), in q's dtype or the working one; lse: (…, Hq, Nq) as the forward returned it; dlse like
    lse, or None for 0. o and lse of a *merged* state give this part's share of the gradients. by="columns": a worker
    for each block of keys keeps its dk and dv and adds to dq in HBM; by="rows": a worker for each block of queries
    keeps its dq and adds to dk and dv. order: that of the workers, which is the order of the additions. Other
    arguments as for `flash_attention`. Raises as it does, and TypeError without a saved lse.
    Source: document B, Algorithm 2; the term of lse: faults:H1.
    """
    own = {"block_m": block_m, "block_n": block_n, "order": order, "counts": counts}
    if by not in list(_WORKERS):
        raise ValueError(f'by must be "columns" or "rows"; got {by!r}')
    if lse is None:
        raise TypeError("lse must be the lse that the forward returned, without which there is no gradient; got None")
    if choose(backend, _refusal, q, k, v, mask=mask, by=by, **own) == "triton":
        return backends.load(_KERNELS + "flash_backward")(do, dlse, q, k, v, o, lse, causal=causal, scale=scale)
    xp = backends.array_namespace(q=q, k=k, v=v, o=o, lse=lse, do=do, **({} if dlse is None else {"dlse": dlse}))
    dlse = xp.zeros_like(lse) if dlse is None else dlse
    run = partial(_backward, causal=causal, scale=scale, mask=mask, by=by, **own)
    return without_gradient("flash_attention_backward", run, do, dlse, q, k, v, o, lse)


def _refusal(q, k, v, *, mask, by="columns", **own):
    """Why the kernels cannot do what is asked, as a text; None where they can."""
    asked = [name for name, value in own.items() if value is not None]
    if asked or by != "columns":
        return f"its kernel takes no {(asked or ['by'])[0]}"
    return backends.load(_KERNELS + "refusal")(q, k, v, mask)


def _forward(q, k, v, *, block_m, block_n, order, counts, **options):
    """(o, lse) of one call: a worker for each block of rows."""
    call = prepare(q, k, v, **options)
    tiles = Tiles(call, block_m, block_n)
    columns = arrangement(order, tiles.columns)
    gpu = Machine(call.xp, tiles.heads, call.work, record(counts, Counts))
    gpu.tensors = {"q": tiles.q, "k": tiles.k, "v": tiles.v, "lse": tiles.full(call.queries, 1),
                   "o": tiles.full(call.queries, call.out_shape[-1])}
    with backends.quiet():
        for i in tiles.rows:  # 3
            forward_row(gpu, tiles, i, columns)
    o = call.xp.reshape(gpu.tensors["o"], call.out_shape)
    return backends.cast(o, call.out_dtype), call.xp.reshape(gpu.tensors["lse"], call.out_shape[:-1])


def forward_row(gpu, tiles, i, columns):
    """Nothing; o and lse of the rows i are stored, made of the key blocks in the order of `columns`."""
    xp, count = gpu.xp, i.stop - i.start
    q = gpu.load("q", i)  # 4
    m, l = tiles.full(count, 1, -INF), tiles.full(count, 1)  # 5  # noqa: E741
    acc = tiles.full(count, tiles.v.shape[-1])
    for j in columns:  # 6
        if gpu.meet(tiles.kind(i, j)) == "skipped":
            continue
        k, v = gpu.load("k", j), gpu.load("v", j)  # 7
        s = scores(gpu, tiles, q, k, i, j)  # 8
        new = xp.maximum(m, xp.max(s, axis=-1, keepdims=True))  # 9
        level = finite_level(xp, new)  # a row that has seen nothing: e^(−∞ − 0) = 0
        p = gpu.exp(s - level)  # 10
        shrink = gpu.exp(m - level)
        l = gpu.multiply(shrink, l) + xp.sum(p, axis=-1, keepdims=True)  # 11  # noqa: E741
        acc = gpu.multiply(shrink, acc) + gpu.matmul(p, v)  # 12
        m = new
    gpu.store("o", i, gpu.divide(acc, backends.filled(xp, l, l == 0, 1.0)))  # 14, 16
    gpu.store("lse", i, m + gpu.log(l))  # 15, 16


def scores(gpu, tiles, q, k, i, j):
    """The scores of a block, q·kᵀ (q is scaled already), −∞ where not visible: the same in forward and backward."""
    return tiles.hide(gpu.matmul(q, gpu.xp.matrix_transpose(k)), i, j)


def _backward(do, dlse, q, k, v, o, lse, *, block_m, block_n, order=None, by="columns", counts=None, **options):
    """(dq, dk, dv) of one call, by workers for blocks of keys or of queries."""
    call = prepare(q, k, v, **options)
    _check_gradient(call, do, dlse, o, lse)
    tiles = Tiles(call, block_m, block_n)
    workers = arrangement(order, getattr(tiles, by))
    gpu = Machine(call.xp, tiles.heads, call.work, record(counts, Counts))
    width, dim = v.shape[-1], q.shape[-1]
    gpu.tensors = {
        "q": tiles.q, "k": tiles.k, "v": tiles.v, **_of_outputs(call, tiles, do, dlse, o, lse),
        "delta": tiles.full(call.queries, 1), "dq": tiles.full(call.queries, dim),
        "dk": tiles.full(call.keys, dim), "dv": tiles.full(call.keys, width),
    }  # fmt: skip
    with backends.quiet():
        for i in tiles.rows:  # 3
            store_delta(gpu, i)
        for block in workers:  # 4
            _WORKERS[by](gpu, tiles, block)
    return _finish(call, gpu.tensors)


def _of_outputs(call, tiles, do, dlse, o, lse):
    """do, o, dlse, lse as matrices a query head; where lse = −∞ the gradients are 0 and lse is +∞, so that P = 0."""
    do, o = (tiles.by_heads(backends.cast(x, call.work)) for x in (do, o))
    dlse, lse = (tiles.by_heads(x[..., None]) for x in (dlse, lse))
    empty = lse == -INF
    do, o, dlse = (backends.filled(call.xp, x, empty, 0.0) for x in (do, o, dlse))
    return {"do": do, "o": o, "dlse": dlse, "lse": backends.filled(call.xp, lse, empty, INF)}


def store_delta(gpu, i):
    """Nothing; delta = rowsum(do ∘ o) − dlse of the rows i is stored: dS = P ∘ (dP − delta).

    ∂lse/∂s_j = p_j, so dlse adds p_j·dlse to ds_j: it is taken from delta, and nothing else changes.
    """
    product = gpu.multiply(gpu.load("do", i), gpu.load("o", i))
    gpu.store("delta", i, gpu.xp.sum(product, axis=-1, keepdims=True) - gpu.load("dlse", i))


def backward_column(gpu, tiles, j):
    """Nothing; dk and dv of the keys j are stored, and their part of dq is added in HBM."""
    k, v = gpu.load("k", j), gpu.load("v", j)  # 5
    count = j.stop - j.start
    dk, dv = tiles.full(count, k.shape[-1]), tiles.full(count, v.shape[-1])  # 6
    for i in tiles.rows:  # 7
        if gpu.meet(tiles.kind(i, j)) == "skipped":
            continue
        q, do = gpu.load("q", i), gpu.load("do", i)  # 8
        p, ds = weights_and_slopes(gpu, tiles, q, k, v, do, i, j)  # 9, 10, 12, 13
        dv = dv + gpu.matmul(gpu.xp.matrix_transpose(p), do)  # 11
        gpu.add("dq", i, gpu.matmul(ds, k))  # 14
        dk = dk + gpu.matmul(gpu.xp.matrix_transpose(ds), q)  # 15
    gpu.store("dk", j, dk)  # 17
    gpu.store("dv", j, dv)


def backward_row(gpu, tiles, i):
    """Nothing; dq of the rows i is stored, and their part of dk and dv is added in HBM."""
    q, do = gpu.load("q", i), gpu.load("do", i)
    dq = tiles.full(i.stop - i.start, q.shape[-1])
    for j in tiles.columns:
        if gpu.meet(tiles.kind(i, j)) == "skipped":
            continue
        k, v = gpu.load("k", j), gpu.load("v", j)
        p, ds = weights_and_slopes(gpu, tiles, q, k, v, do, i, j)
        gpu.add("dv", j, gpu.matmul(gpu.xp.matrix_transpose(p), do))
        dq = dq + gpu.matmul(ds, k)
        gpu.add("dk", j, gpu.matmul(gpu.xp.matrix_transpose(ds), q))
    gpu.store("dq", i, dq)


def weights_and_slopes(gpu, tiles, q, k, v, do, i, j):
    """(P, dS) of a block, recomputed: P = exp(S − lse), dS = P ∘ (do·vᵀ − delta)."""
    s = scores(gpu, tiles, q, k, i, j)  # 9
    p = gpu.exp(s - gpu.load("lse", i))  # 10
    dp = gpu.matmul(do, gpu.xp.matrix_transpose(v))  # 12
    return p, gpu.multiply(p, dp - gpu.load("delta", i))  # 13


_WORKERS = {"columns": backward_column, "rows": backward_row}


def _finish(call, tensors):
    """(dq, dk, dv) in the shapes and dtype of q, k, v: dq times the scale, dk and dv summed over a group's heads."""
    xp = call.xp
    dq = xp.reshape(tensors["dq"] * call.scale, (*call.out_shape[:-1], call.q.shape[-1]))
    dk, dv = (xp.sum(tensors[name], axis=-3) for name in ("dk", "dv"))
    return tuple(backends.cast(x, call.out_dtype) for x in (dq, dk, dv))


def _check_gradient(call, do, dlse, o, lse):
    """Nothing; raises TypeError, ValueError where do, dlse, o or lse do not belong to the call."""
    for name, x, shape in (("do", do, call.out_shape), ("dlse", dlse, call.out_shape[:-1]),
                           ("o", o, call.out_shape), ("lse", lse, call.out_shape[:-1])):
        if tuple(x.shape) != tuple(shape):
            raise ValueError(f"{name} must have shape {tuple(shape)}; got {tuple(x.shape)}")
    for name, x, lawful in (("do", do, {call.out_dtype, call.work}), ("o", o, {call.out_dtype, call.work}),
                            ("lse", lse, {call.work}), ("dlse", dlse, {call.work})):
        if backends.float_name(x, name) not in lawful:
            raise TypeError(f"{name} must have dtype {' or '.join(sorted(lawful))}; got {backends.float_name(x)}")
