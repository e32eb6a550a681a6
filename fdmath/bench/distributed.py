"""Ring and tree over the ranks of one machine (gloo), timed beside what the cost model says of them.

A row is a dict: what was done, the ranks, its seconds (median, least and most over the rounds, of the slowest rank),
the bytes that a rank handed over, those that left it through sockets, those of the formula, and the seconds predicted.
The model's parameters are the least times on one rank and two; three and four are predictions, of the least time.
"""

import os
import socket
import stat
import statistics
import sys
import time
from contextlib import suppress
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
import torch.distributed as dist

from fdmath.algebra.state import AccState, LSEState
from fdmath.attention.decode import split_kv_attention
from fdmath.cost import distributed as cost
from fdmath.cost.decode import FLOAT32, decode_flop, kv_cache_bytes, state_bytes
from fdmath.distributed import Traffic, contiguous, ring_attention, run_ranks, tree_decode, zigzag
from fdmath.distributed.launch import values_of
from fdmath.distributed.layout import rows_of
from fdmath.distributed.wire import Wire

MEASURED = ("algebra", "attention", "cost/distributed.py", "distributed", "bench/distributed.py", "_backends.py")
MESSAGES = (64, 2**14, 2**20, 2**25)
"""Bytes of the messages to a neighbour that are timed: the first gives the latency, the last the bandwidth."""

BYTES_SENT = 200
"""Where Linux's struct tcp_info has tcpi_bytes_sent, 8 bytes (linux/tcp.h, since 4.19)."""

SHORT = 8
"""The share of the cache, one in so many keys, whose reading tells what a step costs before it reads."""

ALL, PART = "tree, pairs gathered", f"tree, 1/{SHORT} of the keys"
TREES = {ALL: (LSEState, "gather"), "tree, triples gathered": (AccState, "gather"),
         "tree, sums reduced": (LSEState, "reduce")}


class Work(NamedTuple):
    """The shapes that are timed, in float32: one decode step over `keys` keys, and attention of `rows` rows.

    Multiples of 24 by default: even shards, and even chunks of a zigzag, on 2, 3 and 4 ranks.
    """

    q_heads: int = 16
    kv_heads: int = 2
    dim: int = 128
    keys: int = 32256
    rows: int = 2016
    heads: int = 2
    head_dim: int = 64

    def cache_bytes(self):
        """The bytes of the whole cache."""
        return kv_cache_bytes(self.keys, self.dim, self.kv_heads, number=FLOAT32)

    def share_bytes(self, ranks):
        """The bytes that pass to a neighbour at a hop of the decoding ring."""
        return self.cache_bytes() // ranks


def times_of_rank(work, rounds):
    """{what: ([seconds of each round], bytes handed over, bytes through sockets)} of this rank, all at once."""
    calls = _decodes(work) | _rings(work) | (_messages(work) if dist.get_world_size() > 1 else {})
    seconds, sent, wired = ({name: [] for name in calls} for _ in range(3))
    for turn in range(rounds + 1):
        for name, call in calls.items():
            traffic = Traffic()
            dist.barrier()
            before, start = socket_bytes(), time.perf_counter()
            call(traffic)
            took = time.perf_counter() - start
            wired[name].append(socket_bytes() - before)
            sent[name].append(traffic.bytes())
            seconds[name] += [took] if turn else []  # the first does not count
    return {name: (seconds[name], sent[name][-1], statistics.mode(wired[name])) for name in calls}


def socket_bytes():
    """The bytes that this process has sent through TCP so far, as Linux counts them; 0 elsewhere.

    The field tcpi_bytes_sent of each connection. They hold more than the numbers of an array: the transport's own
    words, a constant for a call, which the difference of two spellings is free of.
    """
    total, folder = 0, Path("/proc/self/fd")
    for entry in folder.iterdir() if folder.is_dir() else ():
        with suppress(OSError):
            if stat.S_ISSOCK(entry.stat().st_mode):
                with socket.socket(fileno=os.dup(int(entry.name))) as line:
                    told = line.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, BYTES_SENT + 8)
                total += int.from_bytes(told[BYTES_SENT:], sys.byteorder)
    return total


def _decodes(work):
    """{what: a call of a Traffic} of one decode step, whose cache lies on all ranks in even parts."""
    layout = contiguous(work.keys, dist.get_world_size())
    own = rows_of(layout)[dist.get_rank()]
    q = torch.randn(1, work.q_heads, 1, work.dim)
    k, v = torch.randn(2, 1, work.kv_heads, own, work.dim)
    part = own // SHORT
    calls = {"its own keys alone": lambda _: split_kv_attention(q, k, v),
             PART: partial(_tree, q, k[..., :part, :], v[..., :part, :], LSEState, "gather"),
             "ring, one query": lambda traffic: ring_attention(q, k, v, layout=layout, traffic=traffic)}
    for name, (kind, exchange) in TREES.items():
        calls[name] = partial(_tree, q, k, v, kind, exchange)
    return calls


def _tree(q, k, v, kind, exchange, traffic):
    """The state of one `tree_decode`."""
    return tree_decode(q, k, v, kind=kind, exchange=exchange, traffic=traffic)


def _rings(work):
    """{what: a call of a Traffic} of attention over rows that lie on all ranks."""
    def call(cut, causal):
        layout = cut(work.rows, dist.get_world_size())
        x = torch.randn(1, work.heads, rows_of(layout)[dist.get_rank()], work.head_dim)
        return lambda traffic: ring_attention(x, x, x, causal=causal, layout=layout, traffic=traffic)

    return {"ring, all keys": call(contiguous, False), "ring, causal, zigzag": call(zigzag, True),
            "ring, causal, in order": call(contiguous, True)}


