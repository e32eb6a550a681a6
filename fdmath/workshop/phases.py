"""`fdmath test`: the phases of the tests, each in its own process, with their times.

Every phase is tried; a phase passes only if its process returns 0, and pytest returns 5, not 0, when it finds
no tests. The table is followed by what failed, a line each, and the closing line of each phase, word for word.
"""

import argparse
import os
import subprocess
import sys
import time
from typing import NamedTuple

from fdmath.workshop import repository
from fdmath.workshop.processor import plainer_processors

# One thread a worker: pytest-xdist already keeps the cores busy.
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "PYTHONIOENCODING": "utf-8",
    "TQDM_DISABLE": "1",
}

MATRIX, KERNELS = "tests/verify/test_matrix.py", ("tests/kernels", "tests/gpu")
GLOO, CLAIMS, BOOK = "tests/distributed", "tests/claims", "tests/book"
NOT_PORTABLE = ("lint", "kernels", "gloo")
ON_REQUEST = ("book",)  # needs a browser, which the pins do not bring
PYTEST = ["-m", "pytest", "-n", "2", "-rfEs"]
COMMANDS = {
    "lint": ["-m", "fdmath", "lint"],
    "unit": [*PYTEST, "tests", *(f"--ignore={path}" for path in (MATRIX, *KERNELS, GLOO, CLAIMS, BOOK))],
    "laws": [*PYTEST, MATRIX],
    "kernels": [*PYTEST, *KERNELS],
    "gloo": [*PYTEST, "--dist", "loadscope", GLOO],  # a module starts its groups of processes once
    "claims": [*PYTEST, CLAIMS],  # before the notebooks: it leaves its report to notebook 14
    "notebooks": [*PYTEST, "--nbval", "--dist", "loadscope", "notebooks"],
    "book": ["-m", "pytest", "-n", "0", "-rfEs", BOOK],  # one book, one browser
}


THOROUGH = {"FDMATH_KERNEL_CASES": "50"}
"""The cases a cell that the laws are asked of the kernels with --thorough: as many as of other subjects."""

COUNTED = "kernel tests: "
"""What a line begins with that a phase prints before its last, and that closes with it."""

BROKEN = ("FAILED ", "ERROR ")
"""What pytest begins the lines with that name what failed."""


class Result(NamedTuple):
    """How one phase ended: its exit code, its seconds, its last line with counts before it, and what failed."""

    name: str
    code: int
    seconds: float
    closing: str
    broken: tuple = ()


def run_phase(name, command, variables):
    """The Result of `python *command` in the repository, its output passed on line by line."""
    print(f"\n--- {name}: python {' '.join(command)}", flush=True)
    start, counted, closing, broken = time.perf_counter(), "", "", []
    with subprocess.Popen(
        [sys.executable, *command],
        cwd=repository(),
        env={**os.environ, **ENVIRONMENT, **variables},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
    ) as process:
        for line in process.stdout:
            print(line, end="", flush=True)
            closing = line.rstrip() or closing
            counted = line if line.startswith(COUNTED) else counted
            broken += [line.rstrip()] if line.startswith(BROKEN) else []
    result = Result(name, process.returncode, time.perf_counter() - start, counted + closing, tuple(broken))
    print(f"--- {name}: {verdict(result)} in {clock(result.seconds)}", flush=True)
    return result


def verdict(result):
    """ "passed", or "failed" with the exit code."""
    return "passed" if result.code == 0 else f"failed ({result.code})"


def clock(seconds):
    """Seconds as minutes:seconds."""
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


def table(results):
    """The closing table: a line for each phase, the sum of the times, what failed, then each phase's own last line."""
    width = max(len(result.name) for result in results)
    rows = [f"{result.name:<{width}}  {clock(result.seconds):>6}  {verdict(result)}" for result in results]
    total = f"{'all':<{width}}  {clock(sum(result.seconds for result in results)):>6}"
    broken = [line for result in results for line in result.broken]
    return "\n".join(["", *rows, total, "", *broken, *(result.closing for result in results)])


def jobs(names, portable, thorough=False):
    """The (name, command, variables) of each phase to run: once, or once for each plainer processor."""
    variants, more = plainer_processors() if portable else {"": {}}, THOROUGH if thorough else {}
    return [
        (f"{name} {variant}".strip(), COMMANDS[name], {**variables, **more})
        for variant, variables in variants.items()
        for name in names
    ]


def main(argv=None):
    """The exit code of `fdmath test`: 0 if every phase passed, else 1."""
    parser = argparse.ArgumentParser(
        prog="fdmath test", allow_abbrev=False, description="Run the phases of the tests; all are tried.")
    parser.add_argument("phases", nargs="*", metavar="PHASE", help=f"only these, of: {', '.join(COMMANDS)}")
    parser.add_argument("--portable", action="store_true", help="as older processors compute (no lint, kernels, gloo)")
    parser.add_argument("--thorough", action="store_true", help="ask the kernels' laws with 50 cases a cell, not 10")
    options = parser.parse_args(argv)
    if unknown := set(options.phases) - set(COMMANDS):
        parser.error(f"no phase {', '.join(sorted(unknown))}; there are {', '.join(COMMANDS)}")
    repository()  # an installed copy is told so before any phase
    left_out = (*ON_REQUEST, *(NOT_PORTABLE if options.portable else ()))
    names = options.phases or [name for name in COMMANDS if name not in left_out]
    results = [run_phase(*job) for job in jobs(names, options.portable, options.thorough)]
    print(table(results))
    return 0 if all(result.code == 0 for result in results) else 1
