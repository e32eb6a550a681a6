"""What would explain a broken law: a convention that was not declared, a coarser format, a kind of fault that is known.

Nothing here is a verdict. A declaration explains a law if the law holds under it, on the case that broke it and on as
many as it was asked about; a mutant, a right function with one known fault, explains a subject if the two give the same
results.
"""

import functools
import math
from dataclasses import dataclass, replace

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState
from fdmath.verify.judge import CASES, ask, drawn
from fdmath.verify.laws import LAWS, MERGING
from fdmath.verify.probe import probe
from fdmath.verify.reference import as_pair
from fdmath.verify.subject import CALLED, ROLES, SubjectError


@dataclass(frozen=True)
class Declaration:
    """A declaration as a dict, what that is as if, the roles that it concerns, the fault it is if not meant."""

    declared: dict
    sentence: str
    roles: tuple = ROLES
    fault: str = ""

    def of(self, subject):
        """The subject with the declaration; None where that changes nothing, or cannot be."""
        if subject.role not in self.roles or all(getattr(subject, name) == x for name, x in self.declared.items()):
            return None
        try:
            return replace(subject, **self.declared)
        except ValueError:
            return None

    def besides(self, other):
        """The Declaration of both this and the other."""
        return replace(self, declared=other.declared | self.declared,
                       sentence=f"{other.sentence}, and {self.sentence.removeprefix('as if ')}")

    def __str__(self):
        told = ", ".join(f"{name}={value!r}" for name, value in self.declared.items())
        fault = f"; if not meant, fault {self.fault}: {FAULTS[self.fault]}" if self.fault else ""
        return f"{self.sentence} (the law holds with the declaration {told}{fault})"


CONVENTIONS = [
    Declaration({"log_base": 2}, "as if every lse were in base 2"),
    Declaration({"log_base": math.e}, "as if every lse were natural"),
    Declaration({"empty": math.inf}, "as if the lse of no keys were +inf"),
    Declaration({"empty": -math.inf}, "as if the lse of no keys were -inf"),
    Declaration({"lse_layout": "heads_last"}, "as if lse were laid out (…, Nq, H)", CALLED),
    Declaration({"lse_layout": "heads_first"}, "as if lse were laid out (…, H, Nq)", CALLED),
    Declaration({"causal": "top_left"}, "as if the causal mask were aligned top-left", ("attention",)),
    Declaration({"causal": "bottom_right"}, "as if the causal mask were aligned bottom-right", ("attention",)),
    Declaration({"heads": "tiled"}, "as if query head h read KV head h mod Hkv", CALLED),
    Declaration({"heads": "interleaved"}, "as if query head h read KV head h // group", CALLED),
    Declaration({"scale": 1.0}, "as if the scores were not scaled", CALLED),
    Declaration({"in_place": True}, "as if it worked in place"),
]


@dataclass(frozen=True)
class WeightsIn:
    """The base of the weights of o alone, where lse is in another: of a merge of two pairs."""

    base: float

    def of(self, subject):
        """The subject in this base, its lse put right; None where that is its own base, or no such merge."""
        if subject.role != "merge" or subject.kind is not LSEState or subject.in_place or subject.log_base == self.base:
            return None
        return replace(subject, log_base=self.base, fn=self._lse_put_right(subject.fn))

    def _lse_put_right(self, fn):
        def run(o1, lse1, o2, lse2):
            name = "logaddexp2" if self.base == 2 else "logaddexp"
            added = backends.load(f"torch:{name}") if hasattr(lse1, "clone") else getattr(np, name)
            return fn(o1, lse1, o2, lse2)[0], added(lse1, lse2)

        return run

    def __str__(self):
        weights, lse = ("2", "e") if self.base == 2 else ("e", "2")
        fault = "D2" if self.base == 2 else "D1"
        return (f"as if o were weighed in base {weights}, and lse taken in base {lse} "
                f"(o keeps the law in base {weights}; fault {fault}: {FAULTS[fault]})")


