"""FlashAttention-2's backward on a CPU: the error of each gradient beside its bound, and the time of the two orders.

Errors are in units of u·Σ|term|, u the unit roundoff of the inputs' format: for dq a term is scale·p·(|do||v| +
|do||o| + |dlse|)·|k|, for dk the same with q, for dv it is p·|do|. They are the sizes *before* dP − delta cancels.
"""

from dataclasses import dataclass

import numpy as np

import fdmath
from fdmath import _backends as backends
from fdmath.algebra.rounding import block_budget, exact, format_of, score_error
from fdmath.attention.gradient_budget import GradientBudget, gradient_budget
from fdmath.attention.reference import attention_gradient
from fdmath.bench.headline import Row
from fdmath.bench.timing import alternating

NAMES = ("dq", "dk", "dv")
DIM, VALUE_DIM = 16, 8


@dataclass(frozen=True, eq=False)
class Case:
    """q (Nq, d), k (N, d), v (N, dv) and the loss's do (Nq, dv), dlse (Nq,), with what the gradients must be.

    gradients: (dq, dk, dv) by definition in float64; radius: the GradientBudget of these; units: as the module says.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    do: np.ndarray
    dlse: np.ndarray
    causal: bool
    gradients: tuple
    radius: GradientBudget
    units: tuple


def case(keys, level=0.0, dtype="float32", causal=False, seed=0):
    """The Case of `keys` queries and keys, scores around level + N(0, 1), all else N(0, 1), in the format `dtype`."""
    draw = np.random.default_rng(seed).standard_normal
    centre = np.sign(draw(DIM))  # of length √d, so that centre·k/√d is N(0, 1)
    q, k = centre + draw((keys, DIM)) / 8, draw((keys, DIM)) + level / np.sqrt(DIM) * centre
    return _case_of(q, k, draw((keys, VALUE_DIM)), draw, dtype, causal)


def captured(name, queries=64, dtype="float32", seed=0):
    """The Case of the last `queries` queries of a captured head (`load_example`) and all of its keys, causal."""
    head = fdmath.load_example(name)
    q, k, v = (x.astype(np.float32) for x in (head.q[-queries:], head.k, head.v))
    return _case_of(q, k, v, np.random.default_rng(seed).standard_normal, dtype, causal=True)


def _case_of(q, k, v, draw, dtype, causal):
    """The Case of q, k, v rounded to the format `dtype`, and of a loss drawn from `draw`."""
    q, k, v, do = (backends.cast(x, dtype) for x in (q, k, v, draw((len(q), v.shape[-1]))))
    dlse = draw(len(q)).astype(backends.working(dtype))
    wide = [exact(x) for x in (do, dlse, q, k, v)]
    gradients = attention_gradient(*wide, causal=causal)
    radius = gradient_budget(*wide, **_saved_by_definition(*wide[2:], causal), causal=causal)
    return Case(q, k, v, do, dlse, causal, gradients, radius, _units(*wide, causal))


def _saved_by_definition(q, k, v, causal):
    """The bounds on o and lse by definition in float64, as arguments of `gradient_budget`."""
    fmt, scale = format_of("float64"), q.shape[-1] ** -0.5
    scores = np.where(_visible(q, k, causal), scale * (q @ k.T), -np.inf)
    budget = block_budget(scores, v, fmt, score_error(q, k, scale, fmt))
    return {"of_o": budget.o, "of_lse": budget.lse}


def _visible(q, k, causal):
    """The boolean mask (Nq, N), aligned bottom-right."""
    return np.tri(len(q), len(k), len(k) - len(q), dtype=bool) | (not causal)


def _units(do, dlse, q, k, v, causal):
    """The unit of each entry of dq, dk and dv without the factor u."""
    scale = q.shape[-1] ** -0.5
    o, lse = fdmath.attention(q, k, v, causal=causal)
    p = np.where(_visible(q, k, causal), np.exp(scale * (q @ k.T) - lse[:, None]), 0.0)
    row = np.sum(np.abs(do * o), axis=-1) + np.abs(dlse)
    slopes = scale * p * (np.abs(do) @ np.abs(v).T + row[:, None])
    return slopes @ np.abs(k), slopes.T @ np.abs(q), p.T @ np.abs(do)


def measure(case, block_m, block_n, by="columns"):
    """name → Row of dq, dk and dv by the backward in blocks of block_m × block_n, on the forward's own o and lse.

    The bound is that of the backward alone, given how far the forward's o and lse really are from exact.
    """
    blocks = {"block_m": block_m, "block_n": block_n, "causal": case.causal}
    o, lse = fdmath.flash_attention(case.q, case.k, case.v, **blocks)
    got = fdmath.flash_attention_backward(case.do, case.dlse, case.q, case.k, case.v, o, lse, by=by, **blocks)
    bounds = gradient_budget(case.do, case.dlse, case.q, case.k, case.v, causal=case.causal, **_saved(case, o, lse))
    u, rows = format_of(case.q).u, {}
    for name, x, right, radius, bound, unit in zip(NAMES, got, case.gradients, case.radius, bounds, case.units,
                                                   strict=True):
        error = np.abs(exact(x) - right) + radius
        rows[name] = Row(*(float(np.max(y)) for y in (error / (u * unit), bound / (u * unit), error / bound)))
    return rows


def _saved(case, o, lse):
    """How far a forward's o and lse are from exact, as arguments of `gradient_budget`."""
    wide = [exact(x) for x in (case.q, case.k, case.v)]
    right, radius = fdmath.attention(*wide, causal=case.causal), _saved_by_definition(*wide, case.causal)
    return {"of_o": np.abs(exact(o) - right.o) + radius["of_o"],
            "of_lse": np.abs(exact(lse) - right.lse) + radius["of_lse"]}


def backward_times(keys, blocks, dim=64, rounds=5):
    """(by, block) → Timing of the backward of `keys` queries and keys in square blocks, float32, by either order."""
    rng = np.random.default_rng(0)
    q, k, v, do = rng.standard_normal((4, keys, dim), dtype=np.float32)
    o, lse = fdmath.flash_attention(q, k, v)

    def run(by, block):
        return lambda: fdmath.flash_attention_backward(do, None, q, k, v, o, lse, block_m=block, block_n=block, by=by)

    return alternating({(by, block): run(by, block) for by in ("columns", "rows") for block in blocks}, rounds=rounds)
