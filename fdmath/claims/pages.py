"""The ledger as it is read in notebook 14: Markdown of claims, of what document B lacks, and of the systems.

Links lead to notebooks: `lessons` is number → file name of those that there are; another number stays a number.
"""

import re

from fdmath.claims.claim import VERDICTS

MATHS = re.compile(r"\$[^$]*\$")

PARTS = re.compile(r"[23]\.\d|\d")
"""What of a section's number names a part of document A: 2.1 of 2.1.3, 5 of 5.4."""


TITLES = {"1": "overview", "2.1": "setting", "2.2": "triple", "2.3": "pair", "3.1": "triple, code", "3.2": "pair, code",
          "3.3": "comparison", "4": "mathematics", "5": "summary"}
"""What each part of document A is about, in a word or two."""


def title(name):
    """The name of a part with what it is about: "2.2 triple"; in document B the name itself."""
    return f"{name} {TITLES[name]}" if name in TITLES else name


def part(claim):
    """The part of its document that a claim belongs to: "2.3" for 2.3.5; in document B the section itself."""
    return PARTS.match(claim.section)[0] if claim.document == "A" else claim.section


def by_part(outcomes):
    """(document, part) → the Outcomes of its claims, both in the order of the documents."""
    parts = {}
    for outcome in outcomes:
        parts.setdefault((outcome.claim.document, part(outcome.claim)), []).append(outcome)
    return parts


def cell(text):
    """The text for a cell of a Markdown table: no line end, no bar that would end the cell, also within TeX."""
    text = MATHS.sub(lambda maths: maths[0].replace("|", r"\vert "), " ".join(text.split()))
    return text.replace("|", r"\|")


def table(head, rows):
    """A Markdown table, cells as `cell` makes them."""
    lines = [head, ["---"] * len(head), *([cell(text) for text in row] for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def links(numbers, lessons):
    """The numbers of notebooks, each as a link to its file where there is one."""
    return ", ".join(f"[{n:02d}]({lessons[n]})" if n in lessons else f"{n:02d}" for n in numbers)


def beside(claim):
    """What stands under a claim's statement: its conditions, with what they are for."""
    word = {"refuted": "Instead", "open": "What would settle it"}.get(claim.verdict, "Conditions")
    return f"*{word}:* {claim.conditions}" if claim.conditions else ""


def finding(outcome):
    """The verdict as found; in brackets the source's own where a claim is only cited."""
    return f"{outcome.claim.verdict} (cited)" if outcome.verdict == "cited" else outcome.verdict


def claim_text(outcome, lessons):
    """One claim as Markdown: where it stands, what it says, what is right, the smallest counterexample."""
    claim = outcome.claim
    lines = [f"**{claim.id}** · document {claim.document}, {claim.section} · **{finding(outcome)}** · lesson "
             f"{links(claim.lesson, lessons)}", claim.statement, beside(claim)]
    if outcome.counterexample:
        lines.append(f"*Counterexample, computed:* {outcome.counterexample}")
    return "\n\n".join(f"> {line}" for line in lines if line).replace("\n\n", "\n>\n")


def part_text(outcomes, lessons):
    """The claims of one part as a folded Markdown table with its counts."""
    claim, verdicts = outcomes[0].claim, [o.claim.verdict for o in outcomes]
    words = ", ".join(f"{verdicts.count(name)} {name}" for name in VERDICTS if name in verdicts)
    rows = [(o.claim.id, finding(o), f"{o.claim.statement} {beside(o.claim)}".strip(), ", ".join(o.claim.how),
             links(o.claim.lesson, lessons)) for o in outcomes]
    body = table(("claim", "verdict", "statement", "how", "lesson"), rows)
    return f"<details><summary>{claim.document}, {title(part(claim))}: {words}</summary>\n\n{body}\n\n</details>"


def missing_text(rows):
    """What document B lacks, as Markdown: each formula displayed, each figure in words."""
    texts = []
    for row in rows:
        shown = f"$$\n{row.restored}\n$$" if row.kind == "formula" else row.restored
        texts += [f"**{row.id}** · {row.section} · {row.kind}: {row.what} ({', '.join(row.claims)}; `{row.shown_by}`)",
                  shown, row.note]
    return "\n\n".join(text for text in texts if text)


def systems_text(rows, lessons):
    """The systems that the documents name, as a Markdown table."""
    return table(("system", "named in", "what of it runs here", "where", "lesson"),
                 [(row.name, "; ".join(row.named), row.what, ", ".join(row.where), links(row.lesson, lessons))
                  for row in rows])


__all__ = ["by_part", "cell", "claim_text", "finding", "links", "missing_text", "part", "part_text", "systems_text",
           "table", "title"]
