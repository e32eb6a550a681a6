"""What every test shares: versions in pytest's header, Hypothesis without a clock, the two array libraries."""

import importlib.metadata
import os
import tomllib
from pathlib import Path

import pytest
from hypothesis import settings

from tests.algebra.libraries import library

settings.register_profile("fdmath", deadline=None, print_blob=True)  # how long a case takes is no law
settings.load_profile("fdmath")


def version(package):
    """The installed version of a package, or "none"; nothing is imported."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "none"


def pytest_report_header():
    """One line of versions and one of threads, so that a pasted log says where it came from."""
    packages = ("numpy", "torch", "triton", "python-flint", "ml_dtypes")
    threads = [f"{name}={os.environ.get(name, 'unset')}" for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS")]
    return [", ".join(f"{package} {version(package)}" for package in packages), ", ".join(threads)]


@pytest.fixture(scope="session")
def root():
    """The folder of the repository."""
    return Path(__file__).parents[1]


@pytest.fixture(scope="session")
def pyproject(root):
    """pyproject.toml as plain data."""
    return tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.fixture(params=["numpy", "torch"])
def lib(request):
    """Each of the two array libraries: NumPy, then torch."""
    return library(request.param)


@pytest.fixture
def torch_lib():
    """torch, for what only torch has: gradients."""
    return library("torch")
