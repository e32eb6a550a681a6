"""What the FlashAttention-2 kernels need on the host: a checked call, descriptors of its tensors, and tile sizes."""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from fdmath import _backends as backends
from fdmath.algebra.order import whole
from fdmath.attention.reference import check_shapes
from fdmath.kernels import checks

COPY_UNIT = 16
"""Bytes: the copy engine reads rows that begin at multiples of it (`aligned`)."""


class Tile(NamedTuple):
    """What a program works on at a time, queries × keys; its warps; the steps whose loads are under way at once."""

    block_m: int
    block_n: int
    warps: int
    stages: int


TILES = {
    "forward": {64: (Tile(64, 128, 4, 2), Tile(64, 128, 4, 2)), 128: (Tile(128, 64, 4, 2), Tile(64, 64, 4, 3)),
                256: (Tile(128, 32, 8, 2), Tile(128, 32, 8, 2))},
    "columns": {64: (Tile(64, 64, 4, 2), Tile(128, 64, 4, 2)), 128: (Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
                256: (Tile(32, 64, 8, 2), Tile(32, 64, 8, 2))},
    "rows": {64: (Tile(64, 64, 4, 3), Tile(64, 64, 4, 3)), 128: (Tile(64, 64, 4, 2), Tile(64, 64, 4, 2)),
             256: (Tile(64, 32, 8, 2), Tile(64, 32, 8, 2))},
    "atomic columns": {64: (Tile(64, 64, 4, 3), Tile(64, 64, 4, 3)), 128: (Tile(32, 64, 4, 3), Tile(32, 64, 4, 3)),
                       256: (Tile(64, 64, 8, 1), Tile(64, 64, 8, 1))},
}  # fmt: skip
"""The Tile of each kernel for a head dimension up to 64, 128, 256: (full, causal). Measured on an H200, 16 bits.

Programs of 4 warps, small enough for two (d = 128) or three (d = 64) a multiprocessor, are the fastest: while one
takes exponentials, another multiplies.
"""

FLOAT32 = Tile(32, 32, 8, 1)
"""The Tile of every kernel in float32, which the matrix units do not multiply."""

BY_POINTERS = Tile(64, 32, 8, 2)
"""The Tile of every kernel on a card without copy engine, where descriptors become pointers: it spills little there."""

INTERPRETED = Tile(16, 16, 4, 1)
"""The Tile of every kernel in the interpreter: small, so that small calls take several steps."""

BLOCKS = (16, 32, 64, 128)
"""The sizes that a tile may have."""


def tile_for(kernel, dim, causal, dtype, capability=90):
    """The Tile of a kernel, one of TILES, for heads of `dim` of a dtype (by name) on a card of a compute capability."""
    if dtype in ("float32", "fp32"):
        return FLOAT32
    if capability < 90:
        return BY_POINTERS
    return TILES[kernel][next(size for size in TILES[kernel] if dim <= size)][causal]


def with_blocks(tile, **blocks):
    """The Tile with the sizes block_m, block_n that are not None in place of its own.

    Raises TypeError, ValueError for one that is no power of two from 16 to 128.
    """
    for name, size in blocks.items():
        if size is not None and whole(size, name, least=16) not in BLOCKS:
            raise ValueError(f"{name} must be one of {', '.join(map(str, BLOCKS))}; got {size}")
    return tile._replace(**{name: int(size) for name, size in blocks.items() if size is not None})


def padded_axis(size):
    """The axis that holds `size` numbers in a kernel: a power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())


def four_axes(x):
    """x (…, H, N, d) as (B, H, N, d): a view, or a copy where its leading axes cannot be folded into one."""
    return x[(None,) * (4 - x.ndim)] if x.ndim < 4 else x.reshape(math.prod(x.shape[:-3]), *x.shape[-3:])


def aligned(x):
    """x (B, H, N, d) itself where the copy engine can read it, else a copy: d contiguous, the others by 16 bytes.

    Axes of one are never stepped along; an axis that is repeated (stride 0) is copied.
    """
    unit = COPY_UNIT // x.element_size()
    steps = [step for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True) if size > 1]
    if x.stride(-1) == 1 and x.data_ptr() % COPY_UNIT == 0 and all(step > 0 and step % unit == 0 for step in steps):
        return x
    return empty_rows(x, x.shape).copy_(x)


def empty_rows(like, shape, dtype=None):
    """A new tensor of the shape (B, H, N, d) that is `aligned`, on the device and by default of the dtype of `like`."""
    unit = COPY_UNIT // (dtype or like.dtype).itemsize
    room = like.new_empty((*shape[:-1], -(-shape[-1] // unit) * unit), dtype=dtype)
    return room[..., :shape[-1]]


def descriptor(x, rows):
    """What a kernel needs to read or write tiles of `rows` rows of x (B, H, N, d), which is `aligned`.

    Beyond the ends of x it reads zeros and writes nothing, along N and along d, which is padded to a power of two.
    """
    unit = COPY_UNIT // x.element_size()
    steps = [step if size > 1 else unit for step, size in zip(x.stride()[:-1], x.shape[:-1], strict=True)]
    return TensorDescriptor(x, list(x.shape), [*steps, 1], [1, 1, rows, padded_axis(x.shape[-1])])


class DeviceOf(torch.cuda.device_of):
    """A context in which the device of a tensor is the current one, and so is its CUDA context, for this thread.

    `torch.cuda.device_of` leaves a thread without a context that has called nothing of CUDA, as autograd's may not have
    when all that it needs is memory that torch has at hand (pytorch#195256). Triton makes one current when it launches
    a kernel, but encodes descriptors before.
    """

    def __enter__(self):
        super().__enter__()
        if self.idx >= 0:
            torch.cuda.set_device(self.idx)


@dataclass(frozen=True, eq=False)
class FlashCall:
    """One checked call: q (B, Hq, Nq, d), k and v with four axes, `aligned`; Nq, Nkv, B, Hq ≥ 1 unless `is_empty`."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    causal: bool
    scale: float

    @property
    def group(self):
        """Query heads that share a KV head."""
        return self.q.shape[1] // self.k.shape[1]

    @property
    def is_empty(self):
        """Whether there is no query or no key, so that nothing is left to compute."""
        return not (self.q.numel() and self.k.numel())

    @property
    def hides(self):
        """Whether causality hides anything: aligned bottom-right, a single query sees every key."""
        return self.causal and self.q.shape[2] > 1

    def tile(self, kernel, block_m=None, block_n=None):
        """The Tile of a kernel for this call."""
        if checks.INTERPRETED:
            return with_blocks(INTERPRETED, block_m=block_m, block_n=block_n)
        major, minor = torch.cuda.get_device_capability(self.q.device)
        tile = tile_for(kernel, max(self.q.shape[3], self.v.shape[3]), self.hides, backends.float_name(self.q),
                        10 * major + minor)
        return with_blocks(tile, block_m=block_m, block_n=block_n)

    def needs_mask(self, block_n):
        """Whether some tile of block_n keys needs a mask: beside the diagonal, at the end, or where scale ≤ 0."""
        return self.hides or self.k.shape[2] % block_n > 0 or self.scale <= 0

    def axes(self):
        """The constants of the kernels that depend on the axes alone."""
        return {"GROUP": self.group, "CAUSAL": self.hides, "DIM": padded_axis(self.q.shape[3]),
                "WIDTH": padded_axis(self.v.shape[3])}


def refusal(q, k, v, mask=None):
    """Why the kernels cannot run on these arrays, as a text; None where they can."""
    if mask is not None:
        return "its kernel takes no mask"
    try:
        check_inputs(q, k, v)
    except (TypeError, ValueError) as error:
        return str(error)
    return None


def check_inputs(q, k, v):
    """Nothing; raises TypeError, ValueError, naming the argument, for what the FlashAttention kernels cannot take."""
    checks.check_tensors(q=q, k=k, v=v)
    for name, x in (("k", k), ("v", v)):
        if x.dtype != q.dtype:
            raise TypeError(f"{name} must have the dtype of q, {q.dtype}; got {x.dtype}")
    check_shapes(q, k, v)
    for name, x in (("q", q), ("v", v)):
        if not 1 <= x.shape[-1] <= checks.LARGEST_DIM:
            raise ValueError(f"{name} must have a head dimension from 1 to {checks.LARGEST_DIM}; got {x.shape[-1]}")
    checks.check_rows(q=q, k=k)


def check_like(name, x, shape, dtypes, like):
    """Nothing; raises TypeError, ValueError unless x is a tensor of that shape, of one of the dtypes, beside `like`."""
    if not isinstance(x, torch.Tensor) or x.dtype not in dtypes or x.device != like.device:
        got = f"{x.dtype} on {x.device}" if isinstance(x, torch.Tensor) else type(x).__name__
        raise TypeError(f"{name} must be a tensor of {' or '.join(map(str, dtypes))} on {like.device}; got {got}")
    if tuple(x.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}; got {tuple(x.shape)}")


def prepare(q, k, v, causal, scale):
    """The FlashCall; raises TypeError for kinds, dtypes and devices, ValueError for shapes and values."""
    check_inputs(q, k, v)
    causal, scale = checks.check_flag("causal", causal), checks.check_scale(scale, q.shape[-1])
    return FlashCall(*(aligned(four_axes(x)) for x in (q, k, v)), causal, scale)
