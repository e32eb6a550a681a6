"""The code exercise of notebook 13: the stub is not tried, the answer is right, likely slips are refuted."""

import numpy as np
import pytest

from fdmath.lesson import edited
from fdmath.verify import verify
from fdmath.verify.answers import lesson_13
from fdmath.verify.exercises import exercise

SLIPS = {
    "the first sequence's start for all": ("slice(starts[b], max(starts[b],", "slice(starts[0], max(starts[0],"),
    "padding is read": ("slice(starts[b], ", "slice(0, "),
    "the first query at the first key": ("i + cached + 1", "i + 1"),
    "its own key is not seen": ("i + cached + 1", "i + cached"),
    "heads taken in turn": ("scores = k[b, h // group", "scores = k[b, h % k.shape[1]"),
    "no scale": ("q[b, h, i] * q.shape[-1] ** -0.5", "q[b, h, i]"),
}


def test_the_stub_is_not_tried(capsys):
    exercise("13", lesson_13.my_padded_attention)
    assert capsys.readouterr().out == "Exercise 13: not tried yet\n"


def test_the_answer_is_right(capsys):
    exercise("13", lesson_13.answer, cases=5)
    assert "Exercise 13: right, all" in capsys.readouterr().out


@pytest.mark.parametrize("name", SLIPS)
def test_a_slip_is_refuted(name):
    assert verify(lesson_13.subject(edited(lesson_13.answer, *SLIPS[name])), ["anchor"], cases=20).exit_code == 1


def test_rows_of_padding_must_be_zero():
    def ones(q, k, v, starts):
        return np.ones((*q.shape[:-1], v.shape[-1]))

    q = np.zeros((2, 1, 4, 2), np.float32)
    with pytest.raises(ValueError, match="must be 0"):
        lesson_13.in_a_padded_batch(ones, q, q, q, True)
    assert np.all(lesson_13.in_a_padded_batch(ones, q[:, :, 1:], q, q, True) == 1)
