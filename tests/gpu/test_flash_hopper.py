"""The Hopper kernels on their card: the budgets of the readable kernel, its errors, its bits from run to run."""

import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath import LSEState, attention, flash_attention  # noqa: E402
from fdmath.attention.reference import attention_gradient  # noqa: E402
from fdmath.kernels.flash import flash_backward, flash_forward  # noqa: E402
from fdmath.kernels.flash_hopper import HopperTile, flash_forward_hopper, refusal  # noqa: E402
from fdmath.kernels.flash_hopper_backward import flash_backward_hopper  # noqa: E402
from fdmath.verify import reference  # noqa: E402
from tests.attention.calls import Call, numbers  # noqa: E402
from tests.gpu.tensors import attended  # noqa: E402
from tests.kernels.flash_calls import FAR, empty_is_nan, judge_gradients, output_gradients, state_budget, tensors  # noqa: E402

FORMATS = ("float16", "bfloat16")
SHAPES = [(64, 64, 1), (128, 128, 4), (80, 80, 3), (40, 64, 2), (65, 128, 2)]
"""(d, dv, query heads a KV head) of the random calls."""
RANDOM = 3
"""Random calls of each shape, format and mask."""


@pytest.fixture(autouse=True)
def hopper():
    """The same random numbers in every test, on a card of this generation."""
    if torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("a card of compute capability 9 is needed")
    torch.manual_seed(0)


def normal(*shape, dtype=torch.bfloat16):
    """Normal numbers on the device."""
    return torch.randn(*shape, device="cuda").to(dtype)


def equal(found, want):
    """Whether tensors are equal bit for bit."""
    return all(torch.equal(a, b) for a, b in zip(found, want, strict=True))


def judge(call, dtype):
    """Nothing; the state of a call is within its budget, and so are its gradients where the kernel has them."""
    state = flash_forward_hopper(*tensors(call, dtype, "cuda"), causal=call.causal, scale=call.scale)
    right = reference.attention(call.q, call.k, call.v, call.factor(), call.visible())
    found = right.judge(LSEState(*(x.cpu().double().numpy() for x in state)),
                        state_budget(call, dtype, HopperTile().block_n))
    assert found.verdict == "pass", found.detail
    if min(call.q.shape[-1], call.v.shape[-1]) > 64:
        do, dlse = output_gradients(call, dtype, "cuda")
        gradients = flash_backward_hopper(do, dlse, *tensors(call, dtype, "cuda"), *state, causal=call.causal,
                                          scale=call.scale)
        judge_gradients(call, dtype, do, dlse, gradients, HopperTile().block_n)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", SHAPES)
def test_random_calls_are_within_their_budgets(shape, dtype, causal):
    (dim, width, group), rng = shape, np.random.default_rng(sum(shape))
    for _ in range(RANDOM):
        batch, kv, (queries, keys) = rng.integers(1, 3), rng.integers(1, 3), (int(x) for x in rng.integers(1, 400, 2))
        judge(Call(*(numbers(rng, batch, h, n, w) for h, n, w in ((kv * group, queries, dim), (kv, keys, dim),
                                                                  (kv, keys, width))), causal=causal), dtype)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("scale", [0.0, -0.2, 3.0])
def test_any_scale(scale, dtype):
    rng = np.random.default_rng(7)
    judge(Call(*(numbers(rng, 2, n, 96) for n in (150, 333, 333)), causal=True, scale=scale), dtype)


@pytest.mark.parametrize("dtype", FORMATS)
def test_keys_beyond_the_end_may_have_any_weight(dtype):
    wide = Call(*(np.concatenate([x, np.zeros((*x.shape[:-1], 64))], -1) for x in (FAR.q, FAR.k, FAR.v)),
                scale=FAR.scale)
    judge(wide, dtype)


def test_small_weights_beside_a_sink_whose_value_is_0():
    k = torch.zeros(1, 1, 1000, 128, device="cuda", dtype=torch.float16)
    k[..., 0, 0] = 18.0  # every other key has a weight of e^-18, below what float16 holds
    q, v = torch.zeros_like(k[..., :1, :]), torch.ones_like(k)
    q[..., 0], v[..., 0, :] = 1.0, 0.0
    o, _ = flash_forward_hopper(q, k, v, scale=1.0)
    small = 999 * math.exp(-18)
    assert (abs(o.double() - small / (1 + small)) <= 2.0**-24).all()  # half a step of the output, and as much again


