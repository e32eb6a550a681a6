"""Layouts: who has which rows, and the sequence put together again."""

from itertools import chain

import numpy as np
import pytest

from fdmath.distributed import contiguous, shard, unshard, zigzag
from fdmath.distributed.layout import check_layout, placed, rows_of


def test_zigzag_gives_each_rank_a_chunk_from_either_end():
    assert zigzag(8, 2) == [[(0, 2), (6, 8)], [(2, 4), (4, 6)]]
    assert contiguous(5, 2) == [[(0, 3)], [(3, 5)]]
    assert rows_of(zigzag(9, 4)) == [3, 2, 2, 2]


@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("length", [0, 1, 5, 24])
@pytest.mark.parametrize("cut", [contiguous, zigzag])
def test_each_row_is_on_one_rank_and_comes_back(lib, cut, length, ranks):
    layout = check_layout(cut(length, ranks), ranks)
    assert sorted(row for run in chain(*layout) for row in range(*run)) == list(range(length))
    x = lib.array(np.arange(2.0 * length).reshape(1, length, 2))
    parts = [shard(x, runs) for runs in layout]
    assert [part.shape[-2] for part in parts] == rows_of(layout)
    assert bool((unshard(parts, layout) == x).all())
    assert bool((unshard([shard(x[..., 0], runs, -1) for runs in layout], layout, -1) == x[..., 0]).all())


def test_rows_are_stored_in_the_order_of_the_runs(lib):
    x = lib.array([[0.0], [1.0], [2.0], [3.0]])
    assert shard(x, [(3, 4), (0, 2)])[:, 0].tolist() == [3, 0, 1]
    assert shard(x, []).shape == (0, 1)
    assert placed([(3, 4), (0, 2)]) == [(slice(0, 1), (3, 4)), (slice(1, 3), (0, 2))]


@pytest.mark.parametrize("layout", [[[(0, 2)]], [[(0, 2)], [(1, 3)]], [[(0, 2)], [(3, 4)]], [[(1, 2)], [(2, 3)]],
                                    [[(2, 0)], [(0, 2)]]])
def test_what_is_no_layout_of_two_ranks_is_refused(layout):
    with pytest.raises(ValueError, match="layout must"):
        check_layout(layout, 2)


def test_counts_that_are_none_and_shards_of_other_lengths_are_refused():
    with pytest.raises(TypeError, match="ranks"):
        zigzag(4, 2.0)
    with pytest.raises(ValueError, match="length"):
        contiguous(-1, 2)
    with pytest.raises(ValueError, match="shards must have"):
        unshard([np.zeros((2, 1)), np.zeros((2, 1))], [[(0, 3)], [(3, 4)]])
