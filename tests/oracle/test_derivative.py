"""Directional derivatives against the closed form and against a difference quotient, both in mpmath."""

import mpmath
import numpy as np
import pytest

from fdmath.oracle import certified_attention_jvp, certified_merge_jvp


def normal(*shape, seed):
    return np.random.default_rng(seed).standard_normal(shape)


def inputs(rows=3, keys=5, d=4, dv=2):
    """The six arrays q, k, v, dq, dk, dv of one head."""
    shapes = ((rows, d), (keys, d), (keys, dv))
    return [normal(*shape, seed=seed) for seed, shape in enumerate(shapes + shapes)]


def check_row(second_opinion, enclosure, row, levels, values, slopes, value_slopes):
    do, dlse = second_opinion.direction(levels, values, slopes, value_slopes)
    scale = [float(bound) for bound in enclosure.scale_o[row]]
    assert all(map(second_opinion.holds, enclosure.o_ball[row], do, scale))
    assert second_opinion.holds(enclosure.lse_ball[row], dlse, max(abs(slope) for slope in slopes))


@pytest.mark.parametrize("scale", [0.5, 1e6])
@pytest.mark.parametrize("still", [(), (3, 4), (4, 5), (3, 5)])
def test_attention_follows_the_closed_form(second_opinion, scale, still):
    arrays = inputs()
    for place in still:  # directions that stay at zero: each of dq, dk, dv is also seen alone
        arrays[place][:] = 0.0
    q, k, v, dq, dk, dv = arrays
    enclosure = certified_attention_jvp(q, k, v, dq, dk, dv, scale=scale)
    with mpmath.workprec(600):
        for row in range(3):
            levels = [scale * mpmath.fdot(q[row].tolist(), key) for key in k.tolist()]
            slopes = [
                scale * (mpmath.fdot(dq[row].tolist(), key) + mpmath.fdot(q[row].tolist(), moved))
                for key, moved in zip(k.tolist(), dk.tolist(), strict=True)
            ]
            slopes = [slope + mpmath.mpf(0) for slope in slopes]
            check_row(second_opinion, enclosure, row, levels, v.tolist(), slopes, dv.tolist())


def test_the_merge_follows_the_closed_form(second_opinion):
    os, lses, dos, dlses = (
        normal(4, 3, 2, seed=1),
        30 * normal(4, 3, seed=2),
        normal(4, 3, 2, seed=3),
        normal(4, 3, seed=4),
    )
    enclosure = certified_merge_jvp(os, lses, dos, dlses)
    for row in range(3):
        columns = (lses[:, row], os[:, row], dlses[:, row], dos[:, row])
        check_row(second_opinion, enclosure, row, *(column.tolist() for column in columns))


def test_levels_that_cancel_are_still_certain(second_opinion):
    # q·k is 2**500 - 2**500 + 1 and 1/2; the slopes, from dk alone, are 3 and 4.
    q, k = np.array([[2.0**250, 2.0**250, 1.0]]), np.array([[2.0**250, -(2.0**250), 1.0], [0.0, 0.0, 0.5]])
    v, still, dk = np.array([[1.0], [2.0]]), np.zeros((2, 1)), np.array([[0.0, 0.0, 3.0], [0.0, 0.0, 4.0]])
    enclosure = certified_attention_jvp(q, k, v, np.zeros((1, 3)), dk, still, scale=1.0)
    check_row(second_opinion, enclosure, 0, [1.0, 0.5], v.tolist(), [3.0, 4.0], still.tolist())


@pytest.mark.parametrize("moving", ["dq", "dk"])
def test_slopes_that_cancel_are_still_certain(second_opinion, moving):
    # The slopes are 2**500 - 2**500 + 3 and 6; the levels are 0.
    v, still = np.array([[1.0], [2.0]]), np.zeros((2, 1))
    row, keys = np.array([[1.0, 1.0, 3.0]]), np.array([[1.0, -1.0, 1.0], [0.0, 0.0, 2.0]])
    large = np.array([2.0**500, 2.0**500, 1.0])
    if moving == "dq":
        enclosure = certified_attention_jvp(row * 0, keys, v, row * large, keys * 0, still, scale=1.0)
    else:
        enclosure = certified_attention_jvp(row, keys * 0, v, row * 0, keys * large, still, scale=1.0)
    check_row(second_opinion, enclosure, 0, [0.0, 0.0], v.tolist(), [3.0, 6.0], still.tolist())


def test_precision_follows_the_levels_of_a_merge(second_opinion):
    # The difference of the levels needs 130 bits, and all of do is the weight of the far part.
    lses, os, dlses = [2.0**-40 / 3, -(2.0**40) / 3], [[0.0], [1.0]], [0.0, 1.0]
    enclosure = certified_merge_jvp(os, lses, np.zeros((2, 1)), dlses)
    (do,), _ = second_opinion.direction(lses, os, dlses, [[0.0], [0.0]])
    assert second_opinion.holds(enclosure.o_ball[0], do, do)


def test_scale_bounds_the_terms_of_the_derivative():
    # Two keys of weight 1/2, v = ±2, ds = 3 and -5, dv = 7 and -9: o = 0, so the scale is
    # (3·2 + 5·2)/2 + (7 + 9)/2 = 16, do = (3·2 + 5·2)/2 + (7 - 9)/2 = 7 and dlse = (3 - 5)/2 = -1.
    enclosure = certified_merge_jvp([[2.0], [-2.0]], [0.0, 0.0], [[7.0], [-9.0]], [3.0, -5.0])
    assert enclosure.scale_o.tolist() == [16.0]
    assert enclosure.o_mid.tolist() == [7.0] and enclosure.lse_mid == -1.0
    # Two keys of value 2: o = 2 joins |v| in the scale, (3 + 5)/2 · (2 + 2) = 16, and cancels in do = 0.
    enclosure = certified_merge_jvp([[2.0], [2.0]], [0.0, 0.0], [[0.0], [0.0]], [3.0, 5.0])
    assert enclosure.scale_o.tolist() == [16.0] and enclosure.o_mid.tolist() == [0.0]


