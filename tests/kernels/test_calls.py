"""The judge of the kernels' tests: what is right passes, and what is wrong in one place fails."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest

torch = pytest.importorskip("torch")

from fdmath import attention  # noqa: E402
from tests.kernels.calls import DECODE, judged  # noqa: E402

SEEN = [name for name, call in DECODE.items() if call.q.size and call.visible().any()]
WRONG = {
    "one NaN": lambda x: torch.where(torch.arange(x.numel()).view(x.shape) == 5, math.nan, x),
    "its own mean everywhere": lambda x: torch.full_like(x, x.mean().item()),
    "elements in another order": lambda x: x.flip(0, 1, 2) if x.ndim < 4 else x.flip(-1),
    "nothing": torch.zeros_like,
}


def right(call, dtype="float32"):
    """The state of a call by the definition, in a format."""
    arrays = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in (call.q, call.k, call.v)]
    return attention(*arrays, causal=call.causal, scale=call.scale)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("name", DECODE)
def test_what_is_right_passes(name, dtype):
    judged(DECODE[name], dtype, right(DECODE[name], dtype), num_splits=1)


@pytest.mark.parametrize(("part", "wrong"), list(itertools.product(("o", "lse"), WRONG)))
def test_what_is_wrong_fails_in_o_or_in_lse_alone(part, wrong):
    call = DECODE["grouped heads, dv < d"]
    state = right(call, "bfloat16")
    with pytest.raises(AssertionError):
        judged(call, "bfloat16", replace(state, **{part: WRONG[wrong](getattr(state, part))}), num_splits=3)


@pytest.mark.parametrize("name", [name for name in SEEN if DECODE[name].k.shape[-2] > 1])
def test_one_key_less_is_seen(name):
    call = DECODE[name]
    fewer = replace(call, k=call.k[..., 1:, :], v=call.v[..., 1:, :], causal=False)
    with pytest.raises(AssertionError):
        judged(call, "bfloat16", right(fewer, "bfloat16"), num_splits=3)


def test_nothing_where_there_are_no_keys_and_something_where_there_are():
    none, some = DECODE["no keys"], DECODE["one key"]
    judged(none, "float32", right(none), num_splits=3)
    with pytest.raises(AssertionError):
        judged(some, "float32", replace(right(some), o=torch.zeros(2, 2, 3), lse=torch.full((2, 2), -np.inf)))
