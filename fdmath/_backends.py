"""The one place that knows array libraries and number formats by name.

Everything above this module is written once, for NumPy and torch alike, against the namespace that
`array_namespace` returns (array-api-compat). torch is never imported here: a torch tensor in hand
means that its owner has imported it already.
"""

import contextlib
import functools
import importlib
import math
import os
import sys

import array_api_compat.numpy as numpy_namespace
import numpy as np
from array_api_compat import array_namespace as _compat_namespace
from array_api_compat import is_torch_array

FLOATS = ("float16", "bfloat16", "float32", "float64")


def load(path):
    """The object that "package.module:name" names, imported only now."""
    module, _, name = path.partition(":")
    return getattr(importlib.import_module(module), name)


def array_namespace(**arrays):
    """The array-api namespace shared by the named arrays.

    Raises TypeError, naming the argument, for anything that is not an array of NumPy or torch and
    for arrays of two libraries or two devices.
    """
    (first, reference), *others = arrays.items()
    kind = library(reference, first)
    for name, x in others:
        if library(x, name) != kind:
            raise TypeError(f"{name} must be of the same library as {first} ({kind}); got {library(x)}")
        if kind == "torch" and x.device != reference.device:
            raise TypeError(f"{name} must be on the device of {first} ({reference.device}); got {x.device}")
    return numpy_namespace if kind == "numpy" else _compat_namespace(reference)


def library(x, name="array"):
    """The name of the library that the array x belongs to, "numpy" or "torch"; TypeError for anything else."""
    if isinstance(x, (np.ndarray, np.generic)):
        return "numpy"
    if is_torch_array(x):
        return "torch"
    raise TypeError(f"{name} must be a NumPy array or a torch tensor; got {type(x).__name__}")


def float_name(x, name="array"):
    """The name of the float format of the array or dtype x, one of FLOATS; TypeError for any other dtype."""
    dtype = x if isinstance(x, type) else getattr(x, "dtype", x)  # the class np.float32 has a `dtype` of its own
    try:
        found = _dtype_name(dtype)
    except TypeError:  # what cannot be hashed is no dtype
        found = repr(dtype)
    if found not in FLOATS:
        raise TypeError(f"{name} must have a float dtype ({', '.join(FLOATS)}); got {found}")
    return found


@functools.cache
def _dtype_name(dtype):
    """The name of a dtype of either library, of a NumPy scalar type, or of a name given as text."""
    text = str(getattr(dtype, "name", dtype)).removeprefix("torch.")
    if text in FLOATS or dtype is None:  # None would be float64 to NumPy
        return text
    try:
        return np.dtype(dtype).name
    except TypeError:
        return text


def dtype_of(x, name):
    """The dtype called `name` (one of FLOATS) in the library of the array x."""
    if library(x) == "torch":
        return getattr(_compat_namespace(x), name)
    return np.dtype(load("ml_dtypes:bfloat16")) if name == "bfloat16" else np.dtype(name)


def cast(x, name):
    """x in the format called `name`; x itself where it has that format already.

    Rounded once, but for float64 to 16 bits: both libraries go there through float32 (NumPy to float16
    does not), a second rounding that stays within u·|x| of the narrow format.
    """
    if float_name(x) == name:
        return x
    if library(x) == "torch":
        return x.to(dtype_of(x, name))
    with np.errstate(over="ignore"):  # a value beyond the format rounds to infinity, as IEEE 754 says
        return x.astype(dtype_of(x, name))


def filled(xp, x, where, value):
    """x with the number `value` in the places `where`, in x's own format.

    A bare number in xp.where would make NumPy's bfloat16, which NumPy itself does not know, float64.
    """
    return xp.where(where, xp.full((), value, dtype=x.dtype, device=getattr(x, "device", None)), x)


def widest(*names):
    """The narrowest of FLOATS that holds every value of the formats named (float16 with bfloat16 is float32)."""
    if "float64" in names:
        return "float64"
    return names[0] if len(set(names)) == 1 else "float32"


def working(*names):
    """The format that work on the formats named is done in: float64 if one of them is, else float32."""
    return "float64" if "float64" in names else "float32"


def constant(x):
    """x as a constant of differentiation (the same array for NumPy)."""
    return x.detach() if library(x) == "torch" else x


def in_memory(x):
    """x as a NumPy array that shares its memory; None for a tensor elsewhere, or that torch wants to follow."""
    if library(x) == "numpy":
        return x
    if not x.is_cpu or followed(x):
        return None
    torch = sys.modules["torch"]
    if x.dtype == torch.bfloat16:
        return x.detach().view(torch.int16).numpy().view(dtype_of(np.empty(0), "bfloat16"))
    return x.detach().numpy()


def followed(x):
    """Whether torch follows what is done with its tensor x: a derivative, a transform of torch.func, a trace, a
    compilation.

    torch has no public question for the last three; what NumPy reads then is not what is computed.
    """
    torch = sys.modules["torch"]
    if x.requires_grad and torch.is_grad_enabled() or torch.autograd.forward_ad.unpack_dual(x).tangent is not None:
        return True
    inner = torch._C
    transformed = inner._functorch.peek_interpreter_stack() is not None or torch._is_functional_tensor(x)
    traced = torch.compiler.is_compiling() or torch.jit.is_tracing() or inner._len_torch_dispatch_stack() > 0
    return transformed or traced or inner._functorch.is_functorch_wrapped_tensor(x)


def from_memory(x, like):
    """x in the library of `like`: itself where it is of that library, else a tensor that shares NumPy's memory."""
    if library(like) == library(x):
        return x
    torch = load("importlib:import_module")("torch")
    if float_name(x) != "bfloat16":
        return torch.from_numpy(x)
    return torch.from_numpy(x.view(np.int16)).view(torch.bfloat16)


def copy_to(out, x):
    """Nothing; the numbers of the NumPy array x are in `out`, in its format.

    NumPy converts float16 one by one, torch in vectors: twenty times as fast, where it is loaded anyway and takes x.
    """
    torch = sys.modules.get("torch") if x.dtype == np.float16 and x.flags.writeable else None  # from_numpy wants it so
    if torch:
        with contextlib.suppress(ValueError):  # strides that torch does not have
            torch.from_numpy(out).copy_(torch.from_numpy(x))
            return
    np.copyto(out, x)


def threads(x):
    """How many threads may work on arrays of x's library: torch.get_num_threads(), or OMP_NUM_THREADS, or the cores."""
    if library(x) == "torch":
        return load("torch:get_num_threads")()
    asked = os.environ.get("OMP_NUM_THREADS", "").partition(",")[0]
    if asked.isdecimal() and int(asked) > 0:
        return int(asked)
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def exp2(xp, x):
    """2 to the power x, elementwise; exact where x is an integer in range.

    `pow` is used because both libraries' pow is exact there on every machine tried, while a vectorised
    exp2 need not be.
    """
    return xp.pow(xp.asarray(2.0, dtype=x.dtype), x)


def exp_log(xp, base):
    """The pair (exponential, logarithm) of the given base, math.e or 2."""
    if base == 2:
        return (lambda x: exp2(xp, x)), xp.log2
    if base == math.e:
        return xp.exp, xp.log
    raise ValueError(f"base must be math.e or 2; got {base!r}")


def quiet():
    """A context in which NumPy does not warn about infinities and NaNs that are meant (log 0, inf - inf)."""
    return np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore")
