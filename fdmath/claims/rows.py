"""The ledger: its rows as Claims in the order of the documents, and the check of each."""

import importlib
import tomllib
from importlib import resources
from itertools import pairwise

from fdmath.claims.claim import CHECKS, Claim

MODULES = (
    "setting", "triple", "pair",
    "triple_code", "lse_code", "advice",
    "deferred", "statistics", "causal", "loops", "gradients", "warps",
    "algorithms", "decoding", "benchmarks",
)  # fmt: skip
"""The modules of fdmath.claims that hold checks."""


def ledger():
    """Every Claim of the two documents, in order of id; ValueError for a row that is unlawful or out of order."""
    text = resources.files("fdmath.claims").joinpath("ledger.toml").read_text(encoding="utf-8")
    claims = [Claim.from_row(row) for row in tomllib.loads(text)["claim"]]
    if wrong := [b.id for a, b in pairwise(claims) if a.id >= b.id]:
        raise ValueError(f"claims twice in the ledger, or out of order: {', '.join(wrong)}")
    return claims


def checks():
    """The check () -> Observed of each id that has one; imports every module of checks."""
    for name in MODULES:
        importlib.import_module(f"fdmath.claims.{name}")
    return dict(CHECKS)


__all__ = ["MODULES", "checks", "ledger"]
