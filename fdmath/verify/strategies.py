"""Hypothesis strategies of cases: empty states, single keys, ties, huge gaps, extreme levels and subnormals are likely.

Random data hides most faults (claims.md section 3, faults.md section 2), so a level is a base plus an
offset, both drawn from lists of the numbers at which real kernels broke, or a small float.

Large cases take their sizes from the tiles of real kernels. A law starts at a place of its own in each list of sizes,
so that its first large case, the same under every seed, is of another size than its neighbours', and in one run the
laws that judge values ask every size. The first, and half the rest, have near equal scores, and values that tell
their keys apart: no key may be lost there. Not drawn: more than 1100 keys, 200 queries, 130 rows, 100 parts, 130
splits or 3 sequences; d between 192 and 576, or of 128 with more than 17 keys; states of a merge in 16 bits.
"""

import importlib.util
from dataclasses import replace

import ml_dtypes
import numpy as np
from hypothesis import strategies as st

from fdmath.algebra.state import LSEState, MLOState
from fdmath.verify.cases import BlockCase, CallCase, StateCase
from fdmath.verify.subject import SubjectError

BASES = [0.0, 1.0, -200.0, -1e10, 89.0, 100.0, 710.0, -2e4, 2e4, 6e4, -6e4, 1e6, -1e7]


def _table(simple, spread, seed):
    """256 numbers, simplest first: half of them `simple`, in turn, half drawn once from uniform intervals.

    A byte picks one, so that a whole array is a single choice, which Hypothesis draws fast and shrinks well.
    """
    rng = np.random.default_rng(seed)
    drawn = np.concatenate([rng.uniform(low, high, count) for low, high, count in spread])
    return np.concatenate([np.resize(simple, 256 - len(drawn)), drawn])


OFFSETS = _table([0.0, 1.0, -1.0, 0.0, 0.5, -18.0, 0.0, -90.0, -104.0, 0.0, -200.0, -1000.0, -2e4],
                 [(-4, 4, 64), (-20, 0, 64)], seed=1)
VALUES = _table([0.0, 1.0, -1.0, 2.0, 3.0, 5.0, 1000.0, -1e30, 1e30, 1e-30, 1e-44, -0.0], [(-8, 8, 128)], seed=2)
INTEGERS = np.resize([0.0, 1.0, -1.0, 2.0, 3.0, 5.0, -4.0, 7.0], 256)
SUMS = _table([1.0, 2.0, 3.0], [(1, 64, 128)], seed=3)
NEAR = _table([0.0, 0.5, -0.5, 0.25], [(-0.5, 0.5, 128)], seed=4)
QUERIES = np.resize([1.0, 0.0, -1.0, 0.5, 0.30078125], 256)


SHARING = [(1, 1, 1), (1, 1, 2), (1, 2, 1), (2, 1, 1), (1, 3, 1), (1, 2, 2), (2, 2, 1), (2, 1, 2), (1, 1, 3), (1, 3, 2),
           (3, 1, 1), (1, 2, 3), (3, 1, 2), (2, 3, 1)]
"""(sequences, KV heads, query heads a KV head) of a call, simplest first: each is 3 at times, beside 1 and 2."""
SHARING_LARGE = [(3, 1, 3), (1, 3, 1), (1, 3, 4), (1, 1, 1), (1, 1, 4), (1, 2, 3)]
"""The same of large calls: Hypothesis draws the first of every list at once, so that three of each are always asked."""
SHARING_FEW = [(1, 1, 1), (1, 1, 2)]
"""The same of calls with more than `MANY` products of a score or a weight a head."""
MANY = 20000
LONG = 300
"""The most keys of large calls and blocks but those of the laws drawn with long=True."""
TILES = ((1100, 1, 8, 8), (127, 1, 64, 64), (33, 3, 64, 64), (513, 1, 8, 8), (192, 1, 96, 96), (9, 16, 80, 5),
         (130, 16, 16, 16), (640, 2, 8, 8), (128, 66, 8, 8), (63, 66, 8, 8), (256, 1, 16, 16), (64, 16, 16, 64),
         (17, 17, 128, 128), (1024, 1, 8, 8), (200, 200, 8, 8), (64, 65, 64, 1), (129, 129, 8, 8))
