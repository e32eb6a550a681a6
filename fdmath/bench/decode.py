"""Split-KV decoding on a CUDA device: what is measured, how a row is written, and how two times are compared.

A record, `fdmath/bench/results/decode-{device}-{date}.json`, is the head of `records.provenance` with `driver` and
`ceilings` (see `fdmath.bench.ceilings`), and rows. A row is a dict of FIELDS:

    study            what it belongs to: "peers", or one of `fdmath.bench.studies.STUDIES`
    row              the name of its Shape
    batch, q_heads, kv_heads, dim, keys, queries, dtype      the call
    implementation   "fdmath", a peer's name, or what the study varies
    num_splits, tile       what was asked for, or what fdmath's plan took; null where it is the peer's own affair
    us, us_least, us_most  microseconds a call, median, least and most of the replays of a CUDA graph; null if not timed
    bytes, gb_per_s        K, V, q and o, each once; those bytes over us
    floor_us, share_of_floor   the time in which those bytes are read (see Floor); that over us
    err_o            ‖o − exact‖ / ‖exact‖ for normal numbers, Frobenius, exact in float64
    err_lse          for them, the largest |lse − exact|; null where none is returned
    v_ones_ulp       for v ≡ 1, how many steps of o's format the furthest o is away from 1
    status, note     "ok", "wrong" (beyond `most_errors` in one of `fdmath.bench.probes`, or inputs that it changed),
                     "failed" (it raised), "not run"; why, in words

This module needs no torch: it reads records anywhere.
"""

import math
from typing import NamedTuple

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.rounding import unit_roundoff
from fdmath.bench import records

FIELDS = (
    "study", "row", "batch", "q_heads", "kv_heads", "dim", "keys", "queries", "dtype", "implementation", "num_splits",
    "tile", "us", "us_least", "us_most", "bytes", "gb_per_s", "floor_us", "share_of_floor", "err_o", "err_lse",
    "v_ones_ulp", "status", "note",
)  # fmt: skip
DTYPES = ("float16", "bfloat16")
OURS, TILE = "fdmath", 1024
TILED = f"fdmath, tile {TILE}"
"""The names under which our kernel stands in the rows: by its own plan, and with `tile` fixed."""


class Shape(NamedTuple):
    """A decode step by name: `batch` sequences of `keys` keys, q_heads query heads over kv_heads KV heads of `dim`."""

    name: str
    batch: int = 1
    q_heads: int = 16
    kv_heads: int = 2
    dim: int = 128
    keys: int = 8192
    queries: int = 1

    @property
    def group(self):
        """Query heads a KV head."""
        return self.q_heads // self.kv_heads

    @property
    def causal(self):
        """False: aligned bottom-right, the one query sees every key."""
        return False

    @property
    def cache(self):
        """The numbers in K, and in V."""
        return self.batch * self.kv_heads * self.keys * self.dim

    def bytes_in(self, dtype):
        """The bytes that a decode in the dtype must move at least: K, V and q read once, o written once."""
        o = self.batch * self.q_heads * self.queries * self.dim
        return 2 * (self.cache + o) * backends.dtype_of(np.empty(0), dtype).itemsize


def _blog(batch, keys):
    return Shape(f"blog B={batch},S={keys}", batch, 16, 2, 128, keys)


def _llama(batch, keys, kind="L8B", kv_heads=8):
    return Shape(f"{kind} B={batch},S={keys}", batch, 32, kv_heads, 128, keys)


ROWS = {
    "blog": (*(_blog(2**i, 65536 >> i) for i in range(8, -1, -1)), _blog(1, 131072)),
    "l8b": (_llama(1, 8192), _llama(1, 131072), _llama(16, 8192), _llama(64, 4096), _llama(8, 4096, "MHA", 32)),
    "tiny": tuple(_llama(b, n, "tiny") for b, n in ((1, 256), (1, 1024), (1, 2048), (1, 4096), (8, 1024))),
}
"""Shapes by set: the table of the Flash-Decoding blog (2023); Llama-3-8B's heads, and as many KV as query heads; small
caches of Llama-3-8B's heads, in which latency counts."""


