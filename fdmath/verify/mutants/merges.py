"""Wrong merges of two states and of many: empty states, the arithmetic of ⊕, what lse means."""

import itertools
import math
from functools import partial

import ml_dtypes
import numpy as np

from fdmath.algebra.merge import merge
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.verify.mutants.record import Mutant, parts, states
from fdmath.verify.mutants.ways import (
    NOTHING,
    as_given,
    at_once,
    blanked,
    highest,
    level_plus_log,
    merge_by,
    one_by_one,
    same,
)
from fdmath.verify.subject import Subject

# -- ancestors ------------------------------------------------------------------------------------------


def convex(o1, lse1, o2, lse2, *, mean=same, lse_of=lambda lse1, lse2: np.logaddexp(lse1, lse2)):
    """(o, lse) in the convex form, its lse by a formula of the two where neither side is empty."""
    o, lse = merge(LSEState(o1, lse1), LSEState(o2, lse2))
    both = (lse1 != NOTHING) & (lse2 != NOTHING)
    return mean(o), np.where(both, lse_of(*(np.where(both, x, 0) for x in (lse1, lse2))), lse)


def in_place(o1, lse1, o2, lse2):
    """⊕ written over its left side."""
    o1[:], lse1[:] = merge_by(at_once)(o1, lse1, o2, lse2)


def unnormalised(m1, l1, acc1, m2, l2, acc2, *, rescale=lambda x, factor: x * factor):
    """⊕ of (m, l, acc): both sides moved to the larger level, then added."""
    acc1, acc2 = (np.where(l[:, None] == 0, 0, acc) for l, acc in ((l1, acc1), (l2, acc2)))
    m = np.maximum(m1, m2)
    base = np.where(m == NOTHING, 0, m)
    alpha, beta = np.exp(m1 - base), np.exp(m2 - base)
    return m, rescale(l1, alpha) + rescale(l2, beta), rescale(acc1, alpha[:, None]) + rescale(acc2, beta[:, None])


def normalised(m1, l1, o1, m2, l2, o2, *, of_o=same):
    """⊕ of (m, l, o): l rescaled and added, o the mean of both by the rescaled l."""
    nothing = np.zeros_like(l1)
    m, l, _ = unnormalised(m1, l1, nothing[:, None], m2, l2, nothing[:, None])
    o1, o2 = (np.where(x[:, None] == 0, 0, o) for x, o in ((l1, o1), (l2, o2)))
    base = np.where(m == NOTHING, 0, m)
    a, b = l1 * of_o(np.exp(m1 - base)), l2 * np.exp(m2 - base)
    return m, l, (a[:, None] * o1 + b[:, None] * o2) / np.where(l == 0, 1, l)[:, None]


def log_in_base_two(level, l):
    """lse in base 2 = level + log₂ l."""
    return level_plus_log(level, l, np.log2)


PAIR = Subject("merge at once", "merge", merge_by(at_once))
BASE_TWO = Subject("merge in base 2", "merge", merge_by(partial(at_once, exp=np.exp2, end=log_in_base_two)), log_base=2)
CONVEX = Subject("merge in convex form", "merge", convex, claims=("T5", "T6"))
IN_PLACE = Subject("merge in place", "merge", in_place, in_place=True)
ACC = Subject("merge of m/l/acc", "merge", unnormalised, kind=AccState)
MLO = Subject("merge of m/l/o", "merge", normalised, kind=MLOState)
MANY = Subject("merge of many at once", "merge_many", at_once)
CHAIN = Subject("merge of many one by one", "merge_many", one_by_one)

# -- slips ----------------------------------------------------------------------------------------------


def as_bfloat16(x):
    """x rounded to bfloat16, in the format that it had."""
    return x.astype(ml_dtypes.bfloat16).astype(x.dtype)


def weights_in_float16(x):
    """e^x rounded to float16."""
    return np.exp(x).astype(np.float16).astype(x.dtype)


def clamped(o, lse):
    """lse clamped to −1e4, a finite stand-in for nothing."""
    return np.nan_to_num(o), np.maximum(lse, np.asarray(-1e4, lse.dtype))


def rounded_lse(o, lse):
    """lse kept in bfloat16, whose spacing near 100 is a half."""
    o, lse = blanked(o, lse)
    return o, as_bfloat16(lse)


def guard_written_back(m, l):
    """The level 0 that stands for −∞ is returned where nothing was summed."""
    return m + np.log(np.where(l == 0, 1, l))


def infinite_for_nothing(m, l):
    """log 0 is returned as +∞."""
    return np.where(l == 0, math.inf, level_plus_log(m, l))


