"""How a split-KV decode is cut into programs: a cost model in bytes, with the device's figures as arguments."""

import functools
from typing import NamedTuple

KIB = 1024
START = 64 * KIB
"""What a multiprocessor could read in the time that a program takes to start and end, and that a merge takes (2 µs)."""

TILE = 64 * KIB
"""Most bytes of K and V in one step of a program: with two more steps on their way, memory is kept busy."""

OTHERS = 12 * KIB
"""Shared memory that a program needs besides its tiles."""

LEAST_STEP = 16
"""The fewest keys that the matrix units multiply at a time."""

FEW_STEPS = 8
"""Below so many steps a program's start and end weigh, and other programs of its multiprocessor have to cover them."""

AT_ONCE = 64
"""The parts that a merge takes at a time; more and smaller ones than these cost it what they save."""

LONG = 1024 * KIB
"""Bytes from which a program is long: a single round of long programs lost 1 % when it was started early (H200)."""


class Plan(NamedTuple):
    """The cut of a call: splits, keys a split (0: even splits), keys a step, warps a program, stages of loads.

    early: whether the first kernel is started before the kernel in front of it has ended.
    """

    num_splits: int
    tile: int
    block: int
    warps: int
    stages: int
    early: bool


@functools.lru_cache(maxsize=1024)
def decode_plan(programs, keys, key_bytes, multiprocessors, shared, *, num_splits=None, tile=None):
    """The Plan with the least cost: `programs` programs a split share `keys` keys of `key_bytes` bytes.

    Memory is shared fairly, so the call takes as long as the multiprocessor that has the most to read:

        cost(S) = ⌈programs·S / multiprocessors⌉ · (step·⌈keys / (S·step)⌉·key_bytes + START) + (S > 1)·START

    A step is as many keys as `largest_step` allows, half of them, or a quarter where that is all that each of AT_ONCE
    programs or fewer takes; of equal costs the larger step, then the fewer splits. Tried are S = 1, and the most that
    w programs a multiprocessor allow, w = 1 … 4, or fewer with as many steps. Then, while programs wait for a place on
    a multiprocessor and have few steps each, steps are halved, so that twice as many find one. num_splits, if given,
    fixes S. tile, if given, fixes all that a row's bits depend on, half steps and two warps, whatever the batch; the
    stages, on which they do not, `_stages` chooses. key_bytes: K and V of one key in shared memory, that is padded;
    shared: the bytes of shared memory that a program may use.
    """
    largest = largest_step(key_bytes, shared)
    half = max(largest // 2, LEAST_STEP)
    if tile is not None:
        splits, step, warps = max(1, -(-keys // tile)), half, 2
        stages = _stages(programs, splits, step * key_bytes, multiprocessors, shared)
    else:
        given = [num_splits] if num_splits else None
        _, smaller, splits = min(
            (cost(splits, step, programs, keys, key_bytes, multiprocessors), largest - step, splits)
            for step in (largest, half, max(largest // 4, LEAST_STEP))
            for splits in given or _candidates(programs, keys, multiprocessors, step)
            if step >= half or keys <= splits * step <= AT_ONCE * step
        )
        step = largest - smaller
        while step > 32 and _wait(programs * splits, multiprocessors * largest // step, -(-keys // (splits * step))):
            step //= 2
        room = 2 if programs * splits <= multiprocessors else 1  # a program with a multiprocessor of its own
        warps, stages = min(4, max(1, 4 * room * step // largest)), 3 if step == largest else 4
    alone = splits == 1 and programs <= multiprocessors and keys * key_bytes > LONG
    return Plan(splits, tile or 0, step, warps, stages, not alone)


def _stages(programs, splits, step_bytes, multiprocessors, shared):
    """The most steps, 5 to 3, whose loads leave all programs a place at once; 4 at most where a merge needs one too."""
    most = 5 if splits == 1 else 4
    return next((stages for stages in range(most, 3, -1)
                 if programs * splits <= multiprocessors * (shared // ((stages - 1) * step_bytes + OTHERS))), 3)


def _wait(programs, places, steps):
    """Whether programs of few steps wait for a place."""
    return programs > places and steps < FEW_STEPS


def least_warps(rows, width):
    """The fewest warps that hold the sums of rows × width in 64 registers a thread: a power of two."""
    return max(1, rows * width // (32 * 64))


def cost(splits, step, programs, keys, key_bytes, multiprocessors):
    """The bytes that the busiest multiprocessor could have read until the call is done: the law of `decode_plan`."""
    steps = -(-keys // (splits * step))
    rounds = -(-programs * splits // multiprocessors)
    return rounds * (steps * step * key_bytes + START) + (splits > 1) * START


def largest_step(key_bytes, shared):
    """The keys of the largest step: 16, 32, 64 or 128, at most TILE bytes, and so that two fit in `shared`."""
    room = min(TILE, (shared - OTHERS) // 2)
    return next((step for step in (128, 64, 32) if step * key_bytes <= room), LEAST_STEP)


def _candidates(programs, keys, multiprocessors, step):
    """Numbers of splits to try: 1, and the fewest with the steps of the most that fit w times, w = 1 … 4."""
    most = [max(1, w * multiprocessors // max(programs, 1)) for w in (1, 2, 3, 4)]
    steps = [max(1, -(-keys // (splits * step))) for splits in most]
    return sorted({1, *(max(1, -(-keys // (count * step))) for count in steps)})
