"""The departures that are known and accepted, a line each, and what a report shows beside them."""

import tomllib
from pathlib import Path

from fdmath.verify.laws import LAWS

FILE = Path(__file__).with_name("expectations.toml")


def read(path=FILE):
    """The dict (subject, law) → reason that a file of expectations says; ValueError for a name or reason that is none.
    """
    told = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    expected = {(subject, law): reason for subject, lines in told.items() for law, reason in lines.items()}
    for (subject, law), reason in expected.items():
        if law not in LAWS:
            raise ValueError(f"{subject}: expected to break {law!r}, which is no law")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"{subject}, {law}: an expectation must give its reason")
    return expected


def surprises(report, expected=None):
    """A sentence for each cell of the report that is not as the expectations say; empty where all are.

    A law that breaks without a line, and a line whose law holds, is undecided or was not asked, are both surprises; a
    law that the report leaves out is not.
    """
    expected = read() if expected is None else expected
    asked = {law.name for law in report.laws}
    found = []
    for subject in report.subjects:
        for law in sorted(asked):
            cell, reason = report.cells.get((law, subject.name)), expected.get((subject.name, law))
            verdict = "missing" if cell is None else cell.verdict
            if reason is None and verdict in ("fail", "undecided", "not run", "missing"):
                found.append(f"{subject.name}: {law}: {verdict}, which is not expected")
            elif reason is not None and verdict != "fail":
                found.append(f"{subject.name}: {law}: {verdict}, though it is expected to break ({reason})")
    return found
