"""Warps: the result of each split against the oracle, what it moves against the closed form, and no hidden talk."""

import numpy as np
import pytest

from fdmath import AccState, flash_attention, flat, sequential, streams
from fdmath.attention import warps
from fdmath.attention.reference import attention_gradient
from fdmath.attention.tiles import blocks
from fdmath.cost import warps as laws
from fdmath.cost.shared import SharedCounts, SharedMemory
from tests.algebra.judgement import judge
from tests.algebra.libraries import Library, dtype_name, holds, values
from tests.attention.calls import INF, random_call
from tests.attention.test_flash import spans
from tests.attention.test_flash_backward import bounds, losses, within

FORWARDS = {
    "split-Q": (warps.forward_split_q, {}),
    "split-Q, one reading for two": (warps.forward_split_q, {"group": 2}),
    "split-K, every tile": (warps.forward_split_k, {"exchange": "tile"}),
    "split-K, at the end": (warps.forward_split_k, {"exchange": "end"}),
}
BACKWARDS = {"split-Q": warps.backward_split_q, "split-K": warps.backward_split_k}
SIZES = [(8, 12), (7, 13), (1, 9), (9, 1), (3, 5), (5, 0), (0, 5)]


def warp_tiles(call, block_n, count):
    """What each warp takes of each tile, as `Call.budget` takes key ranges: the finest cut of any split."""
    parts = [(j.start + part.start, j.start + part.stop) for j in blocks(call.k.shape[-2], block_n)
             for part in warps.shares(j.stop - j.start, count)]  # fmt: skip
    return tuple(parts) or ((0, 0),)


def folding(name, call, block_n, count):
    """(key ranges, kind, order) of what a split adds up: dealt to the warps in turn, where each keeps its own."""
    if name.startswith("split-Q"):
        return spans(call, block_n), AccState, sequential
    order = streams(count, then=flat) if name == "split-K, at the end" else sequential
    return warp_tiles(call, block_n, count), AccState, order


