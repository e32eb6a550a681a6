"""The contract probe: what a function's outputs alone say about its conventions, its precision and its habits.

Each question is built so that its possible answers lie further apart than any rounding; an answer that is none of them
is "could not tell", and so is a call that raises.
"""

from fdmath import _backends as backends
from fdmath.algebra.state import AccState
from fdmath.verify.probing import bits, meaning, places, precision
from fdmath.verify.probing.contract import Contract, Trait
from fdmath.verify.probing.forms import forms
from fdmath.verify.probing.opening import opened
from fdmath.verify.subject import CALLED, SubjectError

MERGES = ("merge", "merge_many")
STATES = (*MERGES, "block")
ALL = (*STATES, *CALLED)

QUESTIONS = {
    "scale": (meaning.scale, CALLED),
    "normalised": (meaning.normalised, ALL),
    "log_base": (meaning.log_base, ALL),
    "lse_layout": (places.layout, CALLED),
    "heads": (places.heads, CALLED),
    "causal": (places.causal, ("attention",)),
    "empty": (meaning.empty, ALL),
    "p_dtype": (precision.p_dtype, ALL),
    "stats_dtype": (precision.stats_dtype, ALL),
    "scores": (precision.scores, CALLED),
    "commutativity": (bits.commutativity, MERGES),
    "associativity": (bits.associativity, ("merge",)),
    "splits": (bits.splits, ("decode",)),
    "batch_invariance": (bits.batch_invariance, ALL),
    "in_place": (bits.hazards, ALL),
}
"""The questions in their order (later ones use what earlier ones found), each with the roles that it is about."""


def probe(subject, dtype=None, *, told=None, skip=(), progress=None):
    """The Contract of a Subject, inferred from its outputs alone.

    dtype: the format of the inputs (default: the first in which a call works). told: the names of the declarations that
    count as made, such as {"log_base"} (default: all that the subject has). skip: questions not to be asked, by name, of
    which "no keys" (a call without any key, never asked of torch, where it can kill the process, unless skip is None)
    is one. progress: called with the name of each question before it is asked.
    Whatever the function raises or returns, nothing is raised.
    """
    risky, skip = skip is None, skip or ()
    caller, traits = opened(subject, dtype)
    for name, (question, roles) in QUESTIONS.items() if caller else ():
        if subject.role in roles and name not in skip and _applies(name, caller):
            if progress:
                progress(name)
            found = _asked(name, question, caller, risky)
            caller.facts.update({t.name: t.value for t in found})
            traits += found
    declared = declarations(subject, caller.dtype if caller else "float32", told)
    return Contract(subject.name, subject.role, caller and caller.dtype,
                    tuple(Trait(t.name, t.value, t.evidence, declared.get(t.name)) for t in traits))


def _applies(name, caller):
    if name == "normalised":
        return caller.subject.kind is not AccState or caller.subject.role in CALLED
    return name != "scores" or caller.dtype == "float32"


def _asked(name, question, caller, risky):
    """The traits that a question found; one that could not be told where the call raised or returned no state."""
    try:
        with backends.quiet():
            return question(caller, risky) if name == "empty" else question(caller)
    except SubjectError as error:
        return [Trait(name, None, f"it {str(error).splitlines()[0]}")]


def declarations(subject, dtype, told=None):
    """What the subject declares, by trait; of those named in `told` only, where that is given."""
    claims = {name: True for name in ("commutativity",) if name in subject.claims}
    if "bitwise associativity" in subject.claims:
        claims["associativity"] = True
    everything = {
        "call": forms(subject.role, subject.kind)[0].text, "library": subject.library, "log_base": subject.log_base,
        "empty": subject.empty, "lse_layout": subject.lse_layout, "heads": subject.heads, "causal": subject.causal,
        "in_place": subject.in_place, "scale": "1/sqrt(d)" if subject.scale is None else subject.scale,
        "p_dtype": subject.p_format(dtype) or backends.working(dtype), "lse": getattr(subject, "lse", True),
        "stats_dtype": subject.stats_dtype or backends.working(dtype), "normalised": True, **claims,
    }
    return everything if told is None else {name: x for name, x in everything.items() if name in told or name in claims}


__all__ = ["QUESTIONS", "Contract", "Trait", "declarations", "probe"]
