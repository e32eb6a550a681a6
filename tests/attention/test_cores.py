"""The states of tiles in place: cut into blocks, shared by threads, converted in parts, never copied whole."""

import contextlib
import dataclasses
import importlib
import os
import subprocess
import sys
import threading
import tracemalloc
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

import fdmath
from fdmath import AccState, LSEState, attention, split_kv_attention
from fdmath import _backends as backends
from fdmath.algebra.merge import unstack
from fdmath.attention import cores
from fdmath.attention.cores import Desk, Piece, block_keys, on_cores, pieces, states_in_place
from fdmath.attention.decode import key_ranges
from fdmath.attention.reference import prepare
from tests.algebra.judgement import judge
from tests.algebra.libraries import Library, same_state
from tests.attention.calls import random_call, random_mask

LONG = {
    "ragged blocks": random_call(30, (8, 1), 1, 391, 16, 4),
    "one row": random_call(31, (2, 2), 1, 300, 8, 3),
    "16 rows, masked": random_call(32, (4, 1), 4, 300, 8, 3, mask=random_mask(32, 4, 300)),
    "one head, masked": random_call(42, None, 3, 300, 8, 3, mask=random_mask(42, 3, 300)),
    "33 rows, causal": random_call(33, (3, 1), 11, 150, 4, 2, batch=(2,), causal=True),
}


@pytest.fixture
def small(monkeypatch):
    """Threads for any work, and pieces of 256 keys, so that every path is taken by few keys."""
    monkeypatch.setattr(cores, "SHARED", 0)
    monkeypatch.setattr(cores, "PIECE", 256)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("call", LONG.values(), ids=LONG)
def test_every_cut_lies_within_the_budget(lib, call, dtype, small):
    keys = call.k.shape[-2]
    for cut in ({"tile": keys}, {"tile": 100}, {"tile": 128}, {"num_splits": 7}):
        ranges = tuple(key_ranges(keys, **cut))
        for kind in (LSEState, AccState):
            state = split_kv_attention(*call.arrays(lib, dtype), **cut, kind=kind, **call.options(lib))
            judge(call.certified(), state, call.budget(dtype, ranges, kind))


def test_the_number_of_threads_changes_no_bit(small):
    arrays = LONG["ragged blocks"].arrays(Library("numpy"), "float32")
    call = prepare(*arrays)
    one, three = (states_in_place(dataclasses.replace(call, threads=n), key_ranges(391, tile=60))
                  for n in (1, 3))
    assert same_state(one, three)


def test_inputs_stay_as_they_are(small):
    arrays = [x.astype(np.float32) for x in (LONG["ragged blocks"].q, LONG["ragged blocks"].k, LONG["ragged blocks"].v)]
    before = [x.copy() for x in arrays]
    split_kv_attention(*arrays, tile=50)
    assert all(np.array_equal(x, y) for x, y in zip(arrays, before, strict=True))


def test_rows_of_another_stride_are_read_where_they_lie(small):
    call = random_call(34, (4, 2), 1, 290, 8, batch=(3,))
    heads_first = call.arrays(Library("numpy"), "float32")
    keys_first = [np.ascontiguousarray(x.swapaxes(1, 2)).swapaxes(1, 2) for x in heads_first]
    assert not keys_first[1].flags.c_contiguous
    assert same_state(split_kv_attention(*heads_first, tile=100), split_kv_attention(*keys_first, tile=100))


def test_pieces_are_neighbours_of_one_length():
    threes = [(0, 3), (3, 6), (6, 9), (9, 10)]
    assert pieces(threes, keys=6) == [Piece(0, 2, 0, 3), Piece(2, 1, 6, 3), Piece(3, 1, 9, 1)]
    assert pieces([(0, 0), (0, 9), (9, 9)], keys=6) == [Piece(1, 1, 0, 9)]
    assert pieces([(0, 2), (4, 6)], keys=6) == [Piece(0, 1, 0, 2), Piece(1, 1, 4, 2)]
    assert pieces([(0, 3), (3, 3), (3, 6)], keys=6) == [Piece(0, 1, 0, 3), Piece(2, 1, 3, 3)]
    assert pieces([], keys=6) == []


def test_a_product_has_1024_weights_at_most():
    assert [block_keys(rows) for rows in (0, 1, 8, 9, 25, 31, 32, 33)] == [128, 128, 128, 113, 40, 33, 32, cores.PIECE]


