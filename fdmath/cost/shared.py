"""The memory that the warps of one thread block share, simulated: what passes through it, counted."""

from collections import Counter
from dataclasses import dataclass, field

BYTES = dict.fromkeys(("q", "k", "v", "do", "p", "ds"), 2)
"""Bytes of a number that tensor cores take, 16 bits; statistics and sums are float32."""


@dataclass
class SharedCounts:
    """Numbers written to and read from shared memory, by name, and the barriers between a write and a read.

    taken: the rows of each reading, by name and in order: they tell who works on what, and are not compared. A kernel
    that writes where it has just read needs further barriers, which are not counted.
    """

    written: Counter = field(default_factory=Counter)
    read: Counter = field(default_factory=Counter)
    barriers: int = 0
    taken: dict = field(default_factory=dict, repr=False, compare=False)

    def bytes(self, *names):
        """The bytes written and read, of these names or of all: 2 a number of BYTES, 4 of any other."""
        return sum(count * BYTES.get(name, 4) for side in (self.written, self.read) for name, count in side.items()
                   if not names or name in names)


class SharedMemory:
    """Named pieces that one warp has written and others read, after a barrier; all that passes is added to `counts`."""

    def __init__(self, counts=None):
        self.counts = SharedCounts() if counts is None else counts
        self._pieces, self._pending = {}, {}

    def write(self, name, piece, warp=0):
        """Nothing; the matrix is the warp's piece of that name, for all to read after the next barrier."""
        self.counts.written[name] += _numbers(piece)
        self._pending[name, warp] = piece

    def barrier(self):
        """Nothing; all warps have arrived, and what was written can be read."""
        self.counts.barriers += 1
        self._pieces |= self._pending
        self._pending = {}

    def read(self, name, warp=0, rows=slice(None), columns=slice(None)):
        """These rows and columns of a warp's piece; RuntimeError where no barrier follows its writing."""
        if (name, warp) in self._pending:
            raise RuntimeError(f"{name} of warp {warp} is read without a barrier after it was written")
        part = self._pieces[name, warp][rows, columns]
        self.counts.read[name] += _numbers(part)
        self.counts.taken.setdefault(name, []).append(rows)
        return part


def _numbers(x):
    """The numbers of a matrix."""
    return x.shape[0] * x.shape[1]
