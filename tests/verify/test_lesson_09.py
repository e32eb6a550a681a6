"""The code exercise of notebook 09: the stub is not tried, the answer is right, likely slips are refuted."""

import re

import numpy as np
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


def changed(change):
    return lambda *sizes: change(lesson_09.answer(*sizes))


def as_wide_as_seen(queries, keys, block_m, block_n):
    """A block a query, whatever the block sizes, which needs no mask."""
    return [(i, i + 1, 0, i + 1 + keys - queries, False) for i in range(queries) if i + 1 + keys > queries]


def smaller_than_asked(most):
    return lambda queries, keys, *size: lesson_09.answer(queries, keys, *(min(x, most) for x in size))


def unclipped(queries, keys, block_m, block_n):
    return [(i0, i0 + block_m, j0, j0 + block_n, masked)
            for i0, _, j0, _, masked in lesson_09.answer(queries, keys, block_m, block_n)]  # fmt: skip


REFUSED = {
    "nothing skipped": (slip("nothing skipped"), "block (0, 1, 2, 3, True) is listed, and nothing of it is seen: "
                                                 "3 queries, 3 keys, blocks of 1 x 2"),
    "all masked": (slip("all masked"), "block (1, 2, 0, 2, True) must say masked = False, nothing of it is hidden"),
    "none masked": (slip("none masked"), "(0, 1, 0, 2, False) must say masked = True, query 0 does not see key 1"),
    "sizes ignored": (as_wide_as_seen, "block (2, 3, 0, 3, False) has 1 x 3 scores where 1 x 2 is the most"),
    "ends unclipped": (unclipped, "block (2, 3, 2, 4, False) is empty, or reaches beyond the queries and keys"),
    "empty blocks": (changed(lambda x: [*x, (1, 1, 0, 2, False)]), "block (1, 1, 0, 2, False) is empty"),
    "the last one lost": (changed(lambda x: x[:-1]), "query 2 sees key 2, which is to be in 1 block and is in 0"),
    "each one twice": (changed(lambda x: 2 * x), "query 0 sees key 0, which is to be in 1 block and is in 2"),
    "no mask told": (changed(lambda x: [b[:4] for b in x]), "four whole numbers and a boolean; got (0, 1, 0, 2)"),
    "no whole numbers": (changed(lambda x: [(0.5, *b[1:]) for b in x]), "got (0.5, 1, 0, 2, True)"),
    "one at a time": (smaller_than_asked(1), "lists 6 blocks where 4 will do: 3 queries, 3 keys, blocks of 1 x 2"),
    "no block above 2": (smaller_than_asked(2), "lists 3 blocks where 2 will do: 3 queries, 3 keys, blocks of 2 x 3"),
}  # fmt: skip


@pytest.mark.parametrize("blocks, words", REFUSED.values(), ids=REFUSED)
def test_the_block_that_is_wrong_is_named(blocks, words):
    with pytest.raises(ValueError, match=re.escape(words)):
        lesson_09.checked(blocks, 3, 3)


@pytest.mark.parametrize("most", [3, 19])
def test_lists_for_more_queries_than_a_call_has_are_looked_at_beside_it(most):
    low = lesson_09.subject(lambda queries, keys, m, n: lesson_09.answer(queries, keys, min(m, most), n))
    one = np.ones((1, 1, 1, 1), np.float32)
    with pytest.raises(ValueError, match="not for the call above.* will do: 20 queries, 33 keys, blocks of "):
        low.fn(one, one, one, True)


@pytest.mark.parametrize("kind", [np.array, iter, lambda x: x[::-1], lambda x: [np.array(b) for b in x]])
def test_a_right_list_may_be_an_array_or_in_another_order(kind):
    right = sorted(lesson_09.answer(4, 3, *lesson_09.SIZES[0]))
    assert sorted(lesson_09.checked(changed(kind), 4, 3)) == right


def test_blocks_may_be_cut_elsewhere():
    by_hand = [(0, 2, 0, 1, False), (0, 2, 1, 3, True)]  # 2 queries, 3 keys: the short block first
    assert lesson_09.trouble(by_hand, 2, 3, 2, 2) == ""


@pytest.mark.parametrize("sizes", [(3, 5, 2, 2), (5, 3, 2, 2), (7, 7, 3, 2), (1, 4, 2, 3), (4, 1, 1, 1)])
def test_the_answer_agrees_with_the_mask_score_by_score(sizes):
    assert lesson_09.answer(*sizes) == lesson_09.score_by_score(*sizes)


def test_the_blocks_of_three_queries_over_five_keys():
    # Written out: the queries see 3, 4 and 5 keys.
    assert lesson_09.score_by_score(3, 5, 2, 2) == [
        (0, 2, 0, 2, False), (0, 2, 2, 4, True),
        (2, 3, 0, 2, False), (2, 3, 2, 4, False), (2, 3, 4, 5, False)]  # fmt: skip
