"""What the GPU tests share: formats, random tensors on the device, and equality of every bit."""

import torch

FORMATS = ("float16", "bfloat16", "float32")


def normal(*shape, dtype=torch.float16):
    """Normal numbers on the device."""
    return torch.randn(*shape, device="cuda").to(dtype)


def equal(a, b):
    """Whether two states are equal bit for bit, NaN equal to NaN."""
    return all(x.dtype == y.dtype and bool(((x == y) | (x.isnan() & y.isnan())).all())
               for x, y in zip(a, b, strict=True))
