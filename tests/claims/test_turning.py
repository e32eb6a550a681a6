"""Verdicts turn with what they stand on: a part of the package replaced by a wrong one, in memory, for each claim."""

from fractions import Fraction

import pytest

from fdmath.attention import printed
from fdmath.claims import algorithms, benchmarks, decoding, tables
from fdmath.claims.claim import CHECKS, verdict
from fdmath.cost.models import Model


def never_rescaled(xp, a, b, exp=None):
    """combine_acc without e^(m − m)."""
    return xp.maximum(a.m, b.m), a.l + b.l, a.acc + b.acc


def doubled(*arguments, **options):
    """Algorithm 1 with twice the output."""
    o, lse = ALGORITHM_1(*arguments, **options)
    return 2 * o, lse


def transposed_sign(*arguments, **options):
    """Algorithm 2 with −dK."""
    dq, dk, dv = ALGORITHM_2(*arguments, **options)
    return dq, -dk, dv


ALGORITHM_1, ALGORITHM_2 = printed.algorithm_1_as_printed_B, printed.algorithm_2_as_printed_B
FAST = [row._replace(flash_decoding=row.flash_decoding / 2) for row in benchmarks.BLOG]
BROKEN = [
    ("B51", algorithms, "backward_split_k", lambda *arguments, **options: None, "refuted"),
    ("B53", algorithms.occupancy, "forward_tile_bytes", lambda *sizes: 1, "refuted"),
    ("B56", printed, "algorithm_1_as_printed_B", doubled, "refuted"),
    ("B57", printed, "algorithm_1_as_printed_B", doubled, "refuted"),
    ("B58", algorithms, "is_attention", lambda *arguments: True, "holds"),
    ("B59", algorithms, "is_attention", lambda *arguments: True, "holds"),
    ("B60", algorithms, "flash_attention_1", algorithms.flash_attention, "refuted"),
    ("B61", printed, "algorithm_2_as_printed_B", transposed_sign, "refuted"),
    ("B64", printed, "algorithm_2_as_printed_B", lambda *arguments, **_: ALGORITHM_2(*arguments, write_back=True),
     "holds"),
    ("B65", algorithms, "backward_matmul_flop", lambda *arguments: 1, "refuted"),
    ("B66", printed, "algorithm_2_as_printed_B", transposed_sign, "refuted"),
    ("B67", decoding, "forward_thread_blocks", lambda grid, *rest: grid.keys, "refuted"),
    ("B68", decoding.cost, "busy_share", lambda blocks, device: Fraction(blocks, 10**4), "holds"),
    ("B69", decoding, "forward_thread_blocks", lambda grid, *rest: -grid.keys, "holds"),
    ("B70", Model, "cache_bytes", lambda self, keys, batch=1, number=2: keys, "refuted"),
    ("B71", Model, "cache_bytes", lambda self, keys, batch=1, number=2: 10**12 * keys, "holds"),
    ("B72", decoding.cost, "thread_blocks", lambda *arguments, **pieces: 8, "holds"),
    ("B75", decoding, "merge", lambda a, b: b, "refuted"),
    ("B76", decoding, "fills", lambda blocks, device: True, "holds"),
    ("B77", decoding, "combine_acc", never_rescaled, "refuted"),
    ("B78", decoding, "combine_acc", never_rescaled, "refuted"),
    ("B79", decoding, "atomic_merge_as_printed_B", lambda parts, order, exp: (2, 2, 5), "holds"),
    ("B81", decoding.cost, "partial_traffic", lambda kind, tile, *rest, **group: Fraction(1, 1000 * tile), "holds"),
    ("B83", benchmarks, "cache_share", lambda model, keys: 0, "holds"),
    ("B84", tables, "other_ms", lambda **device: -1.0, "refuted"),
    ("B86", benchmarks, "BLOG", [row._replace(batch=1) for row in benchmarks.BLOG], "holds"),
    ("B87", benchmarks, "BLOG", FAST, "holds"),
    ("B89", benchmarks, "share_for", lambda whole, gain: Fraction(1, 2), "refuted"),
    ("B90", benchmarks, "share_left", lambda share, gain: 1, "refuted"),
    ("B93", benchmarks, "LSEState", benchmarks.MLOState, "refuted"),
    ("B94", benchmarks, "published", lambda method: tables.Line(1e6, 0.0), "refuted"),
]
"""(claim, where, name, what stands there instead, the verdict that this must give)."""


@pytest.mark.parametrize("claim, where, name, broken, expected", BROKEN, ids=[row[0] for row in BROKEN])
def test_a_verdict_turns_with_what_it_stands_on(claim, where, name, broken, expected, monkeypatch):
    monkeypatch.setattr(where, name, broken)
    assert verdict(CHECKS[claim]()) == expected
