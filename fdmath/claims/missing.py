"""What document B announces and does not show: seven formulas behind a colon, and five figures, restored."""

import tomllib
from dataclasses import dataclass
from importlib import resources


@dataclass(frozen=True)
class Missing:
    """One of them.

    id: M1 to M12, in the order of the document. kind: "formula" or "figure". what: what it is to show. restored: a
    formula in TeX, a figure in words. note: what the text beside it, or the paper, has wrong; else "". claims: the ids
    of the claims that check it. shown_by: "module:name" of what computes or draws from it in this package.
    """

    id: str
    section: str
    kind: str
    what: str
    restored: str
    note: str
    claims: tuple
    shown_by: str


def missing():
    """The list of all twelve."""
    text = resources.files("fdmath.claims").joinpath("missing.toml").read_text(encoding="utf-8")
    return [Missing(**row | {"claims": tuple(row["claims"])}) for row in tomllib.loads(text)["missing"]]


__all__ = ["Missing", "missing"]
