"""Certified directional derivatives of attention and of the merge.

Along a line t ↦ (inputs) + t · (direction) each level is s + t·ds and each value v + t·dv,
so (Z, Y) is a power series in t, and to first order

    Z = Σ e^s (1 + t ds),    Y = Σ e^s (v + t (ds v + dv)),    o = Y / Z,    lse = log Z.

The coefficient of t in o and in lse is the derivative in that direction.  It is taken from
these series in balls, not from the formulas of a backward pass, which it judges.
"""

import numpy as np
from flint import ctx

from .definition import enclose, exact_scale, merge_groups
from .inputs import exact_float64, exponent, head_groups, require, seen_values
from .sums import exact, product, product_exponent, scores, weights, working_precision


def certified_attention_jvp(q, k, v, dq, dk, dv, *, causal=False, scale=None, mask=None):
    """The enclosure of (do, dlse), the derivative of attention along (dq, dk, dv).

    Arguments, shapes and errors as in `certified_attention`; dq, dk, dv have the shapes of
    q, k, v.  Rows without a visible key have do = 0 and dlse = 0 exactly.  scale_o of the
    result bounds Σ p (|ds| (|v| + |o|) + |dv|).
    """
    values, tangents = _exact_pairs((q, k, v), (dq, dk, dv), ("q", "k", "v"))
    o_shape = (*values[0].shape[:-1], values[2].shape[-1])
    q, k, v, seen = head_groups(*values, causal, mask)
    dq, dk, dv, _ = head_groups(*tangents, causal, mask)
    scale, rows, keys = exact_scale(scale, q.shape[-1]), seen.any(axis=-1), seen.any(axis=-2)
    q, dq = seen_values(q, rows, "q"), seen_values(dq, rows, "dq")
    k, dk = seen_values(k, keys, "k"), seen_values(dk, keys, "dk")
    v, dv = seen_values(v, keys, "v"), seen_values(dv, keys, "dv")
    slope = 1 + max(product_exponent(dq, k, scale), product_exponent(q, dk, scale))
    precision = working_precision(k.shape[-2], product_exponent(q, k, scale), slope)
    with ctx.workprec(precision):
        levels = [scores(q[g], k[g], scale) for g in range(len(k))]
        slopes = [scores(dq[g], k[g], scale) + scores(q[g], dk[g], scale) for g in range(len(k))]
        sums = [_first_order(levels[g], slopes[g], seen[g], v[g], dv[g]) for g in range(len(k))]
        return enclose(sums, np.zeros(rows.shape, dtype=bool), o_shape, precision)


def certified_merge_jvp(os, lses, dos, dlses):
    """The enclosure of (do, dlse), the derivative of the merge of P states along (dos, dlses).

    Arguments, shapes and errors as in `certified_merge`; dos and dlses have the shapes of os
    and lses.  A part with lse = -∞ contributes nothing, whatever its o and its derivatives
    hold; where no part is left, do = 0 and dlse = 0 exactly.  scale_o as in
    `certified_attention_jvp`, with lse for s and o_p for v.
    """
    (os, lses), (dos, dlses) = _exact_pairs((os, lses), (dos, dlses), ("os", "lses"))
    levels, o, o_shape = merge_groups(lses, os, "lses", "os")
    slopes, do, _ = merge_groups(dlses, dos, "dlses", "dos")
    seen = levels != -np.inf
    levels, slopes = (
        seen_values(x[..., None], seen, name)[..., 0] for x, name in ((levels, "lses"), (slopes, "dlses"))
    )
    o, do = seen_values(o, seen[:, 0], "os"), seen_values(do, seen[:, 0], "dos")
    precision = working_precision(levels.shape[-1], exponent(levels))
    with ctx.workprec(precision):
        sums = [_first_order(exact(levels[g]), exact(slopes[g]), seen[g], o[g], do[g]) for g in range(len(levels))]
        return enclose(sums, np.zeros(seen.shape[:-1], dtype=bool), o_shape, precision)


def _exact_pairs(values, tangents, names):
    """The fp64 values and tangents, checked to have equal shapes."""
    values = [exact_float64(x, name) for x, name in zip(values, names, strict=True)]
    tangents = [exact_float64(x, f"d{name}") for x, name in zip(tangents, names, strict=True)]
    for value, tangent, name in zip(values, tangents, names, strict=True):
        require(tangent.shape == value.shape, f"d{name}", f"shape {value.shape}", tangent.shape)
    return values, tangents


def _first_order(levels, slopes, seen, v, dv):
    """The balls (do (R, dv), dlse (R,), scale (R, dv)): coefficients of t, zeros in rows that see nothing.

    levels and slopes (R, N) are balls, seen (R, N) boolean, v and dv (N, dv) in fp64.
    """
    width, ones = v.shape[-1], np.ones((len(v), 1))
    weight, _ = weights(levels, seen)
    value = product(weight, np.concatenate([ones, v, dv, np.abs(dv)], axis=-1))
    moved = product(weight * slopes, np.concatenate([ones, v], axis=-1))
    size = product(weight * np.abs(slopes), np.concatenate([ones, np.abs(v)], axis=-1))
    z, y, y_dv, y_dv_size = np.split(value, [1, 1 + width, 1 + 2 * width], axis=-1)
    z = np.where(seen.any(axis=-1)[:, None], z, 1)  # an empty row is 0/1
    o, dlse = y / z, moved[:, :1] / z
    do = (moved[:, 1:] + y_dv) / z - o * dlse
    scale = (size[:, 1:] + np.abs(o) * size[:, :1] + y_dv_size) / z
    return do, dlse[:, 0], scale
