"""The code exercise of notebook 11: the stub is not tried, the answer is right, likely slips are refuted."""

import numpy as np
import pytest

from fdmath.lesson import edited
from fdmath.verify import verify
from fdmath.verify.answers import lesson_11
from fdmath.verify.exercises import exercise, not_tried

SLIPS = {
    "products added as they are": ("np.exp(m - np.where(level == -np.inf, 0, level))", "np.ones_like(m)"),
    "each warp its own maximum": ("level = m.max(axis=0)", "level = m[0]"),
    "−∞ from −∞": ("np.where(level == -np.inf, 0, level)", "level"),
    "0 divided by 0": ("np.where(total == 0, 1, total)", "total"),
    "sums not moved": ("np.sum(factor * l, axis=0)", "np.sum(l, axis=0)"),
    "the last warp's products": ("np.sum(factor * acc, axis=0)", "(factor * acc)[-1]"),
    "the mean of the outputs": ("np.sum(factor * acc, axis=0) / np.where(total == 0, 1, total)",
                                "np.mean(acc / np.where(l == 0, 1, l), axis=0)"),
    "lse without the level": ("level + np.log(total)", "np.log(total)"),
    "zeros": ("return np.concatenate(o)", "return 0 * np.concatenate(o)"),
}
COUNTED = {
    "no barrier": ("    shared.barrier()\n", "", "max of warp 0 is read without a barrier"),
    "all rows read by all": ("shared.read(name, u, mine)", "shared.read(name, u)[mine]",
                             "it moves too much, reads 54 numbers where 36 will do: 2 rows of 1 values, 3 warps"),
    "all written twice": ("shared.write(name, piece, w)", "[shared.write(n, piece, w) for n in (name, name + '2')]",
                          "it moves too much, writes 36 numbers where 18 will do: 2 rows of 1 values, 3 warps"),
    "nothing read": ("shared.read(name, u, mine)", "dict(zip(('max', 'sum', 'out'), (states[u][0][:, None], "
                     "states[u][1][:, None], states[u][2])))[name][mine]", "it reads 0 numbers, less than the 6"),
}  # fmt: skip


def test_the_stub_is_not_tried():
    assert not_tried(lesson_11.my_exchange, lesson_11.sample()) == "not tried yet"


def test_the_answer_is_right(capsys):
    exercise("11", lesson_11.answer, cases=20)
    assert capsys.readouterr().out.startswith("Exercise 11: right, all ")


@pytest.mark.parametrize("slip", SLIPS.values(), ids=SLIPS)
def test_a_slip_breaks_the_anchor(slip):
    report = verify(lesson_11.subject(edited(lesson_11.answer, *slip)), ["anchor"], cases=300)
    assert report.cells["anchor", "answer"].verdict == "fail"


def test_what_the_answer_gives_is_attention():
    scores, v = np.array([[0.0, 0, 1, 2], [0, 0, 0, 0]]) * np.log(2), np.array([[2.0], [6], [0], [3]])
    o, lse = lesson_11.exchanged(lesson_11.answer, scores, v)
    # A dozen roundings of numbers below 12
    assert np.all(np.abs(o[:, 0] - [5 / 2, 11 / 4]) <= 12 * 12 * 2.0**-53)
    assert np.all(np.abs(lse - np.log([8, 4])) <= 12 * 12 * 2.0**-53)  # as many


@pytest.mark.parametrize("slip", COUNTED.values(), ids=COUNTED)
def test_what_passes_through_shared_memory_is_counted(slip):
    *edit, words = slip
    with pytest.raises((ValueError, RuntimeError), match=words):
        lesson_11.exchanged(edited(lesson_11.answer, *edit), np.zeros((2, 4)), np.ones((4, 1)))


@pytest.mark.parametrize("again", [False, True])
def test_every_warp_may_read_all_maxima_and_those_of_its_rows_again(again):
    def first_the_maxima(shared, states, rows):
        everyone = range(len(states))
        for w in everyone:
            shared.write("max", states[w][0][:, None], w)
        shared.barrier()
        for w, (m, l, acc) in enumerate(states):
            level = np.max([shared.read("max", u) for u in everyone], axis=0)
            factor = np.exp(m[:, None] - np.where(level == -np.inf, 0, level))
            shared.write("sum", factor * l[:, None], w)
            shared.write("out", factor * acc, w)
        shared.barrier()
        total, acc = (np.concatenate([sum(shared.read(name, u, mine) for u in everyone) for mine in rows])
                      for name in ("sum", "out"))
        if again:
            level = np.concatenate([np.max([shared.read("max", u, mine) for u in everyone], axis=0) for mine in rows])
        return acc / np.where(total == 0, 1, total), (level + np.log(total))[:, 0]

    assert verify(lesson_11.subject(first_the_maxima), ["anchor", "empty", "seen NaN"], cases=20).exit_code == 0
