"""The table of faults names tests and laws that exist, and leaves no fault of sections F, G and H out."""

import ast
from pathlib import Path

from fdmath.verify.laws import LAWS
from tests.attention.faults import CAUGHT, ELSEWHERE


def names_in(name):
    """The names of the tests of a file, by its path without suffix from this folder."""
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_named_test_and_law_exists():
    for fault, names in CAUGHT.items():
        for name in names:
            file, _, test = name.partition(":")
            assert test in names_in(file) if test else file.removeprefix("law ") in LAWS, f"{fault}: {name}"


def test_each_kind_has_its_tests_or_its_reason():
    assert not set(CAUGHT) & set(ELSEWHERE) and all(CAUGHT.values())
    kinds = {section: sum(kind[0] == section for kind in (*CAUGHT, *ELSEWHERE)) for section in "FGH"}
    assert kinds == {"F": 9, "G": 3, "H": 13}
