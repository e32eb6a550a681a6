"""The code exercise of notebook 06: the stub is not tried, the answer is right, likely slips are refuted."""

import numpy as np
import pytest

from fdmath.verify.answers import lesson_06
from fdmath.verify.exercises import exercise


def without_guard(o1, lse1, o2, lse2):
    level = np.maximum(lse1, lse2)
    w1, w2 = np.exp(lse1 - level)[:, None], np.exp(lse2 - level)[:, None]
    return (w1 * o1 + w2 * o2) / (w1 + w2), level + np.log(w1 + w2)[:, 0]


def read_but_not_written(o1, lse1, o2, lse2):
    o, lse = lesson_06.answer(o1, lse1, o2, lse2)
    return o, np.where(lse == np.inf, 0, lse)


def returned_in_our_words(o1, lse1, o2, lse2):
    o, lse = lesson_06.answer(o1, lse1, o2, lse2)
    return o, np.where(lse == np.inf, -np.inf, lse)


def garbage_kept(o1, lse1, o2, lse2):
    o, lse = lesson_06.answer(o1, lse1, o2, lse2)
    return np.where((lse == np.inf)[:, None], o2, o), lse


def test_the_stub_is_not_tried(capsys):
    exercise("06", lesson_06.my_merge)
    assert capsys.readouterr().out == "Exercise 06: not tried yet\n"


def test_the_answer_is_right(capsys):
    exercise("06", lesson_06.answer, cases=10)
    assert capsys.readouterr().out.startswith("Exercise 06: right, all ")


@pytest.mark.parametrize("wrong", [without_guard, read_but_not_written, returned_in_our_words, garbage_kept])
def test_likely_slips_are_refuted_with_a_counterexample(capsys, wrong):
    exercise("06", wrong, cases=10)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 06: not yet, ") and "part 1: LSEState(np.array(" in out
