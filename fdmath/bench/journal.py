"""What FlashAttention's algorithms do, line by line of their source and block by block, written down while they run.

The algorithms of `fdmath.attention.flash` and `flash1` do everything through a `Machine`; here it keeps a journal.
"""

import inspect
import itertools
import sys
from collections import Counter, defaultdict
from typing import NamedTuple
from unittest.mock import patch

import numpy as np

from fdmath.attention import flash, flash1
from fdmath.cost.counts import Machine

WORK = ("exponentials", "logarithms", "divisions", "multiplications", "matmul_flop")
MOVES = ("read", "written", "added")


class Journal(Machine):
    """A Machine that writes down which line of source asked for what, and which block of scores came when.

    lines: (file, line number) → Counter of what it asked for: "exponentials", … , "read q", "written o", …
    visits: the blocks in the order in which their scores were computed, as (first query, first key). ties: for each of
    them a set of what binds it to others: the one load of its queries, that of its keys, and each piece of a tensor in
    HBM that it stored, or read after another block had stored it.
    """

    def __init__(self, *arguments):
        super().__init__(*arguments)
        self.lines, self.visits, self.ties = defaultdict(Counter), [], []
        self._at, self._moved, self._loads = {}, False, itertools.count()
        self._stored, self._read = set(), set()

    def load(self, name, span):
        if name in ("q", "k"):
            self._at[name], self._moved = (span.start, next(self._loads)), True
        self._read |= {(name, span.start)} & self._stored
        return self._noted(super().load, name, span)

    def store(self, name, span, rows):
        if self.visits:
            self._stored.add((name, span.start))
            self.ties[-1].add((name, span.start))
        return self._noted(super().store, name, span, rows)

    def matmul(self, a, b):
        if self._moved and len(self._at) == 2:  # the first product after a new block of queries or keys: its scores
            (i, load_q), (j, load_k) = self._at["q"], self._at["k"]
            self.visits.append((i, j))
            self.ties.append({("load", load_q), ("load", load_k)} | self._read)
            self._moved, self._read = False, set()
        return self._noted(super().matmul, a, b)

    def _noted(self, method, *arguments):
        """What the method returns; what it adds to the counts is put down to the line that called for it."""
        before = flattened(self.counts)
        result = method(*arguments)
        frame = sys._getframe(2)
        self.lines[frame.f_code.co_filename, frame.f_lineno] += flattened(self.counts) - before
        return result


def _noting(name):
    def method(self, *arguments):
        return self._noted(getattr(super(Journal, self), name), *arguments)

    return method


for _name in ("add", "exp", "log", "multiply", "divide"):
    setattr(Journal, _name, _noting(_name))


def flattened(counts):
    """The Counts as one Counter: "exponentials", … and "read q", "written o", …; blocks are left out."""
    flat = Counter({name: getattr(counts, name) for name in WORK})
    for move in MOVES:
        flat.update({f"{move} {tensor}": number for tensor, number in getattr(counts, move).items()})
    return flat


def journal_of(algorithm, *arrays, **options):
    """The Journal of one call, algorithm(*arrays, **options), of `fdmath.attention.flash` or `flash1` on NumPy."""
    journals = []

    def machine(*arguments):
        journals.append(Journal(*arguments))
        return journals[-1]

    with patch.object(sys.modules[algorithm.__module__], "Machine", machine):
        algorithm(*arrays, **options)
    (journal,) = journals
    return journal


def order_of_visits(journal):
    """The table (row blocks, column blocks) of the turn, from 1, at which a block was computed; 0 where it was not."""
    rows, columns = (sorted({visit[axis] for visit in journal.visits}) for axis in (0, 1))
    table = np.zeros((len(rows), len(columns)), int)
    for turn, (i, j) in enumerate(journal.visits, 1):
        table[rows.index(i), columns.index(j)] = turn
    return table


def owners(journal):
    """The table (row blocks, column blocks) of the worker, from 0, who computes a block; −1 where nobody did.

    Two blocks are one worker's if they share a load, since what was loaded once stays on its chip, or if one reads or
    stores in HBM what the other has stored. Additions to HBM are atomic and bind nobody. Numbered as they begin.
    """
    workers = []
    for turn, ties in enumerate(journal.ties, 1):
        bound = [worker for worker in workers if worker[1] & ties]
        free = [worker for worker in workers if not worker[1] & ties]
        workers = [*free, ({turn}.union(*(turns for turns, _ in bound)), ties.union(*(tied for _, tied in bound)))]
    table = order_of_visits(journal)
    owner = np.full_like(table, -1)
    for number, (turns, _) in enumerate(sorted(workers, key=lambda worker: min(worker[0]))):
        owner[np.isin(table, list(turns))] = number
    return owner


