"""Gradients in torch, in o and in lse: finite differences, autograd against the definition, padding, empty rows."""

import math

import numpy as np
import pytest

from fdmath import AccState, attention, flat, partial_state, sequential, split_kv_attention, streams, tree
from fdmath.algebra.rounding import KAPPA, unit_roundoff
from fdmath.attention.reference import attention_gradient
from fdmath.attention.softmax import logsumexp, online_state, softmax_naive, softmax_online, softmax_safe
from tests.algebra.libraries import Library, dtype_name, holds, same, values
from tests.algebra.states import KINDS
from tests.attention.calls import CALLS, INF, NAN, Call, random_call, random_mask

SMALL = {
    "grouped heads, causal": random_call(1, (4, 2), 2, 5, 3, 2, causal=True),
    "masked rows and keys": random_call(2, (2, 1), 3, 5, 2, mask=random_mask(2, 2, 3, 5)),
    "causal, empty rows": random_call(3, (2, 1), 4, 2, 2, causal=True),
    "ties": Call(np.zeros((1, 2, 2)), np.ones((1, 5, 2)), np.arange(10.0).reshape(1, 5, 2)),
}


def leaves(arrays):
    """The arrays, each asking for its gradient."""
    return [x.requires_grad_() for x in arrays]


def weighed(state, seed=1):
    """A loss in o and lse with random weights; −∞ counts as 0."""
    rng = np.random.default_rng(seed)
    o, lse = state
    total = (o * o.new_tensor(rng.standard_normal(tuple(o.shape)))).sum()
    seen = lse.isfinite()
    return total + (lse.where(seen, lse.new_zeros(())) * lse.new_tensor(rng.standard_normal(tuple(lse.shape)))).sum()


@pytest.mark.parametrize("call", SMALL.values(), ids=SMALL)
@pytest.mark.parametrize("kind", KINDS)
def test_calls_have_the_derivative_of_what_they_compute(torch_lib, call, kind):
    torch, options = torch_lib.module, call.options(torch_lib)
    orders = (flat, sequential, tree, streams(2, then=flat))

    def losses(q, k, v):
        states = [attention(q, k, v, **options)]
        states += [split_kv_attention(q, k, v, tile=2, kind=kind, order=order, **options) for order in orders]
        return tuple(weighed(state) for state in states)

    assert torch.autograd.gradcheck(losses, leaves(call.arrays(torch_lib, "float64")), fast_mode=True)


@pytest.mark.parametrize("kind", KINDS)
def test_a_block_has_the_derivative_of_what_it_computes(torch_lib, kind):
    torch, rng = torch_lib.module, np.random.default_rng(4)
    scores, v = rng.standard_normal((2, 3, 4)), rng.standard_normal((2, 4, 2))
    scores[0, :2, 1] = 0.5  # ties, and one of them the maximum
    scores[1] = 0.5
    arrays = leaves(torch_lib.array(x, "float64") for x in (scores, v))
    assert torch.autograd.gradcheck(lambda s, x: tuple(partial_state(s, x, kind).finalize()), arrays)
    assert torch.autograd.gradcheck(lambda s, x: tuple(online_state(s, x, kind).finalize()), arrays)


def test_softmax_has_the_derivative_of_what_it_computes(torch_lib):
    torch = torch_lib.module
    scores = torch_lib.array(np.random.default_rng(5).standard_normal((3, 4)), "float64").requires_grad_()
    for function in (softmax_naive, softmax_safe, softmax_online, logsumexp):
        assert torch.autograd.gradcheck(function, [scores])


def test_the_reference_level_is_a_constant_of_differentiation(torch_lib):
    # m follows the scores but the state does not depend on it: its gradient alone is none.
    scores = torch_lib.array([[1.0, 2.0]]).requires_grad_()
    m, l, _ = partial_state(scores, torch_lib.array([[1.0], [2.0]]), AccState)
    assert not m.requires_grad and l.requires_grad


