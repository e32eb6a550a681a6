"""The code exercise of notebook 08: the stub is not tried, the answer is right, likely slips are refuted."""

import numpy as np
import pytest

from fdmath import LSEState, flat, merge_all
from fdmath.lesson import edited
from fdmath.verify.answers import lesson_08
from fdmath.verify.cases import StateCase
from fdmath.verify.exercises import exercise

CASES = 5
SLIPS = {
    "the sums are not moved": ("alpha * total + c.sum(), alpha * acc", "total + c.sum(), acc"),
    "only l is moved": ("alpha * acc + c @ y", "acc + c @ y"),
    "the level stays behind": ("c @ y, top", "c @ y, level"),
    "the last step is lost": ("range(0, len(lse_parts), at_once)", "range(0, len(lse_parts) - at_once + 1, at_once)"),
    "NaN of an empty part times 0": ("y = np.where(s[:, None] == -np.inf, 0, y)", "y = 1 * y"),
    "−∞ from −∞": ("reference = 0 if top == -np.inf else top", "reference = top"),
    "0/0": ("divisor = 1 if total == 0 else total", "divisor = total"),
    "lse without log l": ("level + np.log(divisor)", "level + 0 * np.log(divisor)"),
    "lse in base 2": ("np.log(divisor)", "np.log2(divisor)"),
    "outputs added up": ("acc / divisor,", "acc,"),
}


def said(capsys, fn):
    exercise("08", fn, cases=CASES)
    return capsys.readouterr().out


def test_the_stub_is_not_tried(capsys):
    assert said(capsys, lesson_08.my_program) == "Exercise 08: not tried yet\n"


def test_the_answer_is_right(capsys):
    assert said(capsys, lesson_08.answer).startswith("Exercise 08: right, all ")


def test_a_slip_is_refuted_with_a_counterexample(capsys):
    out = said(capsys, edited(lesson_08.answer, *SLIPS["0/0"]))
    assert "Exercise 08: not yet" in out and ": fail" in out and "part 1: LSEState(np.array(" in out


def one_merge():
    """Five parts of three rows: levels that rise after the first step, an empty part that holds NaN, an empty row."""
    none = -np.inf
    lse = np.float32([[0, none, none], [1, none, none], [3, 2, none], [none, 0, none], [2, 1, none]])
    o = np.where(lse[..., None] == none, np.float32(np.nan), np.arange(1, 16, dtype=np.float32).reshape(5, 3, 1))
    return StateCase(tuple(map(LSEState, o, lse)))


@pytest.mark.parametrize("slip", [None, *SLIPS])
def test_each_slip_shows_on_one_merge(slip):
    case = one_merge()
    subject = lesson_08.subject(edited(lesson_08.answer, *SLIPS[slip]) if slip else lesson_08.answer)
    assert case.certified().judge(case.run(subject), case.budget(subject)).verdict == ("fail" if slip else "pass")


def test_any_number_of_parts_a_step_gives_the_same_state_in_exact_numbers():
    o, lse = np.array([[2.0], [6.0], [0.0]]), np.zeros(3)  # equal weights: sums of small integers, exact
    right = merge_all(LSEState(o, lse), flat)
    for at_once in (1, 2, 3, 5):
        got = lesson_08.answer(o, lse, at_once)
        assert got[0] == right.o and got[1] == right.lse


def in_steps():
    """The first call's parts, as the judge hands them out."""
    *parts, at_once = lesson_08.sample()
    return *(lesson_08.Parts(x, at_once) for x in parts), at_once


def all_at_once(o_parts, lse_parts, at_once):
    """Right in numbers, but a program has no room for so many parts."""
    return tuple(x[0] for x in merge_all(LSEState(o_parts[:][:, None], lse_parts[:][:, None]), flat))


def in_two_passes(o_parts, lse_parts, at_once):
    """The largest lse first, then the sums: every part is read twice."""
    steps = [slice(first, first + at_once) for first in range(0, len(lse_parts), at_once)]
    level = max(lse_parts[step].max() for step in steps)
    return o_parts[0], level + np.log(sum(np.exp(lse_parts[step] - level).sum() for step in steps))


def by_numpy(o_parts, lse_parts, at_once):
    """NumPy would read all parts without asking for a slice."""
    return o_parts[0], np.max(lse_parts)


@pytest.mark.parametrize("wrong, words", [(all_at_once, "a step may read 2 parts at most; asked for 3"),
                                          (in_two_passes, "parts are read forwards; asked for part 0 after part 2"),
                                          (by_numpy, "parts are read by slices")])
def test_parts_are_read_once_and_a_few_at_a_time(wrong, words):
    with pytest.raises((TypeError, ValueError), match=words):
        wrong(*in_steps())


def test_a_program_that_takes_all_parts_at_once_is_refused(capsys):
    assert "raised ValueError: a step may read 2 parts at most" in said(capsys, all_at_once)


def test_a_step_may_read_its_slice_again_and_pick_columns():
    o, lse, at_once = in_steps()
    assert [lse[0:at_once].sum(), lse[0:at_once].sum(), o[0:at_once, 0].sum(), o[2], len(lse)] == [0, 0, 2, 1, 3]


def test_parts_as_a_whole_have_no_sum():
    with pytest.raises(AttributeError, match="parts are read by slices, .*; they have no sum"):
        in_steps()[1].sum()


def from_level(start):
    """The answer without its guards: a level that starts at a number, and no keys told by a sum that stayed 0."""
    def program(o_parts, lse_parts, at_once):
        level, total, acc = start, 0, 0
        for first in range(0, len(lse_parts), at_once):
            s, y = lse_parts[first : first + at_once], o_parts[first : first + at_once]
            top = max(level, s.max())
            alpha, c = np.exp(level - top), np.exp(s - top)
            total, acc = alpha * total + c.sum(), alpha * acc + c @ np.where(s[:, None] == -np.inf, 0, y)
            level = top
        return (acc / total, level + np.log(total)) if total else (0 * acc, -np.inf)

    return program


def one_a_step(o_parts, lse_parts, at_once):
    return lesson_08.answer(o_parts, lse_parts, 1)


def wrong_above(most):
    return lambda *parts: lesson_08.answer(*parts) if parts[-1] <= most else (0 * parts[0][0], 0.0)


def two_a_step(o_parts, lse_parts, at_once):
    return lesson_08.answer(o_parts, lse_parts, 2)


@pytest.mark.parametrize("wrong, words", [
    (from_level(-1e30), "with an empty part and one of o = 2, lse = -1.7e+38: "),
    (from_level(-1e38), "with an empty part and one of o = 2, lse = -1.7e+38: "),
    (two_a_step, "a step may read 1 parts at most; asked for 2"),
    (wrong_above(2), "with at_once = 3: lse[0]: got 0.0, expected "),
    (wrong_above(3), "with at_once = 16: lse[0]: got 0.0, expected "),
])  # fmt: skip
def test_other_steps_and_low_levels_are_asked_for(capsys, wrong, words):
    assert f"raised ValueError: {words}" in said(capsys, wrong)


@pytest.mark.parametrize("fn", [from_level(np.finfo(np.float64).min), one_a_step,
                                lambda *parts: [x.tolist() for x in lesson_08.answer(*parts)]])  # fmt: skip
def test_other_right_programs_are_right(capsys, fn):
    assert said(capsys, fn).startswith("Exercise 08: right, all ")
