"""Certified attention, blocks and merges: the definition, evaluated in balls."""

import math

import numpy as np
from flint import ctx

from .enclosure import Enclosure
from .inputs import boolean, exact_float64, exponent, head_groups, require, seen_values
from .sums import exact, normalised, product_exponent, scores, working_precision


def exact_scale(scale, d):
    """The float that multiplies q·k: float(scale), or the double nearest to 1/√d for None."""
    scale = 1.0 / math.sqrt(d) if scale is None else float(scale)
    require(math.isfinite(scale), "scale", "a finite number", scale)
    return scale


def enclose(sums, rows_empty, o_shape, precision):
    """The Enclosure of a list of (o, lse, scale) balls, one triple a group, in the shape of the call."""
    parts = [np.concatenate([np.ravel(x) for x in part]) for part in zip(*sums, strict=True)]
    o, lse, scale = parts if parts else (np.empty(0, dtype=object),) * 3
    shape = o_shape[:-1]
    return Enclosure.from_balls(
        o.reshape(o_shape), lse.reshape(shape), scale.reshape(o_shape), rows_empty.reshape(shape), precision
    )


def certified_attention(q, k, v, *, causal=False, scale=None, mask=None):
    """The enclosure of attention by definition: o = Σ p v and lse = log Σ e^s, s = scale · q·k.

    Shapes: q (…, Hq, Nq, d), k (…, Hkv, Nkv, d), v (…, Hkv, Nkv, dv), at least 2 axes;
    query head h reads KV head h // (Hq/Hkv); o (…, Hq, Nq, dv), lse (…, Hq, Nq), natural
    logarithm.  scale is used as the double it is, by default the double 1/√d.  causal is
    bottom-right aligned; mask is boolean, True = visible, broadcastable to
    (…, Hq, Nq, Nkv).  Places that no query sees are never read.
    Raises ValueError for shapes that do not fit and for a seen value that is not finite,
    TypeError for a dtype that fp64 does not contain.
    Source: scaled dot-product attention, Vaswani et al. 2017, section 3.2.1.
    """
    q, k, v = exact_float64(q, "q"), exact_float64(k, "k"), exact_float64(v, "v")
    o_shape = (*q.shape[:-1], v.shape[-1])
    q, k, v, seen = head_groups(q, k, v, causal, mask)
    scale = exact_scale(scale, q.shape[-1])
    q = seen_values(q, seen.any(axis=-1), "q")
    k, v = seen_values(k, seen.any(axis=-2), "k"), seen_values(v, seen.any(axis=-2), "v")
    precision = working_precision(k.shape[-2], product_exponent(q, k, scale))
    ones = np.ones(k.shape[-2])
    with ctx.workprec(precision):
        sums = [normalised(scores(q[g], k[g], scale), seen[g], ones, v[g]) for g in range(len(k))]
        return enclose(sums, ~seen.any(axis=-1), o_shape, precision)


def certified_block(scores, v, *, visible=None):
    """The enclosure of the state of one block, from its scores.

    Shapes: scores (…, Nq, N) where -∞ means invisible, v (…, N, dv), visible boolean and
    broadcastable to scores; o (…, Nq, dv), lse (…, Nq), natural logarithm.  Places that are
    not visible are never read.
    Raises ValueError for shapes that do not fit and for a visible value that is NaN or
    infinite, TypeError for a dtype that fp64 does not contain.
    """
    scores, v = exact_float64(scores, "scores"), exact_float64(v, "v")
    expected = (*scores.shape[:-2], *scores.shape[-1:])
    require(scores.ndim >= 2 and v.shape[:-1] == expected, "v", f"shape {expected} but for its last axis", v.shape)
    seen = boolean(visible, "visible", scores.shape) & (scores != -np.inf)
    groups, o_shape = math.prod(scores.shape[:-2]), (*scores.shape[:-1], v.shape[-1])
    levels, seen, v = (x.reshape(groups, *x.shape[-2:]) for x in (scores, seen, v))
    return _enclose_levels(levels, seen, np.ones(v.shape[:-1]), v, o_shape, ("scores", "v"))


