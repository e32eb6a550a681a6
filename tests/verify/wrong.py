"""Wrong implementations, one for each real fault named (faults.md), that a law must kill. Written to be wrong."""

import math

import ml_dtypes
import numpy as np

from fdmath.algebra.merge import merge
from fdmath.algebra.state import LSEState, MLOState
from fdmath.attention.reference import attention
from fdmath.attention.softmax import partial_state

NOTHING = -np.inf


def a1_unguarded(o1, lse1, o2, lse2):
    """−∞ − (−∞): no guard for two empty states."""
    m = np.maximum(lse1, lse2)
    a, b = np.exp(lse1 - m), np.exp(lse2 - m)
    return (a[:, None] * o1 + b[:, None] * o2) / (a + b)[:, None], m + np.log(a + b)


def a3_zero_for_empty(scores, v):
    """The guard value 0 of an empty maximum is written back into lse, so no keys have lse = 0."""
    m = np.max(scores, axis=-1, initial=NOTHING)
    m = np.where(m == NOTHING, 0, m)
    p = np.exp(scores - m[:, None])
    l = p.sum(-1)
    o = p @ v / np.where(l == 0, 1, l)[:, None]
    return o, (m + np.log(np.where(l == 0, 1, l))).astype(scores.dtype)


def a6_multiplied_payload(o1, lse1, o2, lse2):
    """Weight 0 times the NaN of an empty side."""
    m = np.maximum(lse1, lse2)
    safe = np.where(m == NOTHING, 0, m)
    a, b = np.exp(lse1 - safe), np.exp(lse2 - safe)
    total = np.where(a + b == 0, 1, a + b)
    return (a[:, None] * o1 + b[:, None] * o2) / total[:, None], m + np.log(total)


def a7_clamped(o1, lse1, o2, lse2):
    """lse clamped to −1e4, a finite stand-in for nothing."""
    lse1, lse2 = (np.maximum(x, np.asarray(-1e4, x.dtype)) for x in (lse1, lse2))
    return a1_unguarded(np.nan_to_num(o1), lse1, np.nan_to_num(o2), lse2)


def b4_block_maximum(scores, v):
    """The online recurrence with the maximum of the new key instead of the running one."""
    return _online(scores, v, level=lambda m, s: s)


def b5_inverted_rescale(scores, v):
    """The online recurrence with the accumulator rescaled by 1/α, as the papers print it."""
    return _online(scores, v, factor=lambda alpha: 1 / alpha)


def swallowed_nan(scores, v):
    """NaN is replaced by 0 wherever it stands, so that a NaN in a visible value is never seen again."""
    return tuple(partial_state(scores, np.nan_to_num(v)))


def nan_in_every_head(q, k, v):
    """One NaN spoils all heads and sequences."""
    o, lse = attention(q, k, v)
    return np.where(np.any(np.isnan(o)), np.asarray(np.nan, o.dtype), o), lse


def _online(scores, v, level=np.maximum, factor=lambda alpha: alpha):
    rows = []
    for s in scores:
        m, l, acc = NOTHING, 0.0, np.zeros(v.shape[-1])
        for score, value in zip(s, v, strict=True):
            if score == NOTHING:
                continue
            new = level(m, score)
            alpha = np.exp(m - new) if m != NOTHING else np.float64(0)
            p = np.exp(score - new)
            acc = (factor(alpha) if m != NOTHING else 0.0) * acc + p * value
            m, l = new, alpha * l + p
        rows.append((acc / l if l else acc, m + np.log(l) if l else NOTHING))
    o, lse = zip(*rows, strict=True)
    return np.array(o, scores.dtype), np.array(lse, scores.dtype)


