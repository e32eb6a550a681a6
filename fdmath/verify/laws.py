"""The laws of attention states: each a named function whose docstring is the law.

What a law is stands in `law`; the laws of how a call is made (twice, among others, on views) in `laws_of_calls`.
The monoid laws alone are met by wrong merges ("keep the state with the larger m"), so the anchor, which asks
the oracle, is one of the set.

Empty states are drawn only for the laws that are about them (the anchor, identities, partitions, …): a
merge that fails on nothing alone should break the laws about nothing, and no others.
"""

import importlib
import itertools
import math
from dataclasses import replace

import numpy as np

from fdmath.algebra import rounding
from fdmath.algebra.merge import flat
from fdmath.algebra.merge import merge as fdmath_merge
from fdmath.algebra.rounding import Budget
from fdmath.algebra.state import KINDS, LSEState, identity
from fdmath.attention.softmax import partial_state
from fdmath.verify import gradients
from fdmath.verify.backward import BackwardCase, bounded, compare, roundings
from fdmath.verify.cases import BlockCase, StateCase
from fdmath.verify.law import KEYED, LAWS, MERGING, Law, both, law, no_error, slack64
from fdmath.verify.reference import HOLDS, Finding, as_pair, equal, is_nan, lawful, merged, same
from fdmath.verify.subject import CALLED, SubjectError


def _blind(subject):
    """Whether calls of the subject have keys that no query sees, and gradients."""
    return bounded(subject) and (subject.role == "decode" or subject.causal == "top_left")


# -- the anchor -------------------------------------------------------------------------------------


@law("fn(keys) = (Σeˢv / Σeˢ, log Σeˢ)", parts=(1, 4), long=True)
def anchor(subject, case):
    """What the subject returns is the attention state of its keys by definition, as the oracle certifies it."""
    if subject.role in CALLED:
        return case.certified(subject).judge(case.run(subject), case.budget(subject))
    return case.certified().judge(case.run(subject), case.budget(subject))


@law("state(A ∪ B) = state(A) ⊕ state(B), A ∩ B = ∅", applies=lambda s: s.lse or s.role in MERGING, parts=(2, 4),
     long=True)
