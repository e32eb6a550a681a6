"""The Hopper kernel without a card: its functions run on NumPy in many orders, and compiled ahead of time."""

import math
import re

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from fdmath import LSEState  # noqa: E402
from fdmath.kernels import flash_hopper  # noqa: E402
from fdmath.kernels.ahead import sizes  # noqa: E402
from fdmath.kernels.flash_call import four_axes, padded_axis  # noqa: E402
from fdmath.kernels.flash_hopper import GROUPS, HopperTile, forward_kernel, outside, refusal  # noqa: E402
from fdmath.kernels.merge import raised  # noqa: E402
from tests.attention.calls import random_call  # noqa: E402
from tests.kernels.ahead import CUOBJDUMP  # noqa: E402
from tests.kernels.flash_calls import FLASH, judge_state  # noqa: E402
from tests.kernels.gluon_ahead import SHARED, compiled_gluon, descriptor_type, instructions, meet_before_they_arrive  # noqa: E402
from tests.kernels.gluon_on_cpu import Descriptor, Machine, Pointer, Stuck, changed, on_cpu  # noqa: E402

ROWS, BLOCK = 8, 16
CALLS = {name: call for name, call in FLASH.items() if "several" in name or "whole" in name or "scale" in name} | {
    "many steps": random_call(61, (2, 1), 19, 150, 16, causal=True)}
compiled_ahead = pytest.mark.skipif(triton.knobs.runtime.interpret or not CUOBJDUMP.exists(),
                                    reason="nothing is compiled here for NVIDIA cards")


