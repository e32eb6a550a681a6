"""Document B, the backward: its three sums, who adds what where, and heads that share K and V."""

import numpy as np

import fdmath
from fdmath.algebra.rounding import format_of
from fdmath.attention.flash import flash_attention, flash_attention_backward
from fdmath.attention.gradient_budget import gradient_budget
from fdmath.attention.reference import attention_gradient, prepare
from fdmath.attention.tiles import Tiles
from fdmath.bench import backward
from fdmath.bench.adding import load_add_store, sampled_orders, spread, sum_bound, sums_in_orders
from fdmath.bench.atomics import interleavings, tally
from fdmath.claims.claim import Observed, check
from fdmath.claims.judged import chain_bound
from fdmath.cost.counts import Counts
from fdmath.cost.flash import Grid, backward_traffic
from fdmath.verify.certified_gradient import certified_gradient

ORDERS_OF_ADDITION = 2000
"""How many orders of 64 terms are tried."""


def small_case(seed, queries=5, keys=7, dim=3):
    """(q, k, v, o, do, lse, gradients, budget) of random numbers, two axes, float64, scores unscaled.

    gradients: (dq, dk, dv) by definition; budget: bounds on the distance of two computations from such an o and lse.
    """
    rng = np.random.default_rng(seed)
    q, k, v = (rng.standard_normal((n, dim)) for n in (queries, keys, keys))
    do = rng.standard_normal((queries, dim))
    o, lse = fdmath.attention(q, k, v, scale=1.0)
    of_o, of_lse = chain_bound(q, k, v, block_n=keys, scale=1.0)
    budget = gradient_budget(do, None, q, k, v, of_o=of_o, of_lse=of_lse, scale=1.0)
    return q, k, v, o, do, lse, attention_gradient(do, None, q, k, v, scale=1.0), [2 * bound for bound in budget]


def near_definition(got, right, budget):
    """Whether every gradient lies within its budget of the right one; NaN never does."""
    return all(bool(np.all(np.abs(g - r) <= b)) for g, r, b in zip(got, right, budget, strict=True))


@check("B36")
def three_sums():
    """The sums over blocks: certified entry by entry on a small call, within their bounds on larger ones."""
    rng = np.random.default_rng(36)
    q, k, v, do = (rng.standard_normal(shape) for shape in ((2, 2), (3, 2), (3, 1), (2, 1)))
    exact, budget = certified_gradient(do, np.zeros(2), q, k, v), _bound(do, q, k, v)
    inside, ratios = [exact.verdict(_backward(do, q, k, v), budget) == "pass"], []
    for causal in (False, True):
        for by in ("columns", "rows"):
            ratios += [r.ratio for r in backward.measure(backward.case(48, causal=causal), 16, 8, by).values()]
    return Observed(inside=inside + [ratio <= 1 for ratio in ratios],
                    figure=f"worst error/bound of dQ, dK, dV in float32, 48 keys: {max(ratios):.2g}")


def counted_backward(queries, keys, dim, block, by="columns"):
    """The Counts of one backward on ones, in square blocks."""
    q, (k, v) = np.ones((queries, dim)), np.ones((2, keys, dim))
    o, lse = flash_attention(q, k, v)
    counts = Counts()
    flash_attention_backward(q, None, q, k, v, o, lse, block_m=block, block_n=block, by=by, counts=counts)
    return counts


@check("B37")
def columns_keep_their_gradients():
    """What is written, read back and added in HBM by a worker for each block of keys: dK and dV once, never added."""
    inside = []
    for queries, keys in ((8, 8), (5, 11), (11, 5)):
        counts = counted_backward(queries, keys, 3, 4)
        inside += [counts.written["dk"] == counts.written["dv"] == keys * 3, set(counts.added) == {"dq"},
                   not {"dk", "dv"} & set(counts.read)]
    return Observed(inside=inside, figure="dK and dV: N·d numbers written, none read or added; added: dQ alone")


@check("B39")
def loads_and_stores_lose():
    """Every order in which two blocks can load, add and store 1 and 2 to a cell of 0; right is 3 in all of them.

    Beside it what one indivisible addition leaves open: the order of 64 float32 terms.
    """
    found = tally(lambda order: load_add_store((1, 2), order), interleavings((2, 2)))
    terms = np.random.default_rng(39).standard_normal(64).astype(np.float32)
    sums = sums_in_orders(terms, sampled_orders(64, ORDERS_OF_ADDITION))
    size = format_of("float32").u * np.sum(np.abs(terms), dtype=np.float64)
    bounded = bool(spread(sums) <= 2 * sum_bound(terms))
    return Observed(inside=[value == 3 for value, count in found.items() for _ in range(count)],
                    figure=f"result: orders out of 6, {dict(sorted(found.items()))}; with one atomic addition each, 64 "
                           f"terms in {ORDERS_OF_ADDITION} orders give {len(np.unique(sums))} sums, "
                           f"{spread(sums) / size:.1f} u·Σ|x| apart, {'within' if bounded else 'beyond'} the bound",
                    counterexample="both blocks load 0, then store 1 and 2: one amount is lost, "
                                   f"{load_add_store((1, 2), (0, 1, 0, 1))} in place of 3")


