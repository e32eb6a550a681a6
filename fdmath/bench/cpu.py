"""Split-KV decoding on a CPU, timed in turn with what one would take instead, beside the time to read K and V once.

One query a sequence; q_heads query heads over kv_heads KV heads. A row is a dict: the shape, the dtype, the
implementation, its seconds, the bytes of K and V, bytes a second, the share of the read floor that it reaches, and
its errors against float64 attention, in u·Σp|v| for o and in u for lse, u the unit roundoff of float32.
"""

import importlib.util
import itertools
import tracemalloc
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

import fdmath
from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.attention.cores import on_cores
from fdmath.bench.timing import alternating

KINDS = {"lse": LSEState, "mlo": MLOState, "acc": AccState}
ORDERS = {"flat": fdmath.flat, "tree": fdmath.tree, "chain": fdmath.sequential, "streams": fdmath.streams(5)}
READ, PACKED, GQA = "read K and V once", "torch sdpa, heads packed", "torch sdpa, enable_gqa"
MEASURED = ("algebra", "attention", "bench/cpu.py", "_backends.py")


class Shape(NamedTuple):
    """A decode step: batch sequences of `keys` keys, q_heads query heads over kv_heads KV heads of `dim` numbers."""

    batch: int = 1
    q_heads: int = 16
    kv_heads: int = 2
    dim: int = 128
    keys: int = 65536

    @property
    def group(self):
        """Query heads a KV head."""
        return self.q_heads // self.kv_heads


@dataclass(frozen=True)
class Plan:
    """What is timed at every shape and dtype: our libraries, tiles, spellings and orders, and one subject of yours."""

    tiles: tuple = (256, 1024, 4096, 16384)
    kinds: tuple = ("lse",)
    orders: tuple = ("flat",)
    libraries: tuple = ("torch", "numpy")
    subject: object = None
    rounds: int = 7
    peers: bool = True


def inputs(shape, dtype, seed=0):
    """q (B, Hq, 1, d), k and v (B, Hkv, N, d) as NumPy arrays of normal numbers in the dtype called `dtype`."""
    rng = np.random.default_rng(seed)
    sizes = [(shape.q_heads, 1)] + 2 * [(shape.kv_heads, shape.keys)]
    return tuple(backends.cast(rng.standard_normal((shape.batch, *size, shape.dim), np.float32), dtype)
                 for size in sizes)


def read_once(k, v, threads):
    """Nothing; each byte of k and v (NumPy, contiguous) has been read once, summed as float32, by `threads` threads."""
    halves = [part for x in (k, v) for part in np.array_split(x.reshape(-1).view(np.float32), threads)]
    on_cores(lambda desk, part: np.add.reduce(part), halves, threads)


def callables(shape, dtype, plan):
    """name → callable that returns (o, lse), or None where it has no lse to give; READ comes first."""
    q, k, v = inputs(shape, dtype)
    found = {READ: lambda: read_once(k, v, backends.threads(k))}
    tensors = _tensors(q, k, v) if importlib.util.find_spec("torch") else None
    if plan.peers and tensors:
        found |= _peers(shape, *tensors)
    for library in plan.libraries:
        arrays = {"torch": tensors, "numpy": (q, k, v)}[library]
        if arrays:
            found |= {name: _ours(arrays, *what) for name, what in _variants(library, shape, plan)}
    if plan.subject:
        found[plan.subject.name] = _theirs(plan.subject, tensors if plan.subject.library == "torch" else (q, k, v))
    return found


def _variants(library, shape, plan):
    """(name, (tile, kind, order)) of each way that the plan asks of us; tiles beyond the keys are left out."""
    tiles = [t for t in plan.tiles if t <= shape.keys] or [shape.keys]
    for tile, kind, order in itertools.product(tiles, plan.kinds, plan.orders):
        yield name_of(library, tile, kind, order), (tile, KINDS[kind], ORDERS[order])


def name_of(library, tile, kind="lse", order="flat"):
    """The name under which a way of ours stands in the rows."""
    return f"fdmath {library}, tile {tile}, {kind}, {order}"


