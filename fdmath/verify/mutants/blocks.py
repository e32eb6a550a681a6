"""Wrong blocks: the softmax of one block of scores, and the online recurrence over its keys."""

import math
from functools import partial

import numpy as np

from fdmath.attention.softmax import partial_state
from fdmath.verify.mutants.merges import as_bfloat16, guard_written_back, infinite_for_nothing, log_in_base_two
from fdmath.verify.mutants.record import Mutant, keys
from fdmath.verify.mutants.ways import (
    NOTHING,
    as_given,
    at_once,
    blanked,
    block_by,
    highest,
    level_plus_log,
    one_by_one,
    over_parts,
    weighed,
    zero_for_nothing,
)
from fdmath.verify.subject import Subject

BLOCK = Subject("block at once", "block", block_by(at_once))
ONLINE = Subject("block key by key", "block", block_by(one_by_one))
TORCH = Subject("block in torch", "block", lambda scores, v: tuple(partial_state(scores, v)), library="torch")

LARGEST_FP8 = 448.0
"""The largest number of float8_e4m3, to which a kernel scales P."""


def hidden_at(score):
    """Parts of which the hidden ones have a finite score."""
    return lambda o, lse: (np.nan_to_num(o), np.where(lse == NOTHING, np.asarray(score, lse.dtype), lse))


def capped(o, lse):
    """A soft cap of 5e4, taken after the mask: −∞ becomes minus the cap."""
    cap = np.asarray(5e4, lse.dtype)
    return np.nan_to_num(o), np.where(lse == NOTHING, -cap, lse)


def level_rounded(scores, v):
    """The maximum is rounded to bfloat16 before it is subtracted, and stands unrounded in lse."""
    o, lse = by(level=lambda lse: as_bfloat16(highest(lse)))(scores, v)
    m = zero_for_nothing(highest(scores.T))
    return o, lse + (m - as_bfloat16(m))


def before_its_log(m, l):
    """log l alone, the lse of s − max."""
    return np.where(l == 0, NOTHING, level_plus_log(np.zeros_like(m), l))


def of_probabilities(scores, v):
    """lse is taken of the probabilities instead of the scores."""
    o, lse = BLOCK.fn(scores, v)
    p = np.where(scores == NOTHING, NOTHING, np.exp(scores - zero_for_nothing(lse)[:, None]))
    return o, BLOCK.fn(p.astype(scores.dtype), v)[1]


def saturated(o, lse):
    """P is taken against the level of the first key and held at 448 in the numerator; l sums what it was."""
    o, lse = blanked(o, lse)
    m = zero_for_nothing(lse[0]) if len(lse) else highest(lse)
    p = np.exp(lse - m)
    l = over_parts(p)
    return weighed(np.minimum(p, LARGEST_FP8), o) / np.where(l == 0, 1, l)[:, None], level_plus_log(m, l)


def gathered_in_float16(w, o):
    """Σ p·v is kept unnormalised in float16, which ends at 65504."""
    return weighed(w, o).astype(np.float16).astype(o.dtype)


def first_key_twice(scores, v):
    """The first key of a block is counted twice."""
    return BLOCK.fn(np.concatenate([scores[:, :1], scores], axis=1), np.concatenate([v[:1], v]))


def with_nan_removed(scores, v):
    """NaN is replaced by 0 wherever it stands, so that a NaN in a visible value is never seen again."""
    return BLOCK.fn(scores, np.nan_to_num(v))


def masked_softmax(scores, v):
    """Softmax and logsumexp by torch's operations, weights of hidden keys set to 0: their gradient stays NaN."""
    hidden = scores == NOTHING
    p = scores.softmax(-1).masked_fill(hidden, 0.0)
    return p @ v.masked_fill(hidden.all(0)[:, None], 0.0), scores.logsumexp(-1)


def by(**slip):
    """The block, at once, with a slip."""
    return block_by(partial(at_once, **slip))


def online(**slip):
    """The block key by key, with a slip."""
    return block_by(partial(one_by_one, **slip))


