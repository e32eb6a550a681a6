"""Document A's programs asked: small inputs, the right answer with a bound, and arrays that tell what is done to them.

Heads have d = 1 and q = 1 throughout, so that the scores are the keys, exactly, in every format.
"""

import math
import threading
from collections import Counter
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.merge import combine_acc
from fdmath.algebra.printed import merge_as_printed_A_3_2_1
from fdmath.algebra.rounding import Budget, chain_budget, exact, format_of
from fdmath.algebra.state import LSEState
from fdmath.attention.printed import lse_streams_as_printed_A_3_2_2
from fdmath.attention.tiles import blocks
from fdmath.claims.judged import block_states
from fdmath.verify import reference

INF, NAN = math.inf, math.nan


def call(scores, v, dtype="float32"):
    """(q, k, v) of one head per row of scores (…, N), in a format; v (…, N) likewise, dv = 1."""
    scores, v = (np.asarray(x, dtype=np.float64) for x in (scores, v))
    heads = (1, scores.size // scores.shape[-1] if scores.size else 1)
    k, v = (backends.cast(np.reshape(x, (*heads, scores.shape[-1], 1)), dtype) for x in (scores, v))
    return backends.cast(np.ones((*heads, 1, 1)), dtype), k, v


def pairs(q, k, v, **options):
    """o by document A's program of pairs (3.2.2), its scale set right for d = 1."""
    return lse_streams_as_printed_A_3_2_2(q, k, v, d_model=1, num_heads=1, **options)


def number(x):
    """The only value of an array, as a float."""
    return float(np.asarray(x).astype(np.float64).item())


def text(x):
    """A number, or the numbers of an array, as they are to be read."""
    values = np.ravel(np.asarray(x).astype(np.float64)).tolist()
    shown = [f"{value:.6g}" for value in values]
    return shown[0] if len(shown) == 1 else f"[{', '.join(shown)}]"


def random_scores(seed, rows, keys, dtype, level=0.0):
    """(scores, v), both (rows, keys): normal numbers that the format holds exactly, scores around a level."""
    rng = np.random.default_rng(seed)
    scores, v = level + rng.standard_normal((rows, keys)), rng.standard_normal((rows, keys))
    return tuple(exact(backends.cast(x, dtype)) for x in (scores, v))


def within(o, q, k, v, tile=256):
    """Whether o lies within its bound of certified attention in every element, scale 1/√d; NaN does not.

    The bound is T4 over tiles whose states are those of a block: the widest of all the ways of folding tiles
    (`fdmath.claims.judged` says why it is not that of the mended merges). q, k, v: float32 or float64, equal heads.
    """
    fmt, scale = format_of(q), 1 / math.sqrt(q.shape[-1])
    right = reference.attention(q, k, v, scale, np.ones((*q.shape[:-1], k.shape[-2]), dtype=bool))
    parts, errors = block_states(q, k, v, blocks(k.shape[-2], tile), scale=scale, fmt=fmt)
    bound = chain_budget(parts, fmt, errors)
    return right.judge(LSEState(o, right.lse), Budget(bound.o, np.full(bound.lse.shape, INF))).verdict == "pass"


def right(program, q, k, v, tile=256, **options):
    """Whether o of a program lies within its bound (`within`); a program that raises is not right."""
    try:
        o = program(q, k, v, tile=tile, **options)
    except (ValueError, ZeroDivisionError, IndexError):
        return False
    return within(o, q, k, v, tile)


def triple(m, l, acc):
    """(m, l, acc) of arrays of any kind, exact ones too, under these names."""
    return SimpleNamespace(m=m, l=l, acc=acc)


def merged_triples(a, b):
    """The printed merge of two `triple`s, the step of document A's tree (3.1.3), which guards nothing."""
    return triple(*combine_acc(backends.numpy_namespace, a, b))


def merged_pairs(a, b):
    """The printed merge of two (o, S) (3.2.1)."""
    return merge_as_printed_A_3_2_1(*a, *b)


def random_call(seed, rows, keys, dtype="float32"):
    """(q, k, v) of `call` with random scores and values."""
    return call(*random_scores(seed, rows, keys, dtype), dtype)


def normal_call(seed, keys, dim):
    """(q, k, v) of one head of `dim` normal numbers, one query, float32."""
    rng = np.random.default_rng(seed)
    return [rng.standard_normal((1, 1, rows, dim)).astype(np.float32) for rows in (1, keys, keys)]


def stream_as_printed_A_3_2_2(parts):
    """(o, S) of one stream of document A's program of pairs, and the NaN that its test for the first tile lets through.

    parts: (o, S) of each tile, the tiles guarded already, so that only the test is at fault (claims:F4): a stream
    counts as fresh while S is −∞ for *all* rows of *all* heads at once.
    """
    o, lse = np.zeros_like(parts[0][0]), np.full_like(parts[0][1], -INF)
    for part in parts:
        o, lse = part if bool(np.all(lse == -INF)) else merge_as_printed_A_3_2_1(o, lse, *part)
    return o, lse


@dataclass
class Seen:
    """What was done to watched arrays: NumPy's functions by name, and (thread, index) of each part read, in order."""

    calls: Counter = field(default_factory=Counter)
    reads: list = field(default_factory=list)


class Watched(np.ndarray):
    """An array that tells `seen` what NumPy does to it, and to the arrays made from it."""

    def __array_finalize__(self, source):
        self.seen = getattr(source, "seen", None)

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        seen = next(x.seen for x in (*inputs, *(out or ())) if isinstance(x, Watched))
        seen.calls[ufunc.__name__ if method == "__call__" else f"{ufunc.__name__}.{method}"] += 1
        if out is not None:
            options["out"] = tuple(map(_plain, out))
        result = getattr(ufunc, method)(*map(_plain, inputs), **options)
        return watched(result, seen)[0] if isinstance(result, (np.ndarray, np.generic)) else result

    def __getitem__(self, index):
        self.seen.reads.append((threading.get_ident(), index))
        return super().__getitem__(index)


def _plain(x):
    return np.asarray(x) if isinstance(x, Watched) else x


def watched(x, seen=None):
    """(x as an array that is watched, the Seen that it fills)."""
    array = np.asarray(x).view(Watched)
    array.seen = Seen() if seen is None else seen
    return array, array.seen
