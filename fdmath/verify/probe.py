"""The contract probe: what a function's outputs alone say about its conventions, its precision and its habits.

Each question is built so that its possible answers lie further apart than any rounding; an answer that is none of them
is "could not tell", and so is a call that raises.
"""

from fdmath import _backends as backends
from fdmath.algebra.state import AccState
from fdmath.verify.probing import bits, meaning, places, precision
from fdmath.verify.probing.caller import said
from fdmath.verify.probing.contract import Contract, Trait
from fdmath.verify.probing.forms import forms
from fdmath.verify.probing.opening import opened
from fdmath.verify.subject import CALLED, ROLES, SubjectError

MERGES = ("merge", "merge_many")

QUESTIONS = {
    "scale": (meaning.scale, CALLED),
    "normalised": (meaning.normalised, ROLES),
    "log_base": (meaning.log_base, ROLES),
    "lse_layout": (places.layout, CALLED),
    "heads": (places.heads, CALLED),
    "causal": (places.causal, ("attention",)),
    "empty": (meaning.empty, ROLES),
    "no keys": (meaning.no_keys, CALLED),
    "p_dtype": (precision.p_dtype, ROLES),
    "stats_dtype": (precision.stats_dtype, ROLES),
    "scores": (precision.scores, CALLED),
    "commutativity": (bits.commutativity, MERGES),
    "associativity": (bits.associativity, ("merge",)),
    "splits": (bits.splits, ("decode",)),
    "batch_invariance": (bits.batch_invariance, ROLES),
    "in_place": (bits.hazards, ROLES),
}
"""The questions in their order (later ones use what earlier ones found), each with the roles that it is about."""

CLAIMS = {"commutativity": "commutativity", "associativity": "bitwise associativity",
          "split_invariance": "partition independence", "batch_invariance": "batch mates"}
"""Traits that a subject declares by claiming a law."""


def probe(subject, dtype=None, *, told=None, risky=False, run=None, progress=None):
    """The Contract of a Subject, inferred from its outputs alone.

    dtype: the format of the inputs (default: the first in which a call works). told: the names of the traits that
    count as declared, such as {"log_base"} (default: all that the subject declares). risky: torch is also asked with
    no key at all where nothing else shows what stands for none, which kills the process of some kernels.
    run(task, *args): how `begin` and `answer` are called, by name and without the subject (default: here). progress:
    called with the name of each question. Whatever the function raises or returns, nothing is raised.
    """
    run = run or (lambda task, *args: {"begin": begin, "answer": answer}[task](subject, *args))
    try:
        way, traits = run("begin", dtype)
    except SubjectError as error:
        way, traits = None, [Trait("call", None, said(error))]
    facts = {t.name: t.value for t in traits}
    for name in asked(subject, way, facts.get("lse"), risky):
        if name == "no keys" and facts.get("empty", facts.get("empty_o")) is not None:
            continue
        if progress:
            progress(name)
        found = _answered(run, way, facts, name)
        facts |= {t.name: t.value for t in found}
        traits = [t for t in traits if t.name not in {new.name for new in found}] + found
    declared = declarations(subject, told)
    return Contract(subject.name, subject.role, way and way.dtype,
                    tuple(Trait(t.name, t.value, t.evidence, declared.get(t.name)) for t in traits))


def asked(subject, way, lse=True, risky=False):
    """The names of the questions for a subject called in a way; none where there is no way. lse: it returns one."""
    if way is None:
        return []
    out = {"normalised"} if subject.kind is AccState and subject.role not in CALLED else set()
    out |= {"scores"} if way.dtype != "float32" else set()
    out |= set() if lse else {"log_base", "stats_dtype"}
    out |= {"no keys"} if way.library != "numpy" and not risky else set()
    return [name for name, (_, roles) in QUESTIONS.items() if subject.role in roles and name not in out]


def begin(subject, dtype=None):
    """(Way, traits): see `opening.opened`."""
    return opened(subject, dtype)


def answer(subject, way, facts, name):
    """The traits that a question found, given the facts found before (trait → value)."""
    with backends.quiet():
        return QUESTIONS[name][0](way.caller(subject, facts))


def _answered(run, way, facts, name):
    """The same; one that could not be told where the call raised, returned no state, or died."""
    try:
        return run("answer", way, facts, name)
    except SubjectError as error:
        return [Trait("empty" if name == "no keys" else name, None, said(error))]


def declarations(subject, told=None):
    """What the subject declares, by trait; of those named in `told` only, where that is given."""
    everything = {
        "call": forms(subject.role, subject.kind)[0].text, "library": subject.library, "lse": subject.lse,
        "log_base": subject.log_base, "empty": subject.empty, "empty_merged": subject.empty,
        "lse_layout": subject.lse_layout, "heads": subject.heads,
        "causal": subject.causal, "scale": "1/sqrt(d)" if subject.scale is None else subject.scale,
        "in_place": subject.in_place, "p_dtype": subject.p_dtype, "stats_dtype": subject.stats_dtype,
        "scores": {"ieee": "float32"}.get(subject.input_precision, subject.input_precision),
        **{trait: True for trait, law in CLAIMS.items() if law in subject.claims},
    }
    option = {"empty_merged": "empty", "scores": "input_precision"}
    return {name: x for name, x in everything.items() if told is None or option.get(name, name) in told}


__all__ = ["QUESTIONS", "Contract", "Trait", "answer", "asked", "begin", "declarations", "probe"]
