"""The fixtures of these tests: each of the two array libraries in turn, and torch alone."""

import pytest

from tests.algebra.libraries import library


@pytest.fixture(params=["numpy", "torch"])
def lib(request):
    """NumPy, then torch."""
    return library(request.param)


@pytest.fixture
def torch_lib():
    """torch, for what only torch has: gradients."""
    return library("torch")
