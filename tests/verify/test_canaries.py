"""Zeros, a constant and entries out of place are no answer: which law refuses which, in every role that it is about."""

import pytest

from fdmath.verify import LAWS
from fdmath.verify.judge import ask
from tests.verify.canaries import CHANGES, RIGHT, canary

EVERY, SAME, MOVED = ("zeros", "constant", "permuted"), ("zeros", "constant"), ("permuted",)
REFUSED = {
    **dict.fromkeys(["anchor", "closure", "association orders", "left identity", "right identity",
                     "partition independence", "convexity", "counting", "lse bounds", "round trip", "seen NaN",
                     "empty rows", "grouped heads", "wide heads"], EVERY),
    **dict.fromkeys(["empty", "shift", "duplicate keys", "v is 1", "linearity"], SAME),
    **dict.fromkeys(["associativity", "causality", "batch mates"], MOVED),
}
"""The canaries that each law about values refuses."""
COMPARE = {"commutativity", "permutation", "poison", "inputs kept", "determinism", "strides"}
"""Laws that two calls of one function give the same: an answer that never changes meets them all."""


def test_every_law_about_values_is_named():
    assert {law.name for law in LAWS.values() if any(map(law.concerns, RIGHT.values()))} == set(REFUSED) | COMPARE


def test_the_anchor_refuses_every_canary():
    assert REFUSED["anchor"] == tuple(CHANGES) and set(LAWS["anchor"].roles) == set(RIGHT)


@pytest.mark.parametrize("law", REFUSED)
def test_a_law_refuses_the_canaries_named(law):
    for role, right in RIGHT.items():
        for change in REFUSED[law] if LAWS[law].concerns(right) else ():
            assert ask(LAWS[law], canary(role, change), 30, shrink=False).verdict == "fail", (role, change)


@pytest.mark.parametrize("law", sorted(COMPARE))
def test_the_same_answer_to_everything_is_met_by_comparisons_alone(law):
    role = next(role for role, right in RIGHT.items() if LAWS[law].concerns(right))
    assert ask(LAWS[law], canary(role, "zeros"), 5).verdict == "pass"
