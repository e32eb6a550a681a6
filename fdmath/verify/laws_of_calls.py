"""The laws of how a call is made: twice, in a batch, on views of other memory, with many heads or wide ones.

The anchor asks what a state is; these change what must not matter, or ask it where few tests look.
"""

import math
from dataclasses import replace

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState
from fdmath.verify.law import MERGING, both, law, slack64
from fdmath.verify.reference import Finding, as_pair, equal, exactly, same
from fdmath.verify.subject import CALLED, WIDE, to_numpy

GROUPS = ((1, 2, 3), (1, 8, 4), (1, 2, 24), (1, 1, 8), (1, 4, 2), (1, 8, 5), (1, 4, 7), (1, 2, 6))
"""(sequences, KV heads, query heads a KV head): 6/2, 32/8, 48/2, 8/1, 8/4, 40/8, 28/4 and 12/2 heads."""
SLOTS = 3
"""How many slots a cache has beyond the keys of a call, NaN in all of them."""


@law("fn(x) = fn(x), every bit", name="determinism", parts=(2, 4))
def determinism(subject, case):
    """The same call gives the same bits again, and no later call writes into what an earlier one returned."""
    case = case.filled() if subject.role in CALLED else case
    first = case.run(subject.recorded(returned := []))
    arrays = [x for got in returned if got is not None for x in (got if isinstance(got, (tuple, list)) else [got])]
    arrays = [x for x in arrays if str(getattr(x, "dtype", "")).removeprefix("torch.") in backends.FLOATS]
    kept = [to_numpy(x).copy() for x in arrays]
    case.with_values(lambda v: (3 - v).astype(v.dtype)).run(subject)
    for x, was in zip(arrays, kept, strict=True):
        if not equal(to_numpy(x), was):
            return Finding(math.inf, False, "fail", f"a later call wrote into a result: {was} became {to_numpy(x)}")
    return exactly(case.run(subject), first)


@law("fn(rows among others) = fn(rows)", name="batch mates", parts=(2, 3), empties=False)
def batch_mates(subject, case):
    """What a row (in calls, a sequence) gets does not depend on what else is in its batch, nor on its place there."""
    mate = case.shifted(2000.0)[0].with_values(np.negative)
    together, own = case.among(mate, mate)
    got, budget = together.run(subject), together.budget(subject)
    pick = lambda s: type(s)(*(x[own] for x in s))  # noqa: E731
    return same(pick(got), case.run(subject), both(pick(budget), case.budget(subject))).on(together)


@law("(0, −∞) for a row that sees nothing, beside rows that do", (*MERGING, "block", "decode", "attention"),
     lambda s: s.role != "attention" or s.causal == "bottom_right", name="empty rows", parts=(2, 3), empties=False,
     plain_sizes=True)
def empty_rows(subject, case):
    """Rows that see nothing are nothing, and the full rows of the same batch are what they are by definition."""
    mixed = case.emptied(subject)
    right = mixed.certified(subject) if subject.role in CALLED else mixed.certified()
    return right.judge(mixed.run(subject), mixed.budget(subject)).on(mixed)


@law("head h reads KV head h // g", CALLED, name="grouped heads", sharing=GROUPS)
def grouped_heads(subject, case):
    """Each query head reads the keys and the values of its own KV head, at 32/8, 40/8, 28/4, 6/2, … heads."""
    q, k, v = np.zeros_like(case.q), np.zeros_like(case.k), np.empty_like(case.v)
    of_head = np.arange(k.shape[1])
    q[..., -1] = 1
    k[..., -1] = of_head[:, None]
    v[...] = 1 + of_head[:, None, None]
    one = replace(case, q=q, k=k, v=v)
    mine = one.kv_heads(subject)[:, None].astype(np.float64)
    seen = np.sum(one.visible(subject), axis=-1)
    scale = 1 / math.sqrt(q.shape[-1]) if subject.scale is None else subject.scale
    lse = np.where(seen > 0, scale * mine + np.log(np.maximum(seen, 1)), -np.inf)
    right = LSEState(np.broadcast_to(np.where(seen > 0, 1 + mine, 0.0)[..., None], (*seen.shape, v.shape[-1])), lse)
    return same(as_pair(one.run(subject)), right, slack64(one.budget(subject), right.o, lse)).on(one)


@law("fn(keys) by definition, d up to 576, dv up to 512", CALLED, lambda s: s.largest_dim >= max(WIDE),
     name="wide heads", dims=((24, 16), (40, 32), (192, 128), (128, 128), (96, 96), WIDE),
     sharing=((1, 1, 1), (1, 1, 2)))
def wide_heads(subject, case):
    """With v narrower than k, up to the heads of latent attention (576 and 512), the state is the certified one."""
    return case.certified(subject).judge(case.run(subject), case.budget(subject))


@law("fn(views of x) = fn(x)", CALLED, name="strides", plain_sizes=True)
def strides(subject, case):
    """q, k and v may be views: (B, N, H, d) in memory, k and v the first slots of a longer cache of NaN."""
    q, k, v, *rest = case.arguments(subject)
    views = [_tokens_first(subject, case.q, 0), *(_tokens_first(subject, x, SLOTS) for x in (case.k, case.v))]
    budget = case.budget(subject)
    return same(case.adopted(subject, subject.call(*views, *rest)), case.adopted(subject, subject.call(q, k, v, *rest)),
                both(budget, budget))


def _tokens_first(subject, x, slots):
    """x (B, H, N, d) in the subject's library: a view of (B, N + slots, H, d) in memory, NaN in the slots behind."""
    behind = np.full((*x.shape[:2], slots, x.shape[3]), np.nan, x.dtype)
    whole = np.swapaxes(np.concatenate([x, behind], axis=2), 1, 2)
    return subject.send(whole).swapaxes(1, 2)[..., : x.shape[2], :]


__all__ = ["GROUPS", "batch_mates", "determinism", "empty_rows", "grouped_heads", "strides", "wide_heads"]
