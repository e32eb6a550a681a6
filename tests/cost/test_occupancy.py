"""Thread blocks and occupancy against the figures of the claims ledger and sums done by hand."""

from fractions import Fraction

import pytest

from fdmath.cost import occupancy
from fdmath.cost.flash import Grid
from fdmath.cost.hardware import A100, DEVICES, H100, H200

KIB = 1024


def test_the_tiles_of_document_b_in_shared_memory():
    # claims:B53
    sizes = {d: occupancy.forward_tile_bytes(128, 128, d) for d in (64, 128, 256)}
    assert sizes == {64: 48 * KIB, 128: 96 * KIB, 256: 192 * KIB}
    assert [size <= occupancy.largest_block_bytes(A100) for size in sizes.values()] == [True, True, False]
    assert occupancy.largest_block_bytes(A100) == 163 * KIB
    assert occupancy.largest_block_bytes(H200) == occupancy.largest_block_bytes(H100) == 227 * KIB


def test_the_thread_blocks_of_document_b():
    grid = Grid(4096, 4096, 64, 64)
    assert occupancy.forward_thread_blocks(grid, heads=32) == 2048  # claims:B28
    assert occupancy.forward_thread_blocks(Grid(4096, 4096, 128, 64), heads=32) == 1024
    assert occupancy.backward_thread_blocks(Grid(4096, 1000, 64, 64), heads=3, batch=2) == 6 * 16
    assert occupancy.fills(2048, A100) and occupancy.waves(2048, A100) == 19
    few = occupancy.forward_thread_blocks(Grid(512, 512, 128, 64), heads=8)
    assert few == 32 and not occupancy.fills(few, A100)  # claims:B29
    assert occupancy.forward_thread_blocks(Grid(1, 65536), heads=32) == 32  # claims:B67: whatever the keys are


@pytest.mark.parametrize("warps, registers, shared, expected", [
    (4, 32, 0, {"warps": 16, "registers": 16}),          # 4 · 32 · 32 = 4096 registers a block
    (4, 168, 0, {"warps": 16, "registers": 3}),          # 168 · 32 = 5376 = 21 · 256, 4 warps 21504
    (8, 255, 0, {"warps": 8, "registers": 1}),           # 255 is given as 256: 65536 for 8 warps
    (8, 129, 0, {"warps": 8, "registers": 1}),           # 129 · 32 = 4128, given as 4352: 34816 for 8 warps
    (8, 128, 0, {"warps": 8, "registers": 2}),
    (1, 113, 0, {"warps": 64, "registers": 16}),         # 113 · 32 = 3616, given as 3840: 4 warps a quarter, not 17
    (1, 73, 0, {"warps": 64, "registers": 24}),          # 73 · 32 = 2336, given as 2560: 6 a quarter, not 7
    (16, 255, 0, {"warps": 4, "registers": 0}),
    (4, 256, 0, {"warps": 16, "registers": 0}),          # more than a thread can have
    (4, 32, 96 * KIB, {"shared memory": 1}),             # 97 of 164 KiB
    (4, 32, 48 * KIB, {"shared memory": 3}),
    (4, 32, 192 * KIB, {"shared memory": 0}),
])  # fmt: skip
def test_each_resource_by_hand(warps, registers, shared, expected):
    found = occupancy.limits(A100, warps, registers, shared)
    assert expected.items() <= found.items() and found["blocks"] == 32
    assert occupancy.blocks_at_once(A100, warps, registers, shared) == min(found.values())
    assert occupancy.occupancy(A100, warps, registers, shared) == Fraction(min(found.values()) * warps, 64)


def test_a_smaller_block_never_lowers_how_many_fit():
    for device in DEVICES.values():
        for small, large in ((0, 1), (16 * KIB, 48 * KIB), (100 * KIB, 163 * KIB)):
            fits = [occupancy.blocks_at_once(device, 4, 64, shared) for shared in (small, large)]
            assert fits[0] >= fits[1] >= 1
        assert occupancy.blocks_at_once(device, 4, 64, occupancy.largest_block_bytes(device)) == 1
        assert occupancy.blocks_at_once(device, 4, 64, occupancy.largest_block_bytes(device) + 1) == 0


def test_an_accumulator_in_registers():
    assert occupancy.accumulator_registers(128, 128, 4) == 128 and occupancy.accumulator_registers(64, 64, 8) == 16


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="warps must be at least 1; got 0"):
        occupancy.limits(A100, 0, 32, 0)
    with pytest.raises(ValueError, match="shared must be at least 0; got -1"):
        occupancy.limits(A100, 4, 32, -1)
    with pytest.raises(TypeError, match="registers must be an int; got float"):
        occupancy.occupancy(A100, 4, 32.0, 0)
    with pytest.raises(ValueError, match="heads must be at least 1; got 0"):
        occupancy.forward_thread_blocks(Grid(4, 4), 0)
    with pytest.raises(ValueError, match="at_once must be at least 1; got 0"):
        occupancy.waves(4, A100, 0)
