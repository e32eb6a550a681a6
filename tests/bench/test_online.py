"""Counting and measuring the online recurrences: counts are those of the code, bounds hold and can be broken."""

import dataclasses
import math

import numpy as np
import pytest

from fdmath import AccState, partial_state
from fdmath.algebra.rounding import finish_budget, format_of
from fdmath.attention.levels import lagging_levels, state_at_levels
from fdmath.attention.passes import one_pass, three_passes, two_passes
from fdmath.attention.printed import online_as_printed_A_3_1_1
from fdmath.bench import online
from fdmath.bench.online import (
    CountedTiles,
    at_every_tile,
    at_the_end,
    levels_budget,
    operations,
    part_errors,
    parts_of,
)
from fdmath.oracle import certified_block
from tests.algebra.judgement import judge

FP32 = format_of("float32")
SHOWN = 0.004  # a bound that no case here brings within a factor 250 would be an empty promise


def row(keys, dv=3, rows=4, seed=0, spread=3.0):
    rng = np.random.default_rng(seed)
    return np.float32(spread * rng.standard_normal((rows, keys))), np.float32(rng.standard_normal((keys, dv)))


def test_operations_are_counted_element_by_element():
    x, y = np.ones((3, 4), np.float32), np.ones(4, np.float32)
    found = operations(lambda a, b: np.exp(a - b).sum(axis=-1) / np.where(b[:3] > 0, b[:3], 1) + (a @ b), x, y)
    assert found == {"subtract": 12, "exp": 12, "greater": 3, "divide": 3, "add": 3}


def test_counting_changes_no_bit():
    scores, v = row(9)
    kept = []
    operations(lambda s, w: kept.extend(online_as_printed_A_3_1_1(s, w)), scores, v)
    assert all(np.array_equal(x, y) for x, y in zip(kept, online_as_printed_A_3_1_1(scores, v), strict=True))


@pytest.mark.parametrize("way, exps, divisions", [
    (three_passes, lambda n, b, d: 2 * n, lambda n, d: n),
    (two_passes, lambda n, b, d: 2 * n + b, lambda n, d: n),
    (one_pass, lambda n, b, d: n + b, lambda n, d: d),
])
def test_exponentials_and_divisions_of_the_three_ways(way, exps, divisions):
    for n, tile, d in ((16, 4, 3), (10, 4, 2), (5, 1, 7)):
        q, k, v = np.ones((1, 2)), np.ones((n, 2)), np.ones((n, d))
        found = operations(lambda q, k, v: way(q, CountedTiles(k, tile), CountedTiles(v, tile)), q, k, v)  # noqa: B023
        assert (found["exp"], found["divide"]) == (exps(n, -(-n // tile), d), divisions(n, d))


def test_a_stream_counts_its_passes_and_holds_every_key():
    tiles = CountedTiles(np.arange(12.0).reshape(6, 2), 4)
    assert [len(t) for t in tiles] == [4, 2] and np.array_equal(np.concatenate(list(tiles)), tiles.array)
    assert (tiles.passes, tiles.numbers) == (2, 24)


@pytest.mark.parametrize("tile", [1, 5, 64])
@pytest.mark.parametrize("rule", ["running", "lag", "first key", "above", "falling"])
def test_folds_at_any_levels_lie_within_their_budget(rule, tile):
    scores, v = row(60, rows=6, seed=tile)
    scores += np.float32([[0.0], [3.0], [100.0], [-1e4], [1e5], [7.0]])
    scores[5, :20], scores[0, 3] = -np.inf, -np.inf
    parts = parts_of(scores, v, tile, AccState)
    m = np.stack([p.m for p in parts], axis=-1)
    levels = {"running": lagging_levels(m), "lag": lagging_levels(m, 4.0), "first key": lagging_levels(m, math.inf),
              "above": np.where(m > -np.inf, scores.max(axis=-1, keepdims=True) + 20, 0), "falling": m}[rule]
    levels = np.where(np.isneginf(m), lagging_levels(m), levels).astype(np.float32)
    state = state_at_levels(parts, levels)
    budget = levels_budget(parts, levels, FP32, part_errors(scores, v, tile, FP32))
    bound = finish_budget(state, budget, FP32, FP32, pair=False)
    assert judge(certified_block(scores, v), state.finalize(), bound).o >= SHOWN


def test_a_level_far_above_is_within_its_budget_even_where_weights_are_subnormal():
    scores, v = np.float32([[0.0, -1.0, -2.0]]), np.float32([[2.5], [1.0], [7.0]])
    parts = parts_of(scores, v, 1, AccState)
    for level in (60.0, 88.0, 95.0, 101.0):
        levels = np.full((1, 3), level, np.float32)
        state = state_at_levels(parts, levels)
        budget = levels_budget(parts, levels, FP32, part_errors(scores, v, 1, FP32))
        judge(certified_block(scores, v), state.finalize(), finish_budget(state, budget, FP32, FP32, pair=False))


def test_a_wrong_fold_is_beyond_its_budget(monkeypatch):
    def forgets_to_rescale(parts, levels):
        return AccState(levels[..., -1], *(sum(x) for x in list(zip(*parts, strict=True))[1:]))

    scores, v = row(60)
    assert at_the_end(scores, v, 4).verdict == "pass"
    monkeypatch.setattr(online, "state_at_levels", forgets_to_rescale)
    assert at_the_end(scores, v, 4).verdict == "fail"


@pytest.mark.parametrize("way", [at_every_tile, at_the_end])
def test_measurements_lie_within_their_bounds(way):
    for tile in (1, 8, 60):
        found = way(*row(60, seed=3), tile)
        assert found.verdict == "pass" and 0 < found.typical <= found.error <= found.bound


def test_a_wrong_o_is_found(monkeypatch):
    right = online.merge_all
    monkeypatch.setattr(online, "merge_all", lambda *a: dataclasses.replace(right(*a), o=2 * right(*a).o))
    assert at_every_tile(*row(60), 4).verdict == "fail"


def test_equal_scores_and_whole_values_are_exact_at_the_end_and_not_at_every_key():
    scores, v = np.zeros((1, 64), np.float32), np.float32(np.random.default_rng(5).integers(1, 9, (64, 16)))
    assert at_the_end(scores, v, 1).error <= 1  # one division rounds
    assert at_every_tile(scores, v, 1).error > 1


def test_one_key_states_carry_no_error():
    scores, v = row(3)
    assert all(not np.any(e.o) and not np.any(e.lse) for e in part_errors(scores, v, 1, FP32))
    assert all(np.array_equal(p.acc, np.broadcast_to(v[j], p.acc.shape)) for j, p in
               enumerate(partial_state(scores[:, j:j + 1], v[j:j + 1], AccState) for j in range(3)))


def test_all_ways_are_timed():
    times = online.pass_times(64, 16, queries=2, dim=4, rounds=2)
    assert set(times) == {"three passes", "two passes", "one pass", "scores kept"}
    assert all(0 < t.least <= t.median <= t.most for t in times.values())
