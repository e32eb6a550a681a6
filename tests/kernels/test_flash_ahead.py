"""The FlashAttention kernels compiled ahead of time: they fit, spill nothing, and no matrix product waits in line."""

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")
if triton.knobs.runtime.interpret:
    pytest.skip("Triton compiles nothing where TRITON_INTERPRET is set", allow_module_level=True)

from fdmath.kernels.ahead import FLASH, compiled_flash, compiled_sizes  # noqa: E402
from fdmath.kernels.flash_call import TILES, tile_for  # noqa: E402
from tests.kernels.ahead import CUOBJDUMP  # noqa: E402

SHARED = {80: 163 * 1024, 90: 227 * 1024}  # what a program may use, by compute capability
pytestmark = pytest.mark.skipif(not CUOBJDUMP.exists(), reason="this Triton has no tools for NVIDIA cards")


def measured(kernel, dim, causal, capability=90, **options):
    """The Sizes of a kernel with the tile that is taken for it."""
    tile = tile_for(kernel, dim, causal, "bf16", capability)
    return compiled_sizes(*tile[:2], dim, kernel=kernel, causal=causal, capability=capability, **options)


@pytest.mark.parametrize("kernel", ["forward", "columns", "rows"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_the_tiles_taken_fit_spill_little_and_overlap_their_products(kernel, dim, causal):
    needs = measured(kernel, dim, causal, group=4 if causal else 1)
    programs = 3 if dim == 64 and kernel != "columns" else 2
    assert needs.spills <= 128 and not needs.serialised  # 128 bytes: a few numbers kept over the loop of the tail
    assert programs * (needs.shared + 1024) <= SHARED[90] + 1024  # 1 KiB of each program is the system's


@pytest.mark.parametrize("kernel", FLASH)
def test_the_widest_heads_fit(kernel):
    needs = measured(kernel, 256, True)
    assert needs.shared <= SHARED[90] and not needs.serialised


@pytest.mark.parametrize("kernel", ["forward", "columns", "rows"])
def test_cards_without_copy_engine_take_pointers(kernel):
    tile = tile_for(kernel, 128, True, "fp16", 80)
    binary = compiled_flash(*tile[:2], 128, kernel=kernel, causal=True, dtype="fp16", group=2, capability=80,
                            warps=None, stages=None)
    assert "cp.async.bulk" not in binary.asm["ptx"] and "mma.sync" in binary.asm["ptx"]
    assert binary.metadata.shared <= SHARED[80]


def test_hopper_takes_its_own_instructions():
    binary = compiled_flash(128, 64, 128, kernel="forward", causal=False, dtype="bf16", group=1, capability=90,
                            warps=None, stages=None)
    assert "cp.async.bulk.tensor.4d" in binary.asm["ptx"] and "wgmma.mma_async" in binary.asm["ptx"]


def test_larger_tiles_take_more():
    small, large = compiled_sizes(64, 32, 128), compiled_sizes(128, 64, 128)
    assert small.shared < large.shared and small.registers < large.registers
    assert compiled_sizes(128, 128, 128, warps=4).spills > 0  # too large for 4 warps: numbers leave the registers


def test_every_kernel_has_a_tile_for_every_dimension():
    assert set(TILES) == set(FLASH) and {tuple(of) for of in TILES.values()} == {(64, 128, 256)}
    assert tile_for("rows", 65, True, "float16") == TILES["rows"][128][True]


def test_nothing_is_compiled_for_the_interpreter(monkeypatch):
    monkeypatch.setattr("triton.knobs.runtime.interpret", True)
    with pytest.raises(RuntimeError, match="^nothing is compiled"):
        compiled_sizes(64, 64, 64)
