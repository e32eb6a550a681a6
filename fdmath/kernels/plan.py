"""How a split-KV decode is cut: the number of splits and the tiles, from what the device must read and how it can."""

from typing import NamedTuple


class Plan(NamedTuple):
    """The cut of one call: splits of the keys, keys a split (0: even), keys a step, warps a program, stages."""

    num_splits: int
    tile: int
    block: int
    warps: int
    stages: int


def decode_plan(programs, keys, dim, width, number, multiprocessors, num_splits=None, tile=None):
    """The Plan."""
    key_bytes = (dim + width) * number
    block = 128 if key_bytes <= 512 else 64 if key_bytes <= 1024 else 32
    if tile is not None:
        return Plan(max(1, -(-keys // tile)), tile, block, 4, 3)
    if num_splits is None:
        num_splits = max(1, min(multiprocessors // max(programs, 1), -(-keys // block)))
    return Plan(num_splits, 0, block, 4, 3)
