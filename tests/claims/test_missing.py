"""The formulas and figures that document B lacks: all twelve, each tied to claims that exist and to code that does."""

import importlib

import pytest

from fdmath.claims.missing import missing
from fdmath.claims.rows import ledger

ROWS = missing()


def test_there_are_twelve_in_order():
    assert [row.id for row in ROWS] == [f"M{n}" for n in range(1, 13)]
    assert [row.kind for row in ROWS].count("formula") == 7


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.id)
def test_each_is_tied_to_claims_and_code(row):
    known = {claim.id for claim in ledger()}
    assert row.claims and set(row.claims) <= known
    module, _, name = row.shown_by.partition(":")
    assert hasattr(importlib.import_module(module), name)
    assert row.what and row.restored and row.restored.count("{") == row.restored.count("}")
