"""What the journal writes down is what the counts say, line by line and block by block."""

from collections import Counter

import numpy as np
import pytest

from fdmath import flash_attention, flash_attention_backward
from fdmath.attention import flash, flash1
from fdmath.bench import journal
from fdmath.cost.counts import Counts
from fdmath.lesson import source_of


def call(queries=4, keys=6, dim=3, width=2):
    rng = np.random.default_rng(0)
    return [rng.standard_normal(shape) for shape in ((queries, dim), (keys, dim), (keys, width))]


@pytest.mark.parametrize("algorithm", [flash_attention, flash1.flash_attention_1])
def test_the_lines_together_ask_for_what_was_counted(algorithm):
    counts = Counts()
    algorithm(*call(), block_m=2, block_n=3, counts=counts)
    written = journal.journal_of(algorithm, *call(), block_m=2, block_n=3)
    assert written.counts == counts
    assert sum(written.lines.values(), Counter()) == +journal.flattened(counts)


def test_each_order_of_the_loops_is_seen():
    rows = journal.journal_of(flash_attention, *call(), block_m=2, block_n=2)
    columns = journal.journal_of(flash1.flash_attention_1, *call(), block_m=2, block_n=2)
    assert journal.order_of_visits(rows).tolist() == [[1, 2, 3], [4, 5, 6]]
    assert journal.order_of_visits(columns).tolist() == [[1, 3, 5], [2, 4, 6]]
    turned = journal.journal_of(flash_attention, *call(), block_m=2, block_n=2, order=[2, 1, 0])
    assert journal.order_of_visits(turned).tolist() == [[3, 2, 1], [6, 5, 4]]


def test_the_backward_is_seen_column_by_column_and_what_is_skipped_is_not():
    q, k, v = call(queries=4, keys=4, width=3)
    o, lse = flash_attention(q, k, v, causal=True)
    options = {"block_m": 2, "block_n": 2, "causal": True}
    seen = journal.journal_of(flash_attention_backward, o, lse, q, k, v, o, lse, **options)
    assert journal.order_of_visits(seen).tolist() == [[1, 0], [2, 3]]


def workers_of(algorithm, *arrays, **options):
    return journal.owners(journal.journal_of(algorithm, *arrays, block_m=2, block_n=2, **options)).tolist()


def test_workers_are_those_who_share_a_load_or_read_what_another_has_stored():
    q, k, v = call(queries=4, width=3)
    gradient = (*flash_attention(q, k, v), q, k, v, *flash_attention(q, k, v))
    assert workers_of(flash_attention, q, k, v) == [[0, 0, 0], [1, 1, 1]]
    assert workers_of(flash1.flash_attention_1, q, k, v) == [[0, 0, 0], [0, 0, 0]]
    assert workers_of(flash_attention_backward, *gradient) == [[0, 1, 2], [0, 1, 2]]
    assert workers_of(flash_attention_backward, *gradient, by="rows") == [[0, 0, 0], [1, 1, 1]]


def test_workers_are_numbered_as_they_begin_and_nobody_computes_what_is_skipped():
    q, k, v = call(queries=4, keys=4, width=3)
    gradient = (*flash_attention(q, k, v, causal=True), q, k, v, *flash_attention(q, k, v, causal=True))
    assert workers_of(flash_attention, q, k, v, causal=True) == [[0, -1], [1, 1]]
    assert workers_of(flash_attention_backward, *gradient, causal=True, order=[1, 0]) == [[1, -1], [1, 0]]


def test_a_block_that_reads_what_another_stored_is_the_same_worker_s():
    class Tensors(journal.Journal):
        def __init__(self, *reads):
            super().__init__(np, 1, "float64")
            self.tensors = {name: np.ones((4, 1)) for name in "qko"}
            for turn, read in enumerate(reads):
                q, k = (self.load(name, slice(turn, turn + 1)) for name in "qk")
                self.load("o", slice(read, read + 1))
                self.store("o", slice(turn, turn + 1), self.matmul(q, k))

    assert sorted(journal.owners(Tensors(3, 3, 3)).diagonal()) == [0, 1, 2]
    assert journal.owners(Tensors(3, 0, 3)).diagonal().tolist() == [0, 0, 1]
    assert journal.owners(Tensors(3, 3, 0)).diagonal().tolist() == [0, 1, 0]


def test_turns_are_counted_anew_for_each_owner():
    turns, owner = np.array([[1, 5, 0], [4, 2, 3]]), np.array([[0, 0, -1], [0, 1, 1]])
    assert journal.own_turns(turns, owner).tolist() == [[1, 3, 0], [2, 1, 2]]


def test_the_algorithm_is_itself_again_afterwards():
    journal.journal_of(flash_attention, *call())
    assert flash.Machine is not journal.Journal


def test_a_line_of_source_has_what_it_asked_for():
    written = journal.journal_of(flash_attention, *call(), block_m=2, block_n=3)
    assert journal.asked_by(written, flash.forward_row, "p =") == ("p = gpu.exp(s - level)", {"exponentials": 4 * 6})
    with pytest.raises(ValueError, match="must begin one line of forward_row; got 'acc ', which begins 2"):
        journal.asked_by(written, flash.forward_row, "acc ")


def test_every_line_that_asks_for_something_stands_in_the_table():
    steps = journal.side_by_side(*call(), block_m=2, block_n=3)
    for algorithm, column, options in (
        (flash_attention, "asked", {}),
        (flash1.flash_attention_1, "asked_1", {"divide": "parts"}),
    ):
        whole = journal.flattened(journal.journal_of(algorithm, *call(), block_m=2, block_n=3, **options).counts)
        assert sum((getattr(step, column) for step in steps), Counter()) == +whole


def test_the_numbers_of_the_lines_are_those_that_the_source_carries():
    source = source_of(flash.forward_row) + source_of(flash._forward)
    for step in journal.side_by_side(*call(), block_m=2, block_n=3)[1:]:
        text = step.source.splitlines()[-1 if step.line == "11" else 0]
        (line,) = [x for x in source.splitlines() if x.strip().startswith(text)]
        assert step.line in line.partition("#")[2].replace(",", " ").split()


def test_what_has_changed_is_marked():
    steps = journal.side_by_side(*call(), block_m=2, block_n=3)
    assert [s.line for s in steps if not s.changed] == ["8", "9", "10"]
    same = journal.side_by_side(*call(queries=2, keys=3), block_m=2, block_n=3)
    assert not same[0].changed  # one block: there is no order
    rows = journal.as_table(steps).splitlines()
    assert len(rows) == 2 + len(steps) and [("◀" in row) for row in rows[2:]] == [s.changed for s in steps]
    assert {row.count("|") for row in rows} == {8}
    assert [row.split()[1] for row in rows[2:] if "●" in row] == ["3,", "10", "12", "15"]
    assert "| 10 | `p = gpu.exp(s - level)` | 24 exponentials |" in journal.as_table(steps)
