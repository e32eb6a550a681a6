"""Enclosures of attention, blocks and merges, against mpmath and against exact rationals."""

import math
from fractions import Fraction

import ml_dtypes
import mpmath
import numpy as np
import pytest
from flint import ctx
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from fdmath.oracle import (
    certified_attention,
    certified_block,
    certified_merge,
    certified_merge_acc,
    certified_merge_mlo,
)

RNG_SEED = 20240229


def normal(*shape, seed=RNG_SEED, dtype=np.float32):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def row_levels(q, k, scale):
    """The exact scores of one query, as mpmath numbers."""
    with mpmath.workprec(600):
        return [mpmath.mpf(scale) * mpmath.fdot(q.tolist(), key) for key in k.tolist()]


def check_row(second_opinion, enclosure, index, levels, values, mass=None):
    """The balls of one row hold what mpmath says, and are narrow."""
    o, lse, scale = second_opinion.attend(levels, values, mass)
    assert all(map(second_opinion.holds, enclosure.o_ball[index], o, scale))
    assert second_opinion.holds(enclosure.lse_ball[index], lse, 1)
    with mpmath.workprec(600):
        # An upper bound, and no looser than its rounding to fp64 (normal or subnormal).
        above = [mpmath.mpf(float(bound)) - exact for bound, exact in zip(enclosure.scale_o[index], scale, strict=True)]
        ulps = [mpmath.mpf(math.ulp(float(bound))) for bound in enclosure.scale_o[index]]
        assert all(gap + exact / 2**70 >= 0 for gap, exact in zip(above, scale, strict=True))
        assert all(gap <= 2 * ulp for gap, ulp in zip(above, ulps, strict=True))


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, ml_dtypes.bfloat16])
@pytest.mark.parametrize("level", [0.0, 100.0, 1e7])
def test_attention_agrees_with_mpmath(second_opinion, dtype, level):
    q, k, v = normal(3, 4, seed=1, dtype=dtype), normal(9, 4, seed=2, dtype=dtype), normal(9, 5, seed=3, dtype=dtype)
    scale = 0.5 + level
    enclosure = certified_attention(q, k, v, scale=scale)
    for row in range(3):
        levels = row_levels(q[row].astype(np.float64), k.astype(np.float64), scale)
        check_row(second_opinion, enclosure, row, levels, v.astype(np.float64).tolist())


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_blocks_agree_with_mpmath_over_the_whole_range(second_opinion, data):
    levels = st.one_of(st.floats(-1e7, 1e7), st.sampled_from([0.0, 1e7, -1e7, 5e-324]))  # 5e-324: inputs, no tolerance
    scores = data.draw(hnp.arrays(np.float64, (1, data.draw(st.integers(1, 6))), elements=levels))
    # Half the largest double leaves Σ p|v| its rounding upwards.
    v = data.draw(hnp.arrays(np.float64, (scores.shape[1], 2), elements=st.floats(-8e307, 8e307)))
    check_row(second_opinion, certified_block(scores, v), 0, scores[0].tolist(), v.tolist())


def test_values_of_every_size_in_one_row(second_opinion):
    v = np.array([[1e30, 1e30], [5e-324, -1e30], [-1e30, 2.0], [3e-310, 1e300], [1.0, -1e-300]])  # inputs
    q = np.array([[1e150, 1.0]])
    k = np.array([[1e-150, 0.5], [1e-160, 1e-320], [0.0, -3.0], [2e-150, 1e6], [0.0, 0.0]])  # inputs
    enclosure = certified_attention(q, k, v, scale=1.0)
    check_row(second_opinion, enclosure, 0, row_levels(q[0], k, 1.0), v.tolist())


def test_scores_that_cancel_are_still_certain(second_opinion):
    # q·k is 1e300 - 1e300 + 1: the working precision follows the terms, not the score.
    q, k = np.array([[1e150, 1e150, 1.0]]), np.array([[1e150, -1e150, 1.0], [0.0, 0.0, 0.5]])
    enclosure = certified_attention(q, k, np.array([[1.0], [2.0]]), scale=1.0)
    check_row(second_opinion, enclosure, 0, [1.0, 0.5], [[1.0], [2.0]])


def test_precision_follows_the_scale(second_opinion):
    q, k, v = (normal(*shape, seed=5, dtype=np.float64) for shape in ((1, 3), (4, 3), (4, 2)))
    levels = row_levels(q[0], k, 2.0**100)
    check_row(second_opinion, certified_attention(q, k, v, scale=2.0**100), 0, levels, v.tolist())


def test_precision_follows_the_levels_of_a_block(second_opinion):
    scores, v = [[2.0**40 / 3, 2.0**40 / 3 + 1]], [[1.0], [2.0]]
    check_row(second_opinion, certified_block(scores, v), 0, scores[0], v)


