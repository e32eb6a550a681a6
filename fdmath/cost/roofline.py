"""What bounds the time of a kernel from below: arithmetic, memory, launching; and how many blocks fit."""

from fractions import Fraction

from fdmath.cost.decode import read_floor_seconds

RESERVED = 1024
"""The bytes of shared memory that CUDA takes for itself in each thread block."""


def floors(flop, count, device, launches=1, launch_seconds=0):
    """What each limit alone would take, in seconds, by name: "compute", "memory", "launch".

    flop: on the tensor cores; count: bytes moved; launches: kernels one after the other, launch_seconds each. All
    three go on at the same time, at best: the largest bounds the time from below, and the work is bound by it.
    Source: S. Williams, A. Waterman, D. Patterson, "Roofline" (2009), with a third roof for the launches.
    """
    return {"compute": Fraction(flop, device.tensor_flops), "memory": read_floor_seconds(count, device),
            "launch": Fraction(launches) * Fraction(launch_seconds)}


def bound_by(flop, count, device, launches=1, launch_seconds=0):
    """The name of the largest of the `floors`."""
    limits = floors(flop, count, device, launches, launch_seconds)
    return max(limits, key=limits.get)


def resident_blocks(shared, device):
    """The thread blocks that a multiprocessor holds at once as far as shared memory goes: ⌊its bytes / theirs⌋.

    shared: bytes that one block asks for, to which CUDA adds 1 KiB (ValueError below 0). Registers and warps may
    allow fewer. Source: CUDA's programming guide, compute capabilities 8.0 and 9.0.
    """
    if shared < 0:
        raise ValueError(f"shared must be at least 0 bytes; got {shared}")
    return device.shared // (shared + RESERVED)
