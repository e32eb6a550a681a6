"""What computes attention of whole sequences on a CUDA device, and its gradient: ours, and what one would take instead.

The adapters of `fdmath.bench.peers`, for a Shape of `fdmath.bench.attention`, with a backward. Needs torch.
"""

import functools
from collections.abc import Callable
from dataclasses import dataclass

import torch

from fdmath import _backends as backends
from fdmath.bench.attention import ATOMICS, HOPPER, OURS, PASSES
from fdmath.bench.peers import Peer, flash3_call, flex_call, sdpa_call, subject_peer


class NotDifferentiable(Exception):
    """A forward call of which torch follows no gradient."""


def by_autograd(shape, do, q, k, v, got):
    """A call without arguments that gives (dq, dk, dv) as torch derives them from got, (o, …), which it keeps."""
    if not got[0].requires_grad:
        raise NotDifferentiable("torch follows no gradient of its o")
    return lambda: torch.autograd.grad(got[0], (q, k, v), do, retain_graph=True)


@dataclass(frozen=True)
class Contender(Peer):
    """A Peer with a backward; its build(shape) gives a call that torch can differentiate, or `gradient` does without.

    gradient(shape, do, q, k, v, got): the call without arguments that is timed, (dq, dk, dv); got is what the forward
    call returned. passes: what is measured of it. compiles: whether its first call at a shape compiles.
    """

    gradient: Callable = by_autograd
    passes: tuple = PASSES
    compiles: bool = False


def _ours(shape, forward="flash:flash_forward"):
    forward = backends.load(f"fdmath.kernels.{forward}")
    return lambda q, k, v: forward(q, k, v, causal=shape.causal)


def _our_gradient(shape, do, q, k, v, got, deterministic=True):
    backward = backends.load("fdmath.kernels.flash:flash_backward")
    return lambda: backward(do, None, q, k, v, *got, causal=shape.causal, deterministic=deterministic)


def _hopper_gradient(shape, do, q, k, v, got):
    if shape.dim <= 64:
        raise NotDifferentiable("its kernel of the gradients takes d from 65 to 128")
    backward = backends.load("fdmath.kernels.flash_hopper_backward:flash_backward_hopper")
    return lambda: backward(do, None, q, k, v, *got, causal=shape.causal)


def _flex(shape):
    """FlexAttention, whose compiled backward may be asked again and again of one forward."""
    backends.load("importlib:import_module")("torch._functorch.config").donated_buffer = False
    return flex_call(shape)


def _flash4(shape):
    """FlashAttention-4, the package in CuTe's language; it gives lse where a gradient is wanted."""
    attend = backends.load("flash_attn.cute:flash_attn_func")

    def call(q, k, v):
        got = attend(*(x.transpose(1, 2) for x in (q, k, v)), causal=shape.causal)
        o, lse = got[:2] if isinstance(got, (tuple, list)) else (got, None)
        return o.transpose(1, 2), lse

    return call


CONTENDERS = {
    peer.name: peer for peer in (
        Contender(OURS, _ours, package="triton", gradient=_our_gradient, compiles=True),
        Contender(ATOMICS, _ours, package="triton", passes=("backward",), compiles=True,
                  gradient=functools.partial(_our_gradient, deterministic=False)),
        Contender(HOPPER, functools.partial(_ours, forward="flash_hopper:flash_forward_hopper"), package="triton",
                  gradient=_hopper_gradient, compiles=True),
        Contender("SDPA flash", functools.partial(sdpa_call, "FLASH_ATTENTION")),
        Contender("SDPA cuDNN", functools.partial(sdpa_call, "CUDNN_ATTENTION")),
        Contender("FlexAttention", _flex, compiles=True),
        Contender("FlashAttention-3", flash3_call, package="fa3_fwd", dtypes=("bfloat16",), keys_first=True,
                  passes=("forward",)),
        Contender("FlashAttention-4", _flash4, package="flash_attn.cute", keys_first=True),
    )
}
"""The Contenders by name, ours first."""


def subject_contender(subject):
    """The Contender of a user's Subject of role attention: its own backward, or what torch follows of its o."""
    peer = subject_peer(subject)

    def gradient(shape, do, q, k, v, got):
        o, lse = got
        if subject.backward is not None:
            none = torch.zeros_like(lse)
            return lambda: subject.backward(do, none, q, k, v, o, lse, shape.causal)
        return by_autograd(shape, do, q, k, v, got)

    return Contender(peer.name, peer.build, peer.read, rounding=peer.rounding, scale=peer.scale, heads=peer.heads,
                     gradient=gradient)
