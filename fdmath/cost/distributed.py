"""What attention costs over n ranks: bytes on the wire exactly, seconds by a model whose parameters are measured.

Each law is a function, its docstring the law. Ranks hold even shards; counts of bytes are `Fraction`s.
"""

from dataclasses import dataclass
from fractions import Fraction
from math import ceil, inf, log2, sqrt

from fdmath.algebra.state import AccState
from fdmath.cost.decode import FLOAT16, FLOAT32, check_counts, decode_flop, kv_cache_bytes, state_bytes

ALGORITHMS = ("ring", "doubling")
"""How a group may run its collective operations: n − 1 steps to the neighbour, or log₂ n to a rank twice as far."""


def ring_bytes(keys, dim, ranks, kv_heads=1, batch=1, number=FLOAT16):
    """The bytes that one rank of a ring sends forward: its share of K and V, n − 1 times: (n − 1)/n of the whole.

    No statistics move. Source: Liu et al. 2023; claims:A76.
    """
    check_counts(1, ranks=ranks)
    return Fraction(ranks - 1, ranks) * kv_cache_bytes(keys, dim, kv_heads, batch, number)


def ring_backward_bytes(keys, dim, ranks, kv_heads=1, batch=1, number=FLOAT16, gradient=FLOAT32):
    """The same backward: K and V once more, and dK and dV, which make one hop more, home: n/n of the whole.

    gradient: bytes of one number of dK and dV, which are summed in working format.
    """
    forward = ring_bytes(keys, dim, ranks, kv_heads, batch, number)
    return forward + (kv_cache_bytes(keys, dim, kv_heads, batch, gradient) if ranks > 1 else 0)


def tree_bytes(kind, rows, dim, ranks, exchange="gather", number=FLOAT32):
    """The bytes that one rank sends for the states of `rows` rows, one a query head and query.

    "gather": its state goes to the n − 1 others: (n − 1)·rows·(d + 1) numbers for the pair, d + 2 for a triple.
    "reduce": 2(n − 1)/n of rows·(d + 2) numbers for any kind, by reduce-scatter and all-gather: one level for the
    maximum, then d + 1 sums. Source: claims:A24, A74.
    """
    check_counts(1, rows=rows, ranks=ranks)
    if check_exchange(exchange) == "gather":
        return Fraction((ranks - 1) * rows * state_bytes(kind, dim, number, number))
    return Fraction(2 * (ranks - 1), ranks) * rows * state_bytes(AccState, dim, number, number)


def causal_scores(layout):
    """[[how many scores rank r computes at hop h]] of a causal ring: row i sees keys j ≤ i.

    layout: as `fdmath.distributed.zigzag` gives it. The slowest rank of each hop decides its time.
    """
    ranks = len(layout)
    return [[sum(_seen(own, there) for own in layout[rank] for there in layout[rank - hop]) for hop in range(ranks)]
            for rank in range(ranks)]


def _seen(own, there):
    """The scores of two runs (start, stop) of one layout: all, a triangle, or none."""
    rows = own[1] - own[0]
    if own == there:
        return rows * (rows + 1) // 2
    return rows * (there[1] - there[0]) if there[1] <= own[0] else 0


def balance(layout):
    """The share of a causal ring's time that a rank computes, on average: all scores / n·Σ over hops of the most.

    About ½ for rows in order, and 1 for a zigzag, as n grows. 1 where there is nothing to compute.
    """
    scores = causal_scores(layout)
    most = sum(max(hop) for hop in zip(*scores, strict=True))
    return Fraction(sum(map(sum, scores)), len(layout) * most) if most else Fraction(1)


@dataclass(frozen=True)
class Cluster:
    """Ranks and the links between neighbours, as measured: seconds, bytes and FLOP a second.

    latency, bandwidth: a message of x bytes takes latency + x/bandwidth. start, read: a rank decodes x bytes of its
    cache in start + x/read; any block has this start. flops: of attention's two products. overlap: the share of the
    shorter of computing and sending that is hidden behind the longer, 0 to 1. workers: how many ranks compute at once
    at that speed: cores, where all ranks are on one machine, whose messages are then copies made by the same cores.
    """

    latency: float
    bandwidth: float
    start: float
    read: float
    flops: float
    overlap: float = 1.0
    workers: float = inf

    def message_seconds(self, count, ranks=1):
        """The seconds of a message of `count` bytes to a neighbour, while all ranks send one."""
        return self.latency + self.slowdown(ranks) * float(count) / self.bandwidth

    def slowdown(self, ranks):
        """How many times as long computing takes for `ranks` ranks at once: n / workers, at least 1."""
        return max(1.0, ranks / self.workers)


