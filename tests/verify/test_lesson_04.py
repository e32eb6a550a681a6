"""The exercise of notebook 04: every form within T3 is right, the printed ⊕ and the usual slips are refuted."""

import numpy as np
import pytest

from fdmath.algebra import rounding
from fdmath.algebra.merge import flat
from fdmath.algebra.printed import merge_as_printed_A_3_2_1
from fdmath.algebra.state import LSEState
from fdmath.verify import verify
from fdmath.verify.answers import lesson_04
from fdmath.verify.exercises import exercise, not_tried

CASES = 10


def divided(o1, lse1, o2, lse2):
    """Weights against the larger lse, divided by their own sum."""
    top = np.maximum(lse1, lse2)
    w1, w2 = np.exp(lse1 - top)[:, None], np.exp(lse2 - top)[:, None]
    return (w1 * o1 + w2 * o2) / (w1 + w2), top + np.log((w1 + w2)[:, 0])


def divided_with_log1p(o1, lse1, o2, lse2):
    o, _ = divided(o1, lse1, o2, lse2)
    return o, np.maximum(lse1, lse2) + np.log1p(np.exp(-np.abs(lse1 - lse2)))


def always_from_the_left(o1, lse1, o2, lse2):
    shrink = np.exp(lse2 - lse1)
    return o1 + (shrink / (1 + shrink))[:, None] * (o2 - o1), lse1 + np.log1p(shrink)


def weight_of_the_near_side(o1, lse1, o2, lse2):
    o, lse = lesson_04.answer(o1, lse1, o2, lse2)
    return o1 + o2 - o, lse


def said(capsys, fn):
    exercise("04", fn, cases=CASES)
    return capsys.readouterr().out


@pytest.mark.parametrize("right", [lesson_04.answer, divided, divided_with_log1p])
def test_a_form_whose_weights_add_up_to_1_is_right(capsys, right):
    assert said(capsys, right).startswith("Exercise 04: right, all ")


def test_of_the_printed_merge_the_precision_is_shown_first(capsys):
    out = said(capsys, merge_as_printed_A_3_2_1)
    assert out.startswith("Exercise 04: not yet, ")
    assert "merge_as_printed_A_3_2_1: v is 1: fail" in out and "nan" not in out


@pytest.mark.parametrize("wrong, law", [(always_from_the_left, "anchor"), (weight_of_the_near_side, "anchor")])
def test_a_usual_slip_is_refuted(wrong, law):
    report = verify(lesson_04.subject(wrong), [law], CASES)
    assert report.cells[law, wrong.__name__].verdict == "fail"


def test_the_bound_of_the_divided_form_is_no_less_than_that_of_the_convex_form():
    rng, fmt = np.random.default_rng(0), rounding.format_of("float32")
    a, b = (LSEState(rng.standard_normal((500, 2)), 1000 * rng.standard_normal(500)) for _ in range(2))
    b = LSEState(b.o, np.where(np.arange(500) % 2, a.lse + rng.standard_normal(500), b.lse))
    convex, wide = rounding.merge_budget(a, b, fmt), rounding.fold_budget([a, b], flat, fmt)
    assert all(np.all(x <= y) for x, y in zip(convex, wide, strict=True))


def test_the_stub_is_not_tried():
    assert not_tried(lesson_04.my_pair_merge, lesson_04.sample()) == "not tried yet"
