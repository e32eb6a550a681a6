"""The laws of warps that no run counts, against sums done by hand; the others: tests/attention/test_warps.py."""

import pytest

from fdmath.cost import warps as laws
from fdmath.cost.shared import SharedCounts


@pytest.mark.parametrize("warps, group, readings", [(4, 1, 4), (4, 4, 1), (8, 4, 2), (2, 4, 1), (6, 4, 2)])
def test_one_reading_serves_a_group(warps, group, readings):
    tensor = 5 * 16 * 2  # 5 tiles of 16 keys, d = 2
    read = {"q": 8 * 2, "k": readings * tensor, "v": readings * tensor}
    assert laws.forward_split_q(8, 16, 2, 5, warps, group) == SharedCounts({"q": 16, "k": tensor, "v": tensor}, read, 6)


def test_with_one_reading_for_all_split_q_moves_the_least():
    # 64 · 128 numbers of q, and 2T times as many of k and v, each written and read, at 2 bytes
    for tiles in (1, 4, 16, 64):
        least = laws.forward_split_q(64, 64, 128, tiles, 4, 4).bytes()
        assert least == 4 * 64 * 128 * (1 + 2 * tiles)
        assert all(least < laws.forward_split_k(64, 64, 128, tiles, 4, e).bytes() for e in ("tile", "end"))


def test_a_group_below_1_is_named():
    with pytest.raises(ValueError, match="group must be at least 1; got 0"):
        laws.forward_split_q(4, 4, 2, 1, 4, 0)
