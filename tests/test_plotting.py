"""Figures: the sentence that stands for a figure, the rules that a figure obeys, what the shared figures draw."""

import numpy as np
import pytest

from fdmath import plotting
from fdmath.plotting import MOST_SERIES, balance_plot, claim, error_plot, foretold_plot, new_figure, show, style

ALT = "The line rises from 1 to 2."


@pytest.fixture
def shown(monkeypatch):
    """What `show` displays, as a list of (data, metadata), as if in a notebook."""
    found = []
    monkeypatch.setattr(plotting, "get_ipython", object)
    monkeypatch.setattr(plotting, "display", lambda data, metadata, raw: found.append((data, metadata)))
    return found


def line(count=1, size=None):
    figure, axes = new_figure(title="A line", xlabel="x", ylabel="y")
    with style():
        for i in range(count):
            axes.plot([0, 1], [1, 2 + i], label=f"series {i}")
        axes.legend(fontsize=size)
    return figure


def test_the_sentence_is_the_text_and_the_alt_of_the_figure(shown):
    show(line(), alt=ALT)
    ((data, metadata),) = shown
    assert data["text/plain"] == ALT
    assert metadata == {"image/png": {"alt": ALT}}
    assert data["image/png"].startswith(b"\x89PNG")


def test_a_shown_figure_is_cleared(shown):
    figure = line()
    show(figure, alt=ALT)
    assert figure.axes == []


def test_the_same_figure_gives_the_same_bytes(shown):
    show(line(), alt=ALT)
    show(line(), alt=ALT)
    assert shown[0] == shown[1]


def test_without_a_notebook_the_sentence_is_printed(capsys):
    show(line(), alt=ALT)
    assert capsys.readouterr().out == ALT + "\n"


@pytest.mark.parametrize("alt", ["", "  ", "figure.", "A line that rises"])
def test_an_alt_that_is_no_sentence_is_refused(alt, shown):
    with pytest.raises(ValueError, match="alt must be a sentence"):
        show(line(), alt=alt)
    assert shown == []


def test_six_series_are_shown_and_seven_refused(shown):
    show(line(MOST_SERIES), alt=ALT)
    with pytest.raises(ValueError, match="at most 6 series; got 7"):
        show(line(MOST_SERIES + 1), alt=ALT)
    assert len(shown) == 1


def test_small_text_is_refused(shown):
    with pytest.raises(ValueError, match="text of at least 12 pt; got 'series 0'"):
        show(line(size=11), alt=ALT)


def test_another_size_is_refused(shown):
    figure = line()
    figure.set_size_inches(4, 3)
    with pytest.raises(ValueError, match="must be 9 x 5 inch"):
        show(figure, alt=ALT)


def test_series_differ_in_colour_marker_and_line_style():
    for looks in (plotting.COLOURS, plotting.MARKERS, plotting.LINES):
        assert len(set(looks)) == MOST_SERIES
    lines = line(MOST_SERIES).axes[0].lines
    assert len({(x.get_color(), x.get_marker()) for x in lines}) == MOST_SERIES


def test_a_claim_that_does_not_hold_says_so():
    assert claim(True, ALT) == ALT
    assert claim(np.bool_(False), ALT) == "Not so: " + ALT


def test_the_error_plot_draws_measured_and_bound():
    measured, bound = np.array([0.0, 2.0]), np.array([8.0, 9.0])
    axes = error_plot([1, 10], {"m/l/o": (measured, bound)}, xlabel="level", title="Error").axes[0]
    drawn = [(x.get_color(), x.get_linestyle(), list(x.get_ydata())) for x in axes.lines]
    assert drawn[:2] == [(plotting.COLOURS[0], "-", [0.01, 2.0]), (plotting.COLOURS[0], ":", [8.0, 9.0])]
    assert axes.get_legend_handles_labels()[1] == ["m/l/o", "its proven bound"]
    assert axes.get_xscale() == axes.get_yscale() == "log"


def test_series_of_the_error_plot_that_agree_are_all_seen():
    series = {f"way {i}": ([1.0, 2.0], [8.0, 9.0]) for i in range(MOST_SERIES)}
    lines = [x for x in error_plot([1, 10], series, xlabel="level", title="Error").axes[0].lines if x.get_marker()]
    assert len({x.get_marker() for x in lines}) == len(lines) == MOST_SERIES
    assert [x.get_linestyle() for x in lines[:3]] == ["-", "--", "-."]
    assert len({str(x._unscaled_dash_pattern) for x in lines}) == MOST_SERIES  # matplotlib has no public name for it
    assert ":" not in [x.get_linestyle() for x in lines]  # dotted lines are bounds
    assert all(x.get_markerfacecolor() == "none" for x in lines)
    sizes = [(x.get_markersize(), x.get_linewidth()) for x in lines]
    assert all(after < before for a, b in zip(sizes, sizes[1:], strict=False)
               for before, after in zip(a, b, strict=True))


