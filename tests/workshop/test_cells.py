"""The tags of notebook cells under nbval: a small notebook in a process of its own, judged cell by cell."""

import subprocess
import sys
from xml.etree import ElementTree

import pytest

from fdmath.interop.smollm2 import SMOLLM2
from fdmath.workshop import needs

NO_TRITON = "import sys\nsys.modules['triton'] = None\n"  # a conftest under which triton cannot be imported
PLUGIN = ["-m", "pytest", "-p", "fdmath.workshop.cells", "-p", "no:hypothesispytest", "-W", "error", "-rs"]


def nbval(folder, *words):
    """The exit code, the printed text and {cell: outcome} of nbval with the plugin on the notebooks of a folder."""
    command = [sys.executable, *PLUGIN, "--nbval", "--nbval-current-env", "--junitxml=outcome.xml", *words, "."]
    done = subprocess.run(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, encoding="utf-8")
    cases = ElementTree.parse(folder / "outcome.xml").iter("testcase")
    outcomes = {case.get("name"): next((child.tag for child in case), "passed") for case in cases}
    return done.returncode, done.stdout, outcomes


def test_tags_are_obeyed(notebook, cell, root):
    pytest.importorskip("torch")
    path = notebook(
        cell("print(1)", "1\n"),
        cell("print(1)", "2\n", tags=["needs-torch"]),
        cell("raise SystemError", tags=["needs-triton"]),
        cell("raise SystemError", tags=["needs-torch", "needs-triton"]),
        cell("print(1)", "2\n"),
        cell("print(1)", "2\n", tags=["timed"]),
        cell("1/0", tags=["timed"]),
        cell("import os; print(f'/tmp/ipykernel_{os.getpid()}/7.py')", "/tmp/ipykernel_1/7.py\n"),
    )
    (path.parent / "conftest.py").write_text(NO_TRITON, encoding="utf-8")
    sanitize = f"--nbval-sanitize-with={root / 'tests' / 'nbval_sanitize.cfg'}"
    code, printed, outcomes = nbval(path.parent, sanitize, "-n", "2", "--dist", "loadscope")
    assert code == 1
    assert list(outcomes.values()) == [
        *("passed", "failure", "skipped", "skipped"),
        *("failure", "passed", "failure", "passed"),
    ]
    assert "[2] small.ipynb: notebook cells that need triton\n" in printed
    assert "3 failed, 3 passed, 2 skipped" in printed.splitlines()[-1]


def test_an_unknown_need_is_an_error(notebook, cell):
    code, printed, _ = nbval(notebook(cell("1", tags=["needs-cuda"])).parent)
    assert code == 4 and "unknown tag 'needs-cuda'" in printed


def test_missing_names_what_is_not_here(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert needs.missing(["needs-triton", "timed"]) == ["triton"]
    assert needs.missing(["timed"]) == []


def test_the_model_is_here_once_its_file_is_in_the_cache(monkeypatch, tmp_path):
    for package in ("torch", "transformers", "accelerate", "gguf"):
        pytest.importorskip(package)
    monkeypatch.setenv("FDMATH_CACHE", str(tmp_path))
    assert needs.missing(["needs-transformers", "needs-model"]) == ["SmolLM2 (fdmath model fetch)"]
    (tmp_path / SMOLLM2.file_name).touch()
    assert needs.missing(["needs-transformers", "needs-model"]) == []
    monkeypatch.setitem(sys.modules, "transformers", None)
    assert needs.missing(["needs-transformers", "needs-model"]) == ["transformers", "SmolLM2 (fdmath model fetch)"]
