"""`fdmath figures`: every figure of the notebooks as SVG and PNG, with its caption, in build/figures.

The notebooks are executed and left as they are: a figure shows what its cell computes in this run, a timed one the
times of this run. Of a cell that needs what this machine lacks there is the stored PNG alone.
"""

import argparse
import base64
import os
import shutil
from pathlib import Path
from typing import NamedTuple

import nbformat
from nbclient.exceptions import CellExecutionError
from nbformat.v4 import new_code_cell
from tqdm import tqdm

from fdmath.plotting import SVG_TOO
from fdmath.workshop import repository
from fdmath.workshop.notebooks import execute

SECONDS = "import os; print(sum(os.times()[:4]))"  # of the processor, user and system, children that ended among them


class Drawn(NamedTuple):
    """A figure of a notebook: its caption, its PNG (bytes) and its SVG (text, "" where only the PNG is stored)."""

    caption: str
    png: bytes
    svg: str


def drawn(notebook):
    """The Drawn of each figure in the notebook's outputs, in their order."""
    outputs = [output for cell in notebook.cells for output in cell.get("outputs", [])]
    return [
        Drawn(data["text/plain"], base64.b64decode(data["image/png"]), data.get("image/svg+xml", ""))
        for data in (output.get("data", {}) for output in outputs)
        if "image/png" in data
    ]


def draw(path):
    """([Drawn, …], processor seconds) of a run of the notebook at `path`, which is not written.

    Raises nbclient's CellExecutionError where a cell fails.
    """
    notebook = nbformat.read(path, as_version=4)
    notebook.cells.append(last := new_code_cell(SECONDS))
    os.environ[SVG_TOO] = "1"
    try:
        execute(notebook, path.parent, renew_timed=True)
    finally:
        del os.environ[SVG_TOO]
    return drawn(notebook), float(last.outputs[0].text)


def write(figures, folder, number):
    """The lines of captions.md for a notebook's figures, which are now in the folder as 04-01.svg, .png, .txt …"""
    lines = []
    for index, figure in enumerate(figures, start=1):
        stem = f"{number}-{index:02d}"
        (folder / f"{stem}.png").write_bytes(figure.png)
        (folder / f"{stem}.txt").write_text(figure.caption + "\n", encoding="utf-8")
        if figure.svg:
            (folder / f"{stem}.svg").write_text(figure.svg, encoding="utf-8", newline="\n")
        lines.append(f"- **{stem}**{'' if figure.svg else ' (PNG only: not drawn on this machine)'}: {figure.caption}")
    return lines


def store_minutes(seconds, path):
    """Nothing; the processor seconds of these notebooks have replaced those in the file, the others are kept."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    kept = {line.partition(" = ")[0]: line for line in lines if " = " in line}
    kept |= {f'"{stem}"': f'"{stem}" = {value:.1f}' for stem, value in seconds.items()}
    head = ["# Processor seconds of a run, user and system, by `fdmath figures --minutes`.", "[processor_seconds]"]
    path.write_text("\n".join([*head, *(kept[key] for key in sorted(kept)), ""]), encoding="utf-8", newline="\n")


def main(argv=None):
    """The exit code of `fdmath figures`: 0 if every notebook ran, else 1. Writes build/figures."""
    parser = argparse.ArgumentParser(prog="fdmath figures", description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="NOTEBOOK", help="only these (default: all)")
    parser.add_argument("--minutes", action="store_true", help="store how long each took in docs/minutes.toml")
    options, root = parser.parse_args(argv), repository()
    folder = root / "build" / "figures"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    captions, seconds, failed = ["# The figures of the notebooks", ""], {}, []
    for path in tqdm(options.paths or sorted((root / "notebooks").glob("*.ipynb")), unit="notebook"):
        try:
            figures, seconds[path.stem] = draw(path)
            captions += write(figures, folder, path.stem[:2])
        except CellExecutionError as error:
            failed.append(path)
            print(f"{path.name}: {error}")
    (folder / "captions.md").write_text("\n".join([*captions, ""]), encoding="utf-8", newline="\n")
    if options.minutes:
        store_minutes(seconds, root / "docs" / "minutes.toml")
    print(f"build/figures: {len(captions) - 2} figures of {len(seconds)} notebooks; {len(failed)} failed")
    return 1 if failed else 0
