"""Times of calls on a CUDA device: graphs replayed over inputs that no cache still holds, one after the other in turn.

A graph holds one call on each of several input sets, so that a time has no work of the host in it, and each call reads
its keys and values from memory. Needs torch.
"""

import statistics

import torch

from fdmath.bench.timing import Timing

ROTATED = 512 * 2**20
"""The bytes of K and V, at least, that a graph reads before it reads any of them again: several times an L2 cache."""

CALLS = 20
"""The calls of a graph, at least."""


class Inputs:
    """Sets (q, k, v) of normal numbers of one dtype, cut from one pool on a device.

    shapes: all Shapes that sets will be asked for; rotated: see ROTATED. k and v of a set share no memory with another.
    """

    def __init__(self, dtype, shapes, device="cuda", rotated=ROTATED, seed=0):
        self.dtype, self.rotated = dtype, rotated
        self.random = torch.Generator(device).manual_seed(seed)
        numbers = max(2 * shape.cache * self.count(shape) for shape in shapes)
        self.pool = torch.empty(numbers, dtype=getattr(torch, dtype), device=device).normal_(generator=self.random)

    def count(self, shape):
        """How many sets there are of a shape: at least two."""
        return max(2, -(-self.rotated // (2 * shape.cache * getattr(torch, self.dtype).itemsize)))

    def sets(self, shape, keys_first=False):
        """The list of (q (B, Hq, Nq, d), k, v (B, Hkv, N, d)); keys_first: in memory the keys come before the heads."""
        batch, q_heads, kv_heads, dim, keys, queries = shape[1:]
        count = self.count(shape)
        q = torch.empty(count, batch, q_heads, queries, dim, dtype=self.pool.dtype, device=self.pool.device)
        q.normal_(generator=self.random)
        sizes = (batch, keys, kv_heads, dim) if keys_first else (batch, kv_heads, keys, dim)
        pairs = self.pool[:count * 2 * shape.cache].view(count, 2, *sizes)
        return [(q[i], *(x.transpose(1, 2) if keys_first else x for x in pairs[i])) for i in range(count)]


class Graph:
    """One call on each input set, at least `calls` in all, captured as a CUDA graph.

    call(*arguments) has run once before that, so that nothing is compiled inside; what the calls return is kept.
    """

    def __init__(self, call, sets, calls=CALLS):
        call(*sets[0])
        torch.cuda.synchronize()
        rounds = -(-calls // len(sets))
        self.graph, self.calls = torch.cuda.CUDAGraph(), rounds * len(sets)
        with torch.cuda.graph(self.graph):
            self.kept = [call(*arguments) for _ in range(rounds) for arguments in sets]

    def seconds(self):
        """The seconds a call of one replay, by the device's own clock."""
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        self.graph.replay()
        end.record()
        end.synchronize()
        return begin.elapsed_time(end) / 1e3 / self.calls


def alternating(graphs, visits=2, replays=9):
    """name → Timing of Graphs: each is replayed `replays` times in a row, then the next, and all that `visits` times.

    So that what changes with time, clocks and heat, is in the spread of all. The first replay of a visit, which pays
    for what the graph before left behind, does not count.
    """
    times = {name: [] for name in graphs}
    for _ in range(visits):
        for name, graph in graphs.items():
            graph.seconds()
            times[name] += [graph.seconds() for _ in range(replays)]
    return {name: Timing(statistics.median(t), min(t), max(t)) for name, t in times.items()}


def one_call_seconds(call, arguments):
    """The seconds of one call that is not the first, host and device together."""
    call(*arguments)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    call(*arguments)
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / 1e3
