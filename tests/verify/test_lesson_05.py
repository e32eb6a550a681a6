"""Exercise 05: the answer is right, and what readers are likely to write first is refuted by a law."""

import numpy as np
import pytest

from fdmath.lesson import edited
from fdmath.verify.answers import lesson_05
from fdmath.verify.exercises import exercise

CLEANED = "np.where((lse == -np.inf)[..., None], 0, o)"
WRONG = {
    "the weights forgotten": ("(first * o[0::2] + second * o[1::2]) / np.where(total == 0, 1, total)",
                              "(o[0::2] + o[1::2]) / 2", "anchor"),
    "no guard for two empty sides": ("np.where(top == -np.inf, 0, top)", "top", "anchor"),
    "garbage kept": (CLEANED, "o", "anchor"),
    "the last part lost": ("o = np.concatenate([o, np.zeros_like(o[:1])])",
                           "o = np.concatenate([o[:-1], np.zeros_like(o[:2])])", "anchor"),
}


def said(capsys, fn):
    exercise("05", fn, cases=10)
    return capsys.readouterr().out


def test_the_answer_is_right(capsys):
    assert said(capsys, lesson_05.answer).startswith("Exercise 05: right, all ")


@pytest.mark.parametrize("old, new, law", WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_refuted(capsys, old, new, law):
    out = said(capsys, edited(lesson_05.answer, old, new))
    assert out.startswith("Exercise 05: not yet, ") and f"answer: {law}: fail" in out


def test_seven_parts_are_the_mean_of_their_values():
    o, lse = np.arange(7.0).reshape(7, 1, 1), np.zeros((7, 1))
    merged, total = lesson_05.answer(o, lse)
    slip = 8 * 2.0**-53 * 3  # three levels of a few float64 roundings each of numbers up to 6, on a mean of 3
    assert np.all(np.abs(merged - 3) <= 2 * slip) and np.all(np.abs(total - np.log(7)) <= slip)
