"""The systems that the two documents name: what of each runs in this package, where, and in which lesson."""

import ast
import tomllib
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

WHERE = {
    "CPU": "NumPy or torch on any machine",
    "interpreter": "a Triton kernel in Triton's interpreter, on a CPU",
    "GPU": "on a CUDA device, where there is one",
    "recorded": "measured once on a GPU; the record is in the package",
    "counted": "operations and bytes, not time",
    "cited": "nothing runs",
}
"""The places, each with what it means."""

PACKAGE = Path(__file__).parents[1]
"""The folder of this package."""


@dataclass(frozen=True)
class System:
    """One of them.

    named: document and section of each mention. what: what of it runs here, in words. runs: "module:name" of the
    functions and data that do it, none where nothing does. where: names of WHERE. lesson: numbers of notebooks.
    """

    name: str
    named: tuple
    what: str
    runs: tuple
    where: tuple
    lesson: tuple


def systems():
    """The list of all Systems, in the order of the table."""
    text = resources.files("fdmath.claims").joinpath("systems.toml").read_text(encoding="utf-8")
    return [System(**{key: tuple(value) if isinstance(value, list) else value for key, value in row.items()})
            for row in tomllib.loads(text)["system"]]


def is_defined(path):
    """Whether a module of this package defines a name, "module:name": read from its source, nothing is imported.

    So that a function can be looked for whose library, or whose GPU, is not here.
    """
    module, _, name = path.partition(":")
    package, *parts = module.split(".")
    place = PACKAGE.joinpath(*parts)
    file = next((x for x in (place.with_suffix(".py"), place / "__init__.py") if x.is_file()), None)
    if package != PACKAGE.name or file is None:
        return False
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return name in {found for node in tree.body for found in _names(node)}


def _names(node):
    """The names that one statement of a module defines."""
    if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
        return [node.name]
    targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
    return [name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)]


__all__ = ["WHERE", "System", "is_defined", "systems"]
