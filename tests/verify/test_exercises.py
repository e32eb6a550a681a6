"""Exercises: the stub is not tried, the answer is right, wrong answers are refuted; student copies hold no answers."""

import json
from pathlib import Path

import numpy as np
import pytest

from fdmath.verify import exercises
from fdmath.verify.answers import lesson_03, lesson_14
from fdmath.verify.exercises import (
    LESSONS,
    answer_cell,
    exercise,
    hints_cell,
    lesson,
    stub_cell,
    student_main,
    without_answers,
)

NOTEBOOKS = Path(__file__).parents[2] / "notebooks"
CASES = 10


def never_rescaled(m1, l1, acc1, m2, l2, acc2):
    return np.maximum(m1, m2), l1 + l2, acc1 + acc2


def factors_swapped(m1, l1, acc1, m2, l2, acc2):
    m = np.maximum(m1, m2)
    level = np.where(m == -np.inf, 0, m)
    alpha, beta = np.exp(m2 - level), np.exp(m1 - level)
    return m, alpha * l1 + beta * l2, alpha[:, None] * acc1 + beta[:, None] * acc2


def without_guards(m1, l1, acc1, m2, l2, acc2):
    m = np.maximum(m1, m2)
    alpha, beta = np.exp(m1 - m), np.exp(m2 - m)
    return m, alpha * l1 + beta * l2, alpha[:, None] * acc1 + beta[:, None] * acc2


def said(capsys, fn):
    exercise("03", fn, cases=CASES)
    return capsys.readouterr().out


def test_the_stub_is_not_tried(capsys):
    assert said(capsys, lesson_03.my_merge) == "Exercise 03: not tried yet\n"


@pytest.mark.parametrize("result, words", [(None, "not tried yet (it returned nothing)"), (..., "not tried yet")])
def test_a_function_that_returns_nothing_is_not_tried(capsys, result, words):
    assert said(capsys, lambda *arrays: result) == f"Exercise 03: {words}\n"


def test_the_answer_is_right(capsys):
    assert said(capsys, lesson_03.answer).startswith("Exercise 03: right, all ")


@pytest.mark.parametrize("wrong", [never_rescaled, factors_swapped, without_guards])
def test_a_wrong_answer_is_refuted_by_the_smallest_input(capsys, wrong):
    out = said(capsys, wrong)
    assert out.startswith("Exercise 03: not yet, ")
    assert "laws do not hold. The one broken by the smallest input:" in out
    assert out.count(f"{wrong.__name__}: ") == out.count(": fail") == 1
    assert "part 1: AccState(np.array(" in out


def test_an_answer_that_raises_is_refuted_by_what_it_raised(capsys):
    def divides(*arrays):
        raise ZeroDivisionError("no keys")

    assert "raised ZeroDivisionError: no keys" in said(capsys, divides)


def test_an_answer_that_is_no_state_is_refuted_by_its_shapes(capsys):
    out = said(capsys, lambda m1, l1, acc1, *other: (m1, l1, acc1[:, 0]))
    assert out.startswith("Exercise 03: not yet, the laws could not judge it:\n")
    assert "returned no state: m must have the shape of acc without its last axis, (); got (1,)" in out


def test_a_notebook_without_an_exercise_is_named():
    with pytest.raises(ValueError, match="number must be one of .*; got '99'"):
        exercise("99", lesson_03.answer)


def only(sides=(0, 1), deep=True, lse_too=True, outside=True):
    """The answer to exercise 14 with something left out: levels far down, one side, lse, or the cases outside."""
    def check(merge):
        def unchanged(o, lse):
            empty, one = (np.zeros((1, 1)), np.array([-np.inf])), (np.array([[o]]), np.array([lse]))
            both = [merge(*one, *empty), merge(*empty, *one)]
            return [all(map(np.array_equal, both[i][:1 + lse_too], one)) for i in sides]

        levels = (0.1, 1234.5, *[-56789.1] * deep)
        return [case for lse in levels for case in unchanged(-3.7, lse)], unchanged(0.0, -np.inf) * outside

    return check


