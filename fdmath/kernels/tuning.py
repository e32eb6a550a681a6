"""The fastest of a handful of Plans, measured on the device and remembered beside Triton's compiled kernels.

Asked for with FDMATH_TUNE=1 in the environment, where a call leaves its splits to the plan. More splits or fewer add in
another order, so the last bits may change from one device to another; with `tile=` or `num_splits=` nothing is tuned.
"""

import contextlib
import functools
import json
import os
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path

import torch
import triton

from fdmath.kernels.plan import LEAST_STEP, Plan

REPLAYS, MOST_COPIES = 5, 64


def wanted(q):
    """Whether plans are to be tuned: FDMATH_TUNE=1, and q on a CUDA device."""
    return q.is_cuda and os.environ.get("FDMATH_TUNE") == "1"


def tuned_plan(call, model):
    """The Plan of `candidates` that takes a checked `Call` of `split_kv` the least time: remembered, or measured now.

    model: the Plan of the cost model, which it stays while a CUDA graph is captured and none is remembered. Lengths
    and causal play no part, so that `workspace_size` agrees. The file is fdmath-plans.json in Triton's cache folder,
    which TRITON_CACHE_DIR moves.
    """
    device = torch.cuda.get_device_name(call.q.device) if call.q.is_cuda else "cpu"
    arrays = [(tuple(x.shape), x.stride()) for x in (call.q, call.k, call.v)]
    key = f"{device}, Triton {triton.__version__}, {call.q.dtype}, {arrays}, {tuple(model)}"
    path, choices = Path(triton.knobs.cache.dir) / "fdmath-plans.json", candidates(model, call.k.shape[2])
    known = remembered(path)
    found = next((plan for plan in choices if list(plan) == known.get(key)), None)  # ours, not what the file holds
    if found is None:
        if call.q.is_cuda and torch.cuda.is_current_stream_capturing():
            return model
        call = replace(call, seq_lens=None, seq_starts=None, causal=False)
        found = min(choices, key=lambda plan: microseconds(call, plan))
        known[key] = list(found)
        with contextlib.suppress(OSError):  # a folder that cannot be written: this process remembers
            remember(path, key, known[key])
    return found


def candidates(model, keys):
    """The model's Plan, then its neighbours: half and twice the splits; half the step, with as many warps or half."""
    splits, half = model.num_splits, model.block // 2
    steps = [(model.block, model.warps, model.stages)]
    if half >= LEAST_STEP:  # with a stage more these still hold no more shared memory, from two stages on
        steps += [(half, warps, model.stages + 1) for warps in (model.warps, max(1, model.warps // 2))]
    counts = (splits, max(1, splits // 2), max(1, min(2 * splits, keys)))
    return list(dict.fromkeys(Plan(n, 0, *step, model.early) for n in counts for step in steps))


def microseconds(call, plan):
    """The median time of a call by a plan, from replays of one CUDA graph over copies of K and V.

    The copies are twice the L2 cache together, so that each call finds its keys in device memory.
    """
    cache, size = torch.cuda.get_device_properties(call.q.device).L2_cache_size, call.k.nbytes + call.v.nbytes
    count = min(1 + 2 * cache // max(size, 1), MOST_COPIES)
    copies = [call, *(replace(call, k=call.k.clone(), v=call.v.clone()) for _ in range(count - 1))]
    shape = call.q.shape[:-1]
    o, lse = call.q.new_empty((*shape, call.v.shape[-1])), call.q.new_empty(shape, dtype=torch.float32)
    with torch.cuda.device_of(call.q):
        call.run(plan, o, lse)  # compiled before the capture
        graph, times = torch.cuda.CUDAGraph(), []
        with torch.cuda.graph(graph):
            for copy in copies:
                copy.run(plan, o, lse)
        for _ in range(1 + REPLAYS):
            start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
            start.record(), graph.replay(), end.record(), end.synchronize()
            times.append(start.elapsed_time(end) * 1000 / count)
    return statistics.median(times[1:])


@functools.cache
def remembered(path):
    """The plans by key that the file held when this process first asked, and those found since; none if unreadable."""
    try:
        plans = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # RecursionError: lists in lists in lists …
        return {}
    return plans if isinstance(plans, dict) else {}


def remember(path, key, plan):
    """Nothing; the file holds the plan too, and is replaced in one go: no reader finds half of it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False, encoding="utf-8") as file:
        json.dump({**remembered.__wrapped__(path), key: plan}, file, indent=1)
    try:
        Path(file.name).replace(path)
    finally:
        Path(file.name).unlink(missing_ok=True)
