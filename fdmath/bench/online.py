"""What normalising early or late, and a level that lags, do to the error; passes, exponentials and divisions, counted.

Errors and bounds are in units of u·Σp|v|, u the unit roundoff of float32; the scores count as exact.
"""

import math
from collections import Counter
from dataclasses import dataclass

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.algebra.merge import merge_all
from fdmath.algebra.order import sequential
from fdmath.algebra.rounding import Budget, format_of
from fdmath.algebra.state import AccState, MLOState, is_empty
from fdmath.attention.decode import key_ranges
from fdmath.attention.levels import lagging_levels, state_at_levels
from fdmath.attention.passes import one_pass, three_passes, two_passes
from fdmath.attention.softmax import partial_state, softmax_safe
from fdmath.bench.timing import alternating
from fdmath.verify import reference


class CountedTiles:
    """A stream of tiles of an array along its second-last axis; counts its passes and the numbers handed out."""

    def __init__(self, array, tile):
        self.array, self.tile = array, tile
        self.passes = self.numbers = 0

    def __iter__(self):
        self.passes += 1
        for start, stop in key_ranges(self.array.shape[-2], self.tile):
            part = self.array[..., start:stop, :]
            self.numbers += math.prod(part.shape)
            yield part


class Counted(np.ndarray):
    """A NumPy array whose elementwise operations, and those of what is made of it, are counted by name in `tally`.

    An operation counts once for each element of its result: "exp", "divide" … Products of matrices and the
    reductions (max, sum) are left out.
    """

    tally = None

    def __array_finalize__(self, source):
        self.tally = getattr(source, "tally", None)

    def __array_ufunc__(self, ufunc, method, *inputs, **kwargs):
        tally = next(x.tally for x in inputs if isinstance(x, Counted))
        plain = [x.view(np.ndarray) if isinstance(x, Counted) else x for x in inputs]
        result = getattr(ufunc, method)(*plain, **kwargs)
        if method == "__call__" and ufunc is not np.matmul:
            tally[ufunc.__name__] += np.size(result)
        return _counted(result, tally)

    def __array_function__(self, function, types, args, kwargs):
        return _counted(super().__array_function__(function, types, args, kwargs), self.tally)


def _counted(x, tally):
    """x as an array that counts into `tally`."""
    counted = np.asarray(x).view(Counted)
    counted.tally = tally
    return counted


def operations(fn, *arrays):
    """Counter of the elementwise operations, by NumPy's names, that fn(*arrays) does on its arrays."""
    tally = Counter()
    fn(*(_counted(x, tally) for x in arrays))
    return tally


def parts_of(scores, v, tile, kind):
    """The list of states of the tiles of `tile` keys; scores (Nq, N), v (N, dv)."""
    return [partial_state(scores[:, a:b], v[a:b], kind) for a, b in key_ranges(len(v), tile)]


def part_errors(scores, v, tile, fmt):
    """The Budget of each tile's own sums; a state of one key has no error, it is (s, 1, v)."""
    ranges = key_ranges(len(v), tile)
    if tile == 1:
        return [Budget(np.zeros((len(scores), v.shape[1])), np.zeros(len(scores))) for _ in ranges]
    return [rounding.block_budget(scores[:, a:b], v[a:b], fmt, pair=False) for a, b in ranges]


@dataclass(frozen=True)
class Row:
    """One measurement in u·Σp|v|: the largest and the root-mean-square error, the largest bound, the verdict."""

    error: float
    typical: float
    bound: float
    verdict: str


def measured(scores, v, state, budget):
    """The Row of a state of all keys and of the Budget of its fold, both before o is divided or converted."""
    fmt = format_of("float32")
    pair, bound = state.finalize(), rounding.finish_budget(state, budget, fmt, fmt, pair=False)
    right = reference.block(scores, v).enclosure
    unit = fmt.u * right.scale_o
    errors = right.errors(pair)[0] / unit
    return Row(errors.max(), math.sqrt(np.mean(errors**2)), (bound.o / unit).max(), right.verdict(pair, tuple(bound)))


def at_every_tile(scores, v, tile):
    """The Row of the recurrence that keeps o divided by l after every tile (tile = 1: (1c) of document A, 3.1.1)."""
    fmt, parts = format_of("float32"), parts_of(scores, v, tile, MLOState)
    budget = rounding.fold_budget(parts, sequential, fmt, part_errors(scores, v, tile, fmt))
    return measured(scores, v, merge_all(parts, sequential), budget)


def at_the_end(scores, v, tile, slack=0.0):
    """The Row of the recurrence that keeps acc and divides once, its level lagging by at most `slack`."""
    fmt, parts = format_of("float32"), parts_of(scores, v, tile, AccState)
    levels = lagging_levels(np.stack([p.m for p in parts], axis=-1), slack)
    budget = levels_budget(parts, levels, fmt, part_errors(scores, v, tile, fmt))
    return measured(scores, v, state_at_levels(parts, levels), budget)


