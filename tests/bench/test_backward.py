"""The backward's bench: its reference, its units, its bounds, and that both orders are timed."""

import numpy as np
import pytest

from fdmath import load_example
from fdmath.bench.backward import NAMES, backward_times, captured, case, measure


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("level", [0, 100])
def test_every_gradient_is_within_its_bound(dtype, causal, level):
    rows = measure(case(48, level, dtype, causal), 16, 32)
    assert list(rows) == list(NAMES)
    assert all(0 < row.error and row.ratio <= 1 for row in rows.values())


def test_a_captured_head_keeps_its_last_queries_and_all_its_keys():
    c, head = captured("smollm2/sink", queries=8), load_example("smollm2/sink")
    assert np.array_equal(c.q, head.q[-8:].astype(np.float32)) and len(c.k) == len(head.k) and c.causal
    assert all(0 < row.error and row.ratio <= 1 for row in measure(c, 8, 128).values())


def test_the_scores_lie_around_the_level():
    c = case(64, 100)
    scores = c.q @ c.k.T / np.sqrt(c.q.shape[-1])
    assert abs(np.mean(scores) - 100) <= 4 and 0.5 <= np.std(scores - scores.mean(axis=1, keepdims=True)) <= 2


def test_the_units_are_those_of_the_terms():
    c = case(5)
    q, k, v, do, dlse = (x.astype(float) for x in (c.q, c.k, c.v, c.do, c.dlse))
    dq, scores = np.zeros_like(q), q @ k.T / 4
    p = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    o = p @ v
    for i, j in np.ndindex(p.shape):
        terms = np.abs(do[i]) @ np.abs(v[j]) + np.sum(np.abs(do[i] * o[i])) + abs(dlse[i])
        dq[i] += p[i, j] * terms * np.abs(k[j]) / 4
    assert np.all(np.abs(dq - c.units[0]) <= 200 * 2.0**-53 * dq)  # a few dozen float64 roundings each


def test_the_orders_and_blocks_are_all_timed():
    times = backward_times(32, (16, 32), dim=4, rounds=1)
    assert sorted(times) == sorted((by, block) for by in ("columns", "rows") for block in (16, 32))
    assert all(t.least > 0 for t in times.values())
