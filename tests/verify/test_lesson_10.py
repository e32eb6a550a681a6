"""The code exercise of notebook 10: the stub is not tried, the answer is right, likely slips are refuted."""

import re

import numpy as np
import pytest

from fdmath.algebra.rounding import unit_roundoff
from fdmath.attention.reference import attention_gradient
from fdmath.lesson import edited
from fdmath.verify import verify
from fdmath.verify.answers import lesson_10
from fdmath.verify.exercises import exercise, not_tried

# name → (what stands there, what the slip makes of it, a law that it breaks)
SLIPS = {
    "the gradient through lse lost": ("- dlse", "- 0 * dlse", "gradient of lse"),
    "its sign": ("- dlse", "+ dlse", "delta"),
    "no delta": ("do @ v.T - delta[..., None]", "do @ v.T", "gradient of o"),
    "one query head only": ("np.sum(np.swapaxes(ds, -1, -2) @ q, axis=0)", "(np.swapaxes(ds, -1, -2) @ q)[-1]",
                            "sum over a group"),
    "the mean of the group": ("np.sum(np.swapaxes(p, -1, -2) @ do, axis=0)",
                              "np.mean(np.swapaxes(p, -1, -2) @ do, axis=0)", "sum over a group"),
    "−∞ from −∞": ("np.where(lse == -np.inf, np.inf, lse)", "lse", "gradient of nothing"),
    "the mask forgotten": ("np.where(visible, q @ k.T, -np.inf)", "q @ k.T", "gradient causality"),
    "lse in base 2": ("np.exp(s", "np.exp2(s", "weights sum to 1"),
    "zeros": ("return dq, dk, dv", "return 0 * dq, 0 * dk, 0 * dv", "gradient of o"),
}


def test_the_stub_is_not_tried():
    assert not_tried(lesson_10.my_backward, lesson_10.sample()) == "not tried yet"


def test_the_answer_is_right(capsys):
    exercise("10", lesson_10.answer, cases=8)
    assert capsys.readouterr().out == "Exercise 10: right, all 7 laws hold\n"


@pytest.mark.parametrize("old, new, law", SLIPS.values(), ids=SLIPS)
def test_a_slip_breaks_the_law_that_is_about_it(old, new, law):
    report = verify(lesson_10.subject(edited(lesson_10.answer, old, new)), [law], cases=20)
    assert report.cells[law, "answer"].verdict == "fail"


def test_a_message_speaks_of_the_reader_s_own_dq():
    lost = edited(lesson_10.answer, "- dlse", "- 0 * dlse")
    cell = verify(lesson_10.subject(lost), ["delta"], cases=20).cells["delta", "answer"]
    dlse = re.search(r"dlse = \[\[\[([-+.\de]+)\]\]\]", cell.counterexample).group(1)
    assert f"got 0.0, expected {float(dlse)}," in cell.counterexample


def test_a_row_without_a_key_is_asked_about_whatever_the_draws(capsys):
    old, new, law = SLIPS["−∞ from −∞"]
    unguarded = edited(lesson_10.answer, old, new)
    exercise("10", unguarded)
    out = capsys.readouterr().out
    assert out.startswith("Exercise 10: not yet, ") and "got nan" in out
    for cases in (5, 60):
        assert verify(lesson_10.subject(unguarded), [law], cases=cases).cells[law, "answer"].verdict == "fail"


@pytest.mark.parametrize("change, words", [
    (lambda dq, dk, dv: dq, "must return three arrays, dq, dk, dv; got ndarray"),
    (lambda dq, dk, dv: (dk, dv), "must return three arrays, dq, dk, dv; got tuple of 2"),
    (lambda dq, dk, dv: (dq, dk.T, dv), "dk of one KV head must have the shape (2, 5); got (5, 2)"),
    (lambda dq, dk, dv: (dq, dk, dv.sum()), "dv of one KV head must have the shape (2, 3); got ()"),
])  # fmt: skip
def test_a_gradient_of_another_shape_is_named(change, words):
    one = lambda *given: change(*lesson_10.answer(*given))  # noqa: E731
    q, k, v, do = (np.ones((1, 1, 2, width)) for width in (5, 5, 3, 3))
    with pytest.raises(ValueError, match=re.escape(words)):
        lesson_10._by_heads(one, do, do[..., 0], q, k, v, do, do[..., 0], False)


@pytest.mark.parametrize("start", [-1e6, -1e30, -1e38])
def test_a_hidden_score_is_no_low_number(start):
    masked = edited(lesson_10.answer, "np.where(visible, q @ k.T, -np.inf)", f"np.where(visible, q @ k.T, {start})")
    cell = verify(lesson_10.subject(masked), ["gradient causality"], cases=5).cells["gradient causality", "answer"]
    words = "dk of a key that is not visible must be 0 beside a key of score -1.7e+38, which is lse; got "
    assert cell.verdict == "fail" and words in cell.counterexample


@pytest.mark.parametrize("index", range(8))
def test_the_arrays_that_are_given_cannot_be_written_to(index):
    def spoils(*given):
        found = lesson_10.answer(*given)
        given[index][...] = 0
        return found

    q, k, v, do = (np.ones((1, 1, 2, width)) for width in (5, 5, 3, 3))
    with pytest.raises(ValueError, match="read-only"):
        lesson_10._by_heads(spoils, do, do[..., 0], q, k, v, do, do[..., 0], False)


def test_gradients_may_be_lists(capsys):
    exercise("10", lambda *given: [x.tolist() for x in lesson_10.answer(*given)], cases=5)
    assert capsys.readouterr().out == "Exercise 10: right, all 7 laws hold\n"


@pytest.mark.parametrize("most", ["min(2, len(q))", "len(q) if len(q) < 3 else 0", "len(q) if len(k) < 17 else 0"])
def test_more_heads_and_keys_than_a_few_are_asked_about(most):
    dv = "np.swapaxes(p, -1, -2) @ do"
    few = edited(lesson_10.answer, dv, f"({dv})[:{most}]")
    cell = verify(lesson_10.subject(few), ["weights sum to 1"], cases=5).cells["weights sum to 1", "answer"]
    assert cell.verdict == "fail" and "Σ dv" in cell.counterexample


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
