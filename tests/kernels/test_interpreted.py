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
FILES = sorted(path.name for path in Path(__file__).parent.glob("interpreted_*.py"))


def interpreted(name, root, *options):
    """(exit code, printed text, tests passed, tests skipped) of a file's tests, run with TRITON_INTERPRET=1."""
    environment = {**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *options, f"tests/kernels/{name}"]
    done = subprocess.run(command, cwd=root, env=environment, capture_output=True, encoding="utf-8")
    passed, skipped = (re.search(rf"(\d+) {word}", done.stdout) for word in ("passed", "skipped"))
    return done.returncode, done.stdout, int(passed[1]) if passed else 0, int(skipped[1]) if skipped else 0


@pytest.mark.parametrize("name", FILES)
def test_in_the_interpreter(name, root, record_property):
    code, printed, passed, skipped = interpreted(name, root)
    assert code == 0, printed
    assert passed > 0 and skipped == 0
    record_property("ran interpreted", passed)


def test_there_are_files_to_run():
    assert FILES == ["interpreted_laws.py", "interpreted_merge.py", "interpreted_split_kv.py"]
