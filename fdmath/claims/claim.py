"""A statement of the documents, what was observed of it, and the one law that turns observations into a verdict.

    from fdmath.claims.claim import Observed, check

    @check("A13")
    def local_results_do_not_add():
        '''Two tiles of the same values: their outputs added, and their outputs merged.'''
        ...
        return Observed(inside=[...], figure="...", counterexample="...")

A check never names a verdict: it reports in which cases the document's statement was true.
"""

from dataclasses import dataclass, fields

import numpy as np

HOW = {
    "exact": "algebra on symbols (SymPy)",
    "property": "random cases, judged exactly or within a proven bound",
    "certified": "ball arithmetic or arbitrary precision",
    "measured": "errors of floating-point arithmetic",
    "counted": "operations, bytes or statements counted",
    "run": "the document's algorithm run as it is printed",
    "gpu": "measured on a GPU, live or as recorded",
    "cited": "a source that says so",
}
"""The ways in which a claim is checked, each with what it means."""

VERDICTS = ("holds", "conditional", "refuted", "open")
"""What a check can find; "cited" and "error" stand beside them for a row without a check and a check that raised."""


@dataclass(frozen=True)
class Claim:
    """One row of the ledger.

    id: document (A or B) and number. section: as the document numbers it. statement: the document's, in our words,
    formulas in TeX. conditions: under what it holds (conditional), what is right instead (refuted), what would settle
    it (open), else "". how: names of HOW. verdict: the one expected, of VERDICTS. lesson: numbers of the notebooks
    that derive or show it. sources: references in full, for rows that are cited.
    """

    id: str
    section: str
    statement: str
    conditions: str
    how: tuple
    verdict: str
    lesson: tuple = ()
    sources: tuple = ()

    @property
    def document(self):
        """The letter of the document: "A" (FlashDecoding) or "B" (FlashAttention-2)."""
        return self.id[0]

    @classmethod
    def from_row(cls, row):
        """The Claim of a TOML table; raises ValueError with the id for a field that is unknown, absent or unlawful."""
        known, name = {field.name for field in fields(cls)}, row.get("id", "a row without id")
        if wrong := set(row) - known | {"id", "section", "statement", "conditions", "how", "verdict"} - set(row):
            raise ValueError(f"claim {name}: fields absent or unknown: {', '.join(sorted(wrong))}")
        claim = cls(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})
        if claim.verdict not in VERDICTS or not claim.how or not set(claim.how) <= set(HOW):
            raise ValueError(f"claim {name}: verdict of {VERDICTS} and how of {tuple(HOW)} expected, "
                             f"not {claim.verdict!r} and {claim.how}")
        return claim


@dataclass(frozen=True)
class Observed:
    """What a check saw: whether the document's statement was true, case by case.

    inside: cases within the conditions under which it holds (for a refuted claim: within what the document states).
    outside: cases beyond those conditions. figure: the numbers found, as text. counterexample: the smallest input on
    which the statement is false, as text, or "".
    """

    inside: tuple = ()
    outside: tuple = ()
    figure: str = ""
    counterexample: str = ""

    def __post_init__(self):
        for name in ("inside", "outside"):
            cases = tuple(np.ravel(getattr(self, name)).tolist())
            if any(case is not True and case is not False for case in cases):
                raise TypeError(f"{name}: truth values expected, not {cases}")  # a number, NaN above all, is no truth
            object.__setattr__(self, name, cases)


def verdict(observed):
    """The verdict of what was Observed: a false case inside refutes; a false one outside makes it conditional.

    No case inside: "open", whatever was seen outside. Such a check has a figure to show, and nothing that could fail.
    """
    if not observed.inside:
        return "open"
    if not all(observed.inside):
        return "refuted"
    return "holds" if all(observed.outside) else "conditional"


CHECKS = {}
"""The check of each id; filled as the modules of checks are imported (fdmath.claims.checks)."""


def check(claim):
    """A decorator: the function, a check () -> Observed, kept as the one of this id; ValueError for a second one."""

    def register(function):
        first = CHECKS.setdefault(claim, function)
        if (first.__module__, first.__qualname__) != (function.__module__, function.__qualname__):
            raise ValueError(f"claim {claim} has two checks: {first.__qualname__} and {function.__qualname__}")
        CHECKS[claim] = function  # a module loaded again brings its own anew
        return function

    return register


__all__ = ["CHECKS", "HOW", "VERDICTS", "Claim", "Observed", "check", "verdict"]
