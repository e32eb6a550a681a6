"""The law that turns observations into a verdict, and what a claim and a check must be."""

import numpy as np
import pytest

from fdmath.claims import Claim, Observed, check, judge, verdict
from fdmath.claims.claim import CHECKS

ROW = {"id": "A99", "section": "9", "statement": "it is so", "conditions": "", "how": ["property"], "verdict": "holds"}


@pytest.mark.parametrize(("inside", "outside", "found"), [
    ([True], [], "holds"),
    ([True, True], [True], "holds"),
    ([True], [True, False], "conditional"),
    ([True, False], [], "refuted"),
    ([False], [True], "refuted"),
    ([True, False], [False], "refuted"),
    ([], [], "open"),
    ([], [True], "open"),
    ([], [False], "open"),
])
def test_the_law(inside, outside, found):
    assert verdict(Observed(inside=inside, outside=outside)) == found


def test_truths_of_numpy_are_taken():
    assert verdict(Observed(inside=np.array([True, True]), outside=[np.False_])) == "conditional"


@pytest.mark.parametrize("case", [float("nan"), 1, 0.0, None, "True", np.float32(1)])
def test_what_is_no_truth_value_is_refused(case):
    with pytest.raises(TypeError, match="truth values"):
        Observed(inside=[True, case])


def test_a_check_is_registered_once(monkeypatch):
    monkeypatch.setitem(CHECKS, "A99", test_the_law)
    with pytest.raises(ValueError, match="two checks"):
        check("A99")(test_truths_of_numpy_are_taken)


@pytest.mark.parametrize("change", [{"verdict": "true"}, {"how": []}, {"how": ["guessed"]}, {"figure": "1"}])
def test_an_unlawful_row_is_refused(change):
    with pytest.raises(ValueError, match="A99"):
        Claim.from_row(ROW | change)


def test_a_field_must_be_there():
    with pytest.raises(ValueError, match="statement"):
        Claim.from_row({name: x for name, x in ROW.items() if name != "statement"})


def test_a_check_that_raises_is_an_error():
    outcome = judge(Claim.from_row(ROW), lambda: 1 / 0)
    assert outcome.verdict == "error" and "ZeroDivisionError" in outcome.error and not outcome.agrees


def test_a_check_must_return_what_it_observed():
    assert "TypeError" in judge(Claim.from_row(ROW), lambda: True).error


def test_neither_check_nor_source_is_an_error():
    assert judge(Claim.from_row(ROW)).verdict == "error"
    cited = judge(Claim.from_row(ROW | {"how": ["cited"], "sources": ["a book"]}))
    assert cited.verdict == "cited" and cited.agrees and cited.figure == "cited, not checked"
    lost = judge(Claim.from_row(ROW | {"how": ["counted", "cited"], "sources": ["a book"]}))
    assert lost.verdict == "error" and not lost.agrees and "no check" in lost.error