"""(keys, queries, d, dv) of large calls: tiles of 16 to 512, one more and one less, square and not; more queries than
keys at times."""
LENGTHS = (1100, 1025, 256, 64, 129, 130, 63, 128, 255, 33, 300, 192, 65, 1024, 127)
"""Keys of large blocks."""
BLOCK_ROWS = ((3, 64), (5, 3), (2, 96), (65, 4), (2, 128))
"""(rows, dv) of large blocks."""
STATES = ((5, 192), (33, 64), (17, 80), (65, 5), (130, 8), (5, 96), (9, 64), (32, 16))
"""(rows, dv) of large states."""
PARTS = (97, 48, 16, 100, 33, 64, 17, 9, 65, 7, 40)
"""Parts of large merges of many."""
SPLITS = (130, 7, 2, 65, 33, 1, 3, 40, 5, 17, 4, 96)
"""Splits of large calls that decode."""


def _pick(draw, table, shape):
    """A float64 array of `shape` with entries of a table of 256, in one choice."""
    size = int(np.prod(shape))
    if size > 512:  # too long to shrink entry by entry: one seed
        return table[np.random.default_rng(draw(st.integers(0, 2**32 - 1))).integers(0, 256, shape)]
    return table[np.frombuffer(draw(st.binary(min_size=size, max_size=size)), np.uint8)].reshape(shape)


def _array(draw, shape, table, dtype):
    """An array of `shape` in the format `dtype` with entries of a table, clipped to an eighth of its range."""
    top = float(_finfo(dtype).max) / 8
    return np.clip(_pick(draw, table, shape), -top, top).astype(dtype)


def _turned(items, turn):
    """The items in turn from the one at place `turn`, counted around."""
    at = turn % len(items)
    return (*items[at:], *items[:at])


def _kept_apart(shape, dtype):
    """Values of keys (…, N, dv): 16 in few columns, which move on with every key, and 0, 1 or 2 in the others.

    No value is near the mean of many, so that each moves it.
    """
    keys = np.arange(np.prod(shape[:-1], dtype=int)).reshape(*shape[:-1], 1)
    keys = keys + np.arange(np.prod(shape[:-2], dtype=int)).reshape(*shape[:-2], 1, 1)
    return np.where((keys - np.arange(shape[-1])) % max(8, shape[-1]) == 0, 16, keys % 3).astype(dtype)


def _values(draw, shape, table, dtype):
    """An `_array` of what is averaged; half the time 3, 8, 13, 5, … instead, so that no two neighbours are alike.

    Equal values, zeros most of all, hide what a wrong weight does, and Hypothesis likes to draw them.
    """
    drawn = _array(draw, shape, table, dtype)
    return (3 + 5 * np.arange(drawn.size) % 13).reshape(shape).astype(dtype) if draw(st.booleans()) else drawn


def _levels(draw, shape, dtype, empties=True):
    """An array of levels around one base: ties, near ties and gaps, half the time few alike; half the time some −∞."""
    base = draw(st.one_of(st.just(0.0), st.sampled_from(BASES)))
    offsets = _pick(draw, OFFSETS, shape)
    if draw(st.booleans()):
        offsets = offsets + (7 * np.arange(offsets.size) % 11).reshape(shape) / 2
    with np.errstate(over="ignore"):
        table = (base + offsets).astype(dtype)
    if empties and draw(st.booleans()):
        table[_pick(draw, np.arange(256), shape) % 2 == 1] = -np.inf
    return table


def _finfo(dtype):
    return np.finfo(np.float16 if dtype == "float16" else np.float32 if dtype == "bfloat16" else dtype)


def _numpy_dtype(name):
    return np.dtype(ml_dtypes.bfloat16 if name == "bfloat16" else name)


