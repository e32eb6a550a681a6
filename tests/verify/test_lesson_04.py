"""The exercise of notebook 04: the answer is right, the printed ⊕ and the usual slips are refuted by T5."""

import numpy as np
import pytest

from fdmath.algebra.printed import merge_as_printed_A_3_2_1
from fdmath.verify import verify
from fdmath.verify.answers import lesson_04
from fdmath.verify.exercises import not_tried

CASES = 10


def printed_with_guards(o1, lse1, o2, lse2):
    """The printed weights e^(S_i − S) with every guard of the answer: what is left is what the pair forgets."""
    top = np.maximum(lse1, lse2)
    level = np.where(top == -np.inf, 0, top)
    lse = level + np.log1p(np.exp(np.minimum(lse1, lse2) - level))
    w1, w2 = np.exp(lse1 - lse)[:, None], np.exp(lse2 - lse)[:, None]
    o = np.where(w1 > 0, w1 * o1, 0) + np.where(w2 > 0, w2 * o2, 0)
    return o, np.where(top == -np.inf, top, lse)


def without_guards(o1, lse1, o2, lse2):
    shrink = np.exp(lse2 - lse1)
    return o1 + (shrink / (1 + shrink))[:, None] * (o2 - o1), lse1 + np.log1p(shrink)


def weight_of_the_near_side(o1, lse1, o2, lse2):
    o, lse = lesson_04.answer(o1, lse1, o2, lse2)
    return np.where(np.isneginf(lse)[:, None], 0, o1 + o2 - o), lse


def verdicts(fn, laws):
    return {law: cell.verdict for (law, _), cell in verify(lesson_04.subject(fn), laws, CASES).cells.items()}


def test_the_answer_is_right():
    report = verify(lesson_04.subject(lesson_04.answer), cases=CASES)
    assert report.exit_code == 0, report.failures()


def test_the_printed_merge_is_refuted_even_where_nothing_is_empty():
    laws = ["v is 1", "empty", "commutativity"]
    assert verdicts(merge_as_printed_A_3_2_1, laws) == {"v is 1": "fail", "empty": "fail", "commutativity": "pass"}
    assert verdicts(printed_with_guards, laws) == {"v is 1": "fail", "empty": "pass", "commutativity": "pass"}


@pytest.mark.parametrize("wrong, law", [(without_guards, "empty"), (weight_of_the_near_side, "anchor")])
def test_a_usual_slip_is_refuted(wrong, law):
    assert verdicts(wrong, [law]) == {law: "fail"}


def test_the_stub_is_not_tried():
    assert not_tried(lesson_04.my_pair_merge, lesson_04.sample()) == "not tried yet"