@pytest.mark.parametrize("name", FORWARDS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_every_split_gives_attention(lib, name, count):
    run, options = FORWARDS[name]
    for queries, keys in SIZES:
        call = random_call(1, None, queries, keys, 4, 3)
        state = run(*call.arrays(lib, "float32"), warps=count, block_n=5, **options)
        judge(call.certified(), state, call.budget("float32", *folding(name, call, 5, count)))


@pytest.mark.parametrize("name", BACKWARDS)
@pytest.mark.parametrize("count", [1, 2, 3, 4, 8])
def test_every_split_gives_the_gradients(lib, name, count):
    for queries, keys in SIZES:
        call = random_call(2, None, queries, keys, 4, 3)
        do, dlse = losses(call)
        arrays = call.arrays(lib, "float64")
        o, lse = flash_attention(*arrays)
        delta = lib.array(np.sum(do * values(o), axis=-1) - dlse, "float64")
        got = BACKWARDS[name](lib.array(do, "float64"), delta, *arrays, lse, warps=count, block_m=3)
        right = attention_gradient(do, dlse, call.q, call.k, call.v)
        within(got, right, [2 * b for b in bounds(Library("numpy"), call, do, dlse)])  # the definition rounds as much
        assert all(dtype_name(g) == "float64" for g in got)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("queries, keys, tiles", [(8, 4, 3), (4, 8, 1), (16, 4, 2)])
def test_the_forward_moves_what_the_laws_say(count, queries, keys, tiles):
    arrays = random_call(3, None, queries, keys * tiles, 2).arrays(Library("numpy"), "float32")
    for name, (run, options) in FORWARDS.items():
        counts = SharedCounts()
        run(*arrays, warps=count, block_n=keys, counts=counts, **options)
        law = laws.forward_split_q if run is warps.forward_split_q else laws.forward_split_k
        assert counts == law(queries, keys, 2, tiles, count, **options), name


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("queries, keys, tiles", [(4, 8, 3), (8, 4, 1), (4, 16, 2)])
def test_the_backward_moves_what_the_laws_say(count, queries, keys, tiles):
    call = random_call(4, None, queries * tiles, keys, 2)
    arrays = call.arrays(Library("numpy"), "float32")
    o, lse = flash_attention(*arrays)
    for name, run in BACKWARDS.items():
        counts = SharedCounts()
        run(o, lse, *arrays, lse, warps=count, block_m=queries, counts=counts)
        law = laws.backward_split_q if name == "split-Q" else laws.backward_split_k
        assert counts == law(queries, keys, 2, tiles, count), name


def test_an_iteration_of_flash_attention_1_exchanges_what_the_ledger_says():
    # claims:B48: of 64 rows and d = 128 on 4 warps, 512 statistics and 32768 outputs are written.
    one, two = (laws.forward_split_k(64, 64, 128, tiles).written for tiles in (1, 2))
    step = two - one
    assert step["max"] + step["sum"] == 512 and step["out"] == 32768
    assert not {"max", "sum", "out"} & set(laws.forward_split_q(64, 64, 128, 2).written)  # claims:B49
    assert laws.forward_split_k(64, 64, 128, 2, exchange="end").written["out"] == one["out"]


def test_the_backward_has_no_free_split():
    # Sums of float32 against weights of 16 bits: 4·w·Br·d bytes and 2·2·Br·Bc, equal where w·d = Bc.
    def exchanged(keys, dim, count):
        split_k, split_q = (law(64, keys, dim, 1, count) for law in (laws.backward_split_k, laws.backward_split_q))
        return split_k.bytes("dq"), split_q.bytes("p", "ds")

    assert exchanged(256, 64, 4) == (131072, 131072)
    assert exchanged(128, 64, 4) == (131072, 65536) and exchanged(128, 128, 8) == (524288, 65536)


def test_bytes_are_two_for_tensors_and_four_for_sums():
    counts = laws.forward_split_k(64, 64, 128, 1)
    numbers = {name: counts.written[name] + counts.read[name] for name in ("q", "k", "v", "max", "sum", "out")}
    assert counts.bytes() == 2 * sum(numbers[n] for n in "qkv") + 4 * sum(numbers[n] for n in ("max", "sum", "out"))
    assert counts.bytes("max") == 4 * numbers["max"]


def test_nothing_is_read_before_a_barrier():
    shared = SharedMemory()
    shared.write("max", np.ones((2, 1)), 1)
    with pytest.raises(RuntimeError, match="max of warp 1 is read without a barrier after it was written"):
        shared.read("max", 1)
    shared.barrier()
    assert holds(shared.read("max", 1, slice(0, 1)), [[1.0]])
    assert shared.counts == SharedCounts({"max": 2}, {"max": 1}, 1)
    with pytest.raises(KeyError):
        shared.read("max", 0)


def test_keys_of_score_minus_infinity_are_no_keys(lib):
    q, k, v = (lib.array(x) for x in ([[1.0], [0.5]], [[-INF]] * 3 + [[0.0]], [[9.0], [9.0], [9.0], [5.0]]))
    for run, options in FORWARDS.values():
        for count in (1, 2, 4):
            o, lse = run(q, k, v, warps=count, block_n=2, scale=1.0, **options)
            assert holds(o, [[5.0], [5.0]]) and holds(lse, [0.0, 0.0])
            o, lse = run(q, k[:3], v[:3], warps=count, block_n=2, scale=1.0, **options)
            assert holds(o, [[0.0], [0.0]]) and holds(lse, [-INF, -INF])


def test_shares_are_even_and_cover_all():
    assert warps.shares(10, 4) == [slice(0, 3), slice(3, 6), slice(6, 8), slice(8, 10)]
    assert warps.shares(2, 3) == [slice(0, 1), slice(1, 2), slice(2, 2)]


def test_bad_input_is_named(lib):
    arrays = random_call(5, None, 3, 4, 2).arrays(lib, "float32")
    for run, options in FORWARDS.values():
        with pytest.raises(ValueError, match="warps must be at least 1; got 0"):
            run(*arrays, warps=0, **options)
        with pytest.raises(ValueError, match="block_n must be at least 1; got 0"):
            run(*arrays, block_n=0, **options)
        with pytest.raises(ValueError, match="q must have 2 axes"):
            run(*(x[None] for x in arrays), **options)
        with pytest.raises(TypeError, match="q must be a NumPy array or a torch tensor; got list"):
            run([1], *arrays[1:], **options)
        with pytest.raises(TypeError, match="counts must be a SharedCounts or None; got dict"):
            run(*arrays, counts={}, **options)
    with pytest.raises(ValueError, match="group must be at least 1; got 0"):
        warps.forward_split_q(*arrays, group=0)
    with pytest.raises(ValueError, match='exchange must be "tile" or "end"; got \'never\''):
        warps.forward_split_k(*arrays, exchange="never")
    q, k, v = arrays
    for run in BACKWARDS.values():
        for name, at in (("do", 0), ("delta", 1), ("lse", 5)):
            given = [v[:3], q[:, 0], q, k, v, q[:, 0]]
            given[at] = given[at][:2]
            with pytest.raises(ValueError, match=f"{name} must have shape "):
                run(*given)
            given[at] = None
            with pytest.raises(TypeError, match=f"{name} must be a NumPy array or a torch tensor; got NoneType"):
                run(*given)
    for law in (laws.forward_split_q, laws.forward_split_k, laws.backward_split_q, laws.backward_split_k):
        with pytest.raises(ValueError, match="tiles must be at least 1; got 0"):
            law(4, 4, 2, 0)


def test_16_bit_inputs_are_worked_in_float32(lib):
    call = random_call(6, None, 4, 9, 4)
    for name, (run, options) in FORWARDS.items():
        state = run(*call.arrays(lib, "bfloat16"), warps=2, block_n=4, **options)
        assert dtype_name(state.o) == "bfloat16" and dtype_name(state.lse) == "float32"
        judge(call.certified(), state, call.budget("bfloat16", *folding(name, call, 4, 2)))
