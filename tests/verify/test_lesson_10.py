"""The code exercise of notebook 10: the stub is not tried, the answer is right, likely slips are refuted."""

import numpy as np
import pytest

from fdmath.algebra.rounding import unit_roundoff
from fdmath.attention.reference import attention_gradient
from fdmath.lesson import edited
from fdmath.verify import verify
from fdmath.verify.answers import lesson_10
from fdmath.verify.exercises import exercise, not_tried

SLIPS = {
    "the gradient through lse lost": ("- dlse", "- 0 * dlse"),
    "its sign": ("- dlse", "+ dlse"),
    "no delta": ("do @ v.T - delta[..., None]", "do @ v.T"),
    "one query head only": ("np.sum(np.swapaxes(ds, -1, -2) @ q, axis=0)", "(np.swapaxes(ds, -1, -2) @ q)[-1]"),
    "the mean of the group": ("np.sum(np.swapaxes(p, -1, -2) @ do, axis=0)",
                              "np.mean(np.swapaxes(p, -1, -2) @ do, axis=0)"),
    "−∞ from −∞": ("np.where(lse == -np.inf, np.inf, lse)", "lse"),
    "the mask forgotten": ("np.where(visible, q @ k.T, -np.inf)", "q @ k.T"),
    "lse in base 2": ("np.exp(s", "np.exp2(s"),
    "zeros": ("return dq, dk, dv", "return 0 * dq, 0 * dk, 0 * dv"),
}


def test_the_stub_is_not_tried():
    assert not_tried(lesson_10.my_backward, lesson_10.sample()) == "not tried yet"


def test_the_answer_is_right(capsys):
    pytest.importorskip("torch")
    exercise("10", lesson_10.answer, cases=8)
    assert capsys.readouterr().out.startswith("Exercise 10: right, all ")


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_a_slip_breaks_the_law_of_gradients(slip):
    pytest.importorskip("torch")
    report = verify(lesson_10.subject(edited(lesson_10.answer, *slip)), ["gradient"], cases=20)
    cell = report.cells["gradient", "answer"]
    assert cell.verdict == "fail" and "directional derivative" in cell.counterexample


def test_the_answer_is_that_of_the_definition_on_one_group():
    rng = np.random.default_rng(0)
    q, k, v = rng.standard_normal((3, 4, 2)), rng.standard_normal((1, 2, 2)), rng.standard_normal((1, 2, 3))
    do, dlse = rng.standard_normal((3, 4, 3)), rng.standard_normal((3, 4))
    visible = np.broadcast_to(np.tri(4, 2, -2, dtype=bool), (3, 4, 2))  # the first two rows see nothing
    s = np.where(visible, q @ k[0].T, -np.inf)
    with np.errstate(divide="ignore"):
        lse = np.log(np.sum(np.exp(s), axis=-1))
    p = np.exp(s - np.where(lse == -np.inf, 0, lse)[..., None])
    got = lesson_10.answer(do, dlse, q, k[0], v[0], p @ v[0], lse, visible)
    for x, right in zip(got, attention_gradient(do, dlse, q, k, v, scale=1.0, causal=True), strict=True):
        # 12 rows of 2 keys: under a hundred float64 roundings of terms that add up to less than a thousand
        assert np.all(np.abs(x - right.reshape(x.shape)) <= 100 * 1000 * unit_roundoff("float64"))
    assert np.all(got[0][:, :2] == 0)
