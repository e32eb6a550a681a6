"""What Hugging Face transformers calls "eager" and "sdpa", with the masks that it makes for them; o alone.

Its masks are bottom-right aligned, with the least finite number where eager must not look. Needs transformers ≥ 5.
"""

from types import SimpleNamespace

import torch
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import causal_mask_function, eager_mask, sdpa_mask
from transformers.models.llama.modeling_llama import eager_attention_forward


def eager(q, k, v, causal):
    """o of Llama's eager_attention_forward in the role attention."""
    return _call(eager_attention_forward, q, k, v, _mask(eager_mask, q, k) if causal else None)


def eager_decode(q, k, v, seq_lens, num_splits):
    """o of the same in the role decode, the lengths in its mask."""
    return _call(eager_attention_forward, q, k, v, _mask(eager_mask, q, k, seq_lens))


def sdpa(q, k, v, causal):
    """o of sdpa_attention_forward in the role attention."""
    return _call(sdpa_attention_forward, q, k, v, _mask(sdpa_mask, q, k) if causal else None, is_causal=False)


def sdpa_decode(q, k, v, seq_lens, num_splits):
    """o of the same in the role decode, the lengths in its mask."""
    return _call(sdpa_attention_forward, q, k, v, _mask(sdpa_mask, q, k, seq_lens), is_causal=False)


def _mask(make, q, k, seq_lens=None):
    """The mask that transformers makes of a cache of k's length, of which seq_lens are in use."""
    rows, keys = q.shape[-2], k.shape[-2]
    used = None
    if seq_lens is not None:
        used = torch.arange(keys, device=q.device) < seq_lens.to(q.device)[:, None]
    return make(batch_size=q.shape[0], q_length=rows, kv_length=keys, q_offset=keys - rows, dtype=q.dtype,
                mask_function=causal_mask_function, attention_mask=used, allow_is_causal_skip=False, device=q.device)


def _call(forward, q, k, v, mask, **options):
    module = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], training=False)
    o, _ = forward(module, q, k, v, mask, scaling=q.shape[-1] ** -0.5, dropout=0.0, **options)
    return o.transpose(1, 2)
