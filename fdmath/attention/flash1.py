"""FlashAttention-1 forward, counted: key blocks outside, o normalised at every step, everything through HBM.

Beside `fdmath.attention.flash` it shows what FlashAttention-2 changed: the order of the loops, one maximum instead of
a block's own and a correction, one division at the end, one statistic instead of two.
"""

from dataclasses import replace

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState, MLOState
from fdmath.attention.differentiable import without_gradient
from fdmath.attention.flash import scores
from fdmath.attention.reference import prepare
from fdmath.attention.softmax import finite_level
from fdmath.attention.tiles import Tiles, record
from fdmath.cost.counts import Counts, Machine


def flash_attention_1(q, k, v, *, block_m=None, block_n=None, causal=False, scale=None, mask=None, divide="sum",
                      counts=None):
    """The attention state (o, lse) of all visible keys, by FlashAttention-1.

    Arguments and result as for `flash_attention`. divide: how a step normalises, the same number three ways:
    "sum" divides the sum of the old and the new part (the algorithm of the paper); "parts" divides each of them, and
    corrects the weights one by one (as document B counts); "factors" divides two numbers a row and multiplies by them.
    No gradient: RuntimeError where torch asks for one. Raises TypeError, ValueError for arguments.
    Source: Dao et al. 2022, Algorithm 1; document B, deferred normalisation; claims:B01, B02, B08.
    """
    if divide not in list(_DIVISIONS):
        raise ValueError(f'divide must be "sum", "parts" or "factors"; got {divide!r}')
    call = prepare(q, k, v, causal=causal, scale=scale, mask=mask)
    call = replace(call, **{name: backends.constant(getattr(call, name)) for name in "qkv"})
    tiles = Tiles(call, block_m, block_n)
    gpu = Machine(call.xp, tiles.heads, call.work, record(counts, Counts))
    gpu.tensors = {"q": tiles.q, "k": tiles.k, "v": tiles.v, "o": tiles.full(call.queries, call.out_shape[-1]),
                   "m": tiles.full(call.queries, 1, float("-inf")), "l": tiles.full(call.queries, 1)}
    with backends.quiet():
        for j in tiles.columns:
            add_column(gpu, tiles, j, _DIVISIONS[divide])
    state = call.finish(MLOState(gpu.tensors["m"][..., 0], gpu.tensors["l"][..., 0], gpu.tensors["o"]))
    refusal = "flash_attention_1 has no gradient; fdmath.flash_attention has"
    return LSEState(*without_gradient("flash_attention_1", lambda *_: tuple(state), q, k, v, refusal=refusal))


def add_column(gpu, tiles, j, normalised):
    """Nothing; in HBM m, l and o of every row have taken in the keys j, o divided by l again."""
    xp = gpu.xp
    k, v = gpu.load("k", j), gpu.load("v", j)
    for i in tiles.rows:
        if gpu.meet(tiles.kind(i, j)) == "skipped":
            continue
        q, o, m, l = (gpu.load(name, i) for name in "qoml")  # noqa: E741
        s = scores(gpu, tiles, q, k, i, j)
        top = xp.max(s, axis=-1, keepdims=True)  # the block's own maximum
        p = gpu.exp(s - finite_level(xp, top))
        new = xp.maximum(m, top)
        shrink, grow = gpu.exp(m - finite_level(xp, new)), gpu.exp(top - finite_level(xp, new))
        kept = gpu.multiply(shrink, l)
        total = kept + gpu.multiply(grow, xp.sum(p, axis=-1, keepdims=True))
        divisor = backends.filled(xp, total, total == 0, 1.0)
        gpu.store("o", i, normalised(gpu, o, p, v, kept, grow, divisor))
        gpu.store("m", i, new)
        gpu.store("l", i, total)


def _sum_divided(gpu, o, p, v, kept, grow, total):
    """(kept·o + grow·(P·v)) / l."""
    return gpu.divide(gpu.multiply(kept, o) + gpu.multiply(grow, gpu.matmul(p, v)), total)


def _parts_divided(gpu, o, p, v, kept, grow, total):
    """kept·o / l + (grow·P)·v / l."""
    return gpu.divide(gpu.multiply(kept, o), total) + gpu.divide(gpu.matmul(gpu.multiply(grow, p), v), total)


def _factors_divided(gpu, o, p, v, kept, grow, total):
    """(kept / l)·o + (grow / l)·(P·v)."""
    old, new = gpu.divide(kept, total), gpu.divide(grow, total)
    return gpu.multiply(old, o) + gpu.multiply(new, gpu.matmul(p, v))


_DIVISIONS = {"sum": _sum_divided, "parts": _parts_divided, "factors": _factors_divided}
