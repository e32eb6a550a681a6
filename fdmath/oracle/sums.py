"""The one sum behind attention, in balls: (Z, Y) = Σ e^level · (mass, acc).

A key has level s, mass 1 and acc v.  A part of a merge has level lse, mass 1 and acc o; in
the other spellings level m, mass l and acc l·o or acc.  So attention, a block, and every
merge are the same sum over different rows, and o = Y / Z, lse = log Z.

Levels are shifted by the largest midpoint of their row.  Any shift gives the same sum; this
one keeps every weight at most about 1, whatever the levels.
"""

from contextlib import contextmanager

import numpy as np
from flint import arb, arb_mat

from .inputs import exponent

ZERO = arb(0)
KEYS_AT_ONCE = 1024  # keeps the matrices of a long row in cache; the sum does not depend on it
GUARD_BITS = 96


_extra_bits = [0]


@contextmanager
def sharper(bits):
    """A context in which every enclosure is computed with `bits` more bits: for what came out undecided.

    1200 bits decide even a budget of a few of the smallest fp64 numbers beside a level of 1.
    """
    before, _extra_bits[0] = _extra_bits[0], _extra_bits[0] + bits
    try:
        yield
    finally:
        _extra_bits[0] = before


def working_precision(keys, *exponents):
    """The number of bits at which the balls come out with radii under 2**-70 · Σ p|v|.

    exponents bound the terms of the levels (|scale · q_i k_i| < 2**e, which covers what
    cancels), and for attention's derivative those of the slopes too.  A level of n terms
    then carries an absolute error below n · 2**(e - bits), and each of `keys` additions a
    relative one of 2**-bits; GUARD_BITS covers n < 2**16 and the rest.
    """
    return GUARD_BITS + _extra_bits[0] + keys.bit_length() + max(0, *exponents)


def product_exponent(x, y, scale=1.0):
    """An e with |scale · Σ x_i y_i| < 2**e for every row of x (…, d) and of y (…, d)."""
    return exponent(x) + exponent(y) + x.shape[-1].bit_length() + exponent(scale)


def elementwise(function, *arrays):
    """The object array of function applied to every element of arrays of one shape."""
    return np.asarray(np.frompyfunc(function, len(arrays), 1)(*arrays), dtype=object)


def object_array(entries, shape):
    """The object array of `shape` that holds a flat list of balls."""
    array = np.empty(len(entries), dtype=object)
    array[:] = entries
    return array.reshape(shape)


def exact(values):
    """The object array of balls of radius 0 equal to an fp64 array."""
    return elementwise(arb, values)


def product(left, right):
    """The object array left @ right: left (R, N) and right (N, width), fp64 or balls."""
    total = arb_mat(left.shape[0], right.shape[1])
    if min(left.shape[0], *right.shape):
        for start in range(0, right.shape[0], KEYS_AT_ONCE):
            keys = slice(start, start + KEYS_AT_ONCE)
            total += arb_mat(left[:, keys].tolist()) * arb_mat(right[keys].tolist())
    return object_array(total.entries(), (left.shape[0], right.shape[1]))


def scores(q, k, scale):
    """The object array (R, N) of scale · q kᵀ: q (R, d), k (N, d) in fp64, scale a float."""
    scaled = exact(q) * arb(scale)
    by_key = [product(k[start : start + KEYS_AT_ONCE], scaled.T) for start in range(0, len(k), KEYS_AT_ONCE)]
    return np.concatenate(by_key).T if by_key else np.empty((len(q), 0), dtype=object)


def weights(levels, seen):
    """The pair (weights (R, N), tops (R,)) with weight e^(level - top), exactly 0 where not seen.

    levels (R, N) are balls; the top of a row is exact, and 0 for a row that sees nothing.
    """
    result = np.full(levels.shape, ZERO, dtype=object)
    tops = np.full(levels.shape[0], ZERO, dtype=object)
    for row in np.flatnonzero(seen.any(axis=-1)):
        visible = levels[row, seen[row]].tolist()
        tops[row] = top = max(visible).mid()
        result[row, seen[row]] = [(level - top).exp() for level in visible]
    return result, tops


def normalised(levels, seen, mass, acc):
    """The balls (o (R, dv), lse (R,), scale (R, dv)) of one sum; zeros in rows that see nothing.

    levels (R, N) are balls, seen (R, N) boolean, mass (N,) and acc (N, dv) fp64 or balls.
    scale is Σ p|acc/mass|, the unit of error budgets.
    """
    width = acc.shape[-1]
    weight, top = weights(levels, seen)
    total = product(weight, np.concatenate([mass[:, None], acc, np.abs(acc)], axis=-1))
    o, lse, scale = total[:, 1 : 1 + width], top, total[:, 1 + width :]
    for row in np.flatnonzero(seen.any(axis=-1)):
        o[row], scale[row] = o[row] / total[row, 0], scale[row] / total[row, 0]
        lse[row] = top[row] + total[row, 0].log()
    return o, lse, scale
