"""The table of faults names tests and laws that exist, and leaves no fault out."""

import ast
from pathlib import Path

from fdmath.verify.laws import LAWS
from tests.kernels.faults import CAUGHT, ELSEWHERE


def names_in(name):
    """The names of the tests of a file, by its path without suffix from this folder."""
    tree = ast.parse((Path(__file__).parent / f"{name}.py").read_text(encoding="utf-8"))
    return {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}


def test_every_named_test_and_law_exists():
    for fault, names in CAUGHT.items():
        for name in names:
            file, _, test = name.partition(":")
            assert file.removeprefix("law ") in LAWS if not test else test in names_in(file), f"{fault}: {name}"


def test_each_kind_has_its_tests_or_its_reason():
    assert not set(CAUGHT) & set(ELSEWHERE) and all(CAUGHT.values())
    kinds = {*CAUGHT, *ELSEWHERE}
    assert len({k for k in kinds if k[0] != "I"}) == 73 and len({k for k in kinds if k[0] == "I"}) == 9