def own_turns(turns, owner):
    """The table of turns counted anew for each owner, from 1; 0 where there is no owner."""
    own = np.zeros_like(turns)
    for number in range(owner.max() + 1):
        own[owner == number] = 1 + np.argsort(np.argsort(turns[owner == number]))
    return own


class Step(NamedTuple):
    """A line of document B's Algorithm 1 beside FlashAttention-1: sources, and what they asked for in one call each.

    changed: whether they asked for something else; for the loops (line 3), whether the blocks came in another order.
    """

    line: str
    source: str
    asked: Counter
    source_1: str
    asked_1: Counter
    changed: bool


_TWO, _ONE, _SCORES = flash.forward_row, flash1.add_column, (flash.scores, "return")

PLACES = {
    "4": ([(_TWO, "q =")], [(_ONE, "q, o, m, l =")]),
    "7": ([(_TWO, "k, v =")], [(_ONE, "k, v =")]),
    "8": ([(_TWO, "s ="), _SCORES], [(_ONE, "s ="), _SCORES]),
    "9": ([(_TWO, "new =")], [(_ONE, "top ="), (_ONE, "new =")]),
    "10": ([(_TWO, "p =")], [(_ONE, "p =")]),
    "11": ([(_TWO, "shrink ="), (_TWO, "l = gpu")], [(_ONE, "shrink, grow ="), (_ONE, "kept ="), (_ONE, "total =")]),
    "12": ([(_TWO, "acc = gpu")], [(_ONE, 'gpu.store("o"'), (flash1._parts_divided, "return")]),
    "14": ([(_TWO, 'gpu.store("o"')], []),
    "15": ([(_TWO, 'gpu.store("lse"')], [(_ONE, 'gpu.store("m"'), (_ONE, 'gpu.store("l"')]),
}
"""Where each line of document B's Algorithm 1 stands: the beginnings of lines of source, in both algorithms."""

LISTED = ("3", "10", "12", "15")
"""The lines that document B lists as those that differ. Source: claims:B60."""

LOOPS = ([(flash._forward, "for i"), (_TWO, "for j")], [(flash1.flash_attention_1, "for j"), (_ONE, "for i")])
"""Lines 3 and 6: the outer loop and the inner one."""


def side_by_side(q, k, v, **options):
    """The list of Steps of one call each, FlashAttention-1 dividing its parts one by one, as document B counts.

    q, k, v: as for `flash_attention`; options: block_m, block_n. Source: document B, the two algorithms; claims:B60.
    """
    second = journal_of(flash.flash_attention, q, k, v, **options)
    first = journal_of(flash1.flash_attention_1, q, k, v, divide="parts", **options)
    steps = [_step(line, second, first, *places) for line, places in {"3, 6": LOOPS, **PLACES}.items()]
    other_order = not np.array_equal(order_of_visits(second), order_of_visits(first))
    return [steps[0]._replace(changed=other_order), *steps[1:]]


def _step(line, second, first, places, places_1):
    (source, asked), (source_1, asked_1) = _together(second, places), _together(first, places_1)
    return Step(line, source, asked, source_1, asked_1, asked != asked_1)


def _together(journal, places):
    """(source, Counter) of several places."""
    found = [asked_by(journal, *place) for place in places]
    return "\n".join(source for source, _ in found), sum((asked for _, asked in found), Counter())


def asked_by(journal, function, start):
    """(source, Counter): the line of a function that begins with `start`, and what it asked for.

    Raises ValueError unless exactly one line does.
    """
    lines, first = inspect.getsourcelines(function)
    found = [i for i, line in enumerate(lines) if line.strip().startswith(start)]
    if len(found) != 1:
        raise ValueError(f"start must begin one line of {function.__name__}; got {start!r}, which begins {len(found)}")
    return lines[found[0]].partition("  #")[0].strip(), journal.lines[inspect.getsourcefile(function), first + found[0]]


def as_table(steps):
    """The Steps as a table in Markdown: an arrow marks what has changed, a dot what is among LISTED."""
    titles = ("line", "FlashAttention-2", "it asks for", "FlashAttention-1", "it asks for", "changed", "listed")
    rows = [(s.line, _code(s.source), _words(s.asked), _code(s.source_1), _words(s.asked_1),
             "**◀**" if s.changed else "", "●" if listed(s) else "") for s in steps]
    return "\n".join(f"| {' | '.join(row)} |" for row in (titles, ["---"] * len(titles), *rows))


def listed(step):
    """Whether one of the Step's lines is among LISTED."""
    return not set(LISTED).isdisjoint(step.line.split(", "))


def _code(source):
    return "<br>".join(f"`{line}`" for line in source.splitlines())


def _words(asked):
    return "<br>".join(f"{number:,} {name.replace('_flop', ' FLOP')}" for name, number in asked.items() if number)
