"""A pytest plugin for notebook cells under nbval, by the cell's tags.

Cells that need something (`needs.py`: `needs-torch`, `needs-model` …) are skipped, counted and named where it is
missing; the output of a `timed` cell is not compared, since it differs from run to run. (pytest-xdist drops the count
of deselected tests and keeps that of skipped ones.)
"""

import pytest

from fdmath.workshop.needs import missing, unknown


def mark(item):
    """Nothing; the nbval item is marked by the tags of its cell. Raises pytest.UsageError for an unknown need."""
    tags = item.cell.metadata.get("tags", [])
    if strange := unknown(tags):
        raise pytest.UsageError(f"{item.nodeid} has the unknown tag {strange[0]!r}")
    if absent := missing(tags):
        item.add_marker(pytest.mark.skip(reason=f"notebook cells that need {' and '.join(absent)}"))
    if "timed" in tags:
        item.options["check"] = False


def pytest_collection_modifyitems(items):
    """Mark each notebook cell; other tests are left alone."""
    for item in items:
        if hasattr(item, "cell"):
            mark(item)