@check("B38")
def dq_is_added_up():
    """What is added in HBM, counted: dQ, T_c·N_q·d numbers in all, once for each block of keys, and nothing else."""
    inside, sizes = [], ((8, 8, 4), (5, 11, 4), (6, 6, 2))
    for queries, keys, block in sizes:
        added = counted_backward(queries, keys, 3, block).added
        inside.append(dict(added) == {"dq": -(-keys // block) * queries * 3})
    return Observed(inside=inside, figure=f"{len(sizes)} shapes counted: T_c·N_q·d additions, all of them to dQ")


@check("B40")
def rows_would_add_twice_as_much():
    """Numbers added in HBM by workers for rows and for columns, counted and by the law."""
    inside = [counted_backward(n, n, 3, b, "rows").added.total() == 2 * counted_backward(n, n, 3, b).added.total()
              for n, b in ((8, 4), (12, 3))]
    rows, columns = (backward_traffic(Grid(4096, 4096), 128, 128, by)[2] for by in ("rows", "columns"))
    inside += [set(rows) == {"dk", "dv"}, rows.total() == 2 * columns.total()]
    return Observed(inside=inside, figure=f"4096 keys, d = 128, blocks of 128: {rows.total()} by rows, "
                                          f"{columns.total()} by columns")


@check("B42")
def heads_are_indexed():
    """Grouped calls against calls with KV heads repeated as h // g says, bit for bit; and K is not copied for it."""
    inside, rng = [], np.random.default_rng(42)
    for q_heads, kv_heads in ((4, 2), (6, 2), (3, 1), (4, 4)):
        q = rng.standard_normal((q_heads, 3, 4))
        k, v = rng.standard_normal((2, kv_heads, 5, 4))
        o, lse = flash_attention(q, k, v, block_m=2, block_n=2)
        whose = np.arange(q_heads) // (q_heads // kv_heads)
        full = flash_attention(q, k[whose], v[whose], block_m=2, block_n=2)
        inside += [np.array_equal(o, full.o) and np.array_equal(lse, full.lse),
                   np.shares_memory(Tiles(prepare(q, k, v), 2, 2).k, k)]
    values = np.arange(2.0).reshape(2, 1, 1)
    ours = flash_attention(np.zeros((4, 1, 1)), np.zeros((2, 1, 1)), values).o[:, 0, 0]
    other = values[np.arange(4) % 2, 0, 0]
    return Observed(inside=inside, figure=f"4 heads over KV heads of values 0 and 1: {ours.tolist()}; h mod H_kv would "
                                          f"give {other.tolist()} and no error")


@check("B43")
def a_group_adds_up():
    """dK and dV of a group against the sums of those of its heads with K and V repeated, within both budgets."""
    inside, rng = [], np.random.default_rng(43)
    for q_heads, kv_heads in ((4, 2), (3, 1)):
        group = q_heads // kv_heads
        q, do = rng.standard_normal((2, q_heads, 3, 2))
        k, v = rng.standard_normal((2, kv_heads, 5, 2))
        repeated = [np.repeat(x, group, axis=0) for x in (k, v)]
        grouped, (dq, dk, dv) = (_backward(do, q, *kv) for kv in ((k, v), repeated))
        sums = dq, *(x.reshape(kv_heads, group, 5, 2).sum(axis=1) for x in (dk, dv))
        inside.append(near_definition(grouped, sums, [2 * b for b in _bound(do, q, k, v)]))
    heads = np.arange(1.0, 5).reshape(4, 1, 1)
    dv = _backward(heads, np.zeros((4, 1, 1)), np.zeros((2, 1, 1)), np.zeros((2, 1, 1)))[2][:, 0, 0]
    return Observed(inside=inside, figure=f"dO = 1, 2, 3, 4 of four heads over two KV heads of one key: dV = "
                                          f"{dv.tolist()}")


BLOCKS = {"block_m": 2, "block_n": 2}


def _backward(do, q, k, v):
    """(dq, dk, dv) in BLOCKS, from the o and lse of such a forward."""
    return flash_attention_backward(do, None, q, k, v, *flash_attention(q, k, v, **BLOCKS), **BLOCKS)


def _bound(do, q, k, v):
    """The GradientBudget of `_backward`."""
    group = len(q) // len(k) if q.ndim > 2 else 1
    heads = [np.repeat(x, group, axis=0) if group > 1 else x for x in (k, v)]
    of_o, of_lse = chain_bound(q, *heads, block_n=BLOCKS["block_n"])
    return gradient_budget(do, None, q, k, v, of_o=of_o, of_lse=of_lse)


__all__ = ["counted_backward", "near_definition", "small_case"]
