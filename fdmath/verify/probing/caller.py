"""How the probe puts a question to a function of any role.

Two questions serve for all. *weigh*: what are o and lse of items with these scores and these values? (an item is a
part of a merge, a key of a block or of a call), and *attend*: what are o and lse of these q, k, v?
"""

import contextlib
import io
import math
import warnings
from dataclasses import dataclass, field, replace

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.rounding import exact, unit_roundoff
from fdmath.algebra.state import KINDS, AccState, LSEState
from fdmath.verify.subject import CALLED, Subject, SubjectError

ROOM = 4 * unit_roundoff("bfloat16")
"""1/64, four roundings of the coarsest format: how far an answer may be from an alternative, where another is 1."""

D = 64
"""The head dimension of most questions: every kernel takes it, and its 1/√d is a power of two."""

LAYOUTS = {
    "heads_first": lambda lse, b, h, n: lse.reshape(b, h, n),
    "heads_last": lambda lse, b, h, n: lse.reshape(b, n, h).swapaxes(1, 2),
    "packed": lambda lse, b, h, n: lse.reshape(h, b, n).swapaxes(0, 1),
}
"""Where lse of head h and query i of sequence s may be found; each gives (B, H, Nq). packed: (H, B·Nq)."""


@dataclass
class Caller:
    """A subject that takes its role's operands, the format it is asked in, and the facts found so far (by trait).

    A fact not yet found is taken to be as usual: scale 1/√d, heads first.
    """

    subject: Subject
    dtype: str
    facts: dict = field(default_factory=dict)

    @property
    def pairs(self):
        """Whether its states are pairs (o, lse)."""
        return self.subject.role in CALLED or self.subject.kind is LSEState

    @property
    def merges(self):
        return self.subject.role in ("merge", "merge_many")

    @property
    def base(self):
        """The base of lse found; None if it could not be told."""
        return self.facts.get("log_base")

    def array(self, x):
        """The numbers x rounded to the format of the questions (NumPy)."""
        return backends.cast(np.asarray(x, np.float64), self.dtype)

    def rounded(self, x):
        """The same as float64."""
        return exact(self.array(x))

    @property
    def scale(self):
        """The factor on q·k at the head dimension D, as found."""
        return self.facts.get("scale_at_64") or self.subject.scale or 1 / math.sqrt(D)

    @property
    def queries(self):
        """The queries of a call that asks where things are: 4, as many as heads, or 1 where fewer are taken."""
        return 1 if self.subject.role == "decode" or self.subject.most_queries < 4 else 4

    # -- weigh ------------------------------------------------------------------------------------

    def scores(self, x):
        """The scores that the function will see where x is asked for: in a call k is rounded, not the score."""
        if self.subject.role not in CALLED:
            return self.rounded(x)
        return self.rounded(np.asarray(x, np.float64) / self.scale) * self.scale

    def weigh(self, scores, values):
        """(o (E,), lse (E,)) of E rows of N items with scores (E, N) and values (E, N), as float64.

        For merges scores are in the function's own base. lse is None where there is none, and for triples a function of
        the base. Raises SubjectError for what the call raises or returns.
        """
        scores, values = np.asarray(scores, np.float64), np.asarray(values, np.float64)
        rows = len(scores)
        if rows < 3:  # so that two heads are never taken for two rows
            scores, values = (np.concatenate([x, np.repeat(x[-1:], 3 - rows, 0)]) for x in (scores, values))
        with backends.quiet():
            o, lse = (self._weigh_call if self.subject.role in CALLED else self._weigh_state)(scores, values)
        if callable(lse):
            return o[:rows], lambda base: lse(base)[:rows]
        return o[:rows], None if lse is None else lse[:rows]

    def _weigh_call(self, scores, values):
        rows, items = scores.shape
        q, k = np.zeros((rows, 2, 1, D)), np.zeros((rows, 2, items, D))
        pieces = in_pieces(self.rounded(scores / self.scale))
        many = pieces.shape[-1]
        q[..., :many], k[..., :many] = 1, pieces[:, None]
        o, lse = self.attend(q, k, np.broadcast_to(values[:, None, :, None], k.shape), plain=True)
        if lse is not None:
            lse = lse.reshape(rows, -1)[:, 0] if lse.shape[0] == rows else lse.reshape(-1)[:rows]
        return o.reshape(rows, -1)[:, 0], lse

    def _weigh_state(self, scores, values):
        if self.subject.role == "block":
            got = self.arrays(self.array(scores), self.array(values.T))
            o, *rest = self._state(got, len(scores), len(scores))
            o = np.diagonal(o)
        else:
            o, *rest = self.merged(scores, values)
            o = o[:, 0]
        if not rest:
            return o, None
        if len(rest) == 1:
            return o, rest[0]
        m, l = rest
        o = np.where(l == 0, o, o / l) if self.subject.kind is AccState else o
        return o, lambda base: m + np.log(l) / math.log(base)

    def weigh_alone(self, scores, v):
        """[o (R, dv), lse …] of a block: scores (R, N), v (N, dv)."""
        return self._state(self.arrays(self.array(scores), self.array(v)), len(scores), v.shape[-1])

    def merged(self, scores, values, width=8):
        """[o (E, width), lse] or [o or acc, m, l] of parts with scores (E, P) and values (E, P)."""
        parts = [self.part(s, v, width) for s, v in zip(scores.T, values.T, strict=True)]
        return self.of_parts(parts)

    def of_parts(self, parts):
        """The same of parts as `part` makes them."""
        if self.subject.role == "merge":
            first, second = parts
            got = self.arrays(*first, *second)
        else:
            got = self.arrays(*(np.stack(column) for column in zip(*parts, strict=True)))
        return self._state(got, *parts[0][0 if self.pairs else 2].shape)

    def part(self, score, value, width=8):
        """The arrays of one part per row: (o, lse), or (m, 1, o) which is (m, 1, acc) too; empty where score is −∞."""
        o = self.array(np.broadcast_to(np.asarray(value)[:, None], (len(value), width)))
        level = self.array(score)
        if self.pairs:
            return [o, level]
        full = np.asarray(score) != -np.inf
        return [level, self.array(full), o]

    def _state(self, got, rows, width):
        """[payload, statistics …] among the arrays `got` (found by their shapes); SubjectError where it is not."""
        payloads = [x for x in got if x.size == rows * width and x.shape[-1:] == (width,)]
        rest = [x.reshape(rows) for x in got if x.size == rows and all(x is not p for p in payloads)]
        need = 1 if self.pairs else 2
        if not payloads or (len(rest) < need and not (self.pairs and not rest)):
            raise SubjectError(f"returned arrays of shape {', '.join(str(x.shape) for x in got)} "
                               f"for {rows} rows with {width} values each")
        return [payloads[0].reshape(rows, width), *rest[:need]]

    # -- attend -----------------------------------------------------------------------------------

    def attend(self, q, k, v, causal=False, lens=None, splits=1, plain=False):
        """(o (B, H, Nq, dv), lse (B, H, Nq) or None) of a call, as float64.

        lens (B,) and splits are for the role decode. plain: o and lse in the layout in which they come.
        """
        rest = ()
        if self.subject.role == "attention":
            rest = (causal,)
        elif self.subject.role == "decode":
            rest = (np.full(len(q), k.shape[-2]) if lens is None else np.asarray(lens), splits)
        o, lse = self.read(self.arrays(*map(self.array, (q, k, v)), *rest), q.shape[:3], v.shape[-1])
        if plain:
            return o, lse
        if self.facts.get("o_layout") == "heads_last":
            o = o.swapaxes(1, 2)
        layout = LAYOUTS[(self.facts.get("lse_layout") or "heads_first").partition(",")[0]]
        return o.reshape(*q.shape[:3], v.shape[-1]), None if lse is None else layout(lse, *q.shape[:3])

    def read(self, got, shape, dv):
        """(o, lse or None) among the arrays of a call for queries of shape (B, H, Nq), found by their shapes."""
        b, h, n = shape
        o = [x for x in got if x.shape in ((b, h, n, dv), (b, n, h, dv)) or n == 1 and x.shape == (b, h, dv)]
        if not o:
            raise SubjectError(f"returned arrays of shape {', '.join(str(x.shape) for x in got)}; o would have "
                               f"{(b, h, n, dv)}")
        rest = [x for x in got if x is not o[0]]
        whole = [x for x in rest if x.size == b * h * n]
        longer = [x[..., :n] for x in rest if x.ndim == 3 and x.shape[:2] == (b, h) and x.shape[2] > n]
        return o[0], next(iter(whole + longer), None)

    # -- the call ---------------------------------------------------------------------------------

    def send(self, x):
        return self.subject.send(x) if isinstance(x, np.ndarray) else x

    def call(self, *sent):
        """What the function returns for operands in its own library; what it prints is not shown."""
        with (contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()),
              warnings.catch_warnings()):
            warnings.simplefilter("ignore")
            return self.subject.call(*sent)

    def arrays(self, *operands):
        """The float arrays, as float64, that the function returns for operands in its role's order."""
        sent = [self.send(x) for x in operands]
        got = self.call(*sent)
        if got is None and self.subject.in_place and self.subject.role == "merge":
            got = sent[: len(sent) // 2]
            if all(np.array_equal(exact(x), exact(y), equal_nan=True) for x, y in zip(got, operands, strict=False)):
                raise SubjectError("returned NoneType, and its first operands are as they were")
        return [exact(x) for x in self.floats(got)]

    def given(self, **named):
        """The Caller whose function is also passed arguments by name, arrays in its own library."""
        fn, sent = self.subject.fn, {name: self.send(x) for name, x in named.items()}
        return replace(self, subject=replace(self.subject, fn=lambda *args: fn(*args, **sent)))

    def floats(self, got):
        """The arrays of floats in what a call returned, as they are; SubjectError where there is none."""
        items = list(got) if isinstance(got, (tuple, list, *KINDS)) else [got]
        found = [x for x in items if _is_float_array(x)]
        if not found:
            raise SubjectError(f"returned {type(got).__name__}, in which there is no array of floats")
        return found

    def writable(self):
        """The Caller whose function is sent copies that it may write."""
        return replace(self, subject=replace(self.subject, in_place=True))


def _is_float_array(x):
    try:
        return backends.float_name(x) in backends.FLOATS and backends.library(x) in ("numpy", "torch")
    except TypeError:
        return False


def in_pieces(x):
    """Numbers (…, 7) of eight bits each whose sums, in any order, are exact and end in x (…), numbers of float64.

    So a score survives factors cut to bfloat16 or TF32. Zeros fill up what has fewer bits; an infinity is the first.
    """
    pieces = []
    for _ in range(7):
        mantissa, exponent = np.frexp(x)
        pieces.append(np.ldexp(np.trunc(mantissa * 2**8) / 2**8, exponent))
        x = np.where(np.isfinite(x), x, 0.0) - np.where(np.isfinite(x), pieces[-1], 0.0)
    return np.stack(pieces, axis=-1)


def choose(found, alternatives, part=ROOM):
    """The name of the alternative that `found` is, as arrays; None where it is none of them.

    It is nearer to that one than `part` of the distance from it to each other one. NaN is near nothing.
    """
    found = np.asarray(found, np.float64)
    for name, right in alternatives.items():
        apart = min(distance(right, other) for key, other in alternatives.items() if key != name)
        if distance(found, right) <= part * apart:
            return name
    return None


def distance(x, y):
    """The largest difference of two arrays; equal infinities are at distance 0."""
    x, y = np.asarray(x, np.float64), np.asarray(y, np.float64)
    with np.errstate(invalid="ignore"):
        return float(np.max(np.where(x == y, 0.0, np.abs(x - y)), initial=0.0))


def said(error):
    """The first line of a SubjectError as a sentence about the function."""
    text = str(error).splitlines()[0]
    return f"it {text}" if text.startswith(("raised", "returned", "must", "hung")) else text


def numbers(x):
    """Numbers as a short text."""
    return ", ".join(f"{float(y):.6g}" for y in np.asarray(x, np.float64).ravel())
