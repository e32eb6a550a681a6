"""The merge kernel in Triton's interpreter: run by `test_interpreted.py` in a process of its own."""

import math

import numpy as np
import pytest
import torch

from fdmath import LSEState, flat
from fdmath.algebra.rounding import Budget, fold_budget, format_of
from fdmath.kernels.merge import merge_states, merge_tile
from tests.algebra.judgement import certified, judge
from tests.attention.calls import numbers


def parts(count, rows=3, width=5, seed=0, spread=5.0):
    """`count` states whose numbers every format holds, as (o, lse) of torch float32."""
    rng = np.random.default_rng(seed)
    return (torch.from_numpy(numbers(rng, count, rows, width)).float(),
            torch.from_numpy(spread * numbers(rng, count, rows)).float())


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("count", [1, 2, 7, 64])
def test_a_merge_is_within_the_flat_forms_budget(count, dtype):
    o, lse = parts(count)
    lse[0, 0] = lse[:, 2] = -math.inf
    got = merge_states(o.to(getattr(torch, dtype)), lse)
    states = [LSEState(np.float64(o[b]), np.float64(lse[b])) for b in range(count)]
    fmt, out = format_of("float32"), format_of(dtype)
    bound = fold_budget(states, flat, fmt)
    if dtype != "float32":
        size = np.abs(flat(None, states).o)
        bound = Budget(bound.o + out.u * (size + bound.o) + out.tiny, bound.lse)
    judge(certified(states), LSEState(*(x.double().numpy() for x in got)), bound)
    assert got.o.dtype == getattr(torch, dtype) and got.lse.dtype == torch.float32
    assert (got.lse[2] == -math.inf).item() and (got.o[2] == 0).all()


def test_many_parts_are_taken_in_turns():
    o, lse = parts(150, rows=2, width=3)  # more than a program takes at a time: the level may move twice
    got, turns = merge_states(o, lse), [merge_states(o[i:i + 64], lse[i:i + 64]) for i in range(0, 150, 64)]
    states = [LSEState(np.float64(o[b]), np.float64(lse[b])) for b in range(150)]
    fmt = format_of("float32")
    middle = [LSEState(*(np.float64(x) for x in s)) for s in turns]
    errors = [fold_budget(states[i:i + 64], flat, fmt) for i in range(0, 150, 64)]
    judge(certified(states), LSEState(*(x.double().numpy() for x in got)), fold_budget(middle, flat, fmt, errors))


def test_empty_parts_change_nothing_whatever_they_hold():
    o, lse = parts(5)
    lse[1] = lse[3] = -math.inf
    want = merge_states(o, lse)
    for bad in (math.nan, math.inf):
        dirty = o.clone()
        dirty[[1, 3]] = bad
        got = merge_states(dirty, lse)
        assert torch.equal(got.o, want.o) and torch.equal(got.lse, want.lse)
    lone = merge_states(o[2:3], lse[2:3])
    assert torch.equal(lone.o, o[2]) and torch.equal(lone.lse, lse[2])
    beside = merge_states(torch.cat([o[2:3], torch.full_like(o, math.nan)]),
                          torch.cat([lse[2:3], torch.full_like(lse, -math.inf)]))
    assert torch.equal(beside.o, o[2]) and torch.equal(beside.lse, lse[2])


def test_infinity_is_no_state():
    o, lse = parts(3)
    lse[1, 0] = math.inf
    with np.errstate(invalid="ignore"):
        got = merge_states(o, lse)
    assert got.o[0].isnan().all() and got.lse[0].isnan() and got.o[1:].isfinite().all()


def test_shapes_and_strides_are_as_they_come():
    o, lse = parts(4, rows=6)
    want = merge_states(o, lse)
    deep = merge_states(o.view(4, 2, 3, 5), lse.view(4, 2, 3))
    assert torch.equal(deep.o.view(6, 5), want.o) and torch.equal(deep.lse.view(6), want.lse)
    turned = merge_states(o.permute(2, 1, 0).contiguous().permute(2, 1, 0), lse.T.contiguous().T)
    assert torch.equal(turned.o, want.o) and torch.equal(turned.lse, want.lse)
    assert merge_states(torch.zeros(2, 0, 5), torch.zeros(2, 0)).o.shape == (0, 5)


def test_states_of_no_columns_have_an_lse():
    lse = torch.tensor([[0.0, 1, 2, -math.inf], [0.0, 1, 3, -math.inf]])
    want = merge_states(torch.zeros(2, 4, 7), lse)
    got = merge_states(torch.zeros(2, 4, 0), lse)
    assert got.o.shape == (4, 0) and torch.equal(got.lse, want.lse) and want.lse[:3].isfinite().all()


def test_a_fixed_tile_does_not_see_how_many_parts_there_are():
    assert len({merge_tile(parts, width, fixed=True)[1:] for parts in (1, 16, 300) for width in (64, 128)}) == 1
    assert merge_tile(2, 128) == (2, 128, 1) and merge_tile(300, 128) == (64, 16, 2) and merge_tile(64, 8)[1] == 8


@pytest.mark.parametrize(("error", "text", "o", "lse"), [
    (ValueError, "lse must have the shape of o without its last axis", torch.zeros(2, 3, 4), torch.zeros(3, 2)),
    (ValueError, "o must have a leading axis of at least one part", torch.zeros(0, 3, 4), torch.zeros(0, 3)),
    (ValueError, "o must have a leading axis of at least one part", torch.zeros(4), torch.zeros(())),
    (TypeError, "lse must be float16, bfloat16 or float32; got float64", torch.zeros(2, 4), torch.zeros(2).double()),
    (TypeError, "o must have a float dtype", torch.zeros(2, 4).int(), torch.zeros(2)),
    (TypeError, "o must be a torch tensor; got ndarray", np.zeros((2, 4), np.float32), np.zeros(2, np.float32)),
])  # fmt: skip
def test_bad_input_raises(error, text, o, lse):
    with pytest.raises(error, match="^" + text):
        merge_states(o, lse)
