"""The smallest inputs of real faults (`faults.py` names them) that random calls seldom meet: run interpreted.

Scores are given directly: d = 1, scale 1 and q = 1, so that the keys are the scores; in the interpreter a program takes
16 keys a step.
"""

import math

import numpy as np
import pytest
import torch

from fdmath import LSEState, flat, split_kv_attention
from fdmath.algebra.rounding import fold_budget, format_of
from fdmath.kernels.merge import merge_states
from fdmath.kernels.split_kv import STEPS as KERNELS
from fdmath.kernels.split_kv import decode_by_step, split_kv_decode
from tests.algebra.judgement import certified, judge
from tests.attention.calls import Call, numbers
from tests.kernels.calls import judged


def scored(scores, values, queries=1, causal=False):
    """The Call of one head whose keys have these scores and values."""
    k, v = (np.array(x, np.float64).reshape(1, 1, -1, 1) for x in (scores, values))
    return Call(np.ones((1, 1, queries, 1)), k, v, causal, None, 1.0)


def decoded(call, dtype="float32", **options):
    """What the kernel makes of a call."""
    arrays = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in (call.q, call.k, call.v)]
    return split_kv_decode(*arrays, causal=call.causal, scale=call.scale, **options)


STEPS = {
    "falling far": [0] * 16 + [-200] * 16,
    "rising": [0] * 16 + [0.6875] * 16,
    "rising far": [-200] * 16 + [0] * 16,
    "all low": [-200] * 20,
    "all lower than a mask of -10000": [-20000] * 17,
    "all high": [100] * 20,
    "all high in two splits": [710] * 2,
    "far apart in two splits": [0, 90],
}


@pytest.mark.parametrize("name", STEPS)
def test_scores_that_fall_rise_or_lie_far_from_0(name):
    scores = STEPS[name]
    call = scored(scores, np.arange(len(scores)) + 1)
    for splits in (1, 2):
        judged(call, "float32", decoded(call, num_splits=splits), num_splits=splits)


@pytest.mark.parametrize("step", KERNELS)
def test_keys_without_weight_before_the_first_with_one_change_nothing(step):
    q, k = torch.full((1, 1, 1, 16), 1e30), torch.full((1, 1, 65, 16), -1e30)
    k[:, :, -1] = 0  # 64 scores beyond float32, that are −∞: the whole first block of any step
    with np.errstate(over="ignore"):
        some = decode_by_step(step, q, k, torch.ones_like(k), num_splits=1)
        none = decode_by_step(step, q, k[:, :, :64], torch.ones_like(k[:, :, :64]), num_splits=1)
    assert (some.o == 1).all() and (some.lse == 0).all()
    assert (none.o == 0).all() and (none.lse == -math.inf).all()


def test_the_sum_of_many_values_does_not_overflow_the_format():
    call = scored([0.0] * 100, [1000.0] * 100)  # 100 · 1000 > 65504
    assert decoded(call, "float16", num_splits=1).o.item() == 1000
    judged(call, "float16", decoded(call, "float16", num_splits=2), num_splits=2)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_states_of_splits_are_not_kept_in_16_bits(dtype):
    rng = np.random.default_rng(0)
    call = scored([0.0] * 60, numbers(rng, 60))  # P is 1: no rounding but that of sums in float32
    arrays = [torch.from_numpy(x).to(getattr(torch, dtype)) for x in (call.q, call.k, call.v)]
    state = split_kv_attention(*arrays, num_splits=20, scale=1.0, out_dtype="float32", backend="triton")
    judged(call, "float32", state, num_splits=20)


@pytest.mark.parametrize("queries", [1, 3])
def test_a_length_of_whole_steps_ends_there(queries):
    call = scored(numbers(np.random.default_rng(1), 32), np.arange(32), queries, causal=True)
    q, k, v = (torch.from_numpy(x).float() for x in (call.q, call.k, call.v))
    beyond = torch.full((1, 1, 16, 1), math.nan)
    k, v = torch.cat([k, beyond], 2), torch.cat([v, beyond], 2)
    for splits in (1, 2, 3):
        state = split_kv_decode(q, k, v, seq_lens=torch.tensor([32]), causal=True, scale=1.0, num_splits=splits)
        judged(call, "float32", state, num_splits=splits)


def test_a_sequence_beside_one_without_keys_has_the_bits_that_it_has_alone():
    rng = np.random.default_rng(2)
    q, k, v = (torch.from_numpy(numbers(rng, 2, 2, n, 4)).float() for n in (1, 3, 3))
    both = split_kv_decode(q, k, v, seq_lens=torch.tensor([0, 3]), num_splits=4)
    alone = split_kv_decode(q[1:], k[1:], v[1:], num_splits=4)
    assert torch.equal(both.o[1], alone.o[0]) and torch.equal(both.lse[1], alone.lse[0])
    assert (both.o[0] == 0).all() and (both.lse[0] == -math.inf).all()


@pytest.mark.parametrize("levels", [(-math.inf, -20000), (-10000, -20000), (0, 90), (710, 710), (100.25, 99.75),
                                    (1, 2, 3), (-math.inf, -math.inf, 5), (-math.inf, -math.inf)])
def test_states_at_any_levels_merge_within_the_bound(levels):
    lse = np.array(levels, np.float64)[:, None]
    o = np.where(np.isinf(lse), np.nan, np.arange(len(lse))[:, None] + 1.0)[..., None]
    got = merge_states(torch.from_numpy(o).float(), torch.from_numpy(lse).float())
    parts = [LSEState(np.where(np.isinf(s)[:, None], 0.0, y), s) for y, s in zip(o, lse, strict=True)]
    judge(certified(parts), LSEState(*(x.double().numpy() for x in got)),
          fold_budget(parts, flat, format_of("float32")))
