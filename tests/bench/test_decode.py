"""The rows of decoding on a device, and how they are judged: no torch, no device."""

import math
from pathlib import Path

import numpy as np
import pytest

import fdmath.bench
from fdmath.bench import decode
from fdmath.bench.decode import OURS, Floor, Shape


def a_row(implementation, us, least=None, status="ok"):
    """A row of one implementation with its median and its least µs."""
    return decode.row_of("peers", Shape("a"), "float16", implementation, us=us, us_least=least or us, status=status)


def test_rows_are_the_twenty_that_are_named():
    every = decode.rows_named(["all"])
    assert len(every) == 20 and len({shape.name for shape in every}) == 20
    assert [len(decode.rows_named([name])) for name in ("blog", "l8b", "tiny")] == [10, 5, 5]
    assert decode.rows_named(["L8B B=1,S=8192", "l8b"]) == list(decode.ROWS["l8b"])


def test_the_blogs_rows_hold_batch_times_keys_but_the_last():
    blog = decode.ROWS["blog"]
    assert {shape.batch * shape.keys for shape in blog[:-1]} == {65536} and blog[-1].keys == 131072
    assert {(shape.q_heads, shape.kv_heads, shape.group) for shape in blog} == {(16, 2, 8)}


def test_a_row_that_there_is_not_is_refused_by_name():
    with pytest.raises(ValueError, match="got 'blogs'"):
        decode.rows_named(["blogs"])


def test_bytes_are_keys_values_queries_and_output_once():
    shape = Shape("a", batch=3, q_heads=4, kv_heads=2, dim=8, keys=5, queries=2)
    assert shape.bytes_in("float16") == 2 * (2 * 3 * 2 * 5 * 8 + 2 * 3 * 4 * 2 * 8)


def test_the_floor_is_the_line_through_points_on_a_line():
    floor = decode.fit_floor([(count, 2 + count / 4e6) for count in (10**6, 10**7, 10**9)])
    assert (f"{floor.start_us:.6f}", f"{floor.gb_per_s:.3f}") == ("2.000000", "4000.000")
    assert Floor(2.0, 4000.0).us(4 * 10**6) == 3.0


def test_the_floor_weighs_points_by_what_they_miss_of_their_own_time():
    points = [(10**6, 2.5), (10**7, 4.5), (10**9, 260.0)]
    misses = [abs(decode.fit_floor(points).us(count) / us - 1) for count, us in points]
    absolute = np.polyfit(*zip(*points, strict=True), 1)
    assert sum(x * x for x in misses) < sum((np.polyval(absolute, count) / us - 1) ** 2 for count, us in points)


@pytest.mark.parametrize("points", [[], [(5, 1.0)], [(5, 1.0), (5, 2.0)], [(5, 2.0), (50, 2.0), (500, 1.0)]])
def test_points_without_a_floor_are_refused(points):
    with pytest.raises(ValueError, match="^points must"):
        decode.fit_floor(points)


def test_a_row_has_every_field_and_what_follows_from_the_rest():
    row = decode.row_of("peers", Shape("a"), "float16", OURS, Floor(2.0, 4000.0), us=4.0)
    assert tuple(row) == decode.FIELDS and row["row"] == "a" and row["keys"] == 8192
    assert row["gb_per_s"] == row["bytes"] / 4e3 and row["share_of_floor"] == row["floor_us"] / 4
    untimed = decode.row_of("peers", Shape("a"), "float16", OURS, Floor(2.0, 4000.0), status="failed", note="why")
    assert untimed["us"] is untimed["share_of_floor"] is None and untimed["floor_us"] > 2
    with pytest.raises(TypeError, match="no field seconds"):
        decode.row_of("peers", Shape("a"), "float16", OURS, seconds=1)


def test_times_are_microseconds():
    timing = type("Timing", (), {"median": 2.0, "least": 1.0, "most": 4.0})
    assert decode.timed(timing) == {"us": 2e6, "us_least": 1e6, "us_most": 4e6}


