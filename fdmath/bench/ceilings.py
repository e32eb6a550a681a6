"""What a CUDA device can do at most, measured: reading, starting a kernel, multiplying. Needs torch and Triton."""

import torch
import triton
import triton.language as tl

from fdmath.bench.decode import fit_floor
from fdmath.bench.graphs import ROTATED, Graph, alternating

MIB = 2**20
LARGE = 4096 * MIB
"""The bytes of the large read: many times any cache."""

READS = ((2048, 1, 4), (4096, 1, 4), (8192, 1, 8), (4096, 2, 8), (8192, 2, 8), (4096, 4, 4), (8192, 4, 8))
"""(numbers a step, steps a program, warps) of the reads that are tried."""

PROGRAMS = (1, 132, 1056)
"""How many programs the empty kernel is started with."""


@triton.jit
def read_kernel(x, out, count, BLOCK: tl.constexpr, STEPS: tl.constexpr):
    """One program: the xor of BLOCK · STEPS int32 numbers in a row, so that each must be read."""
    first = tl.program_id(0).to(tl.int64) * BLOCK * STEPS
    found = tl.zeros([BLOCK], tl.int32)
    for step in tl.static_range(STEPS):
        place = first + step * BLOCK + tl.arange(0, BLOCK)
        found ^= tl.load(x + place, place < count, 0)
    tl.store(out + tl.program_id(0), tl.xor_sum(found, 0))


@triton.jit
def empty_kernel(x):
    """Nothing."""


def read(x, out, block, steps, warps):
    """Nothing; every byte of the int32 tensor x has been read once, and a number a program written to out."""
    read_kernel[-(-x.numel() // (block * steps)),](x, out, x.numel(), BLOCK=block, STEPS=steps, num_warps=warps)


def read_us(count, pool):
    """The least median µs, over READS, of reading `count` bytes that no cache holds: a slice of the pool a call.

    Four slices at least where the pool has them: of one that is read again and again, a cache keeps a part.
    """
    numbers = count // 4
    slices = min(pool.numel() // numbers, max(4, ROTATED // count))
    slices = [(pool[i * numbers:(i + 1) * numbers],) for i in range(slices)]
    out = torch.empty(numbers // min(block * steps for block, steps, _ in READS) + 1, dtype=torch.int32, device="cuda")
    graphs = {}
    for how in READS:
        graphs[how] = Graph(lambda x, how=how: read(x, out, *how), slices, 1 if count == LARGE else 20)
    return 1e6 * min(timing.median for timing in alternating(graphs, visits=1, replays=5).values())


def launch_us(programs):
    """The µs that an empty kernel of `programs` programs takes as one of a row of nodes of a graph."""
    x = torch.empty(1, device="cuda")
    graph = Graph(lambda: empty_kernel[programs,](x, num_warps=4), [()], 200)
    return 1e6 * alternating({"": graph}, visits=1)[""].median


def matmul_tflops(dtype, size=8192, time=None):
    """The 10¹² operations a second of a product of two size × size matrices of normal numbers: 2·size³ / time.

    time(call without arguments): the seconds of a call; by default a median of a graph of ten.
    """
    a, b = (torch.randn(size, size, device="cuda").to(getattr(torch, dtype)) for _ in range(2))
    return 2 * size**3 / (time or _graph_seconds)(lambda: a @ b) / 1e12


def _graph_seconds(call):
    return alternating({"": Graph(call, [()], 10)}, visits=1, replays=5)[""].median


def measure(sizes, dtypes):
    """The ceilings, a dict: {read_gb_per_s, floor, launch_us, matmul_tflops}.

    read_gb_per_s: of LARGE bytes. floor: {start_us, gb_per_s, points, misfit}, the fit of t = start + bytes/rate, the
    (bytes, µs) of `sizes` bytes that it was fitted to, and the largest |fit/t − 1| of these. launch_us: by number of
    programs. matmul_tflops: by dtype.
    """
    pool = torch.randint(-2**31, 2**31 - 1, (LARGE // 4,), dtype=torch.int32, device="cuda")
    points = [(count, read_us(count, pool)) for count in sorted(set(sizes))]
    floor = fit_floor(points)
    misfit = max(abs(floor.us(count) / us - 1) for count, us in points)
    return {
        "read_gb_per_s": LARGE / read_us(LARGE, pool) / 1e3,
        "floor": {**floor._asdict(), "points": points, "misfit": misfit},
        "launch_us": {str(programs): launch_us(programs) for programs in PROGRAMS},
        "matmul_tflops": {dtype: matmul_tflops(dtype) for dtype in dtypes},
    }


def sizes_of(shapes, dtype):
    """The sizes at which the floor is fitted: the bytes of the shapes, to the next MiB, and 1, 16 and 256 MiB."""
    near = {max(1, round(shape.bytes_in(dtype) / MIB)) for shape in shapes}
    return sorted(MIB * size for size in near | {1, 16, 256})
