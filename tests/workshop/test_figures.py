"""The figures of the README and of notebook 00: rules of the house, what is drawn, the command that draws them."""

import re

import numpy as np
import pytest

from fdmath.bench import headline
from fdmath.plotting import faults, headline_figure, style, weights_figure
from fdmath.workshop import figures, repository


@pytest.fixture
def panels():
    row = headline.Row(error=1.0, bound=2.0, ratio=0.5)
    rows = {form: [row, row] for form in headline.FORMS}
    return {stats: headline.Panel([0.0, 10000.0], rows, [5.0], {form: [row] for form in rows})
            for stats in headline.FORMATS}


def drawn(figure, tmp_path):
    """The rules that a figure breaks once it is drawn."""
    with style():
        figure.savefig(tmp_path / "figure.png")
    return faults(figure)


def test_the_headline_figure_has_a_panel_a_format_and_a_line_and_a_bound_a_form(panels, tmp_path):
    figure = headline_figure(panels)
    assert drawn(figure, tmp_path) == []
    titles = ["float32 statistics, $u = 2^{-24}$", "bfloat16 statistics, $u = 2^{-8}$"]
    assert [axes.get_title() for axes in figure.axes] == titles
    for axes in figure.axes:
        for form in headline.FORMS:
            (line,) = (found for found in axes.get_lines() if found.get_label() == form)
            assert list(line.get_ydata()) == [1.0, 1.0]
        dotted = [found for found in axes.get_lines() if found.get_linestyle() == ":" and len(found.get_ydata())]
        assert [list(found.get_ydata()) for found in dotted] == 3 * [[2.0, 2.0]]
    (legend,) = figure.legends
    texts = [text.get_text() for text in legend.get_texts()]
    assert texts == [*headline.FORMS, "proven bound", "captured heads"]


def test_the_weights_figure_draws_every_weight_of_each_head(tmp_path):
    weights = {name: np.full(5, 0.2) for name in headline.HEADS}
    figure = weights_figure(weights)
    assert drawn(figure, tmp_path) == []
    assert [axes.get_title() for axes in figure.axes] == list(headline.HEADS)
    for axes in figure.axes:
        assert sorted(x for line in axes.get_lines() for x in line.get_xdata()) == [0, 1, 2, 3, 4]


def test_the_readme_says_what_the_statements_say(panels):
    (alt,) = re.findall(r"!\[(.*?)\]\(docs/figures/headline.png\)", (repository() / "README.md").read_text("utf-8"))
    assert alt == "; ".join(sentence for _, sentence in headline.statements(panels)) + "."


def test_the_command_writes_the_figure_and_fails_when_a_statement_does(panels, tmp_path, monkeypatch, capsys):
    (tmp_path / "docs" / "figures").mkdir(parents=True)
    monkeypatch.setattr(figures, "repository", lambda: tmp_path)
    monkeypatch.setattr(figures, "headline", lambda: panels)
    assert figures.main([]) == 1
    assert "Not so: with float32 statistics" in capsys.readouterr().out
    assert (tmp_path / "docs" / "figures" / "headline.png").read_bytes().startswith(b"\x89PNG")
    monkeypatch.setattr(figures, "statements", lambda panels: [(True, "all is well")])
    assert figures.main([]) == 0
    assert figures.headline_alt(panels) == "all is well."
