"""FlashDecoding: every order, spelling and split against the oracle, and what must not depend on the split."""

from itertools import cycle

import numpy as np
import pytest

import fdmath
from fdmath import (
    AccState,
    LSEState,
    MLOState,
    attention,
    backend_for,
    flat,
    flat_printed,
    merge_all,
    ring,
    sequential,
    split_kv_attention,
    streams,
    tree,
)
from fdmath.algebra.merge import unstack
from fdmath.algebra.rounding import unit_roundoff
from fdmath.attention.decode import DEFAULT_TILE, choose, key_ranges, tile_states
from fdmath.attention.reference import prepare
from tests.algebra.judgement import judge
from tests.algebra.libraries import FORMATS, dtype_name, holds, same_state, values
from tests.algebra.states import KINDS
from tests.attention.calls import CALLS, INF, NAN, Call, as_on_gpu, random_call, random_mask

ORDERS = {
    "flat": flat,
    "sequential": sequential,
    "tree": tree,
    "streams(5)": streams(5),
    "streams(4, then=flat)": streams(4, then=flat),
    "streams(2, then=sequential)": streams(2, then=sequential),
    "ring(1)": ring(1),
}
# Document A's programs: 3.1.2 the single stream, 3.1.3 triples in 5 streams and a tree, 3.2.2 pairs in 4 and flat.
DOCUMENT_A = [
    {"kind": AccState, "order": sequential},
    {"kind": AccState, "order": streams(5, then=tree)},
    {"kind": LSEState, "order": streams(4, then=flat)},
]


# Against the definition


def tiles(call, **cut):
    """The tiles of a call, as `Call.budget` takes them."""
    return tuple(key_ranges(call.k.shape[-2], **cut))


def splits(keys):
    """Ways of cutting: single keys, tiles that do not divide, one tile, uneven splits, more splits than keys."""
    return [{"tile": 1}, {"tile": 2}, {"num_splits": 3}, {"tile": 5}, {"num_splits": 1}, {"num_splits": keys + 2},
            {"tile": keys + 1}, {"num_splits": 7}, {}]  # fmt: skip


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
def test_every_order_and_spelling_is_the_definition(lib, call, dtype):
    exact, arrays, cuts = call.certified(), call.arrays(lib, dtype), cycle(splits(call.k.shape[-2]))
    for kind in KINDS:
        for order in ORDERS.values():
            cut = next(cuts)
            state = split_kv_attention(*arrays, **cut, kind=kind, order=order, **call.options(lib))
            assert type(state) is LSEState and dtype_name(state.o) == dtype_name(state.lse) == dtype
            judge(exact, state, call.budget(dtype, tiles(call, **cut), kind, order))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("kind", KINDS)
def test_16_bit_inputs_are_rounded_once(lib, kind, dtype):
    call = CALLS["grouped heads, dv < d"]
    for order in ORDERS.values():
        state = split_kv_attention(*call.arrays(lib, dtype), tile=2, kind=kind, order=order)
        assert dtype_name(state.o) == dtype and dtype_name(state.lse) == "float32"
        worst = judge(call.certified(), state, call.budget(dtype, tiles(call, tile=2), kind, order))
        assert worst.o >= 0.01  # else an empty promise


@pytest.mark.parametrize("program", DOCUMENT_A)
@pytest.mark.parametrize("keys", [1, 2, 7, 40, 257])
def test_the_programs_of_document_a(lib, program, keys):
    # With its default tile of 256 keys, and with a tile of 3: fewer tiles than streams gave NaN there (claims:F1).
    call = random_call(1, (2, 2), 1, keys, 8)
    for tile in (256, 3):
        state = split_kv_attention(*call.arrays(lib, "float32"), tile=tile, **program)
        judge(call.certified(), state, call.budget("float32", tiles(call, tile=tile), **program))


def test_one_part_is_attention_itself(lib):
    call = random_call(2, (4, 2), 3, 13, 5, batch=(2,), mask=random_mask(2, 13))
    arrays, options = call.arrays(lib, "float32"), call.options(lib)
    if lib.name == "torch":
        arrays[0].requires_grad_()  # else the product is NumPy's, and NumPy against torch is never promised
    whole = attention(*arrays, **options)
    for order in ORDERS.values():
        assert same_state(split_kv_attention(*arrays, num_splits=1, order=order, **options), whole)


@pytest.mark.parametrize("level", [0.0, 1e3, 1e5])
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_ones_come_out_as_one_at_every_level(lib, level, order):
    # claims:M-a: the printed pairs give 1.00007 at level 1000 and 63 times too much in 16 bits.
    rng = np.random.default_rng(3)
    keys = lib.array(level + rng.standard_normal((40, 1)))
    for kind in KINDS:
        o = split_kv_attention(lib.array([[1.0]]), keys, lib.array(np.ones((40, 1))), tile=1, kind=kind, order=order).o
        assert holds(o, [[1.0]])