def overflowing(o1, lse1, o2, lse2):
    """lse₁ + log(1 + e^(lse₂ − lse₁)), whichever is the larger, and the weights of o made of it."""
    (o1, _), (o2, _) = blanked(o1, lse1), blanked(o2, lse2)
    lse = lse1 + np.log(1 + np.exp(lse2 - lse1))
    lse = np.where(lse1 == NOTHING, lse2, np.where(lse2 == NOTHING, lse1, lse))
    w1, w2 = (np.where(x == NOTHING, 0, np.exp(x - np.where(x == NOTHING, 0, lse))) for x in (lse1, lse2))
    return w1[:, None] * o1 + w2[:, None] * o2, lse


def logarithms_added(o1, lse1, o2, lse2):
    """lse₁ + lse₂, the logarithm of the product of the sums."""
    o, lse = merge_by(at_once)(o1, lse1, o2, lse2)
    return o, np.where((lse1 == NOTHING) | (lse2 == NOTHING), lse, lse1 + lse2)


def written_before_read(o1, lse1, o2, lse2):
    """lse is overwritten before the weights of o are read from it."""
    keep = (lse2 == NOTHING) | (lse1 == NOTHING)
    o, lse1[:] = merge_by(at_once)(o1, lse1, o2, lse2)
    o1[:] = np.where(keep[:, None], o, merge_by(at_once)(o1, lse1, o2, lse2)[0])


def lse_of_the_first_two(o, lse):
    """o is merged part by part, the running lse stays that of the first two parts."""
    mean, kept = o[0], lse[0]
    for i in range(1, len(lse)):
        mean, new = merge_by(at_once)(mean, kept, o[i], lse[i])
        kept = new if i == 1 else np.where(kept == NOTHING, new, kept)
    return blanked(mean, kept)


def as_they_finish():
    """A merge of many whose parts come in one order at two calls, in another at the next two, as they finish."""
    turns = itertools.cycle((backwards, backwards, first_part_last, first_part_last))

    def fn(o, lse):
        turn = next(turns)
        return one_by_one(turn(o), turn(lse))

    return fn


def backwards(x):
    """The parts from the last to the first."""
    return x[::-1]


def first_part_last(x):
    """The parts with the first one behind the others."""
    return np.roll(x, -1, axis=0)


def anchored_left(o1, lse1, o2, lse2):
    """The convex form from the left side always, o₁ + w·(o₂ − o₁): right, and other bits when the sides change."""
    (o1, _), (o2, _) = blanked(o1, lse1), blanked(o2, lse2)
    lse = np.logaddexp(lse1, lse2)
    w = np.exp(lse2 - np.where(lse == NOTHING, 0, lse))[:, None]
    return np.where(w == 1, o2, o1 + w * (o2 - o1)), lse


def larger_level_wins(o1, lse1, o2, lse2):
    """The state with the larger lse is kept (the larger o at a tie): a commutative monoid, and not attention."""
    (o1, _), (o2, _) = blanked(o1, lse1), blanked(o2, lse2)
    o = np.where((lse1 > lse2)[:, None], o1, np.where((lse2 > lse1)[:, None], o2, np.maximum(o1, o2)))
    return o, np.maximum(lse1, lse2)


def leaning_left(o1, lse1, o2, lse2):
    """The left side weighs a tenth of a per cent too much."""
    return merge_by(at_once)(o1, lse1 + np.asarray(0.001, lse1.dtype), o2, lse2)


def changed(change):
    """The right merge with its (o, lse) changed."""
    return lambda *sides: change(*merge_by(at_once)(*sides))


def by(**slip):
    """The merge of two, at once, with a slip."""
    return merge_by(partial(at_once, **slip))


NOTHING_TWICE, ONE_AND_TWO = states((0, NOTHING), (0, NOTHING)), states((1, 1), (3, 2))
ONE_TO_THREE = parts((1, 0), (2, 0), (3, 0))
C12 = {"claims": ("bitwise associativity",)}

