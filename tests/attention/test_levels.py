"""Folds at levels of your choice: exact in base 2, the chain of ⊕ at the running maximum, and where they break."""

import numpy as np
import pytest

from fdmath import AccState, identity, partial_state
from fdmath.attention.levels import lagging_levels, state_at_levels
from fdmath.attention.softmax import online_state
from tests.algebra.libraries import holds, same_state
from tests.attention.calls import INF, NAN


def keys_of(scores, v):
    """The states of the single keys, one after the other."""
    return [partial_state(scores[..., j:j + 1], v[..., j:j + 1, :], AccState) for j in range(v.shape[-2])]


def test_a_level_lags_by_no_more_than_its_slack(lib):
    scores = lib.array([[0.0, 2.0, 1.0, 3.0, 4.5], [-INF, -INF, 7.0, -INF, 8.0], [-INF] * 5])
    for slack, first, second in (
        (0.0, [0.0, 2.0, 2.0, 3.0, 4.5], 8.0),
        (1.0, [0.0, 2.0, 2.0, 2.0, 4.5], 7.0),
        (2.0, [0.0, 0.0, 0.0, 3.0, 3.0], 7.0),
        (INF, [0.0] * 5, 7.0),
    ):
        assert holds(lagging_levels(scores, slack), [first, [-INF, -INF, 7.0, 7.0, second], [-INF] * 5])
    assert holds(lagging_levels(scores[:, :0]), np.zeros((3, 0)))
    assert holds(lagging_levels(scores[0], 1.0), [0.0, 2.0, 2.0, 2.0, 4.5])


def test_the_pencil_example_is_exact_at_any_level(lib):
    scores, v = lib.array([[0.0, 0.0, 1.0, 2.0]]), lib.array([[2.0], [6.0], [0.0], [3.0]])
    for levels in ([0.0, 0.0, 1.0, 2.0], [0.0, 0.0, 0.0, 2.0], [0.0] * 4, [-7.0] * 4, [5.0, -3.0, 9.0, 1.0]):
        m, l, acc = state_at_levels(keys_of(scores, v), lib.array([levels]), base=2)
        assert holds(m, [levels[-1]])
        assert holds(l, [8 * 2.0**-levels[-1]]) and holds(acc, [[20 * 2.0**-levels[-1]]])


def test_one_part_alone_is_moved_to_its_level(lib):
    part = partial_state(lib.array([[1.0, 1.0]]), lib.array([[3.0], [5.0]]), AccState)
    m, l, acc = state_at_levels([part], lib.array([[3.0]]), base=2)
    assert holds(m, [3.0]) and holds(l, [0.5]) and holds(acc, [[2.0]])


def test_with_the_running_maximum_it_is_the_chain_of_merges(lib):
    rng = np.random.default_rng(11)
    scores = 5 * rng.standard_normal((2, 3, 9))
    scores[0, 0], scores[0, 1, :3], scores[1, :, 4] = -INF, -INF, -INF
    v = rng.standard_normal((2, 9, 2))
    v[1, 4] = NAN
    scores, v = lib.array(scores), lib.array(v)
    assert same_state(state_at_levels(keys_of(scores, v), lagging_levels(scores)), online_state(scores, v, AccState))


def test_a_level_that_nothing_fits_under_loses_the_row_or_overflows(lib):
    scores, v = lib.array([[0.0, -200.0]]), lib.array([[1.0], [5.0]])
    parts = keys_of(scores, v)
    falling, fixed = (state_at_levels(parts, lib.array([levels])) for levels in ([0.0, -200.0], [0.0, 0.0]))
    assert holds(falling.l, [INF]) and holds(falling.acc, [[INF]])  # faults:B4: e^200, and o = ∞/∞
    assert holds(fixed.finalize().o, [[1.0]])
    above = state_at_levels(keys_of(lib.array([[-200.0, -200.0]]), v), lib.array([[0.0, 0.0]]))
    assert same_state(above, identity((1,), 1, AccState, like=v))  # faults:B8: all weights underflow


def test_levels_are_as_many_as_parts(lib):
    scores, v = lib.array([[0.0, 1.0]]), lib.array([[1.0], [2.0]])
    with pytest.raises(ValueError, match="^levels must have one level for each of the 2 parts; got 1$"):
        state_at_levels(keys_of(scores, v), scores[:, :1])
    with pytest.raises(ValueError, match="at least one"):
        state_at_levels([], scores[:, :0])
