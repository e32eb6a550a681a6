"""The code exercise of notebook 00: the stub is not tried, the answer is right, likely slips are refuted."""

import numpy as np
import pytest

from fdmath.verify.answers import lesson_00
from fdmath.verify.exercises import exercise


def without_guard(scores, v):
    m = np.max(scores, axis=-1, initial=-np.inf)
    weights = np.exp(scores - m[:, None])
    l = np.sum(weights, axis=-1)
    return weights @ v / l[:, None], m + np.log(l)


def with_an_empty_level_of_zero(scores, v):
    o, lse = lesson_00.answer(scores, v)
    return o, np.where(lse == -np.inf, 0, lse)


def with_weights_times_nan(scores, v):
    m = np.max(scores, axis=-1, initial=-np.inf)
    weights = np.exp(scores - np.where(m == -np.inf, 0, m)[:, None])
    l = np.sum(weights, axis=-1)
    return weights @ v / np.where(l == 0, 1, l)[:, None], m + np.log(np.where(l == 0, 1, l))


def test_the_stub_is_not_tried(capsys):
    exercise("00", lesson_00.my_block)
    assert capsys.readouterr().out == "Exercise 00: not tried yet\n"


def test_the_answer_is_right(capsys):
    exercise("00", lesson_00.answer, cases=20)
    assert "Exercise 00: right, all" in capsys.readouterr().out


@pytest.mark.parametrize("slip, law", [
    (without_guard, "empty"), (with_an_empty_level_of_zero, "empty"), (with_weights_times_nan, "poison"),
])
def test_a_slip_is_refuted_with_a_counterexample(slip, law, capsys):
    exercise("00", slip, cases=20)
    out = capsys.readouterr().out
    assert "Exercise 00: not yet" in out
    assert f": {law}: fail" in out
    assert "scores = np." in out
