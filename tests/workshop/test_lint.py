"""Lint: every check is run, and one complaint fails it."""

import shutil

import pytest

from fdmath.workshop import lint, notebook_rules


def run(monkeypatch, **checks):
    """The exit code of `fdmath lint` with these checks, each a function of the repository's folder."""
    monkeypatch.setattr(lint, "CHECKS", checks)
    return lint.main([])


def quiet(root):
    """No complaint."""
    return []


def test_no_complaint_passes(monkeypatch, capsys):
    assert run(monkeypatch, first=quiet, second=quiet) == 0
    assert capsys.readouterr().out.endswith("lint: 2 of 2 checks passed; failed: none\n")


def test_one_complaint_fails_and_the_rest_is_run(monkeypatch, capsys):
    assert run(monkeypatch, first=lambda root: ["here"], second=quiet) == 1
    printed = capsys.readouterr().out
    assert "here\nfirst: 1 complaints\nsecond: no complaints\n" in printed
    assert printed.endswith("lint: 1 of 2 checks passed; failed: first\n")


@pytest.mark.parametrize(("code", "complaints"), [(0, []), (3, ["exit code 3"])])
def test_a_tool_complains_by_its_exit_code(tmp_path, code, complaints):
    assert list(lint.tool("-c", f"raise SystemExit({code})")(tmp_path)) == complaints


def test_ruff_finds_a_planted_fault(tmp_path):
    (tmp_path / "planted.py").write_text("import os\n", encoding="utf-8")
    assert list(lint.CHECKS["ruff"](tmp_path)) == ["exit code 1"]


def test_the_four_checks_are_there():
    assert list(lint.CHECKS) == ["ruff", "import-linter", "tolerances", "notebook rules"]
    assert lint.CHECKS["notebook rules"] is notebook_rules.complaints


@pytest.fixture
def copied(tmp_path, root):
    """A copy of the package and its settings, to be broken."""
    shutil.copytree(root / "fdmath", tmp_path / "fdmath", ignore=shutil.ignore_patterns("__pycache__", "data"))
    shutil.copy(root / "pyproject.toml", tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("module", "line", "contract"),
    [
        ("algebra/merge.py", "import fdmath.attention.softmax", "Imports go down only"),
        ("nowhere.py", "import math", "Imports go down only"),
        ("attention/decode.py", "from fdmath import merge", "Nothing below verify imports the public names"),
        ("oracle/sums.py", "import fdmath.algebra.merge", "Imports go down only"),
        ("bench/headline.py", "import fdmath.oracle", "Only the judges see the oracle"),
        ("algebra/state.py", "def late():\n    import torch", "The core imports NumPy alone"),
        ("bench/headline.py", "import matplotlib.figure", "Only plotting draws"),
    ],
)
def test_a_planted_import_breaks_its_contract(copied, capfd, module, line, contract):
    with (copied / "fdmath" / module).open("a", encoding="utf-8") as file:
        file.write(f"\n\n{line}\n")
    assert list(lint.CHECKS["import-linter"](copied)) == ["exit code 1"]
    printed = capfd.readouterr().out
    assert f"{contract} BROKEN" in printed
    assert printed.count(" BROKEN") == 1