SINGLE = Declaration({"stats_dtype": "float32"}, "as if float64 inputs were worked on in float32, alone of the formats")
"""What most kernels do: `--dtype float32` asks them about what they are for."""
COARSE = ("float16", "bfloat16")
"""Formats that a probe may find where a law asks for finer ones."""
SHORT = Declaration({"input_precision": "tf32"}, "as if the factors of float32's products had eleven bits, as in TF32")


def explanations(subject, cells, seed=0, cases=CASES):
    """By the name of each broken law (in `cells`, law → Cell), the sentences that may explain it.

    Conventions, formats, kinds of fault: what does not explain the first of the laws is not tried on the others.
    """
    first = next(iter(cells))
    holds = lambda name, other: _holds(name, other, cells[name].case, seed, cases)  # noqa: E731
    likely = [d for d in CONVENTIONS if holds(first, d.of(subject))]
    if not likely and cells[first].dtype == "float64" and _holds(first, _single(subject), None, seed, cases):
        likely = [d for d in [SINGLE] if holds(first, d.of(subject))]
    if not likely:  # its lse is put right, so a law of lse alone says nothing: the anchor is asked too
        likely = [d for d in map(WeightsIn, (2, math.e)) if holds(first, d.of(subject)) and _holds(
            "anchor", d.of(subject), None, seed, cases)]
    alike = [] if likely else suspects(subject, seed)[:MOST_ALIKE]
    if not likely and all(s.mutant.fault in ROUNDING for s in alike) and not _holds_on_small(subject, seed):
        likely = [d for d in rounding_found(subject) if holds(first, d.of(subject))]
    told = {name: likely if name == first else [d for d in likely if holds(name, d.of(subject))] for name in cells}
    mended = {name: [] if told[name] else remedies(name, subject, cells[name], seed, cases) for name in cells}
    alike = [s.sentence for s in alike]
    return {name: (*map(str, found), *(mended[name] or alike)) for name, found in told.items()}


MOST_ALIKE = 2
"""The most suspects that are named: several faults of the catalogue may look the same from outside."""
ROUNDING = ("B11", "B13", "D13")
"""The faults of coarse formats, beside which the declaration of one is said too."""


def _holds(name, subject, case, seed, cases):
    """Whether a law holds for the subject on the case that broke it and on as many as were drawn; None breaks it."""
    if subject is None or not (case is None or _passes(LAWS[name], subject, case)):
        return False
    return ask(LAWS[name], subject, cases, seed=seed, shrink=False).verdict == "pass"


def _single(subject):
    """The subject asked in float32 alone; None where that is not among its formats."""
    return replace(subject, dtypes=("float32",)) if "float32" in subject.dtypes else None


def _passes(law, subject, case):
    try:
        with backends.quiet():
            return law.concerns(subject) and law.check(subject, case).verdict == "pass"
    except SubjectError:
        return False


def _holds_on_small(subject, seed):
    """Whether the anchor holds on small cases: a format is coarse there too, or it is not what breaks a law.

    For its declaration widens the budget, and may hide anything.
    """
    return all(_passes(LAWS["anchor"], subject, case) for case in drawn(LAWS["anchor"], subject, CASES, seed=seed))


def rounding_found(subject):
    """Declarations of the coarse formats that a probe finds: of factors, of the weights or P, and of m, l and lse.

    Where factors have eleven bits beside something coarser, that alone is tried, and both.
    """
    found = {trait.name: trait.value for trait in probe(subject).traits}
    weights = "the weights" if subject.role in MERGING else "P"  # a merge has no P: its weights are statistics
    declared = "stats_dtype" if subject.role in MERGING else "p_dtype"
    told = [("p_dtype", declared, weights, "D13" if subject.role in MERGING else "B11"),
            ("stats_dtype", "stats_dtype", "m, l and lse", "D13")]
    likely = [Declaration({name: found[trait]}, f"as if {what} were rounded to {found[trait]}", fault=fault)
              for trait, name, what, fault in told if found.get(trait) in COARSE]
    if "tf32" not in found.values():
        return likely
    return [*likely, *(d.besides(SHORT) for d in likely)] or [SHORT]


# -- remedies ------------------------------------------------------------------------------------------


