"""What a call needs before and after a kernel that takes fewer shapes than the house does: pads, heads, masks.

Every function takes and returns torch tensors; none of them changes what the call computes.
"""

import math

import torch


def padded(q, k, v, multiple=1):
    """(q, k, v, scale, dv) with d and dv filled up with zeros to one width, a multiple of `multiple`.

    Zeros change no score and no other column of o, of which the first dv are the call's; scale is that of the d
    that was given, 1/√d. What is that wide already is handed on as the view that it is.
    """
    d, dv = q.shape[-1], v.shape[-1]
    width = -(-max(d, dv) // multiple) * multiple
    return *(_widened(x, width) for x in (q, k, v)), 1 / math.sqrt(d), dv


def _widened(x, width):
    """x with zeros behind its last axis, whose numbers lie side by side: x itself, or a copy in row-major order.

    Kernels look at the strides of axes of length 0 and 1 too, which torch's `pad` would keep or guess: where v
    (1, 1, N, 1) is a view of (1, N, 1, 1) it puts heads one number apart, and FlashAttention-3's kernel ended so.
    """
    if x.shape[-1] == width and x.stride(-1) == 1:
        return x
    wide = x.new_zeros((*x.shape[:-1], width))
    wide[..., : x.shape[-1]] = x
    return wide


def spread(q, k, v):
    """k and v with a head for each query head, head h // g first given: for kernels that know no groups."""
    group = q.shape[1] // k.shape[1]
    return tuple(x.repeat_interleave(group, dim=1) for x in (k, v))


def swapped(*tensors):
    """The tensors with heads and tokens exchanged: (B, H, N, d) as (B, N, H, d), and back."""
    return tuple(x.transpose(1, 2) for x in tensors)


def in_use(k, seq_lens):
    """The boolean mask (B, 1, 1, N) of the keys in use."""
    return torch.arange(k.shape[-2], device=k.device) < seq_lens.to(k.device)[:, None, None, None]


def added(mask, like):
    """The mask as numbers to add to the scores, in the format of `like`: 0 where it is true, −∞ elsewhere.

    Its rows lie 8 numbers or a multiple of that apart in memory, which CUDA kernels want.
    """
    keys = mask.shape[-1]
    bias = torch.zeros((*mask.shape[:-1], -(-keys // 8) * 8 or 8), dtype=like.dtype, device=like.device)
    return bias[..., :keys].masked_fill_(~mask, -math.inf)
