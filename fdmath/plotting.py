"""Figures that say in words what they show; the only importer of matplotlib.

A figure of a notebook is 9 × 5 inch, its text at least 12 point, its series told apart by colour, marker and
line style alike, six at most. `show` refuses one that is not, and one without its sentence.
"""

import io
import math
import os

import matplotlib
import matplotlib.colors
import matplotlib.figure
import matplotlib.patches
import matplotlib.text
import numpy as np
from cycler import cycler
from IPython import get_ipython
from IPython.display import display
from PIL import Image

from fdmath.algebra.rounding import unit_roundoff

SIZE = (9.0, 5.0)  # inches
SMALLEST_TEXT = 12  # points
MOST_SERIES = 6
SVG_TOO = "FDMATH_SVG_TOO"  # a variable of the environment; where it is set, `show` displays an SVG beside the PNG

# Okabe and Ito's palette (2008), told apart by readers with any of the common colour deficiencies.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
MARKERS = ("o", "s", "^", "D", "v", "X")
LINES = ("-", "--", "-.", (0, (8, 1.5, 3, 1.5)), (0, (5, 1, 1, 1, 1, 1)), (0, (8, 2)))  # dotted lines are bounds

STYLE = {
    "figure.figsize": SIZE,
    "figure.dpi": 100,
    "figure.constrained_layout.use": True,
    "font.size": 13,
    "axes.titlesize": 14,
    "legend.fontsize": SMALLEST_TEXT,
    "xtick.labelsize": SMALLEST_TEXT,
    "ytick.labelsize": SMALLEST_TEXT,
    "axes.prop_cycle": cycler(color=COLOURS) + cycler(marker=MARKERS) + cycler(linestyle=LINES),
    "axes.grid": True,
    "grid.alpha": 0.3,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "lines.linewidth": 2.0,
    "lines.markersize": 8,
    "svg.hashsalt": "fdmath",
}


def style():
    """The context (also a decorator) in which a figure is drawn: sizes, colours, markers, line styles."""
    return matplotlib.rc_context(STYLE)


def new_figure(columns=1, **labels):
    """(figure, axes) of the house's size; `labels` go to the first axes: title=, xlabel=, ylabel=, xscale= …

    axes is one Axes, or an array of them for columns > 1. Draw under `with style():`.
    """
    with style():
        figure = matplotlib.figure.Figure()
        axes = figure.subplots(1, columns)
        np.ravel(axes)[0].set(**labels)
    return figure, axes


def show(fig, alt):
    """Nothing; the figure is displayed with `alt` as its text, then cleared.

    alt: a sentence that states what the figure shows, with figures and words that a cell has computed, so
    that a comparison of outputs compares the claim; it is also the output metadata `image/png.alt`.
    Raises ValueError for an alt that is no sentence, and for a figure that breaks a rule of `faults`.
    """
    if not (alt.strip().endswith(".") and len(alt.split()) > 2):
        raise ValueError(f"alt must be a sentence that says what the figure shows; got {alt!r}")
    with style():
        pictures = {"image/png": png_of(fig)} | ({"image/svg+xml": svg_of(fig)} if os.environ.get(SVG_TOO) else {})
    if broken := faults(fig):
        raise ValueError(f"the figure {broken[0]}")
    if get_ipython() is None:
        print(alt)
    else:
        display({"text/plain": alt, **pictures}, metadata={"image/png": {"alt": alt}}, raw=True)
    fig.clear()


def png_of(fig):
    """The bytes of the figure as a PNG of 64 colours (a third of the size), the same in every run."""
    drawn, png = io.BytesIO(), io.BytesIO()
    fig.savefig(drawn, format="png")
    Image.open(drawn).convert("RGB").quantize(64).save(png, format="png", optimize=True)
    return png.getvalue()


def svg_of(fig):
    """The figure as the text of an SVG, the same in every run."""
    svg = io.StringIO()
    fig.savefig(svg, format="svg", metadata={"Date": None, "Creator": None})
    return svg.getvalue()


def claim(holds, sentence):
    """The sentence if it holds, else the same sentence under "Not so:": for the alt text of a figure."""
    return sentence if holds else f"Not so: {sentence}"