def test_a_series_of_the_error_plot_may_have_no_bound():
    axes = error_plot([1, 10], {"a": ([1, 2], [8, 9]), "b": ([3, 4], None)}, xlabel="level", title="Error").axes[0]
    assert [list(x.get_ydata()) for x in axes.lines] == [[1, 2], [8, 9], [3, 4], []]


def test_the_error_plot_shows_a_nan_by_a_gap():
    axes = error_plot([1, 10], {"m/l/o": ([np.nan, 1.0], [8.0, 9.0])}, xlabel="level", title="Error").axes[0]
    assert np.isnan(axes.lines[0].get_ydata()[0])


def test_the_balance_plot_marks_the_mean_of_each_part_and_of_the_whole(shown):
    parts = {"first": [0, 1], "second": [2, 3]}
    figure = balance_plot([2, 6, 0, 3], [1, 1, 2, 4], parts, xlabel="value", ylabel="weight", title="Balance")
    triangles = [x.get_xdata()[0] for x in figure.axes[0].lines if x.get_marker() == "^"]
    assert triangles == [4, 2, 5 / 2]
    show(figure, alt=ALT)
    assert len(shown) == 1


def test_the_range_plot_draws_a_bar_a_row_and_writes_its_outer_ends(shown):
    rows, faint = {"format": (-9.5, 11), "head": (-3, 5.25)}, {"format": (-17, -9.5)}
    figure = plotting.range_plot(rows, faint=faint, split=1, xlabel="score", title="Ranges")
    axes = figure.axes[0]
    bars = [(bar.get_x(), bar.get_x() + bar.get_width()) for bar in axes.patches]
    assert bars == [(-9.5, 11), (-17, -9.5), (-3, 5.25)]
    assert [text.get_text() for text in axes.texts] == ["−17.0", "11.0", "−3.0", "5.2"]
    assert axes.get_xlim()[0] < -18 and axes.get_xlim()[1] > 12  # the numbers have room
    assert axes.patches[0].get_facecolor() != axes.patches[2].get_facecolor()
    show(figure, alt=ALT)
    assert len(shown) == 1


def test_the_staircase_plot_draws_the_scores_as_dots_and_each_level_as_steps(shown):
    figure = plotting.staircase_plot([1, 3, 2], {"largest": [1, 3, 3]}, xlabel="key", ylabel="score", title="Levels")
    dots, steps = figure.axes[0].lines
    assert (dots.get_linestyle(), list(dots.get_ydata())) == ("None", [1, 3, 2])
    assert (steps.get_drawstyle(), steps.get_marker(), list(steps.get_ydata())) == ("steps-post", "", [1, 3, 3])
    assert figure.axes[0].get_legend_handles_labels()[1] == ["score of a key", "largest"]
    show(figure, alt=ALT)
    assert len(shown) == 1


def test_a_legend_of_many_series_is_laid_out_in_fewer_columns_and_lies_inside_the_figure(shown):
    series = {f"a name of some length {i}": ([1, 2], [3, 4]) for i in range(5)}
    figure = plotting.error_plot([1, 2], series, xlabel="keys", title="Errors")
    assert plotting.legend_in_columns(figure, 2) is figure
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == [*series, "its proven bound"]
    show(figure, alt=ALT)
    assert legend.get_window_extent().width <= figure.bbox.width


def test_the_block_plot_gives_each_group_a_look_and_each_block_its_word_queries_downwards(shown):
    panels = {"causal": ([[0, -1], [1, 0]], [["1", ""], ["2", "3"]])}
    figure = plotting.block_plot(panels, ["full", "masked", "skipped"], title="Blocks")
    axes = figure.axes[0]
    assert axes.get_ylim() == (2, 0) and axes.get_xlim() == (0, 2)
    first, left_out, second, third = axes.patches
    assert first.get_facecolor() == third.get_facecolor() != second.get_facecolor()
    assert left_out.get_facecolor() == (1, 1, 1, 1) and second.get_hatch() != first.get_hatch()
    assert [(second.get_x(), second.get_y()), second.get_hatch()] == [(0, 1), "//"]
    assert [(t.get_text(), t.get_position()) for t in axes.texts] == [
        ("1", (0.5, 0.5)), ("", (1.5, 0.5)), ("2", (0.5, 1.5)), ("3", (1.5, 1.5))]  # fmt: skip
    (legend,) = figure.legends
    assert [text.get_text() for text in legend.get_texts()] == ["full", "masked"]
    show(figure, alt=ALT)
    assert len(shown) == 1


