"""FlashAttention-2 as Triton kernels: the forward pass, and the call that is differentiable in o and in lse.

A program owns a block of queries and walks over the keys (document B, loop order). Tiles that all its rows see whole
come first; tiles that the causal diagonal or the last key cuts come after, with a mask; tiles that no row sees are
never read. Tensors come as descriptors: the copy engine moves whole tiles, with 64-bit addresses, over any strides,
and what lies beyond an end is read as zero. Where there is no copy engine Triton makes pointers of them.

Scores carry the factor log₂e inside, because hardware computes 2^x; lse is natural wherever it is stored.
"""

import math
from functools import partial

import torch
import triton
import triton.language as tl

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState
from fdmath.attention.differentiable import with_gradient
from fdmath.kernels.flash_backward import flash_backward
from fdmath.kernels.flash_call import DeviceOf, descriptor, empty_rows, prepare, refusal
from fdmath.kernels.flash_tiles import place, seen_by_rows, tile, visible_keys
from fdmath.kernels.merge import INTERPRETED, raised, rounded

__all__ = ["flash_attention_by_kernel", "flash_backward", "flash_forward", "refusal"]

HOPPER = "fdmath.kernels.flash_hopper:"
LOG2E = 1 / math.log(2)
LN2 = tl.constexpr(math.log(2))


@triton.jit
def attend(
    m, l, acc, q_rows, k, v, batch, kv_head, row, offset, first, last, scale,
    MASKED: tl.constexpr, CAUSAL: tl.constexpr, BLOCK: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr,
    RAISED: tl.constexpr,
):
    """(m, l, acc) after the keys first ≤ j < last, BLOCK at a time; what a row does not see is hidden if MASKED.

    A row without a score above −∞ so far keeps m = −∞; the level that it is measured from is then 0. acc is RAISED, a
    power of two, times the sum, as P is while it is in v's format.
    """
    for start in range(first, last, BLOCK):
        s = tl.dot(q_rows, tile(k, batch, kv_head, start, BLOCK, DIM).T, input_precision="ieee")
        if MASKED:
            s = tl.where(visible_keys(start + tl.arange(0, BLOCK), row, k.shape[2], offset, CAUSAL), s * scale,
                         float("-inf"))
            top = tl.maximum(m, tl.max(s, 1))
            reference = tl.where(top == float("-inf"), 0.0, top)
            p = tl.exp2(s - reference[:, None])
        else:  # scale > 0: the largest score may be scaled alone, and every score in the subtraction that it needs
            top = tl.maximum(m, tl.max(s, 1) * scale)
            reference = tl.where(top == float("-inf"), 0.0, top)
            p = tl.exp2(s * scale - reference[:, None])
        alpha = tl.exp2(m - reference)
        l = alpha * l + tl.sum(p, 1)
        v_rows = tile(v, batch, kv_head, start, BLOCK, WIDTH)
        p = rounded(p * RAISED, v.dtype).to(v_rows.dtype)
        acc = tl.dot(p, v_rows, acc * alpha[:, None], input_precision="ieee")
        m = top
    return m, l, acc


@triton.jit(do_not_specialize=["heads"])
def forward_kernel(
    q, k, v, o, lse, scale, heads, GROUP: tl.constexpr, CAUSAL: tl.constexpr, TAIL: tl.constexpr, ROWS: tl.constexpr,
    BLOCK: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, RAISED: tl.constexpr,
):
    """The state (o, lse) of ROWS queries of one head (document B, Algorithm 1, repaired for rows that see no key).

    q, k, v, o: descriptors of tiles (1, 1, rows, dim); lse (B, heads, Nq), contiguous. scale holds log₂e. TAIL: some
    tile needs a mask. The blocks that see the most keys are started first.
    """
    queries, keys = q.shape[2], k.shape[2]
    blocks = tl.cdiv(queries, ROWS)
    block, head, batch = place(blocks, heads)
    first_row = (blocks - 1 - block) * ROWS
    kv_head, row, offset = head // GROUP, first_row + tl.arange(0, ROWS), keys - queries
    full, last = seen_by_rows(first_row, ROWS, keys, offset, CAUSAL)
    full = tl.where(scale > 0, full // BLOCK * BLOCK, 0)

    q_rows = tile(q, batch, head, first_row, ROWS, DIM)
    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTH], tl.float32)
    m, l, acc = attend(m, l, acc, q_rows, k, v, batch, kv_head, row, offset, 0, full, scale,
                       False, CAUSAL, BLOCK, DIM, WIDTH, RAISED)
    if TAIL:
        m, l, acc = attend(m, l, acc, q_rows, k, v, batch, kv_head, row, offset, full, last, scale,
                           True, CAUSAL, BLOCK, DIM, WIDTH, RAISED)

    divisor = tl.where(l == 0, 1.0, l)
    result = acc * tl.div_rn(1.0, divisor * RAISED)[:, None]
    result = tl.where((l == 0)[:, None], 0.0, result)  # selected: 0 times a NaN that others of the rows see is in acc
    result = rounded(result, o.dtype)
    o.store([batch, head, first_row, 0], result.reshape(1, 1, ROWS, WIDTH))
    lse += (batch * heads + head).to(tl.int64) * queries
    tl.store(lse + row, (m + tl.log2(divisor)) * LN2, row < queries)


