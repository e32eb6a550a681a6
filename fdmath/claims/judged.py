"""Whether a result is attention: against ball arithmetic, within the proven bound of a chain over blocks of keys."""

import numpy as np

import fdmath
from fdmath import _backends as backends
from fdmath.algebra.merge import merge_all
from fdmath.algebra.order import sequential
from fdmath.algebra.rounding import block_budget, exact, finish_budget, fold_budget, format_of, score_error
from fdmath.algebra.state import AccState, LSEState
from fdmath.attention.reference import check_scale
from fdmath.attention.softmax import partial_state
from fdmath.attention.tiles import DEFAULT_BLOCK, blocks


def chain_bound(q, k, v, *, block_n=DEFAULT_BLOCK, columns=None, visible=None, scale=None, kind=AccState):
    """The Budget of (o, lse) when the keys are taken block by block: rounding of scores, sums, ⊕ and o (T6).

    q (…, Nq, d), k (…, N, d), v (…, N, dv): NumPy arrays of one float format, leading axes alike; columns: the slices
    of keys, blocks of block_n without it; visible: booleans (Nq, N), all without it; kind: the spelling carried from
    block to block. Raises ValueError for shapes.
    """
    out, fmt = format_of(q), format_of(backends.working(backends.float_name(q)))
    scale, pair = check_scale(scale, q.shape[-1]), kind is LSEState
    q, k, v = (exact(x) for x in (q, k, v))
    scores = np.where(True if visible is None else visible, scale * (q @ np.swapaxes(k, -1, -2)), -np.inf)
    lost = score_error(q, k, scale, fmt)
    cut = [(scores[..., j], v[..., j, :], lost[..., j]) for j in columns or blocks(k.shape[-2], block_n)]
    parts = [partial_state(s, values, kind) for s, values, _ in cut]
    errors = [block_budget(s, values, fmt, error, pair=pair) for s, values, error in cut]
    folded = fold_budget(parts, sequential, fmt, errors)
    return finish_budget(merge_all(parts, sequential), folded, fmt, out, pair=pair)


def attends(state, q, k, v, *, visible=None, scale=None, **chain):
    """Whether (o, lse) certainly is the attention of the call, but for `chain_bound`. NaN is never attention.

    chain: block_n, columns, kind. Raises ValueError for shapes.
    """
    budget = chain_bound(q, k, v, visible=visible, scale=scale, **chain)
    return fdmath.certified_attention(q, k, v, scale=scale, mask=visible).verdict(state, tuple(budget)) == "pass"


__all__ = ["attends", "chain_bound"]
