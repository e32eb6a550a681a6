"""Every mutant differs from the right code that it was made from, and dies by the law named for it."""

import functools
from collections import Counter

import numpy as np
import pytest

from fdmath.verify import LAWS
from fdmath.verify.judge import drawn
from fdmath.verify.mutants import MUTANTS, NOT_PLANTED, ancestors
from fdmath.verify.mutants.matrix import kills
from fdmath.verify.mutants.record import answers

KINDS = {"A": 8, "B": 12, "C": 9, "D": 12, "E": 7, "F": 9, "G": 3, "H": 13, "I": 9}
"""How many kinds of real faults each section of the catalogue has."""
LEAST = 60
"""The least number of mutants that judge the judge."""


@functools.cache
def inputs(law, right):
    """Some cases of a law for an ancestor and its kin."""
    return drawn(LAWS[law], next(s for s in ancestors() if s.name == right), 15)


@pytest.mark.parametrize("mutant", MUTANTS.values(), ids=MUTANTS)
def test_it_differs_from_its_ancestor_and_dies_by_the_law_named_for_it(mutant):
    if mutant.right.library == "torch":
        pytest.importorskip("torch")
    if mutant.killer == "gradient":
        pytest.importorskip("flint")
    assert mutant.differs()
    assert kills(LAWS[mutant.killer], mutant, inputs(mutant.killer, mutant.right.name))
    assert mutant.role == mutant.right.role and callable(mutant.ancestor) and mutant.fn is not mutant.ancestor


def test_every_kind_of_fault_has_a_mutant_or_a_reason():
    planted = {m.fault for m in MUTANTS.values()} - {""}
    assert not planted & set(NOT_PLANTED) and all(NOT_PLANTED.values())
    assert Counter(fault[0] for fault in (*planted, *NOT_PLANTED)) == KINDS


def test_every_law_and_every_role_has_mutants():
    assert {m.killer for m in MUTANTS.values()} == set(LAWS)
    assert {m.role for m in MUTANTS.values()} == {"merge", "merge_many", "block", "partial", "decode", "attention"}
    assert len(MUTANTS) >= LEAST and all(name == m.name for name, m in MUTANTS.items())


def test_ancestors_are_right_subjects_each_once():
    names = [s.name for s in ancestors()]
    assert len(names) == len(set(names)) and not set(names) & set(MUTANTS)
    assert ancestors([MUTANTS["lse added to lse"]]) == [MUTANTS["lse added to lse"].right]


@pytest.mark.parametrize("name", ["lse written before it is read", "q overwritten after use", "no delta",
                                  "results in one workspace", "strides ignored"])
def test_an_ancestor_does_not_differ_from_itself(name):
    mutant = MUTANTS[name]
    was, again = (answers(mutant.right, mutant.place, mutant.apart) for _ in range(2))
    assert len(was) == len(again) and all(map(np.array_equal, was, again))


def test_what_a_call_raises_is_an_answer():
    mutant = MUTANTS["lse added to lse"]
    assert answers(mutant.right, "fn", mutant.apart[:2]) == [answers(mutant.right, "fn", mutant.apart[:2])[0]]
    assert answers(mutant.right, "fn", mutant.apart[:2])[0].startswith("raised TypeError")
