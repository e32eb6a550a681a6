"""`fdmath figures`: what is drawn in a notebook arrives as SVG, PNG and caption; the notebook stays as it was."""

import tomllib

import nbformat
from nbformat.v4 import new_code_cell, new_notebook

from fdmath.workshop.notebook_figures import draw, store_minutes, write

CELL = """
from fdmath.plotting import new_figure, show
figure, axes = new_figure(title="Two points")
axes.plot([0, 1], [0, 1])
show(figure, alt="Two points on a line.")
"""


def notebook(folder):
    """The path of a notebook with two figures, the second in a cell that is timed and has no stored output."""
    cells = [new_code_cell(CELL), new_code_cell(CELL, metadata={"tags": ["timed"]})]
    path = folder / "03_points.ipynb"
    nbformat.write(new_notebook(cells=cells), path)
    return path


def test_each_figure_is_written_three_times_and_the_notebook_is_not(tmp_path):
    path = notebook(tmp_path)
    before = path.read_bytes()
    figures, seconds = draw(path)
    lines = write(figures, tmp_path, "03")
    assert path.read_bytes() == before
    assert seconds > 0
    assert lines == ["- **03-01**: Two points on a line.", "- **03-02**: Two points on a line."]
    assert (tmp_path / "03-02.png").read_bytes().startswith(b"\x89PNG")
    assert "</svg>" in (tmp_path / "03-02.svg").read_text(encoding="utf-8")
    assert (tmp_path / "03-02.txt").read_text(encoding="utf-8") == "Two points on a line.\n"


def test_an_svg_is_the_same_in_every_run(tmp_path):
    path = notebook(tmp_path)
    assert draw(path)[0] == draw(path)[0]


def test_minutes_of_other_notebooks_are_kept(tmp_path):
    path = tmp_path / "minutes.toml"
    store_minutes({"02_b": 2.0, "01_a": 1.0}, path)
    store_minutes({"01_a": 3.0}, path)
    assert tomllib.loads(path.read_text(encoding="utf-8"))["processor_seconds"] == {"01_a": 3.0, "02_b": 2.0}
