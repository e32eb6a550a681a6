"""With how many bits a function works: the format of P, of its statistics, of the scores' factors.

Each question has an answer that is 0, or known exactly, unless something is rounded; what the rounding to each format
would make of it is computed, and the answer is held against that.
"""

import math

import ml_dtypes
import numpy as np

from fdmath import _backends as backends
from fdmath.verify.probing.caller import ROOM, D, choose, distance, numbers
from fdmath.verify.probing.contract import Trait
from fdmath.verify.tf32 import eleven_bits

LOGS = -np.array([0.30078125, 0.5546875, 0.8984375, 1.296875, 2.109375, 3.703125, 6.21875, 12.5])
"""Natural logarithms of weights between 3/4 and 2⁻¹⁸, of at most eight bits each: no format rounds the score itself."""

LOGS_2 = np.append(LOGS[:-1], -17.25)
"""The same to base 2: the last weight is one that float16 holds with few bits."""

LEVELS = np.array([5.53, 37.13, 100.21, 900.7])
"""Levels that neither float16 nor bfloat16 holds."""

MANY = 2201
"""Equal items: a running sum in bfloat16 stops at 256, one in float16 at 2048, and 2201 has more bits than either."""

END = 64
"""How many of them, at either end, are looked at to tell a sum of few bits from items that are not seen."""


CUT_OFF = "tf32, cut off"
"""TF32 as matrix units make it of what no program has rounded: the bits beyond the eleventh are dropped."""


def to_format(x, name):
    """The numbers x rounded to a format, as float64.

    "tf32" (float32's range, eleven bits) is among them, and CUT_OFF.
    """
    if name in ("tf32", CUT_OFF):
        return eleven_bits(np.asarray(x, np.float64))[name == CUT_OFF]
    kind = ml_dtypes.bfloat16 if name == "bfloat16" else name
    with backends.quiet():
        return np.asarray(x, np.float64).astype(kind).astype(np.float64)


def p_dtype(caller):
    """The format to which weights are rounded before they meet values.

    Three items of weight 1 take away what one of weight p < 1 brings: o is 0 but for the rounding of p.
    """
    if not caller.base and caller.merges or caller.facts.get("normalised", True) is not True:
        return [Trait("p_dtype", None, "it needs the base of the weights and a normalised o")]
    base = caller.base if caller.merges else math.e
    scores, values = _balanced(caller, base)
    o, _ = caller.weigh(scores, values)
    weights = np.power(float(base), caller.scores(scores))
    exact = _weighted(weights, values)
    unit = weights[:, -1] * values[:, -1] / weights.sum(axis=-1)
    formats = ("tf32", CUT_OFF, "float16", "bfloat16") + (("float32",) if caller.dtype == "float64" else ())
    lost = {}
    for name in formats:
        lost[name] = (_weighted(to_format(weights, name), values) - exact) / unit
        shares = to_format(weights / weights.sum(axis=-1, keepdims=True), name)
        lost[f"{name}, divided first"] = ((shares * values).sum(axis=-1) - exact) / unit
    finest = "float64" if caller.dtype == "float64" else "float32"
    seen = (o - exact) / unit
    found = choose(seen, {finest: np.zeros_like(seen), **lost})
    text = f"weights {numbers(weights[[0, -1], -1])} count as if changed by {_parts(seen[[0, -1]])}; "
    text += "; ".join(f"{n} would change them by {_parts(x[[0, -1]])}" for n, x in lost.items() if "divided" not in n)
    return [Trait("p_dtype", found and found.partition(",")[0], text)]


def _balanced(caller, base):
    """(scores, values) of rows whose weighted values cancel: [0, 0, 0, log p] and [−p₁, −p₂, −p₃, 1]·2¹⁴, p = Σ pᵢ.

    Of a merge of two there is room for one piece, which float32 or more holds. Calls repeat the four.
    """
    logs = LOGS_2 if base == 2 else LOGS
    scores = logs[:, None] * [0, 0, 0, 1]
    p = np.power(float(base), caller.scores(scores)[:, -1])
    size = 2.0**14
    if caller.subject.role == "merge":
        return scores[:, 2:], np.stack([-caller.rounded(size * p), 0 * p + size], -1)
    pieces, rest = [], size * p
    for _ in range(3):
        pieces.append(caller.rounded(to_format(rest, "bfloat16")))
        rest = rest - pieces[-1]
    values = np.stack([*(-x for x in pieces), 0 * p + size], -1)
    times = 1 if caller.merges else 8
    return np.tile(scores, times), np.tile(values, times)


def _weighted(weights, values):
    return (weights * values).sum(axis=-1) / weights.sum(axis=-1)


def _parts(x):
    return " and ".join(f"{float(y):.2g}" for y in x)


