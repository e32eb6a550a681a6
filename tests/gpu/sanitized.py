"""A few calls of every kernel and of every option, for NVIDIA's compute-sanitizer; no pytest.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m tests.gpu.sanitized

and the same with `--tool racecheck` and `--tool initcheck`. Without torch's cache each tensor is an allocation of its
own, so that a read beyond one is seen. A first run without the sanitizer compiles the kernels. No result is judged.
"""

import itertools
import os

import torch

from fdmath.kernels.flash import flash_backward, flash_forward
from fdmath.kernels.flash_hopper import flash_forward_hopper
from fdmath.kernels.flash_hopper_backward import flash_backward_hopper
from fdmath.kernels.merge import merge_states
from fdmath.kernels.split_kv import STEPS, decode_by_step, split_kv_decode, workspace_size

SHAPES = [(2, 8, 2, 1, 150, 128, 128), (1, 6, 2, 5, 90, 80, 96), (1, 40, 1, 2, 40, 256, 64)]
"""(B, Hq, Hkv, Nq, N, d, dv): whole tiles and padded ones, and a group that takes more than one program."""


def tensors(shape, dtype):
    """q, k and v of a shape, with nothing but random numbers in them."""
    batch, heads, kv, queries, keys, dim, width = shape
    sizes = (batch, heads, queries, dim), (batch, kv, keys, dim), (batch, kv, keys, width)
    return [torch.randn(*size, device="cuda").to(dtype) for size in sizes]


def decodes(shape, dtype):
    """Nothing; the kernels have decoded a shape in all ways."""
    q, k, v = tensors(shape, dtype)
    batch, keys = k.shape[0], k.shape[2]
    lens = torch.tensor([keys - 7, 0][:batch], device="cuda")
    starts = torch.tensor([7, keys][:batch], device="cuda", dtype=torch.int32)
    for splits, causal in itertools.product(({}, {"num_splits": 1}, {"num_splits": 5}, {"tile": 33}), (False, True)):
        split_kv_decode(q, k, v, **splits, causal=causal)
        split_kv_decode(q, k, v, **splits, causal=causal, seq_lens=lens, seq_starts=starts, check=True)
    split_kv_decode(q, k, v, num_splits=5, seq_lens=lens + 1000, seq_starts=starts - 50)  # cut to the cache
    space = torch.empty(workspace_size(q, k, v, num_splits=3), device="cuda")
    out = torch.empty(*q.shape[:3], v.shape[3], device="cuda", dtype=dtype), torch.empty(q.shape[:3], device="cuda")
    split_kv_decode(q, k, v, num_splits=3, out=out, workspace=space)
    last = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]
    split_kv_decode(*last, num_splits=2, seq_lens=lens)
    split_kv_decode(q[..., 1:], k[..., 1:], v[..., 1:], num_splits=2)


def captured():
    """Nothing; a graph with check=True has been captured and replayed with lengths beyond the cache."""
    q, k, v = tensors(SHAPES[0], torch.float16)
    lens = torch.tensor([150, 3], device="cuda")
    split_kv_decode(q, k, v, seq_lens=lens, check=True)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        split_kv_decode(q, k, v, seq_lens=lens, check=True, num_splits=4)
    lens += 100
    graph.replay()


def merges():
    """Nothing; states have been merged, few and many, wide and narrow, in each format."""
    for (parts, rows, width), dtype in itertools.product([(1, 3, 5), (7, 5, 128), (70, 3, 80)],
                                                         (torch.float32, torch.float16, torch.bfloat16)):
        o, lse = torch.randn(parts, rows, width, device="cuda").to(dtype), torch.randn(parts, rows, device="cuda")
        lse[0] = float("-inf")
        merge_states(o, lse)


def attends():
    """Nothing; FlashAttention-2 has run forward and backward, ragged, whole and with rows that see no key."""
    for (dim, queries, keys), causal, dtype in itertools.product(
            [(64, 130, 200), (128, 300, 100), (80, 64, 128)], (False, True), (torch.float16, torch.bfloat16)):
        q, do = (torch.randn(2, 4, queries, dim, device="cuda").to(dtype) for _ in range(2))
        k, v = (torch.randn(2, 2, keys, dim, device="cuda").to(dtype) for _ in range(2))
        state = flash_forward(q, k, v, causal=causal)
        for deterministic in (True, False):
            flash_backward(do, state.lse, q, k, v, *state, causal=causal, deterministic=deterministic)
        if torch.cuda.get_device_capability() == (9, 0):
            state = flash_forward_hopper(q, k, v, causal=causal)
            if dim > 64:
                flash_backward_hopper(do, state.lse, q, k, v, *state, causal=causal)


def main():
    """Nothing; a line is printed when all kernels have run."""
    for shape, dtype in zip(SHAPES, (torch.float16, torch.bfloat16, torch.float32), strict=True):
        decodes(shape, dtype)
    for step in STEPS:
        decode_by_step(step, *tensors((1, 4, 2, 1, 70, 64, 64), torch.float16), num_splits=2)
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:  # torch captures no graph without its cache
        captured()
    merges()
    attends()
    torch.cuda.synchronize()
    print("every kernel has run")


if __name__ == "__main__":
    main()
