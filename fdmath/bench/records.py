"""Recorded measurements: rows of figures as JSON, with what is needed to measure them again.

A record is {schema, command, commit, device, versions, date, rows, …}, in `fdmath/bench/results/` under the name
{what}-{device}-{date}.json, so that the newest of a kind is the last by name.
"""

import datetime
import errno
import json
import math
import os
import platform
import subprocess
from importlib import metadata, resources
from pathlib import Path

SCHEMA = 1


def provenance(command, packages, measured, device=None):
    """The head of a record, a dict: schema, command, commit, device, versions of the packages, date.

    measured: files and folders, relative to the package, of what is measured (see `commit`). device: words; without
    them the processor, by its architecture and the number of its cores.
    """
    return {
        "schema": SCHEMA, "command": command, "commit": commit(measured),
        "device": device or f"{platform.machine()} CPU, {os.cpu_count()} cores",
        "versions": {name: metadata.version(name) for name in packages if _here(name)},
        "date": datetime.date.today().isoformat(),
    }


def _here(package):
    try:
        return bool(metadata.version(package))
    except metadata.PackageNotFoundError:
        return False


def commit(measured):
    """The commit of what is measured, with "+" if its files differ from it; "unknown" where git does not keep them."""
    git = ["git", "-C", str(Path(__file__).parents[1])]
    try:
        subprocess.run([*git, "ls-files", "--error-unmatch", "__init__.py"], capture_output=True, check=True)
        head, changed = (subprocess.run([*git, *words], capture_output=True, text=True, check=True).stdout.strip()
                         for words in (["rev-parse", "--short", "HEAD"], ["status", "--porcelain", "--", *measured]))
    except (OSError, subprocess.CalledProcessError):
        return "unknown"
    return head + ("+" if changed else "")


def text_of(head, rows):
    """The record as JSON text: the head, then one line for each row; floats to four digits, null for NaN and ∞."""
    lines = [json.dumps(_rounded(row), ensure_ascii=False, separators=(",", ":")) for row in rows]
    begin = json.dumps(_rounded(head), indent=1, ensure_ascii=False)[:-2]
    return begin + ',\n "rows": [\n' + ",\n".join(lines) + "\n]}\n"


def _rounded(x):
    if isinstance(x, dict):
        return {name: _rounded(value) for name, value in x.items()}
    if isinstance(x, (list, tuple)):
        return [_rounded(value) for value in x]
    if isinstance(x, float):
        return float(f"{x:.4g}") if math.isfinite(x) else None  # JSON has no NaN and no infinity
    return x


def write(folder, what, head, rows):
    """The path of the record that is now in the folder: {what}-{date}.json."""
    path = Path(folder) / f"{what}-{head['date']}.json"
    save(path, text_of(head, rows))
    return path


def save(path, text):
    """Nothing; the file holds the text, and what it held before until all of it is written: one beside it is moved.

    What is no file, a pipe or a device, is written to.
    """
    beside = _beside(path)
    if beside is None:
        Path(path).write_text(text, encoding="utf-8", newline="\n")
        return
    try:
        beside.write_text(text, encoding="utf-8", newline="\n")
        beside.replace(Path(path).resolve())
    finally:
        beside.unlink(missing_ok=True)


def check_writable(path):
    """Nothing; OSError where `save` could not write, and the file is left as it is."""
    if Path(path).is_dir():
        raise IsADirectoryError(errno.EISDIR, "is a folder", str(path))
    beside = _beside(path)
    if beside is not None:
        beside.write_text("", encoding="utf-8")
        beside.unlink()


def _beside(path):
    """A file of this process in the folder in which the path ends; None where it names something that is no file."""
    path = Path(path)
    if path.exists() and not path.is_file():
        return None
    path = path.resolve()
    return path.with_name(f"{path.name}.{os.getpid()}.part")


def newest(what):
    """(head, rows) of the newest record in the package whose name begins with `what`; FileNotFoundError for none."""
    folder = resources.files("fdmath") / "bench" / "results"
    paths = sorted((p for p in folder.iterdir() if p.name.startswith(f"{what}-")), key=lambda p: p.name)
    if not paths:
        raise FileNotFoundError(f"no record of {what!r} in this package")
    record = json.loads(paths[-1].read_text(encoding="utf-8"))
    return {name: x for name, x in record.items() if name != "rows"}, record["rows"]
