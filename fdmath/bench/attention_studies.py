"""What is asked of attention beside its speed: errors and bits, memory, sustained load; and what is compiled ahead.

Needs torch and Triton.
"""

import functools
import multiprocessing
from concurrent.futures import ProcessPoolExecutor, as_completed

import torch

from fdmath import _backends as backends
from fdmath.bench.attention import ATOMICS, GROWING, HOPPER, MINE, PASSES, Shape, judged_bytes, most_bytes, row_of
from fdmath.bench.attention_measure import Lab, calls_of, checked, exact, first_heads, laid_out, timed_rows, unable

SUSTAINED = 4096
"""The length at which load is sustained."""

ERRING, HEADS, RUNS = 2048, 2, 20
"""Of the study of errors: its length, the KV heads that are compared, and how often a call is asked for its bits."""

LOOSE = tuple((name, "backward") for name in (ATOMICS, HOPPER))
"""What adds up dq in an order of its own."""


def error_rows(lab, shape, peers):
    """The rows of one shape, of more heads than is checked before timing, nothing timed; the bits of ours too."""
    tensors, rows = lab.tensors(shape), []
    right = functools.cache(functools.partial(exact, shape, first_heads(shape, *tensors, HEADS)))
    for peer in peers:
        for which, (call, fields) in checked(peer, shape, tensors, lab.dtype, right).items():
            if call is not None and peer.name in MINE:
                fields |= repeated(call, (peer.name, which)) if fields["status"] == "ok" else {}
            rows.append(row_of("errors", which, shape, lab.dtype, peer.name, **fields))
    return sorted(rows, key=lambda row: PASSES.index(row["pass"]))


def repeated(call, what, runs=RUNS):
    """{status, note}: in how many of `runs` further runs a call of ours, (name, pass), gives other bits; LOOSE may."""
    first = call()
    same = sum(all(torch.equal(a, b) for a, b in zip(call(), first, strict=True)) for _ in range(runs))
    note = f"{runs} runs, the same bits" if same == runs else f"{runs - same} of {runs} runs give other bits"
    return {"status": "ok" if same == runs or what in LOOSE else "wrong", "note": note}


def peak_bytes(peer, shape, q, k, v, do):
    """The bytes that forward and backward of a peer take at most, beside q, k, v, do and o, dq, dk, dv themselves."""
    def both():
        call, _ = calls_of(peer, shape, q, k, v, do)["backward"]()
        return call()

    both()  # what is taken once, and compiled, is no part of a call
    torch.cuda.synchronize()
    torch.cuda.empty_cache()
    before = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    gradients = both()
    torch.cuda.synchronize()
    results = sum(x.numel() * x.element_size() for x in (*gradients, do))  # o is as large as do
    return torch.cuda.max_memory_allocated() - before - results


def memory_rows(lab, length, peers):
    """The rows of one length of the study of memory; peers that compile for each length are left out, but ours."""
    shape = Shape(queries=length, keys=length, causal=True)
    tensors, rows = lab.tensors(shape), []
    for peer in peers:
        if "backward" not in peer.passes or peer.compiles and peer.name not in MINE:
            continue
        why = peer.why_not(lab.dtype)
        try:
            fields = {"status": "not run", "note": why}
            if why is None:
                peak = peak_bytes(peer, shape, *laid_out(peer, tensors))
                fields = {"peak_bytes": peak} | judged_bytes(peak, most_bytes(shape, peer.name))
        except (Exception, SystemExit) as error:
            fields = unable(error)
        rows.append(row_of("memory", "backward", shape, lab.dtype, peer.name, **fields))
    return rows


def sustained_shapes(shapes):
    """The Shapes at which load is sustained: those that are SUSTAINED long, of the others the longest of each kind."""
    kinds = {}
    for shape in shapes:
        kinds.setdefault((shape.dim, shape.causal), []).append(shape)
    return [next((s for s in kind if s.keys == SUSTAINED), max(kind, key=lambda s: s.keys)) for kind in kinds.values()]


def erring_shapes(shapes, tokens):
    """The Shapes of the study of errors: each kind once, ERRING long where there are so many tokens."""
    length = min(ERRING, tokens)
    return list(dict.fromkeys(s._replace(batch=tokens // length, queries=length, keys=length) for s in shapes))


def steps_of(study, lab, shapes, peers, tokens):
    """The list of calls without arguments that give the rows of a study, each of one shape."""
    each, at = {
        "errors": (error_rows, erring_shapes(shapes, tokens)), "memory": (memory_rows, GROWING),
        "speed": (timed_rows, shapes),
        "sustained": (functools.partial(timed_rows, study="sustained"), sustained_shapes(shapes)),
    }[study]
    return [functools.partial(each, lab, shape, peers) for shape in at]


def compile_ahead(tasks, processes):
    """One of the tasks (dtype, shape, peer's name) after the other as it is done, each in one of several processes.

    What they compile lies in caches on disk then, from which this process takes it. What fails there is met again here.
    """
    fresh = multiprocessing.get_context("spawn")  # a forked process could not use a CUDA device
    pool = ProcessPoolExecutor(processes, fresh)
    try:
        waiting = {pool.submit(compile_one, *task): task for task in tasks}
        for done in as_completed(waiting):
            yield waiting[done]
    finally:
        pool.shutdown(cancel_futures=True)


def compile_one(dtype, shape, name, device="cuda"):
    """Nothing; the contender of that name has run at the shape, forward and backward, so that it is compiled."""
    backends.load("importlib:import_module")("torch._inductor.config").compile_threads = 1
    peer = backends.load("fdmath.bench.attention_peers:CONTENDERS")[name]
    if peer.why_not(dtype) is None:
        for make in calls_of(peer, shape, *laid_out(peer, Lab(dtype, device).tensors(shape))).values():
            call, _ = make()
            call()