def c1_floored_splits(q, k, v, seq_lens, num_splits):
    """⌊n/S⌋ keys a split: the newest keys are ignored."""
    used = [num_splits * (int(n) // num_splits) for n in seq_lens]
    return _decode(q, k, v, used, num_splits)


def c4_one_shared_lse(q, k, v, seq_lens, num_splits):
    """Every split writes the one lse; an idle split wins."""
    o, lse = _decode(q, k, v, seq_lens, num_splits)
    return o, np.where((np.asarray(seq_lens) < num_splits)[:, None, None], NOTHING, lse).astype(lse.dtype)


def _decode(q, k, v, lengths, num_splits):
    group = q.shape[1] // k.shape[1]
    o, lse = np.zeros((*q.shape[:-1], v.shape[-1]), q.dtype), np.full(q.shape[:-1], NOTHING, q.dtype)
    for b, n in enumerate(lengths):
        for h in range(q.shape[1]):
            keys, values = k[b, h // group, :n], v[b, h // group, :n]
            state = partial_state(q[b, h] @ keys.T / np.asarray(math.sqrt(q.shape[-1]), q.dtype), values)
            o[b, h], lse[b, h] = state
    return o, lse


def d1_base_two_weights(o1, lse1, o2, lse2):
    """A natural lse taken for one in base 2."""
    o, lse = merge(LSEState(o1, lse1 * np.asarray(math.log(2), lse1.dtype)),
                   LSEState(o2, lse2 * np.asarray(math.log(2), lse2.dtype)))
    return o, (lse / math.log(2)).astype(lse.dtype)


def d4_mixed_bases(scores, v):
    """lse = m + log₂ l: the level in one base, the sum in the other."""
    m, l, o = partial_state(scores, v, kind=MLOState)
    with np.errstate(divide="ignore"):
        return o, m + np.log2(np.where(l == 0, 1, l))


def d13_bf16_lse(o1, lse1, o2, lse2):
    """lse kept in bfloat16, whose spacing near 100 is a half."""
    low = [x.astype(ml_dtypes.bfloat16).astype(x.dtype) for x in (lse1, lse2)]
    return tuple(merge(LSEState(o1, low[0]), LSEState(o2, low[1])))


def e1_overflowing_softplus(o1, lse1, o2, lse2):
    """log(1 + e^(S₂ − S₁)) with the larger side in the exponent."""
    o, lse = merge(LSEState(o1, lse1), LSEState(o2, lse2))
    both = (lse1 != NOTHING) & (lse2 != NOTHING)
    return o, np.where(both, lse1 + np.log(1 + np.exp(np.where(both, lse2 - lse1, 0))), lse)


def e3_log_not_log1p(o1, lse1, o2, lse2):
    """log(1 + x) for log1p(x): a small part vanishes from lse."""
    o, lse = merge(LSEState(o1, lse1), LSEState(o2, lse2))
    both = (lse1 != NOTHING) & (lse2 != NOTHING)
    high, low = np.maximum(lse1, lse2), np.minimum(lse1, lse2)
    return o, np.where(both, high + np.log(1 + np.exp(np.where(both, low - high, 0))), lse)


def e5_written_before_read(o1, lse1, o2, lse2):
    """In place: lse is overwritten before the weights of o were read from it."""
    o, lse = merge(LSEState(o1, lse1), LSEState(o2, lse2))
    lse1[:] = lse
    merged = merge(LSEState(o1, lse1), LSEState(o2, lse2))
    keep = np.isneginf(lse2) | np.isneginf(lse)
    o1[:] = np.where(keep[:, None], o, merged.o)


def e6_running_lse_not_updated(os, lses):
    """o is merged part by part, the running lse keeps that of the first two parts."""
    o, lse = os[0], lses[0]
    for i in range(1, len(lses)):
        state = merge(LSEState(o, lse), LSEState(os[i], lses[i]))
        o = state.o
        if i == 1 or np.all(np.isneginf(lse)):
            lse = state.lse
    return o, lse


def larger_level_wins(o1, lse1, o2, lse2):
    """Keep the state with the larger lse (the larger o at a tie): a commutative monoid, and not attention."""
    o = np.where((lse1 > lse2)[:, None], o1, np.where((lse2 > lse1)[:, None], o2, np.maximum(o1, o2)))
    lse = np.maximum(lse1, lse2)
    return np.where(np.isneginf(lse)[:, None], 0, o).astype(o1.dtype), lse
