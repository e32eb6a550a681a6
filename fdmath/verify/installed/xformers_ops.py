"""xFormers' merge_attentions and memory_efficient_attention_partial, which returns lse. Needs xformers and a GPU."""

from xformers.ops.fmha import memory_efficient_attention_partial, merge_attentions
from xformers.ops.fmha.attn_bias import LowerTriangularFromBottomRightMask

from fdmath.verify.installed.frames import padded, spread, swapped


def merge_many(o, lse):
    """(o, lse) of merge_attentions in the role merge_many: a row of ours is a token of one head."""
    merged, level = merge_attentions(o[:, None, :, None], lse[:, None, None])  # (P, 1, R, 1, dv) and (P, 1, 1, R)
    return merged[0, :, 0], level[0, 0]


def attention(q, k, v, causal):
    """(o, lse) of memory_efficient_attention_partial in the role attention; heads are spread."""
    k, v = spread(q, k, v)
    q, k, v, scale, dv = padded(q, k, v, 8)
    bias = LowerTriangularFromBottomRightMask() if causal else None
    o, lse = memory_efficient_attention_partial(*swapped(q, k, v), attn_bias=bias, scale=scale)
    return o.transpose(1, 2)[..., :dv], lse[..., : q.shape[-2]]