# The split


def test_key_ranges_of_tiles():
    assert key_ranges(7, tile=3) == [(0, 3), (3, 6), (6, 7)]
    assert key_ranges(6, tile=3) == [(0, 3), (3, 6)]
    assert key_ranges(2, tile=3) == [(0, 2)]
    assert key_ranges(0, tile=3) == [(0, 0)]
    assert key_ranges(2 * DEFAULT_TILE + 1) == key_ranges(2 * DEFAULT_TILE + 1, tile=DEFAULT_TILE)
    assert len(key_ranges(2 * DEFAULT_TILE + 1)) == 3


def test_key_ranges_of_splits_are_even_and_lose_no_key():
    # faults:C1: ⌊n/S⌋ keys a split would lose the last ones.
    assert key_ranges(7, num_splits=2) == [(0, 4), (4, 7)]
    for keys in range(12):
        for parts in range(1, 15):
            ranges = key_ranges(keys, num_splits=parts)
            assert len(ranges) == parts
            assert [j for start, stop in ranges for j in range(start, stop)] == list(range(keys))
            sizes = {stop - start for start, stop in ranges}
            assert max(sizes) - min(sizes) <= 1


def test_the_parts_are_really_made(lib):
    # faults:C11: a split that is dropped passes every test of values.
    seen = []

    def counted(merge, states):
        seen.append([values(s.lse).ravel().tolist() for s in states])
        return flat(merge, states)

    call = random_call(4, (1, 1), 1, 7, 3)
    q, k, v = call.arrays(lib, "float32")
    for cut, sizes in (({"tile": 3}, [3, 3, 1]), ({"num_splits": 9}, [1, 1, 1, 1, 1, 1, 1, 0, 0]), ({}, [7])):
        split_kv_attention(lib.array(np.zeros_like(call.q)), k, v, **cut, order=counted)
        assert [round(float(np.exp(lse[0]))) for lse in seen.pop()] == sizes


def test_seven_equal_keys_in_two_splits(lib):
    # faults:C1: floor division gives 2.5 and log 6.
    call = Call(np.zeros((1, 1)), np.zeros((7, 1)), np.arange(7.0)[:, None])
    state = split_kv_attention(*call.arrays(lib, "float32"), num_splits=2)
    judge(call.certified(), state, call.budget("float32", tiles(call, num_splits=2)))
    assert call.certified().o_mid.item() == 3.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [flat, sequential])
def test_splits_beyond_the_keys_change_no_bit(lib, kind, order):
    # faults:C5, C4: empty parts behind, and between, the full ones.
    call = random_call(5, (2, 1), 2, 3, 4)
    arrays = call.arrays(lib, "float32")
    single = split_kv_attention(*arrays, tile=1, kind=kind, order=order)
    for num_splits in (3, 4, 9, 50):
        assert same_state(split_kv_attention(*arrays, num_splits=num_splits, kind=kind, order=order), single)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_nothing_visible_is_the_empty_state(lib, kind, order):
    q, k, v = random_call(6, (4, 2), 3, 5, 2, 4).arrays(lib, "float16")
    for state in (
        split_kv_attention(q, k[:, :0], v[:, :0], num_splits=3, kind=kind, order=order),
        split_kv_attention(q, k[:, :0], v[:, :0], tile=2, kind=kind, order=order),
        split_kv_attention(q, k, v, tile=2, mask=lib.mask(False), kind=kind, order=order),
    ):
        assert holds(state.o, np.zeros((4, 3, 4))) and holds(state.lse, np.full((4, 3), -INF))
        assert dtype_name(state.o) == "float16" and dtype_name(state.lse) == "float32"


@pytest.mark.parametrize("kind", KINDS)
def test_a_fully_masked_part_changes_no_bit(lib, kind):
    call = random_call(7, (2, 1), 2, 9, 4)
    q, k, v = call.arrays(lib, "float32")
    mask = np.ones(9, dtype=bool)
    mask[3:6] = False
    bad = lib.array(np.where(mask[:, None], call.v, NAN))
    kept = [lib.array(np.delete(x, [3, 4, 5], axis=-2)) for x in (call.k, call.v)]
    for order in (flat, sequential):
        hidden = split_kv_attention(q, k, bad, tile=3, mask=lib.mask(mask), kind=kind, order=order)
        assert same_state(hidden, split_kv_attention(q, *kept, tile=3, kind=kind, order=order))


