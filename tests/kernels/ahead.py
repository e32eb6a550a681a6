"""Compiling the decode kernels ahead of time: NVIDIA's tools, which Triton brings, and what a launcher knows."""

from pathlib import Path

import triton

from fdmath.kernels import ahead

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


def compiled(kernel, arch, pointers, constants, **options):
    """The kernel compiled for compute capability `arch`; pointers and constants: see `fdmath.kernels.ahead.compiled`.

    scale is a float32, every other argument a 32-bit integer; strides are multiples of 16.
    """
    strides = {name for name in kernel.arg_names if "_" in name and name != "num_splits"} - set(constants)
    return ahead.compiled(kernel, {"scale": "fp32", **pointers}, constants, arch, strides, **options)
