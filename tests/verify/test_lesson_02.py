"""The exercise of notebook 02: the answer is right, and the wrong updates that readers write are refuted."""

import numpy as np
import pytest

from fdmath.verify import verify
from fdmath.verify.answers import lesson_02


def without_guards(m, l, acc, s, v):
    new = np.maximum(m, s)
    shrink, weight = np.exp(m - new), np.exp(s - new)
    return new, shrink * l + weight, shrink[:, None] * acc + weight[:, None] * v


def changed(**pieces):
    """The answer with its factor or its level replaced."""
    def update(m, l, acc, s, v):
        new = pieces.get("level", np.maximum)(m, s)
        finite = np.where(new == -np.inf, 0, new)
        shrink, weight = pieces.get("shrink", lambda m, new: np.exp(m - new))(m, finite), np.exp(s - finite)[:, None]
        hidden = pieces.get("hidden", lambda s, weight: s[:, None] == -np.inf)(s, weight)
        return new, shrink * l + weight[:, 0], shrink[:, None] * acc + np.where(hidden, 0, weight * v)

    return update


WRONG = {
    "without guards": without_guards,
    "never rescaled": changed(shrink=lambda m, new: np.ones_like(m)),
    "factor inverted": changed(shrink=lambda m, new: np.where(np.isinf(m), 0, np.exp(new - m))),
    "each key's own level": changed(level=lambda m, s: np.where(s == -np.inf, m, s)),
    "level never below 0": changed(level=lambda m, s: np.maximum(np.maximum(m, s), 0)),
}


def test_the_answer_is_right():
    for right in (lesson_02.answer, changed()):
        assert verify(lesson_02.subject(right), cases=5).exit_code == 0


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_update_is_refuted_by_an_input(wrong):
    report = verify(lesson_02.subject(WRONG[wrong]), ["anchor"], cases=10)
    assert report.exit_code == 1 and "scores = np.array(" in report.failures()


def test_every_key_is_visited_once_and_alone():
    seen = []

    def update(m, l, acc, s, v):
        seen.append((s.tolist(), v.tolist()))
        return m, l, acc

    lesson_02.subject(update).fn(np.float32([[1, 2], [3, 4]]), np.float32([[5], [6]]))
    assert seen == [([1, 3], [5]), ([2, 4], [6])]


def test_a_visible_nan_far_below_the_level_must_come_out():
    weightless = changed(hidden=lambda s, weight: weight == 0)  # the weight of a visible key may be 0 too
    report = verify(lesson_02.subject(weightless), ["seen NaN", "anchor", "poison"], cases=400)
    assert [cell.verdict for cell in report.cells.values()].count("fail") == 1
    assert report.cells["seen NaN", "update"].verdict == "fail"
