"""The smallest Triton kernel that tells whether Triton works here; imported only by name, since it needs Triton."""

import os

import torch
import triton
import triton.language as tl


def mean_kernel(values, out, COUNT: tl.constexpr, PART: tl.constexpr):
    """out[0] = the mean of values[:COUNT], each of its parts of PART values added by itself first."""
    total = 0.0
    for start in range(0, COUNT, PART):
        part = 0.0
        for i in range(PART):
            part += tl.load(values + start + i)
        total += part
    tl.store(out, total / COUNT)


def mean(values, interpret):
    """The mean of four one-column rows, by the kernel in two parts of two (a float).

    interpret: run the kernel in Triton's interpreter on the CPU; else compile it for the CUDA device and
    raise RuntimeError if there is none.
    """
    if not (interpret or torch.cuda.is_available()):
        raise RuntimeError("no CUDA device here")
    before = os.environ.get("TRITON_INTERPRET")
    os.environ["TRITON_INTERPRET"] = "1" if interpret else "0"
    try:
        x = torch.tensor(values, device="cpu" if interpret else "cuda").flatten()
        out = torch.empty(1, device=x.device)
        triton.jit(mean_kernel)[(1,)](x, out, COUNT=4, PART=2)
        return float(out)
    finally:
        os.environ.pop("TRITON_INTERPRET")
        if before is not None:
            os.environ["TRITON_INTERPRET"] = before
