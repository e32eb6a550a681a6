"""FlashAttention-2 backward: certified derivatives, the definition, every order of additions, and autograd."""

import itertools
import math

import numpy as np
import pytest

from fdmath import AccState, flash_attention, flash_attention_backward, merge, sequential
from fdmath.attention.gradient_budget import gradient_budget
from fdmath.attention.reference import attention_gradient
from tests.algebra.libraries import Library, dtype_name, holds, same, values
from tests.attention.calls import CALLS, INF, NAN, Call, random_call
from tests.attention.test_flash import spans

BLOCKS = [(2, 3), (3, 2), (None, None), (1, 1)]
SMALL = {
    "grouped heads, causal": random_call(1, (2, 1), 2, 3, 2, 1, causal=True),
    "masked rows and keys": random_call(2, None, 3, 3, 2, mask=np.array([[1, 1, 0], [0, 0, 0], [1, 1, 0]], bool)),
    "causal, empty rows": random_call(3, None, 3, 2, 2, causal=True),
    "scores near 100": random_call(4, None, 2, 3, 1, scale=100.0),
    "ties": Call(np.zeros((2, 2)), np.ones((3, 2)), np.arange(6.0).reshape(3, 2)),
    "a lone key": random_call(5, (2, 1), 1, 1, 1, 2),
}


def losses(call, seed=6):
    """The gradients do and dlse of a loss, as float64 numbers that every format holds."""
    rng = np.random.default_rng(seed)
    shape = (*call.q.shape[:-1], call.v.shape[-1])
    return rng.integers(-4, 5, shape) / 2.0, rng.integers(-4, 5, shape[:-1]) / 2.0


def gradients(lib, call, do, dlse, dtype="float64", block_m=None, block_n=None, **options):
    """(dq, dk, dv) of the call by FlashAttention-2, from the o and lse of its own forward."""
    arrays, blocks = call.arrays(lib, dtype), {"block_m": block_m, "block_n": block_n}
    o, lse = flash_attention(*arrays, **blocks, **call.options(lib))
    do, dlse = lib.array(do, dtype), None if dlse is None else lib.array(dlse, dtype_name(lse))
    return flash_attention_backward(do, dlse, *arrays, o, lse, **blocks, **call.options(lib), **options)


def bounds(lib, call, do, dlse, dtype="float64", block_n=None):
    """The GradientBudget of `gradients`."""
    o, lse = call.budget(dtype, spans(call, block_n), AccState, sequential)
    return gradient_budget(do, dlse, *call.arrays(lib, dtype), of_o=o, of_lse=lse, causal=call.causal, scale=call.scale,
                           mask=call.mask)


def within(got, right, budget):
    """Nothing; fails unless each gradient lies within its budget of the right one, and NaN never does."""
    for name, g, r, b in zip(("dq", "dk", "dv"), got, right, budget, strict=True):
        assert tuple(g.shape) == r.shape == b.shape
        assert np.all(np.abs(values(g) - r) <= b), f"{name}: {np.max(np.abs(values(g) - r) / b)} of the budget"


# Against the oracle and the definition


def certified(call, do, dlse):
    """(dq, dk, dv) element by element, as balls that certainly hold them: derivatives along each axis, paired."""
    oracle = pytest.importorskip("fdmath.oracle")
    arrays, gradients = (call.q, call.k, call.v), []
    for which, x in enumerate(arrays):
        gradient = np.empty(x.shape, dtype=object)
        for at in np.ndindex(*x.shape):
            along = [np.zeros(y.shape) for y in arrays]
            along[which][at] = 1.0
            slope = oracle.certified_attention_jvp(*arrays, *along, **call.options(Library("numpy")))
            gradient[at] = sum(do.flat * slope.o_ball.ravel()) + sum(dlse.flat * slope.lse_ball.ravel())
        gradients.append(gradient)
    return gradients


