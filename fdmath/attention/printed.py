"""Algorithms as the documents print them, faults intact: to show what they cost, never to use.

Written anew, for NumPy or torch, with the documents' choices kept: accumulators in q's dtype, no mask,
no checks, no guard for −∞, the scale from d_model/num_heads where the document takes it from there.
Document A's programs take (batch, heads, rows, dim); the recurrences below them scores (…, N) and v (N, dv).
Faults: claims.md, section 6, and claims:B01, B04.
"""

import math

from fdmath import _backends as backends
from fdmath.algebra.printed import flat_as_printed_A_2_3_4, merge_as_printed_A_3_2_1

D_MODEL, NUM_HEADS = 512, 8


def attention_as_printed_A_3_1_2(q, k, v, d_model=D_MODEL, num_heads=NUM_HEADS):
    """o of the documents' reference: scaled by √(d_model // num_heads), whatever q's dim is (F8)."""
    xp = backends.array_namespace(q=q, k=k, v=v)
    with backends.quiet():
        scores = _scores(xp, q, k, d_model // num_heads)
        if k.shape[-2] == 0:
            return _product(scores, v)
        weights = xp.exp(scores - xp.max(scores, axis=-1, keepdims=True))
        return _product(weights / xp.sum(weights, axis=-1, keepdims=True), v)


def single_stream_as_printed_A_3_1_2(q, k, v, tile=256):
    """o by the single stream of triples: o_tile normalised and multiplied by l again (F2, F6, F9, F12)."""
    xp = backends.array_namespace(q=q, k=k, v=v)
    top, total, numerator = _running(xp, q)
    with backends.quiet():
        for start, stop in _tiles(k, tile):
            scores = _scores(xp, q, k[..., start:stop, :], q.shape[-1])
            m = xp.max(scores, axis=-1, keepdims=True)
            weights = xp.exp(scores - m)
            l = xp.sum(weights, axis=-1, keepdims=True)  # noqa: E741
            o = _product(weights, v[..., start:stop, :]) / l
            new = xp.maximum(top, m)
            if start > 0:
                shrink = xp.exp(top - new)
                numerator, total = numerator * shrink, total * shrink
            grow = xp.exp(m - new)
            numerator, total, top = numerator + o * l * grow, total + l * grow, new
        return numerator / total


def multi_stream_as_printed_A_3_1_3(q, k, v, tile=256, num_streams=5):
    """o by streams of (O, M, L), O unnormalised, folded by a tree: NaN with few tiles (F1, F2b)."""
    xp = backends.array_namespace(q=q, k=k, v=v)
    running = [_running(xp, q) for _ in range(num_streams)]
    with backends.quiet():
        for i, (start, stop) in enumerate(_tiles(k, tile)):
            m, l, acc = running[i % num_streams]
            scores = _scores(xp, q, k[..., start:stop, :], q.shape[-1])
            new = xp.maximum(m, xp.max(scores, axis=-1, keepdims=True))
            shrink, weights = xp.exp(m - new), xp.exp(scores - new)
            running[i % num_streams] = (new, l * shrink + xp.sum(weights, axis=-1, keepdims=True),
                                        acc * shrink + _product(weights, v[..., start:stop, :]))
        while len(running) > 1:
            running = [_pair(xp, *running[i:i + 2]) for i in range(0, len(running), 2)]
        return running[0][2] / running[0][1]


def _pair(xp, a, b=None):
    """The document's tree step: two (M, L, O) rescaled to the larger M and added; one alone goes up."""
    if b is None:
        return a
    new = xp.maximum(a[0], b[0])
    left, right = xp.exp(a[0] - new), xp.exp(b[0] - new)
    return new, a[1] * left + b[1] * right, a[2] * left + b[2] * right


def lse_streams_as_printed_A_3_2_2(q, k, v, tile=256, num_streams=4, d_model=D_MODEL, num_heads=NUM_HEADS):
    """o by streams of pairs: log(l + 1e-12), a sentinel test over all rows at once, two-step merge.

    F2c, F4, F5, F8, F13. The document's first-tile test looks at all rows of all heads together.
    """
    xp = backends.array_namespace(q=q, k=k, v=v)
    streams = [(xp.zeros_like(q), xp.full(q.shape[:-1], float("-inf"), dtype=q.dtype)) for _ in range(num_streams)]
    with backends.quiet():
        for i, (start, stop) in enumerate(_tiles(k, tile)):
            scores = _scores(xp, q, k[..., start:stop, :], d_model // num_heads)
            part = _tile_pair(xp, scores, v[..., start:stop, :])
            o, lse = streams[i % num_streams]
            fresh = bool(xp.all(lse == float("-inf")))
            streams[i % num_streams] = part if fresh else merge_as_printed_A_3_2_1(o, lse, *part)
        return flat_as_printed_A_2_3_4(xp.stack([o for o, _ in streams]), xp.stack([s for _, s in streams]))[0]


def _tile_pair(xp, scores, v):
    """(O_i, S_i) of one tile with the document's + 1e-12 inside the logarithm (F5)."""
    m = xp.max(scores, axis=-1, keepdims=True)
    weights = xp.exp(scores - m)
    l = xp.sum(weights, axis=-1, keepdims=True)  # noqa: E741
    guarded = backends.cast(l + 1e-12, backends.float_name(l))  # the document's literal, not a tolerance
    return _product(weights, v) / l, (m + xp.log(guarded))[..., 0]


def _scores(xp, q, k, dim):
    """q·kᵀ/√dim in q's format."""
    return backends.cast(_product(q, xp.matrix_transpose(k)) / math.sqrt(dim), backends.float_name(q))


def _product(a, b):
    """a @ b in a's format: NumPy makes float32 of bfloat16 in a product, as it does beside a number."""
    return backends.cast(a @ b, backends.float_name(a))


def _tiles(k, tile):
    keys = k.shape[-2]
    count = (keys + tile - 1) // tile
    return [(i * tile, min((i + 1) * tile, keys)) for i in range(count)]


def _running(xp, q):
    """The document's start (M, L, O) = (−∞, 0, 0), in q's dtype and q's width (F10, F12)."""
    m = xp.full((*q.shape[:-1], 1), float("-inf"), dtype=q.dtype)
    return m, xp.zeros_like(m), xp.zeros_like(q)


def definition_as_printed_A_2_1_1(scores, v):
    """(o, lse) of one block by the bare definitions, Σe^s·v / Σe^s (2.1.1) and log Σe^s (2.3.1): nothing subtracted.

    scores: (…, Nq, N), v: (…, N, dv), of one format, in which the work is done. Overflows and underflows (A14).
    """
    xp = backends.array_namespace(scores=scores, v=v)
    with backends.quiet():
        weights = xp.exp(scores)
        total = xp.sum(weights, axis=-1)
        return _product(weights, v) / total[..., None], xp.log(total)


def online_as_printed_A_3_1_1(scores, v, exp=None):
    """(m, l, o) of a tile by the recurrence (1c), o divided by l at every key, in the format given.

    scores (…, N ≥ 1), v (N, dv). It starts from the first key with l = 1, hidden or not: two hidden keys at the
    start give NaN (F2). exp: the exponential of the scores' base (natural without it).
    """
    xp = backends.array_namespace(scores=scores, v=v)
    exp = exp or xp.exp
    m = scores[..., 0]
    l, o = xp.ones_like(m), xp.zeros_like(m)[..., None] + v[0, :]  # noqa: E741
    with backends.quiet():
        for j in range(1, scores.shape[-1]):
            new = xp.maximum(m, scores[..., j])
            kept, weight = l * exp(m - new), exp(scores[..., j] - new)
            m, l = new, kept + weight
            o = (kept[..., None] * o + weight[..., None] * v[j, :]) / l[..., None]
    return m, l, o


def update_as_printed_B(m, l, o, scores, v, exp=None):
    """(m, l, o) after one more tile by document B's words on FlashAttention-1: the old o is rescaled by l₁/l₂.

    The factor e^(m₁−m₂) is missing (claims:B01). m, l (…), o (…, dv); scores (…, N), v (N, dv); exp as above.
    """
    new, total, _, weights = _next(m, l, scores, v, exp)
    with backends.quiet():
        return new, total, (l / total)[..., None] * o + weights @ v / total[..., None]


def update_as_printed_FA2_recap(m, l, o, scores, v, exp=None):
    """(m, l, o) after one more tile as the FlashAttention-2 paper recalls FlashAttention-1: o rescaled by (l₁/l₂)⁻¹.

    The factor is missing and the rest inverted (claims:B01, faults:B5, B6). Arguments as for update_as_printed_B.
    """
    new, total, _, weights = _next(m, l, scores, v, exp)
    with backends.quiet():
        return new, total, (1 / (l / total))[..., None] * o + weights @ v / total[..., None]


def update_as_printed_FA2_line_10(m, l, acc, scores, v, exp=None):
    """(m, l, acc) after one more tile by that paper's Algorithm 1, line 10: acc rescaled by (e^(m₁−m₂))⁻¹.

    The factor is inverted (claims:B04, faults:B5). Arguments as for update_as_printed_B, acc in place of o.
    """
    new, total, shrink, weights = _next(m, l, scores, v, exp)
    with backends.quiet():
        return new, total, (1 / shrink)[..., None] * acc + weights @ v


def _next(m, l, scores, v, exp):
    """The next level and the next sum (these two are printed right), e^(m₁−m₂), and the new weights."""
    xp = backends.array_namespace(m=m, l=l, scores=scores, v=v)
    exp = exp or xp.exp
    with backends.quiet():
        new = xp.maximum(m, xp.max(scores, axis=-1))
        shrink, weights = exp(m - new), exp(scores - new[..., None])
        return new, shrink * l + xp.sum(weights, axis=-1), shrink, weights


def algorithm_1_as_printed_B(q, k, v, block_m=64, block_n=64, visible=None, descending=False):
    """(O, L) by document B's Algorithm 1: the scores are q·kᵀ unscaled, and no row is guarded.

    q (…, N, d), k (…, Nkv, d), v (…, Nkv, dv). visible: booleans that broadcast to the scores. descending takes the
    key blocks from the last to the first, as released kernels do. A row whose first block hides everything is NaN
    (F17; claims:B25, B58, B59).
    """
    xp = backends.array_namespace(q=q, k=k, v=v)
    columns = _spans(k, block_n)[::-1 if descending else 1]
    done = []
    with backends.quiet():
        for i in _spans(q, block_m):  # 3
            rows = (*q.shape[:-2], i.stop - i.start)
            m = xp.full((*rows, 1), float("-inf"), dtype=q.dtype)  # 5
            l, o = xp.zeros_like(m), xp.zeros((*rows, v.shape[-1]), dtype=q.dtype)  # noqa: E741
            for j in columns:  # 6
                s = _visible_scores(xp, q, k, i, j, visible)  # 8
                new = xp.maximum(m, xp.max(s, axis=-1, keepdims=True))  # 9
                p, shrink = xp.exp(s - new), xp.exp(m - new)  # 10
                l = shrink * l + xp.sum(p, axis=-1, keepdims=True)  # 11  # noqa: E741
                o = shrink * o + p @ v[..., j, :]  # 12
                m = new
            done.append((o / l, m + xp.log(l)))  # 14, 15
    return xp.concat([o for o, _ in done], axis=-2), xp.concat([lse for _, lse in done], axis=-2)[..., 0]


def algorithm_2_as_printed_B(q, k, v, o, do, lse, block_m=64, block_n=64, visible=None, write_back=False):
    """(dQ, dK, dV) by document B's Algorithm 2: the scores are q·kᵀ unscaled, and no row is guarded.

    Shapes as for `algorithm_1_as_printed_B`, lse (…, N). Line 14 changes dQ_i "on chip" and no line writes it back, so
    that dQ stays 0 (F19; claims:B64); write_back adds that line. A row of lse = −∞ is NaN (F18).
    """
    xp = backends.array_namespace(q=q, k=k, v=v, o=o, do=do, lse=lse)
    dq = xp.zeros_like(q)  # 2
    delta = xp.sum(do * o, axis=-1)  # 3
    done = []
    with backends.quiet():
        for j in _spans(k, block_n):  # 4
            dk, dv = xp.zeros_like(k[..., j, :]), xp.zeros_like(v[..., j, :])  # 6
            for i in _spans(q, block_m):  # 7
                dq_i, do_i = dq[..., i, :], do[..., i, :]  # 8
                p = xp.exp(_visible_scores(xp, q, k, i, j, visible) - lse[..., i, None])  # 9, 10
                dv = dv + xp.matrix_transpose(p) @ do_i  # 11
                ds = p * (do_i @ xp.matrix_transpose(v[..., j, :]) - delta[..., i, None])  # 12, 13
                dq_i = dq_i + ds @ k[..., j, :]  # 14
                dk = dk + xp.matrix_transpose(ds) @ q[..., i, :]  # 15
                if write_back:
                    dq[..., i, :] = dq_i
            done.append((dk, dv))  # 17
    return dq, xp.concat([dk for dk, _ in done], axis=-2), xp.concat([dv for _, dv in done], axis=-2)


def score_rows_as_printed_B(slices):
    """The warps' slices of q·kᵀ *added*, as document B says of FlashAttention-1 (claims:B47).

    slices: a list of (…, rows, keys of one warp), of equal shape. The rows of all keys are these side by side; added,
    they are as short as one slice. Sums would be right only if the warps shared out the head dimension.
    """
    return sum(slices[1:], start=slices[0])


def _visible_scores(xp, q, k, i, j, visible):
    """q·kᵀ of a block, −∞ where not visible."""
    s = q[..., i, :] @ xp.matrix_transpose(k[..., j, :])
    if visible is None:
        return s
    shape = (q.shape[-2], k.shape[-2])
    return backends.filled(xp, s, ~xp.broadcast_to(visible, (*visible.shape[:-2], *shape))[..., i, j], float("-inf"))


def _spans(x, size):
    """The slices of `size` rows of x, the last one short."""
    return [slice(start, min(start + size, x.shape[-2])) for start in range(0, x.shape[-2], size)]
