"""FlashAttention-2 backward for Hopper cards (capability 9.0), in Gluon; `auto` does not take it.

It does what `columns_kernel` of `flash_backward.py` does with atomic additions: five products a tile. A program owns
128 keys of one KV head. One warp loads queries, their do and their numbers (lse, delta), 64 rows a step; two groups of
four warps have 64 keys each and keep their dk and dv. dq needs dS of all keys of the program: the groups exchange dS
through shared memory, each makes half the columns of dq, and the copy engine adds them to a float32 copy in memory.
So dq is not the same bits every time.

`ready` and `free` are the barriers of `flash_hopper.py`; `exchanged` completes when both groups have written dS. There
are two places for dS: who is a step ahead writes the other one.
"""

import torch
from triton._C.libtriton import ir
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language._core import builtin
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

from fdmath.kernels.flash_backward import check_saved, row_numbers
from fdmath.kernels.flash_call import DeviceOf, aligned, empty_rows, four_axes, prepare
from fdmath.kernels.flash_hopper import (
    GROUPS,
    LOADING_REGISTERS,
    REGISTERS,
    operand,
    outside,
    slot,
    tile,
    with_layout,
)
from fdmath.kernels.flash_tiles import place
from fdmath.kernels.merge import LOG2E

ROWS, KEYS, DIM = 64, 64, 128
"""Queries of a step, keys of a computing group, and the only head dimension."""
STAGES = 2


@builtin
def add_to_global(tensor, corner, rows, _semantic=None):
    """Nothing; the copy engine adds a tile in shared memory to the tensor: Gluon has no name of its own for it."""
    corner = _semantic._convert_to_ir_values(corner, require_i64=False)
    _semantic.builder.create_async_tma_reduce(ir.DESCRIPTOR_REDUCE_KIND.ADD, tensor.handle, corner, rows.handle)


@gluon.jit
def rows_of(step, first_head, first, tiles, GROUP: gl.constexpr, ROWS: gl.constexpr):
    """(head, start): the query head and the first row of a step: `tiles` tiles of one head, then of the next."""
    head, start = first_head, first + step * ROWS
    if GROUP > 1:
        head, start = first_head + step // tiles, first + step % tiles * ROWS
    return head, start


