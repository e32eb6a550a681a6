"""Cases: inputs of a subject that know their right answer, its budget, and how to change themselves.

Every law is written once, against this interface:

    run(subject)            the state that the subject makes of the case
    certified()             the enclosure of the right one
    budget(subject, …)      the bound on the subject's error
    shifted(c)              the case with c added to every score (or level), and what rounding that cost
    doubled(), reordered(), with_values(fn)
    values(), levels()      what a row sees of v, and whether it sees it; the scores (or levels) that it sees
    among(*mates)           the case between others in one batch, and the places of its own rows (sequences)
    emptied(subject)        a case of the same shape in which some rows see nothing and others something

    spoiled(subject)        cases with NaN (or a score +∞) at one key (part), the rows that see it, the rows of others

They have a str, to be pasted, and no repr, which Hypothesis would make of each large case that breaks a law.
"""

import base64
import math
import zlib
from dataclasses import dataclass, replace

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.algebra.merge import flat
from fdmath.algebra.order import sequential
from fdmath.algebra.rounding import Budget
from fdmath.algebra.state import LSEState, identity, is_empty
from fdmath.attention.decode import key_ranges
from fdmath.attention.reference import causal_mask
from fdmath.attention.softmax import partial_state
from fdmath.verify import reference
from fdmath.verify.tf32 import TF32, cut_scores, lost_of_state

LEAST_WEIGHT = 30.0
"""How far below the largest level a part certainly has weight: e⁻³⁰ of it is no 0 in any format of a state."""


@dataclass(frozen=True, eq=False, repr=False)
class StateCase:
    """States of one kind to be merged: parts[b] holds R rows."""

    parts: tuple

    def run(self, subject):
        return subject.merge_many(list(self.parts))

    def certified(self):
        return reference.merged(self.parts)

    def budget(self, subject, errors=None):
        """T3 or T1 for a claimed flat form, T5 and T6 for a claimed convex one, else T4 (the widest).

        A merge of two that claims the flat form has it at each ⊕ of a chain.
        """
        fmt = subject.format(self.dtype)
        parts = [rounding.in_float64(p) for p in self.parts]
        errors = errors or [rounding.no_error(p) for p in parts]
        converted = [_base_two(subject, fmt, _magnitude(p)) for p in parts]
        errors = [Budget(e.o, e.lse + x) for e, x in zip(errors, converted, strict=True)]
        if {"T1", "T3", "T5", "T6"} & set(subject.claims):
            order = sequential
            if {"T1", "T3"} & set(subject.claims):
                order = flat if subject.role == "merge_many" else _two_by_two
            bound = rounding.fold_budget(parts, order, fmt, errors)
            return _said(subject, bound if subject.kind is LSEState else
                         _seen_as_pair(bound, self.levels(), self.values()[0]))
        return _said(subject, rounding.chain_budget(parts, fmt, errors))

    @property
    def dtype(self):
        return backends.float_name(self.parts[0].payload)

    def shifted(self, c):
        moved, errors = [], []
        for part in self.parts:
            name = "lse" if isinstance(part, LSEState) else "m"
            level, lost = _add(getattr(part, name), c)
            moved.append(replace(part, **{name: level}))
            errors.append(Budget(np.zeros(part.payload.shape), lost))
        return StateCase(tuple(moved)), errors

    def doubled(self):
        return StateCase(tuple(p for p in self.parts for _ in range(2)))

    def reordered(self):
        return StateCase(self.parts[::-1])

    def with_values(self, fn):
        """The case with fn applied to o of every part (and acc = l·o kept in step)."""
        def change(part):
            if part.payload_name == "o":
                return replace(part, o=fn(part.o))
            weight = np.where(part.l == 0, 1, part.l)[..., None].astype(part.acc.dtype)
            return replace(part, acc=fn(part.acc / weight) * weight)

        return StateCase(tuple(map(change, self.parts)))

    def values(self):
        """o of every part, (P, R, dv), 0 where a part is empty; and where a part counts, (P, R)."""
        pairs = [rounding.in_float64(p).to(LSEState) for p in self.parts]
        return np.stack([p.o for p in pairs]), np.stack([~is_empty(p) for p in pairs])

    def levels(self):
        return np.stack([rounding.in_float64(p).to(LSEState).lse for p in self.parts], axis=-1)

    def among(self, *mates):
        line = (*mates[:1], self, *mates[1:])
        parts = (type(p[0])(*(np.concatenate(x) for x in zip(*p, strict=True)))
                 for p in zip(*(case.parts for case in line), strict=True))
        return StateCase(tuple(parts)), _own([len(case.parts[0].payload) for case in line])

    def spoiled(self, subject):
        """(case, the first row, the others) for NaN in o of the first and of the last part, where they have weight."""
        levels = self.levels()
        mine = np.arange(len(levels)) == 0
        for b in {0, len(self.parts) - 1} if len(levels) else ():
            if levels[0, b] >= np.max(levels[0]) - LEAST_WEIGHT and np.isfinite(levels[0, b]):
                part = self.parts[b]
                bad = replace(part, **{part.payload_name: _with(part.payload, 0, math.nan)})
                yield StateCase((*self.parts[:b], bad, *self.parts[b + 1 :])), mine, ~mine

    def emptied(self, subject):
        nothing = StateCase(tuple(identity(p.payload.shape[:-1], p.payload.shape[-1], type(p), p.payload)
                                  for p in self.parts)).with_nan()
        return self.among(nothing, nothing)[0]

    def with_nan(self):
        """The case with NaN for the o (or acc) of every part: lawful where all are empty."""
        return StateCase(tuple(replace(p, **{p.payload_name: np.full_like(p.payload, np.nan)}) for p in self.parts))

    def __str__(self):
        return "\n".join(f"part {i + 1}: {literal(p)}" for i, p in enumerate(self.parts))


