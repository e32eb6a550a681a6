"""Split-KV decoding on a CPU, timed in turn with what one would take instead, beside the time to read K and V once.

One query a sequence; q_heads query heads over kv_heads KV heads. A row is a dict: the shape, the dtype, the
implementation, its seconds, the bytes of K and V, bytes a second, the share of the read floor that it reaches, and
its errors against attention in float64 by definition, in u·Σp|v| for o and in u for lse, and whether they may be.
"""

import functools
import importlib.util
import itertools
import math
import tracemalloc
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

import fdmath
from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.attention.cores import SHARED, on_cores
from fdmath.bench.timing import alternating
from fdmath.verify.cases import CallCase
from fdmath.verify.subject import SubjectError

KINDS = {"lse": LSEState, "mlo": MLOState, "acc": AccState}
ORDERS = {"flat": fdmath.flat, "tree": fdmath.tree, "chain": fdmath.sequential, "streams": fdmath.streams(5)}
READ, PACKED, GQA = "read K and V once", "torch sdpa, heads packed", "torch sdpa, enable_gqa"
MEASURED = ("algebra", "attention", "bench/cpu.py", "bench/timing.py", "_backends.py")


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
    whole = [x.reshape(-1).view(np.uint8)[:x.nbytes // 4 * 4].view(np.float32) for x in (k, v)]
    parts = [part for x in whole for part in np.array_split(x, threads)]
    on_cores(lambda _, part: np.add.reduce(part), parts, threads)


@dataclass(frozen=True)
class Entry:
    """What is timed under a name: a call without arguments, and what it means: (o, lse), or None for lse or for both.

    scale, order: the scale that it uses, and the place of each query head of ours in its q.
    """

    name: str
    call: Callable
    meaning: Callable
    scale: float | None = None
    order: tuple | None = None


def entries(shape, dtype, plan):
    """The list of Entries of one shape and dtype; READ comes first."""
    q, k, v = inputs(shape, dtype)
    threads = backends.threads(k) if k.nbytes + v.nbytes >= SHARED else 1
    found = [Entry(READ, lambda: read_once(k, v, threads), lambda: (None, None))]
    tensors = _tensors(q, k, v) if "torch" in plan.libraries or plan.peers else None
    if plan.peers and tensors:
        found += _peers(shape, *tensors)
    for library in plan.libraries:
        arrays = {"torch": tensors, "numpy": (q, k, v)}[library]
        found += [_ours(name, arrays, *what) for name, what in _variants(library, shape, plan) if arrays]
    return found + ([_theirs(plan.subject, q, k, v)] if plan.subject else [])


def _variants(library, shape, plan):
    """(name, (tile, kind, order)) of each way that the plan asks of us; tiles beyond the keys are left out."""
    tiles = [t for t in plan.tiles if t <= shape.keys] or [shape.keys]
    for tile, kind, order in itertools.product(tiles, plan.kinds, plan.orders):
        yield name_of(library, tile, kind, order), (tile, KINDS[kind], ORDERS[order])


def name_of(library, tile, kind="lse", order="flat"):
    """The name under which a way of ours stands in the rows."""
    return f"fdmath {library}, tile {tile}, {kind}, {order}"


def _ours(name, arrays, tile, kind, order):
    def call():
        return fdmath.split_kv_attention(*arrays, tile=tile, kind=kind, order=order)

    return Entry(name, call, call)


def _tensors(*arrays):
    """The arrays as torch tensors of the same numbers, of their own; None without torch."""
    if importlib.util.find_spec("torch") is None:
        return None
    torch = backends.load("importlib:import_module")("torch")
    return tuple(backends.from_memory(x.copy(), torch.empty(0)) for x in arrays)


def _peers(shape, q, k, v):
    """torch's scaled_dot_product_attention, with groups by its own option and packed by hand as (B, Hkv, g, d)."""
    sdpa = backends.load("torch.nn.functional:scaled_dot_product_attention")
    packed = q.reshape(shape.batch, shape.kv_heads, shape.group, shape.dim)
    calls = {GQA: lambda: sdpa(q, k, v, enable_gqa=True), PACKED: lambda: sdpa(packed, k, v)}
    return [Entry(name, call, lambda call=call: (call().reshape(q.shape), None)) for name, call in calls.items()]


def _theirs(subject, q, k, v):
    """The user's function as its role says, on copies of its own, its answer read by its own conventions.

    It is read from a second call, with v doubled in place, whose o is halved: a stored answer would be half of it.
    """
    case = CallCase(q, k, v, seq_lens=np.full(len(k), k.shape[-2]), num_splits=8)
    sent = [subject.send(x) for x in (q, k, v)]
    more = {"decode": [subject.send(case.seq_lens), case.num_splits], "attention": [False], "partial": []}[subject.role]

    def call():
        return subject.call(*sent, *more)

    def meaning():
        call()
        _scale_in_place(sent[2], 2)
        o, lse = case.adopted(subject, call())
        _scale_in_place(sent[2], 0.5)
        return rounding.exact(o) / 2, lse

    return Entry(subject.name, call, meaning, subject.scale, tuple(case.heads_in_order(subject)))


def _scale_in_place(x, factor):
    """Nothing; the array or tensor x, even a read-only one of ours, holds factor · x."""
    if backends.library(x) == "numpy":
        x.flags.writeable, before = True, x.flags.writeable
        x *= np.asarray(factor, x.dtype)
        x.flags.writeable = before
    else:
        x *= factor


def rows_at(shape, dtype, plan, progress=False):
    """The rows of one shape and dtype: everything timed in turn, in one run. progress: a bar over the rounds."""
    timed = entries(shape, dtype, plan)
    errors = {entry.name: _errors(shape, dtype, entry) for entry in timed}
    timed = [entry for entry in timed if not errors[entry.name]["status"].startswith("raised")]
    timings = alternating({entry.name: entry.call for entry in timed}, rounds=plan.rounds, progress=progress)
    floor, count = timings[READ].median, _bytes(shape, dtype)
    return [
        {**shape._asdict(), "dtype": dtype, "implementation": name, "seconds": t.median, "least": t.least,
         "most": t.most, "bytes": count, "gb_per_s": count / t.median / 1e9, "share_of_floor": floor / t.median,
         **errors[name]}
        for name, t in timings.items()
    ] + [{**shape._asdict(), "dtype": dtype, "implementation": name, **found} for name, found in errors.items()
         if name not in timings]


def _bytes(shape, dtype):
    return 2 * shape.batch * shape.kv_heads * shape.keys * shape.dim * backends.dtype_of(np.empty(0), dtype).itemsize


def _errors(shape, dtype, entry):
    """{err_o, err_lse, status}: the largest errors, of o in u·Σp|v| and of lse in u, against attention in float64.

    None for what is not returned. u: the unit roundoff of the working format. status: "ok", or "wrong" for an error
    beyond `most_error`, or what a user's function raised (it is not timed then).
    """
    if entry.name == READ:
        return {"err_o": None, "err_lse": None, "status": "ok"}
    right, size, lse = _reference(shape, dtype, entry.scale, entry.order)
    u = rounding.unit_roundoff(backends.working(dtype))
    try:
        got, got_lse = entry.meaning()
    except SubjectError as error:
        return {"err_o": None, "err_lse": None, "status": str(error)}
    err_o, err_lse = _largest(got, right, u * size), _largest(got_lse, lse, u)
    most = most_error(shape, dtype, float(np.max(np.abs(lse))))
    fine = err_o <= most and (err_lse is None or err_lse <= most)
    return {"err_o": err_o, "err_lse": err_lse, "status": "ok" if fine else "wrong"}


@functools.lru_cache(maxsize=2)
def _reference(shape, dtype, scale, order):
    """(o, Σp|v|, lse) of the inputs by attention in float64, query heads in their places: see `Entry`."""
    q, k, v = (backends.cast(x, "float64") for x in inputs(shape, dtype))
    order = np.arange(shape.q_heads) if order is None else np.asarray(order)
    o, lse = fdmath.attention(q[:, order], k, v, scale=scale)
    size = fdmath.attention(q[:, order], k, np.abs(v), scale=scale).o
    return tuple(x[:, np.argsort(order)] for x in (o, size, lse))


def _largest(got, right, unit):
    """The largest |got − right| / unit; None for nothing got, infinity for another shape or a NaN."""
    if got is None:
        return None
    got = rounding.exact(got)
    worst = np.max(np.abs(got - right) / unit) if got.shape == right.shape else math.inf
    return math.inf if math.isnan(worst) else float(worst)


def most_error(shape, dtype, level):
    """The most that any lawful call may err on inputs of normal numbers, in units of u, to first order: coarse.

    Scores of d products (Σ|q||k| ≤ 2d) and their exponentials, twice; the sums over the keys above and below; at most
    one printed merge (T4) for each tile of 16 keys; o's own format.
    """
    u, out = rounding.unit_roundoff(backends.working(dtype)), rounding.unit_roundoff(dtype)
    scores = 2 * (shape.dim + 2) * math.sqrt(shape.dim) + level
    return 2 * (scores + shape.keys) + (3 * level + 18) * (1 + shape.keys / 16) + (out / u if out != u else 0)


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
        used = min(tile, shape.keys)
        call = _ours("", arrays, used, LSEState, fdmath.flat).call
        call()
        found.append({**shape._asdict(), "dtype": dtype, "tile": used, "peak": peak_bytes(call),
                      "kv_bytes": _bytes(shape, dtype), "score_bytes": 4 * shape.batch * shape.q_heads * shape.keys})
    return found
