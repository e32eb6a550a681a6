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


ROOM = 40_000
NAMES = {}
exec("def from_a_large_frame(call, given):\n    if call is None:\n        "
     + " = ".join(f"local_{i}" for i in range(ROOM)) + " = None\n    return call(**given)", NAMES)  # fmt: skip


def pytest_pyfunc_call(pyfuncitem):
    """True; the test is called as pytest calls it, but from a frame with ROOM variables.

    CPython keeps frames in chunks of 16 KiB and gives a chunk back when it is empty, so that a hot call at a chunk's
    end takes a new one every time: a third of the time of the interpreted laws. A frame of more than 2ⁿ bytes lies in
    a chunk of twice that, with room for all that follow.
    """
    arguments = {name: pyfuncitem.funcargs[name] for name in pyfuncitem._fixtureinfo.argnames}
    NAMES["from_a_large_frame"](pyfuncitem.obj, arguments)
    return True