def levels_budget(parts, levels, fmt, errors):
    """The Budget of state_at_levels(parts, levels), acc/l not yet rounded, for parts that carry the given errors.

    Weights: part b is weighed by e^(m_b−L_b) and then by every later e^(L_(i−1)−L_i), the same computed numbers
    in l and in acc; together their exponents err by x_b = u(|m_b−L_b| + Σ|L_i−L_(i−1)| + κ·changes) + η_b, which
    moves o by p_b·expm1(x_b)·(o_b − o). Sums: n_b = B − b + 2 + changes roundings of part b in each (B − b + 1
    additions, `changes` rescalings, its own included, one to spare), of relative size u, weigh |o_b| in acc and |o|
    in l (Higham 2002, section 3.1). Underflow as in `flat_budget`.
    Nothing may leave the range upwards.
    """
    parts = [rounding.in_float64(p) for p in parts]
    m, l, acc = (np.stack(column) for column in zip(*parts, strict=True))
    empty, levels = np.stack([is_empty(p) for p in parts]), np.moveaxis(rounding.exact(levels), -1, 0)
    eta, carried = (np.stack([getattr(e, name) for e in errors]) for name in ("lse", "o"))
    with backends.quiet():
        moved, steps = (np.where(np.isfinite(x), np.abs(x), 0.0) for x in (m - levels, np.diff(levels, axis=0)))
        sums = np.logaddexp.accumulate(np.where(empty, -np.inf, m + np.log(l)))
        share = np.where(empty, 0.0, np.exp(m - sums[-1]) * l)
        worth = np.where(np.isinf(levels), 0.0, np.exp(levels - sums[-1]))  # what 1 in l after each part is in the end
        held = np.where(empty, 0.0, np.exp(m - levels) * l)
        held[1:] += np.where(np.isinf(sums[:-1]), 0.0, np.exp(sums[:-1] - levels[:-1]))
    o = acc / np.where(l == 0, 1.0, l)[..., None]
    whole, size = np.sum(share[..., None] * o, axis=0), np.abs(o) + carried
    changes = (moved != 0) + _still_to_come(steps != 0)
    x = fmt.u * (moved + _still_to_come(steps) + fmt.kappa * changes) + eta
    count = np.arange(len(parts), 0, -1).reshape(-1, *[1] * (m.ndim - 1)) + changes + 1
    gamma = count * fmt.u / (1 - np.max(count) * fmt.u)
    least = np.sum(share * np.exp(-x), axis=0)
    grown, shifted = share * np.exp(x) / least, share * np.expm1(x) / least
    floor = 3 * fmt.tiny * np.sum(worth, axis=0)[..., None] * (1 + np.max(size, axis=0))
    lost = 4 * fmt.kappa * fmt.tiny * np.sum(worth * held, axis=0)[..., None] * np.max(size, axis=0)
    o_bound = np.sum(shifted[..., None] * np.abs(o - whole) + grown[..., None] * carried, axis=0)
    o_bound = o_bound + np.sum((grown * gamma)[..., None] * (size + np.abs(whole)), axis=0) + floor + lost
    lse_bound = np.sum(shifted + grown * gamma, axis=0)
    lse_bound = lse_bound + (3 + 2 * fmt.kappa) * fmt.tiny * np.sum(worth * (1 + held), axis=0)
    gone = np.isinf(sums[-1])
    return Budget(np.where(gone[..., None], 0.0, o_bound), np.where(gone, 0.0, lse_bound))


def _still_to_come(steps):
    """For each part the sum of the steps after it: steps (B − 1, …), result (B, …)."""
    zero = np.zeros((1, *steps.shape[1:]))
    return np.concatenate([np.cumsum(steps[::-1], axis=0)[::-1], zero])


def pass_times(keys, tile, queries=1, dim=64, rounds=7):
    """name → Timing of attention over float32 tiles of the given size in three passes, two and one.

    "scores kept" does without tiles: all scores in one array, its softmax, one product. Inputs are random, q
    (queries, dim), k and v (keys, dim); the ways run in turn (`alternating`).
    """
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((n, dim), np.float32) for n in (queries, keys, keys))
    q = q / np.float32(math.sqrt(dim))
    ks, vs = ([x[a:b] for a, b in key_ranges(keys, tile)] for x in (k, v))
    return alternating({
        "three passes": lambda: three_passes(q, ks, vs),
        "two passes": lambda: two_passes(q, ks, vs),
        "one pass": lambda: one_pass(q, ks, vs),
        "scores kept": lambda: softmax_safe(q @ k.T) @ v,
    }, rounds)