def test_the_bar_plot_puts_the_series_side_by_side(shown):
    figure = plotting.bar_plot("abc", {"one": [1, -2, 3], "two": [4, 5, 6]}, xlabel="x", ylabel="y", title="Bars")
    axes = figure.axes[0]
    assert [bar.get_height() for bar in axes.patches] == [1, -2, 3, 4, 5, 6]
    lefts = [bar.get_x() for bar in axes.patches]
    assert lefts[0] < lefts[3] < lefts[1] < lefts[4]  # a group holds one bar of each series
    assert axes.patches[0].get_hatch() != axes.patches[3].get_hatch()
    assert [label.get_text() for label in axes.get_xticklabels()] == ["a", "b", "c"]
    show(figure, alt=ALT)
    assert len(shown) == 1


def test_what_a_model_foretells_has_the_colour_of_what_was_measured():
    series = {"a": ([4, 2], [5, 2]), "b": ([3, 3], [3, 4])}
    axes, = foretold_plot([1, 2], series, xlabel="parts", ylabel="µs", title="times").axes
    measured, foretold = axes.lines[::2], axes.lines[1::2]
    assert [line.get_color() for line in measured] == [line.get_color() for line in foretold]
    assert measured[0].get_color() != measured[1].get_color()
    assert {line.get_linestyle() for line in foretold} == {":"} and axes.get_xscale() == axes.get_yscale() == "log"
    assert [list(line.get_ydata()) for line in axes.lines] == [[4, 2], [5, 2], [3, 3], [3, 4]]


def test_points_of_a_scatter_plot_have_no_lines_and_the_diagonal_spans_them(shown):
    figure = plotting.scatter_plot({"a": ([1, 8], [2, 4]), "b": ([2, 4], [1, 2])}, xlabel="x", ylabel="y",
                                   title="Points", diagonal="y = x")
    axes, = figure.axes
    *points, diagonal = axes.lines
    assert {line.get_linestyle() for line in points} == {"None"} and len({line.get_marker() for line in points}) == 2
    assert [list(diagonal.get_xdata()), list(diagonal.get_ydata())] == [[1, 8], [1, 8]]
    assert axes.get_xscale() == axes.get_yscale() == "log"
    show(figure, alt=ALT)


def test_the_mark_table_puts_each_mark_in_its_place_the_first_row_on_top_and_leaves_places_empty(shown):
    figure = plotting.mark_table([[0, 1, -1], [1, 1, 0]], rows=["a", "b"], columns=[1, 2, 3],
                                 marks={"killed": "X", "holds": "."}, title="Marks", xlabel="subject")
    axes, = figure.axes
    killed, holds = axes.lines
    assert [list(zip(*line.get_data(), strict=True)) for line in (killed, holds)] == [
        [(0, 0), (2, 1)], [(1, 0), (0, 1), (1, 1)]]
    assert (killed.get_marker(), holds.get_marker()) == ("X", ".") and killed.get_color() != holds.get_color()
    low, high = axes.get_ylim()
    assert low > 1 and high < 0
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["killed", "holds"]
    show(figure, alt=ALT)
    assert len(shown) == 1


def test_the_tally_puts_the_members_of_each_group_in_a_row_of_their_own_panel(shown):
    figure = plotting.tally_plot({"one": {"a": [0, 1, 0], "b": [1]}, "two": {"c": [0, -1]}}, title="Tally",
                                 marks={"holds": ".", "refuted": "X"}, xlabel="claims")
    one, two = figure.axes
    assert [list(zip(*line.get_data(), strict=True)) for line in one.lines] == [[(0, 0), (2, 0)], [(1, 0), (0, 1)]]
    assert [list(zip(*line.get_data(), strict=True)) for line in two.lines] == [[(0, 0)], []]
    assert [label.get_text() for label in one.get_yticklabels()] == ["a", "b"]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == ["holds", "refuted"]
    show(figure, alt=ALT)
