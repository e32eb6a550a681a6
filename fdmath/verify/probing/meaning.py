"""What o and lse mean: the scale of the scores, the base of lse, whether o is divided by l, what stands for no keys."""

import math

import numpy as np

from fdmath.verify.probing.caller import ROOM, D, choose, distance, numbers, said
from fdmath.verify.probing.contract import Trait
from fdmath.verify.subject import SubjectError

BASES = {"e": math.e, "2": 2}
EQUAL = 7
PART = 1 / 8
"""How near to what one base gives, where the other gives 1: merged weights are 0.08 apart, bfloat16 has 2⁻⁹ of 1."""


# -- scale ----------------------------------------------------------------------------------------------


SCALES = {
    "1/sqrt(d)": lambda d: d**-0.5,
    "1/d": lambda d: 1 / d,
    "8/d": lambda d: 8 / d,
    "1/sqrt(d) with exp2 for exp": lambda d: d**-0.5 * math.log(2),
    "1/sqrt(d) with exp2 for exp, undone": lambda d: d**-0.5 / math.log(2),
}
"""Scales in use, right and wrong, as functions of the head dimension."""

PADDINGS = (*(lambda d, m=m: -(-d // m) * m for m in (32, 64, 128)), lambda d: 1 << (d - 1).bit_length())
"""To what head dimensions are padded: multiples, or a power of two."""

CONSTANTS = (1.0, 0.125, 80**-0.5, 128**-0.5, 576**-0.5)


def scale(caller):
    """The factor on q·k, read from the ratio of two weights at two head dimensions."""
    found, trouble = {}, ""
    for d in (D, 80, 128, 32):
        if len(found) < 2:
            try:
                found[d] = _scale_at(caller, d)
            except SubjectError as error:
                trouble = f"; with d = {d} {said(error)}"
    seen = "; ".join(f"d = {d}: no factor fits" if s is None else f"d = {d}: {s:.6g}, 1/sqrt({s**-2:.4g})"
                     for d, s in found.items())
    value = _scale_value(found) if len(found) == 2 and None not in found.values() else None
    if len(found) == 1:
        trouble += "; one head dimension does not tell a constant from 1/sqrt(d)"
    text = f"the weights of two keys have the ratio e^(scale·q·k): {seen or 'none'}{trouble}"
    traits = [Trait("scale", value, text)]
    if found.get(D):
        at = next((x for x in (*(form(D) for form in SCALES.values()), *CONSTANTS) if _close(found[D], x)), found[D])
        traits.append(Trait("scale_at_64", at, "this is what the questions below reckon with"))
    return traits


def _scale_at(caller, d):
    """The scale at a head dimension: log (w₁/w₂) over q·k, at that of four q·k for which both weights are seen well."""
    raw = np.array([1.0, 4.0, 16.0, 64.0])
    q, k = np.zeros((4, 2, 1, d)), np.zeros((4, 2, 16, d))
    q[..., 0], k[:, :, ::2, 0] = 1, raw[:, None, None]
    first = np.zeros_like(k)
    first[:, :, ::2] = 1
    one, other = (caller.attend(q, k, v, plain=True)[0].reshape(4, -1)[:, 0] for v in (first, 1 - first))
    with np.errstate(divide="ignore", invalid="ignore"):
        logs = np.log(one / other)
    # between e and e³: further out the smaller weight, further in the logarithm, is seen with too few bits
    return next((float(x / r) for x, r in zip(logs, raw, strict=True) if 1 / 2 <= abs(x) <= 3), None)


def _close(x, y):
    """Whether two scales differ by less than the coarsest format allows."""
    return abs(math.log(x / y)) <= ROOM if x > 0 and y > 0 else False


def _scale_value(found):
    """A name in SCALES, "1/sqrt(padded d)", or a constant, from scales at two head dimensions; None for another."""
    name = next((n for n, form in SCALES.items() if all(_close(s, form(d)) for d, s in found.items())), None)
    first, second = found.values()
    if name:
        return name
    if _close(first, second):
        return next((x for x in CONSTANTS if _close(first, x)), first)
    padded = any(all(_close(s, pad(d) ** -0.5) for d, s in found.items()) for pad in PADDINGS)
    return "1/sqrt(padded d)" if padded else None


# -- o and lse ------------------------------------------------------------------------------------------


def normalised(caller):
    """Whether o is divided by the sum of the weights: equal items of value 1."""
    items = 2 if caller.subject.role == "merge" else 4
    o, _ = caller.weigh(np.zeros((1, items)), np.ones((1, items)))
    value = {"divided": True, "summed": False}.get(choose(o, {"divided": [1.0], "summed": [items]}))
    return [Trait("normalised", value, f"{items} equal items of value 1 give o = {numbers(o)}")]


def log_base(caller):
    """The base of lse (in merges that of the weights too), at two levels."""
    items = 2 if caller.subject.role == "merge" else EQUAL
    rows = np.array([np.zeros(items), np.full(items, 3.0)])
    if caller.merges:  # weights tell the base in lse only where they are of one size
        rows[1, :2] = 0.5, -1.5
    values = np.zeros_like(rows)
    values[:, 0] = 1
    o, lse = caller.weigh(rows, values)
    seen = lse if callable(lse) else lambda base: lse
    asked = caller.scores(rows)
    fitting = [b for b in BASES.values() if _explains(b, asked, o if caller.merges else None, seen, caller.merges)]
    value = fitting[0] if len(fitting) == 1 else None
    what = f"lse is {numbers(seen(math.e))}" + (f" and o {numbers(o)}" if caller.merges else "")
    of = "; ".join(f"base {name} would give {_words(b, asked, caller.merges)}" for name, b in BASES.items())
    return [Trait("log_base", value, f"{items} items at two levels: {what}; {of}{_as_if(value, asked, seen)}")]


def _right(base, scores, merges):
    """lse in a base of rows of scores, which in merges are in that base already, else natural."""
    unit = math.log(base) if merges else 1.0
    return np.logaddexp.reduce(scores * unit, axis=-1) / math.log(base)


def _weights(base, scores):
    w = np.power(base, scores - scores.max(axis=-1, keepdims=True))
    return w / w.sum(axis=-1, keepdims=True)


def _explains(base, scores, o, seen, merges):
    """Whether a base explains lse, and o where weights are in that base too: nearer than a part of their distance."""
    other = 2 if base == math.e else math.e
    right, wrong = _right(base, scores, merges), _right(other, scores, merges)
    if not distance(seen(base), right) <= PART * distance(right, wrong):
        return False
    weights = [_weights(b, scores)[:, 0] for b in (base, other)]
    return o is None or distance(o, weights[0]) <= PART * distance(*weights)


def _words(base, scores, merges):
    return numbers(_right(base, scores, merges)) + (
        f" and {numbers(_weights(base, scores)[:, 0])}" if merges else "")


def _as_if(value, scores, seen):
    """The known fault that an lse in neither base looks like, in words."""
    if value is not None:
        return ""
    m, l = scores.max(axis=-1), np.exp(scores - scores.max(axis=-1, keepdims=True)).sum(axis=-1)
    known = {
        "log2 l on a natural m": m + np.log2(l), "ln l on a base-2 m": m / math.log(2) + np.log(l),
        "a natural lse times ln 2": (m + np.log(l)) * math.log(2), "m was left out": np.log(l),
        "l was left out": m, "it is never written": np.zeros_like(m),
        "the sum itself, not its logarithm": np.exp(m) * l,
    }
    name = choose(seen(math.e), known)
    return f": neither, as if {name}" if name else ": neither"


# -- no keys --------------------------------------------------------------------------------------------


def empty(caller):
    """What stands for no keys in lse and in o, by whatever way leads to a row that sees nothing beside others."""
    if caller.merges:
        return _empty_of_merges(caller)
    ways = {"block": [_hidden_block], "decode": [_length_none], "attention": [_causal_none, _masked_none],
            "partial": [_masked_none]}[caller.subject.role]
    tried = []
    for way in ways:
        try:
            how, *state = way(caller)
        except SubjectError as error:
            how, state = None, [said(error)]
        if how is not None:
            return _empty_traits(how, *state)
        tried.append(state[0])
    name = "empty" if caller.facts.get("lse", True) else "empty_o"
    return [Trait(name, None, f"no row that sees no key could be made: {'; '.join(tried)}")]


def no_keys(caller):
    """The same by a call without a single key."""
    q, k = np.zeros((3, 2, 1, D)), np.zeros((3, 2, 0, D))
    o, lse = caller.attend(q, k, k)
    return _empty_traits("a call without a key", o[0, 0, 0], None if lse is None else lse[0, 0, 0])


def _empty_traits(how, o, lse):
    o = np.unique(o)
    traits = [Trait("empty_o", float(o[0]) if len(o) == 1 else None, f"{how} has o = {numbers(o[:4])}")]
    return traits if lse is None else [Trait("empty", float(lse), f"{how} has lse = {numbers(lse)}"), *traits]


def _hidden_block(caller):
    o, lse = caller.weigh(np.array([[-np.inf] * 4, [0.0] * 4, [1.0] * 4]), np.full((3, 4), 5.0))
    lse = lse(math.e) if callable(lse) else lse
    return "a row whose four scores are −∞ (all values 5)", o[0], None if lse is None else lse[0]


def _length_none(caller):
    q, k = np.zeros((3, 2, 1, D)), np.zeros((3, 2, 8, D))
    o, lse = caller.attend(q, k, np.full(k.shape, 5.0), lens=[4, 0, 8])
    return "a sequence of length 0 between two others (all values 5)", o[1], None if lse is None else lse[1, 0, 0]


def _causal_none(caller):
    """Five queries over three keys: aligned at the bottom right, the first two see none."""
    if caller.facts.get("causal") != "bottom_right":
        return None, "causal leaves no row without a key unless it is aligned at the bottom right"
    q, k = np.zeros((1, 2, 5, D)), np.zeros((1, 2, 3, D))
    o, lse = caller.attend(q, k, np.full(k.shape, 5.0), causal=True)
    return "the first of 5 causal queries over 3 keys (all values 5)", o[0, 0, 0], None if lse is None else lse[0, 0, 0]


def _masked_none(caller):
    """A row hidden by a mask, where the function takes one by the names in use."""
    q, k = np.zeros((1, 2, 3, D)), np.zeros((1, 2, 4, D))
    sees = np.ones((1, 2, 3, 4), bool)
    sees[:, :, 1] = False
    masks = {"attn_mask": caller.array(np.where(sees, 0.0, -np.inf)), "mask": sees,
             "score_mod": lambda score, b, h, i, j: score.masked_fill(i == 1, -math.inf)}
    for name, mask in masks.items():
        try:
            o, lse = caller.given(**{name: mask}).attend(q, k, np.full(k.shape, 5.0))
        except SubjectError:
            continue
        if lse is not None and len(np.unique(lse)) > 1 or not np.all(o == 5):
            return f"a row hidden by {name} (all values 5)", o[0, 0, 1], None if lse is None else lse[0, 0, 1]
    return None, f"it takes no {', '.join(masks)}"


def _empty_of_merges(caller):
    """Which infinity changes nothing, on either side, and what two of them give; with an o of 999 that means nothing.

    Where both do, the one that two of it return, then the one declared.
    """
    neutral, seen = {}, []
    for mark in (-np.inf, np.inf) if caller.pairs else (-np.inf,):  # m = +∞ is in use nowhere
        rows = np.array([[mark, 2.0], [2.0, mark], [mark, mark]])
        o, lse = caller.weigh(rows, np.where(rows == mark, 999.0, 1.0))
        lse = np.full(3, np.nan) if lse is None else lse(math.e) if callable(lse) else lse
        keeps = distance(o[:2], 1.0) <= ROOM and (distance(lse[:2], 2.0) <= ROOM or not caller.facts.get("lse", True))
        if keeps:
            neutral[float(mark)] = ((lse[2] == mark, mark == caller.subject.empty), float(lse[2]))
        seen.append(f"beside (1, 2) a part with lse = {mark} changes {'nothing' if keeps else 'the result'}, "
                    f"two give o = {numbers(o[2])}, lse = {numbers(lse[2])}")
    value = max(neutral, key=neutral.get, default=None)
    traits = [Trait("empty", value, "; ".join(seen))]
    if value is not None and caller.facts.get("lse", True):
        alone = neutral[value][1]
        traits.append(Trait("empty_merged", alone, f"two parts with lse = {value:g} give lse = {alone:g}"))
    return traits
