"""The command line: a table of commands, each loaded only when it is typed.

A command is a function that takes the remaining words and returns an exit code. Exit code 2 stands for
"could not run": an unknown command, or a package that is not installed.
"""

import codecs
import pkgutil
import sys
from typing import NamedTuple

from fdmath import __version__


class Command(NamedTuple):
    """Where a command's function is, the extra that brings what it needs, and one line of help."""

    target: str
    extra: str
    help: str


COMMANDS = {
    "doctor": Command("fdmath.doctor:main", "", "versions against the pins, which backends work here"),
    "verify": Command("fdmath.verify.command:main", "verify", "the laws of merging, for fdmath or for your function"),
    "probe": Command("fdmath.verify.probe_command:main", "verify", "the conventions of a function, from its outputs"),
    "mutants": Command("fdmath.verify.mutants_command:main", "verify", "which law kills which wrong implementation"),
    "claims": Command("fdmath.claims.command:main", "claims", "the verdict on every statement of the two documents"),
    "bench": Command("fdmath.bench.command:main", "notebooks", "timed: bench cpu, decode, attention, distributed"),
    "lab": Command("fdmath.workshop.lab:main", "notebooks", "JupyterLab on the first notebook (this machine only)"),
    "notebooks": Command("fdmath.workshop.notebooks:main", "notebooks", "execute the notebooks, store their outputs"),
    "book": Command("fdmath.workshop.book:main", "docs", "the reading copy, pages that open without a network"),
    "figures": Command("fdmath.workshop.notebook_figures:main", "notebooks", "each figure as SVG and PNG with caption"),
    "student": Command("fdmath.verify.exercises:student_main", "notebooks", "notebooks without the answers"),
    "test": Command("fdmath.workshop.phases:main", "test", "every phase of the tests, with its time"),
    "lint": Command("fdmath.workshop.lint:main", "test", "style, imports, tolerances, notebook rules"),
    "mutation": Command("fdmath.workshop.mutation:main", "test", "small changes of the code that a test must notice"),
    "model": Command("fdmath.interop.smollm2:model_main", "model", "fetch the small language model"),
    "data": Command("fdmath.interop.smollm2:data_main", "model", "capture attention inputs from that model"),
}

ASCII = str.maketrans(
    {
        "⊕": "(+)", "∞": "inf", "✓": "yes", "✗": "no", "∅": "{}", "Σ": "sum", "√": "sqrt",
        "≤": "<=", "≥": ">=", "≠": "!=", "≈": "~", "±": "+-", "−": "-", "–": "-", "—": "-", "…": "...",
        "×": "x", "·": "*", "→": "->", "←": "<-", "²": "^2", "½": "1/2", "µ": "u", "‖": "||",
        "α": "alpha", "β": "beta", "δ": "delta", "Δ": "delta", "ε": "epsilon", "η": "eta", "κ": "kappa", "σ": "sigma",
        "“": '"', "”": '"', "‘": "'", "’": "'", "│": "|", "─": "-", "┼": "+",
    }
)  # fmt: skip


def spell_out(error):
    """The ASCII spelling of what the output's encoding lacks (a codec error handler)."""
    lost = error.object[error.start : error.end]
    return lost.translate(ASCII).encode("ascii", "backslashreplace").decode("ascii"), error.end


def print_anywhere():
    """Nothing; afterwards print spells out what the terminal cannot show instead of raising."""
    codecs.register_error("fdmath.spell_out", spell_out)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="fdmath.spell_out")


def usage():
    """The help text: one line for each command."""
    lines = [f"  {name:<10} {command.help}" for name, command in COMMANDS.items()]
    return "\n".join(["usage: fdmath COMMAND …    (fdmath COMMAND --help says more)", "", *lines])


def run(name, argv):
    """The exit code of one command; 2 with a sentence if a package it needs is missing, which help does without."""
    command = COMMANDS[name]
    try:
        return pkgutil.resolve_name(command.target)(argv)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "fdmath":
            print(f"fdmath {name}: this copy of fdmath has no {error.name}", file=sys.stderr)
        else:
            line = f"the package {package!r} is not installed; {how_to_install(command.extra, package)}"
            if {"-h", "--help"} & set(argv):
                print(f"usage: fdmath {name} …\n\n{command.help}\n\nIts options are shown once it can run: {line}")
                return 0
            print(f"fdmath {name}: {line}", file=sys.stderr)
        return 2


def how_to_install(extra, package=""):
    """What to type for an extra, or for a package alone; no package index is taken to know the name fdmath."""
    return f'in a clone: python -m pip install ".[{extra}]"' if extra else f"python -m pip install {package}"


def main(argv=None):
    """The exit code of `fdmath argv`: the command's own, or 2 if there is no such command."""
    print_anywhere()
    name, *rest = (sys.argv[1:] if argv is None else argv) or [""]
    if name in COMMANDS:
        return run(name, rest)
    if name == "--version":
        print(__version__)
        return 0
    if name in ("-h", "--help"):
        print(usage())
        return 0
    print(usage() if not name else f"fdmath: no command {name!r}\n\n{usage()}", file=sys.stderr)
    return 2
