"""The costs over n ranks: bytes as exact rationals, the balance of layouts, and the model where it can be seen."""

from fractions import Fraction

import pytest

from fdmath import AccState, LSEState, MLOState
from fdmath.cost.decode import FLOAT32, pair_saving
from fdmath.cost.distributed import (
    Cluster,
    balance,
    causal_scores,
    collective_seconds,
    fastest_ranks,
    ring_attention_seconds,
    ring_backward_bytes,
    ring_bytes,
    ring_decode_seconds,
    ring_seconds,
    rows_to_hide,
    tree_bytes,
    tree_decode_seconds,
)
from fdmath.distributed.layout import contiguous, zigzag

# Powers of two, so that every sum below is exact.
LINKED = Cluster(latency=1.0, bandwidth=4.0, start=2.0, read=8.0, flops=16.0)


def test_a_ring_moves_what_every_rank_lacks():
    assert ring_bytes(1024, 128, 1) == 0
    assert ring_bytes(1024, 128, 4, kv_heads=8) == 3 * 2 * 256 * 128 * 8 * 2
    assert ring_backward_bytes(1024, 128, 1) == 0
    assert ring_backward_bytes(1024, 128, 4) == ring_bytes(1024, 128, 4) + 2 * 1024 * 128 * 4


@pytest.mark.parametrize("dim, percent", [(1, "33.33"), (64, "1.52"), (128, "0.77"), (256, "0.39")])
def test_the_pair_saves_what_the_ledger_says_where_states_are_gathered(dim, percent):
    pair, triple = (tree_bytes(kind, 32, dim, 8) for kind in (LSEState, AccState))
    assert 1 - pair / triple == pair_saving(dim)
    assert f"{float(100 * (1 - pair / triple)):.2f}" == percent  # claims:A24, A74
    assert len({tree_bytes(kind, 32, dim, 8, "reduce") for kind in (LSEState, MLOState, AccState)}) == 1


def test_an_all_reduce_sends_less_than_twice_its_numbers_and_a_gather_as_often_as_there_are_others():
    assert tree_bytes(AccState, 3, 2, 4) == 3 * 3 * 4 * FLOAT32
    assert tree_bytes(LSEState, 3, 2, 4, "reduce") == Fraction(6, 4) * 3 * 4 * FLOAT32
    assert tree_bytes(LSEState, 3, 2, 1) == tree_bytes(LSEState, 3, 2, 1, "reduce") == 0


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 8])
def test_every_visible_score_is_computed_once(ranks):
    for layout in (contiguous(48, ranks), zigzag(48, ranks), zigzag(47, ranks)):
        length = sum(stop - start for runs in layout for start, stop in runs)
        assert sum(map(sum, causal_scores(layout))) == length * (length + 1) // 2


def test_a_zigzag_is_balanced_and_rows_in_order_leave_half_of_the_ranks_idle():
    assert causal_scores(zigzag(8, 2)) == [[2 * 3 + 4, 8], [2 * 3 + 4, 8]]
    assert balance(zigzag(1024, 8)) == balance(zigzag(8, 2)) == 1
    assert Fraction(1, 2) < balance(contiguous(1024, 64)) < Fraction(51, 100) + Fraction(1, 64)
    assert balance(contiguous(0, 2)) == 1


def test_what_overlaps_costs_the_longer_of_the_two():
    assert ring_seconds(3, 2, 4) == 4 * 3
    assert ring_seconds(2, 3, 4) == 4 * 2 + 3 * (3 - 2)
    assert ring_seconds(3, 2, 4, overlap=0) == 4 * 3 + 3 * 2
    assert ring_seconds(3, 2, 1, overlap=0) == 3


def test_ring_and_tree_by_hand():
    assert ring_decode_seconds(LINKED, 64, 2) == 2 * (2 + 4) + (1 + 8 - 6)
    assert tree_decode_seconds(LINKED, 64, 8, 2) == (2 + 4) + (1 + 2)
    assert tree_decode_seconds(LINKED, 64, 12, 2, "reduce", statistic=4) == (2 + 4) + 2 * (1 + 0.5) + 2 * (1 + 1)
    assert ring_attention_seconds(LINKED, 4, 1, 2) == 2 * 3 + (1 + 2) - 3  # 16 FLOP a block, 8 bytes a message
    assert ring_attention_seconds(LINKED, 4, 1, 1, causal=True) == 2 + 4 * 16 / 2 / 16


def test_ranks_beyond_the_workers_share_them():
    shared = Cluster(1.0, 4.0, 2.0, 8.0, 16.0, workers=2)
    assert [shared.slowdown(n) for n in (1, 2, 3, 4)] == [1, 1, 1.5, 2]
    assert tree_decode_seconds(shared, 64, 8, 4) == 2 * (2 + 2) + 3 * (1 + 2 * 2)
    assert shared.message_seconds(8) == 1 + 2 and shared.message_seconds(8, 3) == 1 + 3


def test_doubling_takes_steps_that_grow_with_the_logarithm():
    assert collective_seconds(LINKED, 4, 8, "gather", "doubling") == 3 * 1 + 7 * 1
    assert collective_seconds(LINKED, 4, 8, "gather") == 7 * (1 + 1)
    assert collective_seconds(LINKED, 8, 8, "reduce", "doubling") == 3 * (1 + 2)
    assert collective_seconds(LINKED, 8, 8, "reduce") == 2 * 7 * (1 + 0.25)
    assert collective_seconds(LINKED, 8, 1, "gather") == collective_seconds(LINKED, 8, 1, "reduce", "doubling") == 0


@pytest.mark.parametrize("group", [1, 4])
def test_from_so_many_rows_a_rank_a_message_is_hidden(group):
    rows = int(rows_to_hide(LINKED.flops * 2**20, LINKED.bandwidth, group))
    assert rows == 2 * 16 * 2**20 // (2 * group * 4)
    for dim, ranks in (1, 2), (64, 8):
        flop, message = 4 * dim * 4 * group * rows**2, 2 * rows * dim * 4 * 2  # 4 KV heads, 2 bytes a number
        assert Fraction(flop, 16 * 2**20) == Fraction(message, 4)
        assert ring_seconds(1, 1, ranks) == ranks


def test_the_fastest_number_of_ranks_is_that_of_the_model():
    cluster, cache, state = Cluster(latency=2.0, bandwidth=4.0, start=2.0, read=8.0, flops=16.0), 8 * 3 * 144, 4
    assert fastest_ranks(cluster, cache, state) == 12
    assert min(range(1, 200), key=lambda n: tree_decode_seconds(cluster, cache, state, n)) == 12


def test_what_there_is_no_cost_of_is_refused():
    with pytest.raises(ValueError, match="exchange"):
        tree_bytes(LSEState, 1, 1, 2, "scatter")
    with pytest.raises(ValueError, match="algorithm"):
        collective_seconds(LINKED, 8, 2, "gather", "star")
    with pytest.raises(ValueError, match="ranks"):
        ring_bytes(1, 1, 0)
    with pytest.raises(TypeError, match="ranks"):
        ring_seconds(1, 1, 2.0)
