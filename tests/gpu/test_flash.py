"""The FlashAttention-2 kernels on a CUDA device: budgets, errors beside torch, bits, memory, far addresses."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from torch.nn.attention import SDPBackend, sdpa_kernel  # noqa: E402

from fdmath import LSEState, attention, flash_attention  # noqa: E402
from fdmath.attention.reference import attention_gradient  # noqa: E402
from fdmath.kernels.flash import flash_attention_by_kernel, flash_backward, flash_forward  # noqa: E402
from fdmath.kernels.flash_call import prepare  # noqa: E402
from fdmath.verify import reference  # noqa: E402
from tests.attention.calls import Call, numbers  # noqa: E402
from tests.gpu.tensors import attended  # noqa: E402
from tests.kernels.flash_calls import FAR, empty_is_nan, judge_gradients, output_gradients, state_budget, tensors  # noqa: E402

FORMATS = ("float16", "bfloat16", "float32")
SHAPES = [(64, 64, 1), (128, 128, 4), (80, 80, 3), (96, 40, 2), (256, 256, 1), (5, 3, 2)]
"""(d, dv, query heads a KV head) of the random calls: each is a set of kernels of its own."""
RANDOM = 6
"""Random calls of each shape, format and mask."""


@pytest.fixture(autouse=True)
def seed():
    """The same random numbers in every run."""
    torch.manual_seed(0)


def normal(*shape, dtype=torch.bfloat16):
    """Normal numbers on the device."""
    return torch.randn(*shape, device="cuda").to(dtype)


def equal(found, want):
    """Whether tensors are equal bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_random_calls_and_their_gradients_are_within_their_budgets(shape, dtype, causal):
    (dim, width, group), rng = shape, np.random.default_rng(sum(shape))
    if dtype == "float32" and dim > 128:
        pytest.skip("kernels of float32 take minutes to compile there")
    for n in range(RANDOM):
        batch, kv, (queries, keys) = rng.integers(1, 3), rng.integers(1, 3), (int(x) for x in rng.integers(1, 300, 2))
        call = Call(*(numbers(rng, batch, h, n, w) for h, n, w in ((kv * group, queries, dim), (kv, keys, dim),
                                                                   (kv, keys, width))), causal=causal)
        q, k, v = tensors(call, dtype, "cuda")
        block_n = prepare(q, k, v, causal, None).tile("forward").block_n
        state = flash_forward(q, k, v, causal=causal)
        right = reference.attention(call.q, call.k, call.v, call.scale, call.visible())
        found = right.judge(LSEState(*(x.cpu().double().numpy() for x in state)), state_budget(call, dtype, block_n))
        assert found.verdict == "pass", found.detail
        do, dlse = output_gradients(call, dtype, "cuda")
        for deterministic in (True, False):
            gradients = flash_backward(do, dlse, q, k, v, *state, causal=causal, deterministic=deterministic)
            judge_gradients(call, dtype, do, dlse, gradients, block_n)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_errors_are_those_of_torchs_own_kernel(dim, causal):
    q, k, v, do = (normal(1, 2, 4096, dim) for _ in range(4))
    wide = [x.double() for x in (q, k, v)]
    right = attention(*wide, causal=causal).o, *attention_gradient(do.double(), None, *wide, causal=causal)
    o, lse = flash_forward(q, k, v, causal=causal)
    ours = o, *flash_backward(do, None, q, k, v, o, lse, causal=causal)
    leaves = [x.clone().requires_grad_() for x in (q, k, v)]
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
        theirs = torch.nn.functional.scaled_dot_product_attention(*leaves, is_causal=causal)
    theirs = theirs.detach(), *torch.autograd.grad(theirs, leaves, do)
    for a, b, x in zip(ours, theirs, right, strict=True):
        error, beside = (((y.double() - x).norm() / x.norm()).item() for y in (a, b))
        assert error <= 1.02 * beside  # asked: at most 2 % more than a kernel that rounds the same things


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_the_same_bits_every_time(dim, causal):
    q, do = normal(2, 8, 1500, dim), normal(2, 8, 1500, dim)
    k, v = normal(2, 2, 1700, dim), normal(2, 2, 1700, dim)
    state = flash_forward(q, k, v, causal=causal)
    want = flash_backward(do, None, q, k, v, *state, causal=causal)
    for _ in range(20):
        assert equal(flash_forward(q, k, v, causal=causal), state)
        assert equal(flash_backward(do, None, q, k, v, *state, causal=causal), want)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_keys_beyond_the_end_may_have_any_weight(dtype, deterministic):
    q, k, v = tensors(FAR, dtype, "cuda")
    do, dlse = output_gradients(FAR, dtype, "cuda")
    state = flash_forward(q, k, v, scale=FAR.scale)
    found = flash_backward(do, dlse, q, k, v, *state, scale=FAR.scale, deterministic=deterministic)
    judge_gradients(FAR, dtype, do, dlse, found)


def test_strides_move_no_bit_and_cost_no_copy():
    arrays = [normal(2, 700, h, 128).transpose(1, 2) for h in (4, 2, 2)]
    plain = [x.contiguous() for x in arrays]
    call = prepare(*arrays, True, None)
    assert all(a.data_ptr() == b.data_ptr() for a, b in zip((call.q, call.k, call.v), arrays, strict=True))
    state = flash_forward(*arrays, causal=True)
    do = normal(2, 700, 4, 128).transpose(1, 2)
    assert equal(state, flash_forward(*plain, causal=True))
    assert equal(flash_backward(do, None, *arrays, *state, causal=True),
                 flash_backward(do.contiguous(), None, *plain, *state, causal=True))


