"""The documents' merges as printed: right where they are right, and still wrong where they are wrong."""

import math

import numpy as np
import pytest

from fdmath import LSEState, MLOState, flat, flat_printed, identity, merge_all
from fdmath.algebra.printed import (
    flat_as_printed_A_2_2_2,
    flat_as_printed_A_2_3_4,
    merge_as_printed_A_2_3_5,
    merge_as_printed_A_3_2_1,
)
from fdmath.algebra.rounding import chain_budget, fold_budget, format_of
from tests.algebra.judgement import certified, finished, judge
from tests.algebra.libraries import dtype_name, holds, same_state, values
from tests.algebra.states import random_state

INF, NAN = math.inf, math.nan


def pair(lib, o, lse, dtype="float32"):
    """(o, lse) of one row with dv = 1."""
    return lib.array([o], dtype), lib.array(lse, dtype)


@pytest.mark.parametrize("printed", [merge_as_printed_A_2_3_5, merge_as_printed_A_3_2_1])
def test_the_printed_pairs_are_right_at_low_levels(lib, printed):
    rng = np.random.default_rng(1)
    a, b = (random_state(lib, LSEState, rng, (200, 2)) for _ in "ab")
    judge(certified([a, b]), LSEState(*printed(*a, *b)), chain_budget([a, b], format_of("float32")))


def test_bare_exponentials_overflow(lib):
    # claims:A31: at S > 88.7 in float32, S > 11.1 in float16.
    for dtype, fine, over in (("float32", 88.0, 89.0), ("float16", 10.25, 11.125)):
        o, lse = merge_as_printed_A_2_3_5(*pair(lib, 1.0, fine, dtype), *pair(lib, 1.0, 0.0, dtype))
        assert holds(o, [1.0]) and np.isfinite(values(lse))
        o, lse = merge_as_printed_A_2_3_5(*pair(lib, 1.0, over, dtype), *pair(lib, 1.0, 0.0, dtype))
        assert holds(o, [NAN]) and holds(lse, INF)
        assert dtype_name(o) == dtype_name(lse) == dtype


def test_two_empty_pairs_are_nan(lib):
    # claims:F3
    nothing = pair(lib, 0.0, -INF)
    for printed in (merge_as_printed_A_2_3_5, merge_as_printed_A_3_2_1):
        o, _ = printed(*nothing, *nothing)
        assert holds(o, [NAN])
    assert holds(merge_as_printed_A_3_2_1(*nothing, *nothing)[1], NAN)


def test_an_infinite_level_is_half_nan(lib):
    # claims:F3c
    o, lse = merge_as_printed_A_3_2_1(*pair(lib, 7.0, INF), *pair(lib, 5.0, 0.0))
    assert holds(o, [NAN]) and holds(lse, INF)


def test_two_bfloat16_keys_of_score_256_count_twice(lib):
    # claims:F13 in the merge alone: log1p(1) is lost beside 256, so both weights are 1.
    key = pair(lib, 1.0, 256.0, "bfloat16")
    o, lse = merge_as_printed_A_3_2_1(*key, *key)
    assert holds(o, [2.0]) and holds(lse, 256.0) and dtype_name(o) == "bfloat16"


def columns(lib, *parts):
    """Arrays with a leading axis of parts from parts (o, statistics…) given as numbers."""
    o, *statistics = zip(*parts, strict=True)
    return [lib.array([[x] for x in o]), *map(lib.array, statistics)]


def test_the_flat_triple_formula_has_no_guard(lib):
    os, ms, ls = columns(lib, (2.0, 0.0, 1.0), (4.0, 0.0, 3.0))
    assert all(map(holds, flat_as_printed_A_2_2_2(ms, ls, os), (0.0, 4.0, [3.5])))
    os, ms, ls = columns(lib, (0.0, -INF, 0.0), (0.0, -INF, 0.0))
    assert all(map(holds, flat_as_printed_A_2_2_2(ms, ls, os), (-INF, NAN, [NAN])))


@pytest.mark.parametrize("level", [0.0, 1000.0])
def test_the_flat_triple_formula_is_right_row_by_row_at_any_level(lib, level):
    parts = [random_state(lib, MLOState, np.random.default_rng(seed), (50, 2), level) for seed in (3, 4, 5)]
    ms, ls, os = (lib.array(np.stack([values(x) for x in column])) for column in zip(*parts, strict=True))
    merged = MLOState(*flat_as_printed_A_2_2_2(ms, ls, os))
    judge(certified(parts), *finished(merged, fold_budget(parts, flat, format_of("float32"))))


def test_the_flat_pair_formula_is_nan_when_it_starts_with_nothing(lib):
    # claims:F3b, claims:A64
    assert holds(flat_as_printed_A_2_3_4(*columns(lib, (0.0, -INF), (0.0, -INF), (7.0, 0.0)))[0], [NAN])
    assert holds(flat_as_printed_A_2_3_4(*columns(lib, (7.0, 0.0), (0.0, -INF), (0.0, -INF)))[0], [7.0])


@pytest.mark.parametrize("count", [1, 4])
def test_the_flat_pair_formula_is_right_row_by_row_at_low_levels(lib, count):
    parts = [random_state(lib, LSEState, np.random.default_rng(seed), (50, 2)) for seed in range(count)]
    judge(certified(parts), merge_all(parts, flat_printed), chain_budget(parts, format_of("float32")))


def test_flat_printed_is_an_order_for_pairs_only(lib):
    rng = np.random.default_rng(2)
    parts = [random_state(lib, LSEState, rng, (5, 2)) for _ in range(4)]
    stacked = [lib.array(np.stack([values(x) for x in column])) for column in zip(*parts, strict=True)]
    assert same_state(merge_all(parts, flat_printed), LSEState(*flat_as_printed_A_2_3_4(*stacked)))
    with pytest.raises(TypeError, match=r"^flat_printed folds LSEStates only$"):
        merge_all([identity((2,), 1, MLOState)] * 2, flat_printed)
