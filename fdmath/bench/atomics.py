"""Thread blocks that share memory, simulated in every order in which their steps can follow one another.

A GPU promises no order among blocks, so a result that some order gives is a result that it may give.
"""

from collections import Counter


def interleavings(steps):
    """All orders of the steps of several blocks, each block's own in sequence: tuples of block numbers.

    steps: how many each block has. There are (Σ steps)! / Π steps! of them.
    """
    if not any(steps):
        yield ()
        return
    for block, left in enumerate(steps):
        if left:
            rest = [n - (i == block) for i, n in enumerate(steps)]
            yield from ((block, *tail) for tail in interleavings(rest))


def maxima_first(order, blocks):
    """Whether each of so many blocks makes its first step before any makes its second: what a grid barrier enforces."""
    return len(set(order[:blocks])) == blocks


def tally(result, orders):
    """A Counter of result(order) over the orders: which results are possible, and in how many of the orders."""
    return Counter(map(result, orders))
