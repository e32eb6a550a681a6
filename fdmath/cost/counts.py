"""What an algorithm did, counted while it ran: a record, and arithmetic and memory that fill it."""

import math
from collections import Counter
from dataclasses import dataclass, field

from fdmath import _backends as backends


@dataclass
class Counts:
    """What was done on chip and moved to and from HBM, over all heads and sequences, as integers.

    exponentials, logarithms, divisions and multiplications are elementwise, outside matrix products; additions,
    subtractions and maxima are not counted, nor is the scale, which is applied outside the loops. matmul_flop: a
    multiplication and an addition for each term. read, written, added: numbers by the name of the tensor in HBM,
    `added` those of atomic additions; setting a tensor to its first value is not counted. blocks: how many blocks of
    scores were "full", "masked" or "skipped".
    """

    exponentials: int = 0
    logarithms: int = 0
    divisions: int = 0
    multiplications: int = 0
    matmul_flop: int = 0
    read: Counter = field(default_factory=Counter)
    written: Counter = field(default_factory=Counter)
    added: Counter = field(default_factory=Counter)
    blocks: Counter = field(default_factory=Counter)

    @property
    def moved(self):
        """The numbers read from and written to HBM, atomic additions among the written."""
        return sum(sum(tensors.values()) for tensors in (self.read, self.written, self.added))


class Machine:
    """A memory of named matrices, and arithmetic beside it; all that passes through is added to `counts`.

    tensors: arrays (…, rows, width), read and written in spans of rows. heads: how many matrices each of them holds,
    one a query head and sequence; a tensor that query heads share (its leading axes broadcast) is read for each.
    Work is done in the format `work`; what is stored is rounded to the tensor's own.
    """

    def __init__(self, xp, heads, work, counts=None):
        self.xp, self.heads, self.work = xp, heads, work
        self.counts = Counts() if counts is None else counts
        self.tensors = {}

    def load(self, name, span):
        """The rows `span` (a slice) of a tensor."""
        rows = self.tensors[name][..., span, :]
        self.counts.read[name] += self._numbers(rows)
        return backends.cast(rows, self.work)

    def store(self, name, span, rows):
        """Nothing; the rows `span` of a tensor are these."""
        self.counts.written[name] += self._numbers(rows)
        self.tensors[name][..., span, :] = backends.cast(rows, backends.float_name(self.tensors[name]))

    def add(self, name, span, rows):
        """Nothing; these are added to the rows `span` of a tensor, as atomic additions do it."""
        self.counts.added[name] += self._numbers(rows)
        self.tensors[name][..., span, :] += rows

    def meet(self, kind):
        """`kind` itself: that of a block of scores, "full", "masked" or "skipped"."""
        self.counts.blocks[kind] += self.heads
        return kind

    def matmul(self, a, b):
        """a @ b: (…, m, n) times (…, n, w)."""
        self.counts.matmul_flop += 2 * self._numbers(a) * b.shape[-1]
        return a @ b

    def exp(self, x):
        """e^x, elementwise."""
        self.counts.exponentials += self._numbers(x)
        return self.xp.exp(x)

    def log(self, x):
        """The natural logarithm of x, elementwise."""
        self.counts.logarithms += self._numbers(x)
        return self.xp.log(x)

    def multiply(self, a, b):
        """a·b, elementwise, one of them perhaps a column."""
        product = a * b
        self.counts.multiplications += self._numbers(product)
        return product

    def divide(self, a, b):
        """a/b, elementwise, b perhaps a column."""
        quotient = a / b
        self.counts.divisions += self._numbers(quotient)
        return quotient

    def _numbers(self, x):
        """The numbers of a matrix, times the query heads that have one."""
        return math.prod(x.shape[-2:]) * self.heads