@pytest.mark.parametrize("call", {**CALLS, **SMALL}.values(), ids={**CALLS, **SMALL})
def test_the_gradient_by_definition_is_that_of_autograd(torch_lib, call):
    torch, options = torch_lib.module, call.options(torch_lib)
    rng = np.random.default_rng(6)
    arrays = leaves(call.arrays(torch_lib, "float64"))
    o, lse = attention(*arrays, **options)
    do = torch_lib.array(rng.standard_normal(tuple(o.shape)), "float64")
    for dlse in (None, torch_lib.array(rng.standard_normal(tuple(lse.shape)), "float64")):
        outputs, weights = (o, do) if dlse is None else ((o, lse), (do, dlse))
        expected = torch.autograd.grad(outputs, arrays, weights, retain_graph=True)
        ours = attention_gradient(do, dlse, *call.arrays(torch_lib, "float64"), **options)
        for g, e, x in zip(ours, expected, arrays, strict=True):
            assert dtype_name(g) == "float64" and tuple(g.shape) == tuple(x.shape)
            assert np.all(np.abs(values(g) - values(e)) <= difference(call, do, dlse))


def difference(call, do, dlse):
    """A bound on what two float64 computations of one gradient may differ by.

    An element of a gradient is a sum of at most 3n² products, n no smaller than any axis summed over, each of at
    most the product of the largest factors; it is computed in at most 3n nested roundings, and a weight in it by
    an exponential whose exponent errs by u(n + 1) times the largest score, and by κ u.
    """
    factors = [call.q, call.k, call.v, values(do), [0.0] if dlse is None else values(dlse), [call.factor()]]
    largest = [max(1.0, float(np.max(np.abs(x), initial=0.0))) for x in factors]
    n = sum(call.q.shape[-3:]) + sum(call.k.shape[-2:]) + call.v.shape[-1]
    score = largest[5] * n * largest[0] * largest[1]
    return 2 * 3 * n**2 * math.prod(largest) * (3 * n + (n + 1) * score + KAPPA) * unit_roundoff("float64")


def test_a_gradient_worked_by_hand(torch_lib):
    # q = 0 makes p = ¼ for each of 4 keys, so every sum is exact: ds = p(v − o)do + p·dlse, with do = 8, dlse = 4.
    q, v = torch_lib.array([[0.0]]), torch_lib.array([[1.0], [2.0], [3.0], [6.0]])
    k = torch_lib.array([[1.0], [0.0], [2.0], [-1.0]])
    do, dlse = torch_lib.array([[8.0]]), torch_lib.array([4.0])
    by_definition = attention_gradient(do, dlse, q, k, v, scale=0.5)
    arrays = leaves((q, k, v))
    by_autograd = torch_lib.module.autograd.grad(tuple(attention(*arrays, scale=0.5)), arrays, (do, dlse))
    # o = 3, ds = 2(v − 3) + 1 = (−3, −1, 1, 7), dq = ½ ds·k = ½(−3 + 2 − 7), dk = ½ ds q = 0, dv = p do = 2.
    for gradients in (by_definition, by_autograd):
        assert all(map(holds, gradients, ([[-4.0]], np.zeros((4, 1)), np.full((4, 1), 2.0))))


def test_a_loss_on_lse_alone(torch_lib):
    # faults:H1: ∂lse/∂s = p, here ½ each; nothing reaches v.
    arrays = leaves(torch_lib.array(x) for x in ([[1.0]], [[3.0], [3.0]], [[5.0], [7.0]]))
    for call in (attention, lambda q, k, v: split_kv_attention(q, k, v, tile=1)):
        dq, dk, dv = torch_lib.module.autograd.grad(call(*arrays).lse.sum(), arrays, allow_unused=True)
        assert holds(dq, [[3.0]]) and holds(dk, [[0.5], [0.5]])
        assert dv is None or holds(dv, [[0.0], [0.0]])


# Empty and unseen


