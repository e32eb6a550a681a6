"""The pytest plugin: light to load, one test a law with its name as id, no traceback of ours in what fails."""

import os
import subprocess
import sys

import pytest

from fdmath import Subject
from fdmath.pytest_plugin import broken, laws_of
from tests.verify.badly_behaved import into_the_first, right

SUITE = '''
import numpy as np
from fdmath.pytest_plugin import laws_of

def unguarded(o1, lse1, o2, lse2):
    m = np.maximum(lse1, lse2)
    a, b = np.exp(lse1 - m), np.exp(lse2 - m)
    return (a[:, None] * o1 + b[:, None] * o2) / (a + b)[:, None], m + np.log(a + b)

test_laws = laws_of(unguarded, laws=["empty", "shift"])
'''


def test_loading_the_plugin_loads_nothing_heavy():
    script = "import sys, fdmath.pytest_plugin; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    loaded = set(subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8").stdout.split())
    assert "fdmath" in loaded
    assert not loaded & {"numpy", "torch", "hypothesis", "flint", "pytest", "tqdm"}


def test_the_entry_point_is_the_module(pyproject):
    [(name, target)] = pyproject["project"]["entry-points"]["pytest11"].items()
    assert name == target == laws_of.__module__


def test_a_fresh_suite_of_one_line_runs_a_test_a_law(tmp_path):
    (tmp_path / "test_mine.py").write_text(SUITE, encoding="utf-8")
    words = ["-q", "-rA", "-p", "fdmath.pytest_plugin", "-p", "no:cacheprovider", "--law-cases", "9", "--law-seed", "2"]
    alone = {**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_ADDOPTS": ""}
    done = subprocess.run([sys.executable, "-m", "pytest", *words], cwd=tmp_path, env=alone, capture_output=True,
                          encoding="utf-8", errors="replace")
    assert done.returncode == 1, done.stdout + done.stderr
    assert "PASSED test_mine.py::test_laws[shift]" in done.stdout
    assert "FAILED test_mine.py::test_laws[empty]" in done.stdout
    assert "fault A1" in done.stdout
    assert 'replay: python -m pytest "test_mine.py::test_laws[empty]" --law-cases 9 --law-seed 2' in done.stdout
    assert "Traceback" not in done.stdout and "judge.py" not in done.stdout


def test_a_function_is_taken_as_it_works_and_a_subject_as_it_is():
    test_laws, = laws_of(into_the_first, laws=["shift", "inputs kept"]).pytestmark
    assert test_laws.args == ("law", ["shift"])  # it works in place, so no law keeps its inputs
    test_laws, = laws_of(Subject("s", "merge", right)).pytestmark
    assert {"anchor", "shift", "inputs kept"} < set(test_laws.args[1])


def test_what_cannot_be_asked_is_refused_by_name():
    with pytest.raises(ValueError, match="laws must be among"):
        laws_of(right, laws=["assoc"])
    with pytest.raises(TypeError, match="a Subject has its declarations; got log_base besides"):
        laws_of(Subject("s", "merge", right), log_base=2)
    with pytest.raises(TypeError, match="^log_bas, only is no declaration; there are backward, .*log_base, .*laws="):
        laws_of(right, only=["shift"], log_bas=2)
    with pytest.raises(ValueError, match="role must be one of"):
        laws_of(right, role="fold")


def test_a_law_that_holds_is_no_text_and_one_that_cannot_run_is():
    assert broken(Subject("s", "merge", right), "shift", 5) == ""
    text = broken(Subject("s", "merge", lambda *_: 1 / 0), "shift", 5, test="t")
    assert "not run" in text and "ZeroDivisionError" in text
