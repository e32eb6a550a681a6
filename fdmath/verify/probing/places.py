"""Where things are: heads and queries in o and lse, the KV head that a query head reads, what causal=True hides."""

import math

import numpy as np

from fdmath.verify.probing.caller import LAYOUTS, D, choose, distance, numbers
from fdmath.verify.probing.contract import Trait
from fdmath.verify.subject import SubjectError

HEADS = {"interleaved": [1, 1, 1, 2, 2, 2], "tiled": [1, 2, 1, 2, 1, 2]}
ALIGNED = {"bottom_right": [3, 4, 5], "top_left": [1, 2, 3], "ignored": [5, 5, 5]}


def layout(caller):
    """Where o and lse of head h and query i are, with as many heads as queries, where it takes 4: shapes do not tell.

    lse of sequence s is 16 s + 4 h + i, above that of four equal keys; the values of head h are h + 1.
    """
    queries = caller.queries
    s, h, i = np.ogrid[:2, :4, :queries]
    level = 16.0 * s + 4 * h + i
    q, k = np.zeros((2, 4, queries, D)), np.zeros((2, 4, 4, D))
    q[..., 0], k[..., 0] = level, 1 / caller.scale
    v = np.broadcast_to(np.arange(1.0, 5)[:, None, None], k.shape)
    o, lse = caller.attend(q, k, v, plain=True)
    traits = [_layout_of_o(o, queries)]
    if lse is None:
        return traits
    for base in [caller.base] if caller.base else [math.e, 2]:
        right = (level + math.log(4)) / math.log(base)
        # one step of level is the least difference: half of it tells which is meant
        fitting = [name for name, at in LAYOUTS.items() if distance(at(lse, 2, 4, queries), right) <= 1 / 2]
        if fitting:
            value = _by_shape(fitting[0], lse, queries)
            return [*traits, Trait("lse_layout", value, _where(lse, fitting[0], value, queries))]
    return [*traits, Trait("lse_layout", None, f"lse, of shape {lse.shape}, begins {numbers(lse.ravel()[:4])}; heads "
                                               f"first it would begin {numbers(level.ravel()[:4] + math.log(4))}")]


def _by_shape(name, lse, queries):
    """The layout, with the shape of lse where it is not the one that goes with it (one query: the shape tells)."""
    if queries == 1 and lse.shape == (2, 1, 4):
        return "heads_last"
    expected = {"heads_first": (2, 4, queries), "heads_last": (2, queries, 4), "packed": (4, 2 * queries)}[name]
    return name if lse.shape == expected else f"{name}, of shape {lse.shape}"


def _where(lse, name, value, queries):
    at = LAYOUTS[name](lse, 2, 4, queries)
    same = f"{queries} heads and {queries} queries" if queries == 4 else "4 heads and one query"
    text = f"{same}: lse, of shape {lse.shape}, has {numbers(at[0, 1, -1:])} for head 1 and the last query"
    if value in ("heads_first", "heads_last"):
        return f"{text}, {value}"
    return f"{text}; fdmath verify takes (batch, heads, queries) or (batch, queries, heads) alone: reshape it so"


def _layout_of_o(o, queries):
    column = o[..., 0].reshape((2, 4, queries) if queries == 4 or o.shape[1] == 4 else (2, queries, 4))
    right = np.broadcast_to(np.arange(1.0, 5)[:, None], (4, queries))
    swapped = column.shape[1] != 4
    layouts = {"heads_first": right, "heads_last": np.ascontiguousarray(right.T)} if queries == 4 else {}
    name = choose(column[0], layouts) if layouts else "heads_last" if swapped else "heads_first"
    return Trait("o_layout", name, f"head h has values h + 1; o, of shape {o.shape}, begins {numbers(column[0, 0])}")


def heads(caller):
    """Which KV head each of six query heads reads of two, whose values are 1 and 2."""
    q, k = np.zeros((2, 6, 1 if caller.subject.role == "decode" else 4, D)), np.zeros((2, 2, 8, D))
    v, with_flag = np.broadcast_to(np.array([1.0, 2.0])[:, None, None], k.shape), ""
    try:
        o, _ = caller.attend(q, k, v)
    except SubjectError as error:
        with_flag = " (with enable_gqa=True)"
        try:
            o, _ = caller.given(enable_gqa=True).attend(q, k, v)
        except SubjectError:
            raise error from None
    read = o[0, :, 0, 0]
    return [Trait("heads", choose(read, HEADS), f"six query heads over KV heads of value 1 and 2 return "
                                                f"{numbers(read)}{with_flag}")]


def causal(caller):
    """Which keys three queries over five see with causal=True: key j has the value 1 in column j alone."""
    q, k = np.zeros((1, 2, 3, D)), np.zeros((1, 2, 5, D))
    v = np.broadcast_to(np.eye(5, D), k.shape)
    o, _ = caller.attend(q, k, v, causal=True)
    weights = o[0, 0, :, :5]
    right = {name: _first(counts) for name, counts in ALIGNED.items()}
    value = choose(weights, right)
    if value == "ignored" and "causal" not in caller.facts.get("call", "causal"):
        return [Trait("causal", None, f"{caller.facts['call']} is not told, and no other signature tried hides a key")]
    counts = [int(n) for n in (weights > 1 / 20).sum(axis=-1)]  # a key that is seen has the weight 1/5 at least
    return [Trait("causal", value, f"3 queries over 5 keys of equal score: with causal they see {counts} keys, the "
                                   f"first row's weights are {numbers(weights[0])}")]


def _first(counts):
    """Weights (3, 5) of rows that see the first keys, so many each."""
    sees = np.arange(5) < np.array(counts)[:, None]
    return sees / sees.sum(axis=-1, keepdims=True)