def test_auto_takes_it_where_it_pays_and_the_readable_kernel_stays_to_be_had():
    q, k, v = (normal(1, 4, 2048, 128, dtype=torch.float16).requires_grad_() for _ in range(3))
    for backend, forward in (("auto", flash_forward_hopper), ("triton", flash_forward)):
        found = flash_attention(q, k, v, causal=True, backend=backend)
        assert equal(found, forward(q.detach(), k.detach(), v.detach(), causal=True))
        wanted = flash_backward(torch.ones_like(q), None, q.detach(), k.detach(), v.detach(), *found, causal=True)
        assert equal(torch.autograd.grad(found.o.sum(), (q, k, v)), wanted)
    for cut in ([x[..., :64] for x in (q, k, v)], [x[..., :1023, :] for x in (q, k, v)]):
        assert equal(flash_attention(*cut), flash_forward(*(x.detach() for x in cut)))


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_errors_are_those_of_the_readable_kernel(dim, causal):
    q, k, v = (normal(1, 2, 4096, dim) for _ in range(3))
    right = attention(q.double(), k.double(), v.double(), causal=causal)
    ours, beside = (f(q, k, v, causal=causal) for f in (flash_forward_hopper, flash_forward))
    found = [(ours.o, beside.o, right.o)]
    if dim == 128:
        do = normal(1, 2, 4096, dim)
        wanted = attention_gradient(do.double(), None, q.double(), k.double(), v.double(), causal=causal)
        found += zip(flash_backward_hopper(do, None, q, k, v, *ours, causal=causal),
                     flash_backward(do, None, q, k, v, *beside, causal=causal), wanted, strict=True)
    for a, b, x in found:
        errors = [((y.double() - x).norm() / x.norm()).item() for y in (a, b)]
        assert errors[0] <= 1.02 * errors[1]  # asked of every kernel beside torch's: at most 2 % more


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dim", [64, 128])
def test_the_same_bits_every_time_over_any_strides(dim, causal):
    q, k, v = (normal(2, n, h, dim).transpose(1, 2) for n, h in ((1500, 8), (1700, 2), (1700, 2)))
    state = flash_forward_hopper(q, k, v, causal=causal)
    plain = [x.contiguous() for x in (q, k, v)]
    for _ in range(20):
        assert equal(flash_forward_hopper(*plain, causal=causal), state)


def test_rows_without_keys_have_no_gradient_and_strides_move_no_bit_of_dk_and_dv():
    q, k, v, do = (normal(1, n, h, 128).transpose(1, 2) for n, h in ((300, 4), (111, 2), (111, 2), (300, 4)))
    state = flash_forward_hopper(q, k, v, causal=True)
    dq, dk, dv = flash_backward_hopper(do, torch.ones_like(state.lse), q, k, v, *state, causal=True)
    assert (dq[:, :, :189] == 0).all() and all(x.isfinite().all() for x in (dq, dk, dv))
    for _ in range(20):
        again = flash_backward_hopper(do.contiguous(), torch.ones_like(state.lse), *(x.contiguous() for x in (q, k, v)),
                                      *state, causal=True)
        assert equal(again[1:], (dk, dv))


def test_every_number_of_a_result_is_written():
    for do, q, k, v, causal in attended():
        with empty_is_nan():
            results = state = flash_forward_hopper(q, k, v, causal=causal)
            if q.shape[-1] > 64:
                results = (*state, *flash_backward_hopper(do, None, q, k, v, *state, causal=causal))
        assert not any(x.isnan().any() for x in results)


def test_rows_without_keys_are_nothing_whatever_the_values_hold():
    q, k, v = normal(1, 4, 300, 64), normal(1, 2, 111, 64), normal(1, 2, 111, 64)
    v[..., 0, :] = math.nan
    o, lse = flash_forward_hopper(q, k, v, causal=True)
    assert (o[:, :, :189] == 0).all() and (lse[:, :, :189] == -math.inf).all() and lse[:, :, 189:].isfinite().all()
    assert o[:, :, 189:].isnan().all()


def test_calls_without_queries_or_keys_and_what_is_refused():
    q, k = normal(1, 2, 5, 64), normal(1, 2, 0, 64)
    o, lse = flash_forward_hopper(q, k, k)
    assert (o == 0).all() and (lse == -math.inf).all()
    assert flash_forward_hopper(q[:, :, :0], q, q).o.shape == (1, 2, 0, 64)
    assert refusal(q, q, q) is None
    with pytest.raises(RuntimeError, match="both from 65 to 128; got 64 and 64"):
        flash_backward_hopper(q, None, q, q, q, *flash_forward_hopper(q, q, q))
    with pytest.raises(RuntimeError, match="multiplies float16 and bfloat16; got torch.float32"):
        flash_forward_hopper(*[q.float()] * 3)


def test_tensors_beyond_2_to_the_31_numbers_are_read_at_their_end():
    if torch.cuda.get_device_properties(0).total_memory < 40 * 2**30:
        pytest.skip("needs 40 GiB of memory")
    keys = 2**23 + 1000  # of 2 heads of 128: 2³¹ numbers and more
    k, v = (torch.zeros(1, keys, 2, 128, device="cuda", dtype=torch.float16).transpose(1, 2) for _ in range(2))
    v[:, :, -1] = 1000
    o, lse = flash_forward_hopper(torch.zeros(1, 2, 64, 128, device="cuda", dtype=torch.float16), k, v)
    assert (lse - math.log(keys)).abs().max().item() <= 8 * 2**-24 * math.log(keys)  # a few roundings of lse
    mean = torch.tensor(1000 / keys, dtype=torch.float16, device="cuda")
    assert ((o - mean).abs() <= 2 * (torch.nextafter(mean, mean + 1) - mean)).all()
