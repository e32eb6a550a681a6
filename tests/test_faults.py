"""The tables of faults name tests and laws that exist, and leave no fault out."""

import ast
import re
from collections import Counter
from pathlib import Path

import pytest

from fdmath.verify.explain import FAULTS
from fdmath.verify.laws import LAWS
from fdmath.verify.mutants import MUTANTS
from tests.attention import faults as of_flash
from tests.kernels import faults as of_kernels

KINDS = {
    of_flash: {"F": 9, "G": 3, "H": 13},
    of_kernels: {"A": 8, "B": 12, "C": 9, "D": 12, "E": 7, "F": 9, "G": 3, "H": 13, "I": 9},
}
"""How many kinds each section has that a table is about; I are faults of tests."""


def names_in(path):
    """The names of the tests of a file."""
    return {node.name for node in ast.parse(path.read_text(encoding="utf-8")).body if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("table", KINDS, ids=["flash", "kernels"])
def test_every_named_test_and_law_exists(table):
    for fault, names in table.CAUGHT.items():
        for name in names:
            file, _, test = name.partition(":")
            here = names_in(Path(table.__file__).parent / f"{file}.py") if test else LAWS
            assert (test or file.removeprefix("law ")) in here, f"{fault}: {name}"


@pytest.mark.parametrize("table", KINDS, ids=["flash", "kernels"])
def test_each_kind_has_its_tests_or_its_reason(table):
    assert not set(table.CAUGHT) & set(table.ELSEWHERE) and all(table.CAUGHT.values())
    assert Counter(kind[0] for kind in (*table.CAUGHT, *table.ELSEWHERE)) == KINDS[table]


def test_the_page_of_faults_has_what_is_printed_and_the_laws_that_kill(root):
    text = (root / "docs" / "faults.md").read_text(encoding="utf-8")
    lines = re.findall(r"^\| ([A-I]\d+) \| (.+) \| (?:(.+) )?\|$", text, re.MULTILINE)
    page = {kind: (what, laws) for kind, what, laws in lines}
    killers = {kind: ", ".join(sorted({m.killer for m in MUTANTS.values() if m.fault == kind})) for kind in FAULTS}
    assert page == {kind: (what, killers[kind]) for kind, what in FAULTS.items()}
    assert list(page) == list(FAULTS)
    assert set(re.findall(r"^## (\w) ", text, re.MULTILINE)) == {kind[0] for kind in FAULTS}