@pytest.mark.parametrize("poison", [NAN, INF, -INF])
@pytest.mark.parametrize("kind", KINDS)
def test_what_no_query_sees_changes_nothing(lib, kind, poison):
    call = random_call(8, (4, 2), 3, 9, 5, 4, batch=(2,))
    mask = random_mask(8, 9) & (np.arange(9) != 4)
    options = {"tile": 2, "kind": kind, "mask": lib.mask(mask), "causal": True}
    q, k, v = call.arrays(lib, "float32")
    bad_k, bad_v = (lib.array(np.where(mask[:, None], x, poison)) for x in (call.k, call.v))
    for order in ORDERS.values():
        assert same_state(split_kv_attention(q, bad_k, bad_v, order=order, **options),
                          split_kv_attention(q, k, v, order=order, **options))  # fmt: skip


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS.values(), ids=ORDERS)
def test_a_seen_nan_stays_with_its_sequence_and_kv_head(lib, kind, order):
    call = random_call(9, (4, 2), 2, 7, 3, batch=(3,))
    q, k, v = call.arrays(lib, "float32")
    plain = split_kv_attention(q, k, v, tile=2, kind=kind, order=order)
    for name in ("k", "v"):
        bad = {"k": call.k.copy(), "v": call.v.copy()}
        bad[name][1, 0, 3] = NAN
        state = split_kv_attention(q, lib.array(bad["k"]), lib.array(bad["v"]), tile=2, kind=kind, order=order)
        hit = np.zeros((3, 4, 2), dtype=bool)
        hit[1, :2] = True
        assert np.isnan(values(state.o)[hit]).all()
        for x, y in zip(state, plain, strict=True):
            assert np.array_equal(values(x)[~hit], values(y)[~hit])


def test_the_future_cannot_be_seen(lib):
    # faults:F5: with Nq queries at the end, changing the last key changes the last query's row alone.
    call = random_call(10, (2, 1), 4, 9, 3)
    q, k, v = call.arrays(lib, "float32")
    other = [lib.array(np.where(np.arange(9)[:, None] == 8, 5.0, x)) for x in (call.k, call.v)]
    for cut in splits(9):
        before, after = (split_kv_attention(q, *kv, causal=True, **cut) for kv in ((k, v), other))
        for x, y in zip(before, after, strict=True):
            assert np.array_equal(values(x)[:, :3], values(y)[:, :3])
            assert np.all(values(x)[:, 3:] != values(y)[:, 3:])


# Statistics in lower formats (claims:M-c)


@pytest.mark.parametrize("order", [flat, sequential])
def test_low_statistics_cost_the_pair_its_accuracy_and_the_triple_little(lib, order):
    rng = np.random.default_rng(12)
    k = np.round(256 * (1000.0 + rng.standard_normal((64, 1)))) / 256
    signs = rng.choice([-1.0, 1.0], (16, 8))  # one sign a tile: o sees nothing but the weights of the tiles
    call = Call(np.ones((1, 1)), k, np.repeat(signs, 4, axis=0), scale=1.0)
    unit, errors = unit_roundoff("bfloat16"), {}
    for kind in KINDS:
        options = {"scale": 1, "tile": 4, "kind": kind, "order": order, "stats_dtype": "bfloat16"}
        state = split_kv_attention(*call.arrays(lib, "float32"), **options)
        assert dtype_name(state.o) == "float32" and dtype_name(state.lse) == "bfloat16"
        errors[kind] = np.max(np.abs(values(state.o) - call.certified().o_mid)) / unit
    # l of a triple is rounded when it is made and in 15 merges at most: each shifts weights, and so o, by 2 u.
    # A pair's lse near 1000 is rounded by up to 2, its weights by up to e².
    assert max(errors[MLOState], errors[AccState]) <= 2 * 16 < errors[LSEState]


# Backends


def test_the_backend_is_the_arrays_own(lib):
    call = random_call(13, (2, 1), 2, 5, 3)
    arrays = call.arrays(lib, "float32")
    assert backend_for(*arrays) == lib.name
    expected = split_kv_attention(*arrays, tile=2)
    assert type(expected.o) is type(arrays[0])
    for backend in ("auto", lib.name):
        assert same_state(split_kv_attention(*arrays, tile=2, backend=backend), expected)


def test_a_backend_that_cannot_run_says_so(lib):
    arrays = random_call(13, (2, 1), 2, 5, 3).arrays(lib, "float32")
    other = {"numpy": "torch", "torch": "numpy"}[lib.name]
    with pytest.raises(RuntimeError, match=rf"^backend '{other}' cannot run on arrays of {lib.name}$"):
        split_kv_attention(*arrays, backend=other)
    with pytest.raises(RuntimeError, match=r"^backend 'triton' cannot run"):
        split_kv_attention(*arrays, backend="triton")
    for wrong in ("cuda", "", None, 1):
        with pytest.raises(ValueError, match=r'^backend must be "auto", "numpy", "torch" or "triton"; got '):
            split_kv_attention(*arrays, backend=wrong)


