"""Ring attention and tree decoding on 1 to 4 ranks: against the oracle, bit for bit, bytes counted.

All cases of a number of ranks run in one group (`scenarios.py`), and are judged here, one by one.
"""

import math
from functools import cache

import numpy as np
import pytest
import torch

from fdmath import AccState, LSEState, sequential
from fdmath.algebra.rounding import Budget
from fdmath.attention.gradient_budget import gradient_budget
from fdmath.attention.reference import attention_gradient
from fdmath.cost.decode import pair_saving, state_bytes
from fdmath.cost.distributed import ring_backward_bytes, ring_bytes, tree_bytes
from fdmath.distributed import contiguous, run_ranks, unshard
from fdmath.distributed.launch import values_of
from fdmath.distributed.ring import _Ring
from tests.algebra.judgement import judge
from tests.algebra.libraries import same
from tests.attention.calls import Call
from tests.attention.test_flash_backward import losses, within
from tests.distributed.scenarios import DECODES, DIMS, RINGS, WAYS, cut, order_of, tensor

SIZES = (1, 2, 3, 4)
X = torch.ones(1, 1)


@cache
def outcomes(size):
    """How `size` ranks ended, which are started once whatever they find."""
    return run_ranks("tests.distributed.scenarios:everything", [()] * size, timeout=60, deadline=240)


def ran(size):
    """What each of `size` ranks found."""
    return values_of(outcomes(size))


def whole(case, size, found):
    """[o, lse, dq, dk, dv] of all rows, from those of the ranks."""
    of_q, of_k = case.layouts(size)
    places = ((of_q, -2), (of_q, -1), (of_q, -2), (of_k, -2), (of_k, -2))
    return [unshard([x[i] for x in found], layout, axis) for i, (layout, axis) in enumerate(places)]


def budget(case, size):
    """The Budget of o and lse: each run of queries folds the runs of keys one by one, in the order of its ring."""
    (of_q, of_k), call = case.layouts(size), case.call
    o, lse = (np.full(shape, np.nan) for shape in ((*call.q.shape[:-1], call.v.shape[-1]), call.q.shape[:-1]))
    for rank, runs in enumerate(of_q):
        ranges = tuple(run for hop in range(size) for run in of_k[rank - hop]) or ((0, 0),)
        for start, stop in runs:
            part = Call(call.q[..., start:stop, :], call.k, call.v, mask=call.visible()[..., start:stop, :],
                        scale=call.scale)
            o[..., start:stop, :], lse[..., start:stop] = part.budget(case.dtype, ranges, LSEState, sequential)
    return Budget(o, lse)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", RINGS)
def test_a_ring_gives_the_certified_state_and_its_gradients(size, name):
    case, found = RINGS[name], [x["ring"][name] for x in ran(size)]
    call, of_state = case.call, budget(case, size)
    o, lse, *gradients = whole(case, size, found)
    assert str(o.dtype) == f"torch.{case.dtype}"
    judge(call.certified(), (o, lse), of_state)
    do, dlse = losses(call)
    arrays = [tensor(x, case.dtype) for x in (call.q, call.k, call.v)]
    bounds = gradient_budget(do, dlse, *arrays, of_o=of_state.o, of_lse=of_state.lse, causal=call.causal,
                             scale=call.scale)
    right = attention_gradient(do, dlse, call.q, call.k, call.v, causal=call.causal, scale=call.scale)
    of_right = gradient_budget(do, dlse, call.q, call.k, call.v, causal=call.causal, scale=call.scale)
    within(gradients, right, [x + y for x, y in zip(bounds, of_right, strict=True)])


@pytest.mark.parametrize("size", SIZES)
def test_the_gradients_of_a_causal_zigzag_ring_are_the_certified_ones(size):
    pytest.importorskip("flint")
    case = RINGS["causal, zigzag"]
    call, of_state = case.call, budget(case, size)
    do, dlse = losses(call)
    gradients = whole(case, size, [x["ring"]["causal, zigzag"] for x in ran(size)])[2:]
    arrays = [tensor(x, case.dtype) for x in (call.q, call.k, call.v)]
    bounds = gradient_budget(do, dlse, *arrays, of_o=of_state.o, of_lse=of_state.lse, causal=True)
    assert exact_gradient().verdict(gradients, bounds) == "pass"
    wrong = [gradients[0], gradients[1], gradients[2].roll(1, -2)]
    assert exact_gradient().verdict(wrong, bounds) == "fail"