def test_default_scale_is_the_double_one_over_root_d(second_opinion):
    q, k, v = normal(1, 3, seed=4), normal(5, 3, seed=5), normal(5, 2, seed=6)
    levels = row_levels(q[0].astype(np.float64), k.astype(np.float64), 1.0 / math.sqrt(3))
    check_row(second_opinion, certified_attention(q, k, v), 0, levels, v.tolist())


def test_uniform_weights_give_the_exact_mean(second_opinion):
    v = normal(4, 6, dtype=np.float64)
    balls = certified_attention(np.zeros((1, 2)), normal(4, 2), v).o_ball[0]
    means = [sum(map(Fraction, column)) / 4 for column in v.T.tolist()]  # of 4 keys: a dyadic rational
    assert [second_opinion.fraction(ball) for ball in balls] == means


def test_uniform_weights_of_three_keys_lie_in_the_interval():
    v = normal(3, 6, dtype=np.float64)
    enclosure = certified_attention(np.zeros((1, 2)), normal(3, 2), v)
    for middle, radius, column in zip(enclosure.o_mid[0], enclosure.o_rad[0], v.T.tolist(), strict=True):
        assert abs(Fraction(middle) - sum(map(Fraction, column)) / 3) <= Fraction(radius)


def test_base_two_example_is_exact_in_both_triples(second_opinion):
    # Base-2 scores 0, 0, 1, 2 and values 2, 6, 0, 3 in tiles of two: (Z, Y) = (2, 8) + (6, 12).
    from_acc = certified_merge_acc([0.0, 0.0], [2.0, 6.0], [[8.0], [12.0]])
    from_mlo = certified_merge_mlo([0.0, 0.0], [2.0, 6.0], [[4.0], [2.0]])
    assert second_opinion.fraction(from_acc.o_ball[0]) == second_opinion.fraction(from_mlo.o_ball[0]) == Fraction(5, 2)
    with mpmath.workprec(600):
        assert second_opinion.holds(from_acc.lse_ball[()], mpmath.log(8), 1)
    assert from_acc.o_mid[0] == 2.5 and from_acc.o_rad[0] == 0.0


