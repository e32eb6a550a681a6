"""The two designs of a 16-bit kernel: P is rounded before P·v; is l the sum of the rounded or the unrounded P?

Matrix units multiply 16-bit numbers, so a kernel rounds P to the format of v. Worked in float64, so that the two
roundings that are meant, of P and of o, are the only ones to be seen.
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
