"""Attention of Hugging Face models by fdmath: prompts by `flash_attention`, single tokens by `split_kv_attention`.

    import fdmath.interop.transformers
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="fdmath")

Importing this module registers the name "fdmath", once with transformers' attention functions and once with its mask
functions: without the second a model passes no mask to an attention that it does not know, and padding is read.
`register` makes a name of another tile, split count, spelling or order. Needs the ``[model]`` extra.
"""

from functools import partial

import torch
import transformers
from transformers.masking_utils import causal_mask_function, sdpa_mask

from fdmath import _backends as backends
from fdmath.algebra.merge import check_order, flat
from fdmath.algebra.state import LSEState, check_kind
from fdmath.attention.decode import check_cut, choose_backend, split_kv_attention
from fdmath.attention.flash import flash_attention
from fdmath.attention.single import single_token_attention

FEW_QUERIES = 16
"""Most query tokens a sequence that split-KV takes; more are a prompt."""

BACKENDS = "auto", "torch", "triton"

UNSUPPORTED = {
    "dropout": "dropout of attention weights (training); call model.eval() or set attention_dropout=0",
    "output_attentions": "output_attentions, since the weights are never formed",
    "sliding_window": "sliding_window; if all layers have it and contexts fit in it, set config.sliding_window = None",
    "softcap": "softcap, a bound on the scores",
    "s_aux": "s_aux, attention sinks beside the keys",
    "position_bias": "position_bias, a number added to the scores",
}
"""What a model may ask of its attention and fdmath does not do: the argument's name, and words for the error."""


class Unsupported(NotImplementedError):
    """The model asks for a kind of attention that fdmath does not have."""


