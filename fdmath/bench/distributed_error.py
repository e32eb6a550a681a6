"""The errors of ring and tree on 1, 2, 3 … ranks, each beside its proven bound, and the bytes that a rank handed over.

One query meets keys that lie on all ranks. Errors and bounds are in u·Σp|v|, as in `fdmath.bench.grid`, whose cases
these are. One group of processes serves all sizes: the first n of its ranks make a group of their own.
"""

from typing import NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from fdmath import ring
from fdmath.algebra import rounding
from fdmath.algebra.merge import flat
from fdmath.algebra.state import AccState, LSEState
from fdmath.bench import grid
from fdmath.distributed import Traffic, contiguous, ring_attention, run_ranks, shard, tree_decode
from fdmath.distributed.launch import values_of

RING = "ring"
TREES = {"tree, pairs gathered": (LSEState, "gather"), "tree, triples gathered": (AccState, "gather"),
         "tree, sums reduced": (LSEState, "reduce")}
WAYS = (RING, *TREES)


class Row(NamedTuple):
    """One way on one number of ranks, at one score level: the worst rank's error.

    error, bound: the largest over the numbers of o, in u·Σp|v|. ratio: of each number with its own bound, lse included.
    different: how many different states, bit for bit, the ranks hold.
    """

    way: str
    ranks: int
    level: float
    error: float
    bound: float
    ratio: float
    different: int


def states_of_rank(q, k, v, sizes, dims):
    """({(way, ranks): (o, lse)}, {(way, d): bytes}) of this rank, in the groups of the first `ranks` ranks.

    q (…, 1, d), k (…, N, d), v (…, N, dv): NumPy arrays, equal on all ranks. bytes: what `bytes_of` says, all ranks
    being in the group.
    """
    groups = {n: dist.new_group(range(n)) for n in sizes}
    rank, (q, k, v) = dist.get_rank(), map(torch.from_numpy, (q, k, v))
    states = {}
    for n in (n for n in sizes if rank < n):
        runs = contiguous(k.shape[-2], n)[rank]
        for way in WAYS:
            o, lse = state_of(way, q, shard(k, runs), shard(v, runs), groups[n])
            states[way, n] = o.numpy(), lse.numpy()
    return states, {(way, dim): bytes_of(way, dim) for way in TREES for dim in dims}


def state_of(way, q, k, v, group=None, traffic=None):
    """The state of the queries over the keys of all ranks, by one of the WAYS."""
    if way == RING:
        return ring_attention(q, k, v, group, traffic=traffic)
    kind, exchange = TREES[way]
    return tree_decode(q, k, v, group, kind=kind, exchange=exchange, traffic=traffic)


def bytes_of(way, dim):
    """The bytes that this rank hands over for the state of one row of dim numbers, counted from what is sent."""
    traffic, x = Traffic(), torch.ones(1, dim)
    state_of(way, x, x, x, traffic=traffic)
    return traffic.bytes()


def live(keys=2003, sizes=(1, 2, 3, 4), levels=grid.LEVELS, dims=(64, 128, 256)):
    """([Row], {(way, d): [bytes of each rank]}) of one group of processes, which is started for this.

    keys: at most the package's tile times the least of the sizes, so that each rank makes one state.
    """
    case = grid.synthetic(keys, "float32", levels)
    found = values_of(run_ranks("fdmath.bench.distributed_error:states_of_rank",
                                [(case.q, case.k, case.v, sizes, dims)] * max(sizes), timeout=60))
    states, counts = zip(*found, strict=True)
    rows = [row for n in sizes for way in WAYS for row in judged(case, way, [x[way, n] for x in states[:n]])]
    return rows, {key: [count[key] for count in counts] for key in counts[0]}


def judged(case, way, states):
    """The Rows of one way: a level each, from the states (o, lse) that the ranks hold."""
    n = len(states)
    kind, unit = TREES.get(way, (LSEState, ""))[0], rounding.format_of(case.dtype).u * case.exact.scale_o
    parts, errors = grid.tiles_with_budgets(case, -(-case.keys // n), kind)
    error, bound, ratio = [], [], []
    for rank, state in enumerate(states):
        budget = grid.call_budget(parts, errors, ring(rank) if way == RING else flat, rounding.format_of(case.dtype))
        of_o, of_lse = case.exact.errors(LSEState(*state))
        ratio.append(np.maximum(np.max(of_o / budget.o, axis=-1), of_lse / budget.lse))
        error.append(of_o / unit)
        bound.append(budget.o / unit)
    for i, level in enumerate(case.sources):
        bits = {b"".join(np.ascontiguousarray(x[i]).tobytes() for x in state) for state in states}
        yield Row(way, n, level, *(float(np.max([x[i] for x in rank])) for rank in (error, bound, ratio)), len(bits))
