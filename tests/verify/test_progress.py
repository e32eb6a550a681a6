"""The progress bar: it counts its steps where tqdm is installed, and is nothing, not an error, where it is not."""

import importlib
import io
import subprocess
import sys

import pytest

from fdmath.verify.laws import LAWS
from fdmath.verify.progress import Bar
from fdmath.verify.subject import Subject


def step(bar):
    bar.step(LAWS["shift"], Subject("mine", "merge", print))


class Terminal(io.StringIO):
    """A stream that says it is a terminal."""

    def isatty(self):
        return True


def test_a_step_counts_where_somebody_sees_it(monkeypatch):
    pytest.importorskip("tqdm")
    monkeypatch.setattr(sys, "stderr", Terminal())
    monkeypatch.delenv("TQDM_DISABLE", raising=False)
    with Bar(2) as bar:
        step(bar)
        assert bar.bar.n == 1 and bar.bar.desc == "mine: shift: "


def test_without_tqdm_there_is_no_bar(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with Bar(2) as bar:
        step(bar)
        assert bar.bar is None


def test_the_mutants_need_no_tqdm():
    script = "import sys; sys.modules['tqdm'] = None; import fdmath.verify.mutants_command"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8")
    assert done.returncode == 0, done.stderr
