"""A second opinion on the oracle: the same quantities in mpmath, by other code.

mpmath has no limit on exponents, so no level is shifted here, and at 600 bits its rounding
(fewer than 2**12 operations on levels below 2**27: under 2**-550 of Σ p|v|) is invisible
beside the balls, whose radii are near 2**-100.
"""

from fractions import Fraction
from types import SimpleNamespace

import mpmath
import pytest
from flint import arb

SLACK = mpmath.mpf(2) ** -500


@pytest.fixture(scope="session")
def second_opinion():
    """The functions of this file, for tests to call by name."""
    return SimpleNamespace(softmax=softmax, attend=attend, direction=direction, holds=holds, fraction=fraction)


def number(value):
    """The mpmath number equal to a float, an exact ball, a Fraction or an mpmath number."""
    if isinstance(value, arb):
        mantissa, exponent = (int(part) for part in value.man_exp())
        return mpmath.ldexp(mpmath.mpf(mantissa), exponent)
    if isinstance(value, Fraction):
        return mpmath.mpf(value.numerator) / value.denominator
    return value if isinstance(value, mpmath.mpf) else mpmath.mpf(float(value))


def fraction(ball):
    """The Fraction equal to a ball of radius 0."""
    assert ball.is_exact()
    mantissa, exponent = (int(part) for part in ball.man_exp())
    return Fraction(mantissa) * Fraction(2) ** exponent


def softmax(levels, mass=None):
    """The pair (p, lse) of probabilities mass · e^level / Z and log Z, at 600 bits."""
    with mpmath.workprec(600):
        levels = [number(level) for level in levels]
        mass = [number(m) for m in mass] if mass is not None else [mpmath.mpf(1)] * len(levels)
        weights = [m * mpmath.exp(level) for m, level in zip(mass, levels, strict=True)]
        total = mpmath.fsum(weights)
        return [weight / total for weight in weights], mpmath.log(total)


def attend(levels, values, mass=None):
    """The triple (o, lse, Σ p|v|) of one row: levels (N), values (N, dv), lists of mpmath numbers."""
    p, lse = softmax(levels, mass)
    with mpmath.workprec(600):
        columns = [[number(x) for x in column] for column in zip(*values, strict=True)]
        o = [mpmath.fdot(p, column) for column in columns]
        return o, lse, [mpmath.fdot(p, [abs(x) for x in column]) for column in columns]


def direction(levels, values, slopes, value_slopes):
    """The closed form (do, dlse) of one row: do = Σ p (ds (v - o) + dv), dlse = Σ p ds."""
    p, _ = softmax(levels)
    o, _, _ = attend(levels, values)
    with mpmath.workprec(600):
        ds = [number(slope) for slope in slopes]
        do = [
            mpmath.fsum(
                p[j] * (ds[j] * (number(values[j][c]) - o[c]) + number(value_slopes[j][c])) for j in range(len(p))
            )
            for c in range(len(o))
        ]
        return do, mpmath.fdot(p, ds)


def holds(ball, value, scale, slack=SLACK):
    """Whether a ball holds a value known to slack · scale, and is narrower than 2**-70 · scale."""
    with mpmath.workprec(600):
        middle, radius, value, scale = (number(x) for x in (ball.mid(), ball.rad(), value, scale))
        return abs(value - middle) <= radius + slack * scale and radius <= mpmath.mpf(2) ** -70 * scale
