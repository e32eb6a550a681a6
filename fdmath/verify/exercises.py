"""Exercises of the notebooks, judged by the laws, and copies of the notebooks without the answers.

What belongs to the code exercise of notebook NN stands in `fdmath.verify.answers.lesson_NN` alone: the stub
`my_…`, `HINTS`, `answer`, `subject(fn)`, `sample()`; `FIRST`, if one law teaches more than the others: its name; and
`LAWS`, if not all laws are about the reader's function: the names of those that are. A function that no law is about
is judged by the module's own `judge(fn)`, in words, which then stands in place of `subject`.
The cells of the notebook are generated from it, by `stub_cell`, `hints_cell` and `answer_cell`, and a test holds them
equal.
"""

import argparse
import copy
import inspect
import json
import re
import sys
from pathlib import Path

import numpy as np

from fdmath import _backends as backends
from fdmath.verify.judge import verify
from fdmath.verify.report import Report

LESSONS = {n: f"fdmath.verify.answers.lesson_{n}" for n in "00 01 02 03 04 05 06 07 08 09 10 11 12 13 14 15".split()}

ANSWER = "answer"
"""The tag of cells that a student's copy lacks."""

FOLDED_ANSWER = re.compile(r"\n*<details>\s*<summary>Answer.*?</details>", re.DOTALL)


def lesson(number):
    """The module of notebook `number`'s code exercise; ValueError if it has none."""
    if number not in LESSONS:
        raise ValueError(f"number must be one of {', '.join(LESSONS)}; got {number!r}")
    return backends.load("importlib:import_module")(LESSONS[number])


def exercise(number, fn, cases=50):
    """Nothing; prints whether the function solves the exercise of notebook `number`.

    "not tried yet" for the stub, which raises NotImplementedError, and for a function that returns nothing and
    writes nothing over, which is said; else the words of the lesson's own judge; without one, how many laws hold, and
    of those that do not (or cannot be asked) `FIRST`, or the one whose counterexample is shortest, with that input,
    what the function gave and what is right. Raises ValueError for a notebook without an exercise.
    """
    task = lesson(number)
    if untried := not_tried(fn, task.sample()):
        print(f"Exercise {number}: {untried}")
        return
    if hasattr(task, "judge"):
        print(f"Exercise {number}: {task.judge(fn)}")
        return
    report = verify(task.subject(fn), getattr(task, "LAWS", None), cases=cases)
    asked = {law: cell for (law, _), cell in report.cells.items() if cell.verdict != "n/a"}
    wrong = [law for law, cell in asked.items() if cell.verdict != "pass"]
    if report.exit_code == 0:
        print(f"Exercise {number}: right, all {len(asked)} laws hold")
        return
    broken = f"{len(wrong)} of {len(asked)} laws do not hold. The one broken by the smallest input:"
    print(f"Exercise {number}: not yet,", broken if report.exit_code == 1 else "the laws could not judge it:")
    first = getattr(task, "FIRST", "")
    shortest = min(wrong, key=lambda law: (law != first, len(asked[law].counterexample)))
    print(Report([law for law in report.laws if law.name == shortest], report.subjects, report.cells).failures())


def not_tried(fn, arguments):
    """Why the function counts as not tried, in words; "" for one that returns or writes something, or raises else."""
    before = copy.deepcopy(arguments)
    try:
        result = fn(*arguments)
    except NotImplementedError:
        return "not tried yet"
    except Exception:
        return ""
    if result is ...:
        return "not tried yet"
    both = [pair for pair in zip(before, arguments, strict=True) if isinstance(pair[0], np.ndarray)]
    written = any(not np.array_equal(was, now, equal_nan=True) for was, now in both)
    return "not tried yet (it returned nothing)" if result is None and not written else ""


def stub_cell(number):
    """The text of the notebook's code cell in which the reader writes."""
    stub = _stub(lesson(number))
    return f'{inspect.getsource(stub)}\n\nexercise("{number}", {stub.__name__})'


def hints_cell(number):
    """The text of the markdown cell with the folded hints."""
    hints = lesson(number).HINTS
    return "\n\n".join(folded(f"Hint {i}" if len(hints) > 1 else "Hint", hint) for i, hint in enumerate(hints, 1))


def answer_cell(number):
    """The text of the markdown cell, tagged "answer", with the folded answer."""
    task = lesson(number)
    code = inspect.getsource(task.answer).replace("def answer(", f"def {_stub(task).__name__}(").rstrip()
    return folded("Answer", f"```python\n{code}\n```")


def folded(summary, text):
    """Markdown that hides `text` until the reader opens it."""
    return f"<details><summary>{summary}</summary>\n\n{text}\n\n</details>"


def _stub(task):
    """The one function of an exercise's module whose name begins with my_."""
    (stub,) = (value for name, value in vars(task).items() if name.startswith("my_"))
    return stub


def without_answers(notebook):
    """The notebook (its JSON as a dict) as a worksheet: no answers, no outputs, nothing executed yet."""
    cells = [cell for cell in notebook["cells"] if ANSWER not in cell["metadata"].get("tags", [])]
    return {**notebook, "cells": [_worksheet_cell(cell) for cell in cells]}


def _worksheet_cell(cell):
    if cell["cell_type"] == "code":
        return {**cell, "outputs": [], "execution_count": None}
    return {**cell, "source": FOLDED_ANSWER.sub("", "".join(cell["source"]))}


def student_main(argv=None):
    """The exit code of `fdmath student`: 0 if the copies were written, 2 if there is nothing to copy or no place."""
    parser = argparse.ArgumentParser(prog="fdmath student", description="Copies the notebooks without answers.")
    parser.add_argument("--out", type=Path, default=Path("student"), metavar="DIR", help="folder for the copies")
    out = parser.parse_args(argv).out
    source = Path(__file__).parents[2] / "notebooks"
    paths = sorted(source.glob("*.ipynb"))
    if not paths or out.resolve() == source.resolve():
        print("fdmath student: the copies need another folder than notebooks" if paths else
              "fdmath student: there are no notebooks beside this copy of fdmath", file=sys.stderr)
        return 2
    out.mkdir(parents=True, exist_ok=True)
    for path in paths:
        copy = without_answers(json.loads(path.read_text(encoding="utf-8")))
        text = json.dumps(copy, indent=1, ensure_ascii=False) + "\n"
        (out / path.name).write_text(text, encoding="utf-8", newline="\n")
    print(f"{len(paths)} notebooks without answers written to {out}")
    return 0