def register(tile=None, num_splits=None, kind=None, order=None, backend="auto", name="fdmath"):
    """Nothing; a model whose attn_implementation is `name` then computes its attention with fdmath.

    tile, num_splits, kind, order, backend: of `split_kv_attention`, for at most FEW_QUERIES query tokens a sequence;
    a longer prompt goes to `flash_attention` on the same backend. Where none of the first four is given, a single token
    in float32 on a CPU goes to `single_token_attention`, which is quicker: all keys are one part. Registering a
    name again replaces it for models that have it. Raises TypeError, ValueError as `split_kv_attention` does for these
    arguments; where the backend named cannot run, the first call raises RuntimeError.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}")
    check_cut(tile, num_splits)
    check_kind(LSEState if kind is None else kind)
    check_order(flat if order is None else order)
    options = {"tile": tile, "num_splits": num_splits, "kind": kind, "order": order, "backend": backend}
    options = {what: value for what, value in options.items() if value is not None}
    transformers.AttentionInterface.register(name, partial(attention_forward, options=options))
    transformers.AttentionMaskInterface.register(name, visible_keys)


def attention_forward(module, query, key, value, attention_mask, *, options, scaling=None, is_causal=None, **asked):
    """(o, None): o (B, Nq, Hq, dv) of query (B, Hq, Nq, d), key (B, Hkv, N, d), value (B, Hkv, N, dv); no weights.

    attention_mask: what `visible_keys` made, or a boolean mask of the caller's, (B, 1 or Hq, Nq, N), True = visible.
    Raises Unsupported for what UNSUPPORTED names, and for a mask of numbers to be added.
    """
    for feature, words in UNSUPPORTED.items():
        wish = asked.get(feature)
        if isinstance(wish, torch.Tensor) or wish:  # not so if it is absent, None, False or 0.0
            raise Unsupported(f"fdmath attention does not support {words}")
    call = partial(_attend, options=options, scale=scaling)
    starts = getattr(attention_mask, "starts", None)
    if starts is not None:
        o = _attend_padded(query, key, value, starts, call)
    elif attention_mask is None:
        causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
        o = call(query, key, value, causal=bool(causal))
    elif attention_mask.dtype == torch.bool:
        o = call(query, key, value, mask=attention_mask[..., :key.shape[-2]])
    else:
        raise Unsupported("fdmath attention does not support an attention mask of numbers to be added; give booleans")
    return o.transpose(1, 2).contiguous(), None


def _attend(query, key, value, *, options, **how):
    """o (B, Hq, Nq, dv) of one call: split-KV for few queries, FlashAttention-2 for more."""
    if query.shape[-2] == 1 and "mask" not in how and options == {"backend": "auto"}:
        state = single_token_attention(query, key, value, how["scale"])
        if state is not None:
            return state[0]
    if query.shape[-2] <= FEW_QUERIES:
        return split_kv_attention(query, key, value, **options, **how).o
    return flash_attention(query, key, value, backend=options["backend"], **how).o


def _attend_padded(query, key, value, starts, call):
    """o (B, Hq, Nq, dv), causal, where sequence b begins at key starts[b]; 0 for the queries before it.

    Each sequence is given its own keys alone, so that it is cut into the same tiles as it would be without the batch;
    on a GPU one kernel takes all sequences with their starts.
    """
    options = call.keywords["options"]
    if query.shape[-2] == 1 and _by_kernel(query, key, value, options):
        decode = backends.load("fdmath.kernels.split_kv:split_kv_decode")
        cut = {name: options[name] for name in ("tile", "num_splits") if name in options}
        return decode(query, key, value, seq_starts=starts, scale=call.keywords["scale"], **cut).o
    o = query.new_zeros((*query.shape[:-1], value.shape[-1]))
    for b, start in enumerate(starts.tolist()):
        rows = slice(max(0, start - (key.shape[-2] - query.shape[-2])), None)  # the last query stands at the last key
        own = query[b:b + 1, :, rows], key[b:b + 1, :, start:], value[b:b + 1, :, start:]
        o[b:b + 1, :, rows] = call(*own, causal=True)
    return o


def _by_kernel(query, key, value, options):
    """Whether the Triton kernel is what runs."""
    what = {name: options[name] for name in ("kind", "order") if name in options}
    return choose_backend(options["backend"], query, key, value, **what) == "triton"


def visible_keys(batch_size, q_length, kv_length, q_offset=0, kv_offset=0, mask_function=causal_mask_function,
                 attention_mask=None, allow_is_causal_skip=True, **others):
    """The mask that a model passes on to its attention: None, or a boolean tensor (B, 1, Nq, N), True = visible.

    None: causal, the last query at the last key, nothing padded. Where there is padding on the left and nothing else,
    the tensor has an attribute `starts`, (B,) integers: the first key of each sequence. Arguments as transformers
    passes them; attention_mask: (B, N), True where a token is no padding.
    """
    aligned = mask_function is causal_mask_function and kv_offset == 0 and _at_the_end(q_offset, q_length, kv_length)
    starts = _first_tokens(attention_mask, batch_size, kv_length) if aligned else None
    if starts is not None and not starts.any() and allow_is_causal_skip:
        return None
    mask = sdpa_mask(batch_size, q_length, kv_length, q_offset, kv_offset, mask_function, attention_mask,
                     allow_is_causal_skip=False, **others)
    if starts is not None:
        mask.starts = starts
    return mask


def _at_the_end(q_offset, q_length, kv_length):
    """Whether the last query stands at the last key; a static cache, whose offset is a tensor, has room behind it."""
    return not isinstance(q_offset, torch.Tensor) and q_offset + q_length == kv_length


def _first_tokens(tokens, batch, keys):
    """The first key of each sequence, (B,), where what precedes it is all the padding there is; None for another form.

    tokens: (B, N), True = no padding; None for no padding.
    """
    if tokens is None:
        return torch.zeros(batch, dtype=torch.int64)
    starts = tokens.int().argmax(dim=-1)
    on_the_left = torch.arange(keys, device=tokens.device) >= starts[:, None]
    return starts if torch.equal(tokens.bool(), on_the_left) else None


register()
