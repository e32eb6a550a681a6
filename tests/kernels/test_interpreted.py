"""The kernels in Triton's interpreter, on the CPU: each file `interpreted_*.py` in a process of its own.

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
JOBS = {
    "laws of float32": ("interpreted_laws.py", "-k", "not merge and not 16"),
    "laws of 16 bits and of the merge": ("interpreted_laws.py", "-k", "merge or 16"),
    "split-KV": ("interpreted_split_kv.py",),
    "merge": ("interpreted_merge.py",),
}
"""Files and options of pytest; the laws in two, so that two workers can share them."""


def interpreted(root, name, *options):
    """(exit code, printed text, tests passed, tests skipped) of a file's tests, run with TRITON_INTERPRET=1."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, f"tests/kernels/{name}"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, encoding="utf-8")
    passed, skipped = (re.search(rf"(\d+) {word}", done.stdout) for word in ("passed", "skipped"))
    return done.returncode, done.stdout, int(passed[1]) if passed else 0, int(skipped[1]) if skipped else 0


@pytest.mark.parametrize("job", JOBS)
def test_in_the_interpreter(job, root, record_property):
    code, printed, passed, skipped = interpreted(root, *JOBS[job])
    assert code == 0, printed
    assert passed > 0 and skipped == 0
    record_property("ran interpreted", passed)


def test_every_file_is_run():
    files = {path.name for path in Path(__file__).parent.glob("interpreted_*.py")}
    assert files == {name for name, *_ in JOBS.values()}
