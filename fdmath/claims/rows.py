"""The ledger: its rows as Claims in the order of the documents, and the check of each."""

import importlib
import tomllib
from importlib import resources
from importlib.util import find_spec

from fdmath.claims.claim import CHECKS, Claim

MODULES = (
    "setting", "triple", "pair",
    "triple_code", "lse_code", "advice",
    "deferred", "statistics", "causal", "loops", "gradients", "warps",
    "algorithms", "decoding", "benchmarks",
)  # fmt: skip
"""The modules of fdmath.claims that hold checks."""


def ledger():
    """Every Claim of the two documents, in order of id; ValueError for a row that is unlawful or twice there."""
    folder = resources.files("fdmath.claims")
    files = [file for file in folder.iterdir() if file.name.startswith("ledger") and file.name.endswith(".toml")]
    rows = [row for file in files for row in tomllib.loads(file.read_text(encoding="utf-8"))["claim"]]
    claims = sorted(map(Claim.from_row, rows), key=lambda claim: claim.id)
    if twice := {a.id for a, b in zip(claims, claims[1:], strict=False) if a.id == b.id}:
        raise ValueError(f"claims twice in the ledger: {', '.join(sorted(twice))}")
    return claims


def checks():
    """The check () -> Observed of each id that has one; imports every module of checks."""
    for name in MODULES:
        if find_spec(f"fdmath.claims.{name}"):
            importlib.import_module(f"fdmath.claims.{name}")
    return dict(CHECKS)


__all__ = ["MODULES", "checks", "ledger"]
