"""Closed formulas against counts taken while the algorithms ran, and against the figures of the claims ledger."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from fdmath import flash_attention, flash_attention_backward
from fdmath.attention.flash1 import flash_attention_1
from fdmath.cost import flash
from fdmath.cost.counts import Counts
from fdmath.cost.flash import Grid
from fdmath.cost.hardware import A100, H200

DIM, WIDTH, HEADS = 3, 2, 8
SHAPES = [(8, 8, 2, 2), (7, 7, 2, 3), (5, 11, 3, 2), (11, 5, 2, 3), (11, 5, 4, 4), (1, 9, 2, 4), (6, 1, 4, 2),
          (0, 4, 2, 2), (4, 0, 2, 2), (13, 13, 16, 5), (12, 12, 3, 6), (9, 17, 1, 1)]  # fmt: skip
GRIDS = [Grid(*shape, causal=causal) for shape in SHAPES for causal in (False, True)]


def ran(grid, algorithm, **options):
    """The Counts of an algorithm run on the grid, for 2 sequences of 4 query heads over 2 KV heads."""
    rng = np.random.default_rng(1)
    shapes = ((2, 4, grid.queries, DIM), (2, 2, grid.keys, DIM), (2, 2, grid.keys, WIDTH))
    arrays = [rng.standard_normal(shape) for shape in shapes]
    options |= {"block_m": grid.block_m, "block_n": grid.block_n, "causal": grid.causal}
    counts = Counts()
    if algorithm is not flash_attention_backward:
        algorithm(*arrays, counts=counts, **options)
        return counts
    o, lse = flash_attention(*arrays, causal=grid.causal)
    algorithm(o, np.zeros_like(lse), *arrays, o, lse, counts=counts, **options)
    return counts


def times(counter, heads=HEADS):
    """The counter of all heads; none of a tensor of which nothing is moved."""
    return Counter({name: number * heads for name, number in counter.items()})


def ids(grid):
    """A grid as pytest shows it."""
    return f"{grid.queries}x{grid.keys} in {grid.block_m}x{grid.block_n}{' causal' * grid.causal}"


@pytest.mark.parametrize("grid", GRIDS, ids=ids)
def test_the_forward_does_what_the_formulas_say(grid):
    read, written = flash.forward_traffic(grid, DIM, WIDTH)
    assert ran(grid, flash_attention) == Counts(
        exponentials=HEADS * flash.forward_exponentials(grid),
        logarithms=HEADS * grid.queries,
        divisions=HEADS * flash.forward_divisions(grid, WIDTH),
        multiplications=HEADS * flash.forward_multiplications(grid, WIDTH),
        matmul_flop=HEADS * flash.forward_matmul_flop(grid, DIM, WIDTH),
        read=times(read), written=times(written), blocks=times(grid.blocks()),
    )  # fmt: skip


@pytest.mark.parametrize("divide", ["sum", "parts", "factors"])
@pytest.mark.parametrize("grid", GRIDS[:12], ids=ids)
def test_flash_attention_1_does_what_the_formulas_say(grid, divide):
    read, written = flash.flash1_traffic(grid, DIM, WIDTH)
    assert ran(grid, flash_attention_1, divide=divide) == Counts(
        exponentials=HEADS * flash.flash1_exponentials(grid),
        divisions=HEADS * flash.flash1_divisions(grid, WIDTH, divide),
        multiplications=HEADS * flash.flash1_multiplications(grid, WIDTH, divide),
        matmul_flop=HEADS * flash.forward_matmul_flop(grid, DIM, WIDTH),
        read=times(read), written=times(written), blocks=times(grid.blocks()),
    )  # fmt: skip


@pytest.mark.parametrize("by", ["columns", "rows"])
@pytest.mark.parametrize("grid", GRIDS, ids=ids)
def test_the_backward_does_what_the_formulas_say(grid, by):
    read, written, added = flash.backward_traffic(grid, DIM, WIDTH, by)
    assert ran(grid, flash_attention_backward, by=by) == Counts(
        exponentials=HEADS * flash.backward_exponentials(grid),
        multiplications=HEADS * flash.backward_multiplications(grid, WIDTH),
        matmul_flop=HEADS * flash.backward_matmul_flop(grid, DIM, WIDTH),
        read=times(read), written=times(written), added=times(added), blocks=times(grid.blocks()),
    )  # fmt: skip


@pytest.mark.parametrize("grid", GRIDS, ids=ids)
def test_every_block_is_of_the_kind_that_its_scores_have(grid):
    # Written out score by score: a query sees the keys up to its own, counted from the end.
    i, j = np.arange(grid.queries)[:, None], np.arange(grid.keys)[None, :]
    hides = grid.causal and grid.queries > 1
    seen = (j <= i + grid.keys - grid.queries) | (not hides)
    blocks = [seen[a:a + grid.block_m, b:b + grid.block_n] for a in range(0, grid.queries, grid.block_m)
              for b in range(0, grid.keys, grid.block_n)]  # fmt: skip
    kinds = Counter("full" if x.all() else "masked" if x.any() else "skipped" for x in blocks)
    assert grid.blocks() == kinds
    computed = [x for x in blocks if x.any()]
    assert grid.area == sum(x.size for x in computed) and grid.visits == len(computed)
    assert grid.row_visits == sum(len(x) for x in computed)
    assert grid.column_visits == sum(x.shape[1] for x in computed)


def test_the_counts_of_document_b_in_its_own_block():
    # B01 to B12: Br = Bc = 64, d = 128, one block of FlashAttention-1 against one of FlashAttention-2.
    grid = Grid(64, 64, 64, 64)
    assert flash.flash1_divisions(grid, 128, "parts") == 16384
    assert flash.flash1_divisions(grid, 128, "factors") == 128  # B02: divisions proper
    assert flash.flash1_divisions(grid, 128) == flash.forward_divisions(grid, 128) == 8192
    assert flash.forward_matmul_flop(grid, 128, 128) == 2_097_152  # B10
    assert Fraction(flash.elementwise_price(A100) * 16384, 2_097_152) == Fraction(1, 8)
    assert flash.elementwise_price(A100) == 16 and f"{float(flash.elementwise_price(H200)):.1f}" == "14.8"  # B11
    assert flash.forward_divisions(Grid(64, 64 * 100, 64, 64), 128) == 8192  # B07: whatever the blocks are


@pytest.mark.parametrize("blocks, skipped", [(4, "37.50"), (8, "43.75"), (64, "49.22")])
def test_the_share_of_blocks_that_a_causal_mask_skips(blocks, skipped):
    assert f"{float(100 * flash.skipped_share(blocks)):.2f}" == skipped  # B21
    grid = Grid(16 * blocks, 16 * blocks, 16, 16, causal=True)
    assert grid.blocks() == Counter(full=blocks * (blocks - 1) // 2, masked=blocks, skipped=blocks * (blocks - 1) // 2)
    assert flash.skipped_share(blocks) == Fraction(grid.blocks()["skipped"], grid.row_blocks * grid.column_blocks)
    assert flash.causal_speedup(blocks) == Fraction(grid.row_blocks * grid.column_blocks, grid.visits)


def test_what_skipping_gains_at_most():
    assert [f"{float(flash.causal_speedup(t)):.2f}" for t in (1, 6, 9, 64)] == ["1.00", "1.71", "1.80", "1.97"]  # B23
    halved = [flash.forward_traffic(Grid(96, 96, 16, 16, causal=c), 8, 8)[0]["k"] for c in (True, False)]
    assert Fraction(*halved) == Fraction(21, 36)  # B24


def test_the_order_of_the_loops():
    for blocks in (1, 2, 64):
        grid = Grid(16 * blocks, 16 * blocks, 16, 16)
        first, second = flash.flash1_traffic(grid, 8, 8), flash.forward_traffic(grid, 8, 8)
        moved = [sum(side[name] for side in sides for name in "qkvo") for sides in (first, second)]
        assert Fraction(*moved) == flash.loop_order_ratio(blocks)  # B34
        assert second[0]["k"] == second[0]["v"] == blocks * first[0]["k"]  # B30
        assert first[0]["o"] == first[1]["o"] == blocks * second[1]["o"] and not second[0]["o"]  # B31
    assert f"{float(flash.loop_order_ratio(64)):.2f}" == "1.49"


def test_the_backward_does_five_products_and_columns_add_half_as_much():
    grid = Grid(64, 64, 16, 16)
    assert flash.backward_matmul_flop(grid, 8, 8) == Fraction(5, 2) * flash.forward_matmul_flop(grid, 8, 8)  # B65
    added = [sum(flash.backward_traffic(grid, 8, 8, by)[2].values()) for by in ("columns", "rows")]
    assert added[1] == 2 * added[0]  # B40


def test_bad_input_is_named():
    with pytest.raises(ValueError, match="block_m must be at least 1; got 0"):
        Grid(4, 4, 0, 2)
    with pytest.raises(ValueError, match="queries must be at least 0; got -1"):
        Grid(-1, 4)
    with pytest.raises(ValueError, match='by must be "columns" or "rows"; got \'warps\''):
        flash.backward_traffic(Grid(4, 4), 2, 2, by="warps")
    for law in (flash.flash1_divisions, flash.flash1_multiplications):
        with pytest.raises(ValueError, match='divide must be "sum", "parts" or "factors"; got \'all\''):
            law(Grid(4, 4), 2, "all")
    for law in (flash.loop_order_ratio, flash.skipped_share, flash.causal_speedup):
        with pytest.raises(ValueError, match="blocks must be at least 1; got 0"):
            law(0)
