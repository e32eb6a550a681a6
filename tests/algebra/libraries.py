"""NumPy and torch behind one face, so that one test speaks to both; and what "bit for bit" means."""

import importlib

import numpy as np
import pytest

FORMATS = ("float16", "bfloat16", "float32", "float64")


def values(x):
    """The values of an array or tensor as NumPy float64 (exact for every format)."""
    x = x.detach().double().numpy() if hasattr(x, "detach") else x
    return np.asarray(x).astype(np.float64)


def dtype_name(x):
    """The name of an array's dtype, such as "bfloat16", whatever its library."""
    return str(x.dtype).removeprefix("torch.")


def same(x, y):
    """Whether two arrays agree bit for bit: one shape, one dtype, equal values; NaN equals NaN, −0 equals +0."""
    return (
        tuple(x.shape) == tuple(y.shape)
        and dtype_name(x) == dtype_name(y)
        and np.array_equal(values(x), values(y), equal_nan=True)
    )


def same_state(a, b):
    """Whether two states are of one kind and agree bit for bit."""
    return type(a) is type(b) and all(map(same, a, b))


def holds(x, expected):
    """Whether an array has exactly the expected shape and values (nested lists of numbers); NaN equals NaN."""
    expected = np.asarray(expected, dtype=np.float64)
    return tuple(x.shape) == expected.shape and np.array_equal(values(x), expected, equal_nan=True)


class Library:
    """One array library: how to make its arrays, and its name."""

    def __init__(self, name):
        self.name = name
        self.module = np if name == "numpy" else importlib.import_module(name)

    def dtype(self, name):
        """The library's dtype of that name."""
        if self.name == "torch":
            return getattr(self.module, name)
        return np.dtype(importlib.import_module("ml_dtypes").bfloat16) if name == "bfloat16" else np.dtype(name)

    def array(self, numbers, dtype="float32"):
        """A fresh array of the numbers, rounded to the dtype; NumPy's is read-only, so that a write raises."""
        exact = np.array(numbers, dtype=np.float64)
        if self.name == "torch":
            return self.module.from_numpy(exact).to(self.dtype(dtype))
        with np.errstate(over="ignore"):
            array = exact.astype(self.dtype(dtype))
        array.setflags(write=False)
        return array

    def mask(self, booleans):
        """A boolean array."""
        return self.module.asarray(np.array(booleans, dtype=bool))

    def integers(self, numbers):
        """An array of 32-bit integers."""
        return self.module.asarray(np.array(numbers, dtype=np.int32))


def library(name):
    """The Library of that name; the test that asks is skipped, and said to be, where it is not installed."""
    if name == "torch":
        pytest.importorskip("torch")
    return Library(name)
