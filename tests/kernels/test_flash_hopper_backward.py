"""The Hopper kernel of the gradients without a card: its functions run on NumPy in many orders, and compiled ahead."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
triton = pytest.importorskip("triton")

from fdmath import attention  # noqa: E402
from fdmath.kernels import flash_hopper_backward  # noqa: E402
from fdmath.kernels.ahead import sizes  # noqa: E402
from fdmath.kernels.flash_call import four_axes, padded_axis  # noqa: E402
from fdmath.kernels.flash_hopper_backward import GROUPS, columns_kernel  # noqa: E402
from tests.attention.calls import random_call  # noqa: E402
from tests.kernels.ahead import CUOBJDUMP  # noqa: E402
from tests.kernels.flash_calls import FAR, FLASH, judge_gradients, output_gradients  # noqa: E402
from tests.kernels.gluon_ahead import SHARED, compiled_gluon, descriptor_type, instructions, meet_before_they_arrive  # noqa: E402
from tests.kernels.gluon_on_cpu import Descriptor, Machine, Stuck, changed, on_cpu  # noqa: E402

ROWS, KEYS = 16, 8
CALLS = {name: call for name, call in FLASH.items() if "several" in name or "whole" in name or "scale" in name} | {
    "many steps": random_call(63, (2, 1), 150, 19, 16, causal=True), "far": FAR}


def run(call, dtype, seed, stages=2, kernel=columns_kernel):
    """(do, dlse, (dq, dk, dv)) of a call, program by program, from the state by definition."""
    machine = Machine(seed)
    do, dlse = output_gradients(call, dtype)
    right = attention(call.q, call.k, call.v, causal=call.causal, scale=call.scale)
    q, k, v, d_o = (four_axes(x).numpy().astype(np.float32) for x in (*map(torch.from_numpy, (call.q, call.k, call.v)),
                                                                     do.double()))
    (batch, heads, queries, _), width = q.shape, padded_axis(max(q.shape[3], v.shape[3]))
    padded = -(-queries // ROWS) * ROWS
    numbers = np.zeros((2, batch, heads, padded), np.float32)
    numbers[1] = np.inf
    lse = right.lse.reshape(batch, heads, queries)
    slope = np.sum(d_o * right.o.reshape(d_o.shape), -1) - dlse.numpy().reshape(lse.shape)
    numbers[0, ..., :queries] = np.where(lse == -math.inf, 0, slope)
    numbers[1, ..., :queries] = np.where(lse == -math.inf, math.inf, lse * math.log2(math.e))
    dq, dk, dv = (np.zeros(x.shape[:-1] + (width,), np.float32) for x in (q, k, v))
    sizes = {"q": (q, ROWS), "k": (k, GROUPS.value * KEYS), "v": (v, KEYS), "do": (d_o, ROWS)}
    tiles = [Descriptor(x, (rows, width), dtype) for x, rows in sizes.values()]
    tiles += [Descriptor(x, (ROWS,), "float32") for x in (numbers[1], numbers[0])]
    tiles += [Descriptor(x, (KEYS, width), dtype) for x in (dk, dv)] + [Descriptor(dq, (ROWS, width // 2), "float32")]
    function, causal = on_cpu(kernel, machine), call.causal and queries > 1
    kv_heads, keys = k.shape[1:3]
    for machine.program in range(-(-keys // (GROUPS.value * KEYS)) * kv_heads * batch):
        function(*tiles, np.float32(call.factor()), np.float32(call.factor() * math.log2(math.e)), kv_heads,
                 heads // kv_heads, causal, keys % (GROUPS.value * KEYS) > 0, ROWS, KEYS, width, stages)
    dq *= np.float32(call.factor())
    found = [torch.from_numpy(x[..., :like.shape[-1]].reshape(like.shape)).to(do.dtype)
             for x, like in ((dq, call.q), (dk, call.k), (dv, call.v))]
    return do, dlse, found


@pytest.mark.parametrize(("name", "stages"), [*((name, 2) for name in CALLS), ("many steps", 3)])
def test_any_order_of_events_gives_gradients_within_their_budgets(name, stages):
    for seed in range(3):
        judge_gradients(CALLS[name], "bfloat16", *run(CALLS[name], "bfloat16", seed, stages))


BROKEN = {
    "the other group's dS is not waited for": ("place_of_ds), parity_of_ds)", "place_of_ds), parity_of_ds, False)"),
    "one place for dS": ("place_of_ds, parity_of_ds = slot(step, 2)", "place_of_ds, parity_of_ds = slot(step, 1)"),
    "dS of one group is enough": ("mbarrier.init(exchanged.index(stage), count=GROUPS)",
                                  "mbarrier.init(exchanged.index(stage), count=1)"),
    "freed by one group alone": ("mbarrier.init(free.index(stage), count=GROUPS)",
                                 "mbarrier.init(free.index(stage), count=1)"),
    "freed once more, before the products are done": (
        "        part = warpgroup_mma(", "        mbarrier.arrive(free.index(stage))\n        part = warpgroup_mma("),
    "the rows are not waited for": ("(ready.index(stage), parity)", "(ready.index(stage), parity, False)"),
    "the keys are not waited for": ("mbarrier.wait(keys_ready, 0)", "mbarrier.wait(keys_ready, 1)"),
    "filled when it is not free": ("free.index(stage), parity ^ 1)", "free.index(stage), parity ^ 1, False)"),
    "dq's place is written while it is read": ("        tma.store_wait(0)  # the part", "        # the part"),
    "dk is written over dv": ("    tma.store_wait(0)\n    v_tile.store((dk", "    v_tile.store((dk"),
    "the other half of dq": ("k_rows.slice(PART * (DIM // 2)", "k_rows.slice((1 - PART) * (DIM // 2)"),
    "the other group's keys": ("k_rows.slice(PART * KEYS", "k_rows.slice((1 - PART) * KEYS"),
    "no mask": ("if start + offset < first_key + KEYS - 1:", "if False:"),
    "a mask a key late": ("if start + offset < first_key + KEYS - 1:", "if start + offset < first_key + KEYS - 2:"),
    "keys beyond the end": ("        if TAIL:", "        if False:"),
    "the first rows are left out": ("first_key - offset, 0)", "first_key - offset + ROWS, 0)"),
    "one head of the group": ("kv_head * GROUP, first, tiles, GROUP, ROWS)", "kv_head, first, tiles, GROUP, ROWS)"),
    "dk without its scale": ("(dk_sum * scale)", "dk_sum"),
}
"""Changes to the kernel's text, each of which must show in some order of events."""


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_schedule_is_seen(name, tmp_path):
    kernel = changed(flash_hopper_backward, *BROKEN[name], tmp_path).columns_kernel
    calls = ("many steps", "several blocks, causal, 3 heads a KV head", "far", "several blocks, causal, empty rows")
    for seed in range(8):
        for call in calls:
            try:
                judge_gradients(CALLS[call], "bfloat16", *run(CALLS[call], "bfloat16", seed, kernel=kernel))
            except (AssertionError, IndexError, Stuck):
                return
    pytest.fail("nothing was seen")