def faults(fig):
    """The rules of the house that a drawn figure breaks, in words: its size, its smallest text, its series."""
    found = []
    if tuple(fig.get_size_inches()) != SIZE:
        found.append(f"must be {SIZE[0]:g} x {SIZE[1]:g} inch; got {fig.get_size_inches()}")
    texts = [text for text in fig.findobj(matplotlib.text.Text) if text.get_visible() and text.get_text()]
    if small := [text for text in texts if text.get_fontsize() < SMALLEST_TEXT]:
        found.append(f"must have text of at least {SMALLEST_TEXT} pt; got {small[0].get_text()!r}, smaller")
    series = max((len(axes.get_legend_handles_labels()[1]) for axes in fig.axes), default=0)
    if series > MOST_SERIES:
        found.append(f"must have at most {MOST_SERIES} series; got {series}")
    return found


_BOUND = {"marker": "", "linestyle": ":", "linewidth": 1.5}


@style()
def error_plot(x, series, *, xlabel, title, base=10):
    """A figure of measured errors and their proven bounds on two logarithmic axes, in units of u·Σp|v|.

    x: (n,); series: name → (measured, bound), each (n,), in that unit; bound None where none is meant. A
    measured error has a colour, a hollow marker and a line style of its own, later ones smaller and thinner, so
    that series which agree are all seen; its bound is a thin dotted line of the same colour without markers. An
    error below a hundredth of the unit (0 among them) is drawn there. base: of the horizontal axis, 10 or 2.
    """
    figure, axes = new_figure(title=title, xlabel=xlabel, ylabel="error of o / (u·Σp|v|)", yscale="log")
    axes.set_xscale("log", base=base)
    for i, (look, (name, (measured, bound))) in enumerate(zip(STYLE["axes.prop_cycle"], series.items(), strict=False)):
        width = {"markerfacecolor": "none", "markersize": 14 - 2 * i, "linewidth": 4 / (1 + i / 2)}
        axes.plot(x, np.maximum(measured, 0.01), **look, **width, label=name)
        if bound is not None:
            axes.plot(x, bound, **(look | _BOUND))
    axes.plot([], [], color="grey", **_BOUND, label="its proven bound")
    figure.legend(loc="outside lower center", ncols=len(series) + 1)
    return figure


@style()
def balance_plot(values, weights, parts, *, xlabel, ylabel, title):
    """A figure of weighted values, part by part, with the point at which each part and the whole balance.

    values, weights: (N,); parts: name → the indices of its keys. A triangle marks Σ w·v / Σ w.
    """
    figure, axes = new_figure(title=title, xlabel=xlabel, ylabel=ylabel)
    values, weights = np.asarray(values, float), np.asarray(weights, float)
    row = -max(weights) / 6
    for i, (name, keys) in enumerate(parts.items()):
        axes.bar(values[keys], weights[keys], 0.35, color=COLOURS[i], hatch=("", "//", "..")[i % 3], label=name)
        _balance(axes, values[keys], weights[keys], (i + 1) * row, COLOURS[i], name)
    _balance(axes, values, weights, (len(parts) + 1) * row, "black", "together")
    axes.axhline(0, color="black", linewidth=1)
    axes.set_yticks(np.arange(0, max(weights) + 1))
    axes.set_ylim((len(parts) + 1.7) * row, 1.15 * max(weights))
    axes.legend(loc="upper right")
    return figure


def _balance(axes, values, weights, height, colour, name):
    """Nothing; one triangle at the mean of the weighted values, with its name, mean and total weight."""
    centre = np.average(values, weights=weights)
    axes.plot([centre], [height], color=colour, marker="^", markersize=13, linestyle="")
    text = f"{name}: mean {centre:g}, weight {weights.sum():g}"
    axes.annotate(text, (centre, height), (12, 0), textcoords="offset points", va="center")


