"""The warps of one thread block: keys shared out among them (split-K) or queries (split-Q), forward and backward.

Each function gives the right result from warps that know nothing of one another but what they read from a
`SharedMemory`, whose counts are the cost of the split. Arrays have two axes, one head: q, do (Nq, ·), k, v (N, ·).
Tensors are written to shared memory once, by all warps together; registers hold what a warp has read.
"""

from fdmath import _backends as backends
from fdmath.algebra.merge import merge, merge_all
from fdmath.algebra.order import whole
from fdmath.algebra.state import AccState, identity
from fdmath.attention.decode import key_ranges
from fdmath.attention.reference import prepare
from fdmath.attention.softmax import finite_level, partial_state
from fdmath.attention.tiles import blocks, record
from fdmath.cost.shared import SharedCounts, SharedMemory

INF = float("inf")


def shares(count, warps):
    """The slices of `count` rows or keys that the warps take, as even as possible, the larger first."""
    return [slice(start, stop) for start, stop in key_ranges(count, num_splits=whole(warps, "warps", least=1))]


def forward_split_q(q, k, v, *, warps=4, group=1, block_n=64, scale=None, counts=None):
    """The attention state (o, lse) from warps that own rows of q: each uses all keys, none hears of another.

    group: how many warps one reading of a tile serves, 1 where each reads for itself (`mma`), 4 for Hopper's `wgmma`;
    block_n: keys a tile; counts: a `SharedCounts` to add to. Source: document B, split-Q; claims:B49.
    """
    whole(group, "group", least=1)
    call, shared = _prepared(q, k, v, scale, block_n=block_n), SharedMemory(record(counts, SharedCounts))
    own = _rows_of_q(call, shared, shares(call.queries, warps))
    states = [_nothing(call, len(rows)) for rows in own]
    for j in blocks(call.keys, block_n):
        _share(shared, k=call.key_rows(j.start, j.stop), v=call.value_rows(j.start, j.stop))
        for w, rows in enumerate(own):
            if w % group == 0:
                keys, values = shared.read("k"), shared.read("v")
            states[w] = merge(states[w], partial_state(rows @ keys.T, values, AccState))
    return _together(call, states)


def forward_split_k(q, k, v, *, warps=4, block_n=64, scale=None, exchange="tile", counts=None):
    """The attention state (o, lse) from warps that own keys of every tile, all of them with the whole q.

    exchange="tile": at every tile the warps agree on the row maxima, and row sums and products P·v are added in shared
    memory, as FlashAttention-1 does (whose steps are tiles of queries: it has no other choice). The slices of the
    scores stay where they are: side by side they are the row.
    exchange="end": each warp keeps a state of its own keys, and ⊕ joins them once, after the last tile.
    Source: document B, split-K; claims:B46 to B48.
    """
    if exchange not in ("tile", "end"):
        raise ValueError(f'exchange must be "tile" or "end"; got {exchange!r}')
    call, shared = _prepared(q, k, v, scale, block_n=block_n), SharedMemory(record(counts, SharedCounts))
    own = _rows_of_q(call, shared, [slice(0, call.queries)] * len(shares(0, warps)))
    run = _exchange_at_every_tile if exchange == "tile" else _exchange_at_the_end
    with backends.quiet():
        return _together(call, run(call, shared, own, block_n))


