"""xFormers' merge_attentions and memory_efficient_attention_partial, which returns lse. Needs xformers and a GPU."""

from fdmath import _backends as backends
from fdmath.verify.installed.frames import padded, spread, swapped

fmha, masks = (backends.load("importlib:import_module")(f"xformers.ops.{name}") for name in ("fmha", "fmha.attn_bias"))


def merge_many(o, lse):
    """(o, lse) of merge_attentions in the role merge_many: a row of ours is a token of one head."""
    merged, level = fmha.merge_attentions(o[:, None, :, None], lse[:, None, None])  # (P, 1, R, 1, dv) and (P, 1, 1, R)
    return merged[0, :, 0], level[0, 0]


def attention(q, k, v, causal):
    """(o, lse) of memory_efficient_attention_partial in the role attention; heads are spread."""
    k, v = spread(q, k, v)
    q, k, v, scale, dv = padded(q, k, v, 8)
    bias = masks.LowerTriangularFromBottomRightMask() if causal else None
    o, lse = fmha.memory_efficient_attention_partial(*swapped(q, k, v), attn_bias=bias, scale=scale)
    return o.transpose(1, 2)[..., :dv], lse[..., : q.shape[-2]]