@style()
def headline_figure(panels):
    """A figure of error against score level, a panel for each format of the statistics, both axes logarithmic.

    panels: as `fdmath.bench.headline.headline` gives them. A form's measured error has a colour, a marker and a
    line style; its proven bound the same colour and a thin dotted line; captured heads are hollow markers. The title
    of a panel says its u: the units of two panels differ.
    """
    figure, axes = new_figure(columns=len(panels), ylabel="error of o / (u·Σp|v|)")
    hollow = {"markerfacecolor": "none", "linestyle": ""}
    for ax, (stats, panel) in zip(axes, panels.items(), strict=True):
        ax.set(xscale="log", yscale="log", xlim=(2, 2e4), ylim=(0.005, 1e7))
        u = f"$u = 2^{{{math.log2(unit_roundoff(stats)):.0f}}}$"
        ax.set(title=f"{stats} statistics, {u}", xlabel="score level: largest |lse|")
        for look, (form, rows) in zip(STYLE["axes.prop_cycle"], panel.rows.items(), strict=False):
            ax.plot(panel.levels, [row.error for row in rows], **look, label=form)
            ax.plot(panel.levels, [row.bound for row in rows], **(look | _BOUND))
            ax.plot(panel.head_levels, [row.error for row in panel.head_rows[form]], **(look | hollow))
    axes[-1].plot([], [], color="grey", **_BOUND, label="proven bound")
    axes[-1].plot([], [], color="grey", marker="o", **hollow, label="captured heads")
    figure.legend(*axes[-1].get_legend_handles_labels(), loc="outside lower center", ncols=3)
    return figure


@style()
def weights_figure(weights):
    """A figure of the attention weights of one query of each head, key by key, in panels on one logarithmic axis.

    weights: name → (N,), each row of which sums to 1. Key 0 is drawn as a marker of its own.
    """
    figure = matplotlib.figure.Figure()
    panels = figure.subplots(2, 2, sharex=True, sharey=True).flat
    for ax, colour, (name, row) in zip(panels, COLOURS, weights.items(), strict=False):
        ax.plot(np.arange(1, len(row)), row[1:], color=colour, marker="", ls="-", lw=0.8)
        ax.plot([0], row[:1], color=colour, marker="o", ls="")
        ax.set(yscale="log", ylim=(1e-7, 2), title=name)
    figure.supxlabel("key, 0 is the first of the text")
    figure.supylabel("weight of the last query")
    return figure


@style()
def line_plot(x, series, *, xlabel, ylabel, title, base=2, log_y=True, floor=None):
    """A figure of up to six series over one logarithmic axis: times, ratios, bytes.

    x: (n,); series: name → (n,). floor: name → (n,), one series drawn as a thin dotted black line: the least that
    is possible. base: of the horizontal axis, 10 or 2. log_y: whether the vertical axis is logarithmic too.
    """
    figure, axes = new_figure(title=title, xlabel=xlabel, ylabel=ylabel)
    axes.set_xscale("log", base=base)
    if log_y:
        axes.set_yscale("log")
    for look, (name, y) in zip(STYLE["axes.prop_cycle"], series.items(), strict=False):
        axes.plot(x, y, **look, label=name)
    for name, y in (floor or {}).items():
        axes.plot(x, y, **(_BOUND | {"color": "black"}), label=name)
    figure.legend(loc="outside lower center", ncols=3)
    return figure


@style()
def heat_maps(panels, *, rows, columns, xlabel, ylabel, colour_label, title="", log=True, words="{:.2g}"):
    """A figure of tables as colours, side by side on one colour scale, each cell with its number in it.

    panels: name → array (len(rows), len(columns)); rows, columns: what stands at the axes, from the bottom up and
    from left to right; NaN is left white. log: whether the colours follow the logarithm. words: how a cell's
    number is written; "" writes none (more than about 8 columns a figure do not hold 12-point numbers).
    """
    figure, axes = new_figure(columns=len(panels), ylabel=ylabel)
    figure.suptitle(title)
    least, most = (f([f(p[np.isfinite(p)]) for p in map(np.asarray, panels.values())]) for f in (np.min, np.max))
    norm = matplotlib.colors.LogNorm(least, most) if log else matplotlib.colors.Normalize(least, most)
    for ax, (name, table) in zip(np.ravel(axes), panels.items(), strict=True):
        image = ax.imshow(table, origin="lower", aspect="auto", norm=norm, cmap="cividis")
        ax.set(title=name, xlabel=xlabel)
        ax.set_xticks(range(len(columns)), columns, rotation=45)
        ax.set_yticks(range(len(rows)), rows if ax is np.ravel(axes)[0] else [])
        ax.grid(False)
        if words:
            _write_cells(ax, np.asarray(table), norm, words)
    figure.colorbar(image, ax=np.ravel(axes).tolist(), label=colour_label)
    return figure


def _write_cells(axes, table, norm, words):
    """Nothing; each finite number of the table stands in its cell, dark on light or light on dark."""
    for (i, j), value in np.ndenumerate(table):
        if np.isfinite(value):
            axes.text(j, i, words.format(value), ha="center", va="center", fontsize=SMALLEST_TEXT,
                      color="black" if norm(value) > 0.55 else "white")


