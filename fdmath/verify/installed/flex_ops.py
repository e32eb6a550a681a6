"""FlexAttention with lse, and the mask that its documentation calls causal: query i sees the keys j ≤ i. Needs torch.

Not compiled: its shapes change with every input of a law, and a compilation takes seconds. What is judged is the
definition of FlexAttention that PyTorch runs then; `fdmath bench decode` runs the compiled one at a shape.
"""

from torch.nn.attention.flex_attention import AuxRequest, create_block_mask, flex_attention


def attention(q, k, v, causal, score_mod=None):
    """(o, lse) of flex_attention in the role attention; score_mod: FlexAttention's own."""
    mask = _mask(lambda b, h, i, j: i >= j, q, k, None) if causal and k.shape[-2] else None
    return _flex(q, k, v, mask, score_mod)


def decode(q, k, v, seq_lens, num_splits):
    """(o, lse) of flex_attention in the role decode: the lengths are its mask, and it splits nothing."""
    lens = seq_lens.to(k.device)
    return _flex(q, k, v, _mask(lambda b, h, i, j: j < lens[b], q, k, len(lens)))


def _mask(sees, q, k, batch):
    return create_block_mask(sees, batch, None, q.shape[-2], k.shape[-2], device=q.device)


def _flex(q, k, v, mask, score_mod=None):
    grouped = q.shape[1] != k.shape[1]
    o, more = flex_attention(q, k, v, score_mod, mask, enable_gqa=grouped, return_aux=AuxRequest(lse=True))
    return o, more.lse
