"""The cost model of a decode: its law, its limits, and what it decides; without torch, Triton or a GPU."""

import itertools

import pytest

from fdmath.kernels.plan import AT_ONCE, KIB, OTHERS, START, cost, decode_plan, largest_step, least_warps

H200 = {"multiprocessors": 132, "shared": 227 * KIB}
A100 = {"multiprocessors": 108, "shared": 163 * KIB}
CARDS = (H200, A100, {"multiprocessors": 46, "shared": 99 * KIB})
SHAPES = list(itertools.product((1, 7, 64, 700), (0, 1, 100, 2048, 131072), (64, 128, 512, 1024, 2048)))


def held(plan, key_bytes):
    """The shared memory of a program: the tiles of all stages but one, and the rest."""
    return (plan.stages - 1) * plan.block * key_bytes + OTHERS


def test_the_cost_is_what_the_busiest_multiprocessor_reads_and_waits():
    # 8 heads, 1024 keys of 512 bytes, 4 multiprocessors: 2 programs each, 8 steps of 128 keys; no merge
    assert cost(1, 128, 8, 1024, 512, 4) == 2 * (8 * 128 * 512 + START)
    assert cost(2, 128, 8, 1000, 512, 4) == 4 * (4 * 128 * 512 + START) + START  # the last step is not full
    assert cost(1, 128, 8, 0, 512, 4) == 2 * START


@pytest.mark.parametrize("card", CARDS)
@pytest.mark.parametrize(("programs", "keys", "key_bytes"), SHAPES)
def test_a_plan_can_run_and_costs_no_more_than_one_split_or_all_programs_at_once(card, programs, keys, key_bytes):
    plan = decode_plan(programs, keys, key_bytes, **card)
    assert 1 <= plan.num_splits <= max(1, keys) and plan.tile == 0
    assert plan.block in (16, 32, 64, 128) and plan.warps in (1, 2, 4) and plan.stages in (3, 4)
    assert held(plan, key_bytes) <= card["shared"]
    largest = largest_step(key_bytes, card["shared"])
    best = min(cost(plan.num_splits, step, programs, keys, key_bytes, card["multiprocessors"])
               for step in (largest, largest // 2))
    if plan.block < largest // 2 and plan.num_splits * plan.block >= keys:  # a quarter, where a program takes one step
        best = cost(plan.num_splits, plan.block, programs, keys, key_bytes, card["multiprocessors"])
    for splits in (1, max(1, card["multiprocessors"] // programs)):
        assert best <= cost(splits, largest, programs, keys, key_bytes, card["multiprocessors"])


def test_few_heads_are_split_until_every_multiprocessor_has_a_program():
    for programs, keys in ((2, 65536), (8, 8192), (16, 16384), (64, 2048)):
        plan = decode_plan(programs, keys, 512, **H200)
        assert 120 <= programs * plan.num_splits <= 132
    assert decode_plan(128, 8192, 512, **H200).num_splits == 1
    assert decode_plan(512, 4096, 512, **H200) == (1, 0, 128, 4, 3, True)


def test_short_programs_that_wait_for_a_place_take_smaller_steps():
    assert decode_plan(256, 512, 512, **H200)[2:] == (64, 2, 4, True)
    assert decode_plan(512, 256, 512, **H200)[2:] == (32, 1, 4, True)


def test_few_keys_take_quarter_steps_in_programs_of_one_step_and_half_the_warps():
    assert decode_plan(8, 256, 512, **H200) == (8, 0, 32, 2, 4, True)
    assert decode_plan(8, 1024, 512, **H200)[:4] == (16, 0, 64, 4)
    for programs, keys in itertools.product((1, 2, 8, 64, 300), (1, 100, 250, 999, 5000, 99000)):
        plan = decode_plan(programs, keys, 512, **H200)
        one_step_each, all_at_once = plan.num_splits * plan.block >= keys, programs * plan.num_splits <= 132
        assert plan.block > 32 or not all_at_once or one_step_each and plan.warps == 2


def test_quarter_steps_never_make_more_parts_than_a_merge_takes_at_once():
    assert decode_plan(1, 32 * AT_ONCE, 512, **H200)[:3] == (AT_ONCE, 0, 32)
    assert decode_plan(1, 32 * AT_ONCE + 1, 512, **H200).block == 64


def test_a_single_round_of_long_programs_is_not_started_early():
    assert not decode_plan(128, 8192, 512, **H200).early
    assert decode_plan(128, 1024, 512, **H200).early and decode_plan(256, 8192, 512, **H200).early


def test_warps_hold_the_sums_in_registers():
    assert [least_warps(rows, width) for rows, width in ((16, 16), (16, 128), (16, 256), (64, 256))] == [1, 1, 2, 8]


def test_what_is_given_is_kept():
    assert decode_plan(4, 1000, 512, **H200, num_splits=3).num_splits == 3
    assert decode_plan(4, 1000, 512, **H200, tile=300)[:2] == (4, 300)
    assert decode_plan(4, 0, 512, **H200, tile=300)[:2] == (1, 300)


def test_with_a_tile_the_bits_depend_on_the_number_of_splits_alone():
    plans = {decode_plan(programs, keys, 512, **H200, tile=512)[1:4] for programs in (1, 999) for keys in (1, 70000)}
    assert len(plans) == 1


@pytest.mark.parametrize(("programs", "keys", "stages"), [(1, 1000, 5), (132, 1000, 5), (133, 1000, 4), (264, 1000, 4),
                                                          (265, 1000, 3), (9999, 1000, 3), (1, 1025, 4)])
def test_with_a_tile_as_many_loads_are_under_way_as_leave_all_programs_a_place(programs, keys, stages):
    assert decode_plan(programs, keys, 512, **H200, tile=1024).stages == stages
