"""The code exercise of notebook 01: the stub is not tried, the answer is right, likely slips are refuted."""

import numpy as np
import pytest

from fdmath.verify import verify
from fdmath.verify.answers import lesson_01
from fdmath.verify.exercises import exercise


def averaged(scores, v, level):
    """(m, l, o) with weights e^(s − level), in the format that the arguments have."""
    m = np.max(scores, axis=-1, initial=-np.inf)
    weights = np.exp(scores - level(m)[:, None])
    l = np.sum(weights, axis=-1)
    seen = np.any(scores > -np.inf, axis=0)
    return m, l, weights @ np.where(seen[:, None], v, 0) / np.where(l == 0, 1, l)[:, None]


def never_shifted(scores, v):
    m, l, o = averaged(scores.astype(float), v.astype(float), np.zeros_like)
    return np.where(l == 0, m, 0), l, o


def without_guard(scores, v):
    return averaged(scores.astype(float), v.astype(float), lambda m: m)


def swapped(scores, v):
    m, l, o = lesson_01.answer(scores, v)
    return l, m, o


def swallowing_nan(scores, v):
    return lesson_01.answer(scores, np.nan_to_num(v))


def never_widened(scores, v):
    return averaged(scores, v, lambda m: np.where(m == -np.inf, 0, m).astype(m.dtype))


def in_sixteen_bits(scores, v):
    m, l, o = averaged(scores, v, lambda m: np.where(m == -np.inf, 0, m).astype(m.dtype))
    return m, l.astype(scores.dtype), o.astype(scores.dtype)


def test_the_stub_is_not_tried(capsys):
    exercise("01", lesson_01.my_average)
    assert capsys.readouterr().out == "Exercise 01: not tried yet\n"


def test_the_answer_is_right(capsys):
    exercise("01", lesson_01.answer, cases=20)
    assert "Exercise 01: right, all" in capsys.readouterr().out


@pytest.mark.parametrize("slip, shown", [
    (never_shifted, "scores = np.array([["), (without_guard, "-np.inf"), (in_sixteen_bits, "dtype='float16'"),
])
def test_a_slip_is_refuted_with_a_counterexample(slip, shown):
    report = verify(lesson_01.subject(slip), ["anchor"], cases=10)
    assert report.cells["anchor", slip.__name__].verdict == "fail"
    assert shown in report.failures()


def test_sums_in_sixteen_bits_are_refuted_by_a_few_keys(capsys):
    exercise("01", never_widened)
    out = capsys.readouterr().out
    assert "16'" in out and len(out.splitlines()) <= 9 and max(map(len, out.splitlines())) < 120


def test_swapped_statistics_are_shown(capsys):
    exercise("01", swapped, cases=10)
    assert "lse is m + log l; returned were m = [" in capsys.readouterr().out


def test_a_visible_nan_that_is_swallowed_is_refuted(capsys):
    exercise("01", swallowing_nan, cases=10)
    assert "swallowing_nan: seen NaN: fail" in capsys.readouterr().out