@st.composite
def states(draw, subject, parts=(2, 2), empties=True, small=False, large=False, turn=0):
    """StateCases of the subject's kind: P parts of R rows; empty rows hold NaN half the time.

    turn: where the lists of large sizes begin, here and below.
    """
    dtype = _numpy_dtype(draw(st.sampled_from([d for d in subject.dtypes if d in ("float32", "float64")])))
    count = draw(st.integers(*parts))
    rows, dv = draw(st.sampled_from([1, 1, 1, 2, 3, 0])), draw(st.sampled_from([1, 1, 2, 3]))
    if large:
        rows, dv = draw(st.sampled_from(_turned(STATES, turn)))
        if subject.role == "merge_many" and parts[1] > 2:
            count, rows = draw(st.sampled_from(_turned(PARTS, turn))), min(rows, 5)
    near = large and draw(st.sampled_from((True, False)))
    level = _pick(draw, NEAR, (count, rows)).astype(dtype) if near else _levels(draw, (count, rows), dtype, empties)
    o = _values(draw, (count, rows, dv), INTEGERS if small else VALUES, dtype)
    o = np.swapaxes(_kept_apart((rows, count, dv), dtype), 0, 1).copy() if near else o
    if empties and draw(st.booleans()):
        o[np.isneginf(level)] = np.nan
    if subject.kind is LSEState:
        return StateCase(tuple(LSEState(o[b], level[b]) for b in range(count)))
    l = _array(draw, (count, rows), SUMS, dtype)
    l[np.isneginf(level)] = 0
    if subject.kind is MLOState:
        return StateCase(tuple(MLOState(level[b], l[b], o[b]) for b in range(count)))
    with np.errstate(over="ignore", invalid="ignore"):
        return StateCase(tuple(subject.kind(level[b], l[b], o[b] * l[b][:, None]) for b in range(count)))


@st.composite
def blocks(draw, subject, keys=(0, 6), empties=True, small=False, large=False, long=False, turn=0):
    """BlockCases: N keys, some not visible to a row, some to none."""
    dtype = _numpy_dtype(draw(st.sampled_from(subject.dtypes)))
    n, rows, dv = draw(st.integers(*keys)), draw(st.integers(1, 2)), draw(st.integers(1, 2))
    if large:
        n = draw(st.sampled_from(_turned([n for n in LENGTHS if long or n <= LONG], turn)))
        rows, dv = draw(st.sampled_from(_turned(BLOCK_ROWS, turn)))
    near = large and draw(st.sampled_from((True, False)))
    scores = _pick(draw, NEAR, (rows, n)).astype(dtype) if near else _levels(draw, (rows, n), dtype, empties)
    if empties and draw(st.booleans()):
        scores[0] = -np.inf
    scores[np.isinf(scores.astype(np.float64)) & (scores > 0)] = 0  # beyond the range of float16
    if not empties:
        scores[np.isneginf(scores.astype(np.float64))] = 0
    v = _values(draw, (n, dv), INTEGERS if small else VALUES, dtype)
    return BlockCase(scores, _kept_apart(v.shape, dtype) if near else v)


