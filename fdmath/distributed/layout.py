"""Which rows of a sequence lie on which rank.

A layout is a list with an entry for each rank: the list of its runs (start, stop) of consecutive rows, in the order in
which it stores them. Together the runs hold each row once.
"""

from itertools import pairwise

from fdmath import _backends as backends
from fdmath.algebra.order import whole
from fdmath.attention.decode import key_ranges


def contiguous(length, ranks):
    """The layout that gives each rank one run, as even as possible, the larger first.

    With a causal mask rank 0 sees the least keys and the last rank the most.
    """
    return [[run] for run in _cut(length, ranks, 1)]


def zigzag(length, ranks):
    """The layout that cuts the sequence into 2n even chunks and gives rank r the chunks r and 2n − 1 − r.

    With a causal mask each rank then computes as many scores as the others, at every hop.
    Source: Brandon et al. 2023 (Striped Attention, the problem); zhuzilin/ring-flash-attention (zigzag).
    """
    chunks = _cut(length, ranks, 2)
    return [[chunks[rank], chunks[-1 - rank]] for rank in range(len(chunks) // 2)]


def _cut(length, ranks, chunks):
    """`chunks` runs a rank, as even as possible; TypeError, ValueError for counts that are none."""
    return key_ranges(whole(length, "length", least=0), num_splits=chunks * whole(ranks, "ranks", least=1))


def rows_of(layout):
    """The number of rows of each rank."""
    return [sum(stop - start for start, stop in runs) for runs in layout]


def placed(runs):
    """[(slice, run)]: where each run of one rank lies among the rows that it stores."""
    ends = [0]
    for start, stop in runs:
        ends.append(ends[-1] + stop - start)
    return [(slice(a, b), run) for (a, b), run in zip(pairwise(ends), runs, strict=True)]


def check_layout(layout, ranks):
    """The layout as lists of pairs of ints; ValueError unless it has `ranks` entries and holds each row once."""
    found = [[(whole(a, "layout"), whole(b, "layout")) for a, b in runs] for runs in layout]
    if len(found) != ranks:
        raise ValueError(f"layout must have an entry for each of {ranks} ranks; got {len(found)}")
    runs = sorted(run for runs in found for run in runs if run[0] != run[1])
    if any(stop < start for start, stop in runs) or any(a[1] != b[0] for a, b in pairwise([(0, 0), *runs])):
        raise ValueError(f"layout must hold each row from 0 on once; its runs are {runs}")
    return found


def shard(x, runs, axis=-2):
    """The rows of x that the runs of one rank name, in their order; x is an array of the whole sequence."""
    xp, ahead = backends.array_namespace(x=x), (slice(None),) * (axis % x.ndim)
    return xp.concat([x[(*ahead, slice(start, stop))] for start, stop in runs or [(0, 0)]], axis=axis)


def unshard(shards, layout, axis=-2):
    """The array of the whole sequence, from those of the ranks; ValueError for shards of other lengths."""
    xp = backends.array_namespace(**{f"shard {i}": x for i, x in enumerate(shards)})
    layout = check_layout(layout, len(shards))
    if (lengths := [x.shape[axis] for x in shards]) != rows_of(layout):
        raise ValueError(f"shards must have {rows_of(layout)} rows, as layout says; got {lengths}")
    ahead = (slice(None),) * (axis % shards[0].ndim)
    parts = [(run, x[(*ahead, rows)]) for x, runs in zip(shards, layout, strict=True) for rows, run in placed(runs)]
    return xp.concat([part for _, part in sorted(parts, key=lambda pair: pair[0])], axis=axis)
