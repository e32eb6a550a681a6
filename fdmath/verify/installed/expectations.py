"""The departures that are known and accepted, a line each, and what a report shows beside them."""

import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np

from fdmath.verify.installed.adapter import DEVICES
from fdmath.verify.judge import ask
from fdmath.verify.laws import LAWS

FILE = Path(__file__).with_name("expectations.toml")
WITHOUT_KEYS = "a row without keys"
"""How a reason begins that says that a law breaks in such rows alone."""
MAKE_THEM = ("closure", "empty", "empty rows")
"""The laws that make such rows (or parts) of every case: they have no case without them."""


def read(path=FILE, device="cpu"):
    """The dict (subject, law) → reason that a file of expectations says of the device.

    A subject's table holds lines that count on every device, and may hold tables, each named for a device, of lines
    that count on that one alone. ValueError for a device, a name or a reason that is none, and for a line said twice.
    """
    if device not in DEVICES:
        raise ValueError(f"device must be one of {', '.join(DEVICES)}; got {device!r}")
    expected = {}
    for subject, where, law, reason in _lines(tomllib.loads(Path(path).read_text(encoding="utf-8"))):
        if law not in LAWS:
            raise ValueError(f"{subject}: expected to break {law!r}, which is no law and no device")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"{subject}, {law}: an expectation must give its reason")
        if device in where:
            if (subject, law) in expected:
                raise ValueError(f"{subject}, {law}: an expectation must be said once for {device}")
            expected[subject, law] = reason
    return expected


def _lines(told):
    """(subject, the devices where the line counts, law, reason) for each line of a file of expectations."""
    for subject, table in told.items():
        for name, line in table.items():
            if name in DEVICES and isinstance(line, dict):
                yield from ((subject, (name,), law, reason) for law, reason in line.items())
            else:
                yield subject, DEVICES, name, line


def surprises(report, expected):
    """A sentence for each cell of the report that is not as `expected` says, which `read` gives; empty where all are.

    A law that breaks without a line, and a line whose law holds, is undecided or was not asked, are both surprises; a
    law that the report leaves out is not.
    """
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


def to_ask_with_keys(report, expected):
    """The names of the laws that break, accepted for rows without keys alone: to be asked again where all have some."""
    return [law for (name, law), reason in expected.items()
            if reason.startswith(WITHOUT_KEYS) and law not in MAKE_THEM
            and (law, name) in report.cells and report.cells[law, name].verdict == "fail"]


def asked_with_keys(subject, name, cases, seed, seconds):
    """The Cell of the law `name` on the drawn cases of a call in which every row sees a key, masked causally too."""
    law = LAWS[name]

    def every_row_sees_a_key(case):
        masked = replace(case, causal=case.seq_lens is None)  # a law may mask a case that was drawn without
        return bool(np.all(np.any(masked.visible(subject), axis=-1)))

    def with_keys(of, large=False):
        return law.strategy(of, large=large).filter(every_row_sees_a_key)

    return ask(replace(law, strategy=with_keys), subject, cases, seed=seed, seconds=seconds)
