"""What the FlashAttention-2 kernels share on the device: which block is a program's, its tiles, and who sees what."""

import triton
import triton.language as tl

from fdmath.kernels.merge import INTERPRETED


@triton.jit
def place(blocks, heads):
    """(block, head, batch) of a program: the blocks of a head follow each other, then come the other heads."""
    program = tl.program_id(0)
    return program % blocks, program // blocks % heads, program // blocks // heads


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


@triton.jit
def seen_by_rows(first_row, ROWS: tl.constexpr, keys, offset, CAUSAL: tl.constexpr):
    """(full, last): each of ROWS rows sees the keys j < full, and none a key j ≥ last; between a mask decides."""
    full, last = keys, keys
    if CAUSAL:
        full = tl.minimum(tl.maximum(first_row + 1 + offset, 0), keys)
        last = tl.minimum(tl.maximum(first_row + ROWS + offset, 0), keys)
    return full, last