def test_attention_follows_its_difference_quotient(second_opinion):
    q, k, v, dq, dk, dv = inputs(rows=1)
    enclosure = certified_attention_jvp(q, k, v, dq, dk, dv, scale=0.5)
    with mpmath.workprec(600):
        step = mpmath.mpf(2) ** -150

        def moved(x, dx, t):
            return [
                [a + t * b for a, b in zip(*rows, strict=True)] for rows in zip(x.tolist(), dx.tolist(), strict=True)
            ]

        def attention(t):
            (row,), keys, values = (moved(x, dx, t) for x, dx in ((q, dq), (k, dk), (v, dv)))
            return second_opinion.attend([mpmath.fdot(row, key) / 2 for key in keys], values)

        (high_o, high_lse, scale), (low_o, low_lse, _) = attention(step), attention(-step)
        # Off by step²/6 = 2**-302 times a third derivative of numbers near 1, far below 2**100.
        slack = mpmath.mpf(2) ** -200
        for ball, high, low, unit in zip(enclosure.o_ball[0], high_o, low_o, scale, strict=True):
            assert second_opinion.holds(ball, (high - low) / (2 * step), unit, slack)
        assert second_opinion.holds(enclosure.lse_ball[0], (high_lse - low_lse) / (2 * step), 1, slack)


@pytest.mark.parametrize("shape", ["heads", "causal", "mask"])
def test_rows_are_those_of_attention(shape):
    q, k, v, dq, dk, dv = inputs(rows=4, keys=3)
    seen = {"heads": np.ones((4, 3)), "causal": np.tri(4, 3, -1), "mask": [[1, 0, 1]] * 3 + [[0, 0, 0]]}[shape]
    seen = np.asarray(seen, dtype=bool)
    options = {"heads": {}, "causal": {"causal": True}, "mask": {"mask": seen}}[shape]
    if shape == "heads":  # four query heads over two KV heads with the same keys: every row as in one head
        grouped = [x.reshape(4, 1, 4) for x in (q, dq)] + [np.stack([x, x]) for x in (k, v, dk, dv)]
        at = certified_attention_jvp(grouped[0], grouped[2], grouped[3], grouped[1], grouped[4], grouped[5])
        o, lse = at.o_mid[:, 0], at.lse_mid[:, 0]
    else:
        at = certified_attention_jvp(q, k, v, dq, dk, dv, **options)
        o, lse = at.o_mid, at.lse_mid
    assert not at.rows_empty.any()
    for row in range(4):
        one, keys = slice(row, row + 1), seen[row]
        alone = certified_attention_jvp(q[one], k[keys], v[keys], dq[one], dk[keys], dv[keys])
        assert alone.contains((o[one], lse[one]))


def test_what_is_not_seen_has_no_derivative():
    arrays = inputs(rows=2)
    mask = np.array([[True, True, False, True, False], [False] * 5])
    clean = certified_attention_jvp(*arrays, mask=mask)
    for array, place in zip(arrays, (1, 2, 4, 1, 2, 4), strict=True):
        array[place] = np.nan
    poisoned = certified_attention_jvp(*arrays, mask=mask)
    assert np.array_equal(poisoned.o_mid, clean.o_mid) and np.array_equal(poisoned.lse_mid, clean.lse_mid)
    assert not clean.o_mid[1].any() and clean.lse_mid[1] == 0.0 and clean.o_mid[0].all()


def test_an_empty_part_has_no_derivative():
    os, lses, dos, dlses = normal(2, 3, 2, seed=1), normal(2, 3, seed=2), normal(2, 3, 2, seed=3), normal(2, 3, seed=4)
    nan, never = np.full((1, 3, 2), np.nan), np.full((1, 3), -np.inf)
    padded = (np.concatenate(pair) for pair in ((os, nan), (lses, never), (dos, nan), (dlses, nan[..., 0])))
    alone, with_empty = certified_merge_jvp(os, lses, dos, dlses), certified_merge_jvp(*padded)
    assert np.array_equal(alone.o_mid, with_empty.o_mid) and np.array_equal(alone.lse_mid, with_empty.lse_mid)
    nothing = certified_merge_jvp(nan, never, nan, nan[..., 0])
    assert nothing.verdict((np.zeros((3, 2)), np.zeros(3)), (0.0, 0.0)) == "pass"
    assert nothing.verdict((np.zeros((3, 2)), np.full(3, -np.inf)), (0.0, 0.0)) == "fail"


def test_one_part_moves_with_its_own_derivative():
    enclosure = certified_merge_jvp([[3.0]], [1e7], [[5.0]], [7.0])
    assert enclosure.verdict(([5.0], 7.0), (0.0, 0.0)) == "pass"


@pytest.mark.parametrize("place", range(3))
def test_a_direction_of_another_shape_is_named(place):
    arrays = inputs()
    arrays[3 + place] = arrays[3 + place][:-1]
    with pytest.raises(ValueError, match=f"^d{'qkv'[place]}: expected shape"):
        certified_attention_jvp(*arrays)


def test_a_seen_derivative_that_is_not_finite_is_named():
    with pytest.raises(ValueError, match="^dlses: "):
        certified_merge_jvp([[1.0]], [0.0], [[1.0]], [np.nan])
    with pytest.raises(ValueError, match="^dos: "):
        certified_merge_jvp([[1.0]], [0.0], [[np.inf]], [0.0])
