"""A few calls of every kernel and of every option, for NVIDIA's compute-sanitizer; no pytest.

    PYTORCH_NO_CUDA_MEMORY_CACHING=1 compute-sanitizer --tool memcheck python -m tests.gpu.sanitized

and the same with `--tool racecheck` and `--tool initcheck`. Without torch's cache each tensor is an allocation of its
own, so that a read beyond one is seen. A first run without the sanitizer compiles the kernels.
Words name parts of it, PARTS. `controls` are kernels so small that what is reported of them is the tool's or Triton's:
initcheck does not see what a tensor descriptor writes, and racecheck reports as races how Triton starts the partitions
of a specialised kernel (docs/decisions.md). They alone look at their results.
"""

import itertools
import os
import sys

import torch
import triton
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import mbarrier
from triton.tools.tensor_descriptor import TensorDescriptor

from fdmath.kernels.flash import flash_backward, flash_forward
from fdmath.kernels.flash_hopper import flash_forward_hopper
from fdmath.kernels.flash_hopper_backward import flash_backward_hopper
from fdmath.kernels.merge import merge_states
from fdmath.kernels.split_kv import STEPS, decode_by_step, split_kv_decode, workspace_size
from tests.gpu.tensors import attended

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
    """Nothing; FlashAttention-2 has run forward and backward in all ways."""
    for do, q, k, v, causal in attended():
        state = flash_forward(q, k, v, causal=causal)
        for deterministic in (True, False):
            flash_backward(do, state.lse, q, k, v, *state, causal=causal, deterministic=deterministic)


def attends_on_hopper():
    """Nothing; the kernels for Hopper have run forward and backward in the same ways, on a card that is one."""
    if torch.cuda.get_device_capability() != (9, 0):
        print("no Hopper card: its kernels were not run")
        return
    for do, q, k, v, causal in attended():
        state = flash_forward_hopper(q, k, v, causal=causal)
        if q.shape[-1] > 64:
            flash_backward_hopper(do, state.lse, q, k, v, *state, causal=causal)


@triton.jit
def copy_by_descriptor(x, y):
    """y, a descriptor of (16, 64), is x; nothing else is done."""
    y.store([0, 0], x.load([0, 0]))


@gluon.jit
def give(x, y, place, ready, SHARING: gl.constexpr):
    """Nothing; if SHARING, the numbers x are laid into shared memory, and their being there is said."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    if SHARING:
        place.store(gl.load(x + gl.arange(0, 128, layout=layout)))
        mbarrier.arrive(ready, count=1)


@gluon.jit
def take(x, y, place, ready, SHARING: gl.constexpr):
    """Nothing; if SHARING, what is said to be in shared memory is written to y."""
    layout: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    if SHARING:
        mbarrier.wait(ready, 0)
        gl.store(y + gl.arange(0, 128, layout=layout), place.load(layout))


@gluon.jit
def partitions(x, y, SHARING: gl.constexpr):
    """Nothing, in two partitions; if SHARING y is x, 128 numbers of 32 bits, which one partition gives the other."""
    place = gl.allocate_shared_memory(gl.int32, [128], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    gl.warp_specialize([(give, (x, y, place, ready, SHARING)), (take, (x, y, place, ready, SHARING))], [4], [24])


def controls():
    """Nothing; a tensor that a descriptor wrote has been read by torch; partitions have shared nothing, and numbers."""
    x, y = torch.randn(16, 64, device="cuda"), torch.empty(16, 64, device="cuda")
    copy_by_descriptor[(1,)](*(TensorDescriptor.from_tensor(each, [16, 64]) for each in (x, y)))
    assert torch.equal(x, y)
    x, y = torch.arange(128, device="cuda", dtype=torch.int32), torch.zeros(128, device="cuda", dtype=torch.int32)
    for sharing in (False, True):
        partitions[(1,)](x, y, sharing, num_warps=4)
    assert torch.equal(x, y)


def decode():
    """Nothing; `decodes` of all shapes, each step, a graph, and merges."""
    for shape, dtype in zip(SHAPES, (torch.float16, torch.bfloat16, torch.float32), strict=True):
        decodes(shape, dtype)
    for step in STEPS:
        decode_by_step(step, *tensors((1, 4, 2, 1, 70, 64, 64), torch.float16), num_splits=2)
    if "PYTORCH_NO_CUDA_MEMORY_CACHING" not in os.environ:  # torch captures no graph without its cache
        captured()
    merges()


PARTS = {"decode": decode, "attention": attends, "hopper": attends_on_hopper, "controls": controls}


def main(names):
    """Nothing; a line is printed when the parts have run, by default all but the controls."""
    names = names or [name for name in PARTS if name != "controls"]
    for name in names:
        PARTS[name]()
    torch.cuda.synchronize()
    print(f"every kernel has run: {', '.join(names)}")


if __name__ == "__main__":
    main(sys.argv[1:])
