"""PyTorch's own attention, by the operators underneath that return lse, and its math backend, which returns o alone.

scaled_dot_product_attention picks one of these and keeps lse to itself. Causal is the operators' own flag. Needs torch.
"""

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from fdmath.verify.installed.frames import added, in_use, padded, spread

ATEN = torch.ops.aten


class NotCalled(RuntimeError):
    """What an adapter raises in place of a call that would end the process."""


class NoResult(RuntimeError):
    """What an adapter raises where an operator returned None in place of a tensor."""


# -- on a CPU -----------------------------------------------------------------------------------------


def cpu_flash(q, k, v, causal, attn_mask=None):
    """(o, lse) of _scaled_dot_product_flash_attention_for_cpu in the role attention; attn_mask: added to the scores."""
    return _cpu_flash(q, k, v, causal, attn_mask)


def cpu_flash_decode(q, k, v, seq_lens, num_splits):
    """(o, lse) of the same in the role decode: the lengths are an additive mask, and it splits nothing."""
    return _cpu_flash(q, k, v, False, added(in_use(k, seq_lens), q))


def _cpu_flash(q, k, v, causal, bias):
    if not k.shape[-2]:  # seen in 2.13.0
        raise NotCalled("torch's CPU kernel divides by the number of keys: for none it ends the process (SIGFPE)")
    q, k, v, scale, dv = padded(q, k, v)
    o, lse = ATEN._scaled_dot_product_flash_attention_for_cpu(q, k, v, 0.0, causal, attn_mask=bias, scale=scale)
    return o[..., :dv], lse


def sdpa_math(q, k, v, causal):
    """o of scaled_dot_product_attention by its math backend in the role attention."""
    return _math(q, k, v, is_causal=causal)


def sdpa_math_decode(q, k, v, seq_lens, num_splits):
    """o of the same in the role decode: the lengths are a boolean mask, and it splits nothing."""
    return _math(q, k, v, attn_mask=in_use(k, seq_lens))


def _math(q, k, v, **options):
    with sdpa_kernel(SDPBackend.MATH):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, enable_gqa=True, **options)


# -- on a GPU -----------------------------------------------------------------------------------------


def cuda_flash(q, k, v, causal):
    """(o, lse) of _scaled_dot_product_flash_attention in the role attention."""
    q, k, v, scale, dv = padded(q, k, v, 8)
    o, lse, *_ = ATEN._scaled_dot_product_flash_attention(q, k, v, 0.0, causal, False, scale=scale)
    return o[..., :dv], lse[..., : q.shape[-2]]


def cuda_efficient(q, k, v, causal):
    """(o, lse) of _scaled_dot_product_efficient_attention in the role attention; heads are spread."""
    return _efficient(q, k, v, causal, None)


def cuda_efficient_decode(q, k, v, seq_lens, num_splits):
    """(o, lse) of the same in the role decode: the lengths are an additive mask, and it splits nothing."""
    mask = in_use(k, seq_lens).expand(-1, q.shape[1], 1, -1)
    return _efficient(q, k, v, False, added(mask, q))


def _efficient(q, k, v, causal, bias):
    rows, (k, v) = q.shape[-2], spread(q, k, v)
    q, k, v, scale, dv = padded(q, k, v, 8)
    o, lse, *_ = ATEN._scaled_dot_product_efficient_attention(q, k, v, bias, True, 0.0, causal, scale=scale)
    return o[..., :dv], lse[..., :rows]  # lse comes in rows of 32


def cuda_cudnn(q, k, v, causal):
    """(o, lse) of _scaled_dot_product_cudnn_attention in the role attention; heads are spread."""
    k, v = spread(q, k, v)
    q, k, v, scale, dv = padded(q, k, v, 8)
    o, lse, *_ = ATEN._scaled_dot_product_cudnn_attention(q, k, v, None, True, 0.0, causal, False, scale=scale)
    if o is None or lse is None:  # seen in 2.11.0 without keys
        raise NoResult(f"torch's cuDNN operator returned no result (None) for {k.shape[-2]} keys")
    return o[..., :dv], lse.reshape(q.shape[:-1])
