"""The published table: complete, and of the shape that the claims ledger says it has."""

from fractions import Fraction

from fdmath.bench.published import BLOG, BLOG_ATTENTION, BLOG_HEADS, BLOG_SOURCE
from fdmath.cost.decode import kv_cache_bytes


def test_the_flat_rows_hold_batch_times_length_and_so_the_bytes_fixed():
    assert [row.batch * row.keys for row in BLOG[:9]] == 9 * [65536] and BLOG[9][:2] == (1, 131072)
    sizes = {kv_cache_bytes(r.keys, BLOG_HEADS["dim"], BLOG_HEADS["kv_heads"], r.batch) for r in BLOG[:9]}
    assert sizes == {67_108_864}  # B88


def test_the_largest_ratio_of_the_table_is_less_than_its_text_says():
    ratios = [Fraction(str(row.flash_attention)) / Fraction(str(row.flash_decoding)) for row in BLOG]
    assert f"{float(ratios[-1]):.1f}" == "43.1" and f"{float(ratios[-2]):.1f}" == "35.7"  # B87
    assert max(ratios) == ratios[-1] < BLOG_ATTENTION


def test_only_two_rows_have_batch_1():
    assert [row.keys for row in BLOG if row.batch == 1] == [65536, 131072]  # B86
    assert "A100" in BLOG_SOURCE and "commit" in BLOG_SOURCE
