"""What the FlashAttention-2 kernels share on the device: a tile read by its descriptor, and who sees what in it."""

import triton
import triton.language as tl

from fdmath.kernels.merge import INTERPRETED


@triton.jit
def tile(tensor, batch, head, start, ROWS: tl.constexpr, DIM: tl.constexpr):
    """The rows start ≤ i < start + ROWS of one head, (ROWS, DIM), zeros beyond the end; float32 in the interpreter.

    The interpreter multiplies bfloat16 wrongly.
    """
    rows = tensor.load([batch, head, start, 0]).reshape(ROWS, DIM)
    if INTERPRETED:
        rows = rows.to(tl.float32)
    return rows


@triton.jit
def visible_keys(key, row, keys, offset, CAUSAL: tl.constexpr):
    """Whether row i sees key j, (rows, keys): j < keys and, if CAUSAL, j ≤ i + offset, offset = Nkv − Nq."""
    seen = (key < keys)[None, :]
    if CAUSAL:
        seen = seen & (key[None, :] <= row[:, None] + offset)
    return seen
