"""What the GPU tests share: formats, random tensors on the device, and equality of every bit."""

import itertools

import torch

FORMATS = ("float16", "bfloat16", "float32")


def normal(*shape, dtype=torch.float16):
    """Normal numbers on the device."""
    return torch.randn(*shape, device="cuda").to(dtype)


def equal(a, b):
    """Whether two states are equal bit for bit, NaN equal to NaN."""
    return all(x.dtype == y.dtype and bool(((x == y) | (x.isnan() & y.isnan())).all())
               for x, y in zip(a, b, strict=True))


def attended():
    """(do, q, k, v, causal) on the device: ragged and whole, with rows that see no key, in both 16-bit formats."""
    for (dim, queries, keys), causal, dtype in itertools.product(
            [(64, 130, 200), (128, 300, 100), (80, 64, 128)], (False, True), (torch.float16, torch.bfloat16)):
        q, do = (normal(2, 4, queries, dim, dtype=dtype) for _ in range(2))
        k, v = (normal(2, 2, keys, dim, dtype=dtype) for _ in range(2))
        yield do, q, k, v, causal