def remedies(name, subject, cell, seed=0, cases=CASES):
    """What would mend a law, as sentences: copies, or the want of faults about empty states; [] where neither does."""
    if _holds(name, None if subject.in_place else replace(subject, fn=_copied(subject.fn)), cell.case, seed, cases):
        said = ["as if it wrote into memory that is not its own, or that it uses again "
                "(the law holds where operands and results are copied)"]
        return said + ([kind_of(name, subject, cell)] if name == "inputs kept" else [])
    if subject.role != "merge" or subject.kind is not LSEState or subject.in_place:
        return []
    for faults in ("A6",), ("A1",), ("A6", "A1"):
        one = replace(subject, fn=functools.reduce(lambda fn, fault: REMEDIES[fault][0](fn, subject.empty), faults,
                                                   subject.fn))
        if _holds(name, one, cell.case, seed, cases):
            kinds = ", and ".join(f"fault {fault}: {FAULTS[fault]}" for fault in faults)
            return [f"{kinds} (the law holds where {', and where '.join(REMEDIES[f][1] for f in faults)})"]
    return []


def _copied(fn):
    """fn on copies of its operands, its results copied."""
    def run(*operands):
        got = fn(*map(_copy, operands))
        return type(got)(map(_copy, got)) if type(got) in (tuple, list) else _copy(got)

    return run


def _copy(x):
    """A copy of x, an array or a tensor; anything else as it is."""
    return x.clone() if hasattr(x, "clone") else x.copy() if isinstance(x, np.ndarray) else x


def _emptied_first(fn, empty):
    """fn of a merge, given 0 for the o of every row whose lse is `empty`."""
    return lambda o1, lse1, o2, lse2: fn(_put(o1, lse1 == empty, 0), lse1, _put(o2, lse2 == empty, 0), lse2)


def _nothing_kept(fn, empty):
    """fn of a merge, (0, `empty`) in the rows that are empty on both sides."""
    def run(o1, lse1, o2, lse2):
        o, lse = fn(o1, lse1, o2, lse2)
        nothing = (lse1 == empty) & (lse2 == empty)
        return _put(o, nothing, 0), _put(lse, nothing, empty)

    return run


def _put(x, where, value):
    """A copy of x, an array or a tensor, with the value in the rows `where`."""
    copy = _copy(x)
    copy[where] = value
    return copy


REMEDIES = {
    "A6": (_emptied_first, "0 is put in place of what an empty side holds"),
    "A1": (_nothing_kept, "two empty rows are made an empty one"),
}
"""By fault, what would mend it, a function of (fn, the lse of no keys), and that in words."""


# -- suspects -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Suspect:
    """A mutant that gives the same results as a subject; `besides`: not where empty states are merged."""

    mutant: object
    besides: bool

    @property
    def sentence(self):
        """What the subject resembles, as a sentence."""
        fault = self.mutant.fault
        kind = f"fault {fault}: {FAULTS[fault]}" if fault in FAULTS else "a slip of which no report is known"
        where = "without empty states " if self.besides else ""
        return f"it gives what the mutant {self.mutant.name!r} gives on every case {where}tried ({kind})"


def suspects(subject, seed=0):
    """The Suspects, one of a fault: mutants that agree with the subject on all cases, or on those without empty states.

    Both must be wrong on the same cases, of which there must be some.
    """
    anchor = LAWS["anchor"]
    for besides, law in (False, anchor), (True, replace(anchor, strategy=LAWS["convexity"].strategy)):
        cases = drawn(law, subject, CASES, seed=seed)
        mine = [_found(subject, case) for case in cases]
        if not any(x and x[0] == "fail" for x in mine):
            continue
        mutants = [m for m in backends.load("fdmath.verify.mutants:MUTANTS").values() if _comparable(m, subject)]
        alike = {m.fault: Suspect(m, besides) for m in mutants if _same_results(m.subject(), subject, cases, mine)}
        if alike:
            return list(alike.values())
    return []


def _comparable(mutant, subject):
    """Whether a mutant is called as the subject is, and is wrong in what it returns."""
    other = mutant.subject()
    return mutant.place == "fn" and (other.role, other.kind, other.lse) == (subject.role, subject.kind, subject.lse)