def run(call, dtype, seed, stages=2, kernel=forward_kernel):
    """The state that the kernel makes of a call, program by program."""
    machine = Machine(seed)
    q, k, v = [four_axes(torch.from_numpy(x)).numpy().astype(np.float32) for x in (call.q, call.k, call.v)]
    (batch, heads, queries, _), dim = q.shape, padded_axis(max(q.shape[3], v.shape[3]))
    o, lse = np.full((*q.shape[:3], v.shape[3]), np.nan, np.float32), np.full(q.shape[:3], np.nan, np.float32)
    causal = call.causal and queries > 1
    tail = causal or k.shape[2] % BLOCK > 0 or call.factor() <= 0
    descriptors = [Descriptor(x, (rows, dim), dtype) for x, rows in ((q, ROWS), (k, BLOCK), (v, BLOCK), (o, ROWS))]
    function = on_cpu(kernel, machine)
    for machine.program in range(-(-queries // (GROUPS.value * ROWS)) * heads * batch):
        function(*descriptors, Pointer(lse.reshape(-1)), np.float32(call.factor() * math.log2(math.e)), heads,
                 heads // k.shape[1], causal, tail, ROWS, BLOCK, dim, stages, raised(getattr(torch, dtype)))
    return LSEState(torch.from_numpy(o.reshape(*call.q.shape[:-1], -1)),
                    torch.from_numpy(lse.reshape(call.q.shape[:-1])))


@pytest.mark.parametrize(("name", "stages"), [*((name, 2) for name in CALLS), ("many steps", 3)])
def test_any_order_of_events_gives_a_state_within_its_budget(name, stages):
    for seed in range(3):
        for dtype in ("bfloat16", "float16"):
            judge_state(CALLS[name], dtype, run(CALLS[name], dtype, seed, stages), BLOCK)


def test_rows_without_keys_are_nothing_whatever_the_values_hold():
    call = random_call(62, (1, 1), 45, 19, 16, causal=True)
    call.v[..., 0, :] = np.nan
    o, lse = run(call, "float16", 0)
    assert (o[..., :26, :] == 0).all() and (lse[..., :26] == -math.inf).all()
    assert o[..., 26:, :].isnan().all() and lse[..., 26:].isfinite().all()


BROKEN = {
    "freed before the products are done": (
        "        acc, p = warpgroup_mma_wait(0, deps=[acc, p])\n        mbarrier.arrive(free.index(stage))\n",
        "        mbarrier.arrive(free.index(stage))\n        acc, p = warpgroup_mma_wait(0, deps=[acc, p])\n"),
    "the scores are not waited for": ("warpgroup_mma_wait(1, deps=[s])", "warpgroup_mma_wait(2, deps=[s])"),
    "the next keys are not waited for": ("parity_following, step + 1 < steps)", "parity_following, False)"),
    "the values are not waited for": ("(v_ready.index(before), parity_before)",
                                      "(v_ready.index(before), parity_before, False)"),
    "the last values are not waited for": ("(v_ready.index(stage), parity)", "(v_ready.index(stage), parity, False)"),
    "the queries are not waited for": ("mbarrier.wait(q_ready, 0)", "mbarrier.wait(q_ready, 1)"),
    "freed by one group alone": ("count=GROUPS", "count=1"),
    "filled when it is not free": ("free.index(stage), parity ^ 1)", "free.index(stage), parity ^ 1, False)"),
    "the parity of the fills": ("free.index(stage), parity ^ 1)", "free.index(stage), parity)"),
    "the values' parity": ("before), parity_before)", "before), parity)"),
    "the last values are not loaded": ("in range(steps + 1)", "in range(steps)"),
    "the level of the sums": ("acc *= gl", "acc = acc + 0 * gl"),
    "the other heads' keys": ("head // GROUP", "head % GROUP"),
    "a block of one group": ("first_row += GROUP * ROWS", "first_row += 0"),
    "the masked steps begin late": ("free, full, steps, steps,", "free, full + 1, steps, steps,"),
    "the first step is not masked": ("keys, offset, scale, TAIL, CAUSAL)", "keys, offset, scale, False, CAUSAL)"),
    "rows without keys": ("gl.where(total == 0, 0.0, result)", "result"),
    "not lowered again": ("total * RAISED)", "total)"),
}
"""Changes to the kernel's text, each of which must show in some order of events."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_schedule_is_seen(name, tmp_path):
    kernel = changed(flash_hopper, *BROKEN[name], tmp_path).forward_kernel
    for seed in range(5):
        for call in (CALLS["many steps"], *(CALLS[f"several blocks, causal, {x}"] for x in ("3 heads a KV head",
                                                                                           "empty rows"))):
            try:
                judge_state(call, "float16", run(call, "float16", seed, kernel=kernel), BLOCK)
            except (AssertionError, IndexError, Stuck):
                return
    pytest.fail("nothing was seen")


def compiled(dim, causal, tail, dtype="bf16", tile=HopperTile()):  # noqa: B008  (a tuple)
    """The kernel compiled ahead of time."""
    tiles = zip("qokv", (flash_hopper.ROWS,) * 2 + (tile.block_n,) * 2, strict=True)
    kinds = {name: descriptor_type(dtype, 1, 1, rows, dim) for name, rows in tiles}
    constants = {"GROUP": 4, "CAUSAL": causal, "TAIL": tail, "ROWS": flash_hopper.ROWS, "BLOCK": tile.block_n,
                 "DIM": dim, "STAGES": tile.stages, "RAISED": 2.0**14 if dtype == "fp16" else 1.0}
    return compiled_gluon(forward_kernel, kinds | {"lse": "*fp32", "scale": "fp32", "heads": "i32"}, constants)


@compiled_ahead
@pytest.mark.parametrize(("dim", "causal", "tail"), [(64, False, False), (128, True, True)])
def test_it_fits_spills_nothing_and_takes_exponentials_while_it_multiplies(dim, causal, tail, tmp_path):
    binary = compiled(dim, causal, tail)
    needs = sizes(binary)
    assert needs.spills == 0 and needs.shared <= SHARED and not needs.serialised
    assert meet_before_they_arrive(binary)
    waits = re.split(r"WARPGROUP\.DEPBAR\.LE gsb0, 0x", instructions(binary, tmp_path))[1:]
    overlapped = [wait for wait in waits if wait.startswith("1")]  # one product is still under way
    assert len(overlapped) == GROUPS.value * (1 + tail)  # each loop of each group
    assert all(wait.count("MUFU.EX2") >= HopperTile().block_n // 2 for wait in overlapped)  # 64 x 128 of 128 threads


@compiled_ahead
def test_three_stages_fit_too():
    assert sizes(compiled(128, True, True, "fp16", HopperTile(128, 3))).shared <= SHARED


@pytest.mark.parametrize(("causal", "keys", "dim", "wanted"), [
    (False, 1024, 128, True), (False, 1023, 128, False), (True, 2048, 65, True), (True, 2047, 128, False),
    (False, 4096, 64, False)])
def test_auto_takes_it_where_it_pays(causal, keys, dim, wanted, monkeypatch):
    monkeypatch.setattr(flash_hopper, "capability", lambda q: (9, 0))
    k = torch.empty(1, 1, keys, dim, dtype=torch.bfloat16)
    assert flash_hopper.pays(torch.empty(1, 1, 4096, dim, dtype=torch.bfloat16), k, k, causal) is wanted
    monkeypatch.setattr(flash_hopper, "capability", lambda q: (10, 0))
    assert not flash_hopper.pays(k, k, k, causal)


def test_what_it_does_not_take_is_said():
    q = torch.zeros(2, 3, 64, dtype=torch.float16)
    assert refusal(q, q, q, mask=q) == "its kernel takes no mask" and "CUDA" in refusal(q, q, q)
    assert outside(torch.float16, 64, 40, (9, 0)) is None and outside(torch.bfloat16, 80, 128, (9, 0)) is None
    assert "capability 9; got 8.0" in outside(torch.float16, 64, 64, (8, 0))
    assert "got torch.float32" in outside(torch.float32, 64, 64, (9, 0))
    for dims in ((64, 128), (32, 32), (256, 256)):
        assert "got {} and {}".format(*dims) in outside(torch.float16, *dims, (9, 0))