@style()
def range_plot(rows, *, xlabel, title, faint=None, split=0):
    """A figure of intervals on one axis, a bar a row, the first on top, its ends written beside it.

    rows: name → (least, most); faint: name → (least, most), a hatched pale bar of the same row, such as what is
    possible with loss. split: how many of the first rows have the first colour; the others have the second.
    """
    figure, axes = new_figure(title=title, xlabel=xlabel)
    for i, (name, solid) in enumerate(rows.items()):
        pale, colour = (faint or {}).get(name), COLOURS[i >= split]
        axes.barh(i, solid[1] - solid[0], left=solid[0], height=0.55, color=colour)
        if pale:
            axes.barh(i, pale[1] - pale[0], left=pale[0], height=0.55, color=colour, alpha=0.3, hatch="//")
        for end, side in (min(solid + (pale or ())), "right"), (max(solid + (pale or ())), "left"):
            axes.annotate(f"{end:.1f}".replace("-", "\N{MINUS SIGN}"), (end, i), (6 if side == "left" else -6, 0),
                          textcoords="offset points", ha=side, va="center")
    axes.set_yticks(range(len(rows)), rows)
    axes.invert_yaxis()
    axes.use_sticky_edges = False
    axes.margins(x=0.12)
    return figure


@style()
def staircase_plot(scores, levels, *, xlabel, ylabel, title):
    """A figure of one row of scores, key by key, as grey dots, and of reference levels over them as staircases.

    scores: (N,); levels: name → (N,), the level after each key.
    """
    figure, axes = new_figure(title=title, xlabel=xlabel, ylabel=ylabel)
    keys = np.arange(1, len(scores) + 1)
    axes.plot(keys, scores, color="grey", marker="o", markersize=5, linestyle="", label="score of a key")
    for look, (name, level) in zip(STYLE["axes.prop_cycle"], levels.items(), strict=False):
        axes.step(keys, level, where="post", **(look | {"marker": ""}), label=name)
    figure.legend(loc="outside lower center", ncols=len(levels) + 1)
    return figure


@style()
def legend_in_columns(figure, columns):
    """The figure of one axes, with its legend laid out anew below it in so many columns."""
    for legend in list(figure.legends):
        legend.remove()
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=columns)
    return figure


