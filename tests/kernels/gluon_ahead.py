"""Gluon kernels compiled ahead of time for a Hopper card that is not there."""

import re
import subprocess
from itertools import pairwise

import triton
from triton.backends.compiler import GPUTarget
from triton.experimental.gluon import language as gl
from triton.experimental.gluon._runtime import GluonASTSource

from tests.kernels.ahead import CUOBJDUMP

SHARED = 227 * 1024
"""Bytes that a program may use on a Hopper card."""


def descriptor_type(dtype, *lengths):
    """The type of a descriptor of tiles of these lengths, swizzled over 128 bytes, or not at all where it is a row."""
    bits, rank = 32 if dtype == "fp32" else 16, len(lengths)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128 if rank > 3 else 0, element_bitwidth=bits, rank=rank)
    return f"tensordesc<{dtype}{list(lengths)},{layout!r}>"


def compiled_gluon(kernel, kinds, constants):
    """The kernel compiled for compute capability 9. kinds: {argument: type}; constants: {argument: value}."""
    names = kernel.arg_names
    aligned = {(names.index(name),): [["tt.divisibility", 16]] for name, kind in kinds.items() if kind[0] == "*"}
    source = GluonASTSource(kernel, {name: kinds.get(name, "constexpr") for name in names},
                            {(names.index(name),): value for name, value in constants.items()}, aligned)
    return triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4})


def instructions(binary, folder):
    """The machine code of a compiled kernel as text (its cubin is written to the folder)."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    command = [CUOBJDUMP, "--dump-sass", cubin]
    return subprocess.run(command, check=True, capture_output=True, encoding="utf-8").stdout


def meet_before_they_arrive(binary):
    """Whether before each arrival, which one warp makes for its group, the group's warps meet after their products.

    Each warp waits for its own share of a product alone; Triton puts the meeting (bar.sync) there, or not.
    """
    events = re.findall(r"wgmma\.wait_group|stmatrix|bar\.sync|mbarrier\.arrive\.shared", binary.asm["ptx"])
    assert "mbarrier.arrive.shared" in events
    return all(before == "bar.sync" for before, event in pairwise(events) if event.startswith("mbarrier"))
