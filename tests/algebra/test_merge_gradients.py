"""⊕ differentiated in torch: against finite differences in float64, at ties, and beside the empty state."""

import math

import numpy as np
import pytest

from fdmath import LSEState, flat, merge, merge_all, ring, sequential, streams, tree
from fdmath.algebra.merge import stack
from fdmath.algebra.rounding import unit_roundoff
from tests.algebra.libraries import holds, values
from tests.algebra.states import KINDS, empty_states, random_state

ORDERS = {"flat": flat, "sequential": sequential, "tree": tree, "streams(2)": streams(2), "ring(1)": ring(1)}


def leaves(states):
    """The arrays of the states, each asking for its gradient."""
    return [x.requires_grad_() for s in states for x in s]


def of_arrays(kind, fold):
    """The function of flattened arrays that builds states of a kind, folds them, and returns (o, lse)."""
    width = len(kind.__dataclass_fields__)

    def function(*arrays):
        return tuple(fold([kind(*arrays[i:i + width]) for i in range(0, len(arrays), width)]).finalize())

    return function


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_fold_has_the_derivative_of_what_it_computes(torch_lib, kind, order):
    rng = np.random.default_rng(1)
    states = [random_state(torch_lib, kind, rng, (2, 3), dtype="float64") for _ in range(3)]
    function = of_arrays(kind, lambda parts: merge_all(parts, order))
    assert torch_lib.module.autograd.gradcheck(function, leaves(states))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_ties_have_the_derivative_too(torch_lib, kind, order):
    rng = np.random.default_rng(2)
    states = [random_state(torch_lib, kind, rng, (2, 3), spread=0.0, dtype="float64") for _ in range(3)]
    function = of_arrays(kind, lambda parts: merge_all(parts, order))
    assert torch_lib.module.autograd.gradcheck(function, leaves(states))


def test_the_derivative_at_a_tie_is_exact(torch_lib):
    # Two one-key parts at S = 0 with o = 3 and 7: w = ½, ∂o/∂S = w(1 − w)(o₁ − o₂) = ∓1, ∂o/∂o = ∂lse/∂S = ½.
    for order in (flat, sequential):
        a, b = (LSEState(torch_lib.array([x]), torch_lib.array(0.0)) for x in (3.0, 7.0))
        leaves([a, b])
        o, lse = merge_all([a, b], order)
        gradients = torch_lib.module.autograd.grad(o.sum(), (a.o, a.lse, b.o, b.lse), retain_graph=True)
        assert all(map(holds, gradients, ([0.5], -1.0, [0.5], 1.0)))
        assert all(map(holds, torch_lib.module.autograd.grad(lse, (a.lse, b.lse)), (0.5, 0.5)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_the_gradient_to_an_empty_state_is_zero(torch_lib, kind, order):
    # Beside a full row it takes nothing from it; among empty rows all gradients are 0. faults:H9
    torch = torch_lib.module
    for nothing in empty_states(torch_lib, kind, 2, 3, "float64"):
        full = random_state(torch_lib, kind, np.random.default_rng(3), (2, 3), dtype="float64")
        lone = leaves([full])
        expected = torch.autograd.grad(sum(x.sum() for x in merge_all([full], order).finalize()), lone)
        for parts in ([full, nothing], [nothing, full]):
            arrays = leaves(parts)
            o, lse = merge_all(parts, order).finalize()
            gradients = torch.autograd.grad(o.sum() + lse.sum(), arrays, allow_unused=True)
            width, place = len(lone), parts.index(full) * len(lone)
            of_full, of_nothing = gradients[place:place + width], gradients[:place] + gradients[place + width:]
            assert all(g is None or holds(g, np.zeros(tuple(g.shape))) for g in of_nothing)
            assert all(np.array_equal(values(g), values(e)) for g, e in zip(of_full, expected, strict=True))
        arrays = leaves([nothing])
        o, lse = merge_all([nothing, nothing], order).finalize()
        gradients = torch.autograd.grad(o.sum() + lse.sum(), arrays, allow_unused=True)
        assert all(g is None or holds(g, np.zeros(tuple(g.shape))) for g in gradients)


def test_far_levels_have_finite_gradients(torch_lib):
    torch = torch_lib.module
    for gap in (0.0, 50.0, 200.0, 1e5):
        a, b = (LSEState(torch_lib.array([x]), torch_lib.array(s)) for x, s in ((3.0, 1e5), (7.0, 1e5 - gap)))
        arrays = leaves([a, b])
        for order in (flat, sequential):
            o, lse = merge_all([a, b], order)
            gradients = torch.autograd.grad(o.sum() + lse, arrays)
            assert all(math.isfinite(values(g).sum()) for g in gradients)
            # lse moves with both levels, o with neither. Exactly: at gap 0 every step is a short binary fraction, and
            # from gap 50 on the far side's weight, e⁻⁵⁰ < 2⁻⁷², vanishes beside a number of the near side (u = 2⁻²⁴).
            assert holds(gradients[1] + gradients[3], 1.0)


def test_a_leading_axis_of_parts_is_differentiable(torch_lib):
    rng = np.random.default_rng(4)
    whole = stack([random_state(torch_lib, LSEState, rng, (2, 3), dtype="float64") for _ in range(3)])

    def folded(o, lse):
        return (*merge_all(LSEState(o, lse), flat), *merge_all(LSEState(o, lse), tree))

    assert torch_lib.module.autograd.gradcheck(folded, leaves([whole]))


def test_an_everyday_loss_on_lse_alone(torch_lib):
    # faults:H1: two one-key parts with s = (0, 1), v = (0, 1) and q = 1: ∂o/∂q = w₁w₂ = 0.1966…, through lse only.
    torch = torch_lib.module
    q = torch_lib.array(1.0, "float64").requires_grad_()
    parts = [LSEState(torch_lib.array([v], "float64"), q * k) for k, v in ((0.0, 0.0), (1.0, 1.0))]
    o, lse = merge(*parts)
    w = 1 / (1 + math.exp(-1.0))
    u = unit_roundoff("float64")
    # Roundings to first order, in u; an exp counts as 4. With s = e⁻¹ and x = s/(1 + s) < 0.27 autograd forms x − x²,
    # x after at most 12 and x² < 0.08 after at most 18 of them: 12·0.27 + 18·0.08 < 4.8. Here w = 1/(1 + s) < 0.74 errs
    # by 0.74·(4·0.27 + 2) < 2.4, 1 − w by 2.4 + 0.3, their product by 0.27·2.4 + 0.74·2.7 + 0.2 < 2.9: in all < 8.
    assert abs(torch.autograd.grad(o.sum(), q, retain_graph=True)[0].item() - w * (1 - w)) <= 8 * u
    # The other is 1 − x, x after at most 9 roundings, subtracted with one more: 9·0.27 + 1 < 3.5, and w's 2.4: < 6.
    assert abs(torch.autograd.grad(lse, q)[0].item() - w) <= 6 * u
