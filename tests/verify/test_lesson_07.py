"""The code exercise of notebook 07: the stub is not tried, the answer is right, likely slips are refuted."""

import numpy as np
import pytest

from fdmath.verify.answers import lesson_07
from fdmath.verify.cases import CallCase
from fdmath.verify.exercises import exercise


def with_the_last_keys_lost(q, k, v, seq_lens, num_splits):
    """⌊n/P⌋ keys a part."""
    return lesson_07.answer(q, k, v, seq_lens // num_splits * num_splits, num_splits)


def with_slots_beyond_the_length(q, k, v, seq_lens, num_splits):
    return lesson_07.answer(q, k, v, np.full_like(seq_lens, k.shape[2]), num_splits)


def with_heads_taken_in_turn(q, k, v, seq_lens, num_splits):
    """Query head h reads KV head h mod Hkv."""
    turn = np.arange(q.shape[1]) % k.shape[1]
    return lesson_07.answer(q, k[:, turn], v[:, turn], seq_lens, num_splits)


def with_weights_times_nan(q, k, v, seq_lens, num_splits):
    """All slots read, those beyond the length with the weight 0."""
    o, lse = lesson_07.answer(q, k, v, seq_lens, num_splits)
    return o + np.sum(0 * v, axis=(1, 2), keepdims=True), lse


def without_scale(q, k, v, seq_lens, num_splits):
    return lesson_07.answer(q * q.dtype.type(q.shape[-1] ** 0.5), k, v, seq_lens, num_splits)


def test_the_stub_is_not_tried(capsys):
    exercise("07", lesson_07.my_decode)
    assert capsys.readouterr().out == "Exercise 07: not tried yet\n"


def test_the_answer_is_right(capsys):
    exercise("07", lesson_07.answer, cases=5)
    assert "Exercise 07: right, all" in capsys.readouterr().out


def test_a_slip_is_refuted_with_a_counterexample(capsys):
    exercise("07", with_the_last_keys_lost, cases=5)
    out = capsys.readouterr().out
    assert "Exercise 07: not yet" in out and ": fail\n  law: " in out and "seq_lens = np." in out


def one_step():
    """Two sequences of 5 and 3 keys in 7 slots, NaN in those beyond; 4 query heads over 2 KV heads; 2 parts."""
    rng = np.random.default_rng(0)
    q, k, v = (rng.standard_normal(shape).astype(np.float32) for shape in ((2, 4, 1, 4), (2, 2, 7, 4), (2, 2, 7, 3)))
    for b, used in enumerate((5, 3)):
        k[b, :, used:] = v[b, :, used:] = np.nan
    return CallCase(q, k, v, seq_lens=np.array([5, 3]), num_splits=2)


@pytest.mark.parametrize("fn, verdict", [
    (lesson_07.answer, "pass"), (with_the_last_keys_lost, "fail"), (with_slots_beyond_the_length, "fail"),
    (with_heads_taken_in_turn, "fail"), (with_weights_times_nan, "fail"), (without_scale, "fail"),
])
def test_each_slip_shows_on_one_small_step(fn, verdict):
    case, subject = one_step(), lesson_07.subject(fn)
    assert case.certified(subject).judge(case.run(subject), case.budget(subject)).verdict == verdict
