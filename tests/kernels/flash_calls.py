"""Calls of the FlashAttention kernels to try, and the budgets of o, lse and the gradients that judge them."""

import contextlib
import math

import numpy as np
import torch

from fdmath import AccState, merge_all, partial_state, sequential
from fdmath.algebra.rounding import Budget, block_budget, finish_budget, fold_budget, format_of, score_error
from fdmath.attention.decode import key_ranges
from fdmath.attention.gradient_budget import gradient_budget
from fdmath.attention.reference import attention_gradient
from fdmath.verify.kernels import FLUSHED
from tests.algebra.judgement import judge
from tests.attention.calls import CALLS, Call, numbers, random_call

FLASH = {
    **{name: call for name, call in CALLS.items() if call.mask is None and call.v.shape[-1]},
    "several blocks both ways": random_call(51, (2, 2), 37, 53, 24, 40),
    "several blocks, causal, 3 heads a KV head": random_call(52, (6, 2), 37, 53, 16, causal=True),
    "several blocks, causal, empty rows": random_call(53, (2, 1), 45, 19, 16, 5, causal=True),
    "whole blocks": random_call(54, (2, 1), 32, 48, 32, causal=True),
    "a negative scale, causal": random_call(55, (2, 1), 20, 35, 16, causal=True, scale=-0.7),
}
"""Calls without a mask, which the kernels do not take."""

FAR = Call(np.full((2, 20, 16), 8.0), -8 - np.random.default_rng(56).integers(0, 8, (2, 35, 16)) / 16,
           numbers(np.random.default_rng(57), 2, 35, 16), scale=1.0)
"""Scores near −1000: a key beyond the end, read as zeros, has weight e^1000."""


def tensors(call, dtype, device="cpu"):
    """q, k and v of a call as torch tensors."""
    return [torch.from_numpy(x).to(device, getattr(torch, dtype)) for x in (call.q, call.k, call.v)]


def output_gradients(call, dtype, device="cpu", seed=5):
    """(do, dlse): random gradients of a call's o and lse, which every format holds."""
    rng = np.random.default_rng(seed)
    do, dlse = numbers(rng, *call.q.shape[:-1], call.v.shape[-1]), numbers(rng, *call.q.shape[:-1])
    return torch.from_numpy(do).to(device, getattr(torch, dtype)), torch.from_numpy(dlse).to(device, torch.float32)


def state_budget(call, dtype, block_n=16):
    """The Budget of the kernel's o and lse: of triples folded tile by tile (T6), and what the kernel adds.

    It adds the rounding of P to a 16-bit format, and of the factor log₂e in the scores and back out of lse.
    """
    fmt, rounded = format_of("float32"), None if dtype == "float32" else dtype
    k, v = call.repeated()
    scores = call.factor() * (call.q @ np.swapaxes(k, -1, -2))
    seen = call.visible()
    error = np.where(seen, score_error(call.q, k, call.factor(), fmt) + 3 * fmt.u * np.abs(scores), 0.0)
    scores = np.where(seen, scores, -math.inf)
    parts, errors = [], []
    for start, stop in key_ranges(k.shape[-2], block_n):
        block, held, lost = scores[..., start:stop], v[..., start:stop, :], error[..., start:stop]
        parts.append(partial_state(block, held, AccState))
        of_o = block_budget(block, held, fmt, lost, pair=False, p_dtype=rounded).o
        errors.append(Budget(of_o, block_budget(block, held, fmt, lost, pair=False).lse))
    whole = merge_all(parts, sequential)
    found = finish_budget(whole, fold_budget(parts, sequential, fmt, errors), fmt, format_of(dtype), pair=False)
    lse = whole.finalize().lse
    return Budget(found.o, found.lse + 3 * fmt.u * np.where(np.isinf(lse), 0.0, np.abs(lse)))


def judge_state(call, dtype, state, block_n=16):
    """The ratios of error to budget of o and lse; fails where one exceeds 1. block_n: the keys a tile had."""
    o, lse = (x.detach().cpu().double().numpy() for x in state)
    return judge(call.certified(), type(state)(o, lse), state_budget(call, dtype, block_n))