def closure(subject, case):
    """The state of a union of disjoint sets of keys is the ⊕ of their states, a causal mask kept for the later one."""
    if subject.role in MERGING:
        return _merge_of_blocks(subject, case)
    if subject.role == "attention" and subject.causal == "top_left":
        case = replace(case, causal=False)
    n = case.v.shape[-2]
    parts = case.split((n // 3, 1, max(n - 1, 0))[n % 3])
    states = [part.run(subject) for part in parts]
    broken = lawful(states)
    if broken:
        return broken.on("\n".join(f"part {i + 1}:\n{part}" for i, part in enumerate(parts)))
    errors = [part.budget(subject) for part in parts]
    exact = [as_state(s) for s in states]
    budget = rounding.fold_budget(exact, flat, rounding.format_of("float64"), errors)
    return same(as_pair(case.run(subject)), as_pair(merge_exactly(exact)), both(budget, case.budget(subject)))


def _merge_of_blocks(subject, case):
    """⊕ over the states of one-key and two-key blocks whose scores are the case's levels."""
    scores, v = _keys_of(case)
    half = scores.shape[-1] // 2 or 1
    blocks = [BlockCase(scores[:, a:b], v[a:b]) for a, b in ((0, half), (half, scores.shape[-1]))]
    parts = [partial_state(b.scores, b.v, subject.kind) for b in blocks]
    built = StateCase(tuple(parts))
    fmt = rounding.format_of(built.dtype)
    errors = [rounding.block_budget(b.scores, b.v, fmt, pair=subject.kind is LSEState) for b in blocks]
    return BlockCase(scores, v).certified().judge(built.run(subject), built.budget(subject, errors)).on(built)


def _keys_of(case):
    """Scores (R, P) and values (P, dv), the levels of a StateCase taken as scores of its parts."""
    dtype = case.parts[0].payload.dtype
    scores = np.stack([p.lse if isinstance(p, LSEState) else p.m for p in case.parts], axis=-1)
    rows = scores.shape[0]
    first = [as_pair(p).o[0] if rows else np.zeros(p.payload.shape[-1]) for p in case.parts]
    v = np.where(np.isfinite(np.stack(first)), np.stack(first), 0.0)
    return scores.astype(dtype), v.astype(dtype)


# -- the monoid -------------------------------------------------------------------------------------


@law("(a ⊕ b) ⊕ c = a ⊕ (b ⊕ c)", ("merge",), parts=(3, 3), empties=False)
def associativity(subject, case):
    """⊕ may be bracketed either way: the two results agree within the sum of their bounds."""
    return _two_bracketings(subject, case)


@law("(a ⊕ b) ⊕ c = a ⊕ (b ⊕ c), every bit", ("merge",), lambda s: "bitwise associativity" in s.false + s.claims,
     name="bitwise associativity", parts=(3, 3), empties=False)
def bitwise_associativity(subject, case):
    """⊕ is associative bit for bit: false in floating point, whatever the spelling, as a counterexample shows."""
    return _two_bracketings(subject, case)


def _two_bracketings(subject, case):
    a, b, c = case.parts
    left = subject.merge(subject.merge(a, b), c)
    right = subject.merge(a, subject.merge(b, c))
    return same(left, right, both(case.budget(subject), StateCase((c, b, a)).budget(subject)))


@law("every bracketing of a₁ ⊕ … ⊕ aₙ, n ≥ 3", ("merge",), name="association orders", parts=(3, 4))
def association_orders(subject, case):
    """Three and more parts, bracketed in every way, give the certified ⊕ of them all."""
    right, found = case.certified(), HOLDS
    for bracketing in _bracketings(list(case.parts)):
        state, budget = bracketing(subject)
        found = found & right.judge(state, budget)
    return found


@law("a ⊕ b = b ⊕ a", MERGING, parts=(2, 2), empties=False)
def commutativity(subject, case):
    """⊕ does not see the order of its two operands."""
    mirror = case.reordered()
    return same(case.run(subject), mirror.run(subject), both(case.budget(subject), mirror.budget(subject)))


@law("∅ ⊕ a = a", MERGING, name="left identity", lone=True)
def left_identity(subject, case):
    """The state of no keys on the left changes nothing, whatever its o holds (NaN too)."""
    return _identity_law(subject, case, lambda nothing, a: (nothing, a))


@law("a ⊕ ∅ = a", MERGING, name="right identity", lone=True)
def right_identity(subject, case):
    """The state of no keys on the right changes nothing, whatever its o holds (NaN too)."""
    return _identity_law(subject, case, lambda nothing, a: (a, nothing))


def _identity_law(subject, case, order):
    a = case.parts[0]
    clean = as_clean(a)
    found = HOLDS
    for payload in (0.0, math.nan):
        operands = order(_nothing(a, payload), clean)
        got = subject.merge(*operands)
        # `a` merged with nothing may be renormalised by an undeclared merge: the widest form's bound
        budget = StateCase(order(_nothing(clean, 0.0), clean)).budget(replace(subject, claims=()))
        found = found & same(got, subject.echo(clean), budget).on(StateCase(operands))
    return found


@law("∅ ⊕ ∅ = ∅;  state(no keys) = (0, −∞)", name="empty", lone=True)
def empty(subject, case):
    """No keys give o = 0, lse = −∞, and nothing merged with nothing is nothing: never NaN."""
    if subject.role in MERGING:
        nothing = [_nothing(case.parts[0], payload) for payload in (0.0, math.nan)]
        found = HOLDS
        for a, b in itertools.product(nothing, nothing):
            found = found & _is_nothing(subject, subject.merge(a, b)).on(StateCase((a, b)))
        return found
    if subject.role == "block":
        cases = [BlockCase(case.scores[:, :0], case.v[:0]), BlockCase(np.full_like(case.scores, -np.inf), case.v)]
    elif subject.role == "decode":
        cases = [replace(case, seq_lens=np.zeros_like(case.seq_lens))]
    else:
        cases = [replace(case, k=case.k[..., :0, :], v=case.v[..., :0, :])]
    found = HOLDS
    for one in cases:
        found = found & _is_nothing(subject, one.run(subject)).on(one)
    return found


def _is_nothing(subject, state):
    pair = as_pair(state)
    right = LSEState(np.zeros(pair.o.shape), np.full(pair.lse.shape, -np.inf))
    return same(pair, right, no_error(subject))


# -- levels and values --------------------------------------------------------------------------------


@law("s + c  ⇒  o, lse + c", parts=(1, 4), empties=False)
def shift(subject, case):
    """Adding c to every score leaves o as it is and adds c to lse."""
    found, was, here = HOLDS, as_pair(case.run(subject)), case.budget(subject)
    for c in (200.0, -200.0, 65536.0):
        if case.dtype == "float16" and abs(c) > 1e3:
            continue
        moved, errors = case.shifted(c)
        scale = 1.0
        if subject.role in CALLED:
            scale = 1 / math.sqrt(case.q.shape[-1]) if subject.scale is None else subject.scale
        got, budget = as_pair(moved.run(subject)), both(here, moved.budget(subject, errors))
        slip = 4 * rounding.unit_roundoff("float64") * (abs(c) + np.abs(np.where(np.isinf(was.lse), 0, was.lse)))
        right = LSEState(was.o, was.lse + scale * c)
        found = found & same(got, right, Budget(budget.o, budget.lse + slip)).on(moved)
    return found


@law("(m + c, l·e⁻ᶜ, ·) = (m, l, ·)", ("merge",), lambda s: s.kind is not LSEState, name="reference level",
     parts=(2, 3), empties=False)
def reference_level(subject, case):
    """m is a reference level, not a value: the same states at other levels merge to the same state."""
    moved, errors = [], []
    for i, part in enumerate(case.parts):
        c = (3.0, -5.0, 0.5)[i % 3]
        factor = np.exp(-np.asarray(c, part.l.dtype))
        level = part.m + np.asarray(c, part.m.dtype)
        payload = part.payload if part.payload_name == "o" else part.acc * factor
        moved.append(subject.kind(level, part.l * factor, payload))
        u = rounding.unit_roundoff(level)
        lost = np.where(np.isinf(level), 0.0, u * (np.abs(rounding.exact(level)) + rounding.KAPPA + 2))
        size = np.abs(np.where(np.isfinite(as_pair(part).o), as_pair(part).o, 0.0))
        tiny = rounding.smallest_subnormal(level) * math.exp(5)
        errors.append(Budget((u * (2 * rounding.KAPPA + 4) * size + tiny) * (part.payload_name == "acc"), lost))
    case_at = StateCase(tuple(moved))
    budget = both(case.budget(subject), case_at.budget(subject, errors))
    return same(as_pair(case_at.run(subject)), as_pair(case.run(subject)), budget)


@law("state of the same keys in another order", ("merge_many", *KEYED), name="permutation", parts=(2, 6), empties=False)
def permutation(subject, case):
    """The state does not depend on the order of the keys."""
    if subject.role in CALLED:
        case = case.filled()
    mirror = case.reordered()
    return same(as_pair(case.run(subject)), as_pair(mirror.run(subject)),
                both(case.budget(subject), mirror.budget(subject)))


@law("any partition of the keys, merged, is the same state", (*MERGING, "decode"), name="partition independence",
     parts=(1, 6))
def partition_independence(subject, case):
    """Unbalanced, ragged, one-key and empty parts, more parts than keys: the merged state is the same."""
    if subject.role == "decode":
        found, right = HOLDS, case.certified(subject)
        first = replace(case, num_splits=1).run(subject)
        for splits in (1, 2, 3, case.k.shape[-2], case.k.shape[-2] + 3):
            one = replace(case, num_splits=splits)
            got = one.run(subject)
            kept = equal(got.o, first.o) and equal(got.lse, first.lse)  # what a claim bit for bit is about
            found = found & replace(right.judge(got, one.budget(subject)), bitwise=kept).on(one)
        return found
    scores, v = _keys_of(case)
    keys, right, found = scores.shape[-1], BlockCase(scores, v).certified(), HOLDS
    fmt = rounding.format_of(case.dtype)
    for cuts in ([], range(1, keys), [1], [keys - 1], [0, 0, 1, keys, keys]):
        edges = [0, *[c for c in cuts if 0 <= c <= keys], keys]
        blocks = [BlockCase(scores[:, a:b], v[a:b]) for a, b in itertools.pairwise(edges)]
        built = StateCase(tuple(partial_state(b.scores, b.v, subject.kind) for b in blocks))
        errors = [rounding.block_budget(b.scores, b.v, fmt, pair=subject.kind is LSEState) for b in blocks]
        found = found & right.judge(built.run(subject), built.budget(subject, errors)).on(built)
    return found


@law("every key twice  ⇒  o, lse + log 2", name="duplicate keys", parts=(1, 3), empties=False, long=True)
def duplicate_keys(subject, case):
    """Counting every key twice leaves o as it is and adds log 2 to lse: ⊕ is a sum, it is not idempotent."""
    if subject.role in CALLED:
        case = case.filled()
    twice = case.doubled()
    got, was = as_pair(twice.run(subject)), as_pair(case.run(subject))
    budget = both(case.budget(subject), twice.budget(subject))
    slip = 2 * rounding.unit_roundoff("float64") * (1 + np.abs(np.where(np.isinf(was.lse), 0, was.lse)))
    return same(got, LSEState(was.o, was.lse + math.log(2)), Budget(budget.o, budget.lse + slip)).on(twice)


@law("min v ≤ o ≤ max v", name="convexity", parts=(2, 4), empties=False)
def convexity(subject, case):
    """o lies in the hull of the values that it sees (of the o that are merged)."""
    got = as_pair(case.run(subject))
    values, seen = case.values(subject) if subject.role in CALLED else case.values()
    low = np.min(np.where(seen[..., None], values, np.inf), axis=0, initial=np.inf)
    high = np.max(np.where(seen[..., None], values, -np.inf), axis=0, initial=-np.inf)
    nothing = ~np.any(seen, axis=0)[..., None]
    clipped = np.where(nothing, 0.0, np.minimum(np.maximum(got.o, low), high))
    return same(got, LSEState(clipped, got.lse), case.budget(subject))


@law("v ≡ 1  ⇒  o = 1", name="v is 1", parts=(2, 4), empties=False)
def v_is_1(subject, case):
    """Equal values are their own mean: with every v (or o) equal to 1, o is 1."""
    ones = case.with_values(np.ones_like)
    state = as_pair(ones.run(subject))
    right = LSEState(np.where(_sees(subject, ones), np.ones_like(state.o), 0.0), state.lse)
    return same(state, right, ones.budget(subject)).on(ones)


def _sees(subject, case):
    """Whether each row sees anything, (…, 1)."""
    _, seen = case.values(subject) if subject.role in CALLED else case.values()
    return np.any(seen, axis=0)[..., None]


@law("uniform scores  ⇒  lse = log #visible", name="counting", parts=(1, 6), small=True, long=True)
def counting(subject, case):
    """With all scores 0, lse is the logarithm of the number of visible keys and o their plain mean."""
    if subject.role in MERGING:
        few = _count_of_counts(subject, case, range(1, len(case.parts) + 1))
        return few & _count_of_counts(subject, case, UNBALANCED)
    if subject.role == "block":
        level = BlockCase(np.where(np.isneginf(case.scores), case.scores, 0).astype(case.scores.dtype), case.v)
    else:
        level = replace(case, q=np.zeros_like(case.q))
    values, seen = level.values(subject) if subject.role in CALLED else level.values()
    visible = np.sum(seen, axis=0)
    mean = np.sum(np.where(seen[..., None], values, 0.0), axis=0) / np.maximum(visible, 1)[..., None]
    with np.errstate(divide="ignore"):
        right = LSEState(mean, np.log(visible.astype(np.float64)))
    return same(as_pair(level.run(subject)), right, slack64(level.budget(subject), mean)).on(level)


UNBALANCED = (3072, 64, 1, 512, 7, 2)
"""How many keys parts stand for: a long prefix, a short suffix, one key, …"""


def _count_of_counts(subject, case, counts):
    """The Finding of states of so many equal keys of score 0: lse = log Σn, o their weighted mean."""
    counts = list(itertools.islice(itertools.cycle(counts), len(case.parts)))
    parts = [_counted(p, n) for p, n in zip(case.parts, counts, strict=True)]
    built = StateCase(tuple(parts))
    lost = [Budget(np.zeros(p.payload.shape), rounding.unit_roundoff(p.payload) * np.full(p.payload.shape[:-1],
            math.log(n) + 1)) for p, n in zip(parts, counts, strict=True)]
    got, budget = as_pair(built.run(subject)), built.budget(subject, lost)
    mean = sum(n * as_pair(p).o for p, n in zip(parts, counts, strict=True)) / sum(counts)
    right = LSEState(mean, np.full(got.lse.shape, math.log(sum(counts))))
    return same(got, right, slack64(budget, mean)).on(built)


@law("max s ≤ lse ≤ max s + log n", applies=lambda s: s.lse, name="lse bounds", parts=(1, 5), empties=False)
def lse_bounds(subject, case):
    """lse lies between the largest score and that plus the logarithm of the number of keys seen."""
    got = as_pair(case.run(subject))
    levels = case.levels(subject) if subject.role in CALLED else case.levels()
    top = np.max(levels, axis=-1, initial=-np.inf)
    count = np.sum(levels > -np.inf, axis=-1)
    with np.errstate(divide="ignore"):
        high = np.where(count > 0, top + np.log(np.maximum(count, 1)), -np.inf)
    clipped = np.where(np.isnan(got.lse), -1.0, np.minimum(np.maximum(got.lse, top), high))
    return same(got, LSEState(got.o, clipped), slack64(case.budget(subject), got.o, high))


@law("o(2v − 3) = 2·o(v) − 3", name="linearity", parts=(2, 4), small=True, empties=False)
def linearity(subject, case):
    """o is linear in v, and the weights sum to 1: o(2v − 3) = 2·o(v) − 3; lse does not depend on v."""
    other = case.with_values(lambda v: (2 * v - 3).astype(v.dtype))
    got, was = as_pair(other.run(subject)), as_pair(case.run(subject))
    one, two = case.budget(subject), other.budget(subject)
    right = np.where(_sees(subject, case), 2 * was.o - 3, 0.0)
    budget = Budget(2 * one.o + two.o, one.lse + two.lse)
    return same(got, LSEState(right, was.lse), slack64(budget, right))


@law("⊕ then convert = convert then ⊕", ("merge",), name="round trip", parts=(2, 2), empties=False)
def round_trip(subject, case):
    """The three spellings are one algebra: merging and converting commute, through each spelling and back."""
    got, found = as_pair(case.run(subject)), HOLDS
    clean = [as_clean(p) for p in case.parts]
    for kind in KINDS:
        through = fdmath_merge(*(p.to(kind) for p in clean)).to(LSEState)
        other = StateCase(tuple(p.to(kind) for p in clean))
        plain = replace(subject, kind=kind, claims=(), log_base=math.e)
        budget = both(case.budget(subject), other.budget(plain, _conversion(other)))
        found = found & same(got, as_pair(through), both(budget, _converting(got, case)))
    return found


# -- keys ---------------------------------------------------------------------------------------------


@law("unseen k, v may hold anything", ("block", "decode", "attention"),
     lambda s: s.role != "attention" or s.causal == "top_left", name="poison")
def poison(subject, case):
    """A slot that no query of the call sees changes nothing, whatever it holds."""
    case = _with_unseen(subject, case)
    was, found = case.run(subject), HOLDS
    for bad in (math.nan, math.inf):
        if subject.role == "block":
            unseen = np.all(np.isneginf(case.scores), axis=0)
            v = case.v.copy()
            v[unseen] = bad
            one = replace(case, v=v)
        else:
            unseen = ~np.any(case.visible(subject), axis=(1, 2))
            k, v = case.k.copy(), case.v.copy()
            for x in (k, v):
                np.moveaxis(x, 1, 2)[unseen] = bad
            one = replace(case, k=k, v=v)
        found = found & same(one.run(subject), was, both(case.budget(subject), case.budget(subject))).on(one)
    return found


def _with_unseen(subject, case):
    """The case with slots that no query sees, if its role has such: behind the lengths, beyond a top-left mask."""
    if subject.role == "decode":
        return case.roomier()
    return replace(case, causal=True) if subject.role == "attention" else case


@law("NaN in, where it is seen  ⇒  o is NaN", name="seen NaN")
def seen_nan(subject, case):
    """NaN in v (in o of a part that has weight), or a score NaN or +∞, makes o NaN in the rows that see its key,

    and changes no other head (no other row of a merge, which may refuse NaN instead).
    """
    was, budget, found = as_pair(case.run(subject)), case.budget(subject), HOLDS
    for one, seen, apart in case.spoiled(subject):
        try:
            got = as_pair(one.run(subject))
        except SubjectError:
            if subject.role in MERGING:  # a merge may refuse it
                continue
            raise
        kept = (LSEState(np.where(apart[..., None], s.o, 0.0), np.where(apart, s.lse, 0.0)) for s in (got, was))
        found = found & is_nan(got.o, seen).on(one) & same(*kept, both(budget, budget)).on(one)
    return found


@law("later keys change no earlier row", ("attention",), name="causality")
def causality(subject, case):
    """Under the causal mask a row does not see the keys after it: other values there change nothing."""
    case, keys = replace(case, causal=True), np.arange(case.k.shape[-2])[:, None]
    seen = np.sum(case.visible(subject)[0, 0], axis=-1)
    was, budget, found = case.run(subject), case.budget(subject), HOLDS
    for horizon in sorted({seen[0], seen[len(seen) // 2], seen[max(len(seen) - 2, 0)]} - {len(keys)}):
        k, v = (np.where(keys < horizon, x, y) for x, y in ((case.k, 1 - case.k), (case.v, 7 - case.v)))
        k[..., -1] = 0
        other = replace(case, k=k.astype(case.k.dtype), v=v.astype(case.v.dtype))
        pick = lambda s, rows=seen <= horizon: type(s)(s.o[..., rows, :], s.lse[..., rows])  # noqa: E731
        found = found & same(pick(other.run(subject)), pick(was), pick(both(budget, budget))).on(other)
    return found


@law("fn(x) leaves x as it was", applies=lambda s: not s.in_place, name="inputs kept", parts=(2, 4))
def inputs_kept(subject, case):
    """A call, or a call of its gradient, changes nothing that it is given: only a subject declared in_place may."""
    watched = subject.watched(changes := [])
    if subject.backward is not None and subject.role in CALLED:
        BackwardCase.of(case, watched).run()
    else:
        case.run(watched)
    return Finding(math.inf, False, "fail", changes[0]) if changes else HOLDS


@law("d(o, lse) = Σp·ds·(v − o) + Σp·dv, Σp·ds", (*MERGING, "block", "partial", "attention"),
     gradients.available, name="gradient", parts=(1, 4), small=True)
def gradient(subject, case):
    """The gradients of o and of lse are those of the definition, and 0, never NaN, towards an empty state."""
    return gradients.finding(subject, case)


# -- the backward pass of a call ------------------------------------------------------------------------


@law("(dq, dk, dv) of Σ do·o, every entry", CALLED, bounded, name="gradient of o", small=True)
def gradient_of_o(subject, case):
    """Every entry of (dq, dk, dv) of a loss on o is the certified derivative of the definition."""
    return BackwardCase.of(case, subject, lse=False).judged()


@law("(dq, dk, dv) of Σ dlse·lse, every entry", CALLED, bounded, name="gradient of lse", small=True)
def gradient_of_lse(subject, case):
    """Every entry of (dq, dk, dv) of a loss on lse is the certified derivative of the definition; dv is 0."""
    return BackwardCase.of(case, subject, o=False).judged()


@law("dk, dv of a KV head = Σ over its query heads", CALLED, bounded, name="sum over a group", small=True)
def sum_over_a_group(subject, case):
    """A KV head that query heads share gets the sum of what copies of its own would get from each of them."""
    one = BackwardCase.of(case, subject)
    apart, index = one.with_heads_apart(), case.kv_heads(subject)
    dq, *copies = apart.run()
    own, *bounds = apart.bounds
    pick = index == np.arange(case.k.shape[1])[:, None]
    total = lambda x: np.stack([np.sum(x[:, heads], axis=1) for heads in pick], axis=1)  # noqa: E731
    slips = [0.0, *(roundings(len(index)) * total(np.abs(x)) for x in copies)]
    bounds = [a + b + c for a, b, c in zip([own, *map(total, bounds)], one.bounds, slips, strict=True)]
    return compare(one.run(), [dq, *map(total, copies)], bounds).on(one)


@law("delta = rowsum(P∘dP)  ⇒  Σⱼ ds = dlse", CALLED, bounded, name="delta", small=True)
def delta(subject, case):
    """rowsum(P∘(dP − delta)) is dlse: where all keys share a coordinate 1, that of dq is scale·dlse."""
    shared, _ = case.shifted(1.0)
    one = BackwardCase.of(shared, subject)
    seen = np.any(shared.visible(subject), axis=-1)
    got, bound = one.run()[0][..., -1:], one.bounds[0][..., -1:]
    right = np.where(seen, one.scale * one.dlse, 0.0)[..., None]
    return compare([got], [right], [bound], ["dq[..., -1:]"]).on(one)


@law("Σⱼ P = 1  ⇒  Σⱼ dv = Σᵢ do", CALLED, bounded, name="weights sum to 1", small=True)
def weights_sum_to_1(subject, case):
    """The P that backward makes anew has rows that sum to 1: dv, added over the keys, is do, added over the rows."""
    one = BackwardCase.of(case, subject)
    dv, bound = one.run()[2], one.bounds[2]
    seen = np.any(case.visible(subject), axis=-1)[..., None]
    mine = case.kv_heads(subject) == np.arange(case.k.shape[1])[:, None]
    right = np.einsum("gh,bhid->bgd", mine.astype(np.float64), np.where(seen, one.do, 0.0))
    slip = roundings(case.k.shape[-2]) * np.sum(np.abs(dv), axis=-2)
    return compare([np.sum(dv, axis=-2)], [right], [np.sum(bound, axis=-2) + slip], ["Σ dv"]).on(one)


@law("a loss on earlier rows does not reach later keys", ("attention",), bounded, name="gradient causality", small=True)
def gradient_causality(subject, case):
    """Under the causal mask a loss on rows before a key gives it the gradient 0, and its k and v change nothing."""
    case = replace(case, causal=True)
    blind = ~case.visible(subject)[..., -1]
    if not np.any(blind):
        return HOLDS
    one = BackwardCase.of(case, subject)
    one = replace(one, do=np.where(blind[..., None], one.do, 0.0), dlse=np.where(blind, one.dlse, 0.0))
    k, v = case.k.copy(), case.v.copy()
    k[..., -1, :-1] += 1
    v[..., -1, :] += 1
    other = replace(one, call=replace(case, k=k, v=v))
    was = one.run()
    return _zeros(was[1:], np.arange(case.k.shape[-2]) == case.k.shape[-2] - 1, ("dk", "dv")).on(one) & compare(
        other.run(), was, one.bounds).on(other)


@law("a row that sees no key has gradient 0", ("decode", "attention"), bounded, name="gradient of nothing", small=True)
def gradient_of_nothing(subject, case):
    """A row that sees no key gives and gets the gradient 0, never NaN, whatever its q, do and dlse hold."""
    found = HOLDS
    for call in _with_empty_rows(subject, case):
        one = BackwardCase.of(call, subject)
        empty = ~np.any(call.visible(subject), axis=-1)
        was = one.run()
        found = found & _zeros(was[:1], empty, ("dq",)).on(one)
        found = found & compare(was, [np.where(np.isfinite(x), x, 0.0) for x in was], one.bounds).on(one)
        for bad in (math.nan, math.inf):
            q, do, dlse = (np.where(empty.reshape(*empty.shape, *[1] * (x.ndim - 3)), np.asarray(bad, x.dtype), x)
                           for x in (call.q, one.do, one.dlse))
            other = replace(one, call=replace(call, q=q), do=do, dlse=dlse)
            found = found & compare(other.run(), was, one.bounds).on(other)
    return found


def _with_empty_rows(subject, case):
    """Calls some of whose rows see no key: lengths of 0; one key less than queries under the causal mask; no keys."""
    if subject.role == "decode":
        yield replace(case, seq_lens=np.where(np.arange(len(case.seq_lens)) == 0, 0, case.seq_lens))
        return
    for keys in {0, min(case.k.shape[-2], case.q.shape[-2] - 1)}:
        yield replace(case, causal=True, k=case.k[..., :keys, :], v=case.v[..., :keys, :])


@law("dk = dv = 0 where no query looks", ("decode", "attention"), _blind, name="gradient poison", small=True)
def gradient_poison(subject, case):
    """A slot that no query of the call sees has gradient 0 and changes no gradient, whatever its k and v hold."""
    case = _with_unseen(subject, case)
    unseen = ~np.any(case.visible(subject), axis=(1, 2))[:, None]
    one = BackwardCase.of(case, subject)
    was = one.run()
    found = _zeros(was[1:], unseen, ("dk", "dv")).on(one)
    for bad in (math.nan, math.inf):
        k, v = (np.where(unseen[..., None], np.asarray(bad, x.dtype), x) for x in (case.k, case.v))
        other = replace(one, call=replace(case, k=k, v=v))
        found = found & compare(other.run(), was, one.bounds).on(other)
    return found


def _zeros(gradients, rows, names):
    """The Finding that gradients (…, d) are exactly 0 in the rows (…) that are true."""
    right = [np.where(rows[..., None], 0.0, x) for x in gradients]
    return compare(gradients, right, [np.zeros(1)] * len(right), names)


# -- shared -------------------------------------------------------------------------------------------


def as_state(state):
    """The state in float64 in the spelling it has, empty rows the identity."""
    return rounding.in_float64(state)


def merge_exactly(states):
    """The LSEState of the certified ⊕ of float64 states."""
    right = merged(states)
    return LSEState(right.o, right.lse)


def as_clean(state):
    """The state with NaN in empty rows replaced by 0, in its own format."""
    clean = rounding.in_float64(state)
    return type(state)(*(np.asarray(x).astype(y.dtype) for x, y in zip(clean, state, strict=True)))


def _nothing(like, payload):
    nothing = identity(like.payload.shape[:-1], like.payload.shape[-1], type(like), like.payload)
    return replace(nothing, **{nothing.payload_name: np.full_like(nothing.payload, payload)})


def _counted(part, n):
    """A state of n equal keys of score 0 with the part's o (integers): every array exact but log n."""
    o = as_pair(part).o
    o = np.where(np.isfinite(o), np.round(np.clip(o, -8, 8)), 0.0).astype(part.payload.dtype)
    rest = np.zeros(o.shape[:-1], o.dtype)
    if isinstance(part, LSEState):
        return LSEState(o, rest + np.asarray(math.log(n), o.dtype))
    count = rest + np.asarray(n, o.dtype)
    return type(part)(rest, count, o * count[..., None] if part.payload_name == "acc" else o)


def _conversion(case):
    """The errors of parts that were converted to their spelling once."""
    u = rounding.unit_roundoff(case.dtype)
    errors = []
    for part in case.parts:
        pair = as_pair(part)
        lse = np.where(np.isfinite(pair.lse), np.abs(pair.lse), 0.0)
        o = np.where(np.isfinite(pair.o), np.abs(pair.o), 0.0)
        errors.append(Budget(2 * u * o + 2 * rounding.smallest_subnormal(case.dtype),
                             u * (2 * lse + rounding.KAPPA * 5 + 2)))
    return errors


def _converting(pair, case):
    """What converting a merged state to a pair adds."""
    u = rounding.unit_roundoff(case.dtype)
    lse = np.where(np.isfinite(pair.lse), np.abs(pair.lse), 0.0)
    o = np.where(np.isfinite(pair.o), np.abs(pair.o), 0.0)
    return Budget(2 * u * o + 2 * rounding.smallest_subnormal(case.dtype), u * (2 * lse + rounding.KAPPA * 8))


def _bracketings(parts):
    """Every way to bracket the parts: callables subject → (state, budget)."""
    if len(parts) == 1:
        yield lambda subject: (parts[0], None)
        return
    for cut in range(1, len(parts)):
        for left in _bracketings(parts[:cut]):
            for right in _bracketings(parts[cut:]):
                yield _bracket(left, right, len(parts))


def _bracket(left, right, count):
    def bracketed(subject):
        (a, of_a), (b, of_b) = left(subject), right(subject)
        state = subject.merge(a, b)
        case = StateCase((_in_kind(a, subject), _in_kind(b, subject)))
        known = [x if x is not None else rounding.no_error(s) for x, s in zip((of_a, of_b), case.parts, strict=True)]
        return state, case.budget(subject, known)

    return bracketed


def _in_kind(state, subject):
    return state if isinstance(state, subject.kind) else state.to(subject.kind)


__all__ = ["LAWS", "Law", "as_clean", "as_state", "merge_exactly"]

importlib.import_module("fdmath.verify.laws_of_calls")  # files its laws below these
