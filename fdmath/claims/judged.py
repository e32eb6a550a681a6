"""Whether a result is attention: against ball arithmetic, within the proven bound of a chain over blocks of keys.

Three judges stand beside one another, since what they judge obeys three theorems, and one bound for all would be the
widest. Here: calls (q, k, v), whose scores are rounded too, a chain of mended merges (T6). `cases.bound`: scores that
are given exactly, tiles merged flat, as a chain or as a tree (T1, T3, T6), which errs by less. `programs.within`:
document A's programs, whose ⊕ of pairs does not divide by its weights (T4), which may err by more. They share
`block_states`, and the oracle.
"""

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


def block_states(q, k, v, columns, *, scale, fmt, visible=None, kind=LSEState):
    """(states, budgets) of the blocks of keys that the slices cut out, the scores computed in a format.

    q (…, Nq, d), k (…, N, d), v (…, N, dv); visible: booleans (Nq, N), all without it.
    """
    q, k, v = (exact(x) for x in (q, k, v))
    scores = np.where(True if visible is None else visible, scale * (q @ np.swapaxes(k, -1, -2)), -np.inf)
    lost = score_error(q, k, scale, fmt)
    states = [partial_state(scores[..., j], v[..., j, :], kind) for j in columns]
    return states, [block_budget(scores[..., j], v[..., j, :], fmt, lost[..., j], pair=kind is LSEState)
                    for j in columns]


def chain_bound(q, k, v, *, block_n=DEFAULT_BLOCK, columns=None, visible=None, scale=None, kind=AccState):
    """The Budget of (o, lse) when the keys are taken block by block: rounding of scores, sums, ⊕ and o (T6).

    q (…, Nq, d), k (…, N, d), v (…, N, dv): NumPy arrays of one float format, leading axes alike; columns: the slices
    of keys, blocks of block_n without it; visible: booleans (Nq, N), all without it; kind: the spelling carried from
    block to block. Raises ValueError for shapes.
    """
    out, fmt = format_of(q), format_of(backends.working(backends.float_name(q)))
    scale, pair = check_scale(scale, q.shape[-1]), kind is LSEState
    cuts = columns or blocks(k.shape[-2], block_n)
    parts, errors = block_states(q, k, v, cuts, scale=scale, fmt=fmt, visible=visible, kind=kind)
    folded = fold_budget(parts, sequential, fmt, errors)
    return finish_budget(merge_all(parts, sequential), folded, fmt, out, pair=pair)


def attends(state, q, k, v, *, visible=None, scale=None, **chain):
    """Whether (o, lse) certainly is the attention of the call, but for `chain_bound`. NaN is never attention.

    chain: block_n, columns, kind. Raises ValueError for shapes.
    """
    budget = chain_bound(q, k, v, visible=visible, scale=scale, **chain)
    return fdmath.certified_attention(q, k, v, scale=scale, mask=visible).verdict(state, tuple(budget)) == "pass"


__all__ = ["attends", "block_states", "chain_bound"]