def rows_named(words):
    """The list of Shapes that words name, a set of ROWS, "all", or a row's own name; ValueError for any other."""
    every = {shape.name: (shape,) for shapes in ROWS.values() for shape in shapes}
    sets = {**ROWS, "all": tuple(s for shapes in ROWS.values() for s in shapes), **every}
    unknown = [word for word in words if word not in sets]
    if unknown:
        raise ValueError(f"rows must be among {', '.join((*ROWS, 'all'))}, or a row's name such as "
                         f"{next(iter(every))!r}; got {', '.join(map(repr, unknown))}")
    return list(dict.fromkeys(shape for word in words for shape in sets[word]))


class Floor(NamedTuple):
    """The read floor: a kernel that reads some bytes takes at least start_us + bytes / rate."""

    start_us: float
    gb_per_s: float

    def us(self, count):
        """The microseconds in which `count` bytes are read."""
        return self.start_us + count / self.gb_per_s / 1e3


def fit_floor(points):
    """The Floor that fits (bytes, µs) points: least squares of (start + bytes/rate − t)/t, where start ≥ 0.

    Raises ValueError for fewer than two sizes, for times that are not positive numbers or do not grow with the bytes.
    """
    count, us = np.array(points, float).reshape(-1, 2).T
    if len(set(count)) < 2:
        raise ValueError(f"points must have at least two sizes; got {len(set(count))}")
    if not np.all((us > 0) & np.isfinite(us)):
        raise ValueError(f"points must have times above 0; got {us.tolist()}")
    start, slope = np.linalg.lstsq(np.stack([1 / us, count / us], 1), np.ones_like(us), rcond=None)[0]
    if start < 0:
        rate = count / us
        start, slope = 0.0, np.sum(rate) / np.sum(rate * rate)
    if not slope > 0:
        raise ValueError("points must take longer the more bytes there are")
    return Floor(float(start), float(1e-3 / slope))


def row_of(study, shape, dtype, implementation, floor=None, **found):
    """A row: a dict of FIELDS in their order. found: what was found, `us` and the like; the rest is derived, or null.

    Raises TypeError for a name that is no field.
    """
    unknown = sorted(found.keys() - set(FIELDS))
    if unknown:
        raise TypeError(f"a row has no field {', '.join(unknown)}")
    row = dict.fromkeys(FIELDS) | {"study": study, "row": shape.name, **shape._asdict(), "dtype": dtype,
                                   "implementation": implementation, "bytes": shape.bytes_in(dtype), "status": "ok"}
    row = {name: x for name, x in (row | found).items() if name in FIELDS}
    if floor is not None:
        row["floor_us"] = floor.us(row["bytes"])
    if row["us"] is not None:
        row["gb_per_s"] = row["bytes"] / row["us"] / 1e3
        row["share_of_floor"] = None if floor is None else row["floor_us"] / row["us"]
    return row


def timed(timing):
    """The fields of a Timing in seconds a call: {us, us_least, us_most}."""
    return {"us": 1e6 * timing.median, "us_least": 1e6 * timing.least, "us_most": 1e6 * timing.most}


class Rounding(NamedTuple):
    """What a call rounds to a 16-bit format on the way: `values`, two of them being P and o, and each score so often.

    stats: the format in which it keeps m, l and lse. sums_rounded: whether its l may sum the rounded P.
    """

    values: int = 2
    scores: int = 0
    stats: str = "float32"
    sums_rounded: bool = False