def _ours(arrays, tile, kind, order):
    return lambda: fdmath.split_kv_attention(*arrays, tile=tile, kind=kind, order=order)


def _tensors(*arrays):
    """The arrays as torch tensors that share their memory."""
    like = backends.load("torch:empty")(0)
    return tuple(backends.from_memory(x, like) for x in arrays)


def _peers(shape, q, k, v):
    """torch's scaled_dot_product_attention, with groups by its own option and packed by hand as (B, Hkv, g, d)."""
    sdpa = backends.load("torch.nn.functional:scaled_dot_product_attention")
    packed = q.reshape(shape.batch, shape.kv_heads, shape.group, shape.dim)
    return {GQA: lambda: (sdpa(q, k, v, enable_gqa=True), None),
            PACKED: lambda: (sdpa(packed, k, v).reshape(q.shape), None)}


def _theirs(subject, arrays):
    """The user's function on the same arrays, called as its role says."""
    more = {"decode": lambda: (_lengths(arrays), 8), "attention": lambda: (False,), "partial": tuple}[subject.role]()
    return lambda: subject.fn(*arrays, *more)


def _lengths(arrays):
    lengths = np.full(arrays[1].shape[0], arrays[1].shape[-2])
    return lengths if backends.library(arrays[1]) == "numpy" else backends.load("torch:from_numpy")(lengths)


def rows_at(shape, dtype, plan, progress=False):
    """The rows of one shape and dtype: everything timed in turn, in one run. progress: a bar over the rounds."""
    calls = callables(shape, dtype, plan)
    errors = _errors(shape, dtype, calls)
    timings = alternating(calls, rounds=plan.rounds, progress=progress)
    floor, count = timings[READ].median, _bytes(shape, dtype)
    return [
        {**shape._asdict(), "dtype": dtype, "implementation": name, "seconds": t.median, "least": t.least,
         "most": t.most, "bytes": count, "gb_per_s": count / t.median / 1e9, "share_of_floor": floor / t.median,
         "err_o": errors[name][0], "err_lse": errors[name][1]}
        for name, t in timings.items()
    ]


def _bytes(shape, dtype):
    number = {"float16": 2, "bfloat16": 2, "float32": 4, "float64": 8}[dtype]
    return 2 * shape.batch * shape.kv_heads * shape.keys * shape.dim * number


def _errors(shape, dtype, calls):
    """name → (error of o in u·Σp|v|, error of lse in u), against float64; None for what is not returned."""
    q, k, v = (backends.cast(x, "float64") for x in inputs(shape, dtype))
    right = fdmath.split_kv_attention(q, k, v)
    u, size = rounding.unit_roundoff("float32"), fdmath.split_kv_attention(q, k, np.abs(v)).o
    found = {READ: (None, None)}
    for name, call in calls.items():
        if name != READ:
            o, lse = call()
            found[name] = _largest(o, right.o, u * size), None if lse is None else _largest(lse, right.lse, u)
    return found


def _largest(got, right, unit):
    """The largest |got − right| / unit."""
    return float(np.max(np.abs(rounding.exact(got) - right) / unit))


def measure(shapes, dtypes, plan):
    """The rows of every shape and dtype, one after the other, with bars."""
    steps = tqdm(list(itertools.product(dtypes, shapes)), unit="shape", disable=None)
    return [row for dtype, shape in steps for row in rows_at(shape, dtype, plan, progress=True)]


def peak_bytes(call):
    """The most memory, in bytes, that NumPy's arrays took during call() beside what was there before."""
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        tracemalloc.reset_peak()
        call()
        return tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()


def memory_rows(shapes, dtype="float32", tile=4096):
    """Rows of a call's peak memory against the keys: bytes beside the inputs, of K and V, and of the scores."""
    found = []
    for shape in shapes:
        arrays = inputs(shape, dtype)
        call = _ours(arrays, min(tile, shape.keys), LSEState, fdmath.flat)
        call()
        found.append({**shape._asdict(), "dtype": dtype, "tile": tile, "peak": peak_bytes(call),
                      "kv_bytes": _bytes(shape, dtype), "score_bytes": 4 * shape.batch * shape.q_heads * shape.keys})
    return found
