"""The FlashAttention-2 kernels in Triton's interpreter: run by `test_interpreted.py` in a process of its own."""

import math

import numpy as np
import pytest
import torch

from fdmath import flash_attention
from fdmath.kernels.flash import flash_attention_by_kernel, flash_backward, flash_forward, refusal
from fdmath.kernels.flash_call import aligned, prepare
from tests.attention.calls import random_call
from tests.kernels.flash_calls import FAR, FLASH, empty_is_nan, judge_gradients, judge_state, output_gradients, tensors

FORMATS = ("float32", "float16", "bfloat16")
QUICK = {name: call for name, call in FLASH.items() if "several" in name or "empty" in name or "scale" in name}


def forward(call, dtype, **options):
    """The state that the kernel makes of a call."""
    return flash_forward(*tensors(call, dtype), causal=call.causal, scale=call.scale, **options)


def backward(call, dtype, state=None, arrays=None, **options):
    """(do, dlse, (dq, dk, dv)) of a call for random do and dlse."""
    do, dlse = output_gradients(call, dtype)
    o, lse = state or forward(call, dtype)
    found = flash_backward(do, dlse, *(arrays or tensors(call, dtype)), o, lse, causal=call.causal, scale=call.scale,
                           **options)
    return do, dlse, found


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", FLASH)
def test_every_call_and_its_gradients_are_within_their_budgets(name, dtype):
    call = FLASH[name]
    state = forward(call, dtype)
    assert str(state.o.dtype) == f"torch.{dtype}" and state.lse.dtype == torch.float32
    judge_state(call, dtype, state)
    judge_gradients(call, dtype, *backward(call, dtype, state))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", QUICK)
def test_atomic_additions_give_the_same_gradients_within_their_budgets(name, dtype):
    judge_gradients(QUICK[name], dtype, *backward(QUICK[name], dtype, deterministic=False))


@pytest.mark.parametrize("deterministic", [True, False])
@pytest.mark.parametrize("name", QUICK)
def test_every_number_of_a_result_is_written(name, deterministic):
    with empty_is_nan():
        state = forward(QUICK[name], "float16")
        gradients = backward(QUICK[name], "float16", state, deterministic=deterministic)[-1]
    assert not any(x.isnan().any() for x in (*state, *gradients))


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_keys_beyond_the_end_may_have_any_weight(dtype, deterministic):
    judge_gradients(FAR, dtype, *backward(FAR, dtype, deterministic=deterministic))


@pytest.mark.parametrize(("block_m", "block_n"), [(16, 64), (64, 16), (128, 32)])
def test_any_tile_is_within_its_budget(block_m, block_n):
    for name in ("several blocks both ways", "several blocks, causal, empty rows", "a scale of 0"):
        judge_state(FLASH[name], "float32", forward(FLASH[name], "float32", block_m=block_m, block_n=block_n), block_n)


def test_rows_that_see_no_key_are_nothing_in_both_directions():
    call = FLASH["several blocks, causal, empty rows"]
    state = forward(call, "float32")
    empty = ~call.visible().any(-1)
    assert 0 < empty.sum() < empty.size
    assert (state.lse[torch.from_numpy(empty)] == -math.inf).all() and (state.o[torch.from_numpy(empty)] == 0).all()
    do, dlse, (dq, _, _) = backward(call, "float32", state)
    assert (dq[torch.from_numpy(empty)] == 0).all()
    q, k, v = tensors(call, "float32")
    want = flash_backward(do, dlse, q, k, v, *state, causal=True)
    q, do, dlse, o = (x.clone() for x in (q, do, dlse, state.o))
    for x in (q, do, dlse, o):  # whatever such a row holds, it changes nothing
        x[torch.from_numpy(empty)] = math.nan
    assert all(torch.equal(a, b) for a, b in zip(flash_backward(do, dlse, q, k, v, o, state.lse, causal=True), want,
                                                 strict=True))


def test_many_weights_below_the_format_are_not_lost_beside_a_large_one():
    q, k = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 1 + 2**15, 16)
    q[..., 0], k[0, 0, 1:, 0] = 1, -25 - 2.0**-6  # weights 1 and 2¹⁵ times not quite 2⁻²⁵: as they stand, all become 0
    state = flash_forward(q.half(), k.half(), torch.ones_like(k).half(), scale=math.log(2), block_n=128)
    assert (state.o >= 1 - torch.finfo(torch.float16).eps / 2).all()


