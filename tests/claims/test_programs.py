"""What the checks of document A's programs rest on: bounds that a wrong result breaks, and arrays that tell on code."""

import threading

import numpy as np
import pytest

from fdmath import AccState, LSEState
from fdmath.attention.printed import multi_stream_as_printed_A_3_1_3, single_stream_as_printed_A_3_1_2
from fdmath.claims.programs import (
    INF,
    call,
    merged_pairs,
    merged_triples,
    normal_call,
    number,
    pairs,
    random_call,
    random_scores,
    right,
    stream_as_printed_A_3_2_2,
    text,
    triple,
    watched,
    within,
)
from fdmath.cost.decode import merge_transcendentals

PROGRAMS = (single_stream_as_printed_A_3_1_2, multi_stream_as_printed_A_3_1_3, pairs)


@pytest.mark.parametrize("program", PROGRAMS)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_the_programs_are_right_and_a_dropped_key_is_not(program, dtype):
    q, k, v = random_call(1, 3, 40, dtype)
    assert right(program, q, k, v, tile=4)
    assert not right(lambda q, k, v, tile: program(q, k[..., 1:, :], v[..., 1:, :], tile=tile), q, k, v, tile=4)


def test_a_result_that_is_no_number_or_raises_is_not_right():
    q, k, v = random_call(2, 1, 8)
    assert not within(np.full((1, 1, 1, 1), np.nan, np.float32), q, k, v)
    assert not right(multi_stream_as_printed_A_3_1_3, q, k, v, tile=8)  # NaN: one tile for five streams
    assert not right(single_stream_as_printed_A_3_1_2, q, k, v, tile=0)


def test_within_takes_the_scale_of_q():
    q, k, v = normal_call(3, 9, 16)
    assert right(single_stream_as_printed_A_3_1_2, q, k, v, tile=4)
    assert not within(single_stream_as_printed_A_3_1_2(2 * q, k, v), q, k, v)


def test_random_scores_are_exact_in_their_format_and_the_same_again():
    for dtype in ("float16", "bfloat16", "float32"):
        scores, v = random_scores(4, 2, 5, dtype, level=100.0)
        q, k, x = call(scores, v, dtype)
        assert np.all(k.astype(np.float64).reshape(2, 5) == scores) and np.all(x.astype(np.float64).reshape(2, 5) == v)
        assert np.all(scores == random_scores(4, 2, 5, dtype, level=100.0)[0]) and np.all(q.astype(np.float64) == 1)


def test_numbers_as_text():
    assert number(np.array([[2.5]], np.float32)) == 2.5
    assert text(np.array([0.5])) == "0.5" and text(np.array([[np.nan], [6.0]])) == "[nan, 6]"


def test_a_stream_starts_with_its_first_tile_if_all_rows_agree():
    tile = np.array([[7.0], [5.0]]), np.array([0.0, 1.0])
    nothing = np.zeros((2, 1)), np.full(2, -INF)
    for parts in ([tile], [nothing, tile], [tile, nothing]):
        o, lse = stream_as_printed_A_3_2_2(parts)
        assert np.all(o == tile[0]) and np.all(lse == tile[1])
    half = np.array([[0.0], [5.0]]), np.array([-INF, 1.0])
    o, _ = stream_as_printed_A_3_2_2([half, half, tile])
    assert np.isnan(o[0, 0]) and np.isfinite(o[1, 0])


def test_a_printed_merge_takes_the_functions_that_the_law_counts():
    x, seen = watched(np.ones((1, 1)))
    merged_pairs((x, x[:, 0]), (x, x[:, 0]))
    law = merge_transcendentals(LSEState, printed=True)
    assert {name: seen.calls[name] for name in law} == law and not seen.calls["log"]
    x, seen = watched(np.ones((1, 1)))
    merged_triples(*[triple(x[:, 0], x[:, 0], x)] * 2)
    law = merge_transcendentals(AccState)
    assert {name: seen.calls[name] for name in law} == law and not seen.calls["log1p"] + seen.calls["log"]


def test_watched_arrays_tell_what_is_done_to_them():
    x, seen = watched(np.arange(6.0).reshape(2, 3))
    y = np.exp(x[0]) + np.sum(x, axis=0)
    (x @ np.ones(3)).max()
    assert seen.calls == {"exp": 1, "add": 1, "add.reduce": 1, "matmul": 1, "maximum.reduce": 1}
    assert seen.reads == [(threading.get_ident(), 0)]
    y[1:]
    assert seen.reads[-1][1] == slice(1, None)
    assert np.all(np.asarray(y) == np.exp([0.0, 1.0, 2.0]) + [3.0, 5.0, 7.0])
