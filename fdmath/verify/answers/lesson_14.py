"""Notebook 14: write the check of a claim about any merge of pairs."""

import numpy as np

from fdmath.algebra.printed import merge_as_printed_A_3_2_1
from fdmath.claims.claim import Observed, verdict
from fdmath.verify.mutants import MUTANTS
from fdmath.verify.mutants.merges import PAIR, changed

HINTS = (
    "A case is a call and a comparison: put `(0, -np.inf)` on one side, any pair with a key on the other, and ask "
    "whether `np.array_equal` says that both `o` and `lse` came back as they were. It is false for NaN, as it must "
    "be. Cases in which the other side is empty too are outside.",
    "What could hide a fault? An `lse` near 0 hides a stand-in such as $-10^4$, a round one hides lower precision, and "
    "the empty side always on the right hides what happens on the left. Compare `lse` too: a merge may spoil that "
    "alone.",
)


def left_forgotten(o1, lse1, o2, lse2):
    """⊕ that looks for an empty side on the right only: on the left it weighs as much as the other."""
    o, lse = PAIR.fn(o1, lse1, o2, lse2)
    return np.where((lse1 == -np.inf)[:, None], (o1 + o2) / 2, o), lse


MERGES = {
    "at once": (PAIR.fn, "holds"),
    "lse added to lse": (MUTANTS["lse added to lse"].fn, "holds"),
    "as document A prints it, 3.2.1": (merge_as_printed_A_3_2_1, "conditional"),
    "0 for two empty sides": (MUTANTS["0 for two empty sides"].fn, "conditional"),
    "an empty left side forgotten": (left_forgotten, "refuted"),
    "lse clamped to -1e4": (MUTANTS["lse clamped to -1e4"].fn, "refuted"),
    "lse in bfloat16": (MUTANTS["lse in bfloat16"].fn, "refuted"),
    "output NaN": (changed(lambda o, lse: (o * np.nan, lse)), "refuted"),
}
"""Merges of pairs, right and wrong, each with the verdict on the claim: some wrong ones leave nothing unchanged too."""


def my_check(merge):
    """(inside, outside), two lists of truth values: whether a merge with the empty pair (0, −∞) changed nothing.

    merge(o1, lse1, o2, lse2) → (o, lse) with o (R, dv) and lse (R,), float64; the empty pair may stand on either side.
    inside: cases whose other side has a key in every row; outside: cases in which it has none either.
    """
    raise NotImplementedError


def answer(merge):
    """(inside, outside), two lists of truth values: whether a merge with the empty pair (0, −∞) changed nothing.

    merge(o1, lse1, o2, lse2) → (o, lse) with o (R, dv) and lse (R,), float64; the empty pair may stand on either side.
    inside: cases whose other side has a key in every row; outside: cases in which it has none either.
    """
    def unchanged(o, lse):
        empty = np.zeros((1, 1)), np.array([-np.inf])
        one = np.array([[o]]), np.array([lse])
        return [all(map(np.array_equal, merge(*sides), one)) for sides in ((*one, *empty), (*empty, *one))]

    inside = [case for lse in (0.1, 1234.5, -56789.1) for case in unchanged(-3.7, lse)]
    return inside, unchanged(0.0, -np.inf)


def judge(fn):
    """What became of the reader's check, in words: of each of MERGES it must come to the verdict that is there."""
    wrong = [words for name in MERGES if (words := fault(fn, name))]
    if not wrong:
        return f"right, each of the {len(MERGES)} merges gets its verdict"
    return f"not yet, of {len(MERGES)} merges {len(wrong)} do not get their verdict. The first:\n  {wrong[0]}"


def fault(fn, name):
    """What is wrong with a check's verdict on one of MERGES, in words; "" for a right one."""
    merge, right = MERGES[name]
    try:
        with np.errstate(all="ignore"):
            inside, outside = fn(merge)
            found = verdict(Observed(inside, outside))
    except Exception as error:
        return f"{name}: the check raised {type(error).__name__}: {error}"
    return "" if found == right else f"{name}: found {found!r}, and {right!r} is right"


def sample():
    """Arguments of a first call: a merge that is right."""
    return (PAIR.fn,)
