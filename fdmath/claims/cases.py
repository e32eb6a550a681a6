"""Random cases of attention, cut and merged by fdmath, and judged in ball arithmetic by their proven bounds."""

import numpy as np

from fdmath.algebra.merge import flat, merge_all
from fdmath.algebra.order import sequential, tree
from fdmath.algebra.rounding import block_budget, finish_budget, fold_budget, format_of
from fdmath.algebra.state import LSEState
from fdmath.attention.decode import key_ranges, split_kv_attention
from fdmath.attention.softmax import partial_state
from fdmath.verify import reference

ORDERS = (flat, sequential, tree)


def draw(rng, rows, keys, dv=2, level=0.0, dtype="float64"):
    """(scores (rows, keys), v (keys, dv)): normal numbers, the scores with a spread of 4 around a level."""
    scores = level + 4 * rng.standard_normal((rows, keys))
    return scores.astype(dtype), rng.standard_normal((keys, dv)).astype(dtype)


def shapes(seed, count, most=40):
    """(rng, rows, keys, tile) of `count` random shapes, tile from 1 to more than the keys, the same in every run."""
    rng = np.random.default_rng(seed)
    for _ in range(count):
        keys = int(rng.integers(1, most))
        yield rng, int(rng.integers(1, 4)), keys, int(rng.integers(1, keys + 3))


def parts(scores, v, tile, kind=LSEState):
    """(states, budgets) of the tiles of `tile` keys, the last one short."""
    fmt, cuts = format_of(scores), [slice(*cut) for cut in key_ranges(len(v), tile)]
    states = [partial_state(scores[:, cut], v[cut], kind) for cut in cuts]
    return states, [block_budget(scores[:, cut], v[cut], fmt, pair=kind is LSEState) for cut in cuts]


def bound(scores, v, tile, kind=LSEState, order=flat):
    """The Budget of all keys: of the tiles' sums, of folding them in an order, of the state as a pair (T1, T3, T6)."""
    fmt, (states, errors) = format_of(scores), parts(scores, v, tile, kind)
    budget = fold_budget(states, order, fmt, errors)
    return finish_budget(merge_all(states, order), budget, fmt, fmt, pair=kind is LSEState)


def split(scores, v, tile, kind=LSEState, order=flat):
    """(o, lse) of split_kv_attention on keys that are the scores: d = 1, q = 1, each row of scores a head."""
    rows, keys = scores.shape
    q, k = np.ones((rows, 1, 1), scores.dtype), scores[..., None]
    o, lse = split_kv_attention(q, k, np.broadcast_to(v, (rows, *v.shape)), tile=tile, kind=kind, order=order)
    return LSEState(o[:, 0], lse[:, 0])


def found(state, scores, v, budget):
    """The Finding of a state (rows, dv) of these keys: its worst error over its budget, and the verdict."""
    return reference.block(scores, v).judge(state, budget)


def right(state, scores, v, budget):
    """Whether a state certainly lies within its budget of the exact one."""
    return found(state, scores, v, budget).verdict == "pass"


def is_attention(kind, seed, count, dtype="float64"):
    """Whether FlashDecoding in a spelling is attention, on `count` random shapes and tiles, in each order in turn."""
    cases = []
    for i, (rng, rows, keys, tile) in enumerate(shapes(seed, count)):
        scores, v = draw(rng, rows, keys, dtype=dtype)
        order = ORDERS[i % len(ORDERS)]
        cases.append(right(split(scores, v, tile, kind, order), scores, v, bound(scores, v, tile, kind, order)))
    return cases


def worst(kind, dtype, tile=16, **drawn):
    """The largest error of o in units of u·Σp|v|, of split_kv_attention on 8 rows drawn by `at`."""
    scores, v, exact = at(dtype, **drawn)
    return float(np.max(exact.errors(split(scores, v, tile, kind))[0] / exact.scale_o)) / format_of(dtype).u


def allowed(kind, dtype, tile=16, **drawn):
    """The largest bound on that error, in the same units."""
    scores, v, exact = at(dtype, **drawn)
    return float(np.max(bound(scores, v, tile, kind).o / exact.scale_o)) / format_of(dtype).u


def at(dtype, keys=256, level=0.0, rows=8):
    """(scores, v, their Enclosure) of some rows of keys at a level of scores."""
    scores, v = draw(np.random.default_rng(0), rows, keys, level=level, dtype=dtype)
    return scores, v, reference.block(scores, v).enclosure


def percent(share, digits=2):
    """A share as text."""
    return f"{float(100 * share):.{digits}f} %"
