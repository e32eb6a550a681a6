"""Kernels compiled ahead of time for a GPU that is not there, and what they need of it."""

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

CUOBJDUMP = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / "cuobjdump"


class Resources(NamedTuple):
    """What a program of a compiled kernel needs: registers a thread, spilled bytes a thread, shared memory in bytes."""

    registers: int
    spills: int
    shared: int


def compiled(kernel, arch, pointers, constants, integers="i32", **options):
    """The kernel compiled for compute capability `arch`.

    pointers: {argument: type, such as "*fp16"}; constants: {argument: value} (None for an absent pointer); scale is a
    float32 and every other argument an integer of the type `integers`, divisible by 16 where it is a stride.
    """
    kinds = {name: "constexpr" if name in constants else pointers.get(name, "fp32" if name == "scale" else integers)
             for name in kernel.arg_names}
    aligned = {(i,): [["tt.divisibility", 16]] for i, name in enumerate(kernel.arg_names)
               if name in pointers or (kinds[name] == integers and "_" in name and name != "num_splits")}
    source = ASTSource(kernel, kinds, {(kernel.arg_names.index(name),): value for name, value in constants.items()},
                       aligned)
    return triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)


def resources(binary, folder):
    """The Resources of a compiled kernel, as cuobjdump reads them out of its cubin (written to the folder)."""
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(binary.asm["cubin"])
    printed = subprocess.run([CUOBJDUMP, "--dump-resource-usage", cubin], check=True, capture_output=True,
                             encoding="utf-8").stdout
    found = {name: int(number) for name, number in re.findall(r"(REG|STACK|LOCAL):(\d+)", printed)}
    return Resources(found["REG"], found["STACK"] + found["LOCAL"], binary.metadata.shared)