def test_a_lesson_may_have_a_judge_of_its_own(capsys):
    exercise("14", lesson_14.my_check)
    exercise("14", lesson_14.answer)
    exercise("14", only())
    assert capsys.readouterr().out == "Exercise 14: not tried yet\n" + 2 * (
        f"Exercise 14: right, each of the {len(lesson_14.MERGES)} merges gets its verdict\n")


@pytest.mark.parametrize("check, passed", [
    (lambda merge: ([], []), "at once"), (lambda merge: ([True], []), "as document A prints it, 3.2.1"),
    (lambda merge: ([], [False]), "at once"), (only(sides=[0]), "an empty left side forgotten"),
    (only(deep=False), "lse clamped to -1e4"), (only(lse_too=False), "0 for two empty sides"),
    (only(outside=False), "as document A prints it, 3.2.1"), (lambda merge: ([1.0], []), "at once")])  # fmt: skip
def test_a_check_that_lets_something_through_is_told_what(capsys, check, passed):
    exercise("14", check)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 14: not yet, of 8 merges ") and f"The first:\n  {passed}: " in out


@pytest.mark.parametrize("number", LESSONS)
def test_the_cells_of_the_notebook_are_the_tested_texts(number):
    (path,) = NOTEBOOKS.glob(f"{number}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    sources = {"".join(cell["source"]): cell for cell in cells}
    for text in (stub_cell(number), hints_cell(number), answer_cell(number)):
        assert text.strip() in sources
    assert "answer" in sources[answer_cell(number)]["metadata"]["tags"]
    (output,) = sources[stub_cell(number).strip()]["outputs"]
    assert "".join(output["text"]) == f"Exercise {number}: not tried yet\n"


@pytest.mark.parametrize("number", LESSONS)
def test_the_folded_answer_is_the_function_that_the_tests_judge(number):
    code = answer_cell(number).partition("```python\n")[2].partition("```")[0]
    cell = {"np": np}
    exec(code, cell)
    arguments = lesson(number).sample()
    (name,) = (name for name in cell if name.startswith("my_"))
    got, right = cell[name](*arguments), lesson(number).answer(*arguments)
    assert all(np.array_equal(x, y) for x, y in zip(got, right, strict=True))


def notebook(*cells):
    return {"cells": list(cells), "metadata": {}, "nbformat": 4, "nbformat_minor": 5}


def markdown(text, *tags):
    return {"cell_type": "markdown", "id": "m", "metadata": {"tags": list(tags)}, "source": text}


def test_a_student_copy_has_hints_but_no_answers_and_no_outputs():
    code = {"cell_type": "code", "id": "c", "metadata": {}, "source": "1", "outputs": [1], "execution_count": 3}
    solved = {**code, "metadata": {"tags": ["answer"]}}
    folded = exercises.folded("Answer", "42")
    question = markdown([f"Why?\n\n{folded}\n", f"\nHow?\n\n{folded}\n\nNext."])
    copy = without_answers(notebook(question, markdown(exercises.folded("Hint", "41")), code, solved))
    texts = [cell["source"] for cell in copy["cells"]]
    assert texts == ["Why?\n\nHow?\n\nNext.", "<details><summary>Hint</summary>\n\n41\n\n</details>", "1"]
    assert copy["cells"][2]["outputs"] == [] and copy["cells"][2]["execution_count"] is None


def test_student_copies_of_the_notebooks_are_written_without_answers(tmp_path, capsys):
    before = {path: path.read_bytes() for path in NOTEBOOKS.glob("*.ipynb")}
    assert student_main(["--out", str(tmp_path / "worksheets")]) == 0
    copies = sorted((tmp_path / "worksheets").glob("*.ipynb"))
    assert [path.name for path in copies] == sorted(path.name for path in before)
    for copy in copies:
        text = copy.read_text(encoding="utf-8")
        assert "<summary>Answer" not in text and json.loads(text)["cells"]
    assert {path: path.read_bytes() for path in before} == before


def test_the_notebooks_themselves_are_never_overwritten(capsys):
    before = {path: path.read_bytes() for path in NOTEBOOKS.glob("*.ipynb")}
    assert student_main(["--out", str(NOTEBOOKS)]) == 2
    assert "need another folder" in capsys.readouterr().err
    assert {path: path.read_bytes() for path in before} == before
