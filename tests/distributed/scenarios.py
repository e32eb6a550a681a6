"""What each rank does in the tests: all cases of one number of ranks in one group, since starting one takes seconds."""

import os
import time
from datetime import timedelta
from typing import NamedTuple

import torch
import torch.distributed as dist

from fdmath import AccState, LSEState, MLOState, flat, tree
from fdmath.distributed import Traffic, contiguous, ring_attention, shard, tree_decode, zigzag
from tests.attention.calls import Call, random_call
from tests.attention.test_flash_backward import losses

UNEVEN = {
    1: [[(0, 9)]],
    2: [[], [(0, 9)]],
    3: [[(3, 9)], [], [(0, 3)]],
    4: [[(7, 9), (3, 4)], [], [(0, 3)], [(4, 7)]],
}
SHARDS = {1: [11], 2: [8, 3], 3: [4, 0, 7], 4: [4, 0, 6, 1]}
DIMS = (64, 128, 256)


class Ring(NamedTuple):
    """A call of `ring_attention`: where its keys lie, where its queries lie if elsewhere, and what is told of it."""

    call: Call
    keys: object
    queries: object = None
    told: bool = True
    dtype: str = "float32"

    def layouts(self, ranks):
        """The layouts of queries and keys."""
        keys = self.keys(self.call.k.shape[-2], ranks)
        return (self.queries(self.call.q.shape[-2], ranks) if self.queries else keys), keys


def uneven(length, ranks):
    """A layout in which a rank has nothing, others much, and runs stand in any order."""
    return UNEVEN[ranks]


RINGS = {
    "causal, zigzag": Ring(random_call(1, (2, 1), 9, 9, 2, 1, causal=True), zigzag),
    "causal, zigzag, a batch": Ring(random_call(2, (4, 2), 17, 17, 5, 4, batch=(2,), causal=True), zigzag),
    "causal, in order": Ring(random_call(3, (2, 2), 11, 11, 3, causal=True), contiguous, told=False),
    "causal, unequal and empty": Ring(random_call(4, (3, 1), 9, 9, 4, causal=True), uneven),
    "all keys, other queries": Ring(random_call(5, (4, 2), 5, 13, 3), contiguous, contiguous, told=False),
    "fewer keys than ranks": Ring(random_call(6, None, 3, 2, 3), contiguous, contiguous, told=False),
    "scores near 1000": Ring(random_call(7, (2, 1), 12, 12, 4, causal=True, scale=300.0), zigzag),
    "16 bits": Ring(random_call(8, (2, 1), 9, 9, 8, causal=True), zigzag, dtype="bfloat16"),
    "double": Ring(random_call(9, (2, 1), 9, 9, 4, causal=True), zigzag, dtype="float64"),
}
DECODES = {
    "one query": random_call(10, (4, 2), 1, 11, 5, 4, batch=(2,)),
    "three queries, causal": random_call(11, (2, 1), 3, 11, 5, causal=True),
    "scores near 1000": random_call(12, (2, 1), 1, 11, 4, scale=300.0),
    "no keys": random_call(13, (2, 1), 1, 0, 4),
}
WAYS = {
    **{f"{kind.__name__}, {exchange}": {"kind": kind, "exchange": exchange}
       for kind in (LSEState, MLOState, AccState) for exchange in ("gather", "reduce")},
    "LSEState, gather, tree": {"kind": LSEState, "exchange": "gather", "order": tree},
}


def order_of(way):
    """The order in which a way of exchanging adds."""
    return WAYS[way].get("order", flat)


def cut(length, ranks):
    """The layout of the keys of a decode: SHARDS of them, or none."""
    ends = [sum(SHARDS[ranks][:i]) for i in range(ranks + 1)] if length else [0] * (ranks + 1)
    return [[run] for run in zip(ends[:-1], ends[1:], strict=True)]


def tensor(x, dtype):
    """A tensor of a named dtype."""
    return torch.from_numpy(x).to(getattr(torch, dtype))