def compiled(causal, tail, group, dtype="bf16"):
    """The kernel compiled ahead of time with its own tiles."""
    rows, keys, dim = flash_hopper_backward.ROWS, flash_hopper_backward.KEYS, flash_hopper_backward.DIM
    lengths = {"q": rows, "do": rows, "k": GROUPS.value * keys, "v": keys, "dk": keys, "dv": keys}
    kinds = {name: descriptor_type(dtype, 1, 1, n, dim) for name, n in lengths.items()}
    kinds |= dict.fromkeys(("lse2", "delta"), descriptor_type("fp32", 1, 1, rows))
    kinds |= {"dq": descriptor_type("fp32", 1, 1, rows, dim // 2), "kv_heads": "i32", "scale": "fp32", "scale2": "fp32"}
    constants = {"GROUP": group, "CAUSAL": causal, "TAIL": tail, "ROWS": rows, "KEYS": keys, "DIM": dim,
                 "STAGES": flash_hopper_backward.STAGES}
    return compiled_gluon(columns_kernel, kinds, constants)


@pytest.mark.skipif(triton.knobs.runtime.interpret or not CUOBJDUMP.exists(),
                    reason="nothing is compiled here for NVIDIA cards")
@pytest.mark.parametrize(("causal", "tail", "group"), [(False, False, 1), (True, True, 4)])
def test_it_fits_spills_nothing_and_adds_dq_by_the_copy_engine(causal, tail, group, tmp_path):
    binary = compiled(causal, tail, group)
    needs = sizes(binary)
    assert needs.spills == 0 and needs.shared <= SHARED and not needs.serialised
    assert meet_before_they_arrive(binary)
    assert instructions(binary, tmp_path).count("UTMAREDG.4D.ADD") == GROUPS.value
