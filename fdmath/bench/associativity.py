"""How far ⊕ is from associative in floating point, and what an order of folding costs in the long run.

Three states bracketed both ways, by score level, spelling and format; and up to 10⁵ keys folded one after the
other, in streams and in a tree, beside the proven bounds. Errors are in units of u·Σp|v|, u the unit roundoff
of the format in which the statistics (lse, or m and l) are kept.
"""

from dataclasses import dataclass

import numpy as np

import fdmath
from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.algebra.rounding import Budget
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.bench.adversary import COMBINE
from fdmath.bench.headline import Form, Row, fold_bound, merge_printed

LEVELS = (0, 10, 100, 1000)
FORMS = {
    "pair, as printed": Form(LSEState, merge_printed, rounding.chain_budget),
    "pair, convex": Form(LSEState, fdmath.merge, fold_bound),
    "m/l/o": Form(MLOState, fdmath.merge, fold_bound),
    "m/l/acc": Form(AccState, fdmath.merge, fold_bound),
}


@dataclass(frozen=True)
class Apart:
    """Two bracketings of many triples: the share that agrees in every bit, the largest gap between their o,

    the largest gap that the bounds allow, both in u·Σp|o|, and the largest gap over what is allowed there.
    """

    bitwise: float
    gap: float
    allowed: float
    ratio: float


def apart(level, form, stats="float32", rows=4096, seed=0):
    """How far (a ⊕ b) ⊕ c lies from a ⊕ (b ⊕ c), as Apart, for random states around a score level.

    form: a name of FORMS; stats: the format of the statistics (o is float64 beside float64, else float32).
    """
    form, fmt = FORMS[form], rounding.format_of(stats)
    parts = three_states(level, form.kind, stats, rows, seed)
    a, b, c = parts
    left, right = form.merge(form.merge(a, b), c), form.merge(a, form.merge(b, c))
    same = [x == y if x.ndim == 1 else np.all(x == y, axis=-1) for x, y in zip(left, right, strict=True)]
    gap = np.abs(_pair(left).o - _pair(right).o)
    allowed = form.bound(parts, fmt, None).o + form.bound(parts[::-1], fmt, None).o  # ⊕ commutes bit for bit
    unit = fmt.u * fdmath.flat(None, [LSEState(np.abs(_pair(s).o), _pair(s).lse) for s in parts]).o
    return Apart(float(np.mean(np.all(same, axis=0))),
                 *(float(np.max(x)) for x in (gap / unit, allowed / unit, gap / allowed)))


def three_states(level, kind, stats, rows, seed=0):
    """Three states of a kind, (rows, 1) and (rows,): m around `level`, l from 1 to 64, o from 0 to 1."""
    rng, payload = np.random.default_rng(seed), "float64" if stats == "float64" else "float32"
    m = rounding.round_to(level + rng.standard_normal((3, rows)), stats)
    l = rounding.round_to(64.0 ** rng.random((3, rows)), stats)  # noqa: E741
    o = rounding.round_to(rng.random((3, rows, 1)), payload)
    exact = [MLOState(*columns).to(kind) for columns in zip(m, l, o, strict=True)]
    formats = [payload if name == kind.payload_name else stats for name in kind.names]
    return [kind(*(backends.cast(x, f) for x, f in zip(s, formats, strict=True))) for s in exact]


def _pair(state):
    """The state as a float64 LSEState."""
    return rounding.in_float64(state).to(LSEState)


# -- long folds: parts is one state whose leading axis counts the keys, none of them empty ---------------


def keys(kind, count, rows=4, level=0.0, seed=0):
    """One float32 state of `count` keys a row: shapes (count, rows) and (count, rows, 1), scores level + N(0, 1)."""
    rng = np.random.default_rng(seed)
    scores = (level + rng.standard_normal((count, rows))).astype(np.float32)
    return LSEState(rng.random((count, rows, 1)).astype(np.float32), scores).to(kind)


def prefixes(parts):
    """The exact states of the first 1, 2, …, N keys, a float64 LSEState with the leading axis of `parts`."""
    o, lse = _pair(parts)
    top = np.max(lse, axis=0)
    weight = np.exp(lse - top)
    total = np.cumsum(weight, axis=0)
    return LSEState(np.cumsum(weight[..., None] * o, axis=0) / total[..., None], top + np.log(total))


def chain(parts, counts):
    """count → the state of the first `count` keys folded one after the other, for each of `counts`.

    The bits of `sequential(merge, …)`, whose guards are left out since no key is empty.
    """
    combine, kind = COMBINE[type(parts)], type(parts)
    running, found = first(parts, 1), {}
    running = running.map(lambda x: x[0])
    for i in range(1, max(counts) + 1):
        if i in counts:
            found[i] = running
        if i < max(counts):
            running = kind(*combine(np, running, parts.map(lambda x, i=i: x[i])))
    return found


def first(parts, count):
    """The state of the first `count` parts, still unfolded."""
    return parts.map(lambda x: x[:count])


def tree_at_once(parts, fmt):
    """(state, Budget) of `tree` over the leading axis, each of its levels one ⊕ of whole arrays, T6 beside it."""
    return _tree(parts, rounding.in_float64(parts), rounding.no_error(parts), fmt)


