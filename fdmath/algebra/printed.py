"""The documents' merges as they print them, faults intact: to show what each costs, never to use.

The names say where each stands. Inputs are raw arrays, of NumPy or torch, in the format given: nothing
is widened, nothing is guarded. The faults are those of claims.md, section 6 (F1, F3, F4 …).
"""

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState


def merge_as_printed_A_2_3_5(o1, lse1, o2, lse2):
    """(o, lse) by the definition of ⊕ with bare e^S₁, e^S₂ (overflows: claims:A31)."""
    xp = backends.array_namespace(o1=o1, lse1=lse1, o2=o2, lse2=lse2)
    with backends.quiet():
        e1, e2 = xp.exp(lse1), xp.exp(lse2)
        return (e1[..., None] * o1 + e2[..., None] * o2) / (e1 + e2)[..., None], xp.log(e1 + e2)


def merge_as_printed_A_3_2_1(o1, lse1, o2, lse2):
    """(o, lse) with S = S_max + log1p(e^(S_min−S_max)), o = o₁e^(S₁−S) + o₂e^(S₂−S).

    The weights need not sum to 1 (claims:A56, F13), and two empty states give NaN (F3).
    """
    xp = backends.array_namespace(o1=o1, lse1=lse1, o2=o2, lse2=lse2)
    with backends.quiet():
        low, high = xp.minimum(lse1, lse2), xp.maximum(lse1, lse2)
        lse = high + xp.log1p(xp.exp(low - high))
        return o1 * xp.exp(lse1 - lse)[..., None] + o2 * xp.exp(lse2 - lse)[..., None], lse


def flat_as_printed_A_2_2_2(ms, ls, os):
    """(m, l, o) of B triples along the leading axis; nothing guards m = −∞ (claims:F2)."""
    xp = backends.array_namespace(ms=ms, ls=ls, os=os)
    with backends.quiet():
        m = xp.max(ms, axis=0)
        weight = xp.exp(ms - m) * ls
        l = xp.sum(weight, axis=0)  # noqa: E741
        return m, l, xp.sum(weight[..., None] * os, axis=0) / l[..., None]


def flat_as_printed_A_2_3_4(os, lses):
    """(o, lse) of B pairs along the leading axis in two steps: S chained, then Σ e^(S_b−S)·o_b.

    Document A's `merge_all_streams`: not divided by the weights that it used (claims:A29), and NaN as
    soon as the first two parts are empty (F3b).
    """
    xp = backends.array_namespace(os=os, lses=lses)
    with backends.quiet():
        total = lses[0, ...]
        for b in range(1, lses.shape[0]):
            low, high = xp.minimum(total, lses[b, ...]), xp.maximum(total, lses[b, ...])
            total = high + xp.log1p(xp.exp(low - high))
        o = xp.zeros_like(os[0, ...])
        for b in range(os.shape[0]):
            o = o + os[b, ...] * xp.exp(lses[b, ...] - total)[..., None]
        return o, total


def flat_printed(merge, states):
    """The order of the documents' flat pair formula (2.3.4), for LSEStates; TypeError for another kind."""
    states = list(states)
    if not all(isinstance(s, LSEState) for s in states):
        raise TypeError("flat_printed folds LSEStates only")
    xp = backends.array_namespace(**{f"state {i}": s.o for i, s in enumerate(states)})
    return LSEState(*flat_as_printed_A_2_3_4(*(xp.stack(list(c)) for c in zip(*states, strict=True))))


def atomic_merge_as_printed_B(parts, order, exp):
    """(m, l, acc) that thread blocks leave when each folds its part in by atomics: on m, then on l, then on acc.

    parts: (m, l, acc) of each block, numbers of any kind; exp: the exponential of their base. order: the numbers of
    the blocks, each three times, as their steps happen to follow one another. A block's first step is the atomic
    maximum on m; its second and third add e^(m_c − m)·l_c and e^(m_c − m)·acc_c, with the m that stands there at that
    moment. What was added to a level that rises later is moved by nobody (claims:B79).
    Raises ValueError for an order in which a block does not stand three times.
    Source: document B, third of the three steps ("one kernel").
    """
    if sorted(order) != sorted(3 * list(range(len(parts)))):
        raise ValueError(f"order must hold each of {len(parts)} blocks three times; got {order}")
    m, sums, done = float("-inf"), {1: 0, 2: 0}, [0] * len(parts)
    for block in order:
        step, done[block] = done[block], done[block] + 1
        if step == 0:
            m = max(m, parts[block][0])
        else:
            sums[step] += exp(parts[block][0] - m) * parts[block][step]
    return m, sums[1], sums[2]
