"""`fdmath doctor`: what is installed against the pins, which backends work here, and what works without each.

A backend counts as working only after it has answered a small question right: four keys of equal score and
the values 1, 2, 3, 6, in two parts, have the mean 3, exactly, in every format and order of adding.
"""

import argparse
import importlib
import importlib.metadata
import json
import os
import platform
import re
import time
from pathlib import Path
from typing import NamedTuple

from fdmath import __version__

VALUES = [[1.0], [2.0], [3.0], [6.0]]
MEAN = 3.0

WITHOUT = {
    "numpy": "nothing: it is the core",
    "torch": "notebooks 00 to 06, all laws on NumPy; not gradients, not a real model",
    "triton (compiled)": "all on NumPy and torch; not the GPU kernels",
    "triton (interpreted)": "all but the tests of the kernels on a CPU",
    "oracle": "all but the certified verdicts; the laws of the algebra need no oracle",
}


class Finding(NamedTuple):
    """One backend: whether it works here, what it said, and the seconds that it took."""

    name: str
    works: bool
    detail: str
    seconds: float


def numpy_mean():
    """The mean of the four values as split-KV attention on NumPy computes it (a float)."""
    numpy, fdmath = importlib.import_module("numpy"), importlib.import_module("fdmath")
    zeros = numpy.zeros((4, 1), dtype=numpy.float32)
    o, _ = fdmath.split_kv_attention(zeros[:1], zeros, numpy.float32(VALUES), num_splits=2, backend="numpy")
    return float(o[0, 0])


def torch_mean():
    """The same mean on torch (a float)."""
    torch, fdmath = importlib.import_module("torch"), importlib.import_module("fdmath")
    zeros = torch.zeros((4, 1))
    o, _ = fdmath.split_kv_attention(zeros[:1], zeros, torch.tensor(VALUES), num_splits=2, backend="torch")
    return float(o[0, 0])


def triton_mean(interpret):
    """The same mean by a Triton kernel, interpreted on the CPU or compiled for the GPU (a float)."""
    return importlib.import_module("fdmath.workshop.triton_probe").mean(VALUES, interpret)


def oracle_mean():
    """The midpoint of the same mean in ball arithmetic, if the ball holds MEAN; else NaN (a float)."""
    numpy, fdmath = importlib.import_module("numpy"), importlib.import_module("fdmath")
    zeros = numpy.zeros((4, 1))
    ball = fdmath.certified_attention(zeros[:1], zeros, numpy.array(VALUES))
    middle, radius = float(ball.o_mid[0, 0]), float(ball.o_rad[0, 0])
    return middle if abs(middle - MEAN) <= radius else float("nan")


PROBES = {
    "numpy": numpy_mean,
    "torch": torch_mean,
    "triton (compiled)": lambda: triton_mean(interpret=False),
    "triton (interpreted)": lambda: triton_mean(interpret=True),
    "oracle": oracle_mean,
}


def examine(name):
    """The Finding for one backend; whatever its probe raises is the detail."""
    start = time.perf_counter()
    try:
        mean = PROBES[name]()
        works, detail = mean == MEAN, f"mean of 1, 2, 3, 6 in two parts: {mean:g}"
    except Exception as error:  # a doctor names the illness, whatever it is
        works, detail = False, f"{type(error).__name__}: {str(error).strip().partition(chr(10))[0]}"
    return Finding(name, works, detail, time.perf_counter() - start)


def canonical(name):
    """A distribution's name in the one spelling that compares equal."""
    return re.sub(r"[-_.]+", "-", name).lower()


def pins():
    """The pinned version of each package of constraints.txt; empty for an installed copy, which has none."""
    path = Path(__file__).parents[1] / "constraints.txt"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {canonical(name): version for name, found, version in (line.partition("==") for line in lines) if found}


def declared():
    """The names of the packages that fdmath and its extras ask for, in order (all pins if fdmath is not installed)."""
    try:
        requirements = importlib.metadata.requires("fdmath")
    except importlib.metadata.PackageNotFoundError:
        requirements = list(pins())
    names = {canonical(re.match(r"[\w.-]+", text)[0]) for text in requirements}
    return sorted(names - {"fdmath"})


def version(name):
    """The installed version of a package without its local part ("+cpu"), or None."""
    try:
        return importlib.metadata.version(name).partition("+")[0]
    except importlib.metadata.PackageNotFoundError:
        return None


def packages():
    """One record for each declared package: name, installed, pinned and a verdict in one word or two."""
    pinned = pins()

    def verdict(here, pin):
        if here is None:
            return "not installed"
        return "no pin" if pin is None else "as pinned" if here == pin else "differs"

    rows = [(name, version(name), pinned.get(name)) for name in declared()]
    return [{"name": n, "installed": h, "pinned": p, "verdict": verdict(h, p)} for n, h, p in rows]


def examination():
    """All that doctor knows, as plain data for JSON."""
    findings = [examine(name) for name in PROBES]
    return {
        "fdmath": __version__,
        "python": platform.python_version(),
        "system": f"{platform.system()} {platform.machine()}",
        "cpus": os.cpu_count(),
        "pins_found": bool(pins()),
        "packages": packages(),
        "backends": [{**finding._asdict(), "without_it": WITHOUT[finding.name]} for finding in findings],
    }


def lines(report):
    """The report as lines of text."""
    yield f"fdmath {report['fdmath']}, Python {report['python']}, {report['system']}, {report['cpus']} CPUs"
    yield ""
    yield "versions" if report["pins_found"] else "versions (pins not found: an installed copy carries none)"
    for row in report["packages"]:
        yield f"  {row['name']:<18} {row['installed'] or '':<12} {row['verdict']:<14} {row['pinned'] or ''}".rstrip()
    yield ""
    yield "backends, each tried on four keys"
    for row in report["backends"]:
        mark = "✓" if row["works"] else "✗"
        yield f"  {mark} {row['name']:<21} {row['seconds']:6.2f} s  {row['detail']}"
        if not row["works"]:
            yield f"      still works without it: {row['without_it']}"


def main(argv=None):
    """The exit code of `fdmath doctor`: 0 if the NumPy core works, else 1."""
    parser = argparse.ArgumentParser(prog="fdmath doctor", description="What is installed and what works here.")
    parser.add_argument("--json", action="store_true", help="print the report for machines")
    options = parser.parse_args(argv)
    report = examination()
    print(json.dumps(report, indent=2) if options.json else "\n".join(lines(report)))
    return 0 if report["backends"][0]["works"] else 1
