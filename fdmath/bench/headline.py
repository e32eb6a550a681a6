"""The headline measurement: what each spelling of a state loses as the scores grow, beside its proven bound.

The keys are cut into tiles, the tile states folded one after the other, the result set against the exact
attention in ball arithmetic. Errors and bounds are in units of u·Σp|v|, u the unit roundoff of the format
in which the statistics (lse, or m and l) are kept; o is kept in float32. The scores count as exact.
"""

import itertools
from dataclasses import dataclass

import numpy as np

import fdmath
from fdmath.algebra import rounding
from fdmath.algebra.printed import merge_as_printed_A_3_2_1
from fdmath.algebra.state import LSEState, MLOState
from fdmath.attention.softmax import logsumexp

LEVELS = (0, 10, 30, 100, 300, 1000, 3000, 10000)
HEADS = ("smollm2/sink", "smollm2/flat", "smollm2/peaked", "smollm2/plain")
FORMATS = ("float32", "bfloat16")
TILE = 32


@dataclass(frozen=True)
class Form:
    """One way of keeping and merging states: a spelling, a binary ⊕, and the bound on its chain."""

    kind: type
    merge: object
    bound: object


def merge_printed(a, b):
    """a ⊕ b of two LSEStates as document A prints it (3.2.1)."""
    return LSEState(*merge_as_printed_A_3_2_1(*a, *b))


def fold_bound(states, fmt, errors):
    """The Budget of a chain of fdmath.merge (T6)."""
    return rounding.fold_budget(states, fdmath.sequential, fmt, errors)


FORMS = {
    "pair, as printed": Form(LSEState, merge_printed, rounding.chain_budget),
    "pair, convex form": Form(LSEState, fdmath.merge, fold_bound),
    "triple": Form(MLOState, fdmath.merge, fold_bound),
}


@dataclass(frozen=True, eq=False)
class Case:
    """Scores (R, N) and values (N, dv) in float32, and the enclosure of the exact states, shape (R, 1, dv)."""

    scores: np.ndarray
    v: np.ndarray
    exact: object

    @property
    def level(self):
        """The largest |lse| of the rows."""
        return float(np.max(np.abs(self.exact.lse_mid)))


@dataclass(frozen=True)
class Row:
    """One measurement, in u·Σp|v|: the largest error, the largest bound, and the worst error over its own bound."""

    error: float
    bound: float
    ratio: float


def certified(scores, v):
    """The Case of these scores, −∞ where a key is not visible, and values: each row is a head with one query."""
    ones = np.ones((len(scores), 1, 1), np.float32)
    exact = fdmath.certified_attention(ones, scores[..., None], np.broadcast_to(v, (len(scores), *v.shape)),
                                       scale=1.0, mask=(scores > -np.inf)[:, None, :])
    return Case(scores, v, exact)


def synthetic(level, rows=16, keys=1024, seed=0):
    """The Case of scores level + N(0, 1), shape (rows, keys), and values between 0 and 1, shape (keys, 1)."""
    rng = np.random.default_rng(seed)
    scores = np.float32(level) + rng.standard_normal((rows, keys)).astype(np.float32)
    return certified(scores, rng.random((keys, 1)).astype(np.float32))


def captured(name, every=8):
    """The Case of every eighth query of a captured head, with all of its keys and values."""
    head = fdmath.load_example(name)
    return of_head(head.q, head.k, head.v, every)


def of_head(q, k, v, every=8):
    """The Case of every eighth of the last queries q (Nq, d) of a head over its keys k (N, d) and values v (N, dv).

    The scores are the exact products of the stored numbers, rounded once: what follows is merging alone.
    """
    queries, keys = np.arange(len(q))[every - 1::every], np.arange(len(k))
    scores = q[queries].astype(np.float64) @ k.T.astype(np.float64) / np.sqrt(q.shape[-1])
    visible = keys <= queries[:, None] + (len(k) - len(q))
    return certified(np.where(visible, scores, -np.inf).astype(np.float32), v.astype(np.float32))


def tile_states(scores, v, kind, stats, tile=TILE):
    """The states of the tiles of `tile` keys, the statistics rounded to the format `stats`."""
    starts = range(0, scores.shape[-1], tile)
    return [fdmath.partial_state(scores[:, i:i + tile], v[i:i + tile], kind, stats_dtype=stats) for i in starts]


