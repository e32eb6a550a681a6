"""The documents keep their word: names exist, lines of code run, the map and the README agree with what is there."""

import doctest
import json
import pkgutil
import re

import pytest

from fdmath.claims import ledger

TERMS = 40


def rows(text, columns):
    """The cells of each table row with so many columns, without head and rule (a \\| is no border)."""
    lines = [re.split(r"(?<!\\)\|", line)[1:-1] for line in text.splitlines() if line.startswith("|")]
    lines = [[cell.strip() for cell in line] for line in lines if len(line) == columns]
    return [line for before, line in zip(lines[:1] + lines, lines, strict=False) if not set(line[0]) <= set("-: ")][1:]


def read(path):
    return path.read_text(encoding="utf-8")


def cells(path, kind):
    """The sources of a notebook's cells of one kind ("markdown" or "code")."""
    return ["".join(cell["source"]) for cell in json.loads(read(path))["cells"] if cell["cell_type"] == kind]


@pytest.fixture(scope="module")
def glossary(root):
    return rows(read(root / "docs" / "glossary.md"), 4)


@pytest.fixture(scope="module")
def start(root):
    return root / "notebooks" / "00_start_here.ipynb"


def test_the_glossary_has_its_terms_in_order_each_with_a_chinese_name_and_one_sentence(glossary):
    terms = [row[0] for row in glossary]
    assert len(terms) >= TERMS
    assert terms == sorted(terms, key=str.lower)
    assert len(set(terms)) == len(terms)
    for term, chinese, sentence, _ in glossary:
        assert re.search(r"[\u4e00-\u9fff]", chinese), term
        assert sentence.endswith(".") and not re.search(r"\. [A-Z]", sentence), term


def test_every_name_of_the_glossary_exists(glossary):
    for term, _, _, name in glossary:
        assert re.fullmatch(r"`fdmath[\w.]+`", name), term
        assert pkgutil.resolve_name(name.strip("`")) is not None, term


def test_every_term_of_the_glossary_is_used(glossary, root):
    pages = [read(path) for path in (root / "docs").glob("*.md") if path.name != "glossary.md"]
    for path in (root / "notebooks").glob("*.ipynb"):
        pages += cells(path, "markdown") + cells(path, "code")
    text = " ".join(" ".join(pages).lower().split())
    words = [word for row in glossary for word in row[0].split(", ")]
    assert [word for word in words if not re.search(rf"\b{re.escape(word.lower())}", text)] == []


def blocks(text):
    """The text of each fenced block of Python."""
    return re.findall(r"```(?:python|pycon)\n(.*?)```", text, re.DOTALL)


@pytest.mark.parametrize("page, least", [("docs/cheatsheet.md", 10), ("README.md", 5)])
def test_the_lines_of_the_page_run(root, page, least):
    text = "\n".join(blocks(read(root / page)))
    example = doctest.DocTestParser().get_doctest(text, {}, page, page, 0)
    failures = []
    result = doctest.DocTestRunner(verbose=False).run(example, out=failures.append)
    assert result.attempted >= least
    assert result.failed == 0, "".join(failures)


def test_the_names_of_the_cheat_sheet_exist(root):
    text = re.sub(r"```.*?```", "", read(root / "docs" / "cheatsheet.md"), flags=re.DOTALL)
    names = set(re.findall(r"`([A-Za-z]\w*)`", text))
    assert {"MLOState", "AccState", "LSEState", "flat"} <= names
    assert [name for name in names if name != "log1p" and pkgutil.resolve_name(f"fdmath.{name}") is None] == []


def claim_ids(text):
    """The set of claims that "A01–A13, A71" names."""
    found = set()
    for first, last in re.findall(r"([AB]\d\d)(?:–([AB]\d\d))?", text):
        assert not last or last[0] == first[0]
        found |= {f"{first[0]}{i:02}" for i in range(int(first[1:]), int((last or first)[1:]) + 1)}
    return found


@pytest.fixture(scope="module")
def map_rows(start):
    (table,) = (text for text in cells(start, "markdown") if text.startswith("## The map"))
    return rows(table, 3)


def test_the_map_says_which_notebooks_are_planned(map_rows, root):
    assert [row[1][:2] for row in map_rows] == [f"{i:02}" for i in range(16)]
    written = {path.name[:2] for path in (root / "notebooks").glob("[0-9][0-9]_*.ipynb")}
    assert {row[1][:2] for row in map_rows if "(planned)" not in row[1]} == written


def test_the_map_leads_to_every_claim_from_its_own_lesson(map_rows):
    every = {claim.id for claim in ledger()}
    lessons = [claim_ids(row[2]) for row in map_rows]
    assert lessons[14] == every
    assert every - set.union(*lessons[:14]) == set()


def test_our_names_in_the_symbol_table_exist(start):
    import inspect

    import fdmath

    (table,) = (text for text in cells(start, "markdown") if text.startswith("## The symbols collide"))
    known = {"lse2", "+", "block_m", "block_n"}  # inside kernels; an operator; arguments of flash attention, planned
    known |= set(inspect.signature(fdmath.split_kv_attention).parameters) | {"scores"}
    known |= {field for kind in (fdmath.MLOState, fdmath.AccState, fdmath.LSEState) for field in kind.__annotations__}
    names = [name for row in rows(table, 5) for name in re.findall(r"`([^`]+)`", row[1])]
    assert len(names) >= 12
    assert [name for name in names if name not in known and not hasattr(fdmath, name.partition("(")[0])] == []


def test_the_readme_states_what_the_headline_figure_shows(root, start):
    outputs = [output for cell in json.loads(read(start))["cells"] for output in cell.get("outputs", [])]
    sentences = ["".join(output.get("data", {}).get("text/plain", "")) for output in outputs]
    (alt,) = re.findall(r"!\[(.*?)\]\(docs/figures/headline.png\)", read(root / "README.md"))
    assert alt in sentences
    assert (root / "docs" / "figures" / "headline.png").read_bytes().startswith(b"\x89PNG")