def flash_forward(q, k, v, *, causal=False, scale=None, block_m=None, block_n=None):
    """The attention state (o, lse) by FlashAttention-2 on a CUDA device.

    q: (…, Hq, Nq, d), k: (…, Hkv, Nkv, d), v: (…, Hkv, Nkv, dv), of one dtype, float16, bfloat16 or float32 (multiplied
    in full float32, slowly); d and dv from 1 to 256. Any strides; where they are not multiples of 16 bytes, or d is not
    contiguous, a tensor is copied first. o: (…, Hq, Nq, dv) in q's dtype, lse: (…, Hq, Nq), natural logarithm, float32;
    a row that sees no key is (0, −∞). causal: bottom-right aligned. block_m, block_n: queries and keys a tile (16, 32,
    64 or 128; measured defaults). P, 2¹⁴ times P in float16, is rounded to v's dtype before P·v, and l sums the
    unrounded P. Deterministic; no synchronisation; no gradient (`flash_attention_by_kernel` has one). Not promised:
    q·k, scale·q·k or that times log₂e beyond float32's range, though the score itself would be finite.
    Raises TypeError for kinds, dtypes and devices, ValueError for shapes and values. Source: document B, Algorithm 1.
    """
    call = prepare(q, k, v, causal, scale)
    tile = call.tile("forward", block_m, block_n)
    shape = (*q.shape[:-1], v.shape[-1])
    lse = q.new_empty(shape[:-1], dtype=torch.float32)
    if call.is_empty:
        return LSEState(q.new_zeros(shape), lse.fill_(-math.inf))
    o = empty_rows(call.q, (*call.q.shape[:-1], shape[-1]))
    launch_forward(call, tile, o, lse)
    return LSEState(o.contiguous().view(shape), lse)


def launch_forward(call, tile, o, lse):
    """Nothing; the state of a FlashCall is written to o (B, Hq, Nq, dv), which is `aligned`, and lse, contiguous."""
    batch, heads, queries, _ = call.q.shape
    tail = call.needs_mask(tile.block_n)
    with DeviceOf(call.q):
        forward_kernel[(-(-queries // tile.block_m) * heads * batch,)](
            descriptor(call.q, tile.block_m), descriptor(call.k, tile.block_n), descriptor(call.v, tile.block_n),
            descriptor(o, tile.block_m), lse, call.scale * LOG2E, heads, TAIL=tail, ROWS=tile.block_m,
            BLOCK=tile.block_n, RAISED=raised(call.v.dtype), num_warps=tile.warps, num_stages=tile.stages,
            **call.axes(),
        )  # fmt: skip


def flash_attention_by_kernel(q, k, v, causal, scale, *, fastest=False):
    """The attention state (o, lse) as `flash_forward` gives it, differentiable once, in o and in lse.

    fastest: by the kernel for Hopper cards where it pays (`flash_hopper.pays`); the gradients are those of
    `flash_backward` all the same, the same bits every time. What gradients in float16 cannot hold: there.
    """
    options, forward = {"causal": causal, "scale": scale}, flash_forward
    if fastest and not INTERPRETED and backends.load(HOPPER + "pays")(q, k, v, causal):
        forward = backends.load(HOPPER + "flash_forward_hopper")
    return LSEState(*with_gradient("flash_attention", lambda *x: tuple(forward(*x, **options)),
                                   partial(flash_backward, **options), q, k, v))
