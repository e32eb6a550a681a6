"""Every law kills a wrong subject that is wrong in the way that the law is about, and lets fdmath's own pass."""

from dataclasses import replace

import numpy as np
import pytest

from fdmath.algebra.state import LSEState
from fdmath.attention.reference import attention
from fdmath.verify import LAWS, Subject, verify
from fdmath.verify.cases import CallCase
from fdmath.verify.judge import ask
from fdmath.verify.mutants import MUTANTS
from fdmath.verify.reference import Certified, same
from fdmath.verify.subjects import own_subjects

KILLERS = {mutant.killer: mutant for mutant in reversed(MUTANTS.values())}
"""The first mutant that names each law as its killer."""


def test_every_law_kills_a_mutant():
    assert set(KILLERS) == set(LAWS)


@pytest.mark.parametrize("law", LAWS)
def test_the_law_can_fail(law):
    assert ask(LAWS[law], KILLERS[law].subject(), 200, shrink=False).verdict == "fail"


def test_a_nan_that_reaches_another_head_is_refused():
    cell = ask(LAWS["seen NaN"], MUTANTS["a NaN shared by all heads"].subject(), 50)
    assert "got nan, expected 0.0" in cell.counterexample


@pytest.mark.parametrize("bad", ["k", "v"])
def test_a_nan_reaches_the_rows_of_its_own_head_that_see_it(bad):
    case = CallCase(*(np.ones(shape, np.float32) for shape in ((2, 4, 2, 2), (2, 2, 2, 2), (2, 2, 2, 1))), causal=True)
    (spoiled, seen, apart) = list(case.spoiled(Subject("any", "attention", attention)))[2 if bad == "k" else 3]
    assert np.argwhere(np.isnan(getattr(spoiled, bad)))[:, :3].tolist() == [[0, 0, 1]] * getattr(spoiled, bad).shape[-1]
    assert np.argwhere(seen).tolist() == [[0, 0, 1], [0, 1, 1]]  # the last query alone sees the last key
    assert not apart[0, :2].any() and apart[0, 2:].all() and apart[1].all()


def test_the_last_key_in_use_is_spoiled_where_lengths_differ():
    arrays = (np.ones(shape, np.float32) for shape in ((2, 2, 1, 2), (2, 1, 5, 2), (2, 1, 5, 1)))
    case = CallCase(*arrays, seq_lens=np.array([3, 5]))
    spoiled = list(case.spoiled(Subject("any", "decode", attention)))
    at = {tuple(np.argwhere(np.isnan(one.v))[0][:3].tolist()) for one, _, _ in spoiled if np.isnan(one.v).any()}
    assert at == {(0, 0, 0), (0, 0, 2)}
    assert all(seen[0].all() and not seen[1].any() and np.array_equal(apart, ~seen) for _, seen, apart in spoiled)


def test_an_error_is_held_to_its_budget_and_not_to_a_multiple():
    one = LSEState(np.zeros((1, 1)), np.zeros(1))
    for off in (LSEState(np.ones((1, 1)), np.zeros(1)), LSEState(np.zeros((1, 1)), np.ones(1))):
        enough, short = ((np.full((1, 1), b), np.full(1, b)) for b in (1.0, np.nextafter(1.0, 0.0)))
        assert same(off, one, enough).verdict == "pass"
        assert same(off, one, short).verdict == "fail"


def test_a_merge_off_by_twice_its_budget_is_refused(monkeypatch):
    """fdmath's own ⊕ with the bound halved to below its true error would be refused: budgets are not padded."""
    subject = next(s for s in own_subjects(["numpy"]) if s.name == "merge o/lse, numpy")
    judged = []
    honest = Certified.judge
    monkeypatch.setattr(Certified, "judge", lambda self, state, budget: honest(self, state, replace(
        budget, o=budget.o / 4, lse=budget.lse / 4)))
    judged.append(verify(subject, ["anchor"], cases=400).exit_code)
    assert judged == [1]
