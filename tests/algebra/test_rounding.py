"""The formats and rounding to them, against ml_dtypes, NumPy and exact rationals."""

import math
from fractions import Fraction

import ml_dtypes
import numpy as np
import pytest

from fdmath.algebra.rounding import (
    KAPPA,
    exact,
    format_of,
    round_to,
    score_error,
    smallest_subnormal,
    unit_roundoff,
)
from tests.algebra.libraries import FORMATS, dtype_name, holds, values


def finfo(name):
    """What ml_dtypes says of a format."""
    return ml_dtypes.finfo(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@pytest.mark.parametrize("name", FORMATS)
def test_the_constants_of_each_format(lib, name):
    for written in (name, lib.dtype(name), lib.array([1.0], name)):
        assert unit_roundoff(written) == float(finfo(name).eps) / 2
        assert smallest_subnormal(written) == float(finfo(name).smallest_subnormal)
        assert format_of(written).u == unit_roundoff(name) and format_of(written).kappa == KAPPA
    assert unit_roundoff(np.dtype(lib.dtype(name)).type if lib.name == "numpy" else name) == unit_roundoff(name)
    # What an operation may lose: half the smallest number, but float64 cannot say half of its own.
    assert format_of(name).tiny >= float(finfo(name).smallest_subnormal) / 2 > 0 or name == "float64"
    assert format_of(name).tiny > 0


@pytest.mark.parametrize("wrong", ["int32", "float8_e4m3fn", "complex64", int, object(), None, ["float32"]])
def test_what_is_no_format_is_refused(wrong):
    with pytest.raises(TypeError, match="must have a float dtype"):
        unit_roundoff(wrong)


@np.errstate(all="ignore")
def numbers(narrow, wide):
    """Numbers that are hard to round to a narrow format: all of its own, their midpoints and both sides of those."""
    own = np.arange(2**16, dtype=np.uint16).view(np.dtype(finfo(narrow).dtype))
    own = own.astype(np.float64)
    own = np.unique(own[np.isfinite(own)])[::7]
    middle = (own[1:] + own[:-1]) / 2
    beyond = np.array([2 * own[-1], -2 * own[-1], float(np.finfo(wide).max), np.inf, -np.inf, np.nan, -0.0])
    hard = np.concatenate([own, middle, beyond]).astype(wide)
    return np.concatenate([hard, np.nextafter(hard, np.inf), np.nextafter(hard, -np.inf)])


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_float32_is_rounded_to_16_bits_once(lib, narrow):
    x = numbers(narrow, np.float32)
    with np.errstate(all="ignore"):
        expected = x.astype(finfo(narrow).dtype).astype(np.float32)
    rounded = round_to(lib.array(x), narrow)
    assert dtype_name(rounded) == "float32" and holds(rounded, expected)
    # Nearest, by the distances to the neighbours in the narrow format; ties to the even last bit.
    inside = np.isfinite(x) & np.isfinite(expected)
    x, nearest = x[inside].astype(np.float64), expected[inside].astype(finfo(narrow).dtype)
    with np.errstate(over="ignore"):
        below, above = (np.nextafter(nearest, np.array(side, nearest.dtype)) for side in (-np.inf, np.inf))
    below, above = below.astype(np.float64), above.astype(np.float64)
    error = np.abs(x - nearest.astype(np.float64))
    assert np.all(error <= np.abs(x - below)) and np.all(error <= np.abs(x - above))
    tie = (error == np.abs(x - below)) | (error == np.abs(x - above))
    assert tie.any() and np.all(nearest.view(np.uint16)[tie] % 2 == 0)


@pytest.mark.parametrize("narrow", ["float16", "bfloat16"])
def test_float64_is_rounded_to_16_bits_within_u(lib, narrow):
    # Both libraries go by way of float32 (NumPy to float16 does not): a second rounding, but within the same bound.
    x = numbers(narrow, np.float64)
    x = x[np.abs(x) <= float(finfo(narrow).max)]
    rounded = values(round_to(lib.array(x, "float64"), narrow))
    u, tiny = Fraction(unit_roundoff(narrow)), Fraction(smallest_subnormal(narrow)) / 2
    worst = 0
    for number, result in zip(x[::17].astype(np.float64).tolist(), rounded[::17].tolist(), strict=True):
        error, bound = abs(Fraction(result) - Fraction(number)), u * abs(Fraction(number)) + tiny
        assert error <= bound
        worst = max(worst, error / bound)
    assert worst > Fraction(9, 10)


def test_rounding_to_float32_and_to_the_own_format(lib):
    x = numbers("bfloat16", np.float64)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float32)
    assert holds(round_to(lib.array(x, "float64"), "float32"), expected)
    own = lib.array(x, "float64")
    assert round_to(own, lib.dtype("float64")) is own


def test_exact_is_a_float64_array_of_the_same_values(lib):
    for name in FORMATS:
        x = exact(lib.array([[1 / 3, -math.inf], [math.nan, 3.0]], name))
        assert isinstance(x, np.ndarray) and x.dtype == np.float64
        assert holds(x, [[values(lib.array(1 / 3, name)).item(), -math.inf], [math.nan, 3.0]])


@pytest.mark.parametrize("name", ["float32", "float64"])
@pytest.mark.parametrize("size", ["normal", "subnormal"])
@pytest.mark.parametrize("dim", [1, 3, 64])
def test_scores_are_within_their_error(lib, name, size, dim):
    # Terms of one sign: their sums err most. Subnormal: the terms are a few of the smallest numbers.
    rng = np.random.default_rng(dim)
    unit = 1.0 if size == "normal" else smallest_subnormal(name) * 8
    q, k = lib.array(rng.random((5, dim)) * unit, name), lib.array(rng.random((5, dim)), name)
    scale = 1 / math.sqrt(dim)
    computed = values((q * scale) @ k.T)
    bound = score_error(q, k, scale, format_of(name))
    worst = 0
    for i, j in np.ndindex(5, 5):
        terms = (Fraction(a) * Fraction(b) for a, b in zip(values(q)[i].tolist(), values(k)[j].tolist(), strict=True))
        error = abs(Fraction(computed[i, j].item()) - Fraction(scale) * sum(terms))
        assert error <= Fraction(bound[i, j].item())
        worst = max(worst, error / Fraction(bound[i, j].item()))
    assert worst >= Fraction(1, 100)
