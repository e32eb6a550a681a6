"""A gradient written by hand, joined to its function: x·y with gradients that say who was called."""

import numpy as np
import pytest

from fdmath.attention.differentiable import with_gradient, without_gradient
from tests.algebra.libraries import holds


def product(x, y):
    """x·y, alone in a tuple."""
    return (x * y,)


def marked(g, x, y, out):
    """Gradients that autograd would not give: g·(x·y) and 10·g."""
    return g * out, 10 * g


def test_numpy_goes_straight_through():
    out, = with_gradient("product", product, marked, np.full(2, 3.0), np.full(2, 2.0))
    assert holds(out, [6.0, 6.0]) and holds(without_gradient("product", product, np.ones(1), np.ones(1))[0], [1.0])


def test_torch_takes_the_gradient_given(torch_lib):
    x, y = (torch_lib.array([number]).requires_grad_() for number in (3.0, 2.0))
    out, = with_gradient("product", product, marked, x, y)
    (out * 0.5).sum().backward()
    assert holds(out, [6.0]) and holds(x.grad, [3.0]) and holds(y.grad, [5.0])


def test_what_is_differentiated_twice_is_named(torch_lib):
    torch = torch_lib.module
    x, y = (torch_lib.array([number]).requires_grad_() for number in (3.0, 2.0))
    out, = with_gradient("product", product, marked, x, y)
    gradient, = torch.autograd.grad(out, x, create_graph=True)
    with pytest.raises(RuntimeError, match="product has no double backward"):
        gradient.backward()
    with pytest.raises(RuntimeError, match="gradient of product has no double backward"):
        without_gradient("gradient of product", product, x, y)[0].backward()
    with pytest.raises(RuntimeError, match="^not followed$"):
        without_gradient("product", product, x, y, refusal="not followed")[0].backward()