def tile_errors(scores, v, kind, stats, tile=TILE):
    """The Budget of each tile state: that of its sums in float32, then that of rounding its statistics.

    The level m is rounded before anything is taken against it, which moves it by at most c = u·|m|: each
    exponent s − m, and log l, is then larger by c and rounded in float32. Rounding lse moves it by u·|lse|,
    rounding l by u of itself. Nothing is added where the statistics are float32 themselves.
    """
    work, stored = rounding.format_of("float32"), rounding.format_of(stats)
    for i in range(0, scores.shape[-1], tile):
        some = scores[:, i:i + tile]
        lse = _finite(logsumexp(some.astype(np.float64)))
        moved = _finite(np.max(some, axis=-1)) * (stored.u if stored != work else 0.0)
        sums = rounding.block_budget(some, v[i:i + tile], work, work.u * moved[:, None], pair=kind is LSEState)
        kept = work.u * work.kappa * moved + stored.u * lse if kind is LSEState else stored.u
        yield sums if stored == work else rounding.Budget(sums.o, sums.lse + kept)


def _finite(x):
    """|x| in float64, 0 where x is infinite."""
    return np.where(np.isinf(x), 0.0, np.abs(x.astype(np.float64)))


def measure(case, form, stats, tile=TILE):
    """The Row of one Form of FORMS, by name, with its statistics in the format `stats` and tiles of `tile` keys."""
    form, fmt = FORMS[form], rounding.format_of(stats)
    states = tile_states(case.scores, case.v, form.kind, stats, tile)
    budget = form.bound(states, fmt, list(tile_errors(case.scores, case.v, form.kind, stats, tile)))
    o, lse = fdmath.sequential(form.merge, states).finalize()
    error = case.exact.errors((o[:, None, :], lse[:, None]))[0][:, 0, :]
    unit = fmt.u * case.exact.scale_o[:, 0, :]
    return Row(*(float(np.max(x)) for x in (error / unit, budget.o / unit, error / budget.o)))


@dataclass(frozen=True, eq=False)
class Panel:
    """The measurements with statistics in one format: levels (|lse|) and Rows of each form, synthetic and captured."""

    levels: list
    rows: dict
    head_levels: list
    head_rows: dict


def headline(levels=LEVELS, names=HEADS):
    """The Panel of each format of FORMATS: synthetic scores of each level, captured heads of these names."""
    cases, heads = [synthetic(level) for level in levels], [captured(name) for name in names]
    return {stats: Panel([c.level for c in cases], _rows(cases, stats), [c.level for c in heads], _rows(heads, stats))
            for stats in FORMATS}


def _rows(cases, stats):
    return {form: [measure(case, form, stats) for case in cases] for form in FORMS}


def statements(panels):
    """What the figure claims: pairs (whether it holds, the sentence). Thresholds leave a factor of 4 at least."""
    printed, convex, triple = FORMS
    rows = [row for p in panels.values() for part in (p.rows, p.head_rows) for form in part.values() for row in form]
    single, half = panels["float32"].rows, panels["bfloat16"].rows
    high = [level >= 1000 for level in panels["bfloat16"].levels]
    last = {form: single[form][-1].error for form in FORMS}
    size = rounding.unit_roundoff("bfloat16")
    yield (all(row.ratio <= 1 for row in rows),
           "Every measured error, on synthetic scores and on captured heads, lies within its proven bound")
    yield (all(row.error <= 8 * p.rows[triple][0].error for p in panels.values() for row in p.rows[triple]),
           "at no level does the triple err more than 8 times as much as at level 0")
    yield (last[printed] >= 1000 * last[triple] and last[convex] >= 30 * last[triple],
           "with float32 statistics at level 10000 the printed pair errs at least 1000 times, "
           "the convex pair at least 30 times as much as the triple")
    pairs_on_heads = zip(panels["float32"].head_rows[convex], panels["float32"].head_rows[triple], strict=True)
    yield (all(pair.error <= 8 * other.error for pair, other in pairs_on_heads),
           "with float32 statistics on the captured heads, whose scores are small, "
           "the convex pair errs at most 8 times as much as the triple")
    yield (all(row.error * size >= 7 for row in itertools.compress(half[printed], high)),
           "with bfloat16 statistics from level 1000 on the printed pair is wrong by at least 7 times "
           "the size of the right answer")
    yield (all(row.error * size <= 0.6 for row in half[convex]),
           "the convex pair at no level by more than six tenths of that size")
    on_heads = panels["bfloat16"].head_rows
    compared = list(zip(on_heads[convex], on_heads[triple], strict=True))
    yield (sum(pair.error >= 5 * other.error for pair, other in compared) >= 2
           and any(pair.error < other.error for pair, other in compared),
           "on the captured heads with bfloat16 statistics neither is always the better: the convex pair errs at least "
           "5 times as much as the triple on two of the heads or more, and less than the triple on at least one")
