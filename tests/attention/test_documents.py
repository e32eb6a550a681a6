"""The faults of document A's programs, row by row (claims.md, section 6): ours is right, the printed ones still wrong.

Scores are set with d = 1 and q = [1], so that s = K. T is the document's triple class (single and multi), L its
pair class (pairs); L and the reference divide by √(d_model // num_heads), which is set to 1 here but in F8.
"""

import math

import numpy as np
import pytest

from fdmath import AccState, LSEState, attention, flat, merge, merge_all, sequential, split_kv_attention, streams, tree
from fdmath.algebra.printed import flat_as_printed_A_2_3_4, merge_as_printed_A_3_2_1
from fdmath.algebra.rounding import unit_roundoff
from fdmath.attention.printed import (
    attention_as_printed_A_3_1_2,
    definition_as_printed_A_2_1_1,
    lse_streams_as_printed_A_3_2_2,
    multi_stream_as_printed_A_3_1_3,
    single_stream_as_printed_A_3_1_2,
)
from tests.algebra.judgement import judge
from tests.algebra.libraries import dtype_name, holds, same, values
from tests.attention.calls import INF, NAN, random_call

PROGRAMS = {
    "3.1.2": {"kind": AccState, "order": sequential},
    "3.1.3": {"kind": AccState, "order": streams(5, then=tree)},
    "3.2.2": {"kind": LSEState, "order": streams(4, then=flat)},
}


def arrays(lib, scores, v, dtype="float32"):
    """q, k, v of (batch 1, one head) with the given scores; v has dv = 1."""
    as_rows = [np.reshape(x, (1, 1, -1, 1)) for x in ([1.0], scores, v)]
    return [lib.array(x, dtype) for x in as_rows]


def pairs(q, k, v, **options):
    """Document A's pair program with its scale set to 1."""
    return lse_streams_as_printed_A_3_2_2(q, k, v, d_model=1, num_heads=1, **options)


def ours(q, k, v, tile=256, **options):
    """o by each of our forms of the document's programs, and by definition; they must be one value."""
    results = [split_kv_attention(q, k, v, tile=tile, **program, **options).o for program in PROGRAMS.values()]
    results.append(attention(q, k, v, **options).o)
    assert all(same(results[0], x) for x in results)
    return results[0]


def number(x):
    """The only value of an array."""
    return values(x).item()


# Few tiles, empty tiles, empty everything


@pytest.mark.parametrize("options", [{}, {"tile": 1, "num_streams": 4}])
def test_F1_more_streams_than_tiles(lib, options):
    q, k, v = arrays(lib, [0.0], [7.0])
    assert math.isnan(number(multi_stream_as_printed_A_3_1_3(q, k, v, **options)))
    assert number(ours(q, k, v, tile=options.get("tile", 256))) == 7.0
    q, k, v = arrays(lib, [0.0, 0.0], [6.0, 8.0])
    assert math.isnan(number(multi_stream_as_printed_A_3_1_3(q, k, v, tile=1, num_streams=4)))
    assert number(ours(q, k, v, tile=1)) == 7.0


