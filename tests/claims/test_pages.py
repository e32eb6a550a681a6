"""The ledger as Markdown: every claim is in it once, bars end no cell, links lead to notebooks that are there."""

import pytest

from fdmath.claims.claim import Claim
from fdmath.claims.missing import missing
from fdmath.claims.pages import (
    by_part,
    cell,
    claim_text,
    links,
    missing_text,
    part,
    part_text,
    systems_text,
    table,
)
from fdmath.claims.report import Outcome
from fdmath.claims.rows import ledger
from fdmath.claims.systems import systems

LESSONS = {4: "04_the_lse_pair.ipynb"}


def outcome(verdict="refuted", found=None, **fields):
    row = {"id": "A24", "section": "2.3.1", "statement": "A third.", "conditions": "Less.", "how": ("counted",)}
    return Outcome(Claim(**(row | {"verdict": verdict, "lesson": (4, 12)} | fields)), found or verdict,
                   counterexample="d = 2")


def test_parts_hold_every_claim_once_in_order():
    claims = ledger()
    parts = by_part([Outcome(claim, claim.verdict) for claim in claims])
    assert [o.claim for group in parts.values() for o in group] == sorted(claims, key=lambda c: list(parts).index(
        (c.document, part(c))))
    assert [name for document, name in parts if document == "A"] == ["1", "2.1", "2.2", "2.3", "3.1", "3.2", "3.3", "4",
                                                                    "5"]


@pytest.mark.parametrize("text, expected", [
    ("a | b", r"a \| b"), ("$|S|u$ and |", r"$\vert S\vert u$ and \|"), ("two\nlines", "two lines")])
def test_a_cell_has_no_bar_and_no_line_end(text, expected):
    assert cell(text) == expected


def test_every_row_of_a_table_has_as_many_cells_as_its_head():
    parts = by_part([Outcome(claim, claim.verdict) for claim in ledger()])
    texts = [*(part_text(rows, {}) for rows in parts.values()), systems_text(systems(), {}), table(("a", "b"), ["|b"])]
    for text in texts:
        lines = [line.replace(r"\|", "") for line in text.splitlines() if line.startswith("|")]
        assert len(lines) > 2 and len({line.count("|") for line in lines}) == 1


def test_a_number_is_a_link_where_there_is_a_notebook():
    assert links((4, 12), LESSONS) == "[04](04_the_lse_pair.ipynb), 12"


def test_a_claim_says_what_is_right_and_its_counterexample():
    text = claim_text(outcome(), LESSONS)
    assert "**A24** · document A, 2.3.1 · **refuted**" in text and "*Instead:* Less." in text and "d = 2" in text
    assert all(line.startswith(">") for line in text.splitlines())
    assert "*Conditions:* Less." in claim_text(outcome("conditional"), LESSONS)
    assert "conditional (cited)" in claim_text(outcome("conditional", "cited"), LESSONS)


def test_a_part_is_folded_under_its_counts():
    text = part_text([outcome(), outcome("holds", id="A25", conditions="")], LESSONS)
    assert text.startswith("<details><summary>A, 2.3 pair: 1 holds, 1 refuted</summary>\n\n| claim |")
    assert "A third. *Instead:* Less. |" in text and "| A25 | holds | A third. |" in text


def test_formulas_are_displayed_and_figures_told():
    text = missing_text(missing())
    assert text.count("$$\n") == 2 * 7 and all(f"**{row.id}**" in text for row in missing())
