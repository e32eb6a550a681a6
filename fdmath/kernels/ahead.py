"""Kernels compiled ahead of time for a GPU that need not be there, and what a program of them takes of it.

Triton compiles nothing in a process with TRITON_INTERPRET=1.
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.backends.nvidia.compiler import get_ptxas
from triton.compiler import ASTSource

from fdmath.kernels.flash import forward_kernel
from fdmath.kernels.flash_backward import columns_kernel, rows_kernel
from fdmath.kernels.flash_call import padded_axis, tile_for

FLASH = {"forward": forward_kernel, "columns": columns_kernel, "atomic columns": columns_kernel, "rows": rows_kernel}
"""The kernels that `compiled_sizes` knows."""

_ROWS = {**dict.fromkeys(("q", "o", "do", "dq"), "ROWS"), **dict.fromkeys(("k", "v", "dk", "dv"), "BLOCK")}
_WIDTHS = {**dict.fromkeys(("q", "k", "dq", "dk"), "DIM"), **dict.fromkeys(("v", "o", "do", "dv"), "WIDTH")}


class Sizes(NamedTuple):
    """What a program takes: registers a thread, spilled bytes a thread, shared memory in bytes; and its matrix units.

    serialised: whether the assembler makes every matrix product wait for the one before it.
    """

    registers: int
    spills: int
    shared: int
    serialised: bool


def compiled_sizes(block_m, block_n, dim, *, kernel="forward", causal=False, dtype="bf16", group=1, capability=90,
                   warps=None, stages=None):
    """The Sizes of a FlashAttention kernel, one of FLASH, with tiles of block_m queries × block_n keys.

    dim: the head dimension of q, k and v. dtype: bf16 or fp16. capability: 80 (A100), 90 (H100, H200), 100. warps,
    stages: those of the measured tile where not given. Lengths are ragged, which takes the most. About 1 s each.
    Raises RuntimeError where nothing can be compiled.
    """
    return sizes(compiled_flash(block_m, block_n, dim, kernel=kernel, causal=causal, dtype=dtype, group=group,
                                capability=capability, warps=warps, stages=stages))


def compiled_flash(block_m, block_n, dim, *, kernel, causal, dtype, group, capability, warps, stages):
    """The compiled kernel of `compiled_sizes`."""
    best, function = tile_for(kernel, dim, causal, dtype, capability), FLASH[kernel]
    constants = {"ROWS": block_m, "BLOCK": block_n, "DIM": padded_axis(dim), "WIDTH": padded_axis(dim),
                 "CAUSAL": causal, "GROUP": group, "TAIL": True, "ATOMIC": kernel == "atomic columns",
                 "RAISED": 2.0**14 if dtype == "fp16" else 1.0}
    constants = {name: value for name, value in constants.items() if name in function.arg_names}
    if kernel == "columns":
        constants["dq"] = None
    kinds = {}
    for name in set(function.arg_names) & set(_ROWS) - set(constants):
        number = "fp32" if name == "dq" and kernel == "atomic columns" else dtype
        kinds[name] = f"tensordesc<{number}[1, 1, {constants[_ROWS[name]]}, {constants[_WIDTHS[name]]}]>"
    kinds |= dict.fromkeys({"lse", "lse2", "delta"} & set(function.arg_names), "*fp32")
    kinds |= dict.fromkeys({"scale", "scale2"} & set(function.arg_names), "fp32")
    return compiled(function, kinds, constants, capability, {"padded"}, num_warps=warps or best.warps,
                    num_stages=stages or best.stages)


def compiled(kernel, kinds, constants, capability, multiples=(), **options):
    """The kernel compiled for a compute capability, as Triton's launcher would on a device that has it.

    kinds: {argument: type} of pointers, descriptors and float32 numbers; the others are 32-bit integers, those in
    `multiples` multiples of 16. constants: {argument: value}, None for an absent tensor.
    """
    if triton.knobs.runtime.interpret:
        raise RuntimeError("nothing is compiled in a process with TRITON_INTERPRET set")
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else kinds.get(name, "i32") for name in names}
    aligned = [i for i, name in enumerate(names) if name in multiples or signature[name].startswith("*")]
    source = ASTSource(kernel, signature, {(names.index(name),): value for name, value in constants.items()},
                       {(i,): [["tt.divisibility", 16]] for i in aligned})
    return triton.compile(source, target=GPUTarget("cuda", capability, 32), options=options)


def sizes(binary):
    """The Sizes of a compiled kernel, as NVIDIA's assembler, which Triton brings, reports them."""
    assembler = get_ptxas(binary.metadata.target.arch).path
    target = re.search(r"\.target (\w+)", binary.asm["ptx"])[1]
    with tempfile.TemporaryDirectory() as folder:
        ptx = Path(folder) / "kernel.ptx"
        ptx.write_text(binary.asm["ptx"], encoding="utf-8")
        report = subprocess.run([assembler, "-v", f"--gpu-name={target}", ptx, "-o", Path(folder) / "kernel.cubin"],
                                check=True, capture_output=True, encoding="utf-8").stderr
    used, spilled = re.search(r"Used (\d+) registers", report), re.search(r"(\d+) bytes spill stores", report)
    return Sizes(int(used[1]), int(spilled[1]), binary.metadata.shared, "Potential Performance Loss" in report)
