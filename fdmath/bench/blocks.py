"""What block sizes and lengths do to FlashAttention on a CPU: its error beside its proven bound, and its time.

Errors and bounds are in units of u·Σp|v|, u the unit roundoff of the inputs' format, or of the format in which the
statistics m and l are kept.
"""

from typing import NamedTuple

import numpy as np

import fdmath
from fdmath.algebra import rounding
from fdmath.algebra.order import sequential
from fdmath.algebra.state import AccState, MLOState
from fdmath.attention.flash import flash_attention
from fdmath.attention.flash1 import flash_attention_1
from fdmath.bench import grid, headline
from fdmath.bench.timing import alternating

ALGORITHMS = {"FlashAttention-1": (flash_attention_1, MLOState), "FlashAttention-2": (flash_attention, AccState)}
"""name → the function, and the spelling of the state that it carries from block to block."""


class Row(NamedTuple):
    """One measurement. source: the level of the scores; ratio: the worst error / bound, lse included where known."""

    algorithm: str
    keys: int
    block_n: int
    source: object
    error: float
    bound: float
    ratio: float


def measure(case, block_n):
    """The Rows of both algorithms on a `grid.Case`, in blocks of block_n keys.

    The bound is that of a chain of ⊕ of the blocks' states (T6), their sums and the rounding of the scores included.
    It holds, since each algorithm rounds no more often than that chain. Before block b is added at the level L, the
    chain takes e^(s−m_b) at the block's own maximum m_b ≤ L and multiplies by e^(m_b−L); FlashAttention-2 takes
    e^(s−L) at once, whose exponent is as long as both together. FlashAttention-1 does not divide the block's own
    output by l_b and multiply it again. All else is the same.
    """
    unit = rounding.format_of(case.dtype).u * case.exact.scale_o
    for name, (algorithm, kind) in ALGORITHMS.items():
        parts, errors = grid.tiles_with_budgets(case, block_n, kind)
        budget = grid.call_budget(parts, errors, sequential, rounding.format_of(case.dtype))
        error, lse_error = case.exact.errors(algorithm(case.q, case.k, case.v, block_n=block_n))
        ratio = np.maximum(np.max(error / budget.o, axis=-1), lse_error / budget.lse)
        columns = (x.reshape(len(case.sources), -1).max(axis=-1) for x in (error / unit, budget.o / unit, ratio))
        for source, *figures in zip(case.sources, *columns, strict=True):
            yield Row(name, case.keys, block_n, source, *map(float, figures))


def with_statistics(case, stats, block_n):
    """The Rows of both chains on a `headline.Case`, m and l kept in the format `stats`, acc and o in float32.

    The unit, and the bound T6, are those of `stats`. Rounding l, and not acc, moves acc/l by a u of itself in each
    part; o, divided before, it does not move.
    """
    fmt, work = rounding.format_of(stats), rounding.format_of("float32")
    for name, (_, kind) in ALGORITHMS.items():
        states = headline.tile_states(case.scores, case.v, kind, stats, block_n)
        errors = list(headline.tile_errors(case.scores, case.v, kind, stats, block_n))
        if kind is AccState and fmt != work:
            errors = [_divided_by_rounded(e, s, fmt) for e, s in zip(errors, states, strict=True)]
        state = fdmath.merge_all(states, sequential)
        budget = rounding.finish_budget(state, rounding.fold_budget(states, sequential, fmt, errors), work, work, False)
        o, lse = state.finalize()
        error = case.exact.errors((o[:, None, :], lse[:, None]))[0][:, 0, :]
        unit = fmt.u * case.exact.scale_o[:, 0, :]
        figures = (error / unit, budget.o / unit, error / budget.o)
        yield Row(name, case.scores.shape[-1], block_n, case.level, *(float(np.max(x)) for x in figures))


def _divided_by_rounded(error, state, fmt):
    """The Budget of acc/l with l rounded to l(1 + δ): the stored quotient is off by |δ| ≤ u times itself."""
    stored = rounding.in_float64(state).to(MLOState).o
    return rounding.Budget(error.o + fmt.few * np.abs(stored), error.lse)


def times(queries, blocks, dim=64, causal=False, rounds=3):
    """name → Timing of both algorithms on one head of `queries` queries and keys, and of the definition, in turn.

    The names are (algorithm, block) and "definition"; blocks are square, inputs random float32.
    """
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal((queries, dim), np.float32) for _ in range(3))

    def call(algorithm, block):
        return lambda: algorithm(q, k, v, block_m=block, block_n=block, causal=causal)

    subjects = {(name, b): call(algorithm, b) for name, (algorithm, _) in ALGORITHMS.items() for b in blocks}
    return alternating({**subjects, "definition": lambda: fdmath.attention(q, k, v, causal=causal)}, rounds)
