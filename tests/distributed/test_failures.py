"""A rank that sleeps or dies: the others say which operation they waited for, within the group's timeout."""

import pytest

from fdmath.distributed import run_ranks

SECONDS = 2.0


def test_a_sleeping_and_a_dead_rank_are_reported_by_the_others():
    outcomes = run_ranks("tests.distributed.scenarios:last_rank_leaves", [(SECONDS,)] * 3, timeout=60, deadline=120)
    assert [x.code for x in outcomes] == [0, 0, 7], outcomes
    for rank, outcome in enumerate(outcomes[:2]):
        for (words, seconds), (caller, operation) in zip(outcome.value, 2 * [
                ("ring_attention", "passing keys and values on"), ("tree_decode", "all-gather of the states")],
                strict=True):
            assert words.startswith(f"{caller}: {operation} failed on rank {rank} of 3: ")
            assert seconds <= 2 * SECONDS + 4  # a neighbour may wait out its own timeout first; 4 s for a slow machine


@pytest.mark.parametrize("last", [("bfloat16", {}), ("float16", {"scale": 2.0})])
def test_ranks_that_were_given_different_things_say_so_where_lengths_are_told(last):
    outcomes = run_ranks("tests.distributed.scenarios:unlike", [(last,)] * 2)
    assert [x.code for x in outcomes] == [0, 0], outcomes
    for rank, outcome in enumerate(outcomes):
        for (words, _), caller in zip(outcome.value, ("ring_attention", "tree_decode"), strict=True):
            assert words.startswith(f"{caller}: every rank must have what rank {rank} has, dtype ")
            assert words.endswith(f"; ranks [{1 - rank}] do not")


def test_what_a_rank_prints_before_it_fails_is_kept():
    found, = run_ranks("fdmath.distributed:ring_attention", [("no tensor",) * 3])
    assert found.code == 1 and found.value is None
    assert "TypeError: q must be a NumPy array or a torch tensor" in found.printed


def test_a_rank_that_never_ends_is_ended_at_the_deadline():
    found, = run_ranks("time:sleep", [(600,)], deadline=8)
    assert found.code is None and found.value is None
