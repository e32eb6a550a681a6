"""What the kernels refuse before any work, and the views of what they accept; on the host alone, without a kernel."""

import math

import torch
import triton

from fdmath import _backends as backends
from fdmath.attention.reference import check_shapes

LARGEST_DIM, LARGEST_QUERIES = 256, 16
if tuple(int(number) for number in triton.__version__.split(".")[:2]) < (3, 6):
    raise ImportError(f"the kernels need Triton 3.6 or later; this is {triton.__version__}", name="triton>=3.6")

INTERPRETED = triton.knobs.runtime.interpret
"""Whether the kernels of this process run in Triton's interpreter, which is decided when they are defined."""


def check_tensors(**tensors):
    """Nothing; raises TypeError, naming the argument, for what the kernels of this process cannot read."""
    backends.array_namespace(**tensors)
    for name, x in tensors.items():
        if not isinstance(x, torch.Tensor):
            raise TypeError(f"{name} must be a torch tensor; got {type(x).__name__}")
        if backends.float_name(x, name) == "float64":
            raise TypeError(f"{name} must be float16, bfloat16 or float32; got float64")
        if not (x.is_cuda or INTERPRETED):
            raise TypeError(f"{name} must be on a CUDA device, or TRITON_INTERPRET=1 set before these kernels are "
                            f"imported, which runs them on the CPU; got {x.device}")


def check_inputs(q, k, v):
    """q, k and v with four axes, as views; raises TypeError, ValueError where split-KV decoding cannot take them."""
    check_tensors(q=q, k=k, v=v)
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise TypeError(f"{name} must have the dtype of q, {q.dtype}; got {x.dtype}")
    check_shapes(q, k, v)
    for name, x in (("q", q), ("k", k), ("v", v)):
        if not 1 <= x.shape[-1] <= LARGEST_DIM:
            raise ValueError(f"{name} must have a head dimension from 1 to {LARGEST_DIM}; got {x.shape[-1]}")
        if x.stride(-1) != 1 and x.shape[-1] > 1 and x.numel():
            raise ValueError(f"{name} must have a last axis of stride 1; got {x.stride(-1)}")
    if q.shape[-2] > LARGEST_QUERIES:
        raise ValueError(f"q must have at most {LARGEST_QUERIES} queries a sequence; got {q.shape[-2]}")
    return [four_axes(name, x, x.ndim) for name, x in (("q", q), ("k", k), ("v", v))]


def four_axes(name, x, axes):
    """x, which has `axes` axes, with four, as a view; ValueError where its leading axes cannot be folded into one."""
    if axes <= 4:
        return x[(None,) * (4 - axes)]
    try:
        return x.view(math.prod(x.shape[:-3]), *x.shape[-3:])
    except RuntimeError:
        raise ValueError(f"{name} must have leading axes that fold into one without a copy; got shape "
                         f"{tuple(x.shape)} with strides {x.stride()}") from None


def results(q, v, out):
    """(o, lse) to be written: those of `out`, checked, or new ones."""
    shape = (*q.shape[:-1], v.shape[-1])
    if out is None:
        return q.new_empty(shape), q.new_empty(shape[:-1], dtype=torch.float32)
    o, lse = out
    for name, x, expected, dtype in (("o", o, shape, q.dtype), ("lse", lse, shape[:-1], torch.float32)):
        if not isinstance(x, torch.Tensor) or x.dtype != dtype or x.device != q.device:
            raise TypeError(f"out must hold {name} as a tensor of {dtype} on {q.device}; got {_described(x)}")
        if tuple(x.shape) != tuple(expected):
            raise ValueError(f"out must hold {name} of shape {tuple(expected)}; got {tuple(x.shape)}")
    if o.stride(-1) != 1 and o.shape[-1] > 1 and o.numel():
        raise ValueError(f"out must hold o with a last axis of stride 1; got {o.stride(-1)}")
    return o, lse


def check_workspace(workspace, needed, q):
    """Nothing; raises TypeError, ValueError for a workspace that cannot hold `needed` float32 numbers."""
    if not isinstance(workspace, torch.Tensor) or workspace.dtype != torch.float32 or workspace.device != q.device:
        raise TypeError(f"workspace must be a tensor of torch.float32 on {q.device}; got {_described(workspace)}")
    if workspace.numel() < needed or not workspace.is_contiguous():
        raise ValueError(f"workspace must be contiguous with at least {needed} numbers; got {workspace.numel()}")


def check_lengths(name, x, q, batch):
    """Nothing; raises TypeError, ValueError for what is no integer for each sequence on q's device."""
    if x is None:
        return
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int32, torch.int64) or x.device != q.device:
        raise TypeError(f"{name} must be a tensor of torch.int32 or torch.int64 on {q.device}; got {_described(x)}")
    if tuple(x.shape) != (batch,) or not x.is_contiguous():
        raise ValueError(f"{name} must be contiguous and of shape ({batch},); got {tuple(x.shape)}")


def check_cache(seq_lens, seq_starts, keys):
    """Nothing; raises ValueError for a start or a length that a cache of `keys` slots does not have."""
    starts = torch.zeros(1, dtype=torch.int64) if seq_starts is None else seq_starts.cpu().long()
    if bool(((starts < 0) | (starts > keys)).any()):
        raise ValueError(f"seq_starts must be from 0 to {keys}, the slots of the cache; got {starts.tolist()}")
    if seq_lens is not None:
        lens = seq_lens.cpu().long()
        if bool(((lens < 0) | (starts + lens > keys)).any()):
            raise ValueError(f"seq_lens must be from 0 to the {keys} slots of the cache less seq_starts; got "
                             f"{lens.tolist()} from {starts.tolist()}")


def _described(x):
    """What an argument is, for an error message."""
    return f"{x.dtype} on {x.device}" if isinstance(x, torch.Tensor) else type(x).__name__
