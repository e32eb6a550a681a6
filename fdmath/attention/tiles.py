"""The blocks that attention's N×N scores are cut into: which rows and keys, and what of a block is visible."""

import math
from dataclasses import replace

from fdmath import _backends as backends
from fdmath.algebra.order import whole
from fdmath.attention.reference import causal_mask

DEFAULT_BLOCK = 128
"""Queries, and keys, of a block where the caller names none."""


def blocks(count, size):
    """The slices of `size` rows that `count` rows are cut into, the last one short; none for no rows."""
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]


class Tiles:
    """The blocks of one checked `Call`: `rows` of block_m queries, `columns` of block_n keys, and q, k, v to read.

    q has the shape (…, Hkv, g, Nq, d), scaled; k and v (…, Hkv, 1, N, ·): one matrix a query head, KV heads shared
    and never copied. Rows that see no key and keys that no query sees are zeros, whatever they held.
    Raises TypeError, ValueError for block sizes that are no integers from 1 on.
    """

    def __init__(self, call, block_m=None, block_n=None):
        size_m = DEFAULT_BLOCK if block_m is None else whole(block_m, "block_m", least=1)
        size_n = DEFAULT_BLOCK if block_n is None else whole(block_n, "block_n", least=1)
        call = without_unseen(call)
        self.call, self.xp = call, call.xp
        self.rows, self.columns = blocks(call.queries, size_m), blocks(call.keys, size_n)
        self.shape = (*call.k.shape[:-2], call.group)
        self.q = self.by_heads(call.q)
        self.k, self.v = (x[..., None, :, :] for x in (call.k, call.v))
        self.mask = None if call.mask is None else self.by_heads(call.mask)

    @property
    def heads(self):
        """The query heads of all sequences together."""
        return math.prod(self.shape)

    def by_heads(self, x):
        """An array with a matrix of Nq rows a query head, as (…, Hkv, g, Nq, width)."""
        return self.xp.reshape(x, (*self.shape, self.call.queries, x.shape[-1]))

    def kind(self, i, j):
        """What the block of rows i and keys j is: "skipped" where all is hidden, "masked" where some may be, "full".

        Row i sees key j iff j ≤ i + N − Nq (bottom-right). A mask of the caller's is not searched for empty blocks.
        """
        last_seen = self.call.keys - self.call.queries
        if self.call.causal and j.start > i.stop - 1 + last_seen:
            return "skipped"
        if self.mask is not None or self.call.causal and j.stop - 1 > i.start + last_seen:
            return "masked"
        return "full"

    def hide(self, scores, i, j):
        """The scores (…, rows, keys) of a block, −∞ where a row does not see a key."""
        if self.kind(i, j) == "full":
            return scores
        visible = True
        if self.call.causal:
            visible = causal_mask(self.xp, self.call.queries, self.call.keys, scores, j.start, j.stop)[i]
        if self.mask is not None:
            visible = self.mask[..., i, j] & visible
        return backends.filled(self.xp, scores, ~visible, float("-inf"))

    def full(self, rows, width, value=0.0):
        """A new array (…, Hkv, g, rows, width) of one number in working format."""
        like = self.call.q
        return self.xp.full((*self.shape, rows, width), value, dtype=like.dtype, device=getattr(like, "device", None))


def without_unseen(call):
    """`call.without_unseen()`, without an array of Nq·N where there is no mask: row i sees no key iff i < Nq − N."""
    blind = call.queries - call.keys
    if call.mask is not None:
        return call.without_unseen()
    if not call.causal or blind <= 0:
        return call
    rows = call.xp.arange(call.q.shape[-2], device=getattr(call.q, "device", None)) % call.queries < blind
    return replace(call, q=backends.filled(call.xp, call.q, rows[:, None], 0.0))


def arrangement(order, blocks, name="order"):
    """The blocks in the order given, a permutation of range(len(blocks)); as they stand for None.

    Raises TypeError for what holds no indices, ValueError for other indices.
    """
    if order is None:
        return blocks
    try:
        order = list(order)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of the blocks' indices; got {order!r}") from None
    order = [whole(index, name) for index in order]
    if sorted(order) != list(range(len(blocks))):
        raise ValueError(f"{name} must hold each of the {len(blocks)} blocks 0 to {len(blocks) - 1} once; got {order}")
    return [blocks[index] for index in order]


def record(counts, kind):
    """`counts`, to which an algorithm adds: None or a record of the kind; TypeError for anything else."""
    if counts is None or isinstance(counts, kind):
        return counts
    raise TypeError(f"counts must be a {kind.__name__} or None; got {type(counts).__name__}")