def _messages(work):
    """{what: a call of a Traffic} of messages to the neighbour, the last as long as those of the decoding ring."""
    sizes = (*MESSAGES, work.share_bytes(dist.get_world_size()))
    return {f"message, {count}": partial(_message, torch.zeros(count // FLOAT32)) for count in sizes}


def _message(numbers, traffic):
    """[the numbers of the rank before], for which these went to the next."""
    return Wire("fdmath bench", None, traffic).pass_on("a message", [numbers], [numbers.shape]).wait()


def measure(work, sizes=(1, 2, 3, 4), rounds=7):
    """(Cluster, rows): the parameters as measured, and a row for everything timed at each number of ranks."""
    times = {ranks: _slowest(values_of(run_ranks("fdmath.bench.distributed:times_of_rank", [(work, rounds)] * ranks,
                                                 timeout=120, deadline=600))) for ranks in sorted({1, 2, *sizes})}
    cluster = cluster_of(work, times)
    return cluster, [row(work, cluster, ranks, name, *found) for ranks in times for name, found in times[ranks].items()]


def _slowest(ranks):
    """{what: ([seconds of each round, of the slowest rank], most bytes that a rank handed over and sent)}."""
    return {name: ([max(turn) for turn in zip(*(rank[name][0] for rank in ranks), strict=True)],
                   *(max(rank[name][i] for rank in ranks) for i in (1, 2))) for name in ranks[0]}


def cluster_of(work, times):
    """The Cluster that the least times on one rank and two tell: those of a machine that nobody else disturbs.

    start and read: from a tree on one rank, with all of the cache and with a part. overlap: (computing + sending −
    both) / the shorter of the two, of the decoding ring of two ranks, within 0 to 1.
    """
    one, two = ({name: min(seconds) for name, (seconds, *_) in times[n].items()} for n in (1, 2))
    latency = min(two[f"message, {count}"] for count in MESSAGES)
    bandwidth = MESSAGES[-1] / max(two[f"message, {MESSAGES[-1]}"] - latency, latency)
    cache, whole, part = work.cache_bytes(), one[ALL], one[PART]
    slope = max(whole - part, 0.0) / (cache - cache // SHORT) or whole / cache
    start = max(0.0, whole - slope * cache)
    flop = decode_flop(work.rows, work.head_dim, work.heads) * work.rows
    flops = flop / max(one["ring, all keys"] - start, one["ring, all keys"] / 2)
    compute, transfer = start + slope * work.share_bytes(2), two[f"message, {work.share_bytes(2)}"]
    hidden = 2 * compute + transfer - two["ring, one query"]
    overlap = min(1.0, max(0.0, hidden / min(compute, transfer)))
    return cost.Cluster(latency, bandwidth, start, 1 / slope, flops, overlap, float(os.cpu_count() or 1))


def row(work, cluster, ranks, name, seconds, sent, wired):
    """One row; formula and predicted are None where the model says nothing."""
    formula = expected_bytes(work, ranks, name)
    return {"what": name, "ranks": ranks, "seconds": statistics.median(seconds), "least": min(seconds),
            "most": max(seconds), "sent": sent, "wired": wired,
            "formula": None if formula is None else float(formula),
            "predicted": predicted_seconds(work, cluster, ranks, name)}


def expected_bytes(work, ranks, name):
    """The bytes that a rank hands over to the others, by the formula; None where there is none.

    A gathered or reduced tensor is handed over once, however often it then travels.
    """
    if name == "ring, one query":
        return cost.ring_bytes(work.keys, work.dim, ranks, work.kv_heads, number=FLOAT32)
    if name.startswith("ring"):
        return cost.ring_bytes(work.rows, work.head_dim, ranks, work.heads, number=FLOAT32)
    if name in TREES:
        kind, exchange = TREES[name]
        return work.q_heads * state_bytes(kind if exchange == "gather" else AccState, work.dim)
    return None


def predicted_seconds(work, cluster, ranks, name):
    """The model's seconds; None where it says nothing."""
    if name == "ring, one query":
        return cost.ring_decode_seconds(cluster, work.cache_bytes(), ranks)
    if name == "ring, all keys":
        return cost.ring_attention_seconds(cluster, work.rows, work.head_dim, ranks, work.heads, number=FLOAT32)
    if name in TREES:
        kind, exchange = TREES[name]
        state = work.q_heads * state_bytes(kind if exchange == "gather" else AccState, work.dim)
        return cost.tree_decode_seconds(cluster, work.cache_bytes(), state, ranks, exchange,
                                        statistic=work.q_heads * FLOAT32)
    if name.startswith("message"):
        return cluster.message_seconds(int(name.rpartition(" ")[2]), ranks)
    return None


def table(cluster, rows):
    """Cluster and rows as text: milliseconds measured and predicted, their ratio, bytes."""
    lines = [", ".join(f"{name} {value:.3g}" for name, value in asdict(cluster).items()), "",
             f"{'ranks':<6}{'what':<28}{'ms':>10}{'least':>10}{'predicted':>11}{'ratio':>7}"
             f"{'bytes':>10}{'formula':>10}{'through sockets':>17}"]
    for x in rows:
        told = [f"{'-':>11}{'-':>7}" if x["predicted"] is None else
                f"{1e3 * x['predicted']:>11.3f}{x['predicted'] / x['least']:>7.2f}",
                f"{x['sent']:>10}{'-' if x['formula'] is None else format(x['formula'], '.0f'):>10}{x['wired']:>17}"]
        lines.append(f"{x['ranks']:<6}{x['what']:<28}{1e3 * x['seconds']:>10.3f}{1e3 * x['least']:>10.3f}"
                     + "".join(told))
    return "\n".join([*lines, "", "ms: median over the rounds, of the slowest rank; ratio: predicted / least"])
