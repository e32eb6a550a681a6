"""Exercise 05: the answer is right, and what readers are likely to write first is refuted."""

import numpy as np
import pytest

from fdmath.lesson import edited
from fdmath.verify.answers import lesson_05
from fdmath.verify.exercises import exercise, not_tried

WRONG = {
    "the last part lost": ("o = np.concatenate([o, np.zeros_like(o[:1])])",
                           "o = np.concatenate([o[:-1], np.zeros_like(o[:2])])"),
    "padded with a key of score 0": ("np.full_like(lse[:1], -np.inf)", "np.zeros_like(lse[:1])"),
    "the first part twice": ("merge(o[0::2], lse[0::2], o[1::2], lse[1::2])",
                             "merge(o[0::2], lse[0::2], o[0::2], lse[0::2])"),
}


def chain(merge, o, lse):
    total = o[0], lse[0]
    for part in zip(o[1:], lse[1:], strict=True):
        total = merge(*total, *part)
    return total


def at_once(merge, o, lse):
    top = lse.max(0)
    weight = np.exp(lse - np.where(top == -np.inf, 0, top))
    total = weight.sum(0)
    o = (weight[..., None] * o).sum(0) / np.where(total == 0, 1, total)[..., None]
    return o, top + np.log(np.where(total == 0, 1, total))


def said(capsys, fn):
    exercise("05", fn, cases=10)
    return capsys.readouterr().out


def test_the_answer_is_right(capsys):
    assert said(capsys, lesson_05.answer).startswith("Exercise 05: right, all ")


@pytest.mark.parametrize("old, new", WRONG.values(), ids=WRONG)
def test_a_wrong_answer_is_refuted(capsys, old, new):
    out = said(capsys, edited(lesson_05.answer, old, new))
    assert out.startswith("Exercise 05: not yet, ") and "got " in out and "raised" not in out


@pytest.mark.parametrize("fn, words", [(chain, "; a tree takes 3, one a level"), (at_once, "merge was called 0 times")])
def test_another_order_is_refuted_by_the_calls_that_it_makes(capsys, fn, words):
    out = said(capsys, fn)
    assert out.startswith("Exercise 05: not yet, ") and words in out


def test_seven_parts_are_the_mean_of_their_values():
    o, lse = np.arange(7.0).reshape(7, 1, 1), np.zeros((7, 1))
    merged, total = lesson_05.answer(lesson_05.pair_merge, o, lse)
    slip = 8 * 2.0**-53 * 3  # three levels of a few float64 roundings each of numbers up to 6, on a mean of 3
    assert np.all(np.abs(merged - 3) <= 2 * slip) and np.all(np.abs(total - np.log(7)) <= slip)


def test_the_stub_is_not_tried():
    assert not_tried(lesson_05.my_tree, lesson_05.sample()) == "not tried yet"
