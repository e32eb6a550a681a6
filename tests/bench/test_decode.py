"""The rows of decoding on a device, and how they are judged: no torch, no device."""

import math
from pathlib import Path

import numpy as np
import pytest

import fdmath.bench
from fdmath.bench import decode
from fdmath.bench.decode import OURS, Floor, Rounding, Shape


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


def test_the_start_of_a_floor_is_never_negative():
    points = [(2**20, 1.0), (2**21, 3.0), (2**22, 8.0)]
    floor = decode.fit_floor(points)
    assert floor.start_us == 0 and floor.us(1) > 0
    missed = [sum((Floor(0.0, floor.gb_per_s * by).us(count) / us - 1) ** 2 for count, us in points)
              for by in (0.99, 1, 1.01)]
    assert missed[1] == min(missed)


@pytest.mark.parametrize("points", [
    [(5, 1.0), (50, math.nan)], [(5, 0.0), (50, 1.0)], [(5, -1.0), (50, 1.0)], [(5, 1.0), (50, math.inf)],
    [], [(5, 1.0)], [(5, 1.0), (5, 2.0)], [(5, 2.0), (50, 2.0), (500, 1.0)]])
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


def most(dtype="float16", keys=8192, dim=128, size=8.0, level=10.0, **how):
    """What a call may err, by what it rounds."""
    return decode.most_errors(dtype, Rounding(**how), dim, keys, size, level)


@pytest.mark.parametrize("field", ["err_o", "err_lse", "v_ones_ulp"])
def test_each_error_beyond_its_budget_is_wrong_and_nan_is(field):
    allowed = most()
    assert decode.judged(allowed, allowed) == {"status": "ok", "note": None}
    for bad in (2 * allowed[field], math.nan, math.inf):
        found = decode.judged(allowed | {field: bad}, allowed)
        assert found["status"] == "wrong" and found["note"].startswith(field)
    assert decode.judged(allowed | {"err_lse": None}, allowed)["status"] == "ok"


def test_budgets_are_the_sum_of_what_is_rounded():
    fine = 2.0**-24
    for dtype, u in (("float16", 2.0**-11), ("bfloat16", 2.0**-8)):
        exponent = 2 * 130 * fine * 8 + 1024 * fine + 160 * fine
        found = most(dtype)
        assert found == {"err_o": 3 * u + 2 * math.expm1(exponent), "err_lse": exponent,
                         "v_ones_ulp": 1 + 1024 * fine / u}
        assert most(dtype, sums_rounded=True)["err_lse"] == exponent + u
        assert most(dtype, scores=2)["err_lse"] == exponent + 2 * u * 8
        assert most(dtype, values=3)["err_o"] == 4 * u + 2 * math.expm1(exponent)
        assert most(dtype, stats="bfloat16")["err_lse"] == exponent + 4 * 2.0**-8 * 10
    assert most(keys=131072)["v_ones_ulp"] == 3


@pytest.mark.parametrize("dtype", decode.DTYPES)
@pytest.mark.parametrize("keys", [256, 16384])
def test_an_lse_of_float32_may_not_be_off_by_what_sixteen_bits_would_lose(dtype, keys):
    """By a quarter of one rounding of a number near 1 to bfloat16."""
    assert most(dtype, keys=keys, size=20.0, level=math.log(keys) + 1)["err_lse"] < 2.0**-8 / 4


@pytest.mark.parametrize("ours, best, word", [
    ((10, 9.9), (12, 11.9), "ahead"), ((12, 11.9), (10, 9.9), "behind"), ((12, 9.9), (10, 9.8), "level"),
    ((10, 9.9), (12, 10), "level"), ((10, 10), (10, 10), "level"), ((12, 10.1), (10, 1), "behind")])
def test_level_is_within_the_spread_of_the_slower_one(ours, best, word):
    assert decode.verdict(a_row(OURS, *ours), a_row("other", *best)) == word


def test_what_is_wrong_is_never_ahead():
    rows = [a_row(OURS, 1, status="wrong"), a_row("other", 5)]
    assert decode.verdict(*rows) == decode.verdict(*rows[::-1]) == "wrong"


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