@pytest.mark.parametrize("order", [flat, sequential, tree, streams(2)])
@pytest.mark.parametrize("kind", KINDS)
def test_padding_has_no_gradient_and_spoils_none(torch_lib, kind, order):
    # faults:H9, H10: what no query sees and what sees no key holds NaN or infinities, in q, k and v.
    torch, call = torch_lib.module, random_call(7, (4, 2), 3, 6, 2, batch=(2,))
    mask = np.ones((2, 1, 3, 6), dtype=bool)
    mask[..., 4:], mask[:, :, 2], mask[1] = False, False, False
    options = {"mask": torch_lib.mask(mask)}

    def gradients(program, poison):
        rows, keys = mask.any(axis=-1)[..., None], mask.any(axis=-2)[..., None]
        arrays = [np.where(rows, call.q, poison), np.where(keys, call.k, poison), np.where(keys, call.v, poison)]
        arrays = leaves(torch_lib.array(x, "float64") for x in arrays)
        return torch.autograd.grad(weighed(program(*arrays)), arrays)

    for program in (
        lambda q, k, v: split_kv_attention(q, k, v, tile=2, kind=kind, order=order, **options),
        lambda q, k, v: attention(q, k, v, **options),
    ):
        clean = gradients(program, 0.0)
        for poison in (NAN, INF, -INF):
            assert all(map(same, gradients(program, poison), clean))
        hidden = (~mask.any(axis=-1), ~mask.any(axis=-2), ~mask.any(axis=-2))
        for g, rows in zip(clean, hidden, strict=True):
            assert not values(g)[np.broadcast_to(rows, g.shape[:-1])].any() and values(g).any()


def test_the_gradient_by_definition_spares_padding(torch_lib):
    call = random_call(8, (2, 1), 3, 5, 2, mask=np.array([[True] * 4 + [False], [False] * 5, [True] * 4 + [False]]))
    mask = torch_lib.mask(call.mask)
    arrays = {name: torch_lib.array(getattr(call, name), "float64") for name in "qkv"}
    do, dlse = torch_lib.array(np.ones((2, 3, 2)), "float64"), torch_lib.array(np.ones((2, 3)), "float64")
    clean = attention_gradient(do, dlse, **arrays, mask=mask)
    for poison in (NAN, INF):
        bad = {"q": (1, call.q), "k": (4, call.k), "v": (4, call.v)}
        bad = {name: torch_lib.array(np.where(np.arange(x.shape[-2])[:, None] == row, poison, x), "float64")
               for name, (row, x) in bad.items()}  # fmt: skip
        assert all(map(same, attention_gradient(do, dlse, **bad, mask=mask), clean))


def test_without_keys_the_gradient_is_zero(torch_lib):
    # faults:H8
    torch = torch_lib.module
    for call in (attention, lambda q, k, v: split_kv_attention(q, k, v, num_splits=3)):
        arrays = leaves(torch_lib.array(np.ones(shape)) for shape in ((2, 3, 2), (1, 0, 2), (1, 0, 4)))
        o, lse = call(*arrays)
        dq, dk, dv = torch.autograd.grad(o.sum() + torch.exp(lse).sum(), arrays)
        assert holds(dq, np.zeros((2, 3, 2))) and dk.numel() == dv.numel() == 0


def test_the_gradient_has_the_dtype_and_shape_of_its_argument(torch_lib):
    for dtype in ("float16", "bfloat16", "float32"):
        arrays = leaves(random_call(9, (4, 2), 2, 5, 3, 4).arrays(torch_lib, dtype))
        state = split_kv_attention(*arrays, tile=2)
        for g, x in zip(torch_lib.module.autograd.grad(weighed(state), arrays), arrays, strict=True):
            assert g.dtype == x.dtype and g.shape == x.shape and values(g).any()


def test_the_gradient_by_definition_runs_on_numpy(lib):
    call = random_call(10, (4, 2), 2, 5, 3, causal=True)
    do, dlse = np.ones(call.q.shape), np.ones(call.q.shape[:-1])
    pytest.importorskip("torch")
    gradients = attention_gradient(lib.array(do, "float64"), lib.array(dlse, "float64"), *call.arrays(lib, "float64"),
                                   causal=True)  # fmt: skip
    twin = Library("torch")
    expected = attention_gradient(twin.array(do, "float64"), twin.array(dlse, "float64"), *call.arrays(twin, "float64"),
                                  causal=True)  # fmt: skip
    for g, e in zip(gradients, expected, strict=True):
        assert type(g) is type(lib.array(0.0))
        assert np.all(np.abs(values(g) - values(e)) <= difference(call, do, dlse))
