"""FlashAttention-2's backward pass as Triton kernels: P is made anew from q, k and lse; nothing of N² is stored.

1. `delta_kernel`: D = rowsum(do∘o) − dlse, and lse in base 2, once a row;
2. `columns_kernel`: a program owns a block of keys, walks over the queries that see it, of all query heads of its KV
   head, and keeps dk and dv (document B, Algorithm 2);
3. `rows_kernel`: a program owns a block of queries, walks over the keys, and keeps dq. No two programs add to one
   number, so that all is deterministic, for seven products a tile in place of five. With deterministic=False there is
   no third kernel: the second adds its part of dq to a float32 copy by atomic additions, as the paper does.

A row that sees no key, and a row beyond the end, has lse = +∞ here, so that P = 2^(s − ∞) = 0 (claims:F18).
"""

import math

import torch
import triton
import triton.language as tl

from fdmath.kernels.checks import check_flag
from fdmath.kernels.flash_call import (
    BLOCKS,
    DeviceOf,
    aligned,
    check_like,
    descriptor,
    empty_rows,
    four_axes,
    padded_axis,
    prepare,
)
from fdmath.kernels.flash_tiles import place, seen_by_rows, tile, visible_keys
from fdmath.kernels.merge import INTERPRETED, rounded

LOG2E = tl.constexpr(1 / math.log(2))


@triton.jit(do_not_specialize=["heads"])
def delta_kernel(o, do, dlse, lse, delta, lse2, heads, padded, ROWS: tl.constexpr, WIDTH: tl.constexpr):
    """delta = rowsum(do∘o) − dlse and lse2 = lse·log₂e of ROWS rows of one head; 0 and +∞ of a row without keys.

    o, do: descriptors; lse and dlse (None is zero) (B, heads, Nq), contiguous; delta, lse2 (B, heads, padded).
    """
    queries = o.shape[2]
    block, head, batch = place(tl.cdiv(padded, ROWS), heads)
    first_row, index = block * ROWS, (batch * heads + head).to(tl.int64)
    row = first_row + tl.arange(0, ROWS)
    level = tl.load(lse + index * queries + row, row < queries, float("-inf"))
    o_rows, do_rows = tile(o, batch, head, first_row, ROWS, WIDTH), tile(do, batch, head, first_row, ROWS, WIDTH)
    slope = tl.sum(o_rows.to(tl.float32) * do_rows.to(tl.float32), 1)
    if dlse is not None:
        slope -= tl.load(dlse + index * queries + row, row < queries, 0.0)
    tl.store(delta + index * padded + row, tl.where(level == float("-inf"), 0.0, slope))
    tl.store(lse2 + index * padded + row, tl.where(level == float("-inf"), float("inf"), level * LOG2E))


@triton.jit
def walk_down(
    dk, dv, k_rows, v_rows, q, do, lse2, delta, dq, batch, kv_head, key, keys, offset, first, tiles, padded, heads,
    scale, scale2, MASKED: tl.constexpr, GROUP: tl.constexpr, ATOMIC: tl.constexpr, ROWS: tl.constexpr,
    DIM: tl.constexpr, WIDTH: tl.constexpr,
):
    """(dk, dv) with what `tiles` tiles of ROWS queries from `first` on add, for each query head of the group in turn.

    All is transposed, (keys, queries), so that P and dS are left operands, which may stay in registers.
    """
    for step in range(0, GROUP * tiles):
        head, start = kv_head * GROUP, first + step * ROWS
        if GROUP > 1:
            head, start = head + step // tiles, first + step % tiles * ROWS
        row = start + tl.arange(0, ROWS)
        index = (batch * heads + head).to(tl.int64) * padded + row
        q_rows = tile(q, batch, head, start, ROWS, DIM)
        do_rows = tile(do, batch, head, start, ROWS, WIDTH)
        s = tl.dot(k_rows, q_rows.T, input_precision="ieee")
        p = tl.exp2(s * scale2 - tl.load(lse2 + index)[None, :])
        if MASKED:
            p = tl.where(key[:, None] <= row[None, :] + offset, p, 0.0)
        dv = tl.dot(rounded(p, q.dtype).to(do_rows.dtype), do_rows, dv, input_precision="ieee")
        dp = tl.dot(v_rows, do_rows.T, input_precision="ieee")
        ds = p * (dp - tl.load(delta + index)[None, :])
        if ATOMIC:  # a key beyond the end, which is read as zero, may have any P; its row of dk is not written
            ds = tl.where(key[:, None] < keys, ds, 0.0)
        ds = rounded(ds, q.dtype).to(q_rows.dtype)
        dk = tl.dot(ds, q_rows, dk, input_precision="ieee")
        if ATOMIC:
            part = tl.dot(k_rows.T, ds, input_precision="ieee").T * scale
            if INTERPRETED:  # which has no such addition by a descriptor
                dims = tl.arange(0, DIM)
                pointers = dq + ((batch * heads + head).to(tl.int64) * q.shape[2] + row)[:, None] * DIM + dims[None, :]
                tl.atomic_add(pointers, part, (row < q.shape[2])[:, None])
            else:
                dq.atomic_add([batch, head, start, 0], part.reshape(1, 1, ROWS, DIM))
    return dk, dv


