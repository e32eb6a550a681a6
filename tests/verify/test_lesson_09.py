"""The code exercise of notebook 09: the stub is not tried, the answer is right, likely slips are refuted."""

import pytest

from fdmath.verify.answers import lesson_09
from fdmath.verify.exercises import exercise
from fdmath.verify.judge import verify


def listed(skips, masks, queries, keys, block_m, block_n):
    """The blocks that two rules of (i0, i1, j0, j1, keys − queries) leave, and mask."""
    spans = [[(a, min(a + size, n)) for a in range(0, n, size)] for n, size in ((queries, block_m), (keys, block_n))]
    blocks = [(*i, *j) for i in spans[0] for j in spans[1]]
    offset = keys - queries
    return [(*b, masks(*b, offset)) for b in blocks if not skips(*b, offset)]


def skip(i0, i1, j0, j1, offset):
    return j0 > i1 - 1 + offset


def mask(i0, i1, j0, j1, offset):
    return j1 - 1 > i0 + offset


WRONG = {
    "aligned top-left": (lambda *block: skip(*block[:4], 0), lambda *block: mask(*block[:4], 0)),
    "skipped by the first query": (lambda i0, i1, j0, j1, offset: j0 > i0 + offset, mask),
    "skipped one too early": (lambda i0, i1, j0, j1, offset: j0 >= i1 - 1 + offset, mask),
    "skipped one too late": (lambda i0, i1, j0, j1, offset: j0 > i1 + offset, mask),
    "skipped by the last key": (lambda i0, i1, j0, j1, offset: j1 - 1 > i1 - 1 + offset, mask),
    "nothing skipped": (lambda *_: False, mask),
    "masked by the last query": (skip, lambda i0, i1, j0, j1, offset: j1 - 1 > i1 - 1 + offset),
    "masked by the first key": (skip, lambda i0, i1, j0, j1, offset: j0 > i0 + offset),
    "all masked": (skip, lambda *_: True),
    "none masked": (skip, lambda *_: False),
}  # fmt: skip


def slip(name):
    return lambda *sizes: listed(*WRONG[name], *sizes)


def without_the_short_blocks(queries, keys, block_m, block_n):
    return [b for b in lesson_09.answer(queries, keys, block_m, block_n) if b[3] - b[2] == block_n]


def square_blocks_only(queries, keys, block_m, block_n):
    """The rule for blocks of one size: block j of the keys up to block i of the queries."""
    return [b for b in listed(lambda *_: False, mask, queries, keys, block_m, block_n)
            if b[2] // block_n <= b[0] // block_m]  # fmt: skip


def test_the_stub_is_not_tried(capsys):
    exercise("09", lesson_09.my_blocks)
    assert capsys.readouterr().out == "Exercise 09: not tried yet\n"


def test_the_answer_is_right(capsys):
    exercise("09", lesson_09.answer, cases=20)
    assert "Exercise 09: right, all" in capsys.readouterr().out


def test_a_slip_is_refuted_with_a_counterexample(capsys):
    exercise("09", slip("aligned top-left"), cases=20)
    out = capsys.readouterr().out
    assert "Exercise 09: not yet" in out and ": anchor: fail" in out and "q = np." in out


@pytest.mark.parametrize("name", WRONG)
def test_each_slip_is_refuted(name):
    assert verify(lesson_09.subject(slip(name)), ["anchor"], cases=40).exit_code == 1


@pytest.mark.parametrize("fn", [without_the_short_blocks, square_blocks_only])
def test_short_and_oblong_blocks_are_asked_for(fn):
    assert verify(lesson_09.subject(fn), ["anchor"], cases=40).exit_code == 1


def test_the_rules_of_the_slips_are_the_answers_own():
    assert listed(skip, mask, 5, 7, 2, 3) == lesson_09.answer(5, 7, 2, 3)


def test_too_many_blocks_are_named():
    with pytest.raises(ValueError, match="lists 6 blocks where 4 will do: 3 queries, 3 keys, blocks of 1 x 2"):
        lesson_09.chosen(slip("nothing skipped"), 3, 3)
    with pytest.raises(ValueError, match="masks 4 blocks where 1 will do: 3 queries, 3 keys, blocks of 1 x 2"):
        lesson_09.chosen(slip("all masked"), 3, 3)


@pytest.mark.parametrize("sizes", [(3, 5, 2, 2), (5, 3, 2, 2), (7, 7, 3, 2), (1, 4, 2, 3), (4, 1, 1, 1)])
def test_the_answer_agrees_with_the_mask_score_by_score(sizes):
    assert lesson_09.answer(*sizes) == lesson_09.score_by_score(*sizes)


def test_the_blocks_of_three_queries_over_five_keys():
    # Written out: the queries see 3, 4 and 5 keys.
    assert lesson_09.score_by_score(3, 5, 2, 2) == [
        (0, 2, 0, 2, False), (0, 2, 2, 4, True),
        (2, 3, 0, 2, False), (2, 3, 2, 4, False), (2, 3, 4, 5, False)]  # fmt: skip
