"""The kernels compiled ahead of time for cards that are not here: they compile, fit, and spill no register."""

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")
if triton.knobs.runtime.interpret:
    pytest.skip("Triton compiles nothing where TRITON_INTERPRET is set", allow_module_level=True)

from fdmath.kernels.ahead import sizes  # noqa: E402
from fdmath.kernels.merge import merge_kernel  # noqa: E402
from fdmath.kernels.plan import KIB, OTHERS, decode_plan, least_warps  # noqa: E402
from fdmath.kernels.split_kv import split_kv_kernel  # noqa: E402
from tests.kernels.ahead import CUOBJDUMP, compiled  # noqa: E402

SHARED = {80: 163 * KIB, 90: 227 * KIB, 100: 227 * KIB}  # what a program may use, by compute capability
pytestmark = pytest.mark.skipif(not CUOBJDUMP.exists(), reason="this Triton has no tools for NVIDIA cards")


def split(arch, dtype="fp16", dim=128, width=128, rows=16, **constants):
    """The split-KV kernel compiled for an architecture as a plan for it says, and the plan."""
    number = 4 if dtype == "fp32" else 2
    padded = [max(16, triton.next_power_of_2(x)) for x in (dim, width)]
    plan = decode_plan(8, 8192, sum(padded) * number, 132, SHARED[arch])
    pointers = {**dict.fromkeys("qkv", f"*{dtype}"), "o": "*fp32", "lse": "*fp32"}
    fixed = {"seq_starts": None, "seq_lens": None, "k_key": dim, "v_key": width, "DIM": dim, "WIDTH": width, "GROUP": 4,
             "PACKED": 4, "ROWS": rows, "BLOCK": plan.block, "DIMS": padded[0], "WIDTHS": padded[1], "TILED": False,
             "CAUSAL": False, "CHECK": False, "EARLY": arch >= 90, "RAISED": 2.0**14 if dtype == "fp16" else 1.0,
             **constants}
    warps = max(plan.warps, least_warps(rows, padded[1]))
    return compiled(split_kv_kernel, arch, pointers, fixed, num_warps=warps, num_stages=plan.stages), plan


@pytest.mark.parametrize("arch", SHARED)
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_split_kernel_fits_and_does_not_spill(arch, dtype):
    binary, plan = split(arch, dtype)
    needs = sizes(binary)
    assert needs.spills == 0 and needs.registers <= 128
    assert 2 * plan.block * 512 <= needs.shared <= 2 * plan.block * 512 + OTHERS <= SHARED[arch]
    assert ("griddepcontrol" in binary.asm["ptx"]) == (arch >= 90)
    assert "cp.async.cg" in binary.asm["ptx"] and "mma.sync" in binary.asm["ptx"]


@pytest.mark.parametrize(("dim", "width", "rows"), [(96, 80, 16), (256, 256, 16), (192, 256, 64)])
def test_other_shapes_fit_too(dim, width, rows):
    needs = sizes(split(90, dim=dim, width=width, rows=rows, PACKED=4, CAUSAL=True)[0])
    assert needs.spills == 0 and needs.shared <= SHARED[90]


@pytest.mark.parametrize("arch", SHARED)
def test_the_merge_kernel_fits_and_does_not_spill(arch):
    pointers = {"o_parts": "*fp32", "lse_parts": "*fp32", "o": "*fp16", "lse": "*fp32"}
    constants = {"WIDTH": 128, "CUT": 32, "PARTS": 64, "EARLY": arch >= 90}
    needs = sizes(compiled(merge_kernel, arch, pointers, constants, num_warps=4))
    assert needs.spills == 0 and needs.registers <= 128 and needs.shared <= 48 * KIB