def stats_dtype(caller):
    """The format of m, l and lse: two equal items at levels with many bits, and many equal items."""
    base = caller.base
    if not base:
        return [Trait("stats_dtype", None, "it needs the base of lse")]
    finest = backends.working(caller.dtype)
    formats = [f for f in ("bfloat16", "float16", "float32") if f != finest]
    level = caller.scores(np.repeat(LEVELS[:, None], 2, axis=1))
    _, lse = caller.weigh(np.repeat(LEVELS[:, None], 2, axis=1), np.ones((4, 2)))
    lse = lse(base) if callable(lse) else lse
    unit = 1.0 if caller.merges else math.log(base)
    m, log_l = level[:, 0] / unit, math.log(2) / math.log(base)
    right = {finest: m + log_l, **{f: to_format(m + log_l, f) for f in formats},
             **{f"{f}, of m": to_format(m, f) + log_l for f in formats if distance(to_format(m, f), m) > 0}}
    found = choose(lse, right, part=ROOM if caller.dtype != "float64" else 1 / 8)
    text = f"two equal items at {numbers(m)} have lse = {numbers(lse)}; " + "; ".join(
        f"{n}: {numbers(x)}" for n, x in right.items() if "," not in n)
    if found == finest and caller.merges and caller.facts.get("normalised", True):
        found, said = _weights_of_levels(caller, base, formats, finest)
        text += said
    if found == finest and not caller.merges:
        found, said = _count(caller, base, finest)
        text += said
    return [Trait("stats_dtype", found and found.partition(",")[0], text)]


def _weights_of_levels(caller, base, formats, finest):
    """(format, sentence): whether weights come from levels as they are, or rounded before."""
    levels = caller.scores(np.array([[100.21, 99.8], [37.13, 36.6], [5.53, 5.19]]))
    o, _ = caller.weigh(levels, np.array([[1.0, 0.0]] * 3))
    right = {f: 1 / (1 + np.power(float(base), x[:, 1] - x[:, 0]))
             for f, x in ((finest, levels), *((f, to_format(levels, f)) for f in formats))}
    return choose(o, right), f"; parts at {numbers(levels[0])} have the weights of " + "; ".join(
        f"{n}: {numbers(x[:1])}" for n, x in right.items()) + f"; seen {numbers(o[:1])}"


def _count(caller, base, finest):
    """(format, sentence): what MANY equal items are counted as."""
    at = np.arange(MANY)
    values = np.stack([at >= 0, at < END, at >= MANY - END]).astype(np.float64)
    o, lse = caller.weigh(np.zeros((3, MANY)), values)
    count = float(np.power(float(base), lse(base) if callable(lse) else lse)[0])
    lost = abs(count / MANY - 1)
    said = f"; {MANY} equal items count as {count:.8g}"
    if lost <= ROOM / MANY:
        return finest, said
    for end, weight in zip(("first", "last"), o[1:], strict=True):
        if weight == 0:
            return None, f"{said}, and the {end} {END} of them weigh nothing: some are not seen, as through a window"
    if round(count) == 2**11 or lost <= 2.0**-10:  # float16 stops at 2048, and its spacing there is 2
        return "float16", said
    # bfloat16 stops at 256, or at twice that with two at a time, and so on; where it does not, its spacing is 16
    return ("bfloat16" if round(count) in (2**8, 2**9, 2**10) or lost <= ROOM else None), said


def scores(caller):
    """The format to which q and k are rounded before they are multiplied: float32, tf32 or bfloat16.

    Two keys differ in the 10th bit of a coordinate, then in the 13th: their scores differ by log 3 all the same. In the
    6th every format shows it, unless q or the scores are bent before.
    """
    steps = 2.0 ** -np.array([9, 12, 5])
    q, k = np.zeros((3, 2, 1, D)), np.zeros((3, 2, 16, D))
    q[:, :, 0, 0] = (caller.rounded(np.log(3.0) / caller.scale) / steps)[:, None]
    k[..., 0] = 1
    k[:, :, ::2, 0] += steps[:, None, None]
    v = np.zeros_like(k)
    v[:, :, ::2] = 1
    o, _ = caller.attend(q, k, v, plain=True)
    got = o.reshape(3, -1)[:, 0]
    share = 1 / (1 + np.exp(-caller.scale * caller.rounded(np.log(3.0) / caller.scale)))
    right = {"float32": [share, share, share], "tf32": [share, 0.5, share], "bfloat16": [0.5, 0.5, share]}
    text = (f"a key whose score is higher by log 3 through the 10th, the 13th and the 6th bit of a coordinate has the "
            f"weights {numbers(got)}; all bits would give 0.75 thrice, eleven (TF32) 0.5 for the 13th, eight "
            f"(bfloat16) 0.5 for the 10th too")
    return [Trait("scores", choose(got, right), text)]