def judge_gradients(call, dtype, do, dlse, found, block_n=16):
    """The largest ratio of error to budget of (dq, dk, dv); fails where one exceeds 1. block_n: of the forward call.

    The budget is `gradient_budget` in float32 for a saved state that errs by its own budget, and what the kernels add:
    the factor log₂e in the scores and in lse (3u of each), and the rounding of P, of dS and of the gradients to a
    16-bit format.
    """
    q, k, v = (np.float32(x) for x in (call.q, call.k, call.v))
    do, dlse = (x.detach().cpu().double().numpy() for x in (do, dlse))
    fine, out = format_of("float32"), format_of(dtype)
    saved = state_budget(call, dtype, block_n)
    keys, _ = call.repeated()
    scores = np.abs(call.factor() * (call.q @ np.swapaxes(keys, -1, -2)))
    shift = saved.lse + 3 * fine.u * (np.max(scores, axis=-1, initial=0.0) + math.log(max(k.shape[-2], 1)))
    options = {"causal": call.causal, "scale": call.scale}
    right = attention_gradient(do, dlse, call.q, call.k, call.v, **options)
    bounds = gradient_budget(do, dlse, q, k, v, of_o=saved.o, of_lse=shift, **options)
    losses = losses_of_rounding(call, do, dlse, out)
    worst = 0.0
    for x, want, bound, lost in zip(found, right, bounds, losses, strict=True):
        assert x.dtype == getattr(torch, dtype) and tuple(x.shape) == want.shape
        if dtype != "float32":
            bound = (1 + out.u) * bound + lost
            bound = bound + out.u * (np.abs(want) + bound) + max(out.tiny, FLUSHED)
        error = np.abs(x.detach().cpu().double().numpy() - want)
        assert (error <= bound).all(), f"{np.max(error / np.maximum(bound, np.finfo(float).tiny))} times the budget"
        worst = max(worst, float(np.max(np.divide(error, bound, out=np.zeros_like(error), where=bound > 0), initial=0)))
    return worst


def losses_of_rounding(call, do, dlse, out):
    """What dq, dk and dv lose where P and dS are rounded to a format: u of each term, and what is too small."""
    k, v = call.repeated()
    scores = np.where(call.visible(), call.factor() * (call.q @ np.swapaxes(k, -1, -2)), -math.inf)
    top = np.max(scores, axis=-1, keepdims=True, initial=-1e300)
    weight = np.exp(scores - top)
    total = np.sum(weight, axis=-1, keepdims=True)
    p = weight / np.where(total == 0, 1, total)
    dp = do @ np.swapaxes(v, -1, -2)
    slope = np.where(total == 0, 0, dlse[..., None]) - np.sum(p * dp, -1, keepdims=True)
    slope, tiny = np.abs(dp + slope), max(out.tiny, FLUSHED)
    p, ds = (np.where(call.visible(), x, 0.0) for x in (out.u * p + tiny, out.u * p * slope + tiny * (1 + slope)))
    of_k, of_v = np.swapaxes(ds, -1, -2) @ np.abs(call.q), np.swapaxes(p, -1, -2) @ np.abs(do)
    scale = abs(call.factor())
    return scale * (ds @ np.abs(k)), scale * over_group(of_k, call), over_group(of_v, call)


def over_group(x, call):
    """x (…, Hq, N, w) summed over the query heads of each KV head."""
    if x.ndim < 3:
        return x
    heads, group = call.k.shape[-3], call.q.shape[-3] // call.k.shape[-3]
    return x.reshape(*x.shape[:-3], heads, group, *x.shape[-2:]).sum(-3)


@contextlib.contextmanager
def empty_is_nan():
    """Within it torch.empty gives NaN, so that a number that a kernel does not write is seen."""
    before = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        assert torch.empty(3).isnan().all()
        yield
    finally:
        torch.use_deterministic_algorithms(before[0], warn_only=before[1])