@triton.jit(do_not_specialize=["kv_heads"])
def columns_kernel(
    q, k, v, do, lse2, delta, dk, dv, dq, scale, scale2, kv_heads, padded, GROUP: tl.constexpr, CAUSAL: tl.constexpr,
    ATOMIC: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
):
    """dk and dv of BLOCK keys of one KV head, summed over its query heads; if ATOMIC, their part of dq is added to dq.

    q, k, v, do, dk, dv: descriptors; dq float32, None if not ATOMIC; lse2, delta (B, Hq, padded); scale2 = scale·log₂e.
    Queries beyond the end add nothing, since lse2 = +∞ there; keys beyond the end get sums that are not written.
    """
    queries, keys = q.shape[2], k.shape[2]
    blocks = tl.cdiv(keys, BLOCK)
    block, kv_head, batch = place(blocks, kv_heads)
    first_key = block * BLOCK
    key, offset, heads = first_key + tl.arange(0, BLOCK), keys - queries, kv_heads * GROUP
    k_rows = tile(k, batch, kv_head, first_key, BLOCK, DIM)
    v_rows = tile(v, batch, kv_head, first_key, BLOCK, WIDTH)
    dk_sum = tl.zeros([BLOCK, DIM], tl.float32)
    dv_sum = tl.zeros([BLOCK, WIDTH], tl.float32)
    full, last = 0, tl.cdiv(queries, ROWS) * ROWS
    if CAUSAL:  # the first query that sees a key of the block, and the first that sees all: between a mask decides
        first = tl.maximum(first_key - offset, 0) // ROWS * ROWS
        full = tl.minimum(tl.cdiv(tl.maximum(first_key + BLOCK - 1 - offset, 0), ROWS) * ROWS, last)
        full = tl.maximum(full, first)  # never smaller; without these words ptxas (Triton 3.6) serialises all products
        dk_sum, dv_sum = walk_down(
            dk_sum, dv_sum, k_rows, v_rows, q, do, lse2, delta, dq, batch, kv_head, key, keys, offset, first,
            (full - first) // ROWS, padded, heads, scale, scale2, True, GROUP, ATOMIC, ROWS, DIM, WIDTH)
    dk_sum, dv_sum = walk_down(
        dk_sum, dv_sum, k_rows, v_rows, q, do, lse2, delta, dq, batch, kv_head, key, keys, offset, full,
        tl.cdiv(queries - full, ROWS), padded, heads, scale, scale2, False, GROUP, ATOMIC, ROWS, DIM, WIDTH)
    dk.store([batch, kv_head, first_key, 0], rounded(dk_sum * scale, dk.dtype).reshape(1, 1, BLOCK, DIM))
    dv.store([batch, kv_head, first_key, 0], rounded(dv_sum, dv.dtype).reshape(1, 1, BLOCK, WIDTH))


@triton.jit
def walk_right(
    dq, q_rows, do_rows, lse2_rows, delta_rows, k, v, batch, kv_head, row, offset, first, last, scale2,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
):
    """dq, without its scale, with what the keys first ≤ j < last add, BLOCK at a time."""
    for start in range(first, last, BLOCK):
        k_rows = tile(k, batch, kv_head, start, BLOCK, DIM)
        v_rows = tile(v, batch, kv_head, start, BLOCK, WIDTH)
        s = tl.dot(q_rows, k_rows.T, input_precision="ieee")
        p = tl.exp2(s * scale2 - lse2_rows[:, None])
        if MASKED:
            p = tl.where(visible_keys(start + tl.arange(0, BLOCK), row, k.shape[2], offset, CAUSAL), p, 0.0)
        dp = tl.dot(do_rows, v_rows.T, input_precision="ieee")
        ds = rounded(p * (dp - delta_rows[:, None]), k.dtype).to(k_rows.dtype)
        dq = tl.dot(ds, k_rows, dq, input_precision="ieee")
    return dq


@triton.jit(do_not_specialize=["heads"])
def rows_kernel(
    q, k, v, do, lse2, delta, dq, scale, scale2, heads, padded, GROUP: tl.constexpr, CAUSAL: tl.constexpr,
    TAIL: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
):
    """dq of ROWS queries of one head; arguments as for `columns_kernel`. TAIL: some tile needs a mask."""
    queries, keys = q.shape[2], k.shape[2]
    blocks = tl.cdiv(queries, ROWS)
    block, head, batch = place(blocks, heads)
    first_row = (blocks - 1 - block) * ROWS
    kv_head, row, offset = head // GROUP, first_row + tl.arange(0, ROWS), keys - queries
    full, last = seen_by_rows(first_row, ROWS, keys, offset, CAUSAL)
    full = full // BLOCK * BLOCK

    q_rows = tile(q, batch, head, first_row, ROWS, DIM)
    do_rows = tile(do, batch, head, first_row, ROWS, WIDTH)
    index = (batch * heads + head).to(tl.int64) * padded + row
    lse2_rows, delta_rows = tl.load(lse2 + index), tl.load(delta + index)
    dq_sum = tl.zeros([ROWS, DIM], tl.float32)
    dq_sum = walk_right(dq_sum, q_rows, do_rows, lse2_rows, delta_rows, k, v, batch, kv_head, row, offset, 0, full,
                        scale2, False, CAUSAL, BLOCK, DIM, WIDTH)
    if TAIL:
        dq_sum = walk_right(dq_sum, q_rows, do_rows, lse2_rows, delta_rows, k, v, batch, kv_head, row, offset, full,
                            last, scale2, True, CAUSAL, BLOCK, DIM, WIDTH)
    dq.store([batch, head, first_row, 0], rounded(dq_sum * scale, dq.dtype).reshape(1, 1, ROWS, DIM))


def flash_backward(do, dlse, q, k, v, o, lse, *, causal=False, scale=None, deterministic=True):
    """(dq, dk, dv) by FlashAttention-2 on a CUDA device, from the state (o, lse) that the forward call gave.

    q, k, v, causal, scale: those of the forward call. do: like o, (…, Hq, Nq, dv); dlse: like lse, (…, Hq, Nq),
    float32, natural logarithm, or None for zero. Gradients have the shapes and dtype of q, k and v; those of k and v
    are summed over the query heads of a group in float32. Rows that see no key get 0. P and dS are rounded to the
    inputs' dtype before their products, and so is do; P is made from lse, so that its relative error grows with |lse|.
    In float16 a do or a dS beyond 65504 becomes ∞, and the gradient ∞ or NaN, however moderate it would be; a dS below
    6e-5 loses digits, and below 3e-8 all (long rows have such: p ~ 1/N). Then bfloat16 is right, or a loss scaled by a
    power of two.
    deterministic: the same bits every time; else dq is added up by atomic additions in an order of its own.
    Raises TypeError for kinds, dtypes and devices, ValueError for shapes and values. Source: document B, Algorithm 2.
    """
    call, deterministic = prepare(q, k, v, causal, scale), check_flag("deterministic", deterministic)
    check_saved(do, dlse, q, v, o, lse)
    if call.is_empty:
        return tuple(torch.zeros_like(x) for x in (q, k, v))
    if call.causal and (blind := q.shape[-2] - k.shape[-2]) > 0:  # the first rows see no key, whatever they hold
        options = {"causal": True, "scale": scale, "deterministic": deterministic}
        slopes = do[..., blind:, :], None if dlse is None else dlse[..., blind:]
        seen, dk, dv = flash_backward(*slopes, q[..., blind:, :], k, v, o[..., blind:, :], lse[..., blind:], **options)
        return torch.nn.functional.pad(seen, (0, 0, blind, 0)), dk, dv
    do, o = aligned(four_axes(do.to(q.dtype))), aligned(four_axes(o))
    found = [empty_rows(x, x.shape) for x in (call.q, call.k, call.v)]
    with DeviceOf(q):
        numbers = row_numbers(do, None if dlse is None else dlse.contiguous(), o, lse.contiguous())
        if deterministic:
            launch_columns(call, do, *numbers, *found[1:])
            launch_rows(call, do, *numbers, found[0])
        else:
            launch_columns(call, do, *numbers, *found[1:], dq=found[0])
    return tuple(x.contiguous().view(like.shape) for x, like in zip(found, (q, k, v), strict=True))


def check_saved(do, dlse, q, v, o, lse):
    """Nothing; raises TypeError, ValueError for what does not belong to the forward call of q and v."""
    shape, single = (*q.shape[:-1], v.shape[-1]), torch.float32
    check_like("do", do, shape, {q.dtype, single}, q)
    check_like("o", o, shape, {q.dtype, single}, q)
    check_like("lse", lse, shape[:-1], {single}, q)
    if dlse is not None:
        check_like("dlse", dlse, shape[:-1], {single}, q)


def row_numbers(do, dlse, o, lse, rows=32):
    """(delta, lse2), (B, Hq, padded) float32: what the gradient needs once a row (`delta_kernel`), by `rows` rows."""
    batch, heads, queries, width = o.shape
    padded = -(-queries // BLOCKS[-1]) * BLOCKS[-1]
    delta, lse2 = lse.new_empty(2, batch, heads, padded)
    delta_kernel[(padded // rows * heads * batch,)](descriptor(o, rows), descriptor(do, rows), dlse, lse, delta, lse2,
                                                    heads, padded, ROWS=rows, WIDTH=padded_axis(width), num_warps=4)
    return delta, lse2


def launch_columns(call, do, delta, lse2, dk, dv, dq=None, tile=None):
    """Nothing; the gradients are written to dk and dv and, by atomic additions, to dq if it is given, all `aligned`.

    call: a FlashCall; tile: a Tile in place of the measured one.
    """
    batch, kv_heads, keys, _ = call.k.shape
    tile, total, target = tile or call.tile("columns" if dq is None else "atomic columns"), None, None
    if dq is not None:  # float32, as wide as a tile: what lies beyond d is never read
        total = dq.new_zeros((*dq.shape[:-1], padded_axis(dq.shape[-1])), dtype=torch.float32)
        target = total if INTERPRETED else descriptor(total, tile.block_m)
    columns_kernel[(-(-keys // tile.block_n) * kv_heads * batch,)](
        *_descriptors(call, do, tile), lse2, delta, descriptor(dk, tile.block_n), descriptor(dv, tile.block_n), target,
        call.scale, call.scale * LOG2E.value, kv_heads, delta.shape[2], ATOMIC=dq is not None, ROWS=tile.block_m,
        BLOCK=tile.block_n, num_warps=tile.warps, num_stages=tile.stages, **call.axes(),
    )  # fmt: skip
    if dq is not None:
        dq.copy_(total[..., :dq.shape[-1]])


def launch_rows(call, do, delta, lse2, dq, tile=None):
    """Nothing; the gradient is written to dq; arguments as for `launch_columns`."""
    batch, heads, queries, _ = call.q.shape
    tile = tile or call.tile("rows")
    rows_kernel[(-(-queries // tile.block_m) * heads * batch,)](
        *_descriptors(call, do, tile), lse2, delta, descriptor(dq, tile.block_m), call.scale, call.scale * LOG2E.value,
        heads, delta.shape[2], TAIL=call.hides or call.k.shape[2] % tile.block_n > 0, ROWS=tile.block_m,
        BLOCK=tile.block_n, num_warps=tile.warps, num_stages=tile.stages, **call.axes(),
    )  # fmt: skip


def _descriptors(call, do, tile):
    """Descriptors of q, k, v and do for a Tile."""
    m, n = tile.block_m, tile.block_n
    return [descriptor(x, rows) for x, rows in ((call.q, m), (call.k, n), (call.v, n), (do, m))]