def test_rows_without_keys_and_their_gradients_are_nothing():
    q, do, (k, v) = normal(1, 4, 300, 64), normal(1, 4, 300, 64), (normal(1, 2, 111, 64) for _ in range(2))
    o, lse = flash_forward(q, k, v, causal=True)
    assert (o[:, :, :189] == 0).all() and (lse[:, :, :189] == -math.inf).all() and lse[:, :, 189:].isfinite().all()
    dq, dk, dv = flash_backward(do, torch.ones_like(lse), q, k, v, o, lse, causal=True)
    assert (dq[:, :, :189] == 0).all() and all(x.isfinite().all() for x in (dq, dk, dv))
    alone = flash_forward(q[:, :, 189:], k, v, causal=True)
    rest = flash_backward(do[:, :, 189:], torch.ones_like(alone.lse), q[:, :, 189:], k, v, *alone, causal=True)
    for a, b in zip((dk, dv), rest[1:], strict=True):  # tiles begin elsewhere: the same sums in another order
        assert ((a.double() - b.double()).norm() / b.double().norm()).item() <= torch.finfo(a.dtype).eps


def test_every_number_of_a_result_is_written():
    for do, q, k, v, causal in attended():
        with empty_is_nan():
            state = flash_forward(q, k, v, causal=causal)
            found = [flash_backward(do, None, q, k, v, *state, causal=causal, deterministic=x) for x in (True, False)]
        assert not any(x.isnan().any() for results in (state, *found) for x in results)


def test_a_row_that_sees_no_key_is_nothing_beside_one_that_sees_nan():
    q, k = normal(1, 2, 2, 64), normal(1, 2, 1, 64)
    o, lse = flash_forward(q, k, torch.full_like(k, math.nan), causal=True)
    assert (o[:, :, 0] == 0).all() and (lse[:, :, 0] == -math.inf).all() and o[:, :, 1].isnan().all()


def test_a_scale_that_float32_cannot_hold_is_0():
    q, k, v = normal(1, 2, 5, 64), normal(1, 2, 128, 64), normal(1, 2, 128, 64)  # whole blocks: no tile needs a mask
    assert equal(flash_forward(q, k, v, scale=1e-50), flash_forward(q, k, v, scale=0.0))
    assert flash_forward(q, k, v, scale=1e-50).lse.isfinite().all()


def test_autograd_and_the_public_call_take_the_kernels():
    leaves = [normal(1, h, 257, 64).requires_grad_() for h in (4, 2, 2)]
    state = flash_attention(*leaves, causal=True)
    assert equal(state, flash_forward(*leaves, causal=True))
    do, dlse = normal(1, 4, 257, 64), normal(1, 4, 257, dtype=torch.float32)
    found = torch.autograd.grad(tuple(state), leaves, (do, dlse))
    assert equal(found, flash_backward(do, dlse, *leaves, *state, causal=True))
    first = torch.autograd.grad(flash_attention_by_kernel(*leaves, True, None).o, leaves, do, create_graph=True)
    with pytest.raises(RuntimeError, match="double backward"):
        torch.autograd.grad(first[0].sum(), leaves)


def test_memory_grows_with_the_length_alone():
    needed = []
    for length in (32768, 131072):
        q, k, v, do = (normal(1, 4, length, 128) for _ in range(4))
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        o, lse = flash_forward(q, k, v, causal=True)
        flash_backward(do, None, q, k, v, o, lse, causal=True)
        needed.append((torch.cuda.max_memory_allocated() - before) / length)
        assert needed[-1] <= 4 * (4 * 128 * 2 + 3 * 4) + 64  # a token: o, dq, dk and dv, and three numbers a head
        del q, k, v, do, o, lse
    assert needed[1] <= needed[0]


def test_tensors_beyond_2_to_the_31_numbers_are_read_and_written_at_their_end():
    if torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        pytest.skip("needs 40 GiB of memory")
    keys = 2**23 + 1000  # of 2 heads of 128: 2³¹ numbers and more
    k, v = (torch.zeros(1, keys, 2, 128, device="cuda", dtype=torch.float16).transpose(1, 2) for _ in range(2))
    q, do = torch.zeros(1, 2, 64, 128, device="cuda", dtype=torch.float16), normal(1, 2, 64, 128, dtype=torch.float16)
    v[:, :, -1] = 1000
    o, lse = flash_forward(q, k, v)  # all scores are 0: o is the mean, and every key has the same gradient
    assert (lse - math.log(keys)).abs().max().item() <= 8 * 2**-24 * math.log(keys)  # a few roundings of lse
    mean = torch.tensor(1000 / keys, dtype=torch.float16, device="cuda")
    assert ((o - mean).abs() <= 2 * (torch.nextafter(mean, mean + 1) - mean)).all()
    _, _, dv = flash_backward(do * 512, None, q, k, v, o, lse)
    assert dv[:, :, 0].abs().max() > 0 and (dv == dv[:, :, :1]).all()
