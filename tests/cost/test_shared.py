"""The simulated shared memory: readings are kept in order, beside the counts of tests/attention/test_warps.py."""

import numpy as np

from fdmath.attention.warps import forward_split_k, forward_split_q, shares
from fdmath.cost.shared import SharedCounts, SharedMemory


def test_readings_are_kept_in_order_and_not_compared():
    shared = SharedMemory()
    shared.write("k", np.ones((4, 1)))
    shared.barrier()
    for rows in slice(1, 3), slice(0, 4):
        shared.read("k", rows=rows)
    assert shared.counts.taken == {"k": [slice(1, 3), slice(0, 4)]}
    assert shared.counts == SharedCounts({"k": 4}, {"k": 6}, 1)


def test_the_readings_say_which_warp_has_which_rows_and_keys():
    x, every, parts = np.eye(8), slice(None), shares(8, 4)
    for run, rows, keys in (forward_split_q, parts, [every] * 4), (forward_split_k, [slice(0, 8)] * 4, parts):
        counts = SharedCounts()
        run(x, x, x, warps=4, block_n=8, counts=counts)
        assert counts.taken["q"] == rows and counts.taken["k"] == keys