@style()
def block_plot(panels, groups, *, title, xlabel="keys \N{RIGHTWARDS ARROW}", ylabel="\N{LEFTWARDS ARROW} queries"):
    """A figure of the blocks that scores are cut into, in panels side by side, queries downwards, keys to the right.

    panels: name → (owners, words), tables (row blocks, column blocks): the group of each block, an index into `groups`,
    −1 for a block left white; and what stands in it. groups: up to six names, each with a colour and a hatch.
    """
    figure, axes = new_figure(columns=len(panels))
    figure.suptitle(title)
    looks = [{"facecolor": c, "alpha": 0.35, "hatch": h, "edgecolor": "black"}
             for c, h in zip(COLOURS, ("", "//", "..", "\\\\", "xx", "--"), strict=True)]  # fmt: skip
    for ax, (name, (owners, words)) in zip(np.ravel(axes), panels.items(), strict=True):
        rows, columns = np.shape(owners)
        ax.set(title=name, xlabel=xlabel, xlim=(0, columns), ylim=(rows, 0), xticks=[], yticks=[], aspect="equal")
        for (i, j), owner in np.ndenumerate(owners):
            look = looks[owner] if owner >= 0 else {"facecolor": "white", "edgecolor": "grey"}
            ax.add_patch(matplotlib.patches.Rectangle((j, i), 1, 1, linewidth=0.8, **look))
            ax.text(j + 0.5, i + 0.5, words[i][j], ha="center", va="center", fontsize=SMALLEST_TEXT,
                    bbox={"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1} if words[i][j] else None)
    np.ravel(axes)[0].set_ylabel(ylabel)
    used = sorted({owner for owners, _ in panels.values() for owner in np.ravel(owners).tolist()} - {-1})
    handles = [matplotlib.patches.Patch(label=groups[owner], **looks[owner]) for owner in used]
    figure.legend(handles=handles, loc="outside lower center", ncols=len(used))
    return figure


@style()
def bar_plot(names, series, *, xlabel, ylabel, title):
    """A figure of bars side by side, a group for each name and in it a bar for each series, about a line at 0.

    names: n labels; series: name → (n,). Series are told apart by colour and hatching.
    """
    figure, axes = new_figure(title=title, xlabel=xlabel, ylabel=ylabel)
    width = 0.8 / len(series)
    for i, (name, heights) in enumerate(series.items()):
        places = np.arange(len(names)) + (i - (len(series) - 1) / 2) * width
        axes.bar(places, heights, width, color=COLOURS[i], hatch=("", "//", "..", "xx")[i % 4], label=name)
    axes.axhline(0, color="black", linewidth=1)
    axes.set_xticks(range(len(names)), names)
    figure.legend(loc="outside lower center", ncols=len(series))
    return figure


@style()
def foretold_plot(x, series, *, xlabel, ylabel, title, base=2):
    """A figure of measured values and of what a model foretells of them, on two logarithmic axes.

    x: (n,); series: name → (measured, foretold), each (n,). Measured values have a colour, a marker and a line style;
    what is foretold is a thin dotted line of the same colour.
    """
    figure, axes = new_figure(title=title, xlabel=xlabel, ylabel=ylabel, yscale="log")
    axes.set_xscale("log", base=base)
    for look, (name, (measured, foretold)) in zip(STYLE["axes.prop_cycle"], series.items(), strict=False):
        axes.plot(x, measured, **look, label=name)
        axes.plot(x, foretold, **(look | _BOUND), label=f"{name}, foretold")
    figure.legend(loc="outside lower center", ncols=2)
    return figure


@style()
def scatter_plot(series, *, xlabel, ylabel, title, diagonal=""):
    """A figure of points on two logarithmic axes, a colour and a marker for each series.

    series: name → (x, y), each (n,), later ones smaller. diagonal: what to call the dotted line y = x; "" for none.
    """
    figure, axes = new_figure(title=title, xlabel=xlabel, ylabel=ylabel, xscale="log", yscale="log")
    for i, (look, (name, (x, y))) in enumerate(zip(STYLE["axes.prop_cycle"], series.items(), strict=False)):
        axes.plot(x, y, **(look | {"linestyle": "", "markerfacecolor": "none", "markersize": 8 - i}), label=name)
    if diagonal:
        ends = [f([f(x) for x, _ in series.values()]) for f in (np.min, np.max)]
        axes.plot(ends, ends, **(_BOUND | {"color": "black"}), label=diagonal)
    figure.legend(loc="outside lower center", ncols=4)
    return figure


@style()
def mark_table(table, *, rows, columns, marks, title, xlabel=""):
    """A figure of a table of marks, the first row on top: which check says what of which subject.

    table: (len(rows), len(columns)) of indices into `marks`, −1 for a place left empty; marks: what each says → its
    matplotlib marker. Marks are told apart by marker and colour.
    """
    figure, axes = new_figure(title=title, xlabel=xlabel)
    _draw_marks(axes, table, rows, columns, marks)
    figure.legend(loc="outside lower center", ncols=len(marks))
    return figure


def _draw_marks(axes, table, rows, columns, marks):
    """Nothing; the axes hold a table of marks, the first row on top."""
    for i, ((name, marker), colour) in enumerate(zip(marks.items(), COLOURS, strict=False)):
        y, x = np.nonzero(np.asarray(table) == i)
        axes.plot(x, y, color=colour, marker=marker, linestyle="", label=name)
    axes.set_xticks(range(len(columns)), columns)
    axes.set_yticks(range(len(rows)), rows)
    axes.set(xlim=(-0.6, len(columns) - 0.4), ylim=(len(rows) - 0.4, -0.6))


@style()
def tally_plot(panels, *, marks, title, xlabel):
    """A figure of rows of marks, in panels side by side: of what kind the members of each group are, one by one.

    panels: name → {row: [index into `marks` of each member]}; marks as in `mark_table`.
    """
    figure, axes = new_figure(columns=len(panels))
    figure.suptitle(title)
    for ax, (name, rows) in zip(np.ravel(axes), panels.items(), strict=True):
        longest = max(map(len, rows.values()))
        table = [[*row, *[-1] * (longest - len(row))] for row in rows.values()]
        _draw_marks(ax, table, list(rows), [""] * longest, marks)
        ax.set(title=name, xlabel=xlabel)
    figure.legend(*np.ravel(axes)[0].get_legend_handles_labels(), loc="outside lower center", ncols=len(marks))
    return figure
