"""Ranks of a group on this machine (gloo), each a Python process of its own, and how each of them ended.

The processes meet in a file of a temporary folder. None is ended because another died, so that what the others say
about it can be read: torch.multiprocessing.spawn would end them. None outlives the call, interrupted or not.
"""

import os
import pickle
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import NamedTuple

from fdmath import _backends as backends

STARTING = "FDMATH_RANK_STARTING"
"""The variable of the environment that a rank has while it imports its target, when it must start no ranks itself."""

ALONE = {STARTING: "1", "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1",
         "PYTHONIOENCODING": "utf-8"}


class Outcome(NamedTuple):
    """How one rank ended: its exit code (None: ended here, at the deadline), what its call returned, what it printed.

    printed holds the standard output and error, a traceback among them. returned: whether the call did, so that value
    is its value; a target may also leave its process with exit code 0.
    """

    code: int | None
    value: object
    printed: str
    returned: bool = True


def run_ranks(target, arguments, *, timeout=20.0, deadline=60.0, **options):
    """[Outcome] of `target` called once on each rank of a new gloo group, with what the ranks' processes left.

    target: "package.module:function", found from the current folder too. arguments: a tuple for each rank, whose number
    is the size of the group; options: keyword arguments for all. What goes in and out is pickled. timeout: the seconds
    after which an operation that waits for another rank fails; deadline: those after which what still runs is ended.
    One thread a rank. Raises RuntimeError where a rank's import of its target comes here again, as it does in a script
    that calls this without `if __name__ == "__main__":` and holds the target too.
    """
    if STARTING in os.environ:
        raise RuntimeError('ranks must not be started by the import of their target: put the call of run_ranks under '
                           'if __name__ == "__main__":')
    with tempfile.TemporaryDirectory(prefix="fdmath-ranks-") as name:
        folder = Path(name)
        for rank, own in enumerate(arguments):
            (folder / f"job-{rank}").write_bytes(pickle.dumps((target, tuple(own), options)))
        with ExitStack() as ends:
            ranks = [_start(folder, rank, len(arguments), timeout, ends) for rank in range(len(arguments))]
            until = time.monotonic() + deadline
            codes = [_code(process, until) for process in ranks]
        return [_outcome(folder, rank, code) for rank, code in enumerate(codes)]


def values_of(outcomes):
    """What the ranks returned, in their order; RuntimeError with the words of those that did not end well."""
    if failed := [f"rank {i} ({x.code}): {x.printed}" for i, x in enumerate(outcomes) if x.code != 0 or not x.returned]:
        raise RuntimeError("\n".join(failed))
    return [x.value for x in outcomes]


def _start(folder, rank, size, timeout, ends):
    """The process of one rank, whose words go to a file of the folder; `ends`, an ExitStack, ends it."""
    words = [sys.executable, "-c", "from fdmath.distributed.launch import rank_main; rank_main()",
             str(folder), str(rank), str(size), str(timeout)]
    with (folder / f"printed-{rank}").open("wb") as printed:
        process = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=printed, stderr=subprocess.STDOUT,
                                   env={**os.environ, **ALONE})
    ends.callback(process.wait)
    ends.callback(process.kill)  # first of the two, and nothing where the process has ended
    return process


def _code(process, until):
    """The exit code of a process; None where it ran until the deadline and was ended."""
    try:
        return process.wait(max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        return None


def _outcome(folder, rank, code):
    """The Outcome of one rank, from what it wrote."""
    printed = (folder / f"printed-{rank}").read_text(encoding="utf-8", errors="replace")
    returned = code == 0 and (folder / f"value-{rank}").exists()
    value = pickle.loads((folder / f"value-{rank}").read_bytes()) if returned else None
    return Outcome(code, value, printed, returned)


def rank_main():
    """Nothing; in the process of a rank: the group is made, the target called, its value written."""
    folder, rank, size, timeout = (kind(word) for kind, word in zip((Path, int, int, float), sys.argv[1:], strict=True))
    target, own, options = pickle.loads((folder / f"job-{rank}").read_bytes())
    dist, timedelta = backends.load("importlib:import_module")("torch.distributed"), backends.load("datetime:timedelta")
    dist.init_process_group("gloo", store=dist.FileStore(str(folder / "store"), size), rank=rank, world_size=size,
                            timeout=timedelta(seconds=timeout))
    call = backends.load(target)
    del os.environ[STARTING]
    value = call(*own, **options)
    (folder / f"value-{rank}").write_bytes(pickle.dumps(value))
    with suppress(RuntimeError):  # another has died, which its own outcome says
        dist.barrier()  # who has all that it needs may still hold what others wait for
    dist.destroy_process_group()
