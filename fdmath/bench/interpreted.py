"""Our Triton kernels in Triton's interpreter, called from any process: on a CPU, slowly, with the kernels' own steps.

Triton decides when a kernel is defined whether it is interpreted, so the calls go to a process of their own, in
which TRITON_INTERPRET is set before anything is imported. It needs torch and Triton.
"""

import contextlib
import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.rounding import exact


@contextlib.contextmanager
def interpreter():
    """A context with run(path, *arguments, **options): what the function at "package.module:name" returns there.

    NumPy arrays among the arguments and options become torch tensors, and the tensors of the result, one or a
    sequence, NumPy arrays, bfloat16 ones float32. What the function raises is raised here.
    """
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, mp_context=spawn, initializer=_interpret) as pool:
        def run(path, *arguments, **options):
            return pool.submit(_call, path, arguments, options).result()

        yield run


def _interpret():
    os.environ["TRITON_INTERPRET"] = "1"


def _call(path, arguments, options):
    """What the function at `path` returns for NumPy arrays, as NumPy arrays (in the process of the interpreter)."""
    function = backends.load(path)
    result = function(*map(_sent, arguments), **{name: _sent(x) for name, x in options.items()})
    return tuple(map(_returned, result)) if hasattr(result, "__iter__") and not hasattr(result, "shape") else _returned(
        result)


def _sent(x):
    if not isinstance(x, np.ndarray):
        return x
    torch = backends.load("importlib:import_module")("torch")
    if x.dtype.name == "bfloat16":
        return torch.from_numpy(x.astype(np.float32)).to(torch.bfloat16)
    return torch.from_numpy(x.copy())


def _returned(x):
    if not hasattr(x, "detach"):
        return x
    return exact(x).astype(np.float32) if backends.float_name(x) == "bfloat16" else x.numpy()