UNSEEN, TWO_ZEROS, TWO = keys((NOTHING, 1), (NOTHING, 2)), keys((0, 1), (0, 2)), keys((0, 1), (math.log(2), 4))

MUTANTS = [
    Mutant("+inf for no keys", BLOCK, by(end=infinite_for_nothing), "A2", "empty", UNSEEN),
    Mutant("0 for no keys", BLOCK, by(end=guard_written_back), "A3", "empty", UNSEEN),
    Mutant("hidden keys at -1e4", BLOCK, by(read=hidden_at(-1e4)), "B2", "anchor", keys((-2e4, 1), (NOTHING, 100))),
    Mutant("level of the key, not of all", ONLINE, online(level=lambda m, s: np.where(s == NOTHING, m, s)), "B4",
           "anchor", keys((0, 1), (-200, 5))),
    Mutant("rescaled by 1/alpha", ONLINE, online(factor=lambda a: 1 / np.where(a == 0, math.inf, a)), "B5", "anchor",
           TWO),
    Mutant("acc not rescaled", ONLINE, online(factor=np.ones_like), "B6", "anchor", TWO),
    Mutant("a constant for the maximum", BLOCK, by(level=lambda lse: np.zeros_like(highest(lse))), "B7", "shift",
           keys((100, 1), (100, 2))),
    Mutant("maximum of scores and 0", BLOCK, by(level=lambda lse: np.maximum(highest(lse), 0)), "B8", "shift",
           keys((-200, 1), (-200, 2))),
    Mutant("P held at 448, l not", BLOCK, block_by(saturated), "B10", "v is 1", keys((0, 1), (12, 4))),
    Mutant("P rounded, l not", BLOCK, by(share=as_bfloat16), "B11", "v is 1", keys((0, 1), (-1, 1))),
    Mutant("level rounded before its subtraction", BLOCK, level_rounded, "B11", "anchor", keys((100.2, 1))),
    Mutant("1 added after the shift", BLOCK, by(total=lambda w: over_parts(w) + 1), "B12", "v is 1",
           keys((3, 1), (3, 3))),
    Mutant("running l in bfloat16", ONLINE, online(kept_sum=as_bfloat16), "B13", "anchor", keys((0, 1), (-1, 1))),
    Mutant("acc in float16", BLOCK, by(gathered=gathered_in_float16), "B14", "anchor", keys(*[(0, 1000)] * 100)),
    Mutant("soft cap after the mask", BLOCK, by(read=capped), "B15", "empty", UNSEEN),
    Mutant("m in base e, log l in base 2", BLOCK, by(end=log_in_base_two), "D4", "counting",
           TWO_ZEROS),
    Mutant("lse of s - max", BLOCK, by(end=before_its_log), "D6", "shift", keys((3, 1), (3, 2))),
    Mutant("lse of the probabilities", BLOCK, of_probabilities, "D6", "lse bounds", keys((3, 1), (3, 2))),
    Mutant("scale of P left in lse", BLOCK, by(end=lambda m, l: level_plus_log(m, l) + math.log(LARGEST_FP8)), "D12",
           "lse bounds", keys((0, 1))),
    Mutant("m, l and lse in bfloat16", BLOCK, by(end=lambda m, l: as_bfloat16(level_plus_log(m, l))), "D13",
           "lse bounds", keys((100.2, 1))),
    Mutant("0 times what no row sees", BLOCK, by(read=as_given), "F10", "poison",
           keys((0, 1), (NOTHING, math.nan))),
    Mutant("NaN replaced by 0", BLOCK, with_nan_removed, "I1", "seen NaN", keys((0, math.nan))),
    Mutant("nothing, whatever comes", BLOCK, lambda scores, v: BLOCK.fn(scores[:, :0], v[:0]), "I7", "anchor",
           keys((0, 1))),
    Mutant("first key twice", BLOCK, first_key_twice, "", "permutation", keys((0, 1), (0, 3))),
    Mutant("NaN through a masked row", TORCH, masked_softmax, "H9", "gradient", UNSEEN),
]
