"""A bound on the rounding of attention's gradients, as FlashAttention-2 computes them from a saved o and lse."""

from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.rounding import exact, format_of, score_error
from fdmath.attention.reference import check_scale, prepare
from fdmath.attention.softmax import partial_state


class GradientBudget(NamedTuple):
    """Bounds on the errors of dq, dk and dv: float64 arrays of their shapes."""

    dq: np.ndarray
    dk: np.ndarray
    dv: np.ndarray


def gradient_budget(do, dlse, q, k, v, *, of_o=0.0, of_lse=0.0, causal=False, scale=None, mask=None):
    """The GradientBudget of `flash_attention_backward` whose saved o and lse err by at most of_o and of_lse.

    Arguments as for that call, dlse None for 0; q's dtype decides the formats. of_o (…, Hq, Nq, dv), of_lse
    (…, Hq, Nq): a Budget's, for instance. With u of the working format, γ_n = nu/(1 − nu), σ the error of a score
    (`score_error`), κ of the exponential, R = g·Nq rows that share a key, and + for the exact size and its error:

        δP     = P·expm1(σ + of_lse + u(|s − lse| + κ))
        δslope = (1 + u)(γ_dv·Σ|do||v| + γ_(dv+1)·(Σ|do||o⁺| + |dlse|) + Σ|do|·of_o) + u·|dP − delta|
        δdS    = δP·|dP − delta| + P⁺·δslope + u·P⁺·|dP − delta|⁺
        δdq    = scale·Σ_j (δdS + γ_(N+3)·dS⁺)·|k|,   δdk = Σ_i (δdS + γ_(R+3)·dS⁺)·|scale·q|
        δdv    = Σ_i (δP + γ_(R+3)·P⁺)·|do|

    since sums of n terms in any order and in any blocks err by γ_n (Higham 2002, 3.1). An underflow adds half the
    smallest number η an operation: (2dv + 3)η to a slope, η to dS, 2κη to P, an exponential, and in scale·q, by a scale
    that may itself be subnormal, η(1 + |q|), and so to δdk Σ_i dS⁺·η(1 + |q|). A 16-bit gradient is rounded once more.
    Where a number on the way may leave the range of its format the bound is ∞. Source: claims:B14, B36; faults:H11.
    """
    work, out = (f(backends.float_name(q)) for f in (backends.working, str))
    fmt, scale = format_of(work), check_scale(scale, q.shape[-1])
    plain = prepare(*(exact(x) for x in (q, k, v)), causal=causal, scale=1.0, mask=_numpy(mask)).without_unseen()
    call = replace(plain, q=plain.q * scale, scale=scale)
    width, rows = call.out_shape[-1], call.q.shape[:-1]
    do, of_o = _seen(call, exact(do).reshape(*rows, width)), np.broadcast_to(of_o, call.out_shape)
    dlse = 0.0 if dlse is None else exact(dlse).reshape(rows)
    of_lse, of_o = np.broadcast_to(of_lse, call.out_shape[:-1]).reshape(rows), of_o.reshape(do.shape)
    with backends.quiet():
        of_q = in_range(np.abs(call.q), fmt.tiny * (1 + np.abs(plain.q)), work)
        reach = (np.abs(call.q) + of_q) @ np.swapaxes(np.abs(call.k), -1, -2)
        of_scores = in_range(reach, score_error(plain.q, plain.k, scale, fmt), work)
        p, weight, ds = _slopes(call, do, dlse, of_o, of_scores + of_lse[..., None], work)
        dq = _product_error(ds, call.k, 0.0, call.scale, work)
        dk = _product_error(_turned(ds), call.q, of_q, 1.0, work)
        dv = _product_error(_turned((p, weight)), do, 0.0, 1.0, work)
        dq = tuple(x.reshape(*call.out_shape[:-1], call.q.shape[-1]) for x in dq)
        return GradientBudget(*(_rounded(*x, work, out) for x in (dq, dk, dv)))


def _slopes(call, do, dlse, of_o, off, work):
    """(P, δP, (|dS|, δdS)) of all scores, in float64; off: the errors of the exponents s − lse."""
    fmt, scores = format_of(work), call.scores(0, call.keys)
    o, lse = partial_state(scores, call.v)
    width, size = do.shape[-1], np.abs(do)
    level = np.where(np.isinf(lse), 0.0, lse)[..., None]
    p = np.exp(scores - level)
    seen = scores > -np.inf
    off = off + fmt.u * (np.where(seen, np.abs(scores - level), 0.0) + fmt.kappa)
    weight = np.where(seen, p * np.expm1(off) + 2 * fmt.kappa * fmt.tiny, 0.0)
    turned = np.swapaxes(call.v, -1, -2)
    dlse = np.where(np.isinf(lse), 0.0, dlse)
    delta = np.sum(do * o, axis=-1) - dlse
    products, terms = size @ np.abs(turned), np.sum(size * (np.abs(o) + of_o), axis=-1) + np.abs(dlse)
    slope = np.abs(do @ turned - delta[..., None])
    of_delta = _gamma(width + 1, fmt) * terms + np.sum(size * of_o, axis=-1)
    of_slope = _gamma(width, fmt) * products + of_delta[..., None] + (2 * width + 3) * fmt.tiny
    of_slope = in_range(products + terms[..., None], (1 + fmt.u) * of_slope + fmt.u * slope, work)
    of_ds = weight * slope + (p + weight) * (of_slope + fmt.u * (slope + of_slope)) + np.where(seen, fmt.tiny, 0.0)
    return p, in_range(p, weight, work), (p * slope, in_range(p * slope, of_ds, work))


def _seen(call, do):
    """do with zeros in rows that see no key."""
    visible = call.visible(0, call.keys)
    return do if visible is None else np.where(np.any(visible, axis=-1, keepdims=True), do, 0.0)


def _product_error(left, right, of_right, factor, work):
    """(size, error) of the gradient factor·left @ right, left (size, error) of shape (…, n, m), right (…, m, w).

    of_right: what underflow may add to right; the factor, rounded to the format of the work, may be subnormal there.
    """
    (size, error), fmt = left, format_of(work)
    terms, right = size.shape[-1], np.abs(right)
    lost = (terms + 3) * fmt.tiny * (1 + np.max(right, initial=0.0)) * max(1.0, abs(factor))
    total, carried = size @ right, error @ right + (size + error) @ np.broadcast_to(of_right, right.shape)
    bound = in_range(total, carried + _gamma(terms + 3, fmt) * (total + carried), work)
    size, bound = abs(factor) * total, (abs(factor) + fmt.tiny) * bound + fmt.tiny * total + lost
    return size, in_range(size, bound, work)


def in_range(size, bound, name):
    """The bound; ∞ where a number of that size, off by as much, may lie beyond the range of a format, or is NaN."""
    return np.where(np.isfinite(backends.cast(size + bound, name)), bound, np.inf)


def _turned(pair):
    """Both matrices transposed."""
    return tuple(np.swapaxes(x, -1, -2) for x in pair)


def _rounded(size, error, work, out):
    """The error after the rounding to the format `out`."""
    fmt = format_of(out)
    return error if out == work else in_range(size, error + fmt.u * (size + error) + fmt.tiny, out)


def _gamma(count, fmt):
    """γ_n = nu/(1 − nu): `count` roundings in a row; infinite from nu = 1 on."""
    return count * fmt.u / (1 - count * fmt.u) if count * fmt.u < 1 else np.inf


def _numpy(mask):
    """The mask as a NumPy array; None for None."""
    return None if mask is None else np.asarray(mask)