@gluon.jit
def load(
    q, k, v, do, lse2, delta, k_rows, v_rows, q_rows, do_rows, lse2_rows, delta_rows, keys_ready, ready, free,
    batch, kv_head, first_key, first, tiles,
    GROUP: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Nothing; the loading warp: the keys and values of the program, then the rows of every step."""
    mbarrier.expect(keys_ready, k.block_type.nbytes + GROUPS * v.block_type.nbytes)
    tma.async_copy_global_to_shared(k, [batch, kv_head, first_key, 0], keys_ready, k_rows)
    for part in gl.static_range(GROUPS):
        tma.async_copy_global_to_shared(v, [batch, kv_head, first_key + part * KEYS, 0], keys_ready, v_rows.index(part))
    for step in range(GROUP * tiles):
        head, start = rows_of(step, kv_head * GROUP, first, tiles, GROUP, ROWS)
        stage, parity = slot(step, STAGES)
        mbarrier.wait(free.index(stage), parity ^ 1)  # true at once for a barrier that has never completed
        mbarrier.expect(ready.index(stage), q.block_type.nbytes + do.block_type.nbytes + 2 * lse2.block_type.nbytes)
        tma.async_copy_global_to_shared(q, [batch, head, start, 0], ready.index(stage), q_rows.index(stage))
        tma.async_copy_global_to_shared(do, [batch, head, start, 0], ready.index(stage), do_rows.index(stage))
        tma.async_copy_global_to_shared(lse2, [batch, head, start], ready.index(stage), lse2_rows.index(stage))
        tma.async_copy_global_to_shared(delta, [batch, head, start], ready.index(stage), delta_rows.index(stage))


@gluon.jit
def numbers(rows, stage, ROWS: gl.constexpr, LAYOUT: gl.constexpr):
    """The numbers of a step's rows, (1, ROWS)."""
    plain = rows.index(stage)._reinterpret(rows.dtype, [ROWS], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    return plain.load(gl.SliceLayout(0, LAYOUT))[None, :]


@gluon.jit
def walk_down(
    dk, dv, dq, k_rows, v_rows, q_rows, do_rows, lse2_rows, delta_rows, ds_rows, dq_rows, ready, free, exchanged,
    batch, first_head, first_key, keys, offset, first, tiles, scale2,
    CAUSAL: gl.constexpr, TAIL: gl.constexpr, PART: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr,
    KEYS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr, LAYOUT: gl.constexpr, HALF_LAYOUT: gl.constexpr,
):  # fmt: skip
    """(dk, dv) with what `tiles` tiles of ROWS queries from `first` on add, for each query head of the group.

    PART: which of the two computing groups this is. All is transposed, (keys, queries), so that P and dS are left
    operands in registers; dq, which needs dS the other way round, takes it from shared memory.
    """
    k_own, v_own = k_rows.slice(PART * KEYS, KEYS, 0), tile(v_rows, PART)
    k_half = k_rows.slice(PART * (DIM // 2), DIM // 2, 1)
    key = first_key + gl.arange(0, KEYS, layout=gl.SliceLayout(1, LAYOUT))
    nothing = gl.zeros([KEYS, ROWS], gl.float32, LAYOUT)
    no_part = gl.zeros([ROWS, DIM // 2], gl.float32, HALF_LAYOUT)
    for step in range(GROUP * tiles):
        head, start = rows_of(step, first_head, first, tiles, GROUP, ROWS)
        stage, parity = slot(step, STAGES)
        place_of_ds, parity_of_ds = slot(step, 2)
        q_tile, do_tile, ds_tile = tile(q_rows, stage), tile(do_rows, stage), ds_rows.index(place_of_ds)
        mbarrier.wait(ready.index(stage), parity)
        s = warpgroup_mma(k_own, q_tile.permute([1, 0]), nothing, use_acc=False, is_async=True)
        dp = warpgroup_mma(v_own, do_tile.permute([1, 0]), nothing, use_acc=False, is_async=True)
        s = warpgroup_mma_wait(1, deps=[s])
        p = gl.exp2(s * scale2 - numbers(lse2_rows, stage, ROWS, LAYOUT))
        if CAUSAL:
            if start + offset < first_key + KEYS - 1:  # the first row does not see the last key
                row = start + gl.arange(0, ROWS, layout=gl.SliceLayout(0, LAYOUT))
                p = gl.where(key[:, None] <= row[None, :] + offset, p, 0.0)
        weights = operand(p, do_rows, dv)
        dv = warpgroup_mma(weights, do_tile, dv, is_async=True)
        dp = warpgroup_mma_wait(1, deps=[dp])
        ds = p * (dp - numbers(delta_rows, stage, ROWS, LAYOUT))
        if TAIL:  # a key beyond the end, which is read as zero, may have any P; its row of dk is not written
            ds = gl.where(key[:, None] < keys, ds, 0.0)
        ds_tile.slice(PART * KEYS, KEYS, 0).store(ds.to(q_rows.dtype))
        slopes = operand(ds, q_rows, dk)
        fence_async_shared()
        mbarrier.arrive(exchanged.index(place_of_ds))
        dk = warpgroup_mma(slopes, q_tile, dk, is_async=True)
        dv, weights = warpgroup_mma_wait(1, deps=[dv, weights])
        mbarrier.wait(exchanged.index(place_of_ds), parity_of_ds)
        part = warpgroup_mma(ds_tile.permute([1, 0]), k_half, no_part, use_acc=False, is_async=True)
        part, dk, slopes = warpgroup_mma_wait(0, deps=[part, dk, slopes])
        tma.store_wait(0)  # the part of the step before has left its place; after it the warps of the group meet
        mbarrier.arrive(free.index(stage))
        tile(dq_rows, PART).store(part)
        fence_async_shared()
        add_to_global(dq, [batch, head, start, PART * (DIM // 2)], dq_rows.index(PART))
    return dk, dv


@gluon.jit
def compute(
    dk, dv, dq, k_rows, v_rows, q_rows, do_rows, lse2_rows, delta_rows, ds_rows, dq_rows, keys_ready, ready, free,
    exchanged, batch, kv_head, first_key, keys, offset, first, tiles, scale, scale2,
    PART: gl.constexpr, CAUSAL: gl.constexpr, TAIL: gl.constexpr, GROUP: gl.constexpr, ROWS: gl.constexpr,
    KEYS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """Nothing; one computing group: dk and dv of its KEYS keys are written, its part of dq is added to dq."""
    layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    sum_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM, 16])
    half_layout: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, DIM // 2, 16])
    first_key += PART * KEYS
    dk_sum, dv_sum = gl.zeros([KEYS, DIM], gl.float32, sum_layout), gl.zeros([KEYS, DIM], gl.float32, sum_layout)
    mbarrier.wait(keys_ready, 0)
    dk_sum, dv_sum = walk_down(
        dk_sum, dv_sum, dq, k_rows.reshape([GROUPS * KEYS, DIM]), v_rows, q_rows, do_rows, lse2_rows, delta_rows,
        ds_rows, dq_rows, ready, free, exchanged, batch, kv_head * GROUP, first_key, keys, offset, first, tiles,
        scale2, CAUSAL, TAIL, PART, GROUP, ROWS, KEYS, DIM, STAGES, layout, half_layout,
    )  # fmt: skip

    v_tile = tile(v_rows, PART)  # the group alone has read its values, and no longer needs them
    v_tile.store(dv_sum.to(v_rows.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dv, [batch, kv_head, first_key, 0], v_rows.index(PART))
    tma.store_wait(0)
    v_tile.store((dk_sum * scale).to(v_rows.dtype))
    fence_async_shared()
    tma.async_copy_shared_to_global(dk, [batch, kv_head, first_key, 0], v_rows.index(PART))
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["kv_heads"])
def columns_kernel(
    q, k, v, do, lse2, delta, dk, dv, dq, scale, scale2, kv_heads, GROUP: gl.constexpr, CAUSAL: gl.constexpr,
    TAIL: gl.constexpr, ROWS: gl.constexpr, KEYS: gl.constexpr, DIM: gl.constexpr, STAGES: gl.constexpr,
):  # fmt: skip
    """dk and dv of GROUPS·KEYS keys of one KV head, summed over its query heads; their part of dq is added to dq.

    Descriptors: q and do of tiles (1, 1, ROWS, DIM), k of (1, 1, GROUPS·KEYS, DIM), v, dk and dv of (1, 1, KEYS, DIM),
    lse2 and delta (B, Hq, padded) of (1, 1, ROWS), dq (float32, without its scale) of (1, 1, ROWS, DIM/2). scale2 =
    scale·log₂e. TAIL: the last block of keys is not whole. Queries beyond the end add nothing: lse2 = +∞ there.
    """
    queries, keys = q.shape[2], k.shape[2]
    block, kv_head, batch = place(gl.cdiv(keys, GROUPS * KEYS), kv_heads)
    first_key, offset = block * (GROUPS * KEYS), keys - queries
    first = 0
    if CAUSAL:  # the first query that sees a key of the block
        first = gl.minimum(gl.maximum(first_key - offset, 0), queries) // ROWS * ROWS
    tiles = gl.cdiv(queries - first, ROWS)

    k_rows = gl.allocate_shared_memory(k.dtype, [1, 1, GROUPS * KEYS, DIM], k.layout)
    v_rows = gl.allocate_shared_memory(v.dtype, [GROUPS, 1, 1, KEYS, DIM], v.layout)
    q_rows = gl.allocate_shared_memory(q.dtype, [STAGES, 1, 1, ROWS, DIM], q.layout)
    do_rows = gl.allocate_shared_memory(do.dtype, [STAGES, 1, 1, ROWS, DIM], do.layout)
    lse2_rows = gl.allocate_shared_memory(lse2.dtype, [STAGES, 1, 1, ROWS], lse2.layout)
    delta_rows = gl.allocate_shared_memory(delta.dtype, [STAGES, 1, 1, ROWS], delta.layout)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout(128, 16, 2)
    ds_rows = gl.allocate_shared_memory(q.dtype, [2, GROUPS * KEYS, ROWS], ds_layout)
    dq_rows = gl.allocate_shared_memory(dq.dtype, [GROUPS, 1, 1, ROWS, DIM // 2], dq.layout)
    keys_ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    free = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    exchanged = gl.allocate_shared_memory(gl.int64, [2, 1], mbarrier.MBarrierLayout())
    mbarrier.init(keys_ready, count=1)
    for stage in gl.static_range(STAGES):
        mbarrier.init(ready.index(stage), count=1)
        mbarrier.init(free.index(stage), count=GROUPS)
    for stage in gl.static_range(2):
        mbarrier.init(exchanged.index(stage), count=GROUPS)

    gl.warp_specialize(
        [
            (compute, (dk, dv, dq, k_rows, v_rows, q_rows, do_rows, lse2_rows, delta_rows, ds_rows, dq_rows, keys_ready,
                       ready, free, exchanged, batch, kv_head, first_key, keys, offset, first, tiles, scale,
                       scale2, 0, CAUSAL, TAIL, GROUP, ROWS, KEYS, DIM, STAGES)),
            (compute, (dk, dv, dq, k_rows, v_rows, q_rows, do_rows, lse2_rows, delta_rows, ds_rows, dq_rows, keys_ready,
                       ready, free, exchanged, batch, kv_head, first_key, keys, offset, first, tiles, scale,
                       scale2, 1, CAUSAL, TAIL, GROUP, ROWS, KEYS, DIM, STAGES)),
            (load, (q, k, v, do, lse2, delta, k_rows, v_rows, q_rows, do_rows, lse2_rows, delta_rows, keys_ready,
                    ready, free, batch, kv_head, first_key, first, tiles, GROUP, ROWS, KEYS, STAGES)),
        ],
        [4, 1],
        [REGISTERS, LOADING_REGISTERS],
    )  # fmt: skip


def flash_backward_hopper(do, dlse, q, k, v, o, lse, *, causal=False, scale=None):
    """(dq, dk, dv) as `flash_backward` of `flash_backward.py` gives them with deterministic=False, on a Hopper card.

    Arguments as there; float16 or bfloat16, d and dv both from 65 to 128. dq is added up in float32 in an order of its
    own. P and dS are rounded to the inputs' dtype before their products.
    Raises TypeError for kinds, dtypes and devices, ValueError for shapes and values, RuntimeError for what the kernel
    does not take. Source: document B, Algorithm 2.
    """
    call = prepare(q, k, v, causal, scale)
    reason = outside(q.dtype, q.shape[-1], v.shape[-1], torch.cuda.get_device_capability(q.device), (DIM,))
    if reason:
        raise RuntimeError(f"the Hopper kernel cannot run here: {reason}")
    check_saved(do, dlse, q, v, o, lse)
    if call.is_empty:
        return tuple(torch.zeros_like(x) for x in (q, k, v))
    do, o = aligned(four_axes(do.to(q.dtype))), aligned(four_axes(o))
    dq, dk, dv = found = [empty_rows(x, x.shape) for x in (call.q, call.k, call.v)]
    with DeviceOf(q):
        numbers = row_numbers(do, None if dlse is None else dlse.contiguous(), o, lse.contiguous())
        launch_columns(call, do, *numbers, dk, dv, dq)
    return tuple(x.contiguous().view(like.shape) for x, like in zip(found, (q, k, v), strict=True))


def launch_columns(call, do, delta, lse2, dk, dv, dq):
    """Nothing; the gradients are written to dq, dk and dv, all `aligned`. call: a FlashCall; the rest as there."""
    batch, kv_heads, keys, _ = call.k.shape
    both = GROUPS.value * KEYS
    total = dq.new_zeros((*dq.shape[:-1], DIM), dtype=torch.float32)
    columns_kernel[(-(-keys // both) * kv_heads * batch,)](
        with_layout(call.q, ROWS), with_layout(call.k, both), with_layout(call.v, KEYS), with_layout(do, ROWS),
        row_descriptor(lse2), row_descriptor(delta), with_layout(dk, KEYS), with_layout(dv, KEYS),
        half_descriptor(total), call.scale, call.scale * LOG2E.value, kv_heads, GROUP=call.group, CAUSAL=call.hides,
        TAIL=keys % both > 0, ROWS=ROWS, KEYS=KEYS, DIM=DIM, STAGES=STAGES, num_warps=4,
    )  # fmt: skip
    torch.mul(total[..., :dq.shape[-1]], call.scale, out=dq)


def row_descriptor(x):
    """The descriptor of ROWS numbers of a contiguous x (B, Hq, padded), float32, in their plain order."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=0, element_bitwidth=32, rank=3)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, ROWS], layout)


def half_descriptor(x):
    """The descriptor of ROWS rows of half the columns of a contiguous x (B, Hq, Nq, DIM), float32."""
    layout = gl.NVMMASharedLayout(swizzle_byte_width=128, element_bitwidth=32, rank=4)
    return TensorDescriptor(x, list(x.shape), list(x.stride()), [1, 1, ROWS, DIM // 2], layout)
