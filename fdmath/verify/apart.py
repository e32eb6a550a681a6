"""The judgement of a subject in a process of its own: found, probed, asked, explained; each trouble is one cell's."""

import functools
import itertools
import math
import operator
from dataclasses import replace

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState
from fdmath.verify.judge import CASES, ask, check, laws_named, why_not
from fdmath.verify.laws import LAWS, MERGING
from fdmath.verify.probe import probe
from fdmath.verify.probing.contract import shown
from fdmath.verify.report import Cell, Report
from fdmath.verify.strategies import plain
from fdmath.verify.subject import CALLED, SubjectError
from fdmath.verify.worker import PATIENCE, SECONDS, Trouble, Worker

CONVENTIONS = ("log_base", "empty", "lse_layout", "causal", "heads", "scale")
"""What is taken from a probe where it is not declared; none of them widens a budget.

in_place is not: a function that returns a state and changes its operands besides breaks the law of inputs.
"""

HERE = "fdmath.verify.apart"
EQUAL = ((2, 2), (4, 4), (16, 16), (64, 64), (32, 32), (128, 128))
"""Pairs (d, dv) that a function is given which does not take d = 2 with dv = 1: kernels often need dv = d."""
QUERIES = (65, 64, 32, 16, 8, 4, 2)
"""Query tokens that a function is given, to see how many it takes: kernels for decoding take few."""
HALF = ("float16", "bfloat16")
"""Formats that a function is given which takes none of the declared."""


def verify_apart(make, laws=None, cases=CASES, *, seed=0, told=None, seconds=SECONDS, progress=None,
                 replay=None, guard=Worker):
    """The Report of the subject that make() makes, judged in a process of its own (see `worker.Worker`).

    told: the names of what is declared; what else can be found out (the library, whether it works in place or returns
    no lse, the CONVENTIONS) is, and what the outputs contradict of these is a failure. None: all is as declared.
    seconds: the time for a law. progress: called with each (law, subject) before it is asked. replay: see Report.
    guard: `worker.Here` to stay in this process. Raises ValueError for a name that is no law, Trouble where the subject
    cannot be made.
    """
    laws_named(laws)  # before a process is begun
    with guard(make, seconds) as worker:
        return verify_by(worker, laws, cases, seed=seed, told=told, progress=progress, replay=replay)


def verify_by(worker, laws=None, cases=CASES, *, seed=0, told=None, progress=None, replay=None):
    """The Report of the subject that a worker keeps; otherwise as `verify_apart`."""
    chosen = laws_named(laws)
    subject = worker.run(f"{HERE}:seen")
    notes, contradictions, trouble = [], [], ""
    try:
        found, trouble = worker.run(f"{HERE}:suited", told)
        notes += _taken(worker, found)
        if told is not None and not trouble:
            lines, contradictions = _probed(worker, told, subject)
            notes += filter(None, lines)
    except Trouble as error:
        trouble = str(error)
    subject = replace(subject, **worker.declared)
    cells = {}
    for law in chosen:
        if progress is not None:
            progress(law, subject)
        cells[law.name] = _asked(worker, law, subject, trouble, cases, seed)
    try:
        cells = worker.run("fdmath.verify.explain:explained", cells, seed, cases)
    except Trouble as error:  # what breaks a law may hang or die under another declaration
        notes.append(f"not explained: {error}")
    return Report(chosen, [subject], {(law, subject.name): cell for law, cell in cells.items()}, replay=replay,
                  notes={subject.name: notes}, contradictions=[f"{subject.name}: {text}" for text in contradictions])


def _taken(worker, found):
    """Lines on what was found without a probe, which is declared from now on."""
    worker.declared |= found
    lines = [_how_taken(name, value) for name, value in found.items()]
    said = worker.printed()
    return lines + ([f"it printed: {said}"] if said else [])


def _how_taken(name, value):
    """What a declaration found by calling means, in a line."""
    if name == "dims":
        return f"taken as dv = d: asked with d = {', '.join(str(d) for d, _ in sorted(value))} alone"
    if name == "most_queries":
        return f"takes no more than {value} quer{'y' if value == 1 else 'ies'} a sequence: asked with no more"
    return {"grouped": "takes no grouped heads: asked with one query head a KV head",
            "splits": "taken without num_splits: only the keys of a call are split, or not at all",
            "dtypes": f"dtypes taken: {', '.join(value) if name == 'dtypes' else ''}; no others are asked",
            }.get(name, f"taken as {name}={value!r}: so called, it returns a state")


def _probed(worker, told, subject):
    """(lines on what the probe found and is declared from now on, declarations that it contradicts as sentences)."""
    contract = contract_in(worker, subject, told)
    found = {name: value for name, value in contract.declarations().items() if name in CONVENTIONS and name not in told}
    worker.declared |= found
    wrong = [f"{t.name}={t.declared!r} is declared, but {t.evidence}" for t in contract.contradictions()]
    unknown = [t.name for t in contract.undecided() if t.name in CONVENTIONS]
    if not worker.declared.get("grouped", True):  # without groups there is one way to share heads
        unknown = [name for name in unknown if name != "heads"]
    return _said(contract, found, subject, unknown), wrong


def contract_in(worker, subject, told, dtype=None, risky=False):
    """The Contract of the worker's subject, each question a task of its own, which may hang or die for itself alone."""
    def run(task, *args):
        try:
            return worker.run(f"fdmath.verify.probe:{task}", *args)
        except Trouble as error:
            raise SubjectError(str(error)) from error

    return probe(replace(subject, **worker.declared), dtype, told=told, risky=risky, run=run)


