"""The first question: by which call, in which library and format, does the function return a state at all?"""

from dataclasses import dataclass, replace
from importlib.util import find_spec

import numpy as np

from fdmath import _backends as backends
from fdmath.verify.probing.caller import Caller, D, said
from fdmath.verify.probing.contract import Trait
from fdmath.verify.probing.forms import forms
from fdmath.verify.subject import CALLED, SubjectError


@dataclass(frozen=True)
class Way:
    """A way of calling a subject: the text of a Form of its role, a library, a format, operands that it may write."""

    form: str
    library: str
    dtype: str
    in_place: bool

    def caller(self, subject, facts=()):
        """The Caller that puts questions in this way."""
        form, = (f for f in forms(subject.role, subject.kind) if f.text == self.form)
        device = subject.device if self.library == subject.library else "cpu"
        asked = replace(subject, library=self.library, device=device, in_place=self.in_place, fn=form.wrap(subject.fn))
        return Caller(asked, self.dtype, dict(facts))


def opened(subject, dtype=None):
    """(Way or None, traits "call", "library" and "lse"): the first way of calling that says most.

    Formats are tried in turn (the one asked for, or the subject's and then the others), in each the library declared
    and the other, in each operands to read, then to write, in each the signatures, the role's first. Where one returns
    a state, only signatures are tried further, until one returns an lse and heeds what it is given besides q, k, v.
    """
    best, errors = None, {}
    for way in _ways(subject, dtype):
        if best and replace(best[1], form=way.form) != way:  # another signature may do better, not another format
            continue
        try:
            rank, found = _tried(way.caller(subject))
        except SubjectError as error:
            errors.setdefault(way.library, said(error))
            continue
        if best is None or rank > best[0]:
            best = rank, way, found
        if all(rank):
            break
    if best is None:
        why = "; ".join(f"given {_arrays(library)} {error}" for library, error in errors.items())
        return None, [Trait("call", None, f"no signature tried returns a state; in its role's, {why}")]
    rank, way, (o, lse) = best
    shapes = f"o of shape {o.shape} and " + ("no lse" if lse is None else _shape(lse))
    heeds = "" if rank[1] else f", but {'causal' if subject.role == 'attention' else 'seq_lens'} changes nothing"
    return way, [Trait("call", way.form, f"{way.form} in {way.dtype} returns {shapes}{heeds}"),
                 Trait("library", way.library, f"so called it takes {_arrays(way.library)}"),
                 Trait("lse", lse is not None, f"it returns {shapes}")]


def _arrays(library):
    return "torch tensors" if library == "torch" else "NumPy arrays"


def _shape(lse):
    return "m and l" if callable(lse) else f"lse of shape {lse.shape}"


def _ways(subject, dtype):
    """The Ways in the order in which they are tried."""
    dtypes = [dtype] if dtype else list(dict.fromkeys((*subject.dtypes, "float32", "float16", "bfloat16", "float64")))
    others = [x for x in ("numpy", "torch") if x != subject.library and (x == "numpy" or find_spec("torch"))]
    return [Way(form.text, library, name, in_place)
            for name in dtypes for library in (subject.library, *others)
            for in_place in ((True,) if subject.in_place else (False, True))
            for form in forms(subject.role, subject.kind)]


def _tried(caller):
    """((an lse is returned, operands besides q, k, v are heeded), (o, lse)) of a plain call."""
    role = caller.subject.role
    if role not in CALLED:
        o, lse = caller.weigh(np.zeros((3, 2)), np.ones((3, 2)))
        return (lse is not None, True), (o, lse)
    q, k = np.zeros((3, 2, caller.queries, D)), np.zeros((3, 2, 4, D))
    v = np.broadcast_to(np.arange(4.0)[:, None], k.shape)
    o, lse = caller.attend(q, k, v, plain=True)
    if role == "partial":
        return (lse is not None, True), (o, lse)
    with backends.quiet():
        other, _ = caller.attend(q, k, v, causal=True, lens=[2, 4, 4], plain=True)
        return (lse is not None, bool(np.any(other != o))), (o, lse)