def _exchange_at_every_tile(call, shared, own, block_n):
    """The AccState of each warp's share of the rows; m, l and acc of a row live with one warp."""
    xp, warps, rows = call.xp, range(len(own)), shares(call.queries, len(own))
    states = [_nothing(call, r.stop - r.start) for r in rows]
    nothing = call.xp.full((call.queries, 1), -INF, dtype=call.q.dtype, device=getattr(call.q, "device", None))
    level = [nothing for _ in warps]  # every warp's own copy of m
    for j in blocks(call.keys, block_n):
        tile, keys = (j.start, j.stop), shares(j.stop - j.start, len(own))
        _share(shared, k=call.key_rows(*tile), v=call.value_rows(*tile))
        scores = [own[w] @ shared.read("k", rows=keys[w]).T for w in warps]
        for w in warps:
            shared.write("max", xp.max(xp.concat([nothing, scores[w]], axis=-1), axis=-1, keepdims=True), w)
        shared.barrier()
        for w in warps:
            old, level[w] = level[w], xp.max(xp.stack([level[w], *(shared.read("max", u) for u in warps)]), axis=0)
            p = xp.exp(scores[w] - finite_level(xp, level[w]))
            shared.write("sum", xp.sum(p, axis=-1, keepdims=True), w)
            shared.write("out", p @ shared.read("v", rows=keys[w]), w)
        shared.barrier()
        for w, r in enumerate(rows):
            m, l, acc = states[w]  # noqa: E741
            shrink = xp.exp(old[r, 0] - finite_level(xp, level[w][r, 0]))
            l = shrink * l + sum(shared.read("sum", u, r)[:, 0] for u in warps)  # noqa: E741
            acc = shrink[:, None] * acc + sum(shared.read("out", u, r) for u in warps)
            states[w] = AccState(level[w][r, 0], l, acc)
    return states


def _exchange_at_the_end(call, shared, own, block_n):
    """The same, each warp with a state of all rows and its own keys until the last tile."""
    warps, states = range(len(own)), [_nothing(call, call.queries) for _ in own]
    for j in blocks(call.keys, block_n):
        keys = shares(j.stop - j.start, len(own))
        _share(shared, k=call.key_rows(j.start, j.stop), v=call.value_rows(j.start, j.stop))
        for w in warps:
            k, v = shared.read("k", rows=keys[w]), shared.read("v", rows=keys[w])
            states[w] = merge(states[w], partial_state(own[w] @ k.T, v, AccState))
    for w, (m, l, acc) in enumerate(states):  # noqa: E741
        for name, x in (("max", m[:, None]), ("sum", l[:, None]), ("out", acc)):
            shared.write(name, x, w)
    shared.barrier()

    def joined(rows):
        m, l, acc = ([shared.read(name, u, rows) for u in warps] for name in ("max", "sum", "out"))  # noqa: E741
        return merge_all([AccState(m[u][:, 0], l[u][:, 0], acc[u]) for u in warps])

    return [joined(rows) for rows in shares(call.queries, len(own))]


def backward_split_q(do, delta, q, k, v, lse, *, warps=4, block_m=64, scale=None, counts=None):
    """(dq, dk, dv) from warps that own rows of every tile of q: P and dS pass through shared memory, no sums do.

    do: (Nq, dv); delta = rowsum(do ∘ o) − dlse and lse: (Nq,); block_m: queries a tile. A warp computes P and dS of
    its rows and their dq; then, with the columns of all warps, dk and dv of its share of the keys.
    Source: document B, warps of the backward; claims:B51, B52.
    """
    call, shared = _prepared(q, k, v, scale, block_m=block_m), SharedMemory(record(counts, SharedCounts))
    _check_rows(call, do=do, delta=delta, lse=lse)
    xp, keys, dim, width = call.xp, shares(call.keys, warps), q.shape[-1], v.shape[-1]
    _share(shared, k=call.key_rows(), v=call.value_rows())
    own = [(shared.read("k"), shared.read("v")) for _ in keys]
    dq, dk, dv = [], [_zeros(call, c, dim) for c in keys], [_zeros(call, c, width) for c in keys]
    for i in blocks(call.queries, block_m):
        rows = shares(i.stop - i.start, len(keys))
        _share(shared, q=call.q[i], do=backends.cast(do[i], call.work))
        for w, r in enumerate(rows):
            mine = shared.read("q", rows=r), shared.read("do", rows=r)
            p, ds = _weights_and_slopes(xp, *mine, *own[w], lse[i][r], delta[i][r])
            dq.append(ds @ own[w][0])
            shared.write("p", p, w)
            shared.write("ds", ds, w)
        shared.barrier()
        for w, c in enumerate(keys):
            p, ds = (xp.concat([shared.read(name, u, columns=c) for u in range(len(keys))]) for name in ("p", "ds"))
            dv[w] = dv[w] + p.T @ shared.read("do")
            dk[w] = dk[w] + ds.T @ shared.read("q")
    return _gradients(call, dq, dk, dv)