def _said(contract, found, subject, unknown):
    """What the probe found, in a line; a line more for what is not as the house has it, and for what it could not tell.
    """
    other = [name for name, value in found.items() if value != getattr(subject, name)]
    short = "scores" in contract and contract["scores"].value not in (None, "float32", subject.input_precision)
    other += ["scores"] * short
    return [f"found: {', '.join(f'{name} {shown(contract[name].value)}' for name in found)}" if found else "",
            *(f"{name} {shown(contract[name].value)}: {contract[name].evidence}" for name in other),
            f"could not tell: {', '.join(unknown)}" if unknown else ""]


def _asked(worker, law, subject, trouble, cases, seed):
    """The Cell of one law; "not run" where the process did not survive it, or the subject cannot run at all."""
    if not law.concerns(subject):
        return Cell("n/a", law.grade_for(subject))
    if trouble:
        return Cell("not run", law.grade_for(subject), counterexample=trouble)
    try:
        cell = worker.run(f"{HERE}:asked", law.name, cases, seed, PATIENCE * worker.seconds)
    except Trouble as error:
        cell = Cell("not run", law.grade_for(subject), counterexample=str(error))
    return replace(cell, printed=worker.printed())


# -- what is done in the process ------------------------------------------------------------------------


def elsewhere(*_):
    """Nothing; stands for a function that is in another process, where alone it is called."""
    raise RuntimeError("the function of this subject is in another process")


def seen(subject):
    """The subject without its functions, which need not be picklable; raises what `judge.check` raises."""
    check(subject)
    return replace(subject, fn=elsewhere, backward=None if subject.backward is None else elsewhere)


def suited(subject, told):
    """(the declarations with which the subject runs, "" or why it does with none, the input first).

    Of the library, in_place, lse, and what it takes: formats, head dimensions, grouped heads, num_splits.
    """
    reasons = {}
    for found in _ways(subject, told):
        one = replace(subject, **found)
        reason = why_not(one, _plain(one))
        if not reason:
            return found if told is None else found | _taken_by(one, found, told), ""
        reasons.setdefault(reason, "as it is" if not found else "with " + ", ".join(
            f"{name}={value!r}" for name, value in found.items()))
    order = sorted(reasons, key=lambda reason: "returned" not in reason and "must return" not in reason)
    return {}, "\n".join([str(_plain(subject)), *(f"{reasons[reason]}: {reason}" for reason in order)])


def _ways(subject, told):
    """The declarations to try, those that depart least from what is declared first."""
    if told is None:
        return [{}]
    calls, merges = subject.role in CALLED, subject.role in MERGING
    other = {"in_place": True} if subject.role == "merge" else {"lse": False}
    torch = "library" not in told and backends.load("importlib.util:find_spec")("torch")
    choices = [
        [{}, *([{"library": "torch"}] if torch else [])],
        [{}, *([other] if subject.kind is LSEState and not other.keys() & set(told) else [])],
        [{}, *([{"splits": False}] if subject.role == "decode" else [])],
        [{}, *({"dims": (pair,)} for pair in EQUAL[1::2] if calls and not subject.dims)],
        [{}, *({"dtypes": (name,)} for name in HALF if not (merges or _formats_told(told)))],
    ]
    ways = [functools.reduce(operator.or_, way) for way in itertools.product(*choices)]
    return sorted(ways, key=len)


def _taken_by(subject, found, told):
    """What of formats, head dimensions and grouped heads a subject that runs takes: declarations, where it is not all.
    """
    runs = lambda **declared: not why_not(one := replace(subject, **declared), _plain(one))  # noqa: E731
    taken = {}
    if not _formats_told(told):
        formats = HALF if "dtypes" in found else subject.dtypes
        taken["dtypes"] = tuple(name for name in formats if runs(dtypes=(name,)))
    if "dims" in found:
        taken["dims"] = tuple(pair for pair in EQUAL if runs(dims=(pair,)))
    if subject.role in CALLED and "grouped" not in told:
        # 4 over 2: one KV head would be broadcast by functions that know no groups
        taken["grouped"] = _runs_with_heads(subject, 4, 2) or not _runs_with_heads(subject, 2, 2)
    if subject.role in CALLED and "most_queries" not in told and not _runs_with_queries(subject, QUERIES[0]):
        taken["most_queries"] = next((n for n in QUERIES[1:] if _runs_with_queries(subject, n)), 1)
    return {name: value for name, value in taken.items() if value != getattr(subject, name)}


def _plain(subject):
    """The plainest case of what the subject takes."""
    case = plain(subject)
    return case.taken_by(subject) if subject.role in CALLED else case


def _runs_with_heads(subject, heads, kv):
    """Whether the plainest call with so many query heads and KV heads returns a state, in either layout of lse."""
    case = _plain(subject)
    k, v = (np.repeat(x, kv, axis=1) for x in (case.k, case.v))
    return _returns_a_state(subject, replace(case, q=np.repeat(case.q, heads, axis=1), k=k, v=v))


def _runs_with_queries(subject, queries):
    """Whether the plainest call with so many queries returns a state; a decode has one."""
    case = _plain(subject)
    case = replace(case, q=np.repeat(case.q, queries, axis=2), k=np.repeat(case.k, queries, axis=2),
                   v=np.repeat(case.v, queries, axis=2))
    return subject.role == "decode" or _returns_a_state(subject, case)


def _returns_a_state(subject, case):
    """Whether a call of the case returns a state, in either layout of lse."""
    return any(not why_not(replace(subject, lse_layout=layout), case) for layout in ("heads_first", "heads_last"))


def _formats_told(told):
    return "dtypes" in told


def asked(subject, name, cases, seed, patience=math.inf):
    """The Cell of the law `name`."""
    return ask(LAWS[name], subject, cases, seed=seed, seconds=patience)


__all__ = ["CONVENTIONS", "contract_in", "elsewhere", "seen", "suited", "verify_apart", "verify_by"]
