"""The command line: its table, its exit codes, and that it prints on any terminal."""

import os
import re
import subprocess
import sys

import pytest

from fdmath import cli

TERMINALS = {
    "cp1252": {"PYTHONIOENCODING": "cp1252"},
    "cp936": {"PYTHONIOENCODING": "cp936"},
    "LC_ALL=C": {"LC_ALL": "C"},
    "LC_ALL=C, ASCII": {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
}
SYMBOLS = "a ⊕ b, −∞, ✓, 文"
PRINT_SYMBOLS = f"from fdmath.cli import print_anywhere; print_anywhere(); print({ascii(SYMBOLS)})"


def fdmath(*words, terminal=None):
    """The finished process of `python -m fdmath *words`, its output as bytes."""
    return python("-m", "fdmath", *words, terminal=terminal)


def python(*words, terminal=None):
    """The finished process of `python *words` with the variables of a terminal, its output as bytes."""
    clean = {name: value for name, value in os.environ.items() if name != "PYTHONIOENCODING"}
    return subprocess.run([sys.executable, *words], env={**clean, **(terminal or {})}, capture_output=True)


@pytest.fixture
def table(monkeypatch):
    """The table of commands, to be changed by one test."""
    monkeypatch.setattr(cli, "COMMANDS", dict(cli.COMMANDS))
    return cli.COMMANDS


def test_every_command_names_a_declared_extra(pyproject):
    extras = pyproject["project"]["optional-dependencies"]
    assert {command.extra for command in cli.COMMANDS.values()} - {""} <= set(extras)


@pytest.mark.parametrize("words", [[], ["--help"]])
def test_usage_names_every_command(words, capsys):
    assert cli.main(words) == (0 if words else 2)
    printed = "".join(capsys.readouterr())
    assert all(re.search(rf"^  {name} ", printed, re.MULTILINE) for name in cli.COMMANDS)


def test_unknown_command_is_code_2(capsys):
    assert cli.main(["doctr"]) == 2
    assert "no command 'doctr'" in capsys.readouterr().err


def test_a_command_gets_the_rest_and_gives_its_code(table, monkeypatch):
    seen = []
    monkeypatch.setattr(cli, "usage", lambda *argv: seen.extend(argv) or 7)
    table["seven"] = cli.Command("fdmath.cli:usage", "", "")
    assert cli.main(["seven", "a", "--b"]) == 7
    assert seen == [["a", "--b"]]


def test_a_missing_package_names_its_extra(table, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    table["broken"] = cli.Command("hypothesis:given", "verify", "")
    assert cli.main(["broken"]) == 2
    assert 'in a clone: python -m pip install ".[verify]"' in capsys.readouterr().err


def test_help_needs_no_package(table, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "hypothesis", None)
    table["broken"] = cli.Command("hypothesis:given", "verify", "what it is for")
    assert cli.main(["broken", "--help"]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith("usage: fdmath broken") and "what it is for" in printed and ".[verify]" in printed


def test_a_missing_module_of_ours_is_said_to_be_ours(table, capsys):
    table["broken"] = cli.Command("fdmath.nowhere:main", "verify", "")
    assert cli.main(["broken"]) == 2
    assert "this copy of fdmath has no fdmath.nowhere" in capsys.readouterr().err


def test_loading_the_command_line_loads_no_command():
    heavy = ("numpy", "torch", "matplotlib", "hypothesis", "flint", "fdmath.doctor", "fdmath.workshop")
    script = f"import sys, fdmath.cli; print([name for name in {heavy} if name in sys.modules])"
    assert python("-c", script).stdout.strip() == b"[]"


@pytest.mark.parametrize("terminal", TERMINALS)
def test_usage_prints_on_any_terminal(terminal):
    done = fdmath("--help", terminal=TERMINALS[terminal])
    assert done.returncode == 0 and done.stdout.startswith(b"usage: ") and not done.stderr


def test_doctor_prints_in_ascii():
    done = fdmath("doctor", terminal=TERMINALS["LC_ALL=C, ASCII"])
    assert done.returncode == 0 and b"  yes numpy " in done.stdout and done.stdout.isascii() and not done.stderr


@pytest.mark.parametrize("name", sorted(cli.COMMANDS))
def test_every_command_prints_its_help_in_ascii(name):
    done = fdmath(name, "--help", terminal=TERMINALS["LC_ALL=C, ASCII"])
    assert done.returncode == 0, done.stderr
    assert done.stdout.isascii() and done.stdout.startswith(b"usage: ")


@pytest.mark.parametrize(
    ("terminal", "encoding", "printed"),
    [
        (TERMINALS["cp1252"], "cp1252", "a (+) b, -inf, yes, \\u6587"),
        (TERMINALS["LC_ALL=C, ASCII"], "ascii", "a (+) b, -inf, yes, \\u6587"),
        (TERMINALS["cp936"], "cp936", "a ⊕ b, -∞, yes, 文"),
        ({"PYTHONIOENCODING": "utf-8"}, "utf-8", SYMBOLS),
    ],
)
def test_what_an_encoding_lacks_is_spelled_out_and_the_rest_is_kept(terminal, encoding, printed):
    assert python("-c", PRINT_SYMBOLS, terminal=terminal).stdout.decode(encoding).strip() == printed
