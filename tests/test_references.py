"""The bibliography holds what is cited, and says of each entry where it is used."""

import json
import re

CITED = re.compile(r"\b([A-Z][a-zé]+)(?:,? [A-Z][a-z]+)*(?: and [A-Z][a-z]+| et al\.)?,? \(?((?:19|20)\d\d)\b")
MONTHS = {"January", "February", "March", "April", "May", "June", "July", "August", "September", "October",
          "November", "December"}  # fmt: skip


def entries(root):
    """(first author's family name, year) of each entry that has an author."""
    text = (root / "docs" / "references.bib").read_text(encoding="utf-8")
    found = re.findall(r"@\w+\{(\w+),.*?\n\}", text, re.DOTALL)
    people = re.findall(r"author = \{(\w+),.*?year = \{(\d{4})\}", text, re.DOTALL)
    assert len(found) >= len(people) > 15
    return set(people)


def sources(root):
    """The text of every docstring's "Source:" line and of every notebook's prose."""
    for path in (root / "fdmath").rglob("*.py"):
        yield from re.findall(r"Source:.*?(?:\n *\n|\"\"\"|$)", path.read_text(encoding="utf-8"), re.DOTALL)
    for path in (root / "notebooks").glob("*.ipynb"):
        cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
        yield from ("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_what_is_cited_is_in_the_bibliography(root):
    cited = {pair for text in sources(root) for pair in CITED.findall(text) if pair[0] not in MONTHS}
    assert {("Dao", "2022"), ("Milakov", "2018"), ("Saha", "2024")} <= cited
    assert cited - entries(root) == set()


def test_each_entry_says_where_it_is_used(root):
    text = (root / "docs" / "references.bib").read_text(encoding="utf-8")
    assert text.count("\n@") == text.count(" note = {")
