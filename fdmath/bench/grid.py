"""The error grid: FlashDecoding's error over tile size × sequence length, for each spelling and order of its states.

Measured is the whole call `split_kv_attention` with one query, against the certified attention of the same inputs,
beside its proven bound: the rounding of the scores, of each tile's sums, of every ⊕ in its order, and of o. Errors
and bounds are in u·Σp|v|, u the unit roundoff of the inputs' format, which is that of o too.

`python -m fdmath.bench.grid` measures it anew (about four minutes on one core); `recorded()` reads the record.
"""

import argparse
import math
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm.auto import tqdm

import fdmath
from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.algebra.merge import unstack
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.bench import records

LENGTHS = (1024, 4096, 16384, 65536, 131072)
TILES = (16, 64, 256, 1024, 4096, 16384)
LEVELS = (0, 30, 1000)
DTYPES = ("float32", "bfloat16")
KINDS = {"o/lse": LSEState, "m/l/o": MLOState, "m/l/acc": AccState}
ORDERS = {"chain": fdmath.sequential, "streams": fdmath.streams(5), "tree": fdmath.tree, "flat": fdmath.flat}
HEADS = ("smollm2/sink", "smollm2/flat", "smollm2/peaked", "smollm2/plain")
DIM, VALUE_DIM = 64, 8
RECORD = "error_grid-cpu"
MEASURED = ("algebra", "attention", "bench/grid.py", "_backends.py")


class Row(NamedTuple):
    """One cell of the grid. source: the score level, or the name of a captured head; ratio: the worst error / bound.

    error, bound: the largest over the numbers of o, in u·Σp|v|. ratio: of each number with its own bound, lse included.
    """

    keys: int
    tile: int
    kind: str
    order: str
    source: object
    dtype: str
    error: float
    bound: float
    ratio: float


@dataclass(frozen=True, eq=False)
class Case:
    """q (S, 1, 1, d), k (S, 1, N, d), v (S, 1, N, dv) of S sources in one format, and their attention, enclosed."""

    sources: tuple
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    exact: object

    @property
    def keys(self):
        return self.k.shape[-2]

    @property
    def dtype(self):
        return backends.float_name(self.q)


def case_of(sources, q, k, v, dtype):
    """The Case of arrays (S, 1, …), rounded to the format `dtype` first."""
    q, k, v = (backends.cast(x, dtype) for x in (q, k, v))
    return Case(tuple(sources), q, k, v, fdmath.certified_attention(q, k, v))


def synthetic(keys, dtype, levels=LEVELS):
    """The Case of scores level + N(0, 1), as q·k of 64 dimensions, and of 8 values a key, N(0, 1), plus 1 in one half.

    The values change after the first half, as a text does: if all tiles had the same mean, a wrong weight of a
    tile would not show.
    """
    rng = np.random.default_rng(keys)
    q, k = rng.standard_normal((len(levels), 1, 1, DIM)), rng.standard_normal((len(levels), 1, keys, DIM))
    q = q * math.sqrt(DIM) / np.linalg.norm(q, axis=-1, keepdims=True)
    v = rng.standard_normal((len(levels), 1, keys, VALUE_DIM))
    v[..., : keys // 2, :] += 1
    level = np.reshape(levels, (-1, 1, 1, 1)) / math.sqrt(DIM)
    return case_of(levels, q, k + level * q, v, dtype)


def captured(names=HEADS, dtype="float32"):
    """The Case of the last query of each captured head, which sees all of its keys."""
    heads = [fdmath.load_example(name) for name in names]
    q, k, v = (np.stack([x.astype(np.float32)[None] for x in column])
               for column in zip(*((h.q[-1:], h.k, h.v) for h in heads), strict=True))
    return case_of(names, q, k, v, dtype)


def measure(case, tile, kinds=KINDS, orders=ORDERS):
    """The Rows of one Case in tiles of `tile` keys: each source with each of the kinds and orders, by name."""
    out, unit = rounding.format_of(case.dtype), _unit(case)
    for kind in kinds:
        parts, errors = tiles_with_budgets(case, tile, KINDS[kind])
        for order in orders:
            error, lse_error = _errors(case, tile, kind, order)
            budget = call_budget(parts, errors, ORDERS[order], out)
            ratio = np.maximum(np.max(error / budget.o, axis=-1), lse_error / budget.lse)
            columns = (x.reshape(len(case.sources), -1).max(axis=-1) for x in (error / unit, budget.o / unit, ratio))
            for source, *figures in zip(case.sources, *columns, strict=True):
                yield Row(case.keys, tile, kind, order, source, case.dtype, *map(float, figures))


def worst_error(case, tile, kind, order):
    """The worst error of o of each source, (S,), in u·Σp|v|: as `measure` has it, without the slow bounds."""
    error, _ = _errors(case, tile, kind, order)
    return (error / _unit(case)).reshape(len(case.sources), -1).max(axis=-1)


def _errors(case, tile, kind, order):
    """The errors of o and of lse of the call, in the numbers themselves."""
    state = fdmath.split_kv_attention(case.q, case.k, case.v, tile=tile, kind=KINDS[kind], order=ORDERS[order])
    return case.exact.errors(state)


def _unit(case):
    """u·Σp|v| of each number of o, u the unit roundoff of the inputs' format."""
    return rounding.format_of(case.dtype).u * case.exact.scale_o


def tiles_with_budgets(case, tile, kind):
    """The states of all tiles in float64, and the Budget of each as float32 computes it: that of its scores and sums.

    The last tile is filled up with keys of score −∞, which are none.
    """
    work, scale = rounding.format_of("float32"), 1 / math.sqrt(case.q.shape[-1])
    q, k, v = (rounding.exact(x) for x in (case.q, case.k, case.v))
    lost, scores = rounding.score_error(q, k, scale, work), scale * (q @ np.swapaxes(k, -1, -2))
    scores, lost = (_in_tiles(x, tile, -1, fill)[..., None, :] for x, fill in ((scores[..., 0, :], -np.inf),
                                                                              (lost[..., 0, :], 0.0)))
    v = _in_tiles(v, tile, -2, 0.0)
    budgets = rounding.block_budget(scores, v, work, lost, pair=kind is LSEState)
    return unstack(fdmath.partial_state(scores, v, kind)), [rounding.Budget(*b) for b in zip(*budgets, strict=True)]


def _in_tiles(x, tile, axis, fill):
    """x with the axis of N keys cut in tiles: (⌈N/tile⌉, …, tile, …), the last tile filled up with `fill`."""
    short = -x.shape[axis] % tile
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, short)
    x = np.moveaxis(np.pad(x, widths, constant_values=fill), axis, 0)
    x = x.reshape(-1, tile, *x.shape[1:])
    return np.moveaxis(x, 1, axis)


