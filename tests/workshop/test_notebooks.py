"""The notebook runner: a second run changes nothing, timed outputs stay, failures leave the file alone."""

import json
import sys

import nbformat
from nbformat import v4

from fdmath.workshop import notebook_rules, notebooks


def outputs(path):
    """The printed texts of each code cell of the notebook at `path`."""
    cells = nbformat.read(path, as_version=4).cells
    return ["".join(output.get("text", "") for output in cell.outputs) for cell in cells if cell.cell_type == "code"]


def test_a_second_run_changes_nothing(notebook, cell, monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    path = notebook(
        v4.new_markdown_cell("Text: ⊕"),
        cell("import sys, time; print(1, flush=True); time.sleep(0.2); print(2)", "old", count=None),
        cell("6 * 7", count=40),
        v4.new_code_cell("7 * 7", metadata={"execution": {"iopub.status.busy": "2026-01-01T00:00:00"}}),
        cell("import time; print(time.perf_counter())", "half a second", tags=["timed"]),
        cell("raise SystemError", "kept", tags=["needs-triton"]),
    )
    ids = [c.id for c in nbformat.read(path, as_version=4).cells]
    notebooks.renew(path)
    first = path.read_bytes()
    notebooks.renew(path)
    assert path.read_bytes() == first
    assert outputs(path) == ["1\n2\n", "", "", "half a second", "kept"]
    stored = json.loads(first)
    assert [c["id"] for c in stored["cells"]] == ids
    assert [c["execution_count"] for c in stored["cells"][1:]] == [1, 2, 3, 4, 5]
    assert stored["metadata"]["language_info"] == {"name": "python"}
    assert all("execution" not in c["metadata"] for c in stored["cells"])
    assert list(notebook_rules.faults(path)) == []


def test_timed_outputs_stay_until_asked_for(notebook, cell):
    path = notebook(cell("print('new')", "old", tags=["timed"]), cell("print('first')", tags=["timed"]))
    notebooks.renew(path)
    assert outputs(path) == ["old", "first\n"]
    notebooks.renew(path, renew_timed=True)
    assert outputs(path) == ["new\n", "first\n"]


def test_a_failing_cell_leaves_its_file_alone_and_the_rest_is_run(notebook, cell, capsys):
    bad = notebook(cell("print('new')", "old"), cell("1/0"), name="bad.ipynb")
    good = notebook(cell("print('new')", "old"), name="good.ipynb")
    before = bad.read_bytes()
    assert notebooks.main([str(bad), str(good)]) == 1
    assert bad.read_bytes() == before and outputs(good) == ["new\n"]
    printed = capsys.readouterr().out
    assert "bad.ipynb" in printed and "ZeroDivisionError" in printed
    assert printed.endswith("1 of 2 notebooks executed\n")