@pytest.mark.parametrize("call", SMALL.values(), ids=SMALL)
def test_gradients_are_the_certified_derivative(lib, call):
    flint = pytest.importorskip("flint")
    do, dlse = losses(call)
    with flint.ctx.workprec(200):
        right = certified(call, do, dlse)
        for dtype, by in itertools.product(("float32", "float64"), ("columns", "rows")):
            got = gradients(lib, call, do, dlse, dtype, 2, 2, by=by)
            for g, ball, budget in zip(got, right, bounds(lib, call, do, dlse, dtype, 2), strict=True):
                for x, exact, bound in zip(values(g).flat, ball.flat, budget.flat, strict=True):
                    assert abs(exact - x) <= bound  # certain, or an error: a ball across the bound is no pass


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_any_blocks_give_the_gradient_by_definition(lib, call):
    do, dlse = losses(call)
    options = call.options(Library("numpy"))
    for loss in (dlse, None):
        right = attention_gradient(do, loss, call.q, call.k, call.v, **options)
        for (block_m, block_n), by in itertools.product(BLOCKS[:3], ("columns", "rows")):
            got = gradients(lib, call, do, loss, "float64", block_m, block_n, by=by)
            budget = bounds(lib, call, do, loss, "float64", block_n)
            within(got, right, [2 * b for b in budget])  # the definition rounds as much
            assert all(dtype_name(g) == "float64" for g in got)
        got = gradients(lib, call, do, loss, "float32", 2, 3)
        within(got, right, bounds(lib, call, do, loss, "float32", 3))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_16_bit_gradients_are_rounded_once(lib, dtype):
    call = CALLS["grouped heads, dv < d"]
    do, dlse = losses(call)
    right = attention_gradient(do, dlse, call.q, call.k, call.v)
    got, budget = gradients(lib, call, do, dlse, dtype, 2, 3), bounds(lib, call, do, dlse, dtype, 3)
    within(got, right, budget)
    for g, r, b in zip(got, right, budget, strict=True):
        assert dtype_name(g) == dtype and np.max(np.abs(values(g) - r) / b) >= 0.01  # else an empty promise


def test_a_zero_gradient_is_rejected(lib):
    # faults:I3
    call = CALLS["causal, N > Nq"]
    do, dlse = losses(call)
    right = attention_gradient(do, dlse, call.q, call.k, call.v, causal=True)
    for x, budget in zip(right, bounds(lib, call, do, dlse), strict=True):
        assert np.max(np.abs(x) / budget) >= 1e6  # two formats apart, not a tolerance


def test_a_gradient_worked_by_hand(lib):
    # q = 0 makes p = ¼ for each of 4 keys: o = 3, ds = 2(v − 3) + 1 = (−3, −1, 1, 7), every sum exact.
    k, v = np.array([[1.0], [0.0], [2.0], [-1.0]]), np.array([[1.0], [2.0], [3.0], [6.0]])
    call = Call(np.zeros((1, 1)), k, v, scale=0.5)
    for by, dtype in itertools.product(("columns", "rows"), ("float16", "bfloat16", "float64")):
        got = gradients(lib, call, [[8.0]], [4.0], dtype, 1, 2, by=by)
        near = [np.array([[-4.0]]), np.zeros((4, 1)), np.full((4, 1), 2.0)]
        within(got, near, bounds(lib, call, np.array([[8.0]]), np.array([4.0]), dtype, 2))


def test_a_loss_on_lse_alone(lib):
    # faults:H1: two keys of scores 0 and 1 with values 0 and 1, the gradient of lse is p·k.
    call = Call(np.ones((1, 1)), np.array([[0.0], [1.0]]), np.array([[0.0], [1.0]]))
    dq, dk, dv = gradients(lib, call, np.zeros((1, 1)), np.ones(1), "float64", 1, 1)
    p = 1 / (1 + math.exp(-1))
    assert abs(dq.item() - p) <= 8 * 2.0**-53 and holds(dv, [[0.0], [0.0]])  # three exponentials of e⁰ and e⁻¹
    assert f"{gradients(lib, call, np.ones((1, 1)), None)[0].item():.4f}" == "0.1966"


def test_delta_is_the_row_sum_of_p_dp():
    # claims:B62: D = rowsum(do∘o) = rowsum(P∘dP), so a gradient of scores sums to dlse over the keys.
    call = random_call(7, (2, 2), 3, 5, 2)
    do, dlse = losses(call)
    k = np.concatenate([call.k[..., :1], np.ones((2, 5, 1))], axis=-1)  # a component that all keys share
    ones = Call(call.q, k, call.v, scale=1.0)
    dq, _, _ = gradients(Library("numpy"), ones, do, dlse)
    budget = bounds(Library("numpy"), ones, do, dlse).dq[..., 1]
    assert np.all(np.abs(dq[..., 1] - dlse) <= budget)


@pytest.mark.parametrize("causal", [False, True])
def test_larger_calls_and_sampled_orders(lib, causal):
    call = random_call(21, (4, 2), 127, 131, 16, 8, causal=causal)
    do, dlse = losses(call)
    right = attention_gradient(do, dlse, call.q, call.k, call.v, causal=causal)
    budget, rng = bounds(lib, call, do, dlse, "float32", 16), np.random.default_rng(22)
    for by, count in (("columns", 9), ("rows", 4)):
        got = gradients(lib, call, do, dlse, "float32", 32, 16, by=by, order=rng.permutation(count))
        within(got, right, budget)


