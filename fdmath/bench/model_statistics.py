"""What a language model loses by statistics in 16 bits: head by head, along a text, and in the tokens that it takes.

A Way is one of the FORMS of `headline` with formats for what is kept between merges; all the attention of the model is
then computed so, prompt and tokens alike, and the rest in float32. Needs the ``[model]`` extra.
"""

import copy
from dataclasses import asdict, dataclass

import numpy as np
import torch
import transformers
from tqdm.auto import tqdm

from fdmath.algebra.merge import flat, merge_all
from fdmath.algebra.order import sequential
from fdmath.algebra.printed import flat_printed
from fdmath.attention.decode import key_ranges, tile_states
from fdmath.attention.reference import prepare
from fdmath.bench import headline
from fdmath.interop import capture, compare, criteria
from fdmath.interop.transformers import visible_keys

CHAIN, AT_ONCE = "chain", "at once, in float32"
CONTEXTS = (1, 16, 64, 256, 1024)  # where the ranges of context lengths begin
TOLD = 20  # differing tokens of a way that a record tells one by one


@dataclass(frozen=True)
class Way:
    """A form of `headline.FORMS`, the formats of statistics and output between merges, the tile, and how tiles merge.

    merging: CHAIN, one after the other, each result stored in the formats again; or AT_ONCE, the stored tiles widened
    to float32 and merged by the flat formula of the form.
    """

    form: str
    stats: str = "bfloat16"
    payload: str = "float32"
    tile: int = headline.TILE
    merging: str = CHAIN

    @property
    def name(self):
        """The name under which transformers knows the way."""
        return f"{self.form}; {self.stats}, {self.payload}; tile {self.tile}; {self.merging}"


PRINTED, CONVEX, TRIPLE = headline.FORMS
ANSWERING = (Way(PRINTED, "float32"), *(Way(form) for form in headline.FORMS),
             *(Way(form, payload="bfloat16") for form in headline.FORMS),
             *(Way(form, merging=AT_ONCE) for form in headline.FORMS))
READING = (*ANSWERING, Way(CONVEX, "float32"), Way(TRIPLE, "float32"),
           *(Way(form, tile=128) for form in headline.FORMS),
           *(Way(form, payload="bfloat16", tile=128) for form in headline.FORMS))


def merged_by(way, q, k, v, *, scale=None):
    """The LSEState of causal attention, o as the inputs, by one Way: q (…, Hq, Nq, d), k, v (…, Hkv, N, d), torch."""
    call = prepare(q, k, v, causal=True, scale=scale, stats_dtype=way.stats)
    form, payload = headline.FORMS[way.form], getattr(torch, way.payload)
    tiles = tile_states(call, key_ranges(call.keys, tile=way.tile), form.kind)
    parts = [type(tiles)(*(x[b] if x is not tiles.payload else x[b].to(payload) for x in tiles))
             for b in range(len(tiles.payload))]
    if way.merging == CHAIN:
        return call.finish(sequential(form.merge, parts))
    wide = [part.map(torch.Tensor.float) for part in parts]
    return call.finish(merge_all(wide, flat_printed if way.form == PRINTED else flat))


def use(way):
    """The name of an attention implementation of transformers that computes by this Way; no padding, no other mask."""
    def attend(module, query, key, value, attention_mask, *, scaling=None, **asked):
        if attention_mask is not None:
            raise ValueError("attention_mask must be None, for one sequence without padding")
        return merged_by(way, query, key, value, scale=scaling).o.transpose(1, 2).contiguous(), None

    transformers.AttentionInterface.register(way.name, attend)
    transformers.AttentionMaskInterface.register(way.name, visible_keys)
    return way.name


def heads(model, ids):
    """A row for each query head of a model that reads ids (1, N): profile, level, stakes, and the Row of each form.

    The rows are those of `headline.measure` with statistics in bfloat16, for every eighth of the last 64 queries.
    """
    rows = []
    for one in tqdm(list(capture.record(model, ids)), unit="head", disable=None):
        case = headline.of_head(one.q, one.k, one.v)
        found = {form: asdict(headline.measure(case, form, "bfloat16")) for form in headline.FORMS}
        rows.append({"layer": one.layer, "head": one.head, **criteria.profile(one.q, one.k)._asdict(),
                     "level": case.level, **stakes(case), **found})
    return rows


