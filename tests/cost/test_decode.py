"""The counts against the figures of the claims ledger, as exact rationals."""

from collections import Counter
from fractions import Fraction

import numpy as np
import pytest

from fdmath import AccState, LSEState, MLOState, partial_state
from fdmath.algebra import merge, printed
from fdmath.cost import decode
from fdmath.cost.hardware import A100, DEVICES, H200


def percent(share, digits=1):
    """A share as the ledger prints it: a percentage with so many digits."""
    return f"{float(100 * share):.{digits}f}"


def test_decoding_does_one_flop_a_byte_at_16_bits_and_g_with_grouped_heads():
    for keys, dim, batch in [(1, 1, 1), (4096, 64, 3), (65536, 128, 1)]:
        flop = decode.decode_flop(keys, dim, q_heads=8, batch=batch)
        assert flop == decode.kv_cache_bytes(keys, dim, kv_heads=8, batch=batch)  # A10
        assert flop == 8 * decode.kv_cache_bytes(keys, dim, kv_heads=1, batch=batch)
    assert [decode.arithmetic_intensity(g) for g in (1, 4, 8)] == [1, 4, 8]
    assert decode.arithmetic_intensity(number=decode.FLOAT32) == Fraction(1, 2)


def test_the_blogs_rows_all_read_the_same_bytes():
    batches = [2**i for i in range(9)]
    rows = {decode.kv_cache_bytes(65536 // b, 128, kv_heads=2, batch=b) for b in batches}
    assert rows == {67_108_864}  # B88
    floor = [decode.read_floor_seconds(decode.kv_cache_bytes(n, 128, kv_heads=2), A100) for n in (512, 32768)]
    assert floor[1] == 64 * floor[0]
    assert [f"{float(10**6 * t):.2f}" for t in floor] == ["0.26", "16.46"]


def test_a_token_of_codellama_34b_and_where_its_cache_outweighs_the_weights():
    token = 48 * decode.kv_cache_bytes(1, 128, kv_heads=8)
    assert token == 196_608  # B70
    assert round(67_400_000_000 / token / 1000) == 343


def test_the_share_of_peak_that_decoding_can_use():
    assert 150 <= decode.ridge(A100) <= 155  # A10: about 150
    assert percent(decode.peak_share(decode.arithmetic_intensity(), A100), 2) == "0.65"  # B68
    assert decode.peak_share(10**6, A100) == 1


@pytest.mark.parametrize("blocks, share", [(1, "0.9"), (16, "14.8"), (32, "29.6"), (108, "100.0"), (2048, "100.0")])
def test_busy_multiprocessors_of_an_a100(blocks, share):
    assert percent(decode.busy_share(blocks, A100)) == share  # A01, B68


def test_thread_blocks_with_and_without_a_split():
    assert decode.thread_blocks(heads=32) == 32
    assert decode.thread_blocks(heads=32, pieces=4096 // 64) == 2048  # B28
    assert decode.pieces_to_fill(A100, heads=2) * 256 == 13_824  # B76
    for device in DEVICES.values():
        for heads in (1, 2, 7, 200):
            pieces = decode.pieces_to_fill(device, heads)
            assert decode.busy_share(decode.thread_blocks(heads, pieces=pieces), device) == 1
            assert pieces == 1 or decode.busy_share(decode.thread_blocks(heads, pieces=pieces - 1), device) < 1


def test_the_pair_saves_one_number_of_d_plus_two():
    for dim in (1, 64, 128, 256):
        assert decode.state_numbers(LSEState, dim) == dim + 1
        assert decode.state_numbers(MLOState, dim) == decode.state_numbers(AccState, dim) == dim + 2
        assert decode.pair_saving(dim) == Fraction(1, dim + 2)
    assert decode.pair_saving(1) == Fraction(1, 3)  # A74: the 33 % of document A
    assert [percent(decode.pair_saving(d), 2) for d in (64, 128, 256)] == ["1.52", "0.77", "0.39"]  # A24
    mixed = [decode.pair_saving(d, payload=decode.FLOAT16) for d in (64, 128, 256)]
    assert mixed == [Fraction(4, 2 * d + 8) for d in (64, 128, 256)]
    assert [percent(s, 2) for s in mixed] == ["2.94", "1.52", "0.77"]


def test_state_numbers_are_those_of_our_states():
    dim = 5
    scores, v = np.zeros((1, 3), np.float32), np.zeros((3, dim), np.float32)
    for kind in (LSEState, MLOState, AccState):
        state = partial_state(scores, v, kind)
        assert sum(x.size for x in state) == decode.state_numbers(kind, dim)
        assert sum(x.nbytes for x in state) == decode.state_bytes(kind, dim)


def test_traffic_of_the_partial_states():
    alike = {"payload": decode.FLOAT16, "statistic": decode.FLOAT16, "passes": 1}
    reduce_kernel = [decode.partial_traffic(MLOState, tile, 128, **alike) for tile in (256, 4)]
    assert reduce_kernel == [Fraction(130, 2 * tile * 128) for tile in (256, 4)]  # A42
    assert [percent(share) for share in reduce_kernel] == ["0.2", "12.7"]
    written_and_read = [decode.partial_traffic(LSEState, tile, 128, group=g)
                        for g, tile in ((1, 256), (8, 256), (8, 64), (8, 32))]
    assert [percent(share) for share in written_and_read] == ["0.8", "6.3", "25.2", "50.4"]  # B81


class CountingNamespace:
    """NumPy with each call of a function counted by name."""

    def __init__(self):
        self.calls = Counter()

    def __getattr__(self, name):
        def counted(*args, **kwargs):
            self.calls[name] += 1
            return getattr(np, name)(*args, **kwargs)

        return counted

    def transcendental(self):
        return {name: self.calls[name] for name in ("exp", "exp2", "log", "log1p", "pow") if self.calls[name]}


@pytest.mark.parametrize("kind, combine", [(LSEState, merge.combine_lse), (AccState, merge.combine_acc),
                                           (MLOState, merge.combine_mlo)])
def test_the_exponentials_of_a_merge_are_those_that_our_code_calls(kind, combine):
    xp = CountingNamespace()
    a, b = (partial_state(np.float32([[s]]), np.float32([[1.0]]), kind) for s in (0.0, 1.0))
    combine(xp, a, b)
    assert xp.transcendental() == decode.merge_transcendentals(kind)  # A69


def test_the_exponentials_of_the_printed_merge_are_those_that_its_code_calls(monkeypatch):
    xp = CountingNamespace()
    monkeypatch.setattr(printed.backends, "array_namespace", lambda **arrays: xp)
    one = np.float32([1.0])
    printed.merge_as_printed_A_3_2_1(one[None], one, one[None], one)
    assert xp.transcendental() == decode.merge_transcendentals(LSEState, printed=True)  # A69


@pytest.mark.parametrize("call, message", [
    (lambda: decode.kv_cache_bytes(-1, 64), "keys must be at least 0; got -1"),
    (lambda: decode.decode_flop(1, 0), "dim must be at least 1; got 0"),
    (lambda: decode.thread_blocks(0), "heads must be at least 1; got 0"),
    (lambda: decode.state_bytes(LSEState, 0), "dim must be at least 1; got 0"),
    (lambda: decode.partial_traffic(LSEState, 0, 64), "tile must be at least 1; got 0"),
])
def test_a_count_below_its_least_value_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_a_count_that_is_no_integer_is_refused():
    with pytest.raises(TypeError, match="keys must be an int; got float"):
        decode.kv_cache_bytes(1.5, 64)
    with pytest.raises(TypeError, match="kind must be"):
        decode.state_numbers(dict, 64)


def test_every_device_says_where_its_figures_stand():
    assert {"A100", "H100", "H200"} <= set(DEVICES)
    for name, device in DEVICES.items():
        assert device.name == name
        assert "vendor figure" in device.source
    assert A100.multiprocessors == 108 and H200.multiprocessors == 132
    assert Fraction(A100.tensor_flops, A100.fp32_flops) == 16  # B11
