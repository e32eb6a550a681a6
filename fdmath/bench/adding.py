"""Sums whose order nobody promises: what atomic additions may give, and the bound that holds for every order."""

import numpy as np

from fdmath.algebra.rounding import format_of


def sums_in_orders(terms, orders):
    """The sums of the terms, one after the other in their own format, in each of the orders: (orders, …).

    terms: (n, …), n ≥ 1; orders: integers (R, n), each row a permutation of range(n).
    """
    orders = np.asarray(orders)
    total = terms[orders[:, 0]]
    for step in orders.T[1:]:
        total = total + terms[step]
    return total


def sampled_orders(count, size, seed=0):
    """`size` random permutations of range(count), an integer array (size, count); the first is the identity."""
    drawn = np.random.default_rng(seed).permuted(np.tile(np.arange(count), (size, 1)), axis=1)
    drawn[:1] = np.arange(count)
    return drawn


def spread(sums):
    """The largest sum minus the smallest over the leading axis, in float64."""
    sums = np.asarray(sums, np.float64)
    return np.max(sums, axis=0) - np.min(sums, axis=0)


def sum_bound(terms):
    """((1 − u)^−(n−1) − 1)·Σ|x|: the most by which a sum of n terms errs, in any order and with any brackets.

    terms: (n, …) of one format, u its unit roundoff; the result in float64. A term takes part in at most n − 1
    additions, each of which changes it by a factor between 1 − u and 1/(1 − u), and an addition that underflows is
    exact. Two orders differ by at most twice this. Source: Higham 2002, section 4.2.
    """
    exact = np.abs(np.asarray(terms, np.float64))
    return np.expm1((len(exact) - 1) * format_of(terms).step) * np.sum(exact, axis=0)


def load_add_store(amounts, order):
    """What a cell that held 0 holds after blocks have added their amounts by a load, an addition and a store.

    order: the block of each step, a block's first step its load, its second its store of what it loaded plus its
    amount. Two blocks that both load first lose one amount: document B, backward; claims:B39.
    """
    cell, loaded = 0, {}
    for block in order:
        if block in loaded:
            cell = loaded[block] + amounts[block]
        else:
            loaded[block] = cell
    return cell