def test_query_heads_read_their_own_group():
    q, k, v = normal(2, 6, 3, 4, seed=7), normal(2, 2, 5, 4, seed=8), normal(2, 2, 5, 3, seed=9)
    together = certified_attention(q, k, v)
    assert together.o_mid.shape == (2, 6, 3, 3) and together.lse_mid.shape == (2, 6, 3)
    for batch, head in np.ndindex(2, 6):
        alone = certified_attention(q[batch, head], k[batch, head // 3], v[batch, head // 3])
        assert alone.contains((together.o_mid[batch, head], together.lse_mid[batch, head]))


@pytest.mark.parametrize(("rows", "keys"), [(3, 5), (4, 4), (5, 3)])
def test_causal_is_bottom_right(rows, keys):
    q, k, v = normal(rows, 4, seed=10), normal(keys, 4, seed=11), normal(keys, 2, seed=12)
    causal = certified_attention(q, k, v, causal=True)
    for row in range(rows):
        visible = max(0, keys - (rows - 1 - row))  # the last query sees all keys, each earlier one sees one fewer
        alone = certified_attention(q[row : row + 1], k[:visible], v[:visible])
        assert causal.rows_empty[row] == (visible == 0)
        assert alone.contains((causal.o_mid[row : row + 1], causal.lse_mid[row : row + 1]))


@pytest.mark.parametrize("head_axis", [False, True])
def test_a_mask_selects_keys(head_axis):
    q, k, v = normal(2, 4, seed=13), normal(6, 4, seed=14), normal(6, 2, seed=15)
    mask = np.array([[True, False, True, True, False, False], [False, False, False, True, False, True]])
    masked = certified_attention(q, k, v, mask=mask[None] if head_axis else mask)
    for row in range(2):
        alone = certified_attention(q[row : row + 1], k[mask[row]], v[mask[row]])
        assert alone.contains((masked.o_mid[row : row + 1], masked.lse_mid[row : row + 1]))


def test_mask_and_causal_both_hide():
    q, k, v = normal(2, 4, seed=13), normal(2, 4, seed=14), normal(2, 2, seed=15)
    both = certified_attention(q, k, v, causal=True, mask=np.array([False, True]))
    assert both.rows_empty.tolist() == [True, False]
    assert certified_attention(q[1:], k[1:], v[1:]).contains((both.o_mid[1:], both.lse_mid[1:]))


def same(a, b):
    """Whether two enclosures are equal number by number."""
    names = ("o_mid", "o_rad", "lse_mid", "lse_rad", "scale_o", "rows_empty")
    return all(np.array_equal(getattr(a, name), getattr(b, name)) for name in names)


@pytest.mark.parametrize("poison", [np.nan, np.inf, -np.inf])
def test_what_is_not_seen_is_not_read(poison):
    q, k, v = normal(2, 4, seed=16), normal(5, 4, seed=17), normal(5, 3, seed=18)
    mask = np.array([[True, True, False, True, False], [False, False, False, False, False]])
    clean = certified_attention(q, k, v, mask=mask)
    for array, place in ((k, 2), (v, 4), (q, 1)):
        array[place] = poison
    assert same(certified_attention(q, k, v, mask=mask), clean)
    scores, payload = np.array([[0.5, -np.inf, poison]]), np.array([[1.0], [poison], [poison]])
    visible = np.array([True, True, False])
    assert same(certified_block(scores, payload, visible=visible), certified_block([[0.5]], [[1.0]]))


@pytest.mark.parametrize("poison", [np.nan, np.inf])
def test_an_empty_part_contributes_nothing(poison):
    o, lse = normal(2, 3, 4, dtype=np.float64), normal(2, 3, seed=19, dtype=np.float64)
    harmless, poisoned = (np.concatenate([o, np.full((1, 3, 4), payload)]) for payload in (0.0, poison))
    nowhere, masses = (np.concatenate([x, np.full((1, 3), gone)]) for x, gone in ((lse, -np.inf), (np.exp(lse), 0.0)))
    level_zero = np.concatenate([lse, np.zeros((1, 3))])
    for without, merge in (
        (certified_merge(o, lse), lambda payload: certified_merge(payload, nowhere)),
        (certified_merge_mlo(lse, np.exp(lse), o), lambda payload: certified_merge_mlo(nowhere, masses, payload)),
        (certified_merge_mlo(lse, np.exp(lse), o), lambda payload: certified_merge_mlo(level_zero, masses, payload)),
        (certified_merge_acc(lse, np.exp(lse), o), lambda payload: certified_merge_acc(nowhere, masses, payload)),
        (certified_merge_acc(lse, np.exp(lse), o), lambda payload: certified_merge_acc(level_zero, masses, payload)),
    ):
        padded = merge(poisoned)
        assert same(padded, merge(harmless))
        assert without.contains((padded.o_mid, padded.lse_mid))


@pytest.mark.parametrize(
    "call",
    [
        lambda: certified_attention(np.zeros((2, 3)), np.zeros((0, 3)), np.zeros((0, 4))),
        lambda: certified_attention(np.zeros((2, 3)), np.ones((1, 3)), np.ones((1, 4)), mask=np.zeros(1, dtype=bool)),
        lambda: certified_block(np.full((2, 3), -np.inf), np.full((3, 4), np.nan)),
        lambda: certified_merge(np.full((3, 2, 4), np.nan), np.full((3, 2), -np.inf)),
        lambda: certified_merge(np.zeros((0, 2, 4)), np.zeros((0, 2))),
        lambda: certified_merge_mlo(np.full((3, 2), -np.inf), np.zeros((3, 2)), np.full((3, 2, 4), np.nan)),
        lambda: certified_merge_acc(np.zeros((3, 2)), np.zeros((3, 2)), np.full((3, 2, 4), np.nan)),
    ],
)
def test_no_visible_key_is_the_identity_exactly(call):
    enclosure = call()
    assert enclosure.rows_empty.all() and enclosure.rows_empty.shape == (2,)
    assert np.array_equal(enclosure.o_mid, np.zeros((2, 4))) and np.array_equal(enclosure.lse_mid, [-np.inf] * 2)
    assert not enclosure.o_rad.any() and not enclosure.lse_rad.any() and not enclosure.scale_o.any()


def test_merges_agree_with_mpmath(second_opinion):
    m, l, o = normal(4, 3, dtype=np.float64) * 50, np.exp(normal(4, 3, seed=20, dtype=np.float64)), normal(4, 3, 2)
    pair, mlo, acc = certified_merge(o, m), certified_merge_mlo(m, l, o), certified_merge_acc(m, l, o)
    for row in range(3):
        values, mass = o[:, row].tolist(), l[:, row].tolist()
        check_row(second_opinion, pair, row, m[:, row].tolist(), values)
        check_row(second_opinion, mlo, row, m[:, row].tolist(), values, mass)
        divided = [[Fraction(x) / Fraction(part) for x in value] for value, part in zip(values, mass, strict=True)]
        check_row(second_opinion, acc, row, m[:, row].tolist(), divided, mass)


def test_two_merged_tiles_are_the_whole(second_opinion):
    scores, v = normal(1, 7, dtype=np.float64) * 9, normal(7, 2, dtype=np.float64)
    tiles = [second_opinion.attend(scores[0, part].tolist(), v[part].tolist()) for part in (slice(3), slice(3, 7))]
    with mpmath.workprec(600):
        merged = second_opinion.attend([tile[1] for tile in tiles], [tile[0] for tile in tiles])
    whole = certified_block(scores, v)
    assert all(map(second_opinion.holds, whole.o_ball[0], merged[0], merged[2]))
    assert second_opinion.holds(whole.lse_ball[0], merged[1], 1)


def test_a_long_row_is_the_sum_of_its_chunks():
    # 3000 keys pass through three matrices; four equal quarters must give the mean of one.
    q, k, v = normal(1, 2, seed=21), normal(750, 2, seed=22), normal(750, 2, seed=23)
    long, short = certified_attention(q, np.tile(k, (4, 1)), np.tile(v, (4, 1))), certified_attention(q, k, v)
    assert all(a.overlaps(b) for a, b in zip(long.o_ball.ravel(), short.o_ball.ravel(), strict=True))
    with ctx.workprec(long.precision):
        assert (long.lse_ball[0] - short.lse_ball[0]).exp().overlaps(long.lse_ball[0] * 0 + 4)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64"])
def test_torch_tensors_come_in_exactly(dtype):
    torch = pytest.importorskip("torch")
    arrays = (normal(*shape, seed=24, dtype=np.float64) for shape in ((2, 4), (5, 4), (5, 3)))
    q, k, v = (torch.from_numpy(x).to(getattr(torch, dtype)) for x in arrays)
    expected = certified_attention(*(x.double().numpy() for x in (q, k, v)), causal=True)
    q.requires_grad_()
    assert same(certified_attention(q, k, v, mask=torch.ones(2, 5, dtype=torch.bool).tril(3)), expected)


def test_the_working_precision_of_the_process_is_restored():
    before = ctx.prec
    certified_attention(normal(1, 2), normal(3, 2), normal(3, 2)).errors((np.zeros((1, 2)), np.zeros(1)))
    assert ctx.prec == before


X, SCORES = np.ones((2, 3)), np.zeros((1, 2))


@pytest.mark.parametrize(
    ("error", "name", "call"),
    [
        (ValueError, "k", lambda: certified_attention(X, np.ones((2, 4)), X)),
        (ValueError, "v", lambda: certified_attention(X, X, np.ones((3, 3)))),
        (ValueError, "q, k, v", lambda: certified_attention(X[None], X, X)),
        (ValueError, "k", lambda: certified_attention(np.ones((2, 1, 2, 3)), X[None, None], X[None, None])),
        (ValueError, "q", lambda: certified_attention(np.ones((3, 2, 3)), np.ones((2, 2, 3)), np.ones((2, 2, 3)))),
        (ValueError, "mask", lambda: certified_attention(X, X, X, mask=np.ones(3, dtype=bool))),
        (TypeError, "mask", lambda: certified_attention(X, X, X, mask=np.ones(2))),
        (TypeError, "q", lambda: certified_attention(X.astype(int), X, X)),
        (TypeError, "v", lambda: certified_attention(X, X, X.astype(complex))),
        (ValueError, "scale", lambda: certified_attention(X, X, X, scale=np.inf)),
        (ValueError, "q", lambda: certified_attention(X * np.nan, X, X)),
        (ValueError, "k", lambda: certified_attention(X, X * np.inf, X)),
        (ValueError, "v", lambda: certified_attention(X, X, X * np.nan)),
        (ValueError, "scores", lambda: certified_block([[np.nan, 0.0]], X)),
        (ValueError, "scores", lambda: certified_block([[np.inf, 0.0]], X)),
        (ValueError, "v", lambda: certified_block(SCORES, X * np.nan)),
        (ValueError, "v", lambda: certified_block(SCORES, np.ones((3, 3)))),
        (ValueError, "lses", lambda: certified_merge(X, [0.0, np.inf])),
        (ValueError, "lses", lambda: certified_merge(X, [0.0, np.nan])),
        (ValueError, "os", lambda: certified_merge(X * np.nan, [0.0, 0.0])),
        (ValueError, "os", lambda: certified_merge(X, [0.0, 0.0, 0.0])),
        (ValueError, "ls", lambda: certified_merge_mlo([0.0, 0.0], [1.0], X)),
        (ValueError, "ls", lambda: certified_merge_mlo([0.0, 0.0], [1.0, -1.0], X)),
        (ValueError, "ls", lambda: certified_merge_acc([0.0, 0.0], [1.0, np.nan], X)),
        (ValueError, "os", lambda: certified_merge_mlo([0.0, 0.0], [1.0, 1.0], X * np.inf)),
        (ValueError, "accs", lambda: certified_merge_acc([0.0, 0.0], [1.0, 1.0], X * np.inf)),
    ],
)  # fmt: skip
def test_bad_input_is_named(error, name, call):
    with pytest.raises(error, match=f"^{name}: expected .* got "):
        call()
