"""`fdmath notebooks`: executes notebooks and stores their outputs, so that a second run changes nothing.

What differs from run to run is taken out: times of execution, versions of the language, counts that depend on
skipped cells. A `timed` cell is run but keeps its stored output, unless asked; a cell that needs what this
machine lacks is not run and keeps its output too.
"""

import argparse
import os
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError
from tqdm import tqdm

from fdmath.workshop import repository
from fdmath.workshop.needs import missing
from fdmath.workshop.phases import ENVIRONMENT

SECONDS_A_CELL = 90
KERNEL = {"display_name": "Python 3 (ipykernel)", "language": "python", "name": "python3"}


def execute(notebook, folder, renew_timed):
    """Nothing; the code cells of the notebook now hold the outputs of a run in `folder`.

    Raises nbclient's CellExecutionError where a cell fails.
    """
    client = NotebookClient(
        notebook,
        timeout=SECONDS_A_CELL,
        kernel_name=KERNEL["name"],
        resources={"metadata": {"path": str(folder)}},
        coalesce_streams=True,  # a cell that prints with a pause would else store its text in two pieces
        record_timing=False,
    )
    with client.setup_kernel(env={**os.environ, **ENVIRONMENT}):
        for index, cell in enumerate(notebook.cells):
            if cell.cell_type == "code" and not missing(cell.metadata.get("tags", [])):
                kept = [] if renew_timed or "timed" not in cell.metadata.get("tags", []) else cell.outputs
                client.execute_cell(cell, index)
                cell.outputs = kept or cell.outputs


def settle(notebook):
    """Nothing; the notebook is left without what changes from run to run or from machine to machine."""
    notebook.metadata["kernelspec"] = KERNEL
    notebook.metadata["language_info"] = {"name": "python"}
    notebook.nbformat, notebook.nbformat_minor = 4, 5
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    for count, cell in enumerate(code, start=1):
        cell.execution_count = count
        for output in cell.outputs:
            if output.output_type == "execute_result":
                output.execution_count = count


def renew(path, renew_timed=False):
    """Nothing; the notebook at `path` is executed and written back.

    Raises nbclient's CellExecutionError where a cell fails; the file is then left as it was.
    """
    notebook = nbformat.read(path, as_version=4)
    execute(notebook, path.parent, renew_timed)
    settle(notebook)
    path.write_text(nbformat.writes(notebook) + "\n", encoding="utf-8", newline="\n")


def main(argv=None):
    """The exit code of `fdmath notebooks`: 0 if every notebook ran, else 1."""
    parser = argparse.ArgumentParser(prog="fdmath notebooks", description=__doc__.partition("\n")[0])
    parser.add_argument("paths", nargs="*", type=Path, metavar="NOTEBOOK", help="only these (default: all)")
    parser.add_argument("--timed", action="store_true", help="renew the outputs of timed cells too")
    options = parser.parse_args(argv)
    paths = options.paths or sorted((repository() / "notebooks").glob("*.ipynb"))
    if not paths:
        print("fdmath notebooks: there are no notebooks")
        return 1
    failed = []
    for path in tqdm(paths, unit="notebook"):
        try:
            renew(path, options.timed)
        except CellExecutionError as error:
            failed.append(path)
            print(f"{path.name}: {error}")
    print(f"{len(paths) - len(failed)} of {len(paths)} notebooks executed")
    return 1 if failed else 0