def everything():
    """{what: {case: …}}: this rank's part of all that is judged."""
    return {
        "ring": {name: ring(case) for name, case in RINGS.items()},
        "again": ring(RINGS["causal, zigzag, a batch"]),
        "decode": {(name, way): decode(call, way) for name, call in DECODES.items() for way in WAYS},
        "decode again": decode(DECODES["one query"], "AccState, reduce"),
        "bytes": {(way, dim): sent(way, dim) for way in WAYS for dim in DIMS},
        "one token a rank": one_token(),
        "one token, without rank 0": one_token_without_rank_0(),
    }


def ring(case):
    """(o, lse, dq, dk, dv, bytes of keys, of gradients) of this rank's rows."""
    rank, size = dist.get_rank(), dist.get_world_size()
    of_q, of_k = (layout[rank] for layout in case.layouts(size))
    q, k, v = (shard(tensor(x, case.dtype), runs).requires_grad_()
               for x, runs in ((case.call.q, of_q), (case.call.k, of_k), (case.call.v, of_k)))
    do, dlse = losses(case.call)
    traffic, layout = Traffic(), case.layouts(size)[1] if case.told else None
    o, lse = ring_attention(q, k, v, causal=case.call.causal, layout=layout, scale=case.call.scale, traffic=traffic)
    torch.autograd.backward([o, lse], [shard(tensor(do, case.dtype), of_q), shard(torch.from_numpy(dlse).to(lse), of_q,
                                                                                   -1)])
    counts = [traffic.bytes(f"passing {what} on") for what in ("keys and values", "gradients")]
    return o.detach(), lse.detach(), q.grad, k.grad, v.grad, *counts


def decode(call, way, traffic=None):
    """(o, lse) of all queries, from this rank's keys."""
    runs = cut(call.k.shape[-2], dist.get_world_size())[dist.get_rank()]
    q, k, v = (tensor(x, "float32") for x in (call.q, call.k, call.v))
    return tuple(tree_decode(q, shard(k, runs), shard(v, runs), causal=call.causal, scale=call.scale, traffic=traffic,
                             **WAYS[way]))


def sent(way, dim):
    """The bytes that one decode of 2 rows hands over."""
    traffic = Traffic()
    decode(random_call(1, (2, 1), 1, 11, dim), way, traffic)
    return traffic.bytes()


def one_token(group=None):
    """o of this rank's token: scores 0, value 1 on rank 0, 3 on rank 1 and so on, seen causally (faults:F7)."""
    nothing = torch.zeros(1, 1)
    return ring_attention(nothing, nothing, nothing + 1 + 2 * dist.get_rank(group), group, causal=True).o.item()


def one_token_without_rank_0():
    """The same in the group of the other ranks, which have other numbers there; the refusal on rank 0; None alone."""
    if dist.get_world_size() == 1:
        return None
    group = dist.new_group(range(1, dist.get_world_size()))
    try:
        return one_token(group)
    except ValueError as error:
        return str(error)


def unlike(last):
    """[what the calls raised] where the last rank has other arrays and options than rank 0: `last` says which."""
    x = torch.ones(2, 3, 4)
    dtype, options = last if dist.get_rank() else ("float16", {})
    x = x.to(getattr(torch, dtype))
    return [raised(function, x, x, x, causal=True, **options) for function in (ring_attention, tree_decode)]


def last_rank_leaves(seconds):
    """[what the calls raised], of those that wait for the last rank, first while it sleeps, then when it is gone."""
    groups = [dist.new_group(timeout=timedelta(seconds=seconds)) for _ in range(4)]
    rank, size = dist.get_rank(), dist.get_world_size()
    if rank == size - 1:
        time.sleep(6 * seconds)
        os._exit(7)
    x = torch.ones(2, 3, 4)
    found = []
    for moment in range(2):
        ring_group, tree_group = groups[2 * moment:2 * moment + 2]
        found += [raised(ring_attention, x, x, x, ring_group, layout=contiguous(3 * size, size)),
                  raised(tree_decode, x, x, x, tree_group)]
        time.sleep(3 * seconds)
    return found


def raised(function, *arguments, **options):
    """(words of the RuntimeError or ValueError that the call raises, seconds until then)."""
    start = time.monotonic()
    try:
        function(*arguments, **options)
    except (RuntimeError, ValueError) as error:
        return str(error), time.monotonic() - start
    return "nothing", time.monotonic() - start