def ring_seconds(compute, transfer, ranks, overlap=1.0):
    """The seconds of a ring: n blocks and n − 1 messages, of which the share `overlap` of the shorter is hidden.

    n·c + (n−1)·t − overlap·(n−1)·min(c, t), c and t the seconds of one block and of one message.
    """
    check_counts(1, ranks=ranks)
    return ranks * compute + (ranks - 1) * (transfer - overlap * min(compute, transfer))


def rows_to_hide(flops, bandwidth, group=1, number=FLOAT16):
    """The rows a rank from which computing a block takes longer than the message beside it: number·F/(2·g·β).

    c = 4·d·h·r²/F and t = 2·r·d·(h/g)·number/β for r rows a rank, with F = flops and β = bandwidth a second, group = g
    query heads a KV head, latencies left out: neither d nor the number of ranks is in it. Source: Liu et al. 2023.
    """
    check_counts(1, group=group)
    return number * flops / (2 * group * bandwidth)


def ring_attention_seconds(cluster, rows, dim, ranks, heads=1, causal=False, number=FLOAT16):
    """The seconds of `ring_attention`'s forward over `rows` rows in all: 4·d FLOP a score and head.

    causal: half of them, balanced as by a zigzag and the hidden ones skipped (a CPU computes those of the diagonal).
    """
    flop = Fraction(decode_flop(rows, dim, heads) * rows, ranks**2) / (2 if causal else 1)
    share = Fraction(kv_cache_bytes(rows, dim, heads, number=number), ranks)
    compute = cluster.slowdown(ranks) * (cluster.start + float(flop) / cluster.flops)
    return ring_seconds(compute, cluster.message_seconds(share, ranks), ranks, cluster.overlap)


def ring_decode_seconds(cluster, cache, ranks):
    """The seconds of one step where the cache, `cache` bytes in all, travels to the queries: a ring of reads."""
    share = Fraction(cache, ranks)
    compute = cluster.slowdown(ranks) * (cluster.start + float(share) / cluster.read)
    return ring_seconds(compute, cluster.message_seconds(share, ranks), ranks, cluster.overlap)


def tree_decode_seconds(cluster, cache, state, ranks, exchange="gather", algorithm="ring", statistic=FLOAT32):
    """The seconds of one step where states travel: one rank's share read, then the exchange, one after the other.

    state: bytes of one rank's state (rows · `state_bytes`); statistic: those of its levels (rows · 4), which "reduce"
    sends ahead. algorithm: see `collective_seconds`.
    """
    own = cluster.slowdown(ranks) * (cluster.start + float(Fraction(cache, ranks)) / cluster.read)
    if check_exchange(exchange) == "gather":
        return own + collective_seconds(cluster, state, ranks, exchange, algorithm)
    return own + sum(collective_seconds(cluster, x, ranks, exchange, algorithm) for x in (statistic, state - statistic))


def fastest_ranks(cluster, cache, state):
    """The number of ranks, a real number, at which `tree_decode_seconds` of a gathering ring is least: √(R/(λ + x/β)).

    R = cache/read, the seconds in which one rank reads all of it; λ + x/β, those of the message of one state. More
    ranks save less of R/n than the (n − 1) messages cost.
    """
    return sqrt(float(cache) / cluster.read / cluster.message_seconds(state))


def collective_seconds(cluster, count, ranks, exchange, algorithm="ring"):
    """The seconds of an all-gather of `count` bytes a rank, or an all-reduce of `count` bytes.

    ring: n − 1 messages of x bytes, or 2(n − 1) of x/n. doubling: ⌈log₂ n⌉ steps, in which (n − 1)·x bytes are
    gathered in all, or x bytes exchanged at each. Source: Thakur, Rabenseifner, Gropp 2005.
    """
    if algorithm not in ALGORITHMS:
        raise ValueError(f"algorithm must be one of {', '.join(ALGORITHMS)}; got {algorithm!r}")
    check_counts(1, ranks=ranks)
    others, steps, count = ranks - 1, ceil(log2(ranks)), float(count)
    if check_exchange(exchange) == "gather":
        started = others if algorithm == "ring" else steps
        return started * cluster.latency + cluster.slowdown(ranks) * others * count / cluster.bandwidth
    if algorithm == "ring":
        return 2 * others * cluster.message_seconds(count / ranks, ranks)
    return steps * cluster.message_seconds(count, ranks)


def check_exchange(exchange):
    """`exchange` itself if it is "gather" or "reduce"; ValueError otherwise."""
    if exchange not in ("gather", "reduce"):
        raise ValueError(f'exchange must be "gather" or "reduce"; got {exchange!r}')
    return exchange
