"""Stand-ins for packages that need a GPU: the signatures and layouts of their documentation, computed by fdmath.

They show that an adapter hands over and reads what its package documents; what the package computes they cannot show.
"""

import math
import sys
from types import ModuleType

import torch

from fdmath.algebra.merge import flat, merge_all
from fdmath.algebra.state import LSEState
from fdmath.attention.reference import attention


def install(monkeypatch, path, **functions):
    """Nothing; `import path` gives a module of these functions until the test ends, its parents are there too."""
    parts = path.split(".")
    for i in range(1, len(parts) + 1):
        name = ".".join(parts[:i])
        if name not in sys.modules:
            monkeypatch.setitem(sys.modules, name, ModuleType(name))
    module = ModuleType(path)
    for name, function in functions.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, path, module)


def _attend(q, k, v, scale, causal=False):
    return tuple(attention(q, k, v, causal=causal, scale=scale))


def _merged(o, lse):
    """(o, lse) of stacked parts (P, …, dv), (P, …)."""
    return tuple(merge_all(LSEState(o, lse), flat))


# -- flashinfer: lse in base 2 ------------------------------------------------------------------------


def merge_state(v_a, s_a, v_b, s_b):
    assert v_a.ndim == 3 and s_a.shape == v_a.shape[:2] and s_a.dtype == torch.float32
    assert v_a.shape[-1] % 64 == 0
    o, lse = _merged(torch.stack([v_a, v_b]), torch.stack([s_a, s_b]) * math.log(2))
    return o, lse / math.log(2)


def merge_states(v, s):
    assert v.ndim == 4 and s.shape == v.shape[:3] and v.is_contiguous() and s.is_contiguous()
    o, lse = _merged(v.transpose(0, 1), s.transpose(0, 1) * math.log(2))
    return o, lse / math.log(2)


def single_decode_with_kv_cache(q, k, v, kv_layout="NHD", sm_scale=None, return_lse=False):
    assert q.ndim == 2 and q.shape[-1] in (64, 128, 256) and kv_layout == "HND" and return_lse
    o, lse = _attend(q[:, None], k, v, sm_scale)
    return o[:, 0], lse[:, 0] / math.log(2)


# -- flash_attn and fa3_fwd: (B, N, H, d), lse (B, H, N) ------------------------------------------------


def flash_attn_func(q, k, v, softmax_scale=None, causal=False, num_splits=1, return_attn_probs=False):
    assert q.shape[-1] == v.shape[-1] and q.shape[-1] % 8 == 0 and return_attn_probs
    o, lse = _attend(*(x.transpose(1, 2) for x in (q, k, v)), softmax_scale, causal)
    return o.transpose(1, 2), lse


def flash_attn_func_2(q, k, v, softmax_scale=None, causal=False, return_attn_probs=False):
    return *flash_attn_func(q, k, v, softmax_scale, causal, 1, return_attn_probs), None


# -- xformers: (B, M, H, K), lse (B, H, M) in rows that may be longer ------------------------------------


class LowerTriangularFromBottomRightMask:
    pass


def memory_efficient_attention_partial(query, key, value, attn_bias=None, scale=None):
    assert query.shape[2] == key.shape[2] == value.shape[2]
    causal = isinstance(attn_bias, LowerTriangularFromBottomRightMask)
    o, lse = _attend(*(x.transpose(1, 2) for x in (query, key, value)), scale, causal)
    return o.transpose(1, 2), torch.nn.functional.pad(lse, (0, 5), value=math.nan)


def merge_attentions(attn_split, lse_split):
    parts, batch, tokens, heads, _ = attn_split.shape
    assert lse_split.shape == (parts, batch, heads, tokens)
    o, lse = _merged(attn_split.transpose(2, 3), lse_split)
    return o.transpose(1, 2), lse


# -- vllm: o (tokens, heads, d), lse (heads, tokens), results into what is given -------------------------


def merge_attn_states(output, prefix_output, prefix_lse, suffix_output, suffix_lse, output_lse=None):
    assert prefix_lse.shape == prefix_output.shape[1::-1] and output.shape[-1] % 8 == 0
    o, lse = _merged(*(torch.stack(x) for x in ((prefix_output, suffix_output), (prefix_lse.T, suffix_lse.T))))
    output.copy_(o)
    output_lse.copy_(lse.T)


# -- torch.ops.aten on a GPU ------------------------------------------------------------------------------


class Aten:
    """The operators of torch.ops.aten that need a GPU, with the extra results and the longer rows of lse they have."""

    @staticmethod
    def _scaled_dot_product_flash_attention(q, k, v, dropout, causal, debug, scale):
        return *_attend(_wide(q), k, v, scale, causal), None, None

    @staticmethod
    def _scaled_dot_product_efficient_attention(q, k, v, bias, with_lse, dropout, causal, scale):
        assert q.shape[1] == k.shape[1] and with_lse
        if bias is None:
            o, lse = _attend(_wide(q), k, v, scale, causal)
        else:
            assert all(step % 8 == 0 for step, size in zip(bias.stride()[:-1], bias.shape, strict=False) if size > 1)
            o, lse = attention(_wide(q), k, v, scale=scale, mask=bias == 0)
        return o, torch.nn.functional.pad(lse, (0, -lse.shape[-1] % 32), value=math.inf), None, None

    @staticmethod
    def _scaled_dot_product_cudnn_attention(q, k, v, bias, with_lse, dropout, causal, debug, scale):
        assert q.shape[1] == k.shape[1] and bias is None and with_lse
        o, lse = _attend(_wide(q), k, v, scale, causal)
        return o, lse[..., None], None


def _wide(q):
    assert q.shape[-1] % 8 == 0
    return q