def _same_results(other, subject, cases, mine):
    """Whether `other` is right and wrong where the subject is, and returns the same, on all the cases."""
    for case, found in zip(cases, mine, strict=True):
        theirs = _found(other, case)
        if found is None or theirs is None:
            if found is not theirs:
                return False
        elif found[0] != theirs[0] or not _agree(found[1], theirs[1], case.budget(subject)):
            return False
    return True


def _found(subject, case):
    """(verdict of the anchor, state) of a subject on one case; None where it raises."""
    try:
        with backends.quiet():
            return LAWS["anchor"].check(subject, case).verdict, case.run(subject)
    except SubjectError:
        return None


def _agree(mine, theirs, budget):
    """Whether two states, right or wrong, are equal within the sum of their bounds, NaN equal to NaN."""
    for x, y, bound in zip(as_pair(mine), as_pair(theirs), budget, strict=True):
        with np.errstate(invalid="ignore"):
            alike = (x == y) | (np.isnan(x) & np.isnan(y)) | (np.abs(x - y) <= 2 * bound)
        if not np.all(alike):
            return False
    return True


FAULTS = {
    "A1": "two empty states merge to NaN, −∞ − (−∞)",
    "A2": "the lse of no keys is +∞, which no merge expects",
    "A3": "the guard 0 for an empty maximum is left in lse",
    "A4": "a row without keys gets a finite lse",
    "A5": "a row without keys divides 0 by 0",
    "A6": "an empty side's payload is multiplied by 0, and 0·NaN is NaN",
    "A7": "a large negative number stands in for −∞, and is not neutral",
    "A8": "lse = 0 of a row without keys lets exp(s) grow in the backward pass",
    "B2": "hidden scores get a finite number that a visible score can lie below",
    "B4": "the maximum of the new block is taken for the running one",
    "B5": "the accumulator is divided by the factor it should be multiplied by",
    "B6": "the factor exp(m_old − m_new) is missing on the old output",
    "B7": "a constant is subtracted in place of a maximum",
    "B8": "the maximum starts above the scores that may come",
    "B10": "quantised weights saturate while their sum does not",
    "B11": "the numerator sums rounded weights, the denominator unrounded ones",
    "B12": "the 1 of softmax-plus-one is added after the shift",
    "B13": "the running sum is kept in a format that stops counting",
    "B14": "the accumulator is kept in a format that overflows",
    "B15": "the soft cap comes after the mask and lets hidden keys in",
    "C1": "the keys left over by an even split are dropped",
    "C3": "parts beyond those written are combined too",
    "C4": "all splits write one lse, and the last one wins",
    "C5": "a split without keys takes part",
    "C6": "a plan made for one length serves another",
    "C8": "a split compares its own index with the length of all",
    "C9": "the running output is rounded at every hop",
    "C11": "what should split does not",
    "C12": "how a sequence is split depends on its mates in the batch",
    "D1": "a base-2 lse is taken for a natural one",
    "D2": "a natural lse is taken for one in base 2",
    "D3": "lse is converted to another base twice",
    "D4": "the level and the log of the sum are in different units",
    "D6": "the logarithm is that of another sum, of shifted scores or of probabilities",
    "D7": "two axes of lse are swapped",
    "D8": "lse keeps a packing of the heads that only one path undoes",
    "D9": "padding of lse is taken for rows",
    "D10": "an empty sequence's lse is written over another's",
    "D11": "lse is never written",
    "D12": "a scale of the quantised weights stays in lse",
    "D13": "weights, m, l or lse are kept in 16 bits",
    "E1": "log(1 + exp(Δ)) overflows where Δ is large",
    "E2": "exp(lse) is formed without a shift",
    "E3": "log(1 + x) loses a small x that log1p keeps",
    "E4": "logarithms of sums are added as if they were sums",
    "E5": "lse is overwritten before the weights were made of it",
    "E6": "o is merged on, the running lse is not",
    "E7": "an infinite sink meets an infinite level, ∞ − ∞",
    "F1": "the causal mask is aligned with the first keys, not the last",
    "F4": "the last keys of a causal row are not bounded by the length",
    "F5": "the mask is applied to some blocks of keys only",
    "F7": "a hop of the ring is masked by the wrong rule",
    "F8": "a window holds one key too many, or too few",
    "F9": "padded keys of the last tile count",
    "F10": "an unused slot's NaN comes through a weight of 0",
    "F11": "the count of keys in use is off by one",
    "F13": "the scale is that of a padded dimension",
    "G1": "query heads are dealt to KV heads in turn, not in groups",
    "G2": "the group's size serves as modulus and stride",
    "G4": "the gradient of a shared head is not summed over its queries",
    "H1": "the gradient of lse is dropped",
    "H2": "a branch remakes its weights from its own lse, not the merged one",
    "H3": "the backward pass takes a natural lse for one in base 2",
    "H4": "the backward pass of a ring uses one hop's keys for all",
    "H5": "keys and heads are exchanged twice in the backward pass",
    "H6": "the backward pass of a ring keeps the sizes of its last hop",
    "H7": "the backward pass ignores the mask",
    "H8": "rows without keys have no gradient, not 0",
    "H9": "0·NaN in the gradient of a row without keys",
    "H10": "rows beyond the end enter exp(s − lse) in the backward pass",
    "H11": "a sum that cancels is rounded before it is taken, or scores coarser backward than forward",
    "H12": "the dropout of a hop is drawn anew in the backward pass",
    "H13": "delta is summed in another memory order",
    "I1": "NaN is replaced, or passes for right",
    "I2": "a constant, or rows in another order, that loose tests let through",
    "I3": "zeros, that tests of a mean let through",
    "I7": "nothing, whatever comes, that tests of empty rows alone let through",
}
"""Kinds of fault found in public kernels: their ids, and what goes wrong."""