def test_auto_takes_the_kernel_for_what_it_can_do_on_a_gpu(torch_lib):
    def missing(*_, **asked):
        raise ImportError("no Triton", name="triton")

    arrays = random_call(13, (2, 1), 2, 5, 3).arrays(torch_lib, "float32")
    for refusal, expected in ((lambda *_, **asked: None, "triton"), (lambda *_, **asked: "no order", "torch"),
                              (missing, "torch")):
        assert choose("auto", refusal, *map(as_on_gpu, arrays)) == expected
        assert choose("auto", refusal, *arrays) == "torch"


# Bad input


@pytest.fixture
def no_work(monkeypatch):
    """Forming a score fails the test: bad input is refused before any work."""

    def scores(*_):
        pytest.fail("a score was formed from bad input")

    monkeypatch.setattr(fdmath.attention.reference.Call, "scores", scores)


def test_bad_splits_are_refused_by_name(lib, no_work):
    arrays = random_call(14, (2, 1), 2, 5, 3).arrays(lib, "float32")
    for name in ("tile", "num_splits"):
        for wrong in (0, -1):
            with pytest.raises(ValueError, match=rf"^{name} must be at least 1; got {wrong}$"):
                split_kv_attention(*arrays, **{name: wrong})
        for wrong in (2.0, "2", True, [2]):
            with pytest.raises(TypeError, match=rf"^{name} must be an integer; got "):
                split_kv_attention(*arrays, **{name: wrong})
    with pytest.raises(ValueError, match=r"^give tile or num_splits, not both; got tile=2 and num_splits=3$"):
        split_kv_attention(*arrays, tile=2, num_splits=3)
    with pytest.raises(TypeError, match=r"^kind must be MLOState, AccState or LSEState; got 'pair'$"):
        split_kv_attention(*arrays, kind="pair")
    with pytest.raises(TypeError, match=r"^order must be callable, order\(merge, states\) → state; got 'tree'$"):
        split_kv_attention(*arrays, order="tree")
    with pytest.raises(TypeError, match="positional"):
        split_kv_attention(*arrays, 2)


def test_integers_of_numpy_count_as_integers(lib):
    arrays = random_call(14, (2, 1), 2, 5, 3).arrays(lib, "float32")
    assert same_state(split_kv_attention(*arrays, tile=np.int64(2)), split_kv_attention(*arrays, tile=2))
    assert same_state(split_kv_attention(*arrays, num_splits=np.int32(2)), split_kv_attention(*arrays, num_splits=2))


def test_flat_printed_folds_the_pairs_of_a_call(lib):
    # claims:A29 through our own call: at level 1000 the printed weights do not sum to 1, ours do.
    keys, ones = lib.array(1000.0 + np.random.default_rng(15).standard_normal((40, 1))), lib.array(np.ones((40, 1)))
    printed = split_kv_attention(lib.array([[1.0]]), keys, ones, tile=4, order=flat_printed)
    ours = split_kv_attention(lib.array([[1.0]]), keys, ones, tile=4)
    off, small = (abs(values(s.o).item() - 1.0) / unit_roundoff("float32") for s in (printed, ours))
    # Ours: a tile sums its 4 ones in two orders and divides (9 u); flat has the same 10 weights above and below,
    # 10 products, sums and a quotient (21 u). The printed weights err by the rounding of S near 1000 (512 u) alone.
    assert small <= 9 + 21 < 100 < off


def test_tile_states_are_the_states_of_the_tiles(lib):
    call = random_call(16, (4, 2), 3, 7, 5, batch=(2,))
    prepared = prepare(*call.arrays(lib, "float32"))
    for kind in KINDS:
        states = tile_states(prepared, [(0, 3), (3, 3), (3, 7)], kind)
        assert type(states) is kind and tuple(states.payload.shape) == (3, 2, 2, 6, 5)
        filled = unstack(states)[::2]
        assert same_state(prepared.finish(merge_all(states, flat)), prepared.finish(merge_all(filled, flat)))
        judge(call.certified(), prepared.finish(merge_all(states)), call.budget("float32", ((0, 3), (3, 7)), kind))


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_formats_of_a_call(lib, dtype):
    arrays = random_call(17, (2, 1), 2, 5, 3).arrays(lib, dtype)
    work = "float64" if dtype == "float64" else "float32"
    for kind in KINDS:
        for order in ORDERS.values():
            state = split_kv_attention(*arrays, tile=2, kind=kind, order=order)
            assert (dtype_name(state.o), dtype_name(state.lse)) == (dtype, work)
            formats = {"out_dtype": "float64", "stats_dtype": "float32"}
            state = split_kv_attention(*arrays, tile=2, kind=kind, order=order, **formats)
            assert (dtype_name(state.o), dtype_name(state.lse)) == ("float64", "float32")
