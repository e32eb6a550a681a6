"""Orders of folding any binary ⊕: callables order(merge, states) → state.

The order decides the rounding and the parallelism, never the value over the reals. `flat`, which takes
all parts at once, stands beside ⊕ itself in `fdmath.algebra.merge`.
"""

import operator
from functools import reduce

from fdmath.algebra.merge import flat, merge_all

__all__ = ["flat", "merge_all", "ring", "sequential", "streams", "tree"]


def sequential(merge, states):
    """((a ⊕ b) ⊕ c) ⊕ …: a chain from first to last (document A, 3.1.2, the single stream)."""
    return reduce(merge, _parts(states))


def tree(merge, states):
    """Neighbours ⊕-ed in pairs, level by level, until one is left (document A, 3.1.3).

    ⌈log₂ n⌉ levels, n − 1 merges; a part without a neighbour goes up as it is.
    """
    level = _parts(states)
    while len(level) > 1:
        pairs = [merge(a, b) for a, b in zip(level[::2], level[1::2], strict=False)]
        level = pairs + level[len(level) - len(level) % 2:]
    return level[0]


def streams(n, then=tree):
    """The order that deals parts round-robin to n accumulators, folds each, then folds these with `then`.

    An accumulator without a part is the identity; adding the identity changes nothing, so it is left out
    (document A's program takes part in it and returns NaN: claims:F1). A stream here is an accumulator,
    not a CUDA stream. Raises TypeError for an n that is no integer, ValueError for n < 1.
    """
    n = whole(n, "n", least=1)

    def order(merge, states):
        parts = _parts(states)
        return then(merge, [sequential(merge, parts[i::n]) for i in range(min(n, len(parts)))])

    return order


def ring(rank):
    """The order of one rank of a ring: its own part first, then rank − 1, rank − 2 … as the neighbour passes them on.

    Every rank of a ring folds the same parts in another order. Ranks count modulo the number of parts.
    Raises TypeError for a rank that is no integer.
    """
    rank = whole(rank, "rank")

    def order(merge, states):
        parts = _parts(states)
        return sequential(merge, [parts[(rank - hop) % len(parts)] for hop in range(len(parts))])

    return order


def whole(value, name, least=None):
    """`value` as an int of at least `least`; TypeError, ValueError naming the argument otherwise."""
    try:
        number = operator.index(value)
    except TypeError:
        number = None
    if number is None or isinstance(value, bool):
        raise TypeError(f"{name} must be an integer; got {value!r}")
    if least is not None and number < least:
        raise ValueError(f"{name} must be at least {least}; got {number}")
    return number


def _parts(states):
    """The states as a list; ValueError if there are none."""
    parts = list(states)
    if not parts:
        raise ValueError("states must hold at least one state; got none")
    return parts
