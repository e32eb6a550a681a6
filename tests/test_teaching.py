"""docs/teaching.md keeps its word: sessions last 90 minutes, the sections and exercises that it names exist."""

import json
import re

import pytest

from tests.test_docs import rows


@pytest.fixture(scope="module")
def page(root):
    return (root / "docs" / "teaching.md").read_text(encoding="utf-8")


def prose(root, number):
    """The Markdown of one notebook."""
    (path,) = (root / "notebooks").glob(f"{number}_*.ipynb")
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return "\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def sessions(page):
    """The (minutes, what, where) rows of each session."""
    return [rows(part, 3) for part in re.split(r"^## ", page, flags=re.MULTILINE) if part.startswith("Session")]


def test_each_session_lasts_90_minutes(page):
    assert [sum(int(minutes) for minutes, *_ in session) for session in sessions(page)] == [90, 90, 90]


def test_each_section_that_a_session_names_exists(page, root):
    named = [(where[:2], title) for session in sessions(page) for *_, where in session
             for title in re.findall(r"\*(.+?)\*", where)]  # fmt: skip
    assert len(named) > 20
    missing = []
    for number, title in named:
        headings = [h.lower() for h in re.findall(r"^#+ (.+)$", prose(root, number), re.MULTILINE)]
        missing += [] if any(title.lower() in heading for heading in headings) else [(number, title)]
    assert missing == []


def test_each_function_that_an_exercise_asks_for_is_asked_for(page, root):
    asked = re.findall(r"(\d\d) `(my_\w+)`", page)
    assert len(asked) == 12
    assert [(n, name) for n, name in asked if f"def {name}(" not in prose(root, n)] == []


def test_wrong_answers_name_a_notebook(page, root):
    questions = rows(page.partition("## Wrong answers")[2], 3)
    assert len(questions) > 12
    assert all(re.match(r"\d\d: ", question) and list((root / "notebooks").glob(f"{question[:2]}_*"))
               for question, *_ in questions)  # fmt: skip