@pytest.mark.parametrize("rows", [0, 1, 7, 8, 32, 33])
@pytest.mark.parametrize("keys", [1, 31, 128, 129, 5000])
def test_blocks_hold_every_key_once(rows, keys):
    found = [(own, blocks) for own, blocks in cores._blocks(keys, rows)]
    assert [j for own, _ in found for j in range(own.start, own.stop)] == list(range(keys))
    assert all((own.stop - own.start) % (b.stop - b.start) == 0 for own, b in found)
    assert all((own.stop - own.start) // (b.stop - b.start) <= block_keys(rows) for own, b in found)
    assert all(own.stop - own.start <= cores.PIECE for own, _ in found)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_nothing_grows_with_the_keys_but_states_and_scores(dtype):
    # At most: each thread's scores, converted rows of one piece, and sums; the states; and room for small arrays.
    keys, rows, dim, tile = 65536, 8, 16, 2048
    arrays = random_call(35, (rows, 1), 1, keys, dim).arrays(Library("numpy"), dtype)
    call, parts = prepare(*arrays), keys // tile
    tracemalloc.start()
    states_in_place(call, key_ranges(keys, tile=tile))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    each = rows * cores.PIECE + 2 * cores.PIECE * dim + 2 * cores.PIECE // block_keys(rows) * rows * dim
    assert peak <= 4 * (call.threads * each + parts * rows * (dim + 2)) + 2**17
    assert 4 * keys * dim > 2 * peak  # a float32 copy of K alone would be seen


def test_one_hidden_key_does_not_copy_the_cache():
    q, k, v = random_call(36, (2, 1), 1, 32768, 16).arrays(Library("numpy"), "float32")
    mask = np.arange(32768) < 32767
    split_kv_attention(q, k, v, mask=mask)
    tracemalloc.start()
    hidden = split_kv_attention(q, k, v, mask=mask)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert 2 * peak < k.nbytes
    assert same_state(hidden, split_kv_attention(q, k[..., :-1, :], v[..., :-1, :]))


def test_a_head_sees_its_own_rows_of_the_mask_alone(small):
    call = random_call(37, (4, 2), 3, 40, 5, batch=(2,), mask=random_mask(37, 2, 4, 3, 40), causal=True)
    arrays, options = call.arrays(Library("numpy"), "float64"), call.options(Library("numpy"))
    whole = prepare(*arrays, **options).visible(7, 23)
    for head in np.ndindex(2, 2):
        assert np.array_equal(prepare(*arrays, **options).visible(7, 23, head), whole[head])


def test_a_level_that_the_statistics_cannot_hold_is_no_answer():
    # bfloat16 has 32768 and 33024: a level 127 above all scores would leave no weight at all, and look empty.
    q, k, v = np.ones((1, 1), np.float32), np.float32([[32897], [32896]]), np.float32([[1], [3]])
    for fn in (split_kv_attention, attention):
        coarse = fn(q, k, v, scale=1.0, stats_dtype="bfloat16")
        assert np.isnan(coarse.o).all() and np.isnan(coarse.lse.astype(np.float32)).all()
        assert np.isfinite(fn(q, k, v, scale=1.0).o).all()
        assert np.isfinite(fn(q, k - 32896 + 16000, v, scale=1.0, stats_dtype="bfloat16").o).all()


def test_many_short_sequences_are_taken_together():
    many, few = (prepare(*random_call(38, (1, 1), 1, 40, 2, batch=(n,)).arrays(Library("numpy"), "float32"))
                 for n in (17, 16))
    assert cores.pays(few) and not cores.pays(many)
    for heads in ((2, 2), None):  # without an axis of sequences, and without one of heads
        assert cores.pays(prepare(*random_call(38, heads, 1, 40, 2).arrays(Library("numpy"), "float32")))


def test_threads_share_much_work_of_few_rows(monkeypatch):
    workers = []
    monkeypatch.setattr(cores, "on_cores", lambda task, items, count: workers.append(count))
    for rows, spare in ((32, 0), (32, 1), (33, 0)):
        arrays = random_call(40, (rows, 1), 1, 50, 4, 2).arrays(Library("numpy"), "float32")
        call = dataclasses.replace(prepare(*arrays), threads=3)
        monkeypatch.setattr(cores, "SHARED", 50 * (4 + 2) * 4 + spare)  # the bytes of K and V, and one more
        states_in_place(call, [(0, 50)])
    assert workers == [3, 1, 1]


def test_one_worker_is_the_caller():
    # No thread is begun where one is enough, as for little work.
    for items, workers in (([1, 2], 1), ([1], 4)):
        seen = []
        on_cores(lambda desk, item: seen.append(threading.get_ident()), items, workers)  # noqa: B023 - done at once
        assert seen == [threading.get_ident()] * len(items)


def test_what_a_task_raises_is_raised_and_every_item_is_done_once():
    seen, wait = [], threading.Barrier(2, timeout=20)

    def task(desk, item):
        if item < 2:
            wait.wait()  # passes only if two threads work at the same time
        seen.append((item, desk))

    on_cores(task, list(range(7)), 2)
    assert sorted(item for item, _ in seen) == list(range(7)) and len({id(desk) for _, desk in seen}) == 2
    with pytest.raises(ZeroDivisionError):
        on_cores(lambda desk, item: 1 // item, [1, 0], 2)
    on_cores(task, [], 2)


@pytest.mark.parametrize("possible", [0, 1])
def test_where_no_more_threads_begin_the_caller_works_and_no_error_is_lost(monkeypatch, possible):
    class Pool(ThreadPoolExecutor):
        left = possible

        def submit(self, *task):
            if self.left == 0:
                raise RuntimeError("can't start new thread")
            self.left -= 1
            return super().submit(*task)

    def task(desk, item):
        seen.append(item)
        if threading.get_ident() != caller:
            other_has_begun.set()
            raise ZeroDivisionError
        assert possible == 0 or other_has_begun.wait(timeout=20)

    monkeypatch.setattr(cores, "ThreadPoolExecutor", Pool)
    seen, caller, other_has_begun = [], threading.get_ident(), threading.Event()
    with pytest.raises(ZeroDivisionError) if possible else contextlib.nullcontext():
        on_cores(task, [0, 1, 2], 3)
    assert sorted(seen) == [0, 1, 2]


def test_a_desk_keeps_its_memory_and_converts_only_what_it_must():
    desk = Desk()
    first = desk.array("x", (3, 2), np.float32)
    assert np.shares_memory(first, desk.array("x", (2, 2), np.float32))
    assert not np.shares_memory(first, desk.array("x", (4, 2), np.float32))
    x = np.arange(4, dtype=np.float32)
    assert desk.converted("y", x, np.float32) is x
    half = desk.converted("y", x.astype(np.float16), np.float32)
    assert half.dtype == np.float32 and np.array_equal(half, x)


class TestTorch:
    """What torch tensors share with NumPy, and where they must not."""

    torch = pytest.importorskip("torch")

    def test_memory_is_shared_in_every_format(self):
        for dtype in (self.torch.float16, self.torch.bfloat16, self.torch.float32, self.torch.float64):
            x = self.torch.arange(6, dtype=dtype).reshape(2, 3)
            seen = backends.in_memory(x)
            seen[0, 0] = 5
            assert float(x[0, 0]) == 5 and seen.dtype.name == str(dtype).removeprefix("torch.")
            back = backends.from_memory(seen, x)
            assert back.dtype == dtype and back.data_ptr() == x.data_ptr()

    def test_a_followed_tensor_has_no_memory_to_share(self):
        x = self.torch.ones(2, 2, requires_grad=True)
        assert backends.in_memory(x) is None
        with self.torch.no_grad():
            assert backends.in_memory(x) is not None

    @pytest.mark.filterwarnings("ignore::DeprecationWarning")  # torch's own, where a trace begins
    @pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
    def test_traces_and_transforms_see_what_is_done(self):
        q, other, k, v = (self.torch.randn(n, 4) for n in (1, 1, 5, 5))
        tracer = importlib.import_module("torch.fx.experimental.proxy_tensor")
        graph = tracer.make_fx(lambda q: split_kv_attention(q, k, v, tile=2).o)(q)
        traced = self.torch.jit.trace(lambda q: split_kv_attention(q, k, v, tile=2).o, (q,), check_trace=False)
        for fn in (graph, traced, self.torch.func.functionalize(lambda q: split_kv_attention(q, k, v, tile=2).o)):
            right = fdmath.certified_attention(*(x.double().numpy() for x in (other, k, v)))
            assert np.all(np.abs(fn(other).double().numpy() - right.o_mid) <= 2**-16)  # sums of 5 numbers below 8

    @pytest.mark.filterwarnings("ignore:.*torch.jit.script:DeprecationWarning")  # torch.func's own, at its first use
    def test_transforms_and_forward_derivatives_go_the_other_way(self):
        q, k, v = (self.torch.randn(2, n, 4, dtype=self.torch.float64) for n in (1, 9, 9))

        def fn(q):
            return split_kv_attention(q, k, v, tile=2).o.sum()

        _, forward = self.torch.func.jvp(fn, (q,), (self.torch.ones_like(q),))
        backward = self.torch.func.grad(fn)(q).sum()
        assert abs(forward - backward) <= 2**-40 and abs(backward) > 2**-20  # a sum of 8 numbers below 100 in float64

    def test_halves_of_any_stride_are_converted(self):
        x = np.arange(18, dtype=np.float16).reshape(9, 2)
        packed = np.zeros(9, dtype=[("a", np.float16), ("b", np.uint8)])
        packed["a"] = x[:, 0]
        for strange in (x[::-1], x[:, ::-1], packed["a"]):
            out = np.empty(strange.shape, np.float32)
            backends.copy_to(out, strange)
            assert np.array_equal(out, strange)

    def test_halves_are_converted_alike_by_both(self):
        x = np.concatenate([np.arange(2**16, dtype=np.uint16).view(np.float16)])
        ours, theirs = np.empty(2**16, np.float32), np.empty(2**16, np.float32)
        backends.copy_to(ours, x)
        np.copyto(theirs, x)
        assert np.array_equal(ours, theirs, equal_nan=True)


def test_threads_follow_what_was_asked(monkeypatch):
    x = np.zeros(1)
    monkeypatch.setenv("OMP_NUM_THREADS", "3,1")
    assert backends.threads(x) == 3
    for unset in ("", "none", "0"):
        monkeypatch.setenv("OMP_NUM_THREADS", unset)
        assert backends.threads(x) >= 1
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert backends.threads(x) >= 1


def test_states_are_those_of_the_tiles_alone(small):
    call = prepare(*LONG["16 rows, masked"].arrays(Library("numpy"), "float32"))
    ranges = key_ranges(300, tile=90)
    together = unstack(states_in_place(call, ranges))
    alone = [unstack(states_in_place(call, [r]))[0] for r in ranges]
    assert len(together) == 4 and all(same_state(a, b) for a, b in zip(together, alone, strict=True))


def test_a_call_while_python_ends_is_answered():
    code = ("import atexit, numpy as np, fdmath; from fdmath.attention import cores; cores.SHARED = 0;"
            "x = np.ones((8, 4096, 2), np.float32);"
            "atexit.register(lambda: print(fdmath.split_kv_attention(x[:, :1], x, x, tile=64).o.sum()))")
    variables = {**os.environ, "OMP_NUM_THREADS": "2"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=variables)
    assert done.stdout.strip() == "16.0", done.stderr


def test_heads_taken_together_have_the_bits_of_heads_alone(monkeypatch):
    arrays = random_call(39, (12, 4), 1, 700, 16, 8, batch=(2,)).arrays(Library("numpy"), "float32")
    call, ranges = prepare(*arrays), key_ranges(700, tile=90)
    piece = pieces(ranges, cores.PIECE)[0]
    assert cores._heads_together(call, piece)[0] == (0, slice(0, 4))
    together = states_in_place(call, ranges)
    monkeypatch.setattr(cores, "TOGETHER", 0)
    assert cores._heads_together(call, piece)[0] == (0, slice(0, 1))
    assert same_state(together, states_in_place(call, ranges))


def test_heads_taken_together_have_no_more_weights_than_promised(monkeypatch):
    call = prepare(*random_call(41, (14, 7), 1, 600, 4, batch=(2,)).arrays(Library("numpy"), "float32"))
    monkeypatch.setattr(cores, "TOGETHER", 3 * 2 * 600)  # those of 3 KV heads of 2 rows
    threes = [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert cores._heads_together(call, Piece(0, 2, 0, 300)) == [(b, some) for b in range(2) for some in threes]
