"""Small notebooks for the tests of what handles notebooks."""

import nbformat
import pytest
from nbformat import v4


@pytest.fixture
def cell():
    """A maker of executed code cells that print `printed`."""

    def make(source, printed="", tags=(), count=1):
        outputs = [v4.new_output("stream", name="stdout", text=printed)] if printed else []
        return v4.new_code_cell(source, execution_count=count, outputs=outputs, metadata={"tags": list(tags)})

    return make


@pytest.fixture
def notebook(tmp_path):
    """A maker of notebooks on disk: cells in, path out."""

    def make(*cells, name="small.ipynb"):
        kernel = {"kernelspec": {"name": "python3", "language": "python", "display_name": "Python 3"}}
        path = tmp_path / name
        nbformat.write(v4.new_notebook(cells=list(cells), metadata=kernel), path)
        return path

    return make