def test_a_scale_that_float32_cannot_hold_is_0():
    q, k, v = tensors(random_call(64, (2, 1), 5, 32, 16), "float32")  # whole blocks: no tile needs a mask
    for scale in (1e-50, -1e-50):
        tiny, none = flash_forward(q, k, v, scale=scale), flash_forward(q, k, v, scale=0.0)
        assert prepare(q, k, v, False, scale).scale == 0  # what a GPU would see; the interpreter sees the double
        assert torch.equal(tiny.o, none.o) and torch.equal(tiny.lse, none.lse) and none.lse.isfinite().all()


def test_a_row_that_sees_no_key_is_nothing_beside_one_that_sees_nan():
    q, v = torch.ones(1, 1, 2, 16), torch.full((1, 1, 1, 16), math.nan)
    o, lse = flash_forward(q, torch.ones(1, 1, 1, 16), v, causal=True)
    assert (o[0, 0, 0] == 0).all() and lse[0, 0, 0] == -math.inf and o[0, 0, 1].isnan().all()


@pytest.mark.filterwarnings("ignore:overflow encountered", "ignore:invalid value encountered")
def test_what_float16_cannot_hold_of_a_gradient_bfloat16_can():
    q, k, v = torch.zeros(1, 16), torch.tensor([[1.0], [-1.0]]) * 2.0**-6, torch.tensor([[400.0], [-400.0]])
    q, k, v, do = q, k.expand(2, 16), v.expand(2, 16), torch.full((1, 16), 25.0)  # dS = ±80000, dq = ±625
    found = []
    for dtype in (torch.float16, torch.bfloat16):
        arrays = [x.to(dtype) for x in (q, k, v)]
        found.append(flash_backward(do, None, *arrays, *flash_forward(*arrays))[0])
    assert not found[0].isfinite().any() and (found[1] == 625).all()


@pytest.mark.parametrize("queries", [0, 3])
def test_no_keys_or_no_queries_have_gradients_of_zeros(queries):
    q, k, v = torch.ones(2, 4, queries, 8), torch.ones(2, 2, 3 - queries, 8), torch.ones(2, 2, 3 - queries, 5)
    o, lse = flash_forward(q, k, v)
    assert o.shape == (2, 4, queries, 5) and (o == 0).all() and (lse == -math.inf).all()
    found = flash_backward(torch.ones_like(o), None, q, k, v, o, lse)
    assert all(x.shape == like.shape and (x == 0).all() for x, like in zip(found, (q, k, v), strict=True))


def as_laid_out(x, layout):
    """x with the same numbers at other places: (B, N, H, d) in memory, or rows too close for the copy engine."""
    if layout == "heads last":
        return x.transpose(1, 2).contiguous().transpose(1, 2)
    room = torch.full((*x.shape[:-1], x.shape[-1] + 3), math.nan, dtype=x.dtype)
    return room[..., 1:-2].copy_(x)


@pytest.mark.parametrize("layout", ["heads last", "odd rows"])
def test_strides_move_no_bit(layout):
    call = random_call(61, (4, 2), 21, 37, 16, batch=(2,), causal=True)
    plain = tensors(call, "float16")
    turned = [as_laid_out(x, layout) for x in plain]
    assert all(aligned(x) is x for x in plain) and all((aligned(x) is x) == (layout == "heads last") for x in turned)
    state = flash_forward(*plain, causal=True)
    assert all(torch.equal(a, b) for a, b in zip(flash_forward(*turned, causal=True), state, strict=True))
    do, dlse, want = backward(call, "float16", state)
    o, do = as_laid_out(state.o, layout), as_laid_out(do, layout)
    found = flash_backward(do, dlse.mT.contiguous().mT, *turned, o, state.lse, causal=True)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def test_more_leading_axes_and_repeated_ones_are_taken():
    q, k, v = (torch.randn(1, 1, 2, 19, 16, generator=torch.Generator().manual_seed(0)) for _ in range(3))
    wide = [x.expand(2, 3, 2, 19, 16) for x in (q, k, v)]
    one, many = flash_forward(q, k, v), flash_forward(*wide)
    assert many.o.shape == (2, 3, 2, 19, 16) and torch.equal(many.o[1, 2], one.o[0, 0])
    do = torch.ones(()).expand_as(many.o)
    dq, dk, _ = flash_backward(do, None, *wide, *many)
    alone = flash_backward(torch.ones_like(one.o), None, q, k, v, *one)
    assert torch.equal(dq[1, 0], alone[0][0, 0]) and torch.equal(dk[0, 2], alone[1][0, 0])


def test_autograd_takes_o_and_lse_and_refuses_a_second_derivative():
    call = FLASH["several blocks, causal, 3 heads a KV head"]
    do, dlse, want = backward(call, "float32")
    leaves = [x.requires_grad_() for x in tensors(call, "float32")]
    state = flash_attention_by_kernel(*leaves, True, None)
    found = torch.autograd.grad((state.o, state.lse), leaves, (do, dlse), retain_graph=True)
    assert all(torch.equal(a, b) for a, b in zip(found, want, strict=True))
    of_lse = torch.autograd.grad(state.lse, leaves, dlse, retain_graph=True)
    judge_gradients(call, "float32", torch.zeros_like(do), dlse, of_lse)
    first = torch.autograd.grad(state.o, leaves, do, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first[0].sum(), leaves)