@cache
def exact_gradient():
    """The certified gradient of the causal zigzag ring, whatever the number of ranks."""
    from fdmath.verify.certified_gradient import certified_gradient
    call = RINGS["causal, zigzag"].call
    return certified_gradient(*losses(call), call.q, call.k, call.v, causal=True)


def test_a_hop_is_seen_as_the_mask_says():
    assert [x["one token a rank"] for x in ran(2)] == [1, 2]  # faults:F7, where rank 0 saw the future: 2, 2


def test_a_group_whose_ranks_have_other_numbers_than_the_processes_makes_a_ring():
    assert [x["one token, without rank 0"] for x in ran(4)] == ["group must hold this process; it does not", 1, 2, 3]


def test_what_the_next_hop_needs_is_under_way_before_a_block_is_used():
    class Told:
        rank, size, events = 0, 3, []

        def pass_on(self, operation, arrays, shapes):
            self.events.append("sent")
            return self

        def wait(self):
            self.events.append("waited")
            return X, X

    for source, *_ in _Ring(Told(), contiguous(3, 3), False, 1.0)._around(X, X):
        Told.events.append(source)
    assert Told.events == ["sent", 0, "waited", "sent", 2, "waited", 1]


@pytest.mark.parametrize("size", SIZES)
def test_a_ring_and_a_tree_are_the_same_bits_each_time(size):
    for found in ran(size):
        assert all(same(x, y) for x, y in
                   zip(found["ring"]["causal, zigzag, a batch"][:5], found["again"][:5], strict=True))
        assert all(same(x, y) for x, y in
                   zip(found["decode"]["one query", "AccState, reduce"], found["decode again"], strict=True))


@pytest.mark.parametrize("size", SIZES)
def test_a_ring_sends_what_the_formula_says(size):
    for name, case in RINGS.items():
        if case.call.q.ndim == 2:
            continue
        *batch, heads, length, dim = case.call.k.shape
        width, number = case.call.v.shape[-1], {"bfloat16": 2, "float32": 4, "float64": 8}[case.dtype]
        keys, gradients = (sum(x["ring"][name][i] for x in ran(size)) for i in (5, 6))
        # All ranks together: keys make n − 1 hops in each direction of differentiation, gradients n, in working format.
        whole = math.prod(batch) * heads * length * (dim + width)
        assert keys == 2 * (size - 1) * whole * number
        assert gradients == (size * whole * max(4, number) if size > 1 else 0)
        if dim == width:
            cost = {"kv_heads": heads, "batch": math.prod(batch), "number": number}
            backward = ring_backward_bytes(length, dim, size, gradient=max(4, number), **cost)
            assert keys + gradients == size * (ring_bytes(length, dim, size, **cost) + backward)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("name", DECODES)
def test_a_decode_gives_the_certified_state_on_every_rank(size, name, way):
    call, kind = DECODES[name], WAYS[way]["kind"]
    states = [x["decode"][name, way] for x in ran(size)]
    for o, lse in states:
        assert same(o, states[0][0]) and same(lse, states[0][1])
    ranges = tuple(run for runs in cut(call.k.shape[-2], size) for run in runs)
    judge(call.certified(), states[0], call.budget("float32", ranges, kind, order_of(way)))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dim", DIMS)
def test_the_pair_saves_one_number_of_d_plus_two_where_states_are_gathered_and_none_where_they_are_added(size, dim):
    for found in (x["bytes"] for x in ran(size)):
        assert found["LSEState, gather", dim] == 2 * state_bytes(LSEState, dim)
        assert found["AccState, gather", dim] == found["MLOState, gather", dim] == 2 * state_bytes(AccState, dim)
        saved = found["AccState, gather", dim] - found["LSEState, gather", dim]
        assert saved == pair_saving(dim) * found["AccState, gather", dim]  # not 33 %: claims:A24, A74
        assert {found[f"{kind}, reduce", dim] for kind in ("LSEState", "MLOState", "AccState")} == {
            2 * state_bytes(AccState, dim)}
        assert tree_bytes(LSEState, 2, dim, size) == (size - 1) * found["LSEState, gather", dim]


def test_a_ring_in_the_wrong_order_would_be_seen():
    case = RINGS["causal, unequal and empty"]
    o, lse, *_ = whole(case, 3, [x["ring"]["causal, unequal and empty"] for x in ran(3)])
    with pytest.raises(AssertionError):
        judge(case.call.certified(), (o.roll(1, -2), lse), budget(case, 3))
    with pytest.raises(AssertionError):
        judge(case.call.certified(), (torch.full_like(o, np.nan), lse), budget(case, 3))