# Groups, parts, saved statistics


def test_a_group_gets_the_sum_of_its_heads(lib):
    # faults:G4, claims:B43
    call = random_call(8, (4, 2), 3, 5, 2, 3)
    do, dlse = losses(call)
    k, v = call.repeated()
    dq, dk, dv = gradients(lib, Call(call.q, k, v), do, dlse, "float64", 2, 2)
    got = gradients(lib, call, do, dlse, "float64", 2, 2)
    sums = (values(dq), *(values(x).reshape(2, 2, *x.shape[1:]).sum(axis=1) for x in (dk, dv)))
    within(got, sums, [2 * b for b in bounds(lib, call, do, dlse, "float64", 2)])  # two computations


def test_parts_with_the_merged_state_add_up(lib):
    # faults:H2, H4: each part takes o and lse of the whole; its own would be another function's gradient.
    call = random_call(9, (2, 1), 3, 7, 2)
    do, dlse = losses(call)
    q, k, v = call.arrays(lib, "float64")
    parts = [(k[:, a:b], v[:, a:b]) for a, b in ((0, 3), (3, 7))]
    o, lse = merge(*(flash_attention(q, *part, block_n=2) for part in parts))
    send = [lib.array(x, "float64") for x in (do, dlse)]
    shares = [[values(g) for g in flash_attention_backward(*send, q, *part, o, lse, block_n=2)] for part in parts]
    got = (shares[0][0] + shares[1][0], *(np.concatenate(pair, axis=1) for pair in list(zip(*shares, strict=True))[1:]))
    right = attention_gradient(do, dlse, call.q, call.k, call.v)
    within(got, right, [3 * b for b in bounds(lib, call, do, dlse, "float64", 2)])  # a merge, two calls, and a sum


def test_16_bit_inputs_take_a_float32_state(lib):
    # What merged parts of a 16-bit call are: o and do keep their bits.
    call = CALLS["grouped heads, dv < d"]
    do, dlse = losses(call)
    arrays, (o, lse) = call.arrays(lib, "bfloat16"), flash_attention(*call.arrays(lib, "float32"))
    send = [lib.array(x, "float32") for x in (do, dlse)]
    got = flash_attention_backward(*send, *arrays, o, lse)
    coarse = [lib.array(x, "bfloat16") for x in (do, values(o))]
    narrow = flash_attention_backward(coarse[0], send[1], *arrays, coarse[1], lse)
    assert all(dtype_name(g) == "bfloat16" for g in got) and not all(map(same, got, narrow))
    within(got, attention_gradient(do, dlse, call.q, call.k, call.v), bounds(lib, call, do, dlse, "bfloat16"))


def test_the_causal_flag_is_obeyed_in_both_directions(lib):
    # faults:H7: without it the last key of the first query counts, with it it must not.
    call = random_call(10, (1, 1), 2, 2, 2)
    first = np.array([[[1.0, 1.0], [0.0, 0.0]]])  # a loss on the first query alone
    _, dk, dv = gradients(lib, call, first, None, "float64", 1, 1)
    assert values(dk)[0, 1].any() and values(dv)[0, 1].any()
    _, dk, dv = gradients(lib, Call(call.q, call.k, call.v, causal=True), first, None, "float64", 1, 1)
    assert not values(dk)[0, 1].any() and not values(dv)[0, 1].any() and values(dv)[0, 0].any()


def test_arrays_that_do_not_lie_in_a_row(lib):
    # faults:H13
    call = random_call(11, (2, 1), 3, 5, 4)
    do, dlse = losses(call)
    arrays = call.arrays(lib, "float64")
    o, lse = flash_attention(*arrays)
    do, dlse = lib.array(do, "float64"), lib.array(dlse, "float64")
    turned = [lib.array(values(x).swapaxes(-1, -2), "float64").swapaxes(-1, -2) for x in (do, *arrays, o)]
    got = flash_attention_backward(turned[0], dlse, *turned[1:], lse)
    assert all(map(same, got, flash_attention_backward(do, dlse, *arrays, o, lse)))


# The order of additions