def call_budget(parts, errors, order, out):
    """The Budget of a whole call: the tiles' own, folded in the order of the call (T1, T3, T6), o rounded to `out`."""
    work, pair = rounding.format_of("float32"), isinstance(parts[0], LSEState)
    folded = rounding.fold_budget(parts, order, work, errors)
    return rounding.finish_budget(fdmath.merge_all(parts), folded, work, out, pair)


def grid(lengths=LENGTHS, tiles=TILES, dtypes=DTYPES, levels=LEVELS, progress=False):
    """The Rows of the grid, tiles no longer than the sequence; progress: a bar over its (length, format, tile)."""
    steps = [(n, dtype, t) for n in lengths for dtype in dtypes for t in tiles if t <= n]
    case = None
    for keys, dtype, tile in tqdm(steps, unit="step", disable=None if progress else True, leave=False):
        if case is None or (case.keys, case.dtype) != (keys, dtype):
            case = synthetic(keys, dtype, levels)
        yield from measure(case, tile)


def table(rows, value="error", **wanted):
    """(lengths, tiles, array): one figure of the Rows with the wanted fields, NaN where the grid has none.

    array[i, j] is the largest such figure at lengths[i] keys in tiles of tiles[j].
    """
    rows = select(rows, **wanted)
    lengths, tiles = (sorted({getattr(row, name) for row in rows}) for name in ("keys", "tile"))
    cells = np.full((len(lengths), len(tiles)), np.nan)
    for row in rows:
        at = lengths.index(row.keys), tiles.index(row.tile)
        cells[at] = np.fmax(cells[at], getattr(row, value))
    return lengths, tiles, cells


def select(rows, **wanted):
    """The list of the Rows whose fields are the wanted ones, such as kind="o/lse", dtype="float32"."""
    return [row for row in rows if all(getattr(row, name) == value for name, value in wanted.items())]


def recorded():
    """(head, rows): where, when and with what the newest recorded grid was measured, and the list of its Rows."""
    head, rows = records.newest(RECORD)
    return head, [Row(*row) for row in rows]


def main(argv=None):
    """The exit code: 0 if every error lies within its bound, else 1. Prints the worst cell, writes a record."""
    parser = argparse.ArgumentParser(prog="python -m fdmath.bench.grid", description=__doc__.partition("\n")[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=LENGTHS, metavar="N", help="keys")
    parser.add_argument("--record", type=Path, metavar="FOLDER", help="where to write the record (none without it)")
    options = parser.parse_args(argv)
    rows = list(grid(options.lengths, progress=True))
    if options.record:
        command = f"python -m fdmath.bench.grid --lengths {' '.join(map(str, options.lengths))}"
        head = records.provenance(command, ("numpy", "ml_dtypes", "python-flint"), MEASURED)
        records.write(options.record, RECORD, {**head, "unit": "u·Σp|v|", "columns": Row._fields}, rows)
    worst = max(rows, key=lambda row: row.ratio)
    print(f"{len(rows)} cells; worst error / bound {worst.ratio:.3g}: {worst}")
    return 0 if all(row.ratio <= 1 for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
