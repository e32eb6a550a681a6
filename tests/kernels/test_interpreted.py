"""The kernels in Triton's interpreter, on the CPU: the files `interpreted_*.py`, in processes of their own.

Triton decides when a kernel is defined whether it is interpreted, so a process has the one or the other.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("triton")
pytest.importorskip("torch")
HERE = Path(__file__).parent


def test_in_the_interpreter(root, record_property):
    """One run of pytest, with as many workers as this one."""
    workers = os.environ.get("PYTEST_XDIST_WORKER_COUNT", "0")
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    files = sorted(path.relative_to(root).as_posix() for path in HERE.glob("interpreted_*.py"))
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-n", workers, "--dist", "worksteal", *files],
        cwd=root, env={**environment, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}, capture_output=True,
        encoding="utf-8", errors="replace")  # fmt: skip
    counts = {word: int(number) for number, word in re.findall(r"(\d+) (\w+)", done.stdout.splitlines()[-1])}
    assert done.returncode == 0, done.stdout + done.stderr
    assert counts["passed"] > 0 and "skipped" not in counts
    record_property("ran interpreted", counts["passed"])
