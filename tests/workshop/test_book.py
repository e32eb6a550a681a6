"""How a notebook becomes a page, without building the book."""

import pytest

from fdmath.workshop.book import abstract, alternative_text, fill, laws_table, minutes_table, page


def figure(alt):
    """An output with a PNG and its sentence."""
    return {"output_type": "display_data", "data": {"image/png": ""}, "metadata": {"image/png": {"alt": alt}}}


def cell(source, kind="code", tags=(), outputs=()):
    """One cell as plain data."""
    more = {"outputs": list(outputs), "execution_count": 1} if kind == "code" else {}
    return {"cell_type": kind, "source": source, "metadata": {"tags": list(tags)} if tags else {}, **more}


def test_the_abstract_comes_between_title_and_question():
    notebook = page({"cells": [cell(["# 01 · Title\n", "\n", "## Question"], "markdown")]}, "第一行。\n第二行。")
    lines = notebook["cells"][0]["source"].splitlines()
    assert (lines[0], lines[-1]) == ("# 01 · Title", "## Question")
    assert {"第一行。", "第二行。"} <= set(lines) and any('lang="zh-Hans"' in line for line in lines)


def test_a_notebook_without_abstract_keeps_its_head():
    assert page({"cells": [cell("# T\n\nx", "markdown")]}, "")["cells"][0]["source"] == "# T\n\nx"


def test_figures_have_their_sentence_and_answers_are_folded():
    cells = [cell("# T", "markdown"), cell("show()", outputs=[figure("It grows.")]), cell("1", tags=["answer"])]
    _, drawn, answer = page({"cells": cells}, "")["cells"]
    assert drawn["metadata"]["mystnb"] == {"image": {"alt": "It grows."}}
    assert answer["metadata"]["tags"] == ["answer", "hide-cell"]


@pytest.mark.parametrize("alts", [[""], ["One.", "Two."]])
def test_a_figure_without_a_sentence_of_its_own_is_refused(alts):
    with pytest.raises(ValueError, match="one figure"):
        alternative_text(cell("show()", outputs=[figure(alt) for alt in alts]))


def test_minutes_are_counted_and_seconds_are_measured():
    notebook = {"cells": [cell("# 01 · T\n" + "word " * 1500, "markdown"), cell("x = 1\n" * 100)]}
    last = minutes_table({"01_t": notebook, "02_u": notebook}, {"01_t": 12.3}).splitlines()[-2:]
    assert last[0] == "| [01 · T](lessons/01_t.ipynb) | 1504 | 15 | 40 | 12 |"
    assert last[1].endswith("| not measured |")


def test_a_page_without_its_line_is_refused(tmp_path):
    path = tmp_path / "page.md"
    path.write_text("before <!-- laws --> after", encoding="utf-8")
    fill(path, "laws", "table")
    assert path.read_text(encoding="utf-8") == "before table after"
    with pytest.raises(ValueError, match="<!-- laws -->"):
        fill(path, "laws", "table")


def test_every_law_is_in_the_table():
    from fdmath.verify import LAWS

    assert len(laws_table(LAWS).splitlines()) == len(LAWS) + 2


def test_abstracts_have_ten_lines_of_chinese(root):
    paths = sorted((root / "docs" / "abstracts").glob("[0-9][0-9].zh.md"))
    assert {path.name[:2] for path in paths} >= {path.name[:2] for path in (root / "notebooks").glob("[0-9]*.ipynb")}
    for path in paths:
        lines = path.read_text(encoding="utf-8").strip().splitlines()
        assert len(lines) == 10, path.name
        assert all(any("\u4e00" <= letter <= "\u9fff" for letter in line) for line in lines), path.name
    assert "<summary>中文摘要</summary>" in abstract("一。")