@dataclass(frozen=True, eq=False, repr=False)
class BlockCase:
    """Scores (Nq, N), −∞ = not visible, and values v (N, dv)."""

    scores: np.ndarray
    v: np.ndarray

    def run(self, subject):
        return subject.adopt(subject.call(subject.send(self.scores), subject.send(self.v)), like=self._like(subject))

    def _like(self, subject):
        payload = np.zeros((*self.scores.shape[:-1], self.v.shape[-1]), np.float32)
        rest = np.zeros(self.scores.shape[:-1], np.float32)
        return LSEState(payload, rest) if subject.kind is LSEState else subject.kind(rest, rest, payload)

    def certified(self):
        return reference.block(self.scores, self.v)

    def budget(self, subject, errors=None):
        fmt, pair = subject.format(self.dtype), subject.kind is LSEState
        size = np.where(np.isinf(self.levels()), 0.0, np.abs(self.levels()))
        lost = (0.0 if errors is None else errors) + _base_two(subject, fmt, size)
        bound = rounding.block_budget(self.scores, self.v, fmt, lost, pair, subject.p_format(self.dtype))
        if not {"T1", "T3"} & set(subject.claims):
            bound = _widest(fmt, bound, size.max(axis=-1, initial=0.0), self._size(), size.shape[-1])
        if subject.factors(self.dtype) is TF32:
            bound = _added(bound, lost_of_state(self.levels(), self._seen_values(), 0.0))
        return _said(subject, bound if pair else _seen_as_pair(bound, self.levels(), self.values()[0]))

    def _size(self):
        """The largest |v| of each column that some row may see, (1, dv)."""
        return np.max(np.abs(self._seen_values()), axis=0, initial=0.0)[None]

    def _seen_values(self):
        """v in float64, 0 where no row sees it."""
        return np.where(np.any(self.scores > -np.inf, axis=-2)[:, None], rounding.exact(self.v), 0.0)

    @property
    def dtype(self):
        return backends.float_name(self.scores)

    def shifted(self, c):
        scores, lost = _add(self.scores, c)
        return replace(self, scores=scores), lost

    def doubled(self):
        return BlockCase(np.concatenate([self.scores] * 2, axis=-1), np.concatenate([self.v] * 2, axis=-2))

    def reordered(self):
        return BlockCase(self.scores[..., ::-1], self.v[..., ::-1, :])

    def with_values(self, fn):
        return replace(self, v=fn(self.v))

    def values(self):
        n = self.scores.shape[-1]
        per_row = np.broadcast_to(rounding.exact(self.v)[:, None, :], (n, self.scores.shape[0], self.v.shape[-1]))
        return per_row, np.moveaxis(self.scores > -np.inf, -1, 0)

    def levels(self):
        return rounding.exact(self.scores)

    def spoiled(self, subject):
        """(case, rows that see a NaN, rows of other heads: none) for the first and last key, in v and as a score."""
        visible = self.scores > -np.inf
        for j in {0, self.scores.shape[-1] - 1} if self.scores.shape[-1] else ():
            seen, nowhere = visible[:, j], np.zeros(len(visible), bool)
            yield replace(self, v=_with(self.v, j, math.nan)), seen, nowhere
            for bad in (math.nan, math.inf):
                spoiled = np.where(seen, np.asarray(bad, self.scores.dtype), self.scores[:, j])
                yield replace(self, scores=_with(self.scores, (slice(None), j), spoiled)), seen, nowhere

    def split(self, at):
        """The block of the first `at` keys and the block of the rest."""
        return (BlockCase(self.scores[:, :at], self.v[:at]), BlockCase(self.scores[:, at:], self.v[at:]))

    def among(self, *mates):
        line = (*mates[:1], self, *mates[1:])
        return replace(self, scores=np.concatenate([c.scores for c in line])), _own([len(c.scores) for c in line])

    def emptied(self, subject):
        nothing = replace(self, scores=np.full_like(self.scores, -np.inf))
        return self.among(nothing, nothing)[0]

    def __str__(self):
        return f"scores = {literal(self.scores)}\nv = {literal(self.v)}"