KINDS = [
    ("A1", MERGING, ("empty",), "nan"),
    ("A2", ROLES, ("empty",), "inf"),
    ("A3", ("block", "partial", "decode", "attention"), ("empty",), "zero"),
    ("A7", MERGING, ("empty", "left identity", "right identity"), "low"),
    ("C1", ("decode",), ("partition independence",), "number"),
    ("F10", ("block", "decode"), ("poison",), "nan"),
    ("F5", ("attention",), ("causality",), "number"),
    ("H1", CALLED, ("gradient of lse",), "number"),
    ("G4", CALLED, ("sum over a group",), "number"),
    ("H7", ("attention",), ("gradient causality",), "number"),
    ("H9", CALLED, ("gradient of nothing",), "nan"),
    ("E5", MERGING, ("inputs kept",), ""),
]
"""(fault, roles, laws, what came): what a broken law reminds of where no suspect gave the same results."""


def kind_of(law, subject, cell):
    """The sentence of the kind of fault that a broken law reminds of; "" for none."""
    came = (cell.came, "number") if cell.came in ("zero", "low") else (cell.came,)
    kinds = [fault for fault, roles, laws, what in KINDS if subject.role in roles and law in laws and what in came]
    kinds += [overflow_in(cell.case)] if subject.role in MERGING and cell.came == "inf" and cell.case else []
    return next((f"this resembles fault {fault}: {FAULTS[fault]}" for fault in kinds if fault), "")


def overflow_in(case):
    """The fault whose exponential alone overflows in a merge: E1 of a difference, E2 of a level; else ""."""
    levels = case.levels()
    top, levels = math.log(np.finfo(case.dtype).max), levels[np.isfinite(levels)]
    if not len(levels):
        return ""
    return {(True, False): "E1", (False, True): "E2"}.get((np.ptp(levels) > top, np.max(levels) > top), "")


def explained(subject, cells, seed=0, cases=CASES):
    """The cells, a dict law → Cell of one subject, with what would explain those that failed.

    cases: how many inputs each law was asked about.
    """
    broken = {name: cell for name, cell in cells.items() if cell.verdict == "fail" and cell.grade == "budget"}
    found = explanations(subject, broken, seed, cases) if broken else {}
    told = {name: found[name] or tuple(filter(None, [kind_of(name, subject, cells[name])])) for name in broken}
    return {name: replace(cell, explained=told.get(name, ())) for name, cell in cells.items()}
