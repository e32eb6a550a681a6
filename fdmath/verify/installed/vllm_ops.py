"""vLLM's merge_attn_states. Needs vllm and a GPU; written from its source, whose module has moved once."""

import torch

from fdmath import _backends as backends

try:
    merge_attn_states = backends.load("vllm.v1.attention.ops.merge_attn_states:merge_attn_states")
except ImportError:
    merge_attn_states = backends.load("vllm.attention.ops.merge_attn_states:merge_attn_states")


def merge(o1, lse1, o2, lse2):
    """(o, lse) of merge_attn_states in the role merge: o is (tokens, heads, d), lse (heads, tokens)."""
    wide = -o1.shape[-1] % 8  # it moves 16 bytes at a time
    a, b = (torch.nn.functional.pad(o, (0, wide))[:, None] for o in (o1, o2))
    o, lse = torch.full_like(a, torch.nan), torch.full_like(lse1, torch.nan)[None]
    merge_attn_states(o, a, lse1[None], b, lse2[None], lse)
    return o[:, 0, : o1.shape[-1]], lse[0]
