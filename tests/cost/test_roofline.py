"""The three roofs, and how many blocks fit on a multiprocessor."""

from fractions import Fraction

import pytest

from fdmath.cost.decode import decode_flop, kv_cache_bytes
from fdmath.cost.hardware import A100, H200
from fdmath.cost.roofline import RESERVED, bound_by, floors, resident_blocks


def test_each_roof_alone():
    assert floors(H200.tensor_flops, 0, H200)["compute"] == 1
    assert floors(0, H200.bandwidth, H200)["memory"] == 1
    assert floors(0, 0, H200, launches=2, launch_seconds=Fraction(1, 4))["launch"] == Fraction(1, 2)


def test_decoding_is_bound_by_memory_and_a_small_cache_by_its_launches():
    for keys, name in ((64, "launch"), (65536, "memory")):
        work = decode_flop(keys, 128, q_heads=16), kv_cache_bytes(keys, 128, kv_heads=2)
        assert bound_by(*work, H200, launches=2, launch_seconds=1e-6) == name


def test_many_queries_a_kv_head_are_bound_by_arithmetic():
    work = decode_flop(4096, 128, q_heads=8 * 4096), kv_cache_bytes(4096, 128)
    assert bound_by(*work, H200) == "compute"


def test_blocks_fit_as_far_as_shared_memory_goes():
    assert resident_blocks(H200.shared - RESERVED, H200) == 1 and resident_blocks(H200.shared, H200) == 0
    assert resident_blocks(A100.shared // 2 - RESERVED, A100) == 2
    with pytest.raises(ValueError, match="at least 0 bytes; got -1"):
        resident_blocks(-1, A100)