def stakes(case, tile=headline.TILE):
    """What rounding the stored statistics of the tiles can move o by, first order, in u·Σp|v|: of pair and of triple.

    With p_b the share of tile b, o_b its output and S_b its lse: Σ_b p_b·|o_b − o| for the triple, whose l is rounded,
    and Σ_b p_b·|S_b|·|o_b − o| for the pair; the largest over rows and columns. Source: T1 and T3 to first order.
    """
    scores, v = case.scores.astype(np.float64), case.v.astype(np.float64)
    tiles = headline.tile_states(scores, v, headline.FORMS[CONVEX].kind, "float64", tile)
    o, lse = np.stack([part.o for part in tiles]), np.stack([part.lse for part in tiles])
    whole = merge_all(tiles)
    moved = np.exp(lse - whole.lse)[..., None] * np.abs(o - whole.o) / case.exact.scale_o[:, 0]
    level = np.where(np.isinf(lse), 0.0, np.abs(lse))[..., None]
    return {"pair_stake": float(np.max(np.sum(level * moved, axis=0))),
            "triple_stake": float(np.max(np.sum(moved, axis=0)))}


def reading(model, ids, ways=READING):
    """Rows: how a model that reads ids (1, N) by each of the ways departs from eager, over ranges of context lengths.

    Every implementation reads the text once, so that at each place it has the same context. Peers are sdpa and fdmath,
    and sdpa with the whole model in bfloat16.
    """
    compare.use()
    right = _logits(model, compare.REFERENCE, ids)
    peers = [(name, {"implementation": name}, model) for name in (compare.PEER, compare.OURS)]
    ours = [(use(way), asdict(way), model) for way in ways]
    low = copy.deepcopy(model).to(torch.bfloat16)
    all_in_16 = [(compare.PEER, {"implementation": "sdpa, the whole model in bfloat16"}, low)]
    return [about | departure(right, _logits(which, name, ids), ids)
            for name, about, which in tqdm([*peers, *ours, *all_in_16], unit="way", disable=None)]


def _logits(model, name, ids):
    """The logits (N, V) in float32 of one pass over ids (1, N)."""
    before = model.config._attn_implementation
    model.set_attn_implementation(name)
    try:
        with torch.no_grad():
            return model(ids, use_cache=False).logits[0].float()
    finally:
        model.set_attn_implementation(before)


def departure(right, got, ids):
    """What separates logits `got` from `right`, both (N, V), of a text ids (1, N): a dict for a record.

    ranges: over context lengths from `from` on, the median and largest of max |Δlogit|, the number of other tokens.
    differences: the first places of another token, each with the margin of the reference and the max |Δlogit| there.
    nats: the mean loss of the text's own next token. at_risk: places where the margin of the two best tokens of the
    reference is at most 2·max |Δlogit|; only there can the token be another.
    """
    apart = (got - right).abs().amax(dim=-1)
    mine, theirs = got.argmax(dim=-1), right.argmax(dim=-1)
    best = right.topk(2, dim=-1).values
    margin = best[:, 0] - best[:, 1]
    other = (mine != theirs) | apart.isnan()
    places = other.nonzero()[:, 0].tolist()
    loss = [torch.nn.functional.cross_entropy(x[:-1], ids[0, 1:]).item() for x in (right, got)]
    return {
        "tokens": len(apart), "other": int(other.sum()), "at_risk": int((~(margin > 2 * apart)).sum()),
        "nats": loss[1], "nats_of_reference": loss[0], "ranges": _ranges(apart, other),
        "differences": [{"context": i + 1, "reference": int(theirs[i]), "other": int(mine[i]), "apart": float(apart[i]),
                         "margin": float(right[i, theirs[i]] - right[i, mine[i]])} for i in places[:TOLD]],
    }


def _ranges(apart, other):
    """Rows over the ranges that begin at CONTEXTS; the token at place i has the context of i + 1 tokens."""
    starts = [start - 1 for start in CONTEXTS if start <= len(apart)]
    return [{"from": a + 1, "tokens": b - a, "median": apart[a:b].median().item(), "largest": apart[a:b].max().item(),
             "other": int(other[a:b].sum())} for a, b in zip(starts, [*starts[1:], len(apart)], strict=True)]


def answers(model, texts, count, ways=ANSWERING):
    """Rows of `count` tokens taken greedily after each of the texts, (1, N) token ids, by eager and by each way."""
    names = {use(way): way for way in ways}
    rows = []
    for ids in tqdm(texts, unit="text", disable=None):
        found = compare.compare(model, ids, count, names=(compare.REFERENCE, *names), progress=True)
        rows.append({"context": found.context, "form": compare.REFERENCE,
                     "ids": found.streams[compare.REFERENCE].tokens})
        rows += [{"context": found.context, **asdict(way), **_told(found.streams[name])} for name, way in names.items()]
    return rows


def _told(stream):
    """What a record keeps of one stream: its tokens, and how it first departs from the reference."""
    return {"same": stream.same, "compared": stream.compared, "largest_difference": stream.largest,
            "differences": [vars(x) for x in stream.differences], "ids": stream.tokens}
