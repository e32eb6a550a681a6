"""The states of tiles on a CPU, in place: each core takes its share of the tiles, and reads their K and V once.

The sums are those of `partial_state`, written into arrays that are made once: a tile allocates nothing that
grows with it. Products are cut into blocks of few keys, which BLAS computes where they lie, without the copy
that it makes of large operands. It runs on NumPy arrays, and on torch tensors in the memory of a CPU as NumPy
sees them; it has no gradient.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.state import AccState
from fdmath.attention.softmax import finite_level, stored_level

PIECE = 4096
"""Keys that a core takes at a time, in whole tiles, and converts at a time from another format."""


SHARED = 2**22
"""Bytes of K and V from which on a second thread pays."""

SHORT = 512
"""Keys below which many heads are better taken together, by `partial_state`: here each of them is a step of Python."""

TOGETHER = 2**15
"""Most weights of several heads that one step of Python computes: few keys a head are otherwise mostly Python's time.

Measured at 3 KV heads of 3 rows and 4000 keys: the states of all took 1.3 ms head by head, 0.7 ms together.
"""

FEW_ROWS = 32
"""Most rows of a KV head for which products are cut into blocks, and threads share the tiles."""


def block_keys(rows):
    """The keys of one matrix product of `rows` rows: 1024 / rows, at most 128; a whole piece beyond FEW_ROWS.

    OpenBLAS computes so small a product where its operands lie, on the thread that asks. With many rows its own copy
    and its own threads pay.
    """
    return PIECE if rows > FEW_ROWS else 1024 // max(rows, 8)


class Piece(NamedTuple):
    """`count` tiles of `length` keys each, one after the other: the first is tile `first` and begins at key `start`."""

    first: int
    count: int
    start: int
    length: int

    @property
    def stop(self):
        """The key after the last."""
        return self.start + self.count * self.length

    def goes_on_with(self, index, start, length):
        """Whether tile `index`, of `length` keys from key `start` on, would be its next."""
        return (index, start, length) == (self.first + self.count, self.stop, self.length)


def pieces(ranges, keys):
    """The Pieces that the ranges (start, stop) fall into: neighbours of one length, at most `keys` keys, not empty."""
    found = []
    for index, (start, stop) in enumerate(ranges):
        length = stop - start
        if found and found[-1].goes_on_with(index, start, length) and (found[-1].count + 1) * length <= keys:
            found[-1] = found[-1]._replace(count=found[-1].count + 1)
        elif length > 0:
            found.append(Piece(index, 1, start, length))
    return found


def pays(call):
    """Whether working in place is the quicker way: not for many heads of few keys."""
    return call.keys >= SHORT or int(np.prod(call.k.shape[:-2])) <= 16


def states_in_place(call, ranges):
    """The AccState of each range of keys, along a leading axis of len(ranges): m, l (T, …, Hkv, R), acc (T, …, dv).

    call: a `Call` of NumPy arrays, R = g·Nq rows a KV head. call.threads may share the work; little work, and products
    so large that BLAS shares them out by itself, are done by one. m is what call.stats_dtype holds before l
    is taken against it, as `partial_state` does. An empty range is the identity.
    """
    heads, rows, width = call.k.shape[:-2], call.q.shape[-2], call.v.shape[-1]
    shape = (len(ranges), *heads, rows)
    m, l, acc = np.full(shape, -np.inf, call.work), np.zeros(shape, call.work), np.zeros((*shape, width), call.work)
    states = AccState(m, l, acc)
    work = [(some, piece) for piece in pieces(ranges, PIECE) for some in _heads_together(call, piece)]
    shared = call.k.nbytes + call.v.nbytes >= SHARED and rows <= FEW_ROWS
    on_cores(lambda desk, item: _fill(states, call, *item, desk), work, call.threads if shared else 1)
    return states


def _heads_together(call, piece):
    """The indices (…, slice of KV heads) of the heads of each step; one head where keys are hidden or converted."""
    *batch, heads = call.k.shape[:-2] or (1,)
    alone = call.causal or call.mask is not None or backends.float_name(call.k) != call.work
    size = 1 if alone else max(1, TOGETHER // max(1, call.q.shape[-2] * piece.count * piece.length))
    return [(*index, slice(h, min(h + size, heads))) for index in np.ndindex(*batch) for h in range(0, heads, size)]


def _fill(states, call, heads, piece, desk):
    """Nothing; the states of some KV heads' tiles of the piece are written to their place: here (h, T, …, R)."""
    q, k, v = (x[heads] if x.ndim > 2 else x[None] for x in (call.q, call.k, call.v))
    k, v = (_cut(x[:, piece.start:piece.stop], piece.count) for x in (k, v))
    where = (slice(piece.first, piece.first + piece.count), *heads)
    m, l, acc = (x[where].swapaxes(0, 1) if call.k.ndim > 2 else x[where[:1]][None] for x in states)
    weights = desk.array("weights", (len(k), piece.count, *_padded(piece.length, q.shape[-2])), call.work)
    hidden = _hidden(call, heads, piece)
    _scores(q, k, hidden, weights, desk)
    np.max(weights, axis=(-3, -1), out=m)
    m[...] = stored_level(np, m, call.stats_dtype)
    np.subtract(weights, finite_level(np, m)[..., None, :, None], out=weights)
    np.exp(weights, out=weights)
    np.sum(weights, axis=(-3, -1), out=l)
    _weighted_sums(weights, v if hidden is None else _without(v, np.all(hidden, axis=-1)), acc, desk)


