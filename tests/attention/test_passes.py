"""Attention over streams in three passes, two and one: one state, within bounds, read as often as said."""

import numpy as np
import pytest

from fdmath import AccState, LSEState
from fdmath.algebra.rounding import block_budget, finish_budget, format_of, score_error
from fdmath.attention.levels import lagging_levels
from fdmath.attention.passes import one_pass, three_passes, two_passes
from fdmath.attention.softmax import partial_state
from fdmath.bench.online import CountedTiles, levels_budget
from tests.algebra.judgement import judge
from tests.algebra.libraries import holds, values
from tests.attention.calls import INF

WAYS = {three_passes: (3, 1), two_passes: (2, 1), one_pass: (1, 1)}


def tiles(x, size):
    return [x[..., i:i + size, :] for i in range(0, x.shape[-2], size)]


@pytest.mark.parametrize("way", WAYS)
def test_small_rows_are_exact(lib, way):
    q, keys = lib.array([[1.0]]), [lib.array([[5.0]]), lib.array([[5.0], [5.0], [5.0]])]
    o, lse = way(q, keys, [lib.array([[2.0]]), lib.array([[6.0], [0.0], [4.0]])])
    assert holds(o, [[3.0]]) and tuple(lse.shape) == (1,)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("level", [0.0, 300.0, -300.0])
def test_every_way_is_attention_within_its_bound(lib, way, level):
    oracle = pytest.importorskip("fdmath.oracle")
    rng, fmt = np.random.default_rng(1), format_of("float32")
    q, k = rng.standard_normal((2, 3, 8)), rng.standard_normal((2, 40, 8))
    q[..., -1], k[..., -1] = 1, level
    q, k, v = lib.array(q), lib.array(k), lib.array(rng.standard_normal((2, 40, 5)))
    state = way(q, tiles(k, 7), tiles(v, 7))
    exact = oracle.certified_attention(values(q), values(k), values(v), scale=1.0)
    scores = values(q) @ np.swapaxes(values(k), -1, -2)
    lost = score_error(values(q), values(k), 1.0, fmt)
    # The levels of a chain of tiles: what weighs the sums of the one pass, and l of the two, beside the block's own.
    parts = [partial_state(scores[..., i:i + 7], values(v)[..., i:i + 7, :], AccState) for i in range(0, 40, 7)]
    levels = lagging_levels(np.stack([p.m for p in parts], axis=-1))
    errors = [block_budget(scores[..., i:i + 7], values(v)[..., i:i + 7, :], fmt, lost[..., i:i + 7], pair=False)
              for i in range(0, 40, 7)]
    whole = AccState(*partial_state(scores, values(v), AccState))
    judge(exact, state, finish_budget(whole, levels_budget(parts, levels, fmt, errors), fmt, fmt, pair=False))


@pytest.mark.parametrize("way", WAYS)
def test_each_stream_is_read_as_often_as_the_name_says(lib, way):
    q, k, v = lib.array(np.ones((1, 4))), lib.array(np.ones((10, 4))), lib.array(np.ones((10, 3)))
    keys, kept = CountedTiles(k, 4), CountedTiles(v, 4)
    way(q, keys, kept)
    assert (keys.passes, kept.passes) == WAYS[way]
    assert (keys.numbers, kept.numbers) == (WAYS[way][0] * 40, 30)


@pytest.mark.parametrize("way", WAYS)
def test_streams_of_different_length_are_refused(lib, way):
    with pytest.raises(ValueError, match="zip"):
        way(lib.array([[1.0]]), [lib.array([[1.0]])] * 2, [lib.array([[1.0]])])


def test_the_result_is_a_state_that_merges(lib):
    q, k, v = lib.array([[1.0]]), lib.array([[0.0], [0.0]]), lib.array([[2.0], [6.0]])
    half = one_pass(q, [k], [v])
    assert isinstance(half, LSEState) and holds((half + half).o, [[4.0]])
    assert not holds(half.lse, [-INF])
