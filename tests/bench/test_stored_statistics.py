"""Weights recomputed from stored statistics: within their bound, and dearer from lse the higher the level."""

import numpy as np
import pytest

from fdmath.bench.stored_statistics import KINDS, exact_weights, measure, scores_at, stored, weights_from

pytest.importorskip("flint")


@pytest.mark.parametrize("stats", ["float32", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_every_weight_is_within_its_bound(kind, stats):
    rows = [measure(scores_at(level, rows=4), kind, stats) for level in (0, 30, 1000)]
    assert all(row.ratio <= 1 for row in rows) and all(row.ratio > 0 for row in rows)


def test_only_the_pair_minds_the_level():
    low, high = ({kind: measure(scores_at(level), kind, "float32") for kind in KINDS} for level in (0, 10_000))
    assert high["lse"].error >= 50 * low["lse"].error
    assert high["m and l"].error <= 8 * low["m and l"].error
    assert high["lse"].error >= high["lse"].bound / 16  # else an empty promise


def test_weights_of_equal_keys_are_exact_from_the_triple():
    scores = np.full((1, 4), 256, np.float32)
    assert weights_from(scores, *stored(scores, "m and l", "bfloat16")).tolist() == [[0.25] * 4]
    assert weights_from(scores[:, :2], *stored(scores[:, :2], "lse", "bfloat16")).sum() == 2  # claims:B19


def test_the_exact_weights_sum_to_one():
    exact = exact_weights(scores_at(100.0, rows=2, keys=5))
    assert exact.o_mid.shape == (2, 1, 5)
    assert np.all(np.abs(exact.o_mid.sum(axis=-1) - 1) <= 5 * exact.o_rad.max() + 5 * 2.0**-53)