@pytest.mark.parametrize("by", ["columns", "rows"])
def test_every_order_of_workers_is_right(lib, by):
    call = random_call(12, (2, 1), 4, 4, 3, causal=True)
    do, dlse = losses(call)
    right, budget = attention_gradient(do, dlse, call.q, call.k, call.v, causal=True), bounds(
        lib, call, do, dlse, "float32", 1)  # fmt: skip
    found = set()
    for order in itertools.permutations(range(4)):
        got = gradients(lib, call, do, dlse, "float32", 1, 1, by=by, order=order)
        within(got, right, budget)
        found.add(tuple(values(got[0] if by == "columns" else got[1]).flat))
        kept = got[1:] if by == "columns" else got[:1]
        first = gradients(lib, call, do, dlse, "float32", 1, 1, by=by)
        assert all(map(same, kept, first[1:] if by == "columns" else first[:1]))  # what a worker keeps does not move
    assert len(found) > 1  # claims:B39: what is added in HBM does


# Empty rows


@pytest.mark.parametrize("by", ["columns", "rows"])
def test_padding_has_no_gradient_and_spoils_none(lib, by):
    # faults:H9, H10: NaN in what nobody sees, and in do and dlse of a row that sees nothing.
    call, mask = random_call(13, (4, 2), 3, 6, 2, batch=(2,)), np.ones((2, 1, 3, 6), dtype=bool)
    mask[..., 4:], mask[:, :, 2], mask[1] = False, False, False
    rows, keys = mask.any(axis=-1)[..., None], mask.any(axis=-2)[..., None]
    do, dlse = losses(call)

    def run(poison):
        arrays = (np.where(seen, x, poison) for seen, x in ((rows, call.q), (keys, call.k), (keys, call.v)))
        loss = np.where(rows, do, poison), np.where(rows[..., 0], dlse, poison)
        return gradients(lib, Call(*arrays, mask=mask), *loss, "float64", 2, 4, by=by)

    clean = run(0.0)
    for poison in (NAN, INF):
        assert all(map(same, run(poison), clean))
    hidden = (~mask.any(axis=-1), ~mask.any(axis=-2), ~mask.any(axis=-2))
    for g, none in zip(clean, hidden, strict=True):
        assert not values(g)[np.broadcast_to(none, g.shape[:-1])].any() and values(g).any()


def test_causal_rows_without_a_key_have_no_gradient(lib):
    call = random_call(14, (2, 1), 5, 2, 3, causal=True)
    spoiled = Call(np.where(np.arange(5)[:, None] < 3, NAN, call.q), call.k, call.v, causal=True)
    do, dlse = losses(call)
    got, clean = (gradients(lib, c, do, dlse, "float64", 2, 2) for c in (spoiled, call))
    assert all(map(same, got, clean)) and not values(clean[0])[:, :3].any() and values(clean[0])[:, 3:].any()


@pytest.mark.parametrize("by", ["columns", "rows"])
def test_an_empty_row_does_not_add_up_the_values(lib, by):
    # The first query sees no key. The values' sum overflows: even 1 as its do would give 0·∞ = NaN.
    huge = 2.0 ** (np.finfo("float32").maxexp - 1)
    call = Call(np.ones((2, 1)), np.full((1, 1), 2.0), np.full((1, 2), huge), causal=True, scale=1.0)
    do, dlse = np.array([[NAN, NAN], [0.5, -0.5]]), np.array([NAN, 1.0])
    dq, dk, dv = gradients(lib, call, do, dlse, "float32", by=by)
    assert holds(dq, [[0.0], [2.0]]) and holds(dk, [[1.0]]) and holds(dv, [[0.5, -0.5]])


def test_without_keys_the_gradient_is_zero(lib):
    # faults:H8
    call = random_call(15, (2, 1), 3, 0, 2, 4)
    dq, dk, dv = gradients(lib, call, *losses(call))
    assert holds(dq, np.zeros((2, 3, 2))) and tuple(dk.shape) == (1, 0, 2) and tuple(dv.shape) == (1, 0, 4)


# Through torch


@pytest.mark.parametrize("name", ["grouped heads, dv < d", "causal, N > Nq", "mask and causal", "causal, empty rows"])
def test_autograd_takes_this_gradient(torch_lib, name):
    call, torch = CALLS[name], torch_lib.module
    arrays = [x.requires_grad_() for x in call.arrays(torch_lib, "float64")]
    options = {"block_m": 2, "block_n": 3, **call.options(torch_lib)}
    o, lse = flash_attention(*arrays, **options)
    do, dlse = (torch_lib.array(x, "float64") for x in losses(call))
    got = torch.autograd.grad((o, lse), arrays, (do, dlse), retain_graph=True)
    expected = flash_attention_backward(do, dlse, *(x.detach() for x in arrays), o.detach(), lse.detach(), **options)
    assert all(map(same, got, expected))
    for outputs, losses_of in ((o, (do, None)), (lse, (torch.zeros_like(do), dlse))):
        got = torch.autograd.grad(outputs, arrays, losses_of[0] if outputs is o else dlse, retain_graph=True)
        fixed = [x.detach() for x in (*arrays, o, lse)]
        assert all(map(same, got, flash_attention_backward(*losses_of, *fixed, **options)))


