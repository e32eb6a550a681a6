"""⊕ of many pairs (o, lse) at once, as a Triton kernel: one row and one cut of its dv columns a program."""

import math

import torch
import triton
import triton.language as tl

from fdmath.algebra.state import LSEState
from fdmath.kernels import checks
from fdmath.kernels.plan import AT_ONCE

INTERPRETED = tl.constexpr(checks.INTERPRETED)
LOG2E = tl.constexpr(1 / math.log(2))


@triton.jit
def rounded(x, dtype: tl.constexpr):
    """x, which is float32, in the format `dtype`, rounded to the nearest, ties to even.

    Triton's interpreter cuts bits off on the way to bfloat16; there the bits that are kept are rounded first.
    """
    if INTERPRETED and dtype == tl.bfloat16:
        bits = x.to(tl.int32, bitcast=True)
        x = ((bits + 0x7FFF + ((bits >> 16) & 1)) & -0x10000).to(tl.float32, bitcast=True)
    return x.to(dtype)


def raised(dtype):
    """The power of two that weights carry in a format: 2¹⁴ in float16, where small ones would be lost, else 1."""
    return 2.0**14 if dtype == torch.float16 else 1.0


@triton.jit(do_not_specialize=["parts", "heads", "queries"])
def merge_kernel(
    o_parts, lse_parts, o, lse, parts, heads, queries,
    o_part, o_part_row, lse_part, lse_part_row, o_batch, o_head, o_query, lse_batch, lse_head, lse_query,
    WIDTH: tl.constexpr, CUT: tl.constexpr, PARTS: tl.constexpr, EARLY: tl.constexpr,
):
    """One row and CUT columns: o = Σ c_b·o_b / Σ c_b and lse = S + log Σ c_b, with c_b = e^(S_b − S), S = max S_b.

    o_parts (parts, rows, WIDTH) and lse_parts (parts, rows) by their strides; row = (batch·heads + head)·queries
    + query of o and lse. Parts are taken PARTS at a time; when S grows, the sums are moved to the new level.
    """
    row, columns = tl.program_id(0), tl.program_id(1) * CUT + tl.arange(0, CUT)
    if EARLY:  # this program may have been started while the parts were still being made: wait for them
        tl.extra.cuda.gdc_launch_dependents()
        tl.extra.cuda.gdc_wait()
    o_parts += row.to(tl.int64) * o_part_row
    lse_parts += row.to(tl.int64) * lse_part_row
    level, total = float("-inf"), 0.0
    acc = tl.zeros([CUT], tl.float32)
    for first in range(0, parts, PARTS):
        part = first + tl.arange(0, PARTS)
        there = part < parts
        inside = there[:, None] & (columns < WIDTH)[None, :]
        s = tl.load(lse_parts + part.to(tl.int64) * lse_part, mask=there, other=float("-inf")).to(tl.float32)
        y = tl.load(o_parts + part.to(tl.int64)[:, None] * o_part + columns[None, :], mask=inside, other=0.0)
        y = tl.where((s == float("-inf"))[:, None], 0.0, y.to(tl.float32))  # selected: an empty part may hold NaN
        top = tl.maximum(level, tl.max(s, 0))
        reference = tl.where(top == float("-inf"), 0.0, top)
        alpha = tl.exp2((level - reference) * LOG2E)
        c = tl.exp2((s - reference) * LOG2E)
        total = alpha * total + tl.sum(c, 0)
        acc = alpha * acc + tl.sum(c[:, None] * y, 0)
        level = top
    divisor = tl.where(total == 0, 1.0, total)
    query, head, batch = row % queries, (row // queries) % heads, (row // queries) // heads
    o += batch.to(tl.int64) * o_batch + head.to(tl.int64) * o_head + query.to(tl.int64) * o_query
    lse += batch.to(tl.int64) * lse_batch + head.to(tl.int64) * lse_head + query.to(tl.int64) * lse_query
    tl.store(o + columns, rounded(tl.div_rn(acc, divisor), o.dtype.element_ty), mask=columns < WIDTH)
    natural = rounded(level + tl.log(divisor), lse.dtype.element_ty)
    tl.store(lse, natural, mask=tl.program_id(1) == 0)


def merge_tile(parts, width, fixed=False):
    """(parts at a time, columns, warps) of a program that merges `parts` parts of rows of `width` columns.

    The more parts, the fewer columns, so that there are programs enough to read them (measured on an H200 for 2 to
    256 parts). fixed: the same columns and one warp for any number of parts, so that a sum is bracketed alike in all
    and absent parts, which are zeros, move no bit: a row does not see how many parts others have. On a GPU that holds
    where no product is fused with an addition, and is measured, not proved (tests/gpu). NumPy, which adds in the
    interpreter, brackets a sum by its length: there a program takes AT_ONCE parts, however few there are.
    """
    at_once = AT_ONCE if fixed and checks.INTERPRETED else min(1 << (parts - 1).bit_length(), AT_ONCE)
    columns = 32 if fixed or 4 < parts <= 8 else 128 if parts <= 4 else 16
    columns = min(1 << max(width - 1, 0).bit_length(), columns)
    return at_once, columns, 1 if fixed else max(1, at_once * columns // 512)


def launch_merge(o_parts, lse_parts, o, lse, fixed=False, early=False):
    """Nothing; the merge of the parts is written to o and lse.

    o_parts (P, R, dv), lse_parts (P, R); o (B, H, N, dv), lse (B, H, N) with B·H·N = R. Any strides but that of
    dv, which is 1. fixed: see `merge_tile`. early: the launch need not wait for the kernel before it; the kernel does.
    """
    parts, rows, width = o_parts.shape
    at_once, columns, warps = merge_tile(parts, width, fixed)
    merge_kernel[rows, max(1, -(-width // columns))](  # a row without columns has an lse
        o_parts, lse_parts, o, lse, parts, o.shape[1], o.shape[2],
        *o_parts.stride()[:2], *lse_parts.stride(), *o.stride()[:3], *lse.stride(),
        WIDTH=width, CUT=columns, PARTS=at_once, EARLY=early, num_warps=warps, enable_fp_fusion=False,
        **({"launch_pdl": True} if early else {}),
    )  # fmt: skip


def merge_states(o, lse):
    """The attention state (o, lse) of all parts together: ⊕ of any number of pairs, parts along the leading axis.

    o: (P, …, dv), lse: (P, …), P ≥ 1, torch tensors of float16, bfloat16 or float32 (each of its own), on a CUDA
    device or, in Triton's interpreter, the CPU; lse is the natural logarithm. The result, (…, dv) and (…), keeps both
    formats; work is in float32. A part with lse = −∞ changes nothing, bit for bit, whatever its o holds; lse = +∞
    gives NaN. Deterministic. One host call, no synchronisation. No gradient.
    Raises TypeError for other kinds, dtypes or devices, ValueError for shapes. Source: document A, 2.3.4.
    """
    checks.check_tensors(o=o, lse=lse)
    LSEState(o, lse)
    if o.ndim < 2 or o.shape[0] < 1:
        raise ValueError(f"o must have a leading axis of at least one part, (P, …, dv); got shape {tuple(o.shape)}")
    rows, width = lse[0].numel(), o.shape[-1]
    out = torch.empty(o.shape[1:], dtype=o.dtype, device=o.device)
    out_lse = torch.empty(lse.shape[1:], dtype=lse.dtype, device=o.device)
    flat = o.reshape(len(o), rows, width).contiguous(), lse.reshape(len(o), rows)
    if out_lse.numel():
        with torch.cuda.device_of(o):
            launch_merge(*flat, out.view(1, 1, rows, width), out_lse.view(1, 1, rows))
    return LSEState(out, out_lse)
