"""A stand-in of fdmath.verify.installed: its subjects by name, of which one keeps no inputs, as it is expected to.

This module is imported in the processes that judge them, too.
"""

import os
import time
from dataclasses import replace

from fdmath.verify.installed.adapter import NoDevice, tried
from fdmath.verify.report import Cell
from fdmath.verify.subject import Subject
from tests.verify import badly_behaved


def dies(*_):
    """Leaves with code 3."""
    os._exit(3)


def hangs(*_):
    """Never returns."""
    time.sleep(600)


def raises(*_):
    """Has no kernel."""
    raise RuntimeError("no kernel\nmore")


def sees_none(*_):
    """Sees no device."""
    raise NoDevice("it sees no device")


BREAKING = {fn.__name__: fn for fn in (dies, hangs, raises, sees_none)}


def expected(device="cpu"):
    return {("overwrites", "inputs kept"): "known since 1.2"} if device == "cpu" else {}


def here(device="cpu", name=None):
    return ["right", "overwrites"] if name is None else [name]


def installed_subject(name, device="cpu"):
    if name == "not_made":
        return badly_behaved.not_made()
    return Subject(name, "merge", BREAKING[name]) if name in BREAKING else badly_behaved.made(name)


def elsewhere(device="cpu"):
    return {"far": "runs on mars alone"}


def missing(device="cpu"):
    return {"other": "other is not installed"}


def surprises(report, known):
    if not known:
        return ["nothing is expected here"]
    cell = report.cells.get(("inputs kept", "overwrites"))
    return [] if cell is None or cell.verdict == "fail" else ["it keeps its inputs now"]


def to_ask_with_keys(report, known):
    return [law for (law, name), cell in report.cells.items() if name == "overwrites" and cell.verdict == "fail"]


WITH_KEYS = Cell("pass", "budget")


def asked_with_keys(subject, law, cases, seed, seconds):
    return replace(WITH_KEYS, counterexample=f"{law} of {subject.name}, {cases} cases")


__all__ = ["tried"]
