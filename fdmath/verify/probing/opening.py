"""The first question: by which call, in which library and format, does the function return a state at all?"""

from dataclasses import replace
from importlib.util import find_spec

import numpy as np

from fdmath import _backends as backends
from fdmath.verify.probing.caller import Caller, D
from fdmath.verify.probing.contract import Trait
from fdmath.verify.probing.forms import forms
from fdmath.verify.subject import CALLED, SubjectError


def opened(subject, dtype=None):
    """(Caller or None, traits "call", "library" and "lse"): the first way of calling that says most.

    Ways are tried in this order: formats (the one asked for, or the subject's, then the others), libraries (the one
    declared first), operands read-only, then writable, signatures (the role's first). One that returns an lse, and
    heeds the operands besides q, k, v, ends the search.
    """
    best, first_error = None, ""
    for caller, form in _ways(subject, dtype):
        try:
            rank, found = _tried(caller)
        except SubjectError as error:
            first_error = first_error or str(error).splitlines()[0]
            continue
        if best is None or rank > best[0]:
            best = rank, caller, form, found
        if rank == (True, True) or (rank[0] and form is forms(subject.role, subject.kind)[-1]):
            break
    if best is None:
        return None, [Trait("call", None, f"no signature tried returns a state; the role's own {first_error}")]
    rank, caller, form, (o, lse) = best
    shapes = f"o of shape {o.shape}, " + ("no lse" if lse is None else f"lse {_shape(lse)}")
    heeds = "" if rank[1] else ", but causal, or seq_lens, changes nothing"
    return caller, [
        Trait("call", form.text, f"{form.text} in {caller.dtype} returns {shapes}{heeds}"),
        Trait("library", caller.subject.library, f"it takes {_arrays(caller.subject.library)}"),
        Trait("lse", lse is not None, f"it returns {shapes}"),
    ]


def _arrays(library):
    return "torch tensors" if library == "torch" else "NumPy arrays"


def _shape(lse):
    return "as m and l" if callable(lse) else f"of shape {lse.shape}"


def _ways(subject, dtype):
    """(Caller, Form) in the order in which they are tried."""
    dtypes = [dtype] if dtype else list(dict.fromkeys((*subject.dtypes, "float32", "float16", "bfloat16", "float64")))
    others = [x for x in ("numpy", "torch") if x != subject.library and (x == "numpy" or find_spec("torch"))]
    for name in dtypes:
        for library in (subject.library, *others):
            for in_place in (True,) if subject.in_place else (False, True):
                for form in forms(subject.role, subject.kind):
                    asked = replace(subject, library=library, in_place=in_place, fn=form.wrap(subject.fn))
                    yield Caller(asked, name), form


def _tried(caller):
    """((an lse is returned, operands besides q, k, v are heeded), (o, lse)) of a plain call."""
    role = caller.subject.role
    if role not in CALLED:
        o, lse = caller.weigh(np.zeros((3, 2)), np.ones((3, 2)))
        return (lse is not None, True), (o, lse)
    queries = 1 if role == "decode" else 4
    q, k = np.zeros((3, 2, queries, D)), np.zeros((3, 2, 4, D))
    v = np.broadcast_to(np.arange(4.0)[:, None], k.shape)
    o, lse = caller.attend(q, k, v, plain=True)
    with backends.quiet():
        if role == "partial":
            return (lse is not None, True), (o, lse)
        other, _ = caller.attend(q, k, v, causal=True, lens=[2, 4, 4], plain=True)
        return (lse is not None, bool(np.any(other != o))), (o, lse)
