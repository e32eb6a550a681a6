"""The two designs of a 16-bit kernel: P is rounded before P·v; is l the sum of the rounded or the unrounded P?

Matrix units multiply 16-bit numbers, so a kernel rounds P to the format of v. Worked in float64, so that the two
roundings that are meant, of P and of o, are the only ones to be seen. How the units then add is modelled apart.
"""

import numpy as np

from fdmath.algebra.rounding import round_to


def state_of_weights(weights, v, dtype, of_rounded):
    """(o, l) of one row of weights P (N,) and values v (N, dv): P and o rounded to `dtype`, o = (P·v)/l, N ≥ 1.

    of_rounded: whether l sums the rounded P; else the unrounded. lse is the level plus log l.
    """
    weights, v = np.asarray(weights, float), np.asarray(v, float)
    rounded = round_to(weights, dtype)
    total = float(np.sum(rounded if of_rounded else weights))
    return round_to(rounded @ v / total, dtype), total


def aligned_sum(products, bits=24, at_once=16):
    """The sum of products (N,) as matrix units add them, a float: `at_once` of them at a time to the sum so far.

    A model. The terms of a step, the sum so far among them, are written with the exponent of the largest in `bits`
    bits, and the rest of each is cut off; what is left is added exactly. How many bits and products a step are a
    card's own affair. Source: Fasi, Higham, Mikaitis and Pranesh, "Numerical behavior of NVIDIA tensor cores" (2021).
    """
    total = 0.0
    for first in range(0, len(products), at_once):
        terms = np.append(products[first:first + at_once], total)
        unit = 2.0 ** (np.frexp(np.max(np.abs(terms)))[1] - bits)
        total = float(np.sum(np.trunc(terms / unit)) * unit)
    return total