def most_errors(dtype, rounding, dim, keys, size, level):
    """The most that a call on inputs of the 16-bit `dtype` may err: err_o in units of Σp|v|, err_lse, v_ones_ulp.

    size: the largest scale·Σ|q||k| of a score; level: the largest |lse|. Each number holds for every entry.
    First the exponent of a weight, and with it lse. A score is a product of `dim` numbers in float32, whose matrix
    units cut off what does not fit (2u a sum): γ_(d+2), as `rounding.score_error`. One chain over `keys` keys, 16 at a
    time, cuts off 2u each time, and always the same way (seen: two steps at 131072 keys in float16). Beside that there
    are 16 roundings of an lse as large as `level`, or of a number near 1. Scores that are rounded to 16 bits add u·size
    each time; statistics kept in a lower format, m, l and lse of a part and lse of all, one rounding of each.
    o: every value that is rounded moves it by u·Σp|v| at most, a sum of rounded P by u·|o|, which is no more; an
    exponent that is off by e moves p by p·expm1(e), so o by expm1(e)·Σp|v − o|, at most twice Σp|v|.
    v ≡ 1: all but the last rounding move o by one step, the chain as above.
    """
    u, fine, kept = (unit_roundoff(name) for name in (dtype, "float32", rounding.stats))
    chain, high = keys / 16 * 2 * fine, max(level, 1)
    exponent = 2 * (dim + 2) * fine * size + chain + 16 * fine * high + rounding.scores * u * size
    exponent += 4 * kept * high if kept > fine else 0
    return {"err_o": (rounding.values + 1) * u + 2 * math.expm1(exponent),
            "err_lse": exponent + (u if rounding.sums_rounded else 0),
            "v_ones_ulp": rounding.values - 1 + (chain + (4 * kept if kept > fine else 0)) / u}


def judged(errors, most):
    """{status, note} of errors beside the most they may be; what is not returned (None) is not judged, NaN is wrong."""
    beyond = [name for name, most_of in most.items() if errors[name] is not None and not errors[name] <= most_of]
    note = "; ".join(f"{name} {errors[name]:.2g} is beyond {most[name]:.2g}" for name in beyond)
    return {"status": "wrong" if beyond else "ok", "note": note or None}


def verdict(mine, other):
    """"ahead", "level" or "behind": how the row `mine` stands to the row `other`; "wrong" where one is not right.

    Level: the best replay of the slower one reaches the median of the faster one.
    """
    if {mine["status"], other["status"]} != {"ok"}:
        return "wrong"
    fast, slow = sorted((mine, other), key=lambda row: row["us"])
    if slow["us_least"] <= fast["us"]:
        return "level"
    return "ahead" if fast is mine else "behind"


def best_peer(rows, without=(OURS, TILED)):
    """The row with the least time among those that are right, but for the implementations in `without`; or None."""
    there = [row for row in rows if row["us"] is not None and row["status"] == "ok"
             and row["implementation"] not in without]
    return min(there, key=lambda row: row["us"], default=None)


def failed(row, mine=(OURS, TILED)):
    """Whether a row means that something is broken: an output that is wrong, or a call of `mine` that failed."""
    return row["status"] == "wrong" or row["status"] == "failed" and row["implementation"] in mine


def recorded(device="h200"):
    """(head, rows) of the newest record of a device, in which times stand in microseconds; FileNotFoundError for none.

    head["ceilings"] is as `fdmath.bench.ceilings.measure` describes.
    """
    return records.newest(f"decode-{device}")


def select(rows, **fields):
    """The rows whose fields are as given: select(rows, study="peers", dtype="float16")."""
    return [row for row in rows if all(row[name] == value for name, value in fields.items())]


def steps_from_one(o, eps):
    """How many steps of a format with spacing eps above 1, eps/2 below, the furthest number of o is from 1; NaN counts.

    o: finite floats as a NumPy array; infinity for a NaN.
    """
    away = np.asarray(o, np.float64) - 1
    steps = float(np.max(np.where(away < 0, -2 * away, away) / eps, initial=0.0))
    return math.inf if math.isnan(steps) else steps
