"""Each rule for notebooks, broken once."""

import nbformat
import pytest
from nbformat import v4

from fdmath.workshop import notebook_rules


def test_a_clean_notebook_has_no_fault(notebook, cell):
    path = notebook(v4.new_markdown_cell("Text; ends so;"), cell("print(1)", "1\n"), cell("x = 1", tags=["timed"]))
    assert list(notebook_rules.faults(path)) == []


def broken(cell, **changes):
    """The cell with some of its entries changed."""
    return nbformat.from_dict({**cell, **changes})


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({"source": "plot(x);"}, "ends in ';'"),
        ({"execution_count": None}, "was not executed"),
        ({"outputs": [v4.new_output("error", ename="E", evalue="", traceback=[])]}, "stores an error"),
        ({"outputs": [v4.new_output("stream", name="stderr", text="careful")]}, "stderr"),
        ({"outputs": [v4.new_output("display_data", {"text/plain": "<Figure size 9x5>"})]}, "without its sentence"),
        ({"metadata": {"tags": ["needs-cuda"]}}, "unknown tag 'needs-cuda'"),
    ],
)
def test_a_broken_cell_is_found(notebook, cell, changes, fault):
    [found] = notebook_rules.faults(notebook(cell("1"), broken(cell("2"), **changes)))
    assert fault in found and found.startswith("code cell 1 ")


def test_a_strange_kernel_is_found(notebook, cell):
    path = notebook(cell("1"))
    path.write_text(path.read_text(encoding="utf-8").replace('"python3"', '"mine"'), encoding="utf-8")
    assert [fault for fault in notebook_rules.faults(path) if "kernel 'mine'" in fault]


def test_a_large_notebook_is_found(notebook, cell):
    path = notebook(cell("print('a' * 400_000)", "a" * notebook_rules.LARGEST))
    assert [fault for fault in notebook_rules.faults(path) if "larger" in fault]


def test_no_notebooks_is_a_complaint(tmp_path):
    assert list(notebook_rules.complaints(tmp_path)) == ["notebooks: there are none"]


def test_complaints_name_the_notebook(tmp_path, cell):
    (tmp_path / "notebooks").mkdir()
    path = tmp_path / "notebooks" / "a.ipynb"
    nbformat.write(v4.new_notebook(cells=[cell("1")]), path)
    [complaint] = notebook_rules.complaints(tmp_path)
    assert "a.ipynb: asks for the kernel None" in complaint
