"""Document B's two benchmark tables beside the record: whole, in order, and each number where it belongs."""

import math

import pytest

from fdmath.bench.published import BLOG
from fdmath.claims import tables
from fdmath.cost.hardware import A100


def test_the_micro_benchmark_is_the_blogs_table_beside_the_record():
    stamp, rows = tables.micro_benchmark()
    assert [row[:5] for row in rows] == [tuple(row) for row in BLOG] and "commit" in stamp
    for row in rows:
        assert 0 < row.read <= row.ours and row.read <= row.best_here <= row.flash_here
        assert row.best not in ("fdmath", "fdmath, tile 1024")


def test_a_row_of_another_shape_is_refused():
    with pytest.raises(ValueError, match="order"):
        tables._micro(BLOG[0], tables.ROWS["blog"][1], [])


def test_a_line_goes_through_its_points():
    line = tables.through([(2, 5.0), (6, 7.0)])
    assert line == (4.0, 0.5) and line.us(10) == 9.0
    for method in ("eager", "flash_attention", "flash_decoding"):
        line = tables.published(method)
        for row in BLOG[-2:]:
            assert math.isclose(line.us(row.keys), getattr(row, method), rel_tol=8 * 2.0**-53)  # 8 roundings at most


def test_end_to_end_stays_below_the_bound_and_falls():
    steps = tables.end_to_end()
    assert tuple(step.keys for step in steps) == tables.END_TO_END.lengths == tuple(2**i for i in range(9, 17))
    for step in steps:
        published, here = step[2:5], step[6:]
        assert all(0 < x < step.bound for x in published) and all(0 < x < step.bound_here for x in here)
    for column in zip(*(step[1:] for step in steps), strict=True):
        assert list(column) == sorted(column, reverse=True)


def test_the_other_work_makes_the_gain_what_it_is_said_to_be():
    # claims:B84
    weights, other = tables.weights_ms(), tables.other_ms()
    old, new = (tables.attention_ms(tables.published(m), 65536) for m in ("flash_attention", "flash_decoding"))
    gain = (old + weights + other) / (new + weights + other)
    assert abs(gain - tables.END_TO_END.gain) <= 64 * 2.0**-53 * gain  # some 20 roundings, none of them amplified
    assert tables.A100_40GB.bandwidth < A100.bandwidth and tables.CARDS == 4


def test_the_record_of_whole_steps_names_its_model():
    stamp, rows = tables.model_steps()
    assert "SmolLM2" in stamp and {row["implementation"] for row in rows} >= {"sdpa", "fdmath"}
