"""FlashAttention-2 and -3 as published by their authors. Needs flash_attn, or fa3_fwd, and a GPU."""

from fdmath import _backends as backends
from fdmath.verify.installed.frames import padded, swapped


def attention2(q, k, v, causal):
    """(o, lse) of flash_attn_func in the role attention."""
    return _attend("flash_attn:flash_attn_func", q, k, v, causal, 8)


def attention3(q, k, v, causal):
    """(o, lse) of FlashAttention-3's flash_attn_func in the role attention, its splits its own choice."""
    return _attend("fa3_fwd_interface:flash_attn_func", q, k, v, causal, 64, num_splits=0)


def _attend(path, q, k, v, causal, multiple, **options):
    q, k, v, scale, dv = padded(q, k, v, multiple)
    attend = backends.load(path)
    o, lse, *_ = attend(*swapped(q, k, v), softmax_scale=scale, causal=causal, return_attn_probs=True, **options)
    return o.transpose(1, 2)[..., :dv], lse[..., : q.shape[-2]]
