"""Decode calls to try, and the judge of what the kernels make of them: the oracle's enclosure and a budget."""

import math

import numpy as np

from fdmath import flat, partial_state
from fdmath.algebra.rounding import Budget, block_budget, finish_budget, fold_budget, format_of, score_error
from fdmath.attention.decode import key_ranges
from tests.algebra.judgement import judge
from tests.attention.calls import CALLS, Call, random_call

DECODE = {
    **{name: call for name, call in CALLS.items() if call.mask is None and call.v.shape[-1]},
    "d = 96, dv = 80": random_call(31, (2, 1), 1, 19, 96, 80),
    "d = 192, dv = 128": random_call(32, (2, 2), 2, 9, 192, 128, causal=True),
    "d = 256": random_call(33, (1, 1), 1, 9, 256),
    "16 queries, 3 heads a KV head": random_call(34, (6, 2), 16, 40, 8, 3, causal=True),
    "a group of 70": random_call(35, (70, 1), 1, 11, 4, 3),
}
"""Calls without a mask, which the kernels do not take; masks of lengths are `with_lengths`."""


def with_lengths(call, starts, lens):
    """The call as the keys start ≤ j < start + length of each sequence alone see it, sequence by sequence."""
    return [Call(call.q[b:b + 1], *(x[b:b + 1, :, s:s + n] for x in (call.k, call.v)), call.causal, None, call.scale)
            for b, (s, n) in enumerate(zip(starts, lens, strict=True))]


def budget(call, dtype, num_splits=None, tile=None):
    """The Budget of the kernel's o and lse: those of a split-KV call by `flat` (T3), and what the kernel adds.

    It adds the rounding of P to a 16-bit format, and of the factor log₂e in the scores and back out of lse.
    """
    fmt, out = format_of("float32"), format_of(dtype)
    k, v = call.repeated()
    scores = call.factor() * (call.q @ np.swapaxes(k, -1, -2))
    seen = call.visible()
    error = score_error(call.q, k, call.factor(), fmt) + 3 * fmt.u * np.abs(scores)
    scores, error = np.where(seen, scores, -math.inf), np.where(seen, error, 0.0)
    parts, errors, rounded = [], [], None if dtype == "float32" else dtype
    for start, stop in key_ranges(call.k.shape[-2], tile, num_splits if tile is None else None):
        block, held, lost = scores[..., start:stop], v[..., start:stop, :], error[..., start:stop]
        part = partial_state(block, held)
        of_o = block_budget(block, held, fmt, lost, p_dtype=rounded).o
        of_lse = block_budget(block, held, fmt, lost).lse + 3 * fmt.u * np.where(np.isinf(part.lse), 0, abs(part.lse))
        parts.append(part)
        errors.append(Budget(of_o, of_lse))
    return finish_budget(flat(None, parts), fold_budget(parts, flat, fmt, errors), fmt, out)


def judged(call, dtype, state, **splits):
    """The ratios of error to budget of a state (torch) that the kernel made of a call; fails where one exceeds 1."""
    o, lse = (x.detach().cpu().double().numpy() for x in state)
    return judge(call.certified(), type(state)(o, lse), budget(call, dtype, **splits))
