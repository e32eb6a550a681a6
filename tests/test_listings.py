"""What the notebooks show of the package, as it is stored in them, is the package's source."""

import json
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[1] / "notebooks").glob("*.ipynb"))


def listings(path):
    """(module, lines) of every listing that a notebook has stored, as `show_source` displays it, without indent."""
    for cell in json.loads(path.read_text(encoding="utf-8"))["cells"]:
        for output in cell.get("outputs", []):
            head, *lines = "".join(output.get("data", {}).get("text/plain", "")).splitlines() or [""]
            if head.startswith("# fdmath."):
                yield head.removeprefix("# "), [line.strip() for line in lines]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_listings_are_the_source(path):
    found = list(listings(path))
    assert found
    for module, lines in found:
        file = Path(__file__).parents[1].joinpath(*module.split(".")).with_suffix(".py")
        if not file.exists():
            file = file.with_suffix("") / "__init__.py"
        source = [line.strip() for line in file.read_text(encoding="utf-8").splitlines()]
        assert any(source[i:i + len(lines)] == lines for i in range(len(source))), (module, lines[0])
