"""How many thread blocks a multiprocessor holds at once, and which of its resources says so.

The limits are those that compute capabilities 8.0 (A100) and 9.0 (H100, H200) share; shared memory, which differs, is
the `Device`'s. Source: CUDA C++ programming guide, technical specifications per compute capability; the units in which
registers are given out: NVIDIA's occupancy calculator. Vendor figures, not measured here.
"""

from fractions import Fraction

from fdmath.cost.decode import busy_share, check_counts
from fdmath.cost.roofline import RESERVED, resident_blocks

WARP = 32
"""Threads of a warp."""

WARPS, BLOCKS, REGISTERS = 64, 32, 65536
"""Warps, thread blocks and 32-bit registers of one multiprocessor."""

UNIT, MOST_REGISTERS = 256, 255
"""Registers are given to a warp by the 256; a thread has at most 255."""

QUARTERS = 4
"""The parts of a multiprocessor, each with a quarter of the registers: a warp's lie in one of them."""


def forward_tile_bytes(block_m, block_n, dim, number=2):
    """(Br + 2·Bc)·d numbers in bytes: what q's block and one block of k and v take in shared memory.

    128 × 128 at 16 bits: 48 KiB at d = 64, 96 at 128, 192 at 256, where an A100 allows 163. Source: claims:B53.
    """
    check_counts(1, block_m=block_m, block_n=block_n, dim=dim, number=number)
    return (block_m + 2 * block_n) * dim * number


def largest_block_bytes(device):
    """The bytes of shared memory that one thread block can have: all but the 1 KiB that CUDA takes, 163 of 164 KiB."""
    return device.shared - RESERVED


def accumulator_registers(block_m, width, warps):
    """Registers a thread for an accumulator of Br × w float32 numbers shared out over the warps: Br·w / (32·warps)."""
    check_counts(1, block_m=block_m, width=width, warps=warps)
    return Fraction(block_m * width, WARP * warps)


def limits(device, warps, registers, shared):
    """The thread blocks that each resource of one multiprocessor allows, by name.

    warps: of one block; registers: of one thread (a kernel's compiler reports them); shared: bytes of one block. A
    block that a resource cannot hold at all gives 0. Raises ValueError for counts below 1, shared below 0.
    """
    check_counts(1, warps=warps, registers=registers)
    check_counts(0, shared=shared)
    per_warp = -(-registers * WARP // UNIT) * UNIT
    resident = REGISTERS // QUARTERS // per_warp * QUARTERS
    by_registers = resident // warps if registers <= MOST_REGISTERS else 0
    return {"warps": WARPS // warps, "blocks": BLOCKS, "registers": by_registers,
            "shared memory": resident_blocks(shared, device)}


def blocks_at_once(device, warps, registers, shared):
    """The thread blocks that a multiprocessor holds at once: the least of the `limits`."""
    return min(limits(device, warps, registers, shared).values())


def occupancy(device, warps, registers, shared):
    """The share of a multiprocessor's 64 warps that are resident."""
    return Fraction(blocks_at_once(device, warps, registers, shared) * warps, WARPS)


def forward_thread_blocks(grid, heads, batch=1):
    """batch · heads · ⌈Nq/Br⌉: one for each block of rows of each head. FlashAttention-1 has batch · heads.

    Source: document B; claims:B28 (32 heads, 4096 queries, Br = 64: 2048 in place of 32).
    """
    check_counts(1, heads=heads, batch=batch)
    return batch * heads * grid.row_blocks


def backward_thread_blocks(grid, heads, batch=1):
    """batch · heads · ⌈N/Bc⌉: one for each block of keys of each head. Source: document B; claims:B37."""
    check_counts(1, heads=heads, batch=batch)
    return batch * heads * grid.column_blocks


def waves(blocks, device, at_once=1):
    """How many times the multiprocessors, `at_once` blocks on each, must be filled for all blocks to have run."""
    check_counts(0, blocks=blocks)
    check_counts(1, at_once=at_once)
    return -(-blocks // (device.multiprocessors * at_once))


def fills(blocks, device):
    """Whether every multiprocessor has a block: from as many blocks as there are multiprocessors. claims:B29."""
    return busy_share(blocks, device) == 1
