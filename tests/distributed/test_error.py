"""The errors of ring and tree as the notebook asks for them: within their bounds, and not where a rank is left out."""

from functools import cache

import numpy as np

from fdmath.bench import grid
from fdmath.bench.distributed_error import RING, TREES, WAYS, judged, live
from fdmath.cost.decode import state_bytes
from fdmath.distributed import contiguous, shard


@cache
def found():
    """What a group of two ranks gives, which is started once."""
    return live(keys=101, sizes=(1, 2), levels=(0, 1000), dims=(1, 64))


def test_every_way_is_within_its_bound_on_every_number_of_ranks():
    rows, _ = found()
    assert {(row.way, row.ranks, row.level) for row in rows} == {(w, n, s) for w in WAYS for n in (1, 2)
                                                                 for s in (0, 1000)}
    assert all(0 < row.error <= row.bound and row.ratio <= 1 for row in rows)
    assert all(row.different == 1 for row in rows)  # two ranks: ⊕ commutes, bit for bit


def test_bytes_are_those_of_one_state():
    for (way, dim), counts in found()[1].items():
        kind, exchange = TREES[way]
        numbers = state_bytes(kind, dim) if exchange == "gather" else (dim + 2) * 4
        assert counts == 2 * [numbers]


def test_a_rank_whose_keys_are_left_out_breaks_the_bound():
    from fdmath import split_kv_attention
    case = grid.synthetic(101, "float32", (0, 1000))
    whole = tuple(split_kv_attention(case.q, case.k, case.v))
    half = tuple(split_kv_attention(case.q, *(shard(x, contiguous(101, 2)[0]) for x in (case.k, case.v))))
    for states, holds in ((whole, whole), True), ((whole, half), False):
        assert all((row.ratio <= 1) == holds for row in judged(case, RING, states))
    nan = whole[0] + np.float32(np.nan), whole[1]
    assert not any(row.ratio <= 1 for row in judged(case, RING, (whole, nan)))
