"""What the checks of decoding and of its results stand on: the released rule for splits, records, the live branch."""

import sys
from types import SimpleNamespace

import pytest

from fdmath.bench.timing import Timing
from fdmath.claims import benchmarks, decoding
from fdmath.claims.claim import verdict


@pytest.mark.parametrize("programs, blocks, expected", [
    (174, 100, 1),   # 80 % of 216 places and more
    (2, 1, 1),       # nothing to cut
    (2, 4, 4),       # every block its own split
    (54, 64, 4),     # 4 · 54 fill 216 places
    (2, 256, 86),    # claims:B76: 32768 keys in blocks of 128
    (2, 512, 103),   # 65536 keys
    (48, 64, 4),     # 192 of 216 places
])  # fmt: skip
def test_the_released_rule_for_splits(programs, blocks, expected):
    assert decoding.released_splits(programs, blocks, 108) == expected


def test_splits_are_never_more_than_blocks_or_the_limit():
    for blocks in range(1, 300, 7):
        for programs in (1, 2, 5, 16, 100, 172, 173):
            assert 1 <= decoding.released_splits(programs, blocks, 108) <= min(blocks, 128)


def test_recorded_times_where_there_is_no_gpu(monkeypatch):
    monkeypatch.setattr(benchmarks, "on_a_gpu", lambda: False)
    where, times = benchmarks.growing((512, 32768))
    assert "commit" in where and list(times) == [512, 32768]
    for median, least, most in times.values():
        assert 0 < least <= median <= most


def test_live_times_where_there_is_one(monkeypatch):
    # A stand-in for the device: a time that grows with the keys, so that the verdict must be the record's.
    class Inputs:
        def __init__(self, dtype, shapes):
            self.keys = [shape.keys for shape in shapes]

        def sets(self, shape):
            assert shape.keys in self.keys and (shape.q_heads, shape.kv_heads, shape.dim) == (16, 2, 128)
            return shape

    parts = {"fdmath.bench.graphs:Inputs": Inputs, "fdmath.bench.graphs:Graph": lambda call, sets: sets.keys,
             "fdmath.bench.graphs:alternating": lambda graphs, visits: {
                 name: Timing(1e-6 * keys, 1e-6 * keys, 2e-6 * keys) for name, keys in graphs.items()},
             "fdmath.kernels.split_kv:split_kv_decode": None,
             "torch:cuda": SimpleNamespace(get_device_name=lambda: "a card")}
    monkeypatch.setattr(benchmarks, "on_a_gpu", lambda: True)
    monkeypatch.setattr(benchmarks.backends, "load", parts.__getitem__)
    where, times = benchmarks.growing((512, 1024))
    (median, least, most), longer = times.values()
    assert where == "a card, measured now" and median == least < most and longer[0] == 2 * median
    assert verdict(benchmarks.attention_time_against_length()) == "refuted"


def test_a_kernel_that_did_not_grow_would_hold(monkeypatch):
    # claims:B88 can turn: constant times, and rows of different bytes.
    rows = [row._replace(batch=1) for row in benchmarks.BLOG]
    monkeypatch.setattr(benchmarks, "BLOG", rows)
    monkeypatch.setattr(benchmarks, "growing", lambda: ("", {512: (1.0, 0.9, 1.1), 32768: (1.0, 0.9, 1.1)}))
    assert verdict(benchmarks.attention_time_against_length()) == "holds"


def test_no_torch_is_no_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert benchmarks.on_a_gpu() is False