def _without(v, unseen):
    """v with zeros in the rows that nobody sees, where it may hold anything; v itself if there are none."""
    return np.where(unseen[..., None], np.zeros((), v.dtype), v) if np.any(unseen) else v


def _padded(keys, rows):
    """(blocks, R, keys a block): how the weights of a tile lie, block after block, the last one padded."""
    block = block_keys(rows)
    return -(-keys // block), rows, min(keys, block)


def _blocks(keys, rows):
    """[(slice of keys, slice of blocks)]: the whole blocks, at most PIECE keys together, then what is left as one."""
    block = block_keys(rows)
    whole, most = keys // block, PIECE // block
    groups = [(a, min(a + most, whole)) for a in range(0, whole, most)]
    parts = [(slice(a * block, b * block), slice(a, b)) for a, b in groups]
    return parts + [(slice(whole * block, keys), slice(whole, whole + 1))] * (keys > whole * block)


def _hidden(call, heads, piece):
    """Where a row of the one head does not see a key of the piece, (1, T, n, R); None where all is seen."""
    *batch, some = heads
    visible = call.visible(piece.start, piece.stop, (*batch, some.start) if call.k.ndim > 2 else ())
    return None if visible is None else _cut(~visible.T, piece.count)[None]


def _scores(q, k, hidden, out, desk):
    """Nothing; q·kᵀ, −∞ where hidden, is written to `out`.

    q (h, R, d), k (h, T, n, d), out (h, T, blocks, R, keys a block).
    """
    for keys, blocks in _blocks(k.shape[-2], q.shape[-2]):
        parts = _cut(desk.converted("k", k[..., keys, :], out.dtype), blocks.stop - blocks.start)
        here = out[:, :, blocks, :, :parts.shape[-2]]
        np.matmul(q[:, None, None], parts.swapaxes(-1, -2), out=here)
        if hidden is not None:
            np.copyto(here, -np.inf, where=_cut(hidden[:, :, keys], here.shape[2]).swapaxes(-1, -2))
        out[:, :, blocks, :, here.shape[-1]:] = -np.inf


def _weighted_sums(weights, v, out, desk):
    """Nothing; weights·v is written to `out`: (h, T, blocks, R, keys a block), (h, T, n, dv), (h, T, R, dv)."""
    out[...] = 0
    for keys, blocks in _blocks(v.shape[-2], out.shape[-2]):
        parts = _cut(desk.converted("v", v[..., keys, :], out.dtype), blocks.stop - blocks.start)
        sums = desk.array("sums", (*parts.shape[:3], *out.shape[2:]), out.dtype)
        np.matmul(weights[:, :, blocks, :, :parts.shape[-2]], parts, out=sums)
        np.add(out, np.sum(sums, axis=2), out=out)


def _cut(x, count):
    """(…, count·n, d) as (…, count, n, d), without a copy."""
    return x.reshape(*x.shape[:-2], count, x.shape[-2] // count, x.shape[-1])


class Desk:
    """The arrays that one core works in: made at first use, made larger when needed, else used again."""

    def __init__(self):
        self._memory = {}

    def array(self, name, shape, dtype):
        """An array of that shape whose contents are what the last use left."""
        size = int(np.prod(shape))
        if name not in self._memory or self._memory[name].size < size:
            self._memory[name] = np.empty(size, dtype)
        return self._memory[name][:size].reshape(shape)

    def converted(self, name, x, dtype):
        """x in the format `dtype`: x itself where it has it, else a copy on this desk."""
        if x.dtype == dtype:
            return x
        copy = self.array(name, x.shape, dtype)
        backends.copy_to(copy, x)
        return copy


def on_cores(task, items, workers):
    """Nothing; task(desk, item) has been done for each item, by up to `workers` threads, each with a Desk of its own.

    The threads take the items in turn, so that none waits for another; where one is enough it is the caller's own.
    What a task raises is raised here.
    """
    queue = iter(items)

    def work():
        desk = Desk()
        with backends.quiet():
            for item in queue:
                task(desk, item)

    workers = min(workers, len(items))
    if workers <= 1:
        work()
        return
    with ThreadPoolExecutor(workers) as pool:
        begun = []
        try:
            for _ in range(workers):
                begun.append(pool.submit(work))
        except RuntimeError:  # no new threads while Python ends, or no more of them
            work()
        for each in begun:
            each.result()
