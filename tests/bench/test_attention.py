"""The rows of attention on a device, and how they are judged: no torch, no device."""

import math

import pytest

from fdmath.bench import attention, records
from fdmath.bench.attention import ATOMICS, OURS, Shape


def test_points_hold_tokens_and_numbers_a_token():
    shapes = attention.points((128, 64), ("full", "causal"), attention.LENGTHS)
    assert len(set(shapes)) == 24 and attention.LENGTHS == (512, 1024, 2048, 4096, 8192, 16384)
    assert {(s.batch * s.keys, s.q_heads * s.dim, s.queries - s.keys, s.group) for s in shapes} == {(16384, 2048, 0, 1)}
    assert [s.causal for s in attention.points((64,), ("causal", "full"), (512,))] == [True, False]
    assert [s.keys for s in shapes[:5]] == [512] * 4 + [1024]
    assert attention.points((128,), ("full",), (100,), 250, 256) == [Shape(2, 2, 2, 128, 100, 100, False)]


@pytest.mark.parametrize("dims, lengths, said", [
    ((96,), (512,), "--dims must divide --hidden, 2048; got 96"),
    ((64,), (32768,), "--lengths must be at most --tokens, 16384; got 32768")])
def test_points_that_do_not_fit_are_refused_by_name(dims, lengths, said):
    with pytest.raises(ValueError, match=said):
        attention.points(dims, ("full",), lengths)


def test_operations_are_four_for_each_score_and_number_half_when_causal():
    shape = Shape(2, 6, 3, 8, 5, 7)
    assert shape.flop("forward") == 4 * 2 * 6 * 5 * 7 * 8 and shape.flop("backward") == 2.5 * shape.flop("forward")
    assert shape._replace(causal=True).flop("forward") * 2 == shape.flop("forward") and shape.group == 2


def test_a_row_has_every_field_and_what_follows_from_the_rest():
    row = attention.row_of("speed", "backward", Shape(), "bfloat16", OURS, 700.0, us=1000.0)
    assert tuple(row) == attention.FIELDS and row["status"] == "ok" and attention.shape_of(row) == Shape()
    assert row["tflops"] == 2.5 * 4 * 16 * 4096**2 * 128 / 1e9 and row["share_of_matrix"] == row["tflops"] / 700
    untimed = attention.row_of("speed", "forward", Shape(), "bfloat16", OURS, 700.0, status="failed", note="why")
    assert untimed["us"] is untimed["tflops"] is None
    with pytest.raises(TypeError, match="no field seconds"):
        attention.row_of("speed", "forward", Shape(), "bfloat16", OURS, seconds=1)


def test_every_pass_has_its_errors_and_the_most_they_may_be():
    every = [name for which in attention.PASSES for name in attention.most_errors("bfloat16", which)]
    assert every == [name for name in attention.FIELDS if name.startswith("err_")]
    assert attention.most_errors("bfloat16", "forward")["err_o"] == 2 * 2.0**-8
    assert attention.most_errors("float16", "backward")["err_dq"] == 3 * 2.0**-11


def test_bytes_grow_with_the_tokens_and_atomics_take_a_wide_dq():
    def most(tokens, name):
        return attention.most_bytes(Shape(queries=tokens, keys=tokens), name)

    assert most(2048, OURS) - most(1024, OURS) == 1024 * 16 * 12
    assert most(2048, ATOMICS) - most(1024, ATOMICS) == 1024 * 16 * (12 + 4 * 128)
    assert most(1024, "SDPA flash") is None
    square = 2 * 16 * 131072**2  # scores of 16 bits, kept
    assert square > most(131072, ATOMICS)


@pytest.mark.parametrize("peak, most, status", [
    (5, 5, "ok"), (6, 5, "wrong"), (math.nan, 5, "wrong"), (10**12, None, "ok")])
def test_bytes_are_judged(peak, most, status):
    found = attention.judged_bytes(peak, most)
    assert found["status"] == status and (found["note"] is None) == (status == "ok")


def test_ratios_are_of_the_same_point():
    def row(name, us, **shape):
        return attention.row_of("speed", "backward", Shape(**shape), "bfloat16", name, us=us)

    rows = [row(OURS, 6.0), row(ATOMICS, 5.0), row(OURS, 3.0, dim=64), row(ATOMICS, None, dim=64), row("other", 1.0)]
    assert attention.ratios(rows, "us", OURS, ATOMICS) == {Shape(): 1.2}


def test_the_newest_record_of_a_device_is_read(monkeypatch):
    monkeypatch.setattr(records, "newest", lambda what: ({"what": what}, []))
    assert attention.recorded("h100") == ({"what": "attention-h100"}, [])


def test_standings_need_both_times_and_more_than_their_spread():
    def row(name, queries, *times):
        us, least, most = times or (None,) * 3
        return attention.row_of("speed", "forward", Shape(queries=queries), "bfloat16", name, us=us, us_least=least,
                                us_most=most)

    rows = [row("a", 1, 10.0, 9.0, 11.0), row("b", 1, 12.0, 11.0, 13.0), row("a", 2, 10.0, 9.0, 11.0),
            row("b", 2, 30.0, 10.0, 99.0), row("a", 3, 10.0, 9.0, 11.0), row("b", 3), row("a", 4, 10.0, 9.0, 11.0),
            row("c", 4, 9.0, 8.0, 9.0)]
    assert attention.standings(rows, "a", "b") == {(128, False, 1): "ahead", (128, False, 2): "level"}
    assert attention.standings(rows, "b", "a") == {(128, False, 1): "behind", (128, False, 2): "level"}
    assert attention.standings([], "a", "b") == {} == attention.standings(rows, "a", "nobody")
