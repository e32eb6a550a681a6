"""Notebook 09: which blocks a causal FlashAttention-2 computes, and which of them it masks."""

import functools
import operator

import numpy as np

from fdmath.algebra.merge import merge
from fdmath.algebra.state import identity
from fdmath.attention.reference import causal_mask
from fdmath.attention.softmax import partial_state
from fdmath.verify.subject import Subject

HINTS = (
    "Cut the queries into rows `i0 ≤ i < i1` with `i1 = min(i0 + block_m, queries)`, and the keys likewise; the last "
    "blocks are short. Query `i` sees key `j` iff `j <= i + keys - queries`. In a block, who sees the most keys, and "
    "which key is seen by the most queries? Who sees the fewest?",
    "A block is left out iff even its *last* query, `i1 - 1`, does not see its *first* key, `j0`. It needs the mask "
    "iff its *first* query, `i0`, does not see its *last* key, `j1 - 1`: equation (9).",
)

FIRST = "anchor"

SIZES = ((1, 2), (2, 1), (2, 3), (3, 2), (2, 2), (5, 4))
"""Block sizes, queries × keys, with which a reader's function is tried; besides, one block for all."""

LARGER = ((20, 33), (33, 20))
"""Queries and keys of which the lists are looked at once more: most calls that laws make are smaller."""


MOST_QUERIES = 8
"""The most queries of a call: blocks of one query are many, and of more queries LARGER asks."""


def my_blocks(queries, keys, block_m, block_n):
    """The blocks that a causal call has to compute, a list of (i0, i1, j0, j1, masked).

    A block has the queries i0 ≤ i < i1 and the keys j0 ≤ j < j1, at most block_m × block_n; query i sees key j iff
    j ≤ i + keys − queries. No block is listed of which nothing is seen; masked: whether some of it is hidden.
    """
    raise NotImplementedError


def answer(queries, keys, block_m, block_n):
    """The blocks that a causal call has to compute, a list of (i0, i1, j0, j1, masked).

    A block has the queries i0 ≤ i < i1 and the keys j0 ≤ j < j1, at most block_m × block_n; query i sees key j iff
    j ≤ i + keys − queries. No block is listed of which nothing is seen; masked: whether some of it is hidden.
    """
    blocks, offset = [], keys - queries
    for i0 in range(0, queries, block_m):
        i1 = min(i0 + block_m, queries)
        for j0 in range(0, keys, block_n):
            j1 = min(j0 + block_n, keys)
            if j0 <= i1 - 1 + offset:
                blocks.append((i0, i1, j0, j1, j1 - 1 > i0 + offset))
    return blocks


def subject(fn):
    """The Subject that a reader's function is: attention that computes the blocks which it lists, and no others."""
    @functools.cache
    def larger():
        """Nothing; ValueError where a list for LARGER is wrong, which it says: a report shows q and k of its call."""
        try:
            for counts in LARGER:
                checked(fn, *counts)
        except ValueError as error:
            raise ValueError(f"not for the call above, which is right so far, but asked besides: {error}") from None

    def attend(q, k, v, causal):
        state = attention_of(fn, q, k, v, causal)
        if causal:
            larger()
        return state

    return Subject(fn.__name__, "attention", attend, most_queries=MOST_QUERIES)


def attention_of(blocks, q, k, v, causal):
    """(o, lse) of the blocks that `blocks` lists for the first of SIZES, each row folded in their order.

    Raises ValueError where the list for any of SIZES is not what it should be.
    """
    queries, keys, group = q.shape[-2], k.shape[-2], q.shape[1] // k.shape[1]
    listed = checked(blocks, queries, keys) if causal else [(0, queries, 0, keys, False)]
    k, v = (np.repeat(x, group, axis=1) for x in (k, v))
    state, seen = identity(q.shape[:-1], v.shape[-1], like=q), causal_mask(np, queries, keys, k)
    o, lse = np.array(state.o), np.array(state.lse)
    for i0, i1, j0, j1, masked in listed:
        scores = q[:, :, i0:i1] * q.dtype.type(q.shape[-1] ** -0.5) @ np.swapaxes(k[:, :, j0:j1], -1, -2)
        if masked:
            scores = np.where(seen[i0:i1, j0:j1], scores, np.asarray(-np.inf, q.dtype))
        row = type(state)(o[:, :, i0:i1], lse[:, :, i0:i1])
        o[:, :, i0:i1], lse[:, :, i0:i1] = merge(row, partial_state(scores, v[:, :, j0:j1]))
    return o, lse


def checked(blocks, queries, keys):
    """The list of `blocks` for the first of SIZES; ValueError, naming a block, if that for any of them is wrong."""
    lists = {}
    for size in (*SIZES, (max(queries, 1), max(keys, 1))):
        lists[size] = [five(block) for block in blocks(queries, keys, *size)]
        if found := trouble(lists[size], queries, keys, *size):
            raise ValueError(f"{found}: {queries} queries, {keys} keys, blocks of {size[0]} x {size[1]}")
    return lists[SIZES[0]]


def five(block):
    """The block as a tuple of four ints and a bool; ValueError if it is none."""
    try:
        *ends, masked = block
        i0, i1, j0, j1 = map(operator.index, ends)
        return i0, i1, j0, j1, bool(masked)
    except (TypeError, ValueError):
        words = "a block is (i0, i1, j0, j1, masked), four whole numbers and a boolean"
        raise ValueError(f"{words}; got {block}") from None


def trouble(listed, queries, keys, block_m, block_n):
    """What is wrong with a list of blocks, the first thing found, in words; "" if the list is right.

    Right is any list that has each visible score once, in as few blocks as the grid that starts at (0, 0) has.
    """
    seen = causal_mask(np, queries, keys, np.zeros(1))
    times = np.zeros(seen.shape, int)
    for *block, masked in listed:
        i0, i1, j0, j1 = block
        if not (0 <= i0 < i1 <= queries and 0 <= j0 < j1 <= keys):
            return f"block {(*block, masked)} is empty, or reaches beyond the queries and keys"
        if i1 - i0 > block_m or j1 - j0 > block_n:
            return f"block {(*block, masked)} has {i1 - i0} x {j1 - j0} scores where {block_m} x {block_n} is the most"
        part = seen[i0:i1, j0:j1]
        if not part.any():
            return f"block {(*block, masked)} is listed, and nothing of it is seen"
        if masked == part.all():
            hidden = "nothing of it is hidden" if masked else f"query {i0} does not see key {j1 - 1}"
            return f"block {(*block, masked)} must say masked = {not masked}, {hidden}"
        times[i0:i1, j0:j1] += 1
    for i, j in np.argwhere(seen & (times != 1)):
        return f"query {i} sees key {j}, which is to be in 1 block and is in {times[i, j]}"
    most = len(score_by_score(queries, keys, block_m, block_n))
    return f"lists {len(listed)} blocks where {most} will do" if len(listed) > most else ""


def score_by_score(queries, keys, block_m, block_n):
    """What a right list holds, in order, found by looking at each score of each block."""
    seen = causal_mask(np, queries, keys, np.zeros(1))
    cut = [(i, j, seen[i:i + block_m, j:j + block_n]) for i in range(0, queries, block_m)
           for j in range(0, keys, block_n)]
    return [(i, i + x.shape[0], j, j + x.shape[1], not x.all()) for i, j, x in cut if x.any()]


def sample():
    """Arguments of a first call: 3 queries, 5 keys, blocks of 2 × 2."""
    return 3, 5, 2, 2
