"""FlashAttention-2 forward for Hopper cards (compute capability 9.0), in Gluon; `auto` takes it where it `pays`.

The kernel of `flash.py` leaves to the compiler what waits for what. Here it is written out. In a program one warp loads
tiles of keys and values, and two groups of four compute, with 64 queries each. In a group three things overlap: while
the exponentials of one tile are taken, the product P·v of the tile before is under way, and the tile after is being
loaded. Barriers in shared memory say when: `k_ready` and `v_ready` of a place complete when the copy engine has filled
it, `free` when both groups have read the keys of a step and the values of the step before, which is once a step. The
n-th completion of a barrier, from 0, is awaited by the parity of n.

It computes what `flash.py` does, tile by tile in the same order.
"""

import math
from typing import NamedTuple

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from fdmath.algebra.state import LSEState
from fdmath.kernels import flash_call
from fdmath.kernels.flash_call import DeviceOf, descriptor, empty_rows, padded_axis, prepare
from fdmath.kernels.flash_tiles import place, seen_by_rows, visible_keys
from fdmath.kernels.merge import LOG2E, raised

LN2 = gl.constexpr(math.log(2))
ROWS = 64
"""Queries of a computing group: the rows of one matrix instruction of four warps."""
GROUPS = gl.constexpr(2)
REGISTERS = gl.constexpr(240)
"""Registers of a computing thread: 2·240 + 24 for the loading warps is what 3·168, the share at the start, allows."""
LOADING_REGISTERS = gl.constexpr(24)
SHORT = (1024, 2048)
"""With fewer queries or keys than these, (full, causal), it is not shown to pay: the recorded times of both kernels
overlap, or the readable one is the faster (H200, bfloat16, d = 128)."""


class HopperTile(NamedTuple):
    """The keys that a program takes at a time, and the steps whose loads are under way at once."""

    block_n: int = 128
    stages: int = 2


@gluon.jit
def slot(step, STAGES: gl.constexpr):
    """(stage, parity): where in shared memory a step's tile is, and the parity of how often that was filled before."""
    return step % STAGES, step // STAGES & 1