def test_torch_checks_it_by_finite_differences(torch_lib):
    arrays = [x.requires_grad_() for x in random_call(16, (2, 1), 3, 5, 2, causal=True).arrays(torch_lib, "float64")]
    def run(*leaves):
        return tuple(flash_attention(*leaves, block_m=2, block_n=2, causal=True))
    assert torch_lib.module.autograd.gradcheck(run, arrays, fast_mode=True)


def test_a_second_derivative_is_refused_by_name(torch_lib):
    torch, call = torch_lib.module, random_call(17, (1, 1), 2, 3, 2)
    arrays = [x.requires_grad_() for x in call.arrays(torch_lib, "float64")]
    o, lse = flash_attention(*arrays)
    dq, = torch.autograd.grad(o.sum(), arrays[0], create_graph=True)
    with pytest.raises(RuntimeError, match="flash_attention has no double backward"):
        torch.autograd.grad(dq.sum(), arrays[0])
    dq, _, _ = flash_attention_backward(torch.ones_like(o), None, *arrays, o, lse)
    with pytest.raises(RuntimeError, match="flash_attention_backward has no double backward"):
        dq.sum().backward()


def test_only_o_and_lse_are_saved(torch_lib):
    # Nothing of the size of the scores is kept: memory is linear in N.
    saved = []
    arrays = [x.requires_grad_() for x in random_call(18, (1, 1), 40, 40, 2).arrays(torch_lib, "float64")]
    with torch_lib.module.autograd.graph.saved_tensors_hooks(lambda x: saved.append(tuple(x.shape)) or x, lambda x: x):
        flash_attention(*arrays, block_m=8, block_n=8)
    assert sorted(saved) == [(1, 40)] + 4 * [(1, 40, 2)]


# Bad input


def test_bad_input_is_named(lib):
    call = random_call(19, (2, 1), 3, 5, 2)
    do, dlse = (lib.array(x, "float32") for x in losses(call))
    q, k, v = call.arrays(lib, "float32")
    o, lse = flash_attention(q, k, v)

    def run(do=do, dlse=dlse, o=o, lse=lse, **options):
        return flash_attention_backward(do, dlse, q, k, v, o, lse, **options)

    assert all(map(same, run(), run(block_m=128)))
    with pytest.raises(TypeError, match="lse must be the lse that the forward returned"):
        run(lse=None)
    for name, bad, expected in (("do", do[:, :2], r"\(2, 3, 2\)"), ("dlse", dlse[:1], r"\(2, 3\)"),
                                ("o", o[..., :1], r"\(2, 3, 2\)"), ("lse", lse[..., None], r"\(2, 3\)")):
        with pytest.raises(ValueError, match=f"^{name} must have shape {expected}; got "):
            run(**{name: bad})
    wrong = lib.array(values(o), "float16")
    with pytest.raises(TypeError, match="do must have dtype float32; got float16"):
        run(do=wrong)
    with pytest.raises(TypeError, match="o must have dtype float32; got float16"):
        run(o=wrong)
    with pytest.raises(TypeError, match="lse must have dtype float32; got float64"):
        run(lse=lib.array(values(lse), "float64"))
    with pytest.raises(TypeError, match="dlse must have dtype float32; got float64"):
        run(dlse=lib.array(values(dlse), "float64"))
    with pytest.raises(ValueError, match='by must be "columns" or "rows"; got \'warps\''):
        run(by="warps")
    with pytest.raises(ValueError, match=r"by must be .*; got \['rows'\]"):
        run(by=["rows"])
    with pytest.raises(TypeError, match="counts must be a Counts or None; got int"):
        run(counts=5)
    with pytest.raises(ValueError, match="order must hold each of the 2 blocks 0 to 1 once"):
        run(by="rows", block_m=2, order=[1])
    with pytest.raises(TypeError, match="do must be a NumPy array or a torch tensor; got list"):
        run(do=[1.0])


def test_bounds_are_those_of_the_scores():
    # The bound grows with the level of the scores: lse costs |lse|·u (claims:B14).
    low, high = (bounds(Library("numpy"), random_call(20, None, 2, 3, 2, scale=s), *losses(SMALL["ties"]), "float32").dv
                 for s in (1.0, 1000.0))
    assert np.max(high) >= 50 * np.max(low)
