"""The online recurrence at reference levels of your choice: the level may lag, or be any number at all."""

import math

from fdmath import _backends as backends
from fdmath.algebra.merge import check_alike
from fdmath.algebra.state import AccState, canonical
from fdmath.attention.softmax import finite_level


def lagging_levels(scores, slack=0.0):
    """The level after each key, (…, N): it stays until a score exceeds it by more than `slack`, then it is that score.

    slack = 0 is the running maximum; slack = ∞ keeps the first finite score for good. No score lies more than
    `slack` above the level that it is weighed against. −∞ until a score is finite. scores: (…, N).
    """
    xp = backends.array_namespace(scores=scores)
    if scores.shape[-1] == 0:
        return scores
    levels = [scores[..., 0]]
    with backends.quiet():
        for j in range(1, scores.shape[-1]):
            level, score = levels[-1], scores[..., j]
            levels.append(xp.where((level == float("-inf")) | (score - level > slack), score, level))
    return xp.stack(levels, axis=-1)


def state_at_levels(parts, levels, base=math.e):
    """The AccState of all parts, folded one after the other, with levels[..., b] as the reference level after part b.

    parts: AccStates of one shape (…), of one key each or of a tile; levels: (…, B). Over the reals the state is the
    same whatever the levels are; in floating point it is so while no weight and no sum leaves the format. The
    running maximum makes it the online recurrence with deferred normalisation. base: of the exponentials of the
    levels, math.e or 2. Raises ValueError for no parts or a number of levels that is not theirs.
    Source: claims:A19 (the level is free); document B, Algorithm 1, lines 9 to 12.
    """
    xp, parts = check_alike(parts), list(parts)
    if levels.shape[-1] != len(parts):
        raise ValueError(f"levels must have one level for each of the {len(parts)} parts; got {levels.shape[-1]}")
    exp, _ = backends.exp_log(xp, base)
    with backends.quiet():
        running = at_level(xp, canonical(parts[0]), levels[..., 0], exp)
        for b in range(1, len(parts)):
            old, new = (at_level(xp, state, levels[..., b], exp) for state in (running, canonical(parts[b])))
            running = AccState(old.m, old.l + new.l, old.acc + new.acc)
        return canonical(running)


def at_level(xp, state, level, exp=None):
    """The same AccState seen from another level: (level, l·e^(m−level), acc·e^(m−level)); exp as for combine_acc."""
    factor = (exp or xp.exp)(state.m - finite_level(xp, level))
    return AccState(level, factor * state.l, factor[..., None] * state.acc)
