"""One query token on a CPU: within the budget of one part, or no answer."""

import pytest

pytest.importorskip("torch", reason="it reads torch tensors")

import numpy as np
import torch

from fdmath import AccState, LSEState
from fdmath.attention.single import single_token_attention
from tests.algebra.judgement import judge
from tests.algebra.libraries import Library
from tests.attention.calls import random_call

CALLS = {
    "grouped heads": random_call(70, (9, 3), 1, 50, 16, batch=(1,)),
    "a head each": random_call(71, (4, 4), 1, 256, 8, batch=(1,)),
    "two sequences": random_call(72, (8, 2), 1, 428, 16, 8, batch=(2,)),
    "one key": random_call(73, (2, 1), 1, 1, 4, batch=(3,)),
}


def tensors(call):
    return call.arrays(Library("torch"), "float32")


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_it_lies_within_the_budget_of_one_part(call):
    state = LSEState(*single_token_attention(*tensors(call), call.factor()))
    judge(call.certified(), state, call.budget("float32", ((0, call.k.shape[-2]),), AccState))


@pytest.mark.parametrize("level", [-1000.0, 0.0, 1000.0])
def test_equal_scores_give_the_mean_at_any_level(level):
    q, k = torch.full((1, 2, 1, 4), level / 4), torch.ones(1, 1, 64, 4)
    o, lse = single_token_attention(q, k, torch.arange(64.0)[:, None].expand(1, 1, 64, 1), 1.0)
    assert torch.equal(o, torch.full((1, 2, 1, 1), 31.5))
    assert torch.equal(lse, torch.full((1, 2, 1), level) + torch.tensor(64.0).log())


def test_keys_of_another_stride_are_read_where_they_lie():
    q, k, v = tensors(CALLS["two sequences"])
    strided = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (k, v)]
    assert not strided[0].is_contiguous()
    for x, y in zip(single_token_attention(q, *strided, 0.3), single_token_attention(q, k, v, 0.3), strict=True):
        assert torch.equal(x, y)


def test_what_it_does_not_do_has_no_answer():
    q, k, v = tensors(CALLS["grouped heads"])
    assert single_token_attention(q.repeat(1, 1, 2, 1), k, v, 0.3) is None
    assert single_token_attention(q.double(), k.double(), v.double(), 0.3) is None
    for x in (q, k, v):  # any one of them that torch follows
        followed = [y.clone().requires_grad_(y is x) for y in (q, k, v)]
        assert single_token_attention(*followed, 0.3) is None
    with torch.no_grad():
        assert single_token_attention(q.clone().requires_grad_(), k, v, 0.3) is not None
    k[0, 1, 3] = np.nan
    assert single_token_attention(q, k, v, 0.3) is None
