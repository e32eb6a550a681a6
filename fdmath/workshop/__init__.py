"""What the Makefile's targets do: the test phases, lint, the notebooks and the lab."""

import importlib.util
import sys
from pathlib import Path


def repository():
    """The folder of the repository that this fdmath is used from (a Path).

    Ends the program with code 2 for an installed copy, which has neither tests nor notebooks.
    """
    root = Path(__file__).parents[2]
    if not (root / "pyproject.toml").is_file():
        print("fdmath: this command needs a clone of the repository; this is an installed copy", file=sys.stderr)
        raise SystemExit(2)
    return root


def installed(package):
    """Whether the package can be imported (it is looked for, not imported)."""
    return importlib.util.find_spec(package) is not None