def certified_merge(os, lses):
    """The enclosure of the merge of P states (o, lse): weights e^lse, o = Σ w o / Σ w, lse = log Σ w.

    Shapes: os (P, …, dv), lses (P, …), natural logarithm; the result drops the first axis.
    A part with lse = -∞ contributes nothing, whatever its o holds; no part left is an empty
    row.  Raises ValueError for shapes that do not fit, for lse = +∞ or NaN and for an o that
    is not finite in a part that contributes, TypeError as `certified_block`.
    """
    levels, acc, o_shape = merge_groups(lses, os, "lses", "os")
    return _enclose_levels(levels, levels != -np.inf, np.ones(acc.shape[:-1]), acc, o_shape, ("lses", "os"))


def certified_merge_mlo(ms, ls, os):
    """The enclosure of the merge of P states (m, l, o): weights e^m·l, o = Σ w o / Σ w, lse = log Σ w.

    Shapes: ms and ls (P, …), os (P, …, dv); the result drops the first axis.  A part with
    m = -∞ or l = 0 contributes nothing.  Raises as `certified_merge`, and ValueError for a
    negative or infinite or NaN l in a part that contributes.
    """
    levels, seen, mass, o, o_shape = _massive_groups(ms, ls, os, "os")
    o = seen_values(o, seen[:, 0], "os")
    with ctx.workprec(2 * 53):  # a product of two doubles is exact
        acc = exact(mass)[..., None] * exact(o)
    return _enclose_levels(levels, seen, mass, acc, o_shape, ("ms", "os"))


def certified_merge_acc(ms, ls, accs):
    """The enclosure of the merge of P states (m, l, acc): o = Σ e^m acc / Σ e^m l, lse = log Σ e^m l.

    Shapes and errors as in `certified_merge_mlo`, with accs (P, …, dv) not normalised.
    """
    levels, seen, mass, acc, o_shape = _massive_groups(ms, ls, accs, "accs")
    return _enclose_levels(levels, seen, mass, acc, o_shape, ("ms", "accs"))


def merge_groups(levels, values, levels_name, values_name):
    """The merge of P parts as one-row sums: levels (G, 1, P), values (G, P, dv), and the shape of o.

    levels come as (P, …), values as (P, …, dv).
    """
    levels, values = exact_float64(levels, levels_name), exact_float64(values, values_name)
    require(levels.ndim >= 1 and values.shape[:-1] == levels.shape,
            values_name, f"shape {levels.shape} and one more axis", values.shape)  # fmt: skip
    parts, groups, width = levels.shape[0], math.prod(levels.shape[1:]), values.shape[-1]
    rows = levels.reshape(parts, groups).T[:, None, :]
    return rows, values.reshape(parts, groups, width).swapaxes(0, 1), values.shape[1:]


def _massive_groups(ms, ls, values, name):
    """The one-row sums of parts with a mass: levels, seen (G, 1, P), mass (G, P), values, shape of o."""
    levels, values, o_shape = merge_groups(ms, values, "ms", name)
    mass = exact_float64(ls, "ls")
    require(mass.shape == np.shape(ms), "ls", f"shape {np.shape(ms)}", mass.shape)
    mass = mass.reshape(len(mass), len(levels)).T
    seen = (levels != -np.inf) & (mass != 0)[:, None, :]
    mass = seen_values(mass[..., None], seen[:, 0], "ls")[..., 0]
    require(bool(np.all(mass >= 0)), "ls", "numbers >= 0", "a negative number")
    return levels, seen, mass, values, o_shape


def _enclose_levels(levels, seen, mass, acc, o_shape, names):
    """The Enclosure of sums whose levels (G, R, N) are given numbers; mass (G, N), acc (G, N, dv).

    acc is in fp64, or in balls that hold what is seen alone.  names are those of levels and
    acc, for the ValueError that a seen value which is not finite raises.
    """
    levels = seen_values(levels[..., None], seen, names[0])[..., 0]
    if acc.dtype != object:
        acc = seen_values(acc, seen.any(axis=-2), names[1])
    precision = working_precision(levels.shape[-1], exponent(levels))
    with ctx.workprec(precision):
        sums = [normalised(exact(levels[g]), seen[g], mass[g], acc[g]) for g in range(len(levels))]
        return enclose(sums, ~seen.any(axis=-1), o_shape, precision)