def streams_at_once(parts, count, fmt):
    """(state, Budget) of `streams(count, then=tree)` over the leading axis, all streams in one ⊕ of arrays.

    Raises ValueError unless the number of parts is a multiple of count.
    """
    if len(parts.payload) % count:
        raise ValueError(f"the number of parts must be a multiple of count; got {len(parts.payload)} and {count}")
    rounds = [parts.map(lambda x, i=i: x[i:i + count]) for i in range(0, len(parts.payload), count)]
    exact = fdmath.merge_all([rounding.in_float64(s) for s in rounds], fdmath.sequential)
    budget = rounding.fold_budget(rounds, fdmath.sequential, fmt)
    return _tree(fdmath.merge_all(rounds, fdmath.sequential), exact, budget, fmt)


def _tree(parts, exact, budget, fmt):
    """The state and the Budget at the root of a tree over parts that are known exactly and carry a Budget."""
    while len(parts.payload) > 1:
        lone = len(parts.payload) // 2 * 2
        evens, odds = slice(0, lone, 2), slice(1, lone, 2)
        of_evens, of_odds = (Budget(*(x[s] for x in budget)) for s in (evens, odds))
        left, right = (exact.map(lambda x, s=s: x[s]) for s in (evens, odds))
        grown = rounding.merge_budget(left, right, fmt, of_evens, of_odds)
        budget = Budget(*(np.concatenate([x, y[lone:]]) for x, y in zip(grown, budget, strict=True)))
        exact = _level_up(exact, lone)
        parts = _level_up(parts, lone)
    return parts.map(lambda x: x[0]), Budget(*(x[0] for x in budget))


def merge_levels(parts):
    """The state of `tree` over the leading axis, each of its levels one ⊕ of whole arrays."""
    while len(parts.payload) > 1:
        parts = _level_up(parts, len(parts.payload) // 2 * 2)
    return parts.map(lambda x: x[0])


def _level_up(parts, lone):
    """The parts with neighbours merged in pairs, and what has no neighbour as it is."""
    merged = fdmath.merge(parts.map(lambda x: x[:lone:2]), parts.map(lambda x: x[1:lone:2]))
    return type(parts)(*(np.concatenate([x, y[lone:]]) for x, y in zip(merged, parts, strict=True)))


def chain_budgets(parts, fmt, tries=12):
    """The Budget of every prefix of a chain over these parts (T6): shapes (N, rows, dv) and (N, rows).

    A proposal is made for all prefixes, and all steps of the induction are checked in one call: one more ⊕ of a
    state within its bound is within the next bound. Until that holds, a larger proposal is made. Raises
    RuntimeError where none is found.
    """
    before, new = chain_states(first(parts, len(parts.payload) - 1)), rounding.in_float64(parts.map(lambda x: x[1:]))
    lse = prefixes(parts).lse
    kept, worth = np.exp(lse[:-1] - lse[1:]), np.exp(lse[1:] - np.max(lse, axis=0))
    bound = rounding.no_error(parts)
    for _ in range(tries):
        carried = Budget(*(x[:-1] for x in bound))
        after = rounding.merge_budget(before, new, fmt, carried)
        if all(np.all(x <= y[1:]) for x, y in zip(after, bound, strict=True)):
            return bound
        bound = Budget(_summed(after.o, carried.o, kept[..., None], worth[..., None]),
                       _summed(after.lse, carried.lse, kept, worth))
    raise RuntimeError("no bound was found: the errors of this chain grow too fast")


def _summed(after, carried, kept, worth):
    """A proposal: what each step added to the share `kept` of what it was given, diluted by all the weight to come."""
    total = np.cumsum((after - kept * carried) * worth, axis=0) / worth
    return np.concatenate([0 * total[:1], 1.01 * total])  # head room of a hundredth closes the induction


def chain_states(parts):
    """The exact states of the first 1, 2, …, N keys in float64, of the kind of the parts, at the top level so far."""
    exact = prefixes(parts)
    if isinstance(parts, LSEState):
        return exact
    m = np.maximum.accumulate(rounding.exact(parts.m), axis=0)
    l = np.exp(exact.lse - m)  # noqa: E741
    return type(parts)(m, l, exact.o if parts.payload_name == "o" else l[..., None] * exact.o)


def long_folds(kind, counts, streams=100, rows=4):
    """order → a Row for each of `counts`: float32 keys, one a part, folded in a chain, in streams and in a tree.

    The errors of o are taken against float64 sums; each count above `streams` must be a multiple of it.
    """
    fmt, parts = rounding.format_of("float32"), keys(kind, max(counts), rows)
    exact, bounds, chained = prefixes(parts).o, chain_budgets(parts, fmt).o, chain(parts, counts)
    found = {"chain": [], "streams": [], "tree": []}
    for n in counts:
        some = first(parts, n)
        (dealt, of_dealt), (root, of_root) = streams_at_once(some, min(streams, n), fmt), tree_at_once(some, fmt)
        results = (chained[n], bounds[n - 1]), (dealt, of_dealt.o), (root, of_root.o)
        for rows_of, (state, bound) in zip(found.values(), results, strict=True):
            error, unit = np.abs(_pair(state).o - exact[n - 1]), fmt.u * np.abs(exact[n - 1])
            rows_of.append(Row(*(float(np.max(x)) for x in (error / unit, bound / unit, error / bound))))
    return found
