"""What one rank sends and receives in a torch.distributed group: counted, and with a name when it fails."""

import zlib
from contextlib import contextmanager
from dataclasses import dataclass, field

import torch
import torch.distributed as dist

LENGTHS = "telling lengths"


@dataclass
class Traffic:
    """What one rank handed to its group, one entry a call: the name of the operation and the bytes of its tensors.

    Of tensors for the neighbour these bytes travel once; `fdmath.cost.distributed` says how often those of a
    collective operation do.
    """

    entries: list = field(default_factory=list)

    def bytes(self, operation=None):
        """The bytes of all entries, or of those of one operation."""
        return sum(count for name, count in self.entries if operation in (None, name))


class Wire:
    """The place of this rank in a group, and the operations of the group.

    A call that fails, since another rank is gone or has not answered within the group's timeout, raises RuntimeError
    with the names of the caller and of the operation. (NCCL's watchdog ends the process instead, if it is so set.)
    """

    def __init__(self, caller, group=None, traffic=None):
        self.caller, self.group = caller, group
        self.traffic = Traffic() if traffic is None else traffic
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)
        if self.rank < 0:
            raise ValueError("group must hold this process; it does not")

    @contextmanager
    def named(self, operation):
        """A context in which errors of torch.distributed get a name."""
        try:
            yield
        except RuntimeError as error:
            raise RuntimeError(f"{self.caller}: {operation} failed on rank {self.rank} of {self.size}: {error}"
                               ) from error

    def count(self, operation, *arrays):
        """Nothing; the bytes of the arrays are in the traffic."""
        self.traffic.entries.append((operation, sum(x.numel() * x.element_size() for x in arrays)))

    def pass_on(self, operation, arrays, shapes, tag=0):
        """The Transfer that has begun: the arrays go to the next rank, as many of the shapes come from the one before.

        Both ends know the shapes: an array without numbers is not sent. tag: the first of as many that tell apart what
        is under way at once (gloo; NCCL keeps the order of the calls).
        """
        to, source, group = self.peer(self.rank + 1), self.peer(self.rank - 1), self.group
        arrays = [x.contiguous() for x in arrays]
        coming = [x.new_empty(shape) for x, shape in zip(arrays, shapes, strict=True)]
        calls = [dist.P2POp(dist.isend, x, to, group, tag + i) for i, x in enumerate(arrays) if x.numel()]
        calls += [dist.P2POp(dist.irecv, x, source, group, tag + i) for i, x in enumerate(coming) if x.numel()]
        self.count(operation, *arrays)
        with self.named(operation):
            return Transfer(self, operation, arrays, coming, dist.batch_isend_irecv(calls) if calls else [])

    def peer(self, rank):
        """The number, among all processes, of a rank of this group, counted modulo its size."""
        return dist.get_global_rank(self.group or dist.group.WORLD, rank % self.size)

    def gather(self, operation, x):
        """The list of what each rank gives, arrays of one shape and dtype."""
        parts, x = [torch.empty_like(x) for _ in range(self.size)], x.contiguous()
        self.count(operation, x)
        with self.named(operation):
            dist.all_gather(parts, x, group=self.group)
        return parts

    def lengths(self, x, alike):
        """[the rows of x on each rank]; ValueError, on every rank, unless `alike`, a dict, reads the same on all.

        (gloo ends a process that receives more bytes than it expects, and takes fewer, or other types, in silence.)
        """
        own = zlib.crc32(repr(alike).encode())
        told = torch.stack(self.gather(LENGTHS, torch.tensor([x.shape[-2], own], device=x.device))).tolist()
        if others := [rank for rank, (_, found) in enumerate(told) if found != own]:
            words = ", ".join(f"{name} {value}" for name, value in alike.items())
            raise ValueError(f"{self.caller}: every rank must have what rank {self.rank} has, {words}; ranks {others} "
                             "do not")
        return [rows for rows, _ in told]

    def largest(self, operation, x):
        """The elementwise maximum of what each rank gives."""
        return self._reduce(operation, x, dist.ReduceOp.MAX)

    def total(self, operation, x):
        """The elementwise sum of what each rank gives."""
        return self._reduce(operation, x, dist.ReduceOp.SUM)

    def _reduce(self, operation, x, how):
        x = x.clone(memory_format=torch.contiguous_format)
        self.count(operation, x)
        with self.named(operation):
            dist.all_reduce(x, how, group=self.group)
        return x


@dataclass(frozen=True, eq=False)
class Transfer:
    """Messages to the next rank and from the rank before, under way."""

    wire: Wire
    operation: str
    sent: list  # held until they have left
    coming: list
    calls: list

    def wait(self):
        """The list of arrays that came, once they are here and the others have left."""
        with self.wire.named(self.operation):
            for call in self.calls:
                call.wait()
        return self.coming