MUTANTS = [
    Mutant("two empty sides unguarded", PAIR, by(finite=same), "A1", "empty", NOTHING_TWICE),
    Mutant("+inf for two empty sides", PAIR, by(end=infinite_for_nothing), "A2", "empty", NOTHING_TWICE),
    Mutant("0 for two empty sides", PAIR, by(end=guard_written_back), "A3", "empty", NOTHING_TWICE),
    Mutant("weight 0 times an empty side", PAIR, by(read=as_given), "A6", "right identity",
           states((1, 0), (math.nan, NOTHING))),
    Mutant("lse clamped to -1e4", PAIR, by(read=clamped), "A7", "left identity", states((0, NOTHING), (1, -2e4))),
    Mutant("empty parts unguarded", MANY, partial(at_once, finite=same), "A1", "empty",
           parts((0, NOTHING), (0, NOTHING))),
    Mutant("a last level of 0", MANY, partial(at_once, level=lambda lse: np.maximum(highest(lse), 0)), "B8", "shift",
           parts((1, -200), (2, -200))),
    Mutant("level of the last part", CHAIN, partial(one_by_one, level=lambda m, s: np.where(s == NOTHING, m, s)), "B4",
           "shift", parts((1, 0), (5, -200))),
    Mutant("acc and l not rescaled", ACC, partial(unnormalised, rescale=lambda x, factor: x), "B7", "reference level",
           tuple(x for s in (LSEState(*ONE_AND_TWO[:2]), LSEState(*ONE_AND_TWO[2:])) for x in s.to(AccState))),
    Mutant("factor missing on the old o", MLO, partial(normalised, of_o=np.ones_like), "B6", "anchor",
           tuple(x for s in (LSEState(*ONE_AND_TWO[:2]), LSEState(*ONE_AND_TWO[2:])) for x in s.to(MLOState))),
    Mutant("running o in bfloat16", CHAIN, partial(one_by_one, kept_mean=as_bfloat16), "C9", "anchor",
           parts((1.01, 0), (2, 0))),
    Mutant("other bits in another order", PAIR, convex, "C12", "bitwise associativity",
           states((7, 2), (5, 1)), C12),
    Mutant("other bits when the sides change", PAIR, anchored_left, "C12", "commutativity",
           states((7, 2), (5, 1)), {"claims": ("commutativity",)}),
    Mutant("parts in the order in which they finish", CHAIN, as_they_finish(), "C12", "determinism",
           parts((7, 0.3), (5, 1), (3, 2.1))),
    Mutant("base-2 lse merged in base e", BASE_TWO, merge_by(at_once), "D1", "counting", ONE_AND_TWO),
    Mutant("natural lse merged in base 2", PAIR, BASE_TWO.fn, "D2", "round trip", ONE_AND_TWO),
    Mutant("natural lse weighed in base 2", PAIR, by(exp=np.exp2), "D2", "anchor", ONE_AND_TWO),
    Mutant("natural lse of many in base 2", MANY, partial(at_once, exp=np.exp2, end=log_in_base_two), "D2",
           "partition independence", parts((1, 1), (3, 2))),
    Mutant("weights in float16", PAIR, by(exp=weights_in_float16), "D13", "anchor", states((1.1, 0.3), (-3.7, 0.1))),
    Mutant("lse in bfloat16", PAIR, by(read=rounded_lse), "D13", "association orders", states((0, 100.2), (1, 99.8))),
    Mutant("log(1 + exp) of the larger side", CONVEX,
           partial(convex, lse_of=lambda lse1, lse2: lse1 + np.log(1 + np.exp(lse2 - lse1))), "E1", "anchor",
           states((0, 0), (1, 90))),
    Mutant("log(1 + exp(lse2 - lse1)), weights too", PAIR, overflowing, "E1", "anchor", states((0, 0), (1, 90))),
    Mutant("exp(lse) formed directly", PAIR, by(level=lambda lse: np.zeros_like(lse[0])), "E2", "shift",
           states((0, 89), (1, 89))),
    Mutant("log for log1p", CONVEX, partial(convex, lse_of=lambda lse1, lse2: np.maximum(lse1, lse2) + np.log(
        1 + np.exp(-np.abs(lse1 - lse2)))), "E3", "anchor", states((0, 0), (1, -18))),
    Mutant("lse added to lse", PAIR, logarithms_added, "E4", "counting", ONE_AND_TWO),
    Mutant("lse written before it is read", IN_PLACE, written_before_read, "E5", "anchor", states((1, 0), (3, 0))),
    Mutant("lse of the first two parts", MANY, lse_of_the_first_two, "E6", "anchor", ONE_TO_THREE),
    Mutant("parts after the second left out", MANY, lambda o, lse: at_once(o[:2], lse[:2]), "E6", "permutation",
           ONE_TO_THREE),
    Mutant("a merge of zeros", PAIR, changed(lambda o, lse: (o * 0, lse)), "I3", "v is 1", ONE_AND_TWO),
    Mutant("a constant merge", PAIR, changed(lambda o, lse: (np.full_like(o, 0.75), lse)), "I2", "linearity",
           ONE_AND_TWO),
    Mutant("rows of a merge permuted", PAIR, changed(lambda o, lse: (np.roll(o, 1, 0), lse)), "I2", "anchor",
           tuple(np.concatenate(x) for x in zip(ONE_AND_TWO, states((5, 1), (7, 2)), strict=True))),
    Mutant("the larger level wins", PAIR, larger_level_wins, "", "duplicate keys", ONE_AND_TWO),
    Mutant("left side too heavy", PAIR, leaning_left, "", "associativity", ONE_AND_TWO),
    Mutant("o beside its hull", PAIR, changed(lambda o, lse: (o + 1, lse)), "", "convexity", ONE_AND_TWO),
    Mutant("lse above its bounds", PAIR, changed(lambda o, lse: (o, lse + 2)), "", "lse bounds", ONE_AND_TWO),
]
