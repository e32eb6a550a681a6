"""`fdmath book`: the reading copy of the notebooks and documents, as pages that open from disk without a network.

Sphinx builds it from build/book-source, which is docs/ together with the notebooks as they are stored (nothing is
executed): under each title its Chinese abstract, for each figure its sentence as alternative text, answers folded.
"""

import argparse
import importlib.metadata
import json
import shutil
import time
import tomllib
from pathlib import Path

from sphinx.cmd.build import build_main

from fdmath.verify import LAWS
from fdmath.workshop import repository

MATHJAX = "tex-svg-full.js"  # one file: TeX in, SVG out, all extensions inside
WORDS_A_MINUTE, LINES_A_MINUTE = 150, 20  # prose with formulas; code that is read, not run
PENCIL_MINUTES = 25  # allowed for a lesson's predictions and exercises


def mathjax():
    """The path of MathJax's single file, in the installed package that carries it.

    Raises ModuleNotFoundError where the package is not installed, FileNotFoundError where it lacks the file.
    """
    try:
        files = importlib.metadata.files("sphinx-mathjax-offline")
    except importlib.metadata.PackageNotFoundError as error:
        raise ModuleNotFoundError(str(error), name="sphinx-mathjax-offline") from error
    for file in files or ():
        if file.name == MATHJAX:
            return Path(file.locate())
    raise FileNotFoundError(f"sphinx-mathjax-offline has no {MATHJAX}")


def abstract(text):
    """The Chinese abstract as a part of a page that a reader can fold: each line a paragraph."""
    head = '<details class="abstract" lang="zh-Hans" open><summary>中文摘要</summary>'
    return "\n\n".join([head, *text.split("\n"), "</details>"])


def page(notebook, chinese):
    """The notebook (plain data, changed in place) as a page: abstract, alternative texts, folded answers."""
    first = notebook["cells"][0]
    title, _, rest = "".join(first["source"]).partition("\n")
    first["source"] = "\n\n".join(part for part in (title, chinese and abstract(chinese), rest.strip()) if part)
    for cell in notebook["cells"]:
        if alt := alternative_text(cell):
            cell["metadata"]["mystnb"] = {"image": {"alt": alt}}
        if cell["cell_type"] == "code" and "answer" in cell["metadata"].get("tags", []):
            cell["metadata"]["tags"].append("hide-cell")
    return notebook


def alternative_text(cell):
    """The sentence of the cell's figure; "" for a cell without one.

    Raises ValueError for two figures in a cell, since a cell has one alternative text, and for one without a sentence.
    """
    figures = [output for output in cell.get("outputs", []) if "image/png" in output.get("data", {})]
    alts = [figure["metadata"].get("image/png", {}).get("alt", "") for figure in figures]
    if len(alts) > 1 or "" in alts:
        raise ValueError(f"a cell must have one figure with its sentence; got {alts}")
    return alts[0] if alts else ""


def reading_minutes(notebook):
    """The minutes that reading takes: words of prose, a formula counted as its symbols, and lines of code."""
    prose = " ".join("".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "markdown")
    code = [cell["source"] for cell in notebook["cells"] if cell["cell_type"] == "code"]
    lines = sum(1 for source in code for line in "".join(source).splitlines() if line.strip())
    return len(prose.split()) / WORDS_A_MINUTE + lines / LINES_A_MINUTE


def minutes_table(notebooks, seconds):
    """The table of docs/teaching.md in Markdown: for each notebook its reading time and its measured running time.

    notebooks: stem → plain data; seconds: stem → processor seconds of a run, where one was measured.
    """
    lines = ["| notebook | words | to read, minutes | with pencil, minutes | to run, processor seconds |",
             "|---|---:|---:|---:|---:|"]  # fmt: skip
    for stem, notebook in notebooks.items():
        title = "".join(notebook["cells"][0]["source"]).partition("\n")[0].lstrip("# ")
        words = sum(len("".join(c["source"]).split()) for c in notebook["cells"] if c["cell_type"] == "markdown")
        read = reading_minutes(notebook)
        run = f"{seconds[stem]:.0f}" if stem in seconds else "not measured"
        lines.append(
            f"| [{title}](lessons/{stem}.ipynb) | {words} | {read:.0f} | {read + PENCIL_MINUTES:.0f} | {run} |")
    return "\n".join(lines)


def stage(root, source):
    """Nothing; `source` is made anew: docs/ as it is, the notebooks as pages, MathJax, the page without Sphinx."""
    shutil.rmtree(source, ignore_errors=True)
    shutil.copytree(root / "docs", source, ignore=shutil.ignore_patterns("merge-by-hand", "abstracts", "_build"))
    (source / "lessons").mkdir()
    (source / "extra").mkdir()
    if (root / "docs" / "merge-by-hand").is_dir():
        shutil.copytree(root / "docs" / "merge-by-hand", source / "extra" / "merge-by-hand")
    shutil.copy(mathjax(), source / "_static" / MATHJAX)
    notebooks = {
        path.stem: json.loads(path.read_text(encoding="utf-8")) for path in sorted((root / "notebooks").glob("*.ipynb"))
    }
    fill(source / "teaching.md", "minutes", minutes_table(notebooks, measured_seconds(root / "docs" / "minutes.toml")))
    fill(source / "api.md", "laws", laws_table(LAWS))
    for stem, notebook in notebooks.items():
        chinese = root / "docs" / "abstracts" / f"{stem[:2]}.zh.md"
        text = chinese.read_text(encoding="utf-8").strip() if chinese.is_file() else ""
        (source / "lessons" / f"{stem}.ipynb").write_text(json.dumps(page(notebook, text)), encoding="utf-8")


def measured_seconds(path):
    """stem → processor seconds of a notebook's run, as stored; {} where none were measured."""
    return tomllib.loads(path.read_text(encoding="utf-8"))["processor_seconds"] if path.is_file() else {}


def laws_table(laws):
    """The laws as a table in Markdown: name, equation, and the roles that a law is asked of."""
    rows = [f"| {law.name} | {law.equation} | {', '.join(law.roles)} |" for law in laws.values()]
    return "\n".join(["| law | equation | asked of |", "|---|---|---|", *rows])


def fill(path, name, table):
    """Nothing; the line `<!-- name -->` of the page has become the table.

    Raises ValueError for a page without that line.
    """
    before, mark, after = path.read_text(encoding="utf-8").partition(f"<!-- {name} -->")
    if not mark:
        raise ValueError(f"{path.name} must have a line <!-- {name} -->")
    path.write_text(before + table + after, encoding="utf-8")


def build(root, out):
    """Sphinx's exit code: the book is in `out`, its source in `out` + "-source"; a warning is an error."""
    source = out.with_name(out.name + "-source")
    stage(root, source)
    shutil.rmtree(out, ignore_errors=True)
    return build_main(["-q", "-W", "--keep-going", "-E", "-d", str(source / ".doctrees"), str(source), str(out)])


def main(argv=None):
    """The exit code of `fdmath book`: 0 if the book was built without a warning."""
    root = repository()
    parser = argparse.ArgumentParser(prog="fdmath book", description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=root / "build" / "book", help="the folder (default: build/book)")
    out, start = parser.parse_args(argv).out.resolve(), time.perf_counter()
    code = build(root, out)
    print(f"{out / 'index.html'}: {'built' if code == 0 else 'with faults'}, {time.perf_counter() - start:.0f} s")
    return code
