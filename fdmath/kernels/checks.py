"""What the kernels refuse before any work, and the views of what they accept; on the host alone, without a kernel."""

import ctypes
import itertools
import math

import numpy as np
import torch
import triton

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState
from fdmath.attention import reference
from fdmath.attention.reference import check_shapes

LARGEST_DIM, LARGEST_QUERIES = 256, 16
MOST_HEADS = 65535
"""The most programs along the second axis of a launch."""
MOST_ROWS = 2**30
"""The most queries or keys a head: the places of a tile behind the last one are still 32-bit numbers."""
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
        if not (x.is_cuda or INTERPRETED and x.device.type == "cpu"):
            raise TypeError(f"{name} must be on a CUDA device, or TRITON_INTERPRET=1 set before these kernels are "
                            f"imported, which runs them on the CPU; got {x.device}")


def check_flag(name, value):
    """The flag as a bool; TypeError, naming the argument, for anything but True and False."""
    if not isinstance(value, (bool, np.bool_)):
        raise TypeError(f"{name} must be True or False; got {value!r}")
    return bool(value)


def check_scale(scale, dim):
    """The scale as a Python float, as `reference.check_scale` gives it, but 0 where the kernels would see 0.

    They take scale·log₂e in float32. Raises ValueError where that is not finite.
    """
    scale = reference.check_scale(scale, dim)
    seen = ctypes.c_float(scale / math.log(2)).value
    if math.isinf(seen):
        raise ValueError(f"scale must be finite in float32, and so must scale·log₂e; got {scale!r}")
    return scale if seen else 0.0


def check_rows(**tensors):
    """Nothing; raises ValueError, naming the argument, for more rows a head than a kernel can count."""
    for name, x in tensors.items():
        if x.shape[-2] > MOST_ROWS:
            raise ValueError(f"{name} must have at most {MOST_ROWS} rows a head; got {x.shape[-2]}")


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
    if q.ndim > 2 and q.shape[-3] > MOST_HEADS:
        raise ValueError(f"q must have at most {MOST_HEADS} heads a sequence; got {q.shape[-3]}")
    check_rows(k=k)
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
    if not isinstance(out, (tuple, list, LSEState)):
        raise TypeError(f"out must be a pair (o, lse); got {_described(out)}")
    if len(pair := tuple(out)) != 2:
        raise TypeError(f"out must be a pair (o, lse); got {len(pair)} of them")
    o, lse = pair
    for name, x, expected, dtype in (("o", o, shape, q.dtype), ("lse", lse, shape[:-1], torch.float32)):
        if not isinstance(x, torch.Tensor) or x.dtype != dtype or x.device != q.device:
            raise TypeError(f"out must hold {name} as a tensor of {dtype} on {q.device}; got {_described(x)}")
        if tuple(x.shape) != tuple(expected):
            raise ValueError(f"out must hold {name} of shape {tuple(expected)}; got {tuple(x.shape)}")
    if o.stride(-1) != 1 and o.shape[-1] > 1 and o.numel():
        raise ValueError(f"out must hold o with a last axis of stride 1; got {o.stride(-1)}")
    return o, lse


def room(workspace, needed, q):
    """The first `needed` numbers of a workspace, as one axis; TypeError, ValueError where it cannot hold them."""
    if not isinstance(workspace, torch.Tensor) or workspace.dtype != torch.float32 or workspace.device != q.device:
        raise TypeError(f"workspace must be a tensor of torch.float32 on {q.device}; got {_described(workspace)}")
    if workspace.numel() < needed:
        raise ValueError(f"workspace must have at least {needed} numbers; got {workspace.numel()}")
    if not workspace.is_contiguous():
        raise ValueError(f"workspace must be contiguous; got strides {workspace.stride()}")
    return workspace.view(-1)[:needed]


def check_apart(written, read):
    """Nothing; raises ValueError where memory to be written is repeated (stride 0), or is another tensor's too.

    written, read: {name: tensor}. Tensors may lie between each other's rows; those of `read` may share memory.
    """
    for name, x in written.items():
        if 0 in x.stride() and any(step == 0 and size > 1 for step, size in zip(x.stride(), x.shape, strict=True)):
            raise ValueError(f"{name} must not repeat its memory; got shape {tuple(x.shape)} with strides {x.stride()}")
    tensors = written | read
    spans = {name: _span(x.untyped_storage()) for name, x in tensors.items()}
    for a, b in itertools.chain(itertools.combinations(written, 2), itertools.product(written, read)):
        near = spans[a][0] < spans[b][1] and spans[b][0] < spans[a][1]
        if near and np.shares_memory(*(np.asarray(_Place(tensors[name])) for name in (a, b))):
            raise ValueError(f"{a} must not lie in the memory of {b}")


def _span(storage):
    """(first, end): the addresses of a storage."""
    first = storage.data_ptr()
    return first, first + storage.nbytes()


class _Place:
    """Where a tensor lies, for NumPy, which computes with the addresses and reads nothing."""

    def __init__(self, x):
        size = x.element_size()
        self.__array_interface__ = {"version": 3, "typestr": f"|V{size}", "data": (x.data_ptr(), True),
                                    "shape": tuple(x.shape), "strides": tuple(size * step for step in x.stride())}


def check_lengths(name, x, q, batch):
    """Nothing; raises TypeError, ValueError for what is no integer for each sequence on q's device."""
    if x is None:
        return
    if not isinstance(x, torch.Tensor) or x.dtype not in (torch.int32, torch.int64) or x.device != q.device:
        raise TypeError(f"{name} must be a tensor of torch.int32 or torch.int64 on {q.device}; got {_described(x)}")
    if tuple(x.shape) != (batch,):
        raise ValueError(f"{name} must have shape ({batch},); got {tuple(x.shape)}")
    if not x.is_contiguous():
        raise ValueError(f"{name} must be contiguous; got stride {x.stride(0)}")


def check_cache(seq_lens, seq_starts, keys):
    """Nothing; raises ValueError for a start or a length that a cache of `keys` slots does not have."""
    starts = torch.zeros(1, dtype=torch.int64) if seq_starts is None else seq_starts.cpu().long()
    if bool(((starts < 0) | (starts > keys)).any()):
        raise ValueError(f"seq_starts must be from 0 to {keys}, the slots of the cache; got {starts.tolist()}")
    if seq_lens is not None:
        lens = seq_lens.cpu().long()
        if bool(((lens < 0) | (lens > keys - starts)).any()):  # starts + lens may pass 2⁶³
            raise ValueError(f"seq_lens must be from 0 to the {keys} slots of the cache less seq_starts; got "
                             f"{lens.tolist()} from {starts.tolist()}")


def _described(x):
    """What an argument is, for an error message."""
    return f"{x.dtype} on {x.device}" if isinstance(x, torch.Tensor) else type(x).__name__