def backward_split_k(do, delta, q, k, v, lse, *, warps=4, block_m=64, scale=None, counts=None):
    """(dq, dk, dv) from warps that own keys: dk and dv never leave them, products dS·k are added in shared memory.

    lse is known, so that no warp waits for a row maximum. Arguments as for `backward_split_q`.
    Source: document B, warps of the backward; claims:B51, B52.
    """
    call, shared = _prepared(q, k, v, scale, block_m=block_m), SharedMemory(record(counts, SharedCounts))
    _check_rows(call, do=do, delta=delta, lse=lse)
    xp, keys, dim, width = call.xp, shares(call.keys, warps), q.shape[-1], v.shape[-1]
    _share(shared, k=call.key_rows(), v=call.value_rows())
    own = [(shared.read("k", rows=c), shared.read("v", rows=c)) for c in keys]
    dq, dk, dv = [], [_zeros(call, c, dim) for c in keys], [_zeros(call, c, width) for c in keys]
    for i in blocks(call.queries, block_m):
        _share(shared, q=call.q[i], do=backends.cast(do[i], call.work))
        for w in range(len(keys)):
            rows, loss = shared.read("q"), shared.read("do")
            p, ds = _weights_and_slopes(xp, rows, loss, *own[w], lse[i], delta[i])
            dv[w] = dv[w] + p.T @ loss
            dk[w] = dk[w] + ds.T @ rows
            shared.write("dq", ds @ own[w][0], w)
        shared.barrier()
        dq += [sum(shared.read("dq", u, r) for u in range(len(keys))) for r in shares(i.stop - i.start, len(keys))]
    return _gradients(call, dq, dk, dv)


def _weights_and_slopes(xp, q, do, k, v, lse, delta):
    """(P, dS) of some rows and keys: P = exp(S − lse), dS = P ∘ (do·vᵀ − delta); a row of lse = −∞ has none."""
    with backends.quiet():
        p = xp.exp(q @ k.T - backends.filled(xp, lse, lse == -INF, INF)[:, None])
        return p, p * (do @ v.T - delta[:, None])


def _prepared(q, k, v, scale, **tile):
    """The checked Call of one head; ValueError for arrays of more axes, or a tile below 1."""
    for name, size in tile.items():
        whole(size, name, least=1)
    call = prepare(q, k, v, scale=scale)
    if q.ndim != 2:
        raise ValueError(f"q must have 2 axes, the rows of one thread block; got shape {tuple(q.shape)}")
    return call


def _check_rows(call, do, delta, lse):
    """Nothing; raises TypeError, ValueError where do (Nq, dv), delta (Nq,) or lse (Nq,) is no such array."""
    backends.array_namespace(q=call.q, do=do, delta=delta, lse=lse)
    for name, x, shape in (("do", do, call.out_shape), ("delta", delta, call.out_shape[:1]),
                           ("lse", lse, call.out_shape[:1])):
        if tuple(x.shape) != tuple(shape):
            raise ValueError(f"{name} must have shape {tuple(shape)}; got {tuple(x.shape)}")


def _share(shared, **tiles):
    """Nothing; the tiles are in shared memory, and every warp knows it."""
    for name, x in tiles.items():
        shared.write(name, x)
    shared.barrier()


def _rows_of_q(call, shared, rows):
    """The rows of q that each warp holds in registers."""
    _share(shared, q=call.q)
    return [shared.read("q", rows=r) for r in rows]


def _nothing(call, rows):
    """The state of no keys for so many rows."""
    return identity((rows,), call.v.shape[-1], AccState, like=call.q)


def _zeros(call, part, width):
    """A matrix of zeros, with the rows of a slice."""
    return call.xp.zeros((part.stop - part.start, width), dtype=call.q.dtype, device=getattr(call.q, "device", None))


def _together(call, states):
    """The result of the call, its rows from the states of the warps, one below the other."""
    return call.finish(AccState(*(call.xp.concat(parts) for parts in zip(*states, strict=True))))


def _gradients(call, dq, dk, dv):
    """(dq, dk, dv) from pieces one below the other, dq times the scale."""
    whole_dq, dk, dv = (call.xp.concat(parts) if parts else call.q for parts in (dq, dk, dv))
    return tuple(backends.cast(x, call.out_dtype) for x in (whole_dq * call.scale, dk, dv))
