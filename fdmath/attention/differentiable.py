"""A function of arrays joined to a gradient written by hand, for torch to follow; torch is loaded only when asked."""

import functools

from fdmath import _backends as backends


def with_gradient(name, forward, backward, *arrays):
    """The tuple forward(*arrays); torch takes backward(*output gradients, *arrays, *outputs) for its gradient.

    NumPy arrays go straight through. forward and backward take and return tuples of arrays and follow no gradient
    themselves. A second derivative raises RuntimeError with the name (double backward).
    """
    if backends.library(arrays[-1]) == "numpy":
        return forward(*arrays)
    return _functions()[0].apply(name, forward, backward, *arrays)


def without_gradient(name, function, *arrays, refusal=None):
    """The tuple function(*arrays); where torch differentiates it, RuntimeError with the refusal.

    refusal: a text; by default that the gradient `name` has no double backward.
    """
    if backends.library(arrays[-1]) == "numpy":
        return function(*arrays)
    return _functions()[1].apply(_no_double_backward(name) if refusal is None else refusal, function, *arrays)


def _no_double_backward(name):
    """Why a gradient cannot be differentiated, as a text."""
    return f"{name} has no double backward: its gradient cannot be differentiated again; fdmath.attention can"


@functools.cache
def _functions():
    """(a function with a gradient, a function without one), as classes of torch.autograd.Function."""
    torch = backends.load("importlib:import_module")("torch")

    class WithGradient(torch.autograd.Function):
        """forward, whose gradient is backward."""

        @staticmethod
        def forward(name, forward, backward, *arrays):
            return forward(*arrays)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.name, _, ctx.gradient, *arrays = inputs
            ctx.save_for_backward(*arrays, *output)

        @staticmethod
        def backward(ctx, *gradients):
            grads = WithoutGradient.apply(_no_double_backward(ctx.name), ctx.gradient, *gradients, *ctx.saved_tensors)
            return None, None, None, *grads

    class WithoutGradient(torch.autograd.Function):
        """A function, a gradient for one, that has no gradient of its own."""

        @staticmethod
        def forward(refusal, function, *arrays):
            return function(*arrays)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.refusal = inputs[0]

        @staticmethod
        def backward(ctx, *gradients):
            raise RuntimeError(ctx.refusal)

    return WithGradient, WithoutGradient
