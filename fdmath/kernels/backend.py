"""Split-KV attention by the Triton kernels, as `split_kv_attention` calls it; and what they cannot do, in words."""

import torch

from fdmath.algebra.merge import flat
from fdmath.algebra.state import LSEState
from fdmath.kernels import checks
from fdmath.kernels.split_kv import prepare

OUT = {"float16": torch.float16, "bfloat16": torch.bfloat16, "float32": torch.float32}


def refusal(q, k, v, *, kind=LSEState, order=flat, mask=None, stats_dtype=None, out_dtype=None, **_):
    """Why the kernels cannot run on these arrays, or do what is asked, as a text; an empty one where they can."""
    if mask is not None:
        return "its kernel takes no mask"
    if kind is not LSEState or order is not flat:
        return "its kernel merges pairs (kind=LSEState) at once (order=flat)"
    if _name(stats_dtype) not in (None, "float32") or _name(out_dtype) not in (None, *OUT):
        return "its kernel keeps statistics in float32 and writes float16, bfloat16 or float32"
    if torch.is_grad_enabled() and any(x.requires_grad for x in (q, k, v)):
        return "its kernel has no gradient"
    try:
        checks.check_inputs(q, k, v)
    except (TypeError, ValueError) as error:
        return str(error)
    return ""


def split_kv_by_kernel(q, k, v, *, tile, num_splits, causal, scale, out_dtype, **_):
    """The attention state (o, lse), as `split_kv_attention` gives it for what `refusal` lets through."""
    call = prepare(q, k, v, causal=causal, scale=scale)
    o = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=OUT.get(_name(out_dtype), q.dtype))
    lse = q.new_empty(q.shape[:-1], dtype=torch.float32)
    call.run(call.plan(num_splits, tile), o, lse)
    return LSEState(o, lse)


def _name(dtype):
    """The name of a format given as a dtype or a name; None for None."""
    return None if dtype is None else str(dtype).removeprefix("torch.")