@dataclass(frozen=True, eq=False, repr=False)
class CallCase:
    """q (B, Hq, Nq, d), k, v (B, Hkv, N, ·), and what the role adds: causal, or seq_lens (B,) and num_splits.

    The last coordinate of q is 1 and that of k is 0, so that a number can be added to every score.
    """

    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    causal: bool = False
    seq_lens: np.ndarray | None = None
    num_splits: int = 1

    def run(self, subject):
        return self.adopted(subject, subject.call(*self.arguments(subject)))

    def arguments(self, subject):
        """What the subject's function is called with, in its library."""
        args = [subject.send(x) for x in (self.q, self.k, self.v)]
        if subject.role == "decode":
            args += [subject.send(self.seq_lens), *([self.num_splits] if subject.splits else [])]
        if subject.role == "attention":
            args.append(self.causal)
        return args

    def taken_by(self, subject):
        """The case cut to what the subject takes: its head dimensions, one query head a KV head, one split."""
        q = self.q if subject.grouped else self.q[:, :: self.q.shape[1] // self.k.shape[1]]
        case = replace(self, q=q, num_splits=self.num_splits if subject.splits else 1)
        d, dv = self.q.shape[-1], self.v.shape[-1]
        if not subject.dims or (d, dv) in subject.dims:
            return case
        d, dv = subject.dims[(d + dv + self.k.shape[-2]) % len(subject.dims)]
        return replace(case, q=_with_dim(q, d), k=_with_dim(self.k, d), v=self.v[..., np.arange(dv) % self.v.shape[-1]])

    def adopted(self, subject, got):
        """The state that the subject's answer to this call means; SubjectError for another shape."""
        o = np.zeros((*self.q.shape[:-1], self.v.shape[-1]), np.float32)
        return subject.adopt(got, like=LSEState(o, np.zeros(o.shape[:-1], np.float32)))

    def visible(self, subject=None):
        """The boolean mask (B, Hq, Nq, N) of what is seen, by lengths and by the subject's causal alignment."""
        batch, heads, rows, _ = self.q.shape
        keys = self.k.shape[-2]
        seen = np.ones((batch, heads, rows, keys), bool)
        if self.causal:
            offset = 0 if subject is None or subject.causal == "bottom_right" else rows - keys
            seen = seen & (np.tril(np.ones((rows, keys), bool), keys - rows + offset) if offset else
                           causal_mask(np, rows, keys, self.k))
        if self.seq_lens is not None:
            seen = seen & (np.arange(keys) < self.seq_lens[:, None, None, None])
        return seen

    def kv_heads(self, subject=None):
        """The KV head that each query head of the subject reads."""
        heads, kv = np.arange(self.q.shape[1]), self.k.shape[1]
        tiled = subject is not None and subject.heads == "tiled"
        return heads % kv if tiled else heads // (len(heads) // kv)

    def heads_in_order(self, subject):
        """The subject's query heads in the house's order, in which head h reads KV head h // g."""
        heads, kv = self.q.shape[1], self.k.shape[1]
        order = np.arange(heads)
        if subject is not None and subject.heads == "tiled":
            order = order.reshape(heads // kv, kv).T.reshape(-1)
        return order

    def certified(self, subject=None):
        order = self.heads_in_order(subject)
        inverse = np.argsort(order)
        scale = None if subject is None else subject.scale
        visible = self.visible(subject)
        return reference.attention(self.q[:, order], self.k, self.v, scale, visible[:, order]).reordered(inverse)

    def budget(self, subject, errors=None):
        """The block's budget with the scores' rounding, the widest split form (T4, or T3), and o's own format."""
        fmt, out, scale = subject.format(self.dtype), rounding.format_of(self.dtype), self.scale(subject)
        k, v = self._spread(self.k, subject), self._spread(self.v, subject)
        visible = self.visible(subject)
        k = np.where(np.any(visible, axis=-2)[..., None], k, 0.0)
        lost = rounding.score_error(self.q, k, scale, fmt) + (0.0 if errors is None else errors)
        scores = np.where(visible, scale * (rounding.exact(self.q) @ np.swapaxes(k, -1, -2)), -np.inf)
        lost = lost + _base_two(subject, fmt, np.where(visible, np.abs(scores), 0.0))
        block = rounding.block_budget(scores, v, fmt, np.where(visible, lost, 0.0), True, subject.p_format(self.dtype))
        block = self._split(subject, fmt, scores, v, lost, block)
        if subject.factors(self.dtype) is TF32:
            block = _added(block, lost_of_state(scores, v, self.cut_scores(subject)))
        if self.dtype in ("float16", "bfloat16"):
            size = self.size(subject)
            block = Budget(block.o + out.u * (size + block.o) + out.tiny, block.lse)
        return _said(subject, block)

    def cut_scores(self, subject):
        """What each score (B, Hq, Nq, N) that is seen loses in TF32."""
        lost = cut_scores(rounding.exact(self.q), self._spread(self.k, subject), self.scale(subject))
        return np.where(self.visible(subject), lost, 0.0)

    def scale(self, subject=None):
        """The factor on q·k that the subject declares."""
        return 1 / math.sqrt(self.q.shape[-1]) if subject is None or subject.scale is None else subject.scale

    def _split(self, subject, fmt, scores, v, lost, block):
        """The budget with the merge of the parts: T3 over the parts claimed, else T4 on top of the block's."""
        if "T3" in subject.claims:
            ranges = key_ranges(scores.shape[-1], num_splits=self.num_splits)
            parts = [partial_state(scores[..., a:b], v[..., a:b, :]) for a, b in ranges]
            errors = [rounding.block_budget(scores[..., a:b], v[..., a:b, :], fmt, lost[..., a:b])
                      for a, b in ranges]
            return rounding.fold_budget(parts, flat, fmt, errors)
        level = np.where(np.isinf(scores), 0.0, np.abs(scores)).max(axis=-1, initial=0.0)
        size = np.max(np.abs(v), axis=-2, initial=0.0)[..., None, :]
        return _widest(fmt, block, level, size, scores.shape[-1], self.num_splits)

    def spoiled(self, subject):
        """(case, rows that see a NaN, rows of other heads and sequences) for the first and the last key in use."""
        used = self.k.shape[-2] if self.seq_lens is None else int(self.seq_lens[0])
        mine = self.kv_heads(subject) == 0
        near = np.zeros(self.q.shape[:-1], bool)
        near[0, mine] = True
        for j in {0, used - 1} if used else ():
            for name in ("k", "v"):
                one = replace(self, **{name: _with(getattr(self, name), (0, 0, j), math.nan)})
                yield one, near & self.visible(subject)[..., j], ~near

    def size(self, subject):
        """A bound on |o|: the largest |v| that a row may see, (B, Hq, Nq, dv)."""
        v, visible = self._spread(self.v, subject), self.visible(subject)
        return np.max(np.where(visible[..., None], np.abs(v)[:, :, None], 0.0), axis=-2, initial=0.0)

    def _spread(self, x, subject):
        """k or v with one head for each query head, float64, 0 in the places that hold no finite number."""
        x = rounding.exact(x)[:, self.kv_heads(subject)]
        return np.where(np.isfinite(x), x, 0.0)

    @property
    def dtype(self):
        return backends.float_name(self.q)

    def shifted(self, c):
        """The case with the last coordinate of k set to c: every score moves by scale·c, exactly."""
        k = self.k.copy()
        k[..., -1] = c
        return replace(self, k=k), None

    def among(self, *mates):
        line = (*mates[:1], self, *mates[1:])
        q, k, v = (np.concatenate([getattr(c, name) for c in line]) for name in ("q", "k", "v"))
        lens = None if self.seq_lens is None else np.concatenate([c.seq_lens for c in line])
        return replace(self, q=q, k=k, v=v, seq_lens=lens), _own([len(c.q) for c in line])

    def emptied(self, subject):
        """Sequences without a key between others, in decode; else more queries than keys under the causal mask."""
        if self.seq_lens is not None:
            nothing = replace(self, seq_lens=np.zeros_like(self.seq_lens))
            return self.among(nothing, nothing)[0]
        rows = self.q.shape[-2]
        return replace(self, causal=True, q=np.concatenate([self.q] * 2, axis=-2), k=self.k[..., :rows, :],
                       v=self.v[..., :rows, :])

    def split(self, at):
        """The calls on the first `at` keys and on the rest: under a causal mask the first are seen by all rows.

        The mask is aligned bottom-right; an earlier cut is taken where it leaves some row less than `at` keys.
        """
        if self.causal:
            at = max(0, min(at, self.k.shape[-2] - self.q.shape[-2] + 1))
        keep = lambda a, b, name: getattr(self, name)[..., a:b, :]  # noqa: E731
        lens = (None, None) if self.seq_lens is None else (
            np.minimum(self.seq_lens, at), np.maximum(self.seq_lens - at, 0))
        return tuple(replace(self, k=keep(a, b, "k"), v=keep(a, b, "v"), seq_lens=n, causal=masked)
                     for a, b, n, masked in ((0, at, lens[0], False), (at, None, lens[1], self.causal)))

    def doubled(self):
        """Every key twice: only where all keys are in use."""
        return replace(self, k=np.concatenate([self.k] * 2, axis=-2), v=np.concatenate([self.v] * 2, axis=-2),
                       seq_lens=None if self.seq_lens is None else 2 * self.seq_lens)

    def roomier(self):
        """A decode case with slots behind those in use: each cache twice as long, lengths as they are."""
        return replace(self, k=np.concatenate([self.k] * 2, axis=-2), v=np.concatenate([self.v] * 2, axis=-2))

    def filled(self):
        """The case with every key in use and no causal mask."""
        lens = None if self.seq_lens is None else np.full_like(self.seq_lens, self.k.shape[-2])
        return replace(self, causal=False, seq_lens=lens)

    def reordered(self):
        return replace(self, k=self.k[..., ::-1, :], v=self.v[..., ::-1, :])

    def with_values(self, fn):
        return replace(self, v=fn(self.v))

    def values(self, subject=None):
        v = np.moveaxis(self._spread(self.v, subject), -2, 0)[..., None, :]
        seen = np.moveaxis(self.visible(subject), -1, 0)
        return np.broadcast_to(v, (*seen.shape, v.shape[-1])), seen

    def levels(self, subject=None):
        k = self._spread(self.k, subject)
        scores = self.scale(subject) * (rounding.exact(self.q) @ np.swapaxes(k, -1, -2))
        return np.where(self.visible(subject), scores, -np.inf)

    def __str__(self):
        lines = [f"{n} = {literal(getattr(self, n))}" for n in ("q", "k", "v")]
        if self.seq_lens is not None:
            lines += [f"seq_lens = {literal(self.seq_lens)}", f"num_splits = {self.num_splits}"]
        return "\n".join(lines + ([f"causal = {self.causal}"] if self.causal else []))


def _with_dim(x, d):
    """x (…, c) as (…, d): the first coordinates, zeros where there are too few, and the last one, which stays last."""
    kept = x[..., : min(x.shape[-1], d) - 1]
    none = np.zeros((*x.shape[:-1], d - 1 - kept.shape[-1]), x.dtype)
    return np.concatenate([kept, none, x[..., -1:]], axis=-1)


def _said(subject, budget):
    """The Budget of what the subject says: an infinite one for the lse that it does not return."""
    return budget if subject.lse else Budget(budget.o, np.full(budget.lse.shape, np.inf))


def _own(counts):
    """The slice of the second of several runs of rows, of which there are so many each."""
    return slice(counts[0], counts[0] + counts[1])


def _two_by_two(merge, states):
    """The order in which `flat` takes two at a time: what a merge of two that divides by its own weights does."""
    return sequential(lambda a, b: flat(merge, [a, b]), states)


def _seen_as_pair(budget, levels, values):
    """The Budget of a triple seen as its pair (acc/l, m + log l), formed in float64, which rounds it once more.

    levels: (…, n), as many as merged; values: (n, …, dv).
    """
    u = rounding.unit_roundoff("float64")
    size = np.max(np.abs(np.where(np.isfinite(values), values, 0.0)), axis=0, initial=0.0)
    top = np.max(np.where(np.isinf(levels), 0.0, np.abs(levels)), axis=-1, initial=0.0)
    formed = 4 * u * (top + rounding.KAPPA * (1 + math.log(1 + levels.shape[-1])))
    return Budget(budget.o + 2 * u * size, budget.lse + formed)


def _base_two(subject, fmt, size):
    """What working in base 2 adds to the error of a score of the given size: scaled by a rounded log₂e, and back.

    A subject whose lse is natural may work so inside too: it is allowed to all that declare no theorem.
    """
    natural = subject.log_base != 2 and {"T1", "T3", "T5", "T6"} & set(subject.claims)
    return 0.0 if natural else 3 * fmt.u * size


def _added(block, lost):
    """The Budget of both losses."""
    return Budget(block.o + lost.o, block.lse + lost.lse)


def _widest(fmt, block, level, size, keys, merges=1):
    """The Budget `block` with T4 on top, for a subject that declares no form: `merges` printed merges of its states.

    level: the largest |score| of a row; size: the largest |v|; the lse of a part is at most log(keys) above a score.
    """
    level = level + math.log(max(keys, 1))
    wide = rounding.chain_budget([LSEState(np.broadcast_to(size, block.o.shape), level)], fmt)
    return Budget(block.o + merges * wide.o, block.lse + merges * wide.lse)


def _magnitude(part):
    level = part.lse if isinstance(part, LSEState) else part.m
    return np.where(np.isinf(level), 0.0, np.abs(level))


def _with(x, at, value):
    """A copy of x with x[at] set to value."""
    copy = x.copy()
    copy[at] = value
    return copy


def _add(x, c):
    """fl(x + c) and the bound |fl(x + c) − (x + c)| ≤ u·|fl(x + c)| that its format gives."""
    moved = (x + np.asarray(c, x.dtype)).astype(x.dtype)
    lost = np.where(np.isinf(moved), 0.0, np.abs(rounding.exact(moved))) * rounding.unit_roundoff(x)
    return moved, lost


MOST_WRITTEN = 200
"""The most numbers of an array that are written out."""


def _packed(x):
    """An array as text that Python reads back after `import base64, zlib`: its bytes, compressed."""
    text = base64.b85encode(zlib.compress(np.ascontiguousarray(x).tobytes(), 9)).decode()
    data = f"zlib.decompress(base64.b85decode({text!r}))"
    return f"np.array(np.frombuffer({data}, {x.dtype.name!r}).reshape({x.shape}), dtype={x.dtype.name!r})"


def literal(x):
    """x as text that Python reads back: arrays with every digit that matters, those of many numbers packed."""
    if isinstance(x, np.ndarray):
        if not x.size:
            return f"np.zeros({x.shape}, dtype={x.dtype.name!r})"
        if x.size > MOST_WRITTEN:
            return _packed(x)
        body = np.array2string(x, separator=", ", floatmode="unique", threshold=MOST_WRITTEN)
        return f"np.array({' '.join(body.split())}, dtype={x.dtype.name!r})".replace("nan", "np.nan").replace(
            "-inf", "-np.inf").replace(" inf", " np.inf").replace("[inf", "[np.inf")
    if hasattr(x, "payload"):
        return f"{type(x).__name__}({', '.join(literal(np.asarray(a)) for a in x)})"
    return repr(x)