def test_F1_the_printed_program_is_nan_up_to_512_keys_with_its_defaults(lib):
    # claims:A48: NaN if and only if tiles ≤ 2⌊streams/2⌋ − 2.
    for keys in (256, 257, 512, 513):
        q, k, v = arrays(lib, np.zeros(keys), np.ones(keys))
        assert math.isnan(number(multi_stream_as_printed_A_3_1_3(q, k, v))) == (keys <= 512)
        assert number(ours(q, k, v)) == 1.0
    q, k, v = arrays(lib, np.zeros(9), np.ones(9))
    for count in range(1, 10):
        for tiles in range(1, 10):
            o = multi_stream_as_printed_A_3_1_3(q, k[..., :tiles, :], v[..., :tiles, :], tile=1, num_streams=count)
            assert math.isnan(number(o)) == (tiles <= 2 * (count // 2) - 2)


def test_A_3_1_3_deals_its_tiles_to_5_streams_in_turn(lib):
    # ±2³⁰ cancel only where they meet alone, in stream 0: tiles 0 and 5 of five streams. A 1 beside them would be lost.
    q, k, v = arrays(lib, np.zeros(8), [2.0**30, 1.0, 1.0, 1.0, 1.0, -(2.0**30), 0.0, 0.0])
    assert number(multi_stream_as_printed_A_3_1_3(q, k, v, tile=1)) == 0.5
    assert number(multi_stream_as_printed_A_3_1_3(q, k, v, tile=1, num_streams=4)) == 0.25


@pytest.mark.parametrize("scores, right", [([-INF, 0.0], 7.0), ([0.0, -INF], 5.0)])
def test_F2_a_tile_without_a_finite_score(lib, scores, right):
    q, k, v = arrays(lib, scores, [5.0, 7.0])
    assert math.isnan(number(single_stream_as_printed_A_3_1_2(q, k, v, tile=1)))
    for count in (1, 2, 3):
        assert math.isnan(number(pairs(q, k, v, tile=1, num_streams=count)))  # F2c
        printed = number(multi_stream_as_printed_A_3_1_3(q, k, v, tile=1, num_streams=count))
        assert math.isnan(printed) if (scores[0] == -INF or count > 1) else printed == 5.0  # F2b
    assert number(ours(q, k, v, tile=1)) == right


def test_F3_two_empty_pairs(lib):
    nothing, seven = (LSEState(lib.array([o]), lib.array(lse)) for o, lse in ((0.0, -INF), (7.0, 0.0)))
    assert all(map(holds, merge_as_printed_A_3_2_1(*nothing, *nothing), ([NAN], NAN)))
    for order in (flat, sequential, tree):
        assert all(map(holds, merge_all([nothing, nothing], order), ([0.0], -INF)))
        assert all(map(holds, merge_all([nothing, nothing, seven], order), ([7.0], 0.0)))  # F3b
    assert holds(flat_as_printed_A_2_3_4(lib.array([[0.0], [0.0], [7.0]]), lib.array([-INF, -INF, 0.0]))[0], [NAN])


def test_F3c_a_level_of_plus_infinity(lib):
    a, b = (LSEState(lib.array([o]), lib.array(lse)) for o, lse in ((7.0, INF), (5.0, 0.0)))
    assert all(map(holds, merge_as_printed_A_3_2_1(*a, *b), ([NAN], INF)))
    assert all(map(holds, merge(a, b), ([NAN], NAN)))


def test_F4_the_first_tile_is_not_first_for_every_head(lib):
    q, v = lib.array(np.ones((1, 2, 1, 1))), lib.array(np.array([[5.0, 6.0, 7.0]] * 2)[None, :, :, None])
    k = lib.array(np.array([[-INF, -INF, 0.0], [0.0, 0.0, 0.0]])[None, :, :, None])
    for program in PROGRAMS.values():
        o, lse = split_kv_attention(q, k, v, tile=1, **program)
        assert number(o[:, :1]) == 7.0 and number(lse[:, :1]) == 0.0
        # 5, 6, 7 in equal parts: thirds round, so each ⊕ may cost its budget of at most 5 u times the values.
        assert abs(number(o[:, 1:]) - 6.0) <= 3 * 5 * 7.0 * unit_roundoff("float32")
    printed = values(pairs(q, k, v, tile=1, num_streams=1)).ravel()
    assert math.isnan(printed[0])


@pytest.mark.parametrize("score, printed", [(-20.0, "6.997"), (-28.0, "2.86"), (-40.0, "3e-05")])
def test_F5_the_phantom_tile_of_1e_12(lib, score, printed):
    # The document's tile pair with a guard for −∞: l = 0 becomes S = log 1e-12 = −27.63, o = 0.
    q, k, v = arrays(lib, [-INF, score], [5.0, 7.0])
    assert number(ours(q, k, v, tile=1)) == 7.0
    guarded = [lib.array([[0.0], [7.0]]), lib.array([math.log(1e-12), score])]  # the document's literal, no tolerance
    digits = len(printed.partition("e")[0].replace(".", ""))
    assert f"{number(flat_as_printed_A_2_3_4(*guarded)[0]):.{digits}g}" == printed


def test_F5b_1e_12_spoils_float64(lib):
    call = random_call(1, (2, 2), 3, 40, 1, batch=(1,), scale=1.0)
    q, k, v = call.arrays(lib, "float64")
    exact, budget = call.certified(), call.budget("float64", tuple((j, j + 4) for j in range(0, 40, 4)), order=flat)
    state = split_kv_attention(q, k, v, tile=4, scale=1.0)
    judge(exact, state, budget)
    assert exact.verdict(LSEState(pairs(q, k, v, tile=4), state.lse), tuple(budget)) == "fail"


def test_F5b_1e_12_is_added(lib):
    # Three equal keys in tiles of 2 and 1: (2 + ε)/(3 + 2ε) is ε/9 below 2/3, far more than float64 rounds.
    q, k, v = arrays(lib, np.zeros(3), [1.0, 1.0, 0.0], "float64")
    assert number(pairs(q, k, v, tile=2)) < 2 / 3 - 100 * unit_roundoff("float64")


def test_F6_no_keys(lib):
    q, k, v = (lib.array(np.ones((1, 2, rows, 3))) for rows in (2, 0, 0))
    for printed in (single_stream_as_printed_A_3_1_2, multi_stream_as_printed_A_3_1_3, lse_streams_as_printed_A_3_2_2):
        assert np.isnan(values(printed(q, k, v))).all()
    assert holds(attention_as_printed_A_3_1_2(q, k, v), np.zeros((1, 2, 2, 3)))
    assert holds(ours(q, k, v), np.zeros((1, 2, 2, 3)))
    assert holds(attention(q, k, v).lse, np.full((1, 2, 2), -INF))


# Parameters, scale, heads, widths


def test_F7_parameters_are_checked(lib):
    q, k, v = arrays(lib, [0.0, 1.0], [5.0, 7.0])
    for printed in (single_stream_as_printed_A_3_1_2, multi_stream_as_printed_A_3_1_3, pairs):
        with pytest.raises(ZeroDivisionError):
            printed(q, k, v, tile=0)
    for printed in (multi_stream_as_printed_A_3_1_3, pairs):
        with pytest.raises(ZeroDivisionError):
            printed(q, k, v, num_streams=0)
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=rf"^tile must be at least 1; got {wrong}$"):
            split_kv_attention(q, k, v, tile=wrong)
        with pytest.raises(ValueError, match=rf"^num_splits must be at least 1; got {wrong}$"):
            split_kv_attention(q, k, v, num_splits=wrong)
        with pytest.raises(ValueError, match=rf"^n must be at least 1; got {wrong}$"):
            streams(wrong)
        with pytest.raises(ValueError, match=rf"^tile must be at least 1; got {wrong}$"):
            split_kv_attention(q, k[..., :0, :], v[..., :0, :], tile=wrong)


def test_F8_the_scale_comes_from_the_head_dimension_of_q(lib):
    q, k, v = arrays(lib, [0.0, 8.0], [0.0, 1.0])
    right = 1 / (1 + math.exp(-8.0))
    for printed in (attention_as_printed_A_3_1_2, lse_streams_as_printed_A_3_2_2):
        assert round(number(printed(q, k, v)), 4) == 0.7311  # and its own reference agrees with it
    for o in (single_stream_as_printed_A_3_1_2(q, k, v), ours(q, k, v)):
        assert abs(number(o) - right) <= 8 * unit_roundoff("float32")  # exp within κ = 4, a sum, a quotient, a product


def test_F8_the_head_dimension_is_a_whole_quotient(lib):
    q, k, v = arrays(lib, [0.0, 8.0], [0.0, 1.0])
    for printed in (attention_as_printed_A_3_1_2, lse_streams_as_printed_A_3_2_2):
        assert same(printed(q, k, v, d_model=7, num_heads=2), printed(q, k, v, d_model=3, num_heads=1))


def test_F9_grouped_heads(lib):
    q, k, v = (lib.array(np.ones((1, heads, 3, 2))) for heads in (4, 2, 2))
    for printed in (single_stream_as_printed_A_3_1_2, multi_stream_as_printed_A_3_1_3, lse_streams_as_printed_A_3_2_2):
        with pytest.raises((RuntimeError, ValueError)):
            printed(q, k, v)
    v = lib.array(np.array([10.0, 20.0])[None, :, None, None] * np.ones((1, 2, 3, 2)))
    assert holds(ours(q, k, v), np.array([10.0, 10.0, 20.0, 20.0])[None, :, None, None] * np.ones((1, 4, 3, 2)))


@pytest.mark.parametrize("q_shape, kv_shape", [((1, 1, 1, 1), (1, 2, 2, 1)), ((1, 1, 1, 1), (3, 1, 2, 1))])
def test_F9b_nothing_broadcasts_in_silence(lib, q_shape, kv_shape):
    q, k, v = (lib.array(np.ones(shape)) for shape in (q_shape, kv_shape, kv_shape))
    assert tuple(single_stream_as_printed_A_3_1_2(q, k, v).shape[:2]) == kv_shape[:2]
    for call in (attention, split_kv_attention):
        with pytest.raises(ValueError, match="number of heads|leading axes"):
            call(q, k, v)


def test_F10_the_values_have_their_own_width(lib):
    q, k, v = (lib.array(np.ones((1, 1, 2, width))) for width in (2, 2, 3))
    for printed in (single_stream_as_printed_A_3_1_2, multi_stream_as_printed_A_3_1_3):
        with pytest.raises((RuntimeError, ValueError)):
            printed(q, k, v)
    assert tuple(lse_streams_as_printed_A_3_2_2(q, k, v, tile=1, num_streams=2).shape) == (1, 1, 2, 3)
    with pytest.raises((RuntimeError, ValueError)):
        lse_streams_as_printed_A_3_2_2(q, k, v, num_streams=2)
    assert tuple(single_stream_as_printed_A_3_1_2(q, k, v[..., :1]).shape) == (1, 1, 2, 2)
    for width in (1, 3):
        assert holds(ours(q, k, v[..., :width]), np.ones((1, 1, 2, width)))


# Range and accuracy in 16 bits


def test_F11_the_product_overflows_before_it_is_scaled(lib):
    for dim, size in ((128, 32.0), (1, 256.0)):
        q = lib.array(np.full((1, 1, 1, dim), size), "float16")
        k = lib.array(np.array([[size], [0.0]]) * np.ones((1, 1, 2, dim)), "float16")
        v = lib.array([[[[7.0], [5.0]]]], "float16")
        assert math.isnan(number(attention_as_printed_A_3_1_2(q, k, v, d_model=dim, num_heads=1)))
        assert number(ours(q, k, v)) == 7.0


def test_F12_the_unnormalised_sum_overflows(lib):
    q, k, v = arrays(lib, [0.0, 0.0], [4e4, 4e4], "float16")
    assert number(single_stream_as_printed_A_3_1_2(q, k, v, tile=1)) == INF
    assert number(multi_stream_as_printed_A_3_1_3(q, k, v, tile=1, num_streams=1)) == INF
    assert number(pairs(q, k, v, tile=1)) == 4e4
    assert number(pairs(q, k, v, tile=2)) == INF and number(single_stream_as_printed_A_3_1_2(q, k, v, tile=2)) == INF
    for tile in (1, 2):
        assert number(ours(q, k, v, tile=tile)) == 4e4 and dtype_name(ours(q, k, v, tile=tile)) == "float16"


def test_F12b_the_sum_of_weights_overflows(lib):
    half = np.repeat([0.0, 1.0], 32768)
    q, k, v = arrays(lib, np.zeros(65536), half, "float16")
    ones = arrays(lib, np.zeros(65536), np.ones(65536), "float16")
    assert number(single_stream_as_printed_A_3_1_2(q, k, v)) == 0.0
    assert math.isnan(number(single_stream_as_printed_A_3_1_2(*ones)))
    assert number(ours(q, k, v)) == 0.5 and number(ours(*ones)) == 1.0


def test_F13_two_bfloat16_keys(lib):
    q, k, v = arrays(lib, [256.0, 256.0], [1.0, 1.0], "bfloat16")
    assert number(pairs(q, k, v, tile=1)) == 2.0 and dtype_name(pairs(q, k, v, tile=1)) == "bfloat16"
    assert number(ours(q, k, v, tile=1)) == 1.0
    q, k, v = arrays(lib, [2.0, 2.0], [1.0, 1.0], "bfloat16")
    assert number(pairs(q, k, v, tile=1)) == 1.0078125
    assert number(ours(q, k, v, tile=1)) == 1.0


@pytest.mark.parametrize("keys, printed", [(65536, 2.0), (131072, 4.0)])
def test_F13b_many_bfloat16_keys(lib, keys, printed):
    q, k, v = arrays(lib, np.zeros(keys), np.ones(keys), "bfloat16")
    assert number(pairs(q, k, v)) == printed
    assert number(ours(q, k, v)) == 1.0


def test_F13c_bfloat16_triples_forget_half_of_the_keys(lib):
    q, k, v = arrays(lib, np.zeros(131072), np.repeat([0.0, 1.0], 65536), "bfloat16")
    assert number(single_stream_as_printed_A_3_1_2(q, k, v)) == 1.0
    assert number(ours(q, k, v)) == 0.5


# What the programs lack, and what is no fault


def test_F14_masks_causal_and_many_queries(lib):
    call = random_call(2, (2, 2), 4, 7, 3, batch=(1,), mask=np.arange(7) != 2, causal=True)
    exact = call.certified()
    for tile in (1, 3):
        ranges = tuple((j, min(j + tile, 7)) for j in range(0, 7, tile))
        for program in PROGRAMS.values():
            state = split_kv_attention(*call.arrays(lib, "float32"), tile=tile, **program, **call.options(lib))
            judge(exact, state, call.budget("float32", ranges, **program))


@pytest.mark.parametrize("scores, v", [([NAN, 0.0], [5.0, 7.0]), ([INF, 0.0], [5.0, 7.0]), ([0.0, 1.0], [NAN, 7.0])])
def test_F15_what_is_seen_and_no_number_is_nan_for_everyone(lib, scores, v):
    q, k, v = arrays(lib, scores, v)
    for printed in (single_stream_as_printed_A_3_1_2, attention_as_printed_A_3_1_2, pairs):
        assert math.isnan(number(printed(q, k, v)))
    assert math.isnan(number(ours(q, k, v, tile=1)))


def test_F16_gradients_pass_through_every_program(torch_lib):
    call = random_call(3, (2, 2), 1, 24, 4, batch=(1,))
    torch = torch_lib.module

    def gradients(program):
        leaves = [x.requires_grad_() for x in call.arrays(torch_lib, "float64")]
        return torch.autograd.grad(program(*leaves).square().sum(), leaves)

    expected = gradients(lambda q, k, v: attention(q, k, v).o)
    size = max(float(g.abs().max()) for g in expected)
    for program in (
        lambda q, k, v: single_stream_as_printed_A_3_1_2(q, k, v, tile=4),
        lambda q, k, v: multi_stream_as_printed_A_3_1_3(q, k, v, tile=4),
        lambda q, k, v: lse_streams_as_printed_A_3_2_2(q, k, v, tile=4, d_model=4, num_heads=1),
        lambda q, k, v: split_kv_attention(q, k, v, tile=4, order=streams(9)).o,
    ):
        for g, e in zip(gradients(program), expected, strict=True):
            assert float((g - e).abs().max()) <= 3e-7 * size  # the figure of claims:F16, which holds the 1e-12 too


@pytest.mark.parametrize("printed", [single_stream_as_printed_A_3_1_2, multi_stream_as_printed_A_3_1_3, pairs])
def test_the_printed_programs_are_right_where_they_are_meant_to_be(lib, printed):
    call = random_call(4, (2, 2), 3, 64, 1, batch=(1,), scale=1.0)
    exact, o = call.certified(), values(printed(*call.arrays(lib, "float32"), tile=4))
    # At scores of a few units a wide bound is enough (T4): 16 tiles, 3 max|S| + 3κ + 6 below 40.
    assert np.all(np.abs(o - exact.o_mid) <= 16 * 40 * unit_roundoff("float32") * np.max(np.abs(call.v)))


# The bare definition


@pytest.mark.parametrize("dtype, high, higher", [("float32", 88.5, 89.0), ("float64", 709.5, 710.0)])
def test_A14_the_bare_definition_is_right_until_it_overflows(lib, dtype, high, higher):
    def printed(scores, *v):
        o, lse = definition_as_printed_A_2_1_1(lib.array([scores], dtype), lib.array([[x] for x in v], dtype))
        assert dtype_name(o) == dtype_name(lse) == dtype
        return number(o), number(lse)

    assert printed([0.0], 7.0) == (7.0, 0.0)
    assert printed([0.0, 0.0], 2.0, 6.0)[0] == 4.0
    assert printed([high, high], 0.25, 0.25) == (0.0, INF)  # each term is finite, their sum is not
    for lost in (higher, -800.0, -INF):
        assert math.isnan(printed([lost, lost], 2.0, 6.0)[0])


def test_A14_the_bare_definition_of_a_batch(lib):
    v = lib.array([[[0.0], [4.0], [8.0], [4.0]], [[1.0]] * 4])
    assert holds(definition_as_printed_A_2_1_1(lib.array(np.zeros((2, 1, 4))), v)[0], [[[4.0]], [[1.0]]])