@st.composite
def calls(draw, subject, keys=(1, 7), empties=True, small=False, large=False, long=False, turn=0, sharing=None,
          dims=None):
    """CallCases of the subject's role: grouped heads, Nq ≠ Nkv, ragged lengths (0 among them), odd splits.

    k carries levels as scores do; the last coordinate of q is 1 and of k 0. sharing: (sequences, KV heads, query heads
    a KV head) to draw from; dims: pairs (d, dv) to draw from, for one query, the last of them in large calls.
    """
    dtype = _numpy_dtype(draw(st.sampled_from(subject.dtypes)))
    decode, masked = subject.role == "decode", subject.role == "attention"
    dims = dims[-1:] if dims and large else dims
    large = large and dims is None
    if large:
        tiles = [t for t in TILES if long or t[0] <= LONG]
        tile = draw(st.sampled_from(_turned(tiles, turn)))
        if tile[0] * (1 if decode else tile[1]) * (tile[2] + tile[3]) > MANY and not sharing:
            sharing = SHARING_FEW
    batch, kv, group = draw(st.sampled_from(sharing or (SHARING_LARGE if large else SHARING)))
    n, d, dv = draw(st.integers(*keys)), draw(st.sampled_from([2, 4, 4, 5])), draw(st.integers(1, 2))
    rows = draw(st.integers(1, 3))
    # as many keys, or queries, as heads: axes exchanged would not show in a shape
    n, rows = draw(st.sampled_from([n, n, kv])), draw(st.sampled_from([rows, rows, min(kv * group, 6)]))
    rows = 1 if decode or dims else rows
    if large:
        n, rows, d, dv = tile
        rows = 1 if decode else rows
    rows = min(rows, subject.most_queries)
    d, dv = draw(st.sampled_from(dims)) if dims else (min(x, subject.largest_dim) for x in (d, dv))
    near = large and draw(st.sampled_from((True, False)))
    q = _array(draw, (batch, kv * group, rows, d), QUERIES, dtype)
    k = _array(draw, (batch, kv, n, d), NEAR if near else OFFSETS, dtype)
    if not near:
        k[..., 0] = np.clip(_levels(draw, (batch, kv, n), np.float64, False), -6e4, 6e4).astype(dtype)
    q[..., -1], k[..., -1] = 1, 0
    v = _values(draw, (batch, kv, n, dv), INTEGERS if small else VALUES, dtype)
    v = _kept_apart(v.shape, dtype) if near else v
    lens = None
    if decode:
        low = 0 if empties else 1
        lens = np.array([draw(st.integers(low, n)) for _ in range(batch)])
        lens = np.full_like(lens, n) if draw(st.booleans()) else lens
        lens = n + low - lens if large else lens  # the simplest large call has all keys in use
    splits = draw(st.sampled_from(_turned(SPLITS, turn)) if large else st.integers(1, 9)) if decode else 1
    # the first large call is causal, but for more queries than keys: rows of nothing would hide others
    causal = masked and draw(st.sampled_from((rows <= n, rows > n)) if large else st.booleans())
    return CallCase(q, k, v, causal, lens, splits)


def cases(subject, **options):
    """The strategy of the subject's role; large=True for sizes at which tiles, splits and groups come into play.

    plain_sizes: what the law asks does not change with sizes, and large ones are left out. long: more than `LONG` keys
    too. turn: the law's place in the lists of large sizes.
    """
    lone, plain_sizes = options.pop("lone", False), options.pop("plain_sizes", False)
    options["large"] = options.get("large", False) and not plain_sizes
    if subject.role in ("merge", "merge_many"):
        low, high = options.pop("parts", (2, 4))
        low = 1 if lone or subject.role == "merge_many" else max(low, 2)  # ⊕ is only called for two
        options.pop("long", None)
        return states(subject, parts=(1, 1) if lone else (low, high), **options)
    options.pop("parts", None)
    return (blocks if subject.role == "block" else calls)(subject, **options)


def in_its_library(subject):
    """The subject with library "numpy" or "torch", the first that its function takes; as it is if it takes neither.

    torch is asked only where it is installed, of the plainest case of the role.
    """
    libraries = ["numpy", *(["torch"] if importlib.util.find_spec("torch") else [])]
    for one in (replace(subject, library=name) for name in libraries):
        try:
            plain(one).run(one)
            return one
        except SubjectError:
            continue
    return subject


def plain(subject):
    """The plainest case of the subject's role: all ones, two keys or parts, nothing masked."""
    dtype = _numpy_dtype(subject.dtypes[0])
    one = lambda *shape: np.ones(shape, dtype)  # noqa: E731
    if subject.role in ("merge", "merge_many"):
        state = LSEState(one(1, 1), one(1)) if subject.kind is LSEState else subject.kind(one(1), one(1), one(1, 1))
        return StateCase((state, state))
    if subject.role == "block":
        return BlockCase(one(1, 2), one(2, 1))
    lens = np.array([2]) if subject.role == "decode" else None
    return CallCase(one(1, 1, 1, 2), one(1, 1, 2, 2), one(1, 1, 2, 1), seq_lens=lens)
