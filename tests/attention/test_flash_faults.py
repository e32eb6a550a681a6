"""The smallest inputs of real faults of one forward and backward pass that no other test here has (`faults.py`)."""

import math

import numpy as np
import pytest

from fdmath import AccState, flash_attention, flash_attention_backward, merge, merge_all, sequential
from fdmath.attention.reference import attention_gradient
from tests.algebra.judgement import judge
from tests.algebra.libraries import holds, same, values
from tests.attention.calls import NAN, Call, random_call
from tests.attention.test_flash import spans
from tests.attention.test_flash_backward import bounds, gradients, losses, within


def column(*numbers):
    """Numbers as the keys or values of one head, d = 1."""
    return np.array(numbers, np.float64).reshape(1, -1, 1)


def both_ways(lib, call, block_m=2, block_n=2):
    """Nothing; fails unless o, lse and all gradients of the call are within their budgets."""
    arrays, options = call.arrays(lib, "float32"), call.options(lib)
    state = flash_attention(*arrays, block_m=block_m, block_n=block_n, **options)
    judge(call.certified(), state, call.budget("float32", spans(call, block_n), AccState, sequential))
    do, dlse = losses(call)
    got = gradients(lib, call, do, dlse, "float32", block_m, block_n)
    right = attention_gradient(do, dlse, call.q, call.k, call.v, causal=call.causal, scale=call.scale, mask=call.mask)
    within(got, right, bounds(lib, call, do, dlse, "float32", block_n))


@pytest.mark.parametrize("queries", [1, 3, 8])
def test_a_length_of_whole_blocks_ends_there(lib, queries):
    # faults:F4: the arrays are the first 8 of 12 slots, the rest of which hold NaN.
    call = random_call(71, (2, 1), queries, 8, 4, causal=True)
    beyond = np.full((1, 4, 4), NAN)
    k, v = (lib.array(np.concatenate([x, beyond], axis=1), "float64")[:, :8] for x in (call.k, call.v))
    q, *clean = call.arrays(lib, "float64")
    do, dlse = (lib.array(x, "float64") for x in losses(call))
    for options in ({"block_m": 4, "block_n": 4, "causal": True}, {"block_m": 2, "block_n": 8, "causal": True}):
        state, other = (flash_attention(q, *x, **options) for x in ((k, v), clean))
        assert all(map(same, state, other))
        got, right = (flash_attention_backward(do, dlse, q, *x, *state, **options) for x in ((k, v), clean))
        assert all(map(same, got, right))
    both_ways(lib, call, 4, 4)


def test_a_tail_shorter_than_a_tile_counts_its_own_keys_alone(lib):
    # faults:F9: 3 keys of score 0 in a tile of 4: the mean is 2, and dv is ⅓ of do each.
    call = Call(np.zeros((1, 1, 1)), np.zeros((1, 3, 1)), column(1, 2, 3))
    state = flash_attention(*call.arrays(lib, "float64"), block_n=4)
    judge(call.certified(), state, call.budget("float64", spans(call, 4), AccState, sequential))
    dv = values(gradients(lib, call, np.full((1, 1, 1), 3.0), np.zeros((1, 1)), "float64", 1, 4)[2])
    budget = bounds(lib, call, np.full((1, 1, 1), 3.0), np.zeros((1, 1)), "float64", 4).dv
    assert np.all(np.abs(dv - 1) <= budget)


def test_a_window_counts_the_querys_own_key(lib):
    # faults:F8: W = 3 is {i − 2, i − 1, i}; as a mask it is what it says.
    i, j = np.arange(5)[:, None], np.arange(5)
    mask = (j <= i) & (j > i - 3)
    call = Call(np.zeros((1, 5, 1)), np.zeros((1, 5, 1)), column(1, 2, 4, 8, 16), mask=mask)
    o, lse = flash_attention(*call.arrays(lib, "float64"), block_m=2, block_n=2, mask=lib.mask(mask))
    assert np.abs(values(o)[0, 4, 0] - 28 / 3) <= 28 / 3 * 4 * 2.0**-53  # a sum of 3 exact terms and a division
    assert np.abs(values(lse)[0, 4] - math.log(3)) <= 8 * 2.0**-53  # the logarithm of an exact 3
    dv = values(gradients(lib, call, np.eye(5)[4].reshape(1, 5, 1), np.zeros((1, 5)), "float64", 2, 2)[2])
    assert (dv[0, :2] == 0).all() and (dv[0, 2:] > 0).all()
    both_ways(lib, call)


def test_a_hop_of_a_ring_is_causal_full_or_not_there(lib):
    # faults:F7: two ranks of one token each, v = 1 and 3: the own hop is causal, a past one full, a later one skipped.
    q, k = lib.array(np.zeros((1, 1, 1))), lib.array(np.zeros((1, 1, 1)))
    v = [lib.array(column(x)) for x in (1, 3)]
    own = [flash_attention(q, k, x, causal=True) for x in v]
    past = flash_attention(q, k, v[0])
    assert holds(own[0].o, [[[1.0]]]) and holds(merge(own[1], past).o, [[[2.0]]])
    whole = flash_attention(*(lib.array(np.zeros((1, 2, 1))) for _ in "qk"), lib.array(column(1, 3)), causal=True)
    assert holds(whole.o, [[[1.0], [2.0]]])