def test_what_is_not_seen_reaches_no_other_head_or_sequence():
    call = random_call(62, (4, 2), 20, 33, 16, batch=(2,))
    q, k, v = tensors(call, "float32")
    want = flash_forward(q, k, v)
    v[1, 1, 5] = k[1, 1, 5] = math.nan
    with np.errstate(invalid="ignore"):
        o, lse = flash_forward(q, k, v)
    assert o[1, 2:].isnan().all() and lse[1, 2:].isnan().all()
    assert torch.equal(o[0], want.o[0]) and torch.equal(o[1, :2], want.o[1, :2])


def test_keys_that_a_row_does_not_see_do_not_change_it():
    call = random_call(63, (2, 1), 40, 50, 16, causal=True)
    q, k, v = tensors(call, "bfloat16")
    want = flash_forward(q, k, v, causal=True)
    k[:, 31:], v[:, 31:] = 9, -9
    got = flash_forward(q, k, v, causal=True)
    assert torch.equal(got.o[:, :21], want.o[:, :21]) and torch.equal(got.lse[:, :21], want.lse[:, :21])
    assert not torch.equal(got.o[:, 21], want.o[:, 21])


Q, LSE = torch.zeros(2, 5, 8), torch.zeros(2, 5)


@pytest.mark.parametrize(("error", "text", "change"), [
    (TypeError, "k must have the dtype of q", {"k": Q.half()}),
    (TypeError, "q must be float16, bfloat16 or float32; got float64", {x: Q.double() for x in "qkv"}),
    (ValueError, "v must have the heads and keys of k", {"v": torch.zeros(2, 4, 8)}),
    (ValueError, "q must have a head dimension from 1 to 256; got 257",
     {"q": torch.zeros(2, 5, 257), "k": torch.zeros(2, 5, 257)}),
    (ValueError, "v must have a head dimension from 1 to 256; got 0", {"v": torch.zeros(2, 5, 0)}),
    (TypeError, "causal must be True or False", {"causal": 1}),
    (ValueError, "scale must be finite", {"scale": math.inf}),
    (ValueError, "scale must be finite in float32", {"scale": 1e39}),
    (TypeError, "block_m must be", {"block_m": 16.5}),
    (ValueError, "block_n must be one of 16, 32, 64, 128; got 48", {"block_n": 48}),
])  # fmt: skip
def test_bad_input_of_the_forward_pass_raises(error, text, change):
    arguments = {"q": Q, "k": Q, "v": Q, **change}
    with pytest.raises(error, match=f"^{text}"):
        flash_forward(**arguments)


@pytest.mark.parametrize(("error", "text", "change"), [
    (ValueError, "do must have shape", {"do": torch.zeros(2, 5, 7)}),
    (TypeError, "do must be a tensor of torch.float32", {"do": Q.half()}),
    (TypeError, "lse must be a tensor", {"lse": None}),
    (ValueError, "lse must have shape", {"lse": torch.zeros(5, 2)}),
    (ValueError, "dlse must have shape", {"dlse": torch.zeros(2, 4)}),
    (TypeError, "deterministic must be True or False; got 'no'", {"deterministic": "no"}),
])  # fmt: skip
def test_bad_input_of_the_backward_pass_raises(error, text, change):
    with pytest.raises(error, match=f"^{text}"):
        flash_backward(**{"do": Q, "dlse": None, "q": Q, "k": Q, "v": Q, "o": Q, "lse": LSE, **change})


def test_flags_are_checked_whichever_way_the_kernels_are_called():
    with pytest.raises(TypeError, match="^causal must be True or False; got 'no'"):
        flash_attention(Q, Q, Q, causal="no", backend="triton")


def test_what_the_kernels_refuse_is_said_in_words():
    assert refusal(Q, Q, Q) is None
    assert refusal(Q, Q, Q, mask=torch.ones(5, 5, dtype=torch.bool)) == "its kernel takes no mask"
    assert refusal(Q.double(), Q.double(), Q.double()).startswith("q must be float16, bfloat16 or float32")
    long = Q[:, :1].expand(2, 2**30 + 1, 8)
    assert refusal(long, Q, Q) == "q must have at most 1073741824 rows a head; got 1073741825"
    assert refusal(Q, long, long) == "k must have at most 1073741824 rows a head; got 1073741825"