@pytest.mark.parametrize("field", ["err_o", "err_lse", "v_ones_ulp"])
def test_each_error_beyond_its_budget_is_wrong_and_nan_is(field):
    most = decode.most_errors("float16", 2, 10.0, 8192)
    assert decode.judged(most, most) == {"status": "ok", "note": None}
    for bad in (2 * most[field], math.nan, math.inf):
        found = decode.judged(most | {field: bad}, most)
        assert found["status"] == "wrong" and found["note"].startswith(field)
    assert decode.judged(most | {"err_lse": None}, most)["status"] == "ok"


def test_budgets_grow_with_the_roundings_and_name_the_format():
    half, brain = (decode.most_errors(dtype, 2, 10.0, 8192) for dtype in decode.DTYPES)
    assert half["err_o"] == 2 * 2.0**-11 and brain["err_o"] == 2 * 2.0**-8 and half["v_ones_ulp"] == 1.125
    assert decode.most_errors("float16", 8, 10.0, 8192)["err_o"] == 4 * half["err_o"]
    assert decode.most_errors("float16", 2, 10.0, 131072)["v_ones_ulp"] == 3


@pytest.mark.parametrize("ours, best, word", [
    ((10, 9.9), (12, 11.9), "ahead"), ((12, 11.9), (10, 9.9), "behind"), ((12, 9.9), (10, 9.8), "level"),
    ((10, 9.9), (12, 10), "level"), ((10, 10), (10, 10), "level"), ((12, 10.1), (10, 1), "behind")])
def test_level_is_within_the_spread_of_the_slower_one(ours, best, word):
    assert decode.verdict(a_row(OURS, *ours), a_row("other", *best)) == word


def test_the_best_peer_is_right_timed_and_no_version_of_ours():
    rows = [a_row(OURS, 1), a_row(decode.TILED, 1), a_row("wrong", 2, status="wrong"), a_row("slow", 5),
            a_row("failed", None, status="failed"), a_row("best", 4)]
    assert decode.best_peer(rows)["implementation"] == "best" and decode.best_peer(rows[:3]) is None


@pytest.mark.parametrize("implementation, status, bad", [
    (OURS, "failed", True), ("other", "failed", False), ("other", "wrong", True), (OURS, "not run", False)])
def test_what_is_broken_is_a_wrong_output_or_a_failure_of_ours(implementation, status, bad):
    assert decode.failed(a_row(implementation, None, status=status)) == bad


def test_steps_from_one_count_numbers_of_the_format():
    for dtype in (np.float16, np.float32):
        one, eps = dtype(1), float(np.finfo(dtype).eps)
        above, below = (np.nextafter(one, dtype(to)) for to in (2, 0))
        assert decode.steps_from_one([one], eps) == 0
        assert decode.steps_from_one([above], eps) == decode.steps_from_one([one, below], eps) == 1
        assert decode.steps_from_one([above, np.nextafter(below, dtype(0))], eps) == 2
        assert decode.steps_from_one([one, np.nan], eps) == math.inf


def test_rows_are_selected_by_their_fields():
    rows = [a_row(OURS, 1), a_row("other", 2)]
    assert decode.select(rows, implementation="other", study="peers") == rows[1:]


def test_the_record_of_the_h200_is_as_the_schema_says():
    head, rows = decode.recorded()
    assert {"command", "commit", "device", "driver", "versions", "date", "ceilings"} <= set(head)
    assert {"read_gb_per_s", "floor", "launch_us", "matmul_tflops"} <= set(head["ceilings"])
    assert rows and all(tuple(row) == decode.FIELDS for row in rows)
    for row in rows:
        assert row["status"] in ("ok", "wrong", "failed", "not run") and (row["status"] == "ok" or row["note"])
        if row["us"] is not None:
            assert row["us_least"] <= row["us"] <= row["us_most"]
    files = sorted((Path(fdmath.bench.__file__).parent / "results").glob("decode-h200-*.json"))
    assert all(file.stat().st_size <= 300_000 for file in files)