def test_a_hole_in_the_cache_is_not_attended(lib):
    # faults:F11: 9 keys in use, slot 9 never written, the next key at slot 10.
    call = random_call(72, (2, 1), 1, 11, 4)
    mask = np.arange(11) != 9
    spoiled = [np.where(np.arange(11)[:, None] == 9, NAN, x) for x in (call.k, call.v)]
    q, k, v = Call(call.q, *spoiled).arrays(lib, "float32")
    state = flash_attention(q, k, v, block_n=4, mask=lib.mask(mask))
    kept = Call(call.q, call.k[:, mask], call.v[:, mask])
    judge(kept.certified(), state, Call(call.q, call.k, call.v, mask=mask).budget("float32", spans(call, 4), AccState,
                                                                               sequential))


@pytest.mark.parametrize(("heads", "kv_heads"), [(4, 2), (8, 2), (16, 4), (64, 8), (32, 8), (6, 3), (5, 5), (7, 1)])
def test_every_ratio_of_heads_reads_and_fills_its_own(lib, heads, kv_heads):
    # faults:G1, G2, G4: query head h reads KV head h // g, and gives its gradient to that one.
    q, k = np.zeros((heads, 1, 1)), np.zeros((kv_heads, 1, 1))
    v = np.arange(kv_heads, dtype=np.float64).reshape(kv_heads, 1, 1)
    call = Call(q, k, v)
    own = np.arange(heads) // (heads // kv_heads)
    assert holds(flash_attention(*call.arrays(lib, "float32")).o[:, 0, 0], own)
    do = np.arange(1.0, heads + 1).reshape(heads, 1, 1)
    dv = gradients(lib, call, do, np.zeros((heads, 1)), "float32")[2]
    assert holds(dv[:, 0, 0], np.bincount(own, weights=np.arange(1.0, heads + 1)))


def test_as_many_heads_as_keys(lib):
    # faults:D7, H5: a transpose of heads and keys has the same shape, and is another call.
    call = random_call(73, (2, 2), 2, 2, 2)
    both_ways(lib, call)
    turned = Call(call.q, *(x.swapaxes(0, 1) for x in (call.k, call.v)))
    do, dlse = losses(call)
    got = gradients(lib, turned, do, dlse, "float32", 2, 2)
    budget = bounds(lib, call, do, dlse, "float32", 2)
    right = attention_gradient(do, dlse, call.q, call.k, call.v)
    assert all(np.max(np.abs(values(g) - r) / b) > 1 for g, r, b in zip(got, right, budget, strict=True))


def test_p_made_anew_sums_to_1(lib):
    # faults:H3: two scores of 0, where 2^(−ln 2) instead of e^(−ln 2) would give 1.237.
    call = Call(np.zeros((1, 1, 1)), np.zeros((1, 2, 1)), column(1, 2))
    do, dlse = np.ones((1, 1, 1)), np.zeros((1, 1))
    dv = values(gradients(lib, call, do, dlse, "float64", 1, 1)[2])
    assert abs(dv.sum() - 1) <= bounds(lib, call, do, dlse, "float64", 1).dv.sum() < 0.2


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_p_made_anew_sums_to_1_where_scores_are_80(lib, dtype):
    # faults:H11: 22 % were lost where the forward pass and the backward pass rounded scores differently.
    call = random_call(74, (1, 1), 3, 9, 4, scale=40.0)
    do, dlse = np.ones(call.q.shape), np.zeros((1, 3))
    assert np.max(np.abs(call.factor() * (call.q @ call.k.swapaxes(-1, -2)))) > 80
    dv = values(gradients(lib, call, do, dlse, dtype, 2, 4)[2])
    lost = bounds(lib, call, do, dlse, dtype, 4).dv.sum(axis=1)
    assert np.all(np.abs(dv.sum(axis=1) - 3) <= lost) and np.all(lost < 0.22)


def test_parts_of_other_sizes_that_lie_apart_add_up(lib):
    # faults:H4, H6: hops of 2, 4 and 1 keys, the first of which are the ends; each backward takes its own k and v.
    call = random_call(75, (2, 1), 7, 7, 3, causal=True)
    do, dlse = losses(call)
    q, k, v = call.arrays(lib, "float64")
    hops, seen = ([0, 6], [1, 2, 4, 5], [3]), call.visible()[0]
    parts = [(k[:, hop], v[:, hop], lib.mask(seen[:, hop])) for hop in hops]
    o, lse = merge_all([flash_attention(q, a, b, block_m=2, block_n=2, mask=mask) for a, b, mask in parts], sequential)
    send = [lib.array(x, "float64") for x in (do, dlse)]
    shares = [flash_attention_backward(*send, q, a, b, o, lse, block_m=2, block_n=2, mask=mask) for a, b, mask in parts]
    order = np.argsort(sum(hops, []))
    got = (sum(values(s[0]) for s in shares),
           *(np.concatenate([values(s[i]) for s in shares], axis=1)[:, order] for i in (1, 2)))
    right = attention_gradient(do, dlse, call.q, call.k, call.v, causal=True)
    within(got, right, [5 * b for b in bounds(lib, call, do, dlse, "float64", 2)])  # three calls, their merges, a sum


def test_a_length_that_no_block_divides_has_finite_gradients(lib):
    # faults:H10: 5 queries and 5 keys in blocks of 4.
    for causal in (False, True):
        both_ways(lib, random_call(76, (2, 1), 5, 5, 3, causal=causal), 4, 4)
