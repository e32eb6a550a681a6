"""These tests need a CUDA device; without one each is skipped, and said to be."""

import importlib.util

import pytest


def has_device():
    """Whether torch, Triton and a CUDA device are here."""
    if not all(importlib.util.find_spec(name) for name in ("torch", "triton")):
        return False
    return importlib.import_module("torch").cuda.is_available()


def pytest_collection_modifyitems(items):
    """Marks every test of this folder as skipped where there is no device."""
    if not has_device():
        for item in items:
            if item.path.parent.name == "gpu":
                item.add_marker(pytest.mark.skip(reason="no CUDA device"))