@gluon.jit
def load_tiles(
    q, k, v, q_rows, k_rows, v_rows, q_ready, k_ready, v_ready, free,
    batch, head, kv_head, first_row, steps, ROWS: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Nothing; the loading warp: the queries of both groups, then the keys and values of every step."""
    mbarrier.expect(q_ready, GROUPS * q.block_type.nbytes)
    for group in gl.static_range(GROUPS):
        tma.async_copy_global_to_shared(q, [batch, head, first_row + group * ROWS, 0], q_ready, q_rows.index(group))
    for step in range(steps + 1):
        stage, parity = slot(step, STAGES)
        before, _ = slot(step - 1, STAGES)
        mbarrier.wait(free.index(stage), parity ^ 1)  # true at once for a barrier that has never completed
        load_tile(k, [batch, kv_head, step * BLOCK, 0], k_ready.index(stage), k_rows.index(stage), step < steps)
        load_tile(v, [batch, kv_head, (step - 1) * BLOCK, 0], v_ready.index(before), v_rows.index(before), step > 0)


@gluon.jit
def load_tile(tensor, corner, ready, rows, wanted):
    """Nothing; if it is wanted, a tile is on its way to its place, and `ready` completes when it is there."""
    mbarrier.expect(ready, tensor.block_type.nbytes, wanted)
    tma.async_copy_global_to_shared(tensor, corner, ready, rows, wanted)


@gluon.jit
def weights(s, m, start, row, keys, offset, scale, MASKED: gl.constexpr, CAUSAL: gl.constexpr):
    """(p, top, alpha) of a tile of products: 2^(score − top), the new level, and what moves older sums to it.

    A row without a score above −∞ so far keeps the level −∞; what it is measured from is then 0.
    """
    if MASKED:
        key = start + gl.arange(0, s.shape[1], layout=gl.SliceLayout(0, s.type.layout))
        s = gl.where(visible_keys(key, row, keys, offset, CAUSAL), s * scale, float("-inf"))
        top = gl.maximum(m, gl.max(s, 1))
        reference = gl.where(top == float("-inf"), 0.0, top)
        p = gl.exp2(s - reference[:, None])
    else:  # scale > 0: the largest score may be scaled alone, and every score in the subtraction that it needs
        top = gl.maximum(m, gl.max(s, 1) * scale)
        reference = gl.where(top == float("-inf"), 0.0, top)
        p = gl.exp2(s * scale - reference[:, None])
    return p, top, gl.exp2(m - reference)


@gluon.jit
def attend(
    m, l, acc, p, queries, k_rows, v_rows, k_ready, v_ready, free,
    first, last, steps, row, keys, offset, scale,
    MASKED: gl.constexpr, CAUSAL: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr, STAGES: gl.constexpr,
    LAYOUT: gl.constexpr, RAISED: gl.constexpr,
):  # fmt: skip
    """(m, l, acc, p) after the steps first ≤ step < last: acc lacks the last step's p·v, which is still to be added.

    On entry the keys of step `first` are there. No product is under way on entry or at the end of a step.
    """
    nothing = gl.zeros([ROWS, BLOCK], gl.float32, LAYOUT)
    for step in range(first, last):
        stage, parity = slot(step, STAGES)
        before, parity_before = slot(step - 1, STAGES)
        following, parity_following = slot(step + 1, STAGES)
        s = warpgroup_mma(queries, tile(k_rows, stage).permute([1, 0]), nothing, use_acc=False, is_async=True)
        mbarrier.wait(v_ready.index(before), parity_before)
        acc = warpgroup_mma(p, tile(v_rows, before), acc, is_async=True)
        s = warpgroup_mma_wait(1, deps=[s])  # of two products under way the older

        weight, m, alpha = weights(s, m, step * BLOCK, row, keys, offset, scale, MASKED, CAUSAL)
        l = alpha * l + gl.sum(weight, 1)
        # here the next keys are awaited, not at the top: the assembler moves no wait for a product across this one
        mbarrier.wait(k_ready.index(following), parity_following, step + 1 < steps)
        acc, p = warpgroup_mma_wait(0, deps=[acc, p])
        mbarrier.arrive(free.index(stage))
        acc *= gl.convert_layout(alpha, gl.SliceLayout(1, acc.type.layout))[:, None]
        p = operand(weight * RAISED, v_rows, acc)
    return m, l, acc, p


@gluon.jit
def tile(rows, stage):
    """The tile at a place in shared memory, (rows, dim)."""
    here = rows.index(stage)
    return here.reshape([here.shape[2], here.shape[3]])


@gluon.jit
def operand(weight, v_rows, acc):
    """The weights in the values' format, as the left operand of a product that is added to acc."""
    return gl.convert_layout(weight.to(v_rows.dtype), gl.DotOperandLayout(0, acc.type.layout, 2))


@gluon.jit
def compute(
    o, lse, q_rows, k_rows, v_rows, q_ready, k_ready, v_ready, free,
    batch, head, first_row, queries, keys, steps, scale,
    GROUP: gl.constexpr, CAUSAL: gl.constexpr, TAIL: gl.constexpr, ROWS: gl.constexpr, BLOCK: gl.constexpr,
    DIM: gl.constexpr, STAGES: gl.constexpr, RAISED: gl.constexpr,
):  # fmt: skip
    """Nothing; one computing group: the state of its ROWS queries is written to o and to lse, the head's own."""
    score_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK, 16])
    acc_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    first_row += GROUP * ROWS
    row, offset = first_row + gl.arange(0, ROWS, layout=gl.SliceLayout(1, score_layout)), keys - queries
    full, _ = seen_by_rows(first_row, ROWS, keys, offset, CAUSAL)
    full = gl.maximum(gl.where(scale > 0, full // BLOCK, 0), 1)
    q_tile = tile(q_rows, GROUP)

    mbarrier.wait(q_ready, 0)
    mbarrier.wait(k_ready.index(0), 0)
    s = gl.zeros([ROWS, BLOCK], gl.float32, score_layout)
    s = warpgroup_mma(q_tile, tile(k_rows, 0).permute([1, 0]), s, use_acc=False)
    m = gl.full([ROWS], float("-inf"), gl.float32, gl.SliceLayout(1, score_layout))
    weight, m, _ = weights(s, m, 0, row, keys, offset, scale, TAIL, CAUSAL)
    l = gl.sum(weight, 1)
    acc = gl.zeros([ROWS, DIM], gl.float32, acc_layout)
    p = operand(weight * RAISED, v_rows, acc)
    following, parity = slot(1, STAGES)
    mbarrier.wait(k_ready.index(following), parity, steps > 1)
    mbarrier.arrive(free.index(0))

    m, l, acc, p = attend(
        m, l, acc, p, q_tile, k_rows, v_rows, k_ready, v_ready, free, 1, gl.minimum(full, steps), steps,
        row, keys, offset, scale, False, CAUSAL, ROWS, BLOCK, STAGES, score_layout, RAISED,
    )  # fmt: skip
    if TAIL:
        m, l, acc, p = attend(
            m, l, acc, p, q_tile, k_rows, v_rows, k_ready, v_ready, free, full, steps, steps,
            row, keys, offset, scale, True, CAUSAL, ROWS, BLOCK, STAGES, score_layout, RAISED,
        )  # fmt: skip
    stage, parity = slot(steps - 1, STAGES)
    mbarrier.wait(v_ready.index(stage), parity)
    acc = warpgroup_mma(p, tile(v_rows, stage), acc)

    total = gl.convert_layout(l, gl.SliceLayout(1, acc_layout))[:, None]
    result = acc * gl.div_rn(1.0, total * RAISED)
    result = gl.where(total == 0, 0.0, result)  # selected: beside no weight acc may hold NaN
    q_tile.store(result.to(q_rows.dtype))  # the group's queries have been read by all its warps before the last arrival
    fence_async_shared()
    tma.async_copy_shared_to_global(o, [batch, head, first_row, 0], q_rows.index(GROUP))
    gl.store(lse + row, (m + gl.log2(l)) * LN2, row < queries)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["heads"])
def forward_kernel(
    q, k, v, o, lse, scale, heads, GROUP: gl.constexpr, CAUSAL: gl.constexpr, TAIL: gl.constexpr, ROWS: gl.constexpr,
    BLOCK: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr, RAISED: gl.constexpr,
):  # fmt: skip
    """The state (o, lse) of GROUPS·ROWS queries of one head (document B, Algorithm 1, repaired for rows without keys).

    q, o: descriptors of tiles (1, 1, ROWS, DIM); k, v: of (1, 1, BLOCK, DIM); lse (B, heads, Nq), contiguous. scale
    holds log₂e. TAIL: some tile needs a mask. GROUP: query heads a KV head. The blocks that see the most keys are
    started first. A block whose rows see no key takes one step all the same, in which everything is hidden.
    """
    queries, keys = q.shape[2], k.shape[2]
    blocks = gl.cdiv(queries, GROUPS * ROWS)
    block, head, batch = place(blocks, heads)
    first_row = (blocks - 1 - block) * (GROUPS * ROWS)
    _, last = seen_by_rows(first_row, GROUPS * ROWS, keys, keys - queries, CAUSAL)
    steps = gl.maximum(gl.cdiv(last, BLOCK), 1)

    q_rows = gl.allocate_shared_memory(q.dtype, [GROUPS, 1, 1, ROWS, DIM], q.layout)
    k_rows = gl.allocate_shared_memory(k.dtype, [STAGES, 1, 1, BLOCK, DIM], k.layout)
    v_rows = gl.allocate_shared_memory(v.dtype, [STAGES, 1, 1, BLOCK, DIM], v.layout)
    q_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    k_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    v_ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    mbarrier.init(q_ready, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(k_ready.index(stage), count=1)
        mbarrier.init(v_ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=GROUPS)

    lse += gl.cast(batch * heads + head, gl.int64) * queries
    gl.warp_specialize(
        [
            (compute, (o, lse, q_rows, k_rows, v_rows, q_ready, k_ready, v_ready, free, batch, head,
                       first_row, queries, keys, steps, scale, 0, CAUSAL, TAIL, ROWS, BLOCK, DIM, STAGES, RAISED)),
            (compute, (o, lse, q_rows, k_rows, v_rows, q_ready, k_ready, v_ready, free, batch, head,
                       first_row, queries, keys, steps, scale, 1, CAUSAL, TAIL, ROWS, BLOCK, DIM, STAGES, RAISED)),
            (load_tiles, (q, k, v, q_rows, k_rows, v_rows, q_ready, k_ready, v_ready, free, batch, head,
                          head // GROUP, first_row, steps, ROWS, BLOCK, STAGES)),
        ],
        [4, 1],
        [REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip


def flash_forward_hopper(q, k, v, *, causal=False, scale=None):
    """The attention state (o, lse) as `flash_forward` of `flash.py` gives it, on a Hopper card.

    q: (…, Hq, Nq, d), k: (…, Hkv, Nkv, d), v: (…, Hkv, Nkv, dv), float16 or bfloat16; d and dv both from 33 to 64, or
    both from 65 to 128. Any strides and lengths; o: (…, Hq, Nq, dv) in q's dtype, lse: (…, Hq, Nq), natural logarithm,
    float32; a row that sees no key is (0, −∞). causal: bottom-right aligned. P, 2¹⁴ times P in float16, is rounded to
    v's dtype before P·v, and l sums the unrounded P. Deterministic; no gradient.
    Raises TypeError for kinds, dtypes and devices, ValueError for shapes and values, RuntimeError, with the sentence of
    `refusal`, for the rest that it does not take. Source: document B, Algorithm 1.
    """
    call = prepare(q, k, v, causal, scale)
    reason = outside(q.dtype, q.shape[-1], v.shape[-1], capability(q))
    if reason:
        raise RuntimeError(f"the Hopper kernel cannot run here: {reason}")
    shape = (*q.shape[:-1], v.shape[-1])
    lse = q.new_empty(shape[:-1], dtype=torch.float32)
    if call.is_empty:
        return LSEState(q.new_zeros(shape), lse.fill_(-math.inf))
    o = empty_rows(call.q, (*call.q.shape[:-1], shape[-1]))
    launch_forward(call, HopperTile(), o, lse)
    return LSEState(o.contiguous().view(shape), lse)


def launch_forward(call, tile, o, lse):
    """Nothing; the state of a FlashCall is written to o (B, Hq, Nq, dv), which is `aligned`, and lse, contiguous.

    tile: a HopperTile with two stages at least: a program waits for the next keys before it frees the last.
    """
    batch, heads, queries, _ = call.q.shape
    tail = call.needs_mask(tile.block_n)
    with DeviceOf(call.q):
        forward_kernel[(-(-queries // (GROUPS.value * ROWS)) * heads * batch,)](
            with_layout(call.q, ROWS), with_layout(call.k, tile.block_n), with_layout(call.v, tile.block_n),
            with_layout(o, ROWS), lse, call.scale * LOG2E.value, heads, GROUP=call.group, CAUSAL=call.hides, TAIL=tail,
            ROWS=ROWS, BLOCK=tile.block_n, DIM=padded_axis(call.q.shape[3]), STAGES=tile.stages,
            RAISED=raised(call.v.dtype), num_warps=4,
        )  # fmt: skip


def with_layout(x, rows):
    """The `descriptor` of x with the layout in which the matrix units read a tile: swizzled over 128 bytes."""
    plain = descriptor(x, rows)
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=16, rank=4)
    return TensorDescriptor(x, plain.shape, plain.strides, plain.block_shape, layout)


def pays(q, k, v, causal):
    """Whether "auto" takes this kernel: on its card, for d and dv from 65 to 128, and not for SHORT calls."""
    short = min(q.shape[-2], k.shape[-2]) < SHORT[causal]
    return not short and outside(q.dtype, q.shape[-1], v.shape[-1], capability(q), (128,)) is None


def capability(q):
    """The compute capability (major, minor) of the card that holds q."""
    return torch.cuda.get_device_capability(q.device)


def refusal(q, k, v, mask=None):
    """Why the kernel cannot run on these arrays, as a text; None where it can."""
    reason = flash_call.refusal(q, k, v, mask)
    return reason or outside(q.dtype, q.shape[-1], v.shape[-1], capability(q))


def outside(dtype, dim, width, capability, dims=(64, 128)):
    """Why a kernel cannot take a dtype, d and dv, or a card of this capability, as a text; None where it can.

    dims: the widths that its tiles may have; d and dv fill more than half of one.
    """
    if capability[0] != 9:
        return f"its kernel needs a card of compute capability 9; got {'.'.join(map(str, capability))}"
    if dtype not in (torch.float16, torch.bfloat16):
        return f"its kernel multiplies float16 and bfloat16; got {dtype}"
    if padded_axis(dim) != padded_axis(width) or padded_axis(dim) not in dims:
        ranges = ", or both ".join(f"from {size // 2 + 1} to {size}" for size in dims)
        return f"its kernel takes d and dv both {ranges}; got {dim} and {width}"
    return None
