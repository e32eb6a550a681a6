"""The code exercise of notebook 15: the stub is not tried, the answer is right, likely slips are refuted."""

import numpy as np
import pytest

from fdmath.verify.answers import lesson_15
from fdmath.verify.exercises import exercise


def guarded(o1, lse1, o2, lse2, exp, log):
    """(o, lse) of both sides in new arrays."""
    level = np.maximum(lse1, lse2)
    level = np.where(level == -np.inf, 0, level)
    w1, w2 = exp(lse1 - level)[:, None], exp(lse2 - level)[:, None]
    total = w1 + w2
    o = np.where(w1 > 0, w1 * o1, 0) + np.where(w2 > 0, w2 * o2, 0)
    return o / np.where(total > 0, total, 1), level + log(total[:, 0])


def in_new_arrays(o1, lse1, o2, lse2):
    return guarded(o1, lse1, o2, lse2, np.exp2, np.log2)


def returning_nothing(o1, lse1, o2, lse2):
    o1[:], lse1[:] = in_new_arrays(o1, lse1, o2, lse2)


def in_base_e(o1, lse1, o2, lse2):
    o1[:], lse1[:] = guarded(o1, lse1, o2, lse2, np.exp, np.log)
    return o1, lse1


def lse_first(o1, lse1, o2, lse2):
    _, lse1[:] = in_new_arrays(o1, lse1, o2, lse2)
    o1[:], _ = in_new_arrays(o1, lse1, o2, lse2)
    return o1, lse1


def right_side_scaled(o1, lse1, o2, lse2):
    o1[:], lse1[:] = in_new_arrays(o1, lse1, o2, lse2)
    o2 *= 0.5
    return o1, lse1


def garbage_kept(o1, lse1, o2, lse2):
    o, lse = in_new_arrays(o1, lse1, o2, lse2)
    o1[:], lse1[:] = np.where((lse == -np.inf)[:, None], o2, o), lse
    return o1, lse1


def test_the_stub_is_not_tried(capsys):
    exercise("15", lesson_15.my_merge)
    assert capsys.readouterr().out == "Exercise 15: not tried yet\n"


def test_the_answer_is_right(capsys):
    exercise("15", lesson_15.answer, cases=10)
    assert capsys.readouterr().out.startswith("Exercise 15: right, all ")


def test_a_result_written_in_place_need_not_be_returned(capsys):
    exercise("15", returning_nothing, cases=10)
    assert capsys.readouterr().out.startswith("Exercise 15: right, all ")


def test_a_result_in_other_arrays_is_named(capsys):
    exercise("15", in_new_arrays, cases=10)
    assert "o1 and lse1 must be written over; they are as they were" in capsys.readouterr().out


def test_the_answer_writes_the_arrays_that_it_is_given():
    o1, lse1, o2, lse2 = lesson_15.sample()
    got = lesson_15.answer(o1, lse1, o2, lse2)
    assert got[0] is o1 and got[1] is lse1
    assert o1.tolist() == [[1.5, 1.5]] and lse1.tolist() == [2.0]  # two sides of weight 2


@pytest.mark.parametrize("wrong", [in_new_arrays, in_base_e, lse_first, right_side_scaled, garbage_kept])
def test_likely_slips_are_refuted_with_a_counterexample(capsys, wrong):
    exercise("15", wrong, cases=10)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 15: not yet, ") and "LSEState(np.array(" in out


def test_a_right_side_written_to_is_named(capsys):
    exercise("15", right_side_scaled, cases=10)
    assert "o2 must stay as it is; it was" in capsys.readouterr().out
