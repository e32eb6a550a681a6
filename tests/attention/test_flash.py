"""FlashAttention forward: both algorithms against the oracle, any blocks in any order, and what nobody sees."""

import itertools

import numpy as np
import pytest

from fdmath import AccState, LSEState, MLOState, attention, flash_attention, merge, sequential
from fdmath import _backends as backends
from fdmath.algebra.rounding import format_of, in_float64, merge_budget
from fdmath.attention.flash1 import flash_attention_1
from fdmath.attention.reference import prepare
from fdmath.attention.tiles import DEFAULT_BLOCK, Tiles, arrangement, blocks, without_unseen
from fdmath.cost.counts import Counts
from tests.algebra.judgement import judge
from tests.algebra.libraries import dtype_name, holds, same, same_state, values
from tests.attention.calls import CALLS, INF, NAN, Call, as_on_gpu, random_call, random_mask

BLOCKS = [(1, 1), (2, 3), (3, 2), (None, None), (1, 16)]
FORWARDS = {"2": (flash_attention, AccState), "1": (flash_attention_1, MLOState)}


def spans(call, block_n, order=None):
    """The key blocks as `Call.budget` takes them, in the order of their visits."""
    keys = blocks(call.k.shape[-2], block_n or DEFAULT_BLOCK)
    keys = [(j.start, j.stop) for j in keys] or [(0, 0)]
    return tuple(keys[index] for index in (range(len(keys)) if order is None else order))


# Against the definition


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("version", FORWARDS)
def test_any_blocks_give_the_definition(lib, call, dtype, version):
    forward, kind = FORWARDS[version]
    arrays, options = call.arrays(lib, dtype), call.options(lib)
    for block_m, block_n in BLOCKS if dtype == "float32" else BLOCKS[1:3]:
        state = forward(*arrays, block_m=block_m, block_n=block_n, **options)
        assert type(state) is LSEState and dtype_name(state.o) == dtype_name(state.lse) == dtype
        judge(call.certified(), state, call.budget(dtype, spans(call, block_n), kind, sequential))


@pytest.mark.parametrize("divide", ["sum", "parts", "factors"])
def test_the_three_ways_to_normalise_are_one(lib, divide):
    for name in ("grouped heads, dv < d", "causal, empty rows", "scores near 1000"):
        call = CALLS[name]
        state = flash_attention_1(*call.arrays(lib, "float32"), block_n=2, divide=divide, **call.options(lib))
        judge(call.certified(), state, call.budget("float32", spans(call, 2), MLOState, sequential))


def test_key_blocks_may_come_in_any_order(lib):
    # claims:B25: unguarded, a row block that starts on what it does not see is NaN.
    call = random_call(1, (4, 2), 6, 7, 3, 2, causal=True)
    arrays = call.arrays(lib, "float32")
    for order in itertools.permutations(range(4)):
        state = flash_attention(*arrays, block_m=3, block_n=2, order=order, causal=True)
        judge(call.certified(), state, call.budget("float32", spans(call, 2, order), AccState, sequential))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("version", FORWARDS)
def test_16_bit_inputs_are_rounded_once(lib, dtype, version):
    forward, kind = FORWARDS[version]
    call = CALLS["grouped heads, dv < d"]
    state = forward(*call.arrays(lib, dtype), block_m=2, block_n=3)
    assert dtype_name(state.o) == dtype and dtype_name(state.lse) == "float32"
    worst = judge(call.certified(), state, call.budget(dtype, spans(call, 3), kind, sequential))
    assert worst.o >= 0.01  # else an empty promise


@pytest.mark.parametrize("queries, keys", [(1, 1), (7, 13), (13, 7), (31, 31), (0, 5), (5, 0), (1, 37)])
@pytest.mark.parametrize("causal", [False, True])
def test_lengths_that_no_block_divides(lib, queries, keys, causal):
    # faults:F9, H10
    call = random_call(2, (2, 1), queries, keys, 4, 3, causal=causal)
    for forward, kind in FORWARDS.values():
        for block_m, block_n in ((4, 4), (5, 3), (64, 64)):
            state = forward(*call.arrays(lib, "float32"), block_m=block_m, block_n=block_n, causal=causal)
            judge(call.certified(), state, call.budget("float32", spans(call, block_n), kind, sequential))


# What a call decides


@pytest.mark.parametrize("forward", [forward for forward, _ in FORWARDS.values()])
def test_small_answers_known_by_heart(lib, forward):
    def run(q, k, v, **options):
        return forward(*(lib.array(x) for x in (q, k, v)), block_m=2, block_n=2, **options)

    ones, counting = np.zeros((1, 4, 1)), np.arange(1.0, 5.0).reshape(1, 4, 1)
    assert holds(run(np.zeros((1, 1, 1)), ones, counting, causal=True).o, [[[2.5]]])  # faults:F1
    o, lse = run(np.zeros((1, 4, 1)), ones[:, :2], counting[:, :2], causal=True)
    assert holds(o, [[[0.0], [0.0], [1.0], [1.5]]]) and holds(lse[0, :2], [-INF, -INF])  # claims:B20
    heads = np.arange(2.0).reshape(2, 1, 1)
    assert holds(run(np.zeros((4, 1, 1)), np.zeros((2, 1, 1)), heads).o[:, 0, 0], [0, 0, 1, 1])  # faults:G1
    assert holds(run(np.zeros((8, 1, 1)), np.zeros((2, 1, 1)), heads).o[:, 0, 0], [0] * 4 + [1] * 4)  # faults:G2
    state = run([[1.0]], [[0.0], [np.log(3.0)]], [[1.0], [0.0]], scale=1.0)
    assert np.abs(values(state.o)[0, 0] - 0.25) <= 2.0**-24  # claims:B01, one unit of a number below one half
    state = run(np.full((1, 1), 1.0), np.full((3, 1), -INF), np.ones((3, 1)), scale=1.0)
    assert holds(state.o, [[0.0]]) and holds(state.lse, [-INF])  # claims:F17


def test_the_scale_is_that_of_the_true_width(lib):
    # faults:F13: 80 columns, not the 128 that a kernel pads them to.
    call = CALLS["d = 80, dv = 1"]
    state = flash_attention(*call.arrays(lib, "float32"), block_n=7)
    judge(call.certified(), state, call.budget("float32", spans(call, 7), AccState, sequential))


@pytest.mark.parametrize("forward", [forward for forward, _ in FORWARDS.values()])
def test_what_no_query_sees_changes_nothing(lib, forward):
    # faults:F10: a query without a key, a key without a query, in q, k and v.
    call, mask = random_call(3, (2, 1), 4, 6, 3, batch=(2,)), np.ones((2, 1, 4, 6), dtype=bool)
    mask[..., 4:], mask[:, :, 2], mask[1] = False, False, False
    rows, keys = mask.any(axis=-1)[..., None], mask.any(axis=-2)[..., None]

    def run(poison):
        spoiled = [np.where(seen, x, poison) for seen, x in ((rows, call.q), (keys, call.k), (keys, call.v))]
        return forward(*(lib.array(x) for x in spoiled), block_m=3, block_n=2, mask=lib.mask(mask))

    clean = run(0.0)
    for poison in (NAN, INF, -INF):
        assert same_state(run(poison), clean)
    assert holds(clean.o[1], np.zeros((2, 4, 3))) and np.all(values(clean.lse[1]) == -INF)


def test_later_keys_do_not_change_earlier_rows(lib):
    # faults:F4, F5
    call = random_call(4, (2, 2), 7, 7, 3, causal=True)
    later = Call(call.q, *(np.where(np.arange(7)[:, None] == 6, 9.0, x) for x in (call.k, call.v)))
    for forward, _ in FORWARDS.values():
        first, second = (forward(*c.arrays(lib, "float32"), block_m=3, block_n=2, causal=True) for c in (call, later))
        for x, y in zip(first, second, strict=True):
            assert same(x[:, :6], y[:, :6]) and not same(x[:, 6:], y[:, 6:])


@pytest.mark.parametrize("forward", [forward for forward, _ in FORWARDS.values()])
def test_a_nan_that_is_seen_comes_out(lib, forward):
    clean = {"k": np.zeros((2, 5, 1)), "v": np.ones((2, 5, 1))}
    for name, bad, at in itertools.product("kv", (NAN, INF), (0, 4)):
        if name == "v" and bad == INF:
            continue  # unspecified
        spoiled = {n: np.where((np.arange(5)[:, None] == at) & (np.arange(2)[:, None, None] == 1) & (n == name), bad, x)
                   for n, x in clean.items()}  # fmt: skip
        o, _ = forward(lib.array(np.ones((2, 3, 1))), *(lib.array(x) for x in spoiled.values()), block_m=2, block_n=2)
        assert np.isnan(values(o[1])).all() and holds(o[0], np.ones((3, 1)))


def test_a_state_merges_with_any_other(lib):
    call = random_call(5, (2, 1), 3, 8, 4)
    halves = [Call(call.q, call.k[:, part], call.v[:, part]) for part in (slice(0, 3), slice(3, 8))]
    flash = flash_attention(*halves[0].arrays(lib, "float32"), block_n=2)
    whole = attention(*halves[1].arrays(lib, "float32"))
    budgets = halves[0].budget("float32", spans(halves[0], 2), AccState, sequential), halves[1].budget("float32")
    exact = [attention(*half.arrays(lib, "float64")) for half in halves]
    budget = merge_budget(*map(in_float64, exact), format_of("float32"), *budgets)
    judge(call.certified(), merge(flash, whole), budget)


# Blocks


def test_blocks_cover_every_row_once():
    assert blocks(7, 3) == [slice(0, 3), slice(3, 6), slice(6, 7)]
    assert blocks(0, 3) == [] and blocks(2, 5) == [slice(0, 2)]


@pytest.mark.parametrize("queries, keys", [(4, 4), (3, 7), (7, 3), (1, 5)])
def test_a_causal_block_is_skipped_or_full_exactly_where_it_can_be(queries, keys):
    # What the counts of a call say of its blocks: a mask is applied only where a row of the block sees a part.
    call = random_call(13, (1, 1), queries, keys, 2, causal=True)
    seen = call.visible()[0]
    for block_m, block_n in ((1, 1), (2, 1), (1, 2), (2, 3)):
        tiles = Tiles(prepare(call.q, call.k, call.v, causal=True), block_m, block_n)
        for i, j in itertools.product(tiles.rows, tiles.columns):
            kind = "full" if seen[i, j].all() else "masked" if seen[i, j].any() else "skipped"
            assert tiles.kind(i, j) == kind


def test_a_causal_call_blanks_the_rows_without_a_key(lib):
    for queries, keys in ((5, 2), (3, 2), (2, 5), (1, 0), (4, 4)):
        call = prepare(*random_call(6, (4, 2), queries, keys, 3).arrays(lib, "float32"), causal=True)
        ours = without_unseen(call)
        assert same(ours.q, call.without_unseen().q)
        assert ours is call or queries > keys  # nothing is copied where all is read


def test_nothing_is_copied_for_a_group_of_heads(lib):
    tiles = Tiles(prepare(*random_call(7, (6, 2), 3, 5, 4).arrays(lib, "float32")), 2, 2)
    assert tuple(tiles.k.shape) == (2, 1, 5, 4) and tuple(tiles.q.shape) == (2, 3, 3, 4) and tiles.heads == 6


def test_counts_add_up_over_calls(lib):
    arrays, counts, once = random_call(8, (2, 1), 4, 4, 2).arrays(lib, "float32"), Counts(), Counts()
    flash_attention(*arrays, counts=once)
    for _ in range(2):
        flash_attention(*arrays, counts=counts)
    assert counts.exponentials == 2 * once.exponentials > 0 and counts.moved == 2 * once.moved > 0


# Bad input


def test_bad_input_is_named(lib):
    arrays = random_call(9, (2, 1), 4, 6, 2).arrays(lib, "float32")
    for forward, _ in FORWARDS.values():
        for name in ("block_m", "block_n"):
            with pytest.raises(ValueError, match=f"{name} must be at least 1; got 0"):
                forward(*arrays, **{name: 0})
            with pytest.raises(TypeError, match=f"{name} must be an integer; got 2.0"):
                forward(*arrays, **{name: 2.0})
        with pytest.raises(ValueError, match="k must have the head dimension of q"):
            forward(arrays[0], arrays[1][..., :1], arrays[2])
        with pytest.raises(TypeError, match="mask must be boolean"):
            forward(*arrays, mask=arrays[0])
    with pytest.raises(ValueError, match=r"order must hold each of the 3 blocks 0 to 2 once; got \[0, 0, 1\]"):
        flash_attention(*arrays, block_n=2, order=[0, 0, 1])
    with pytest.raises(TypeError, match="order must be an integer"):
        arrangement([0.5], [slice(0, 1)])
    with pytest.raises(TypeError, match="order must be a sequence of the blocks' indices; got 3"):
        flash_attention(*arrays, order=3)
    for forward, _ in FORWARDS.values():
        with pytest.raises(TypeError, match="counts must be a Counts or None; got int"):
            forward(*arrays, counts=5)
    with pytest.raises(ValueError, match=r"divide must be .*; got \['sum'\]"):
        flash_attention_1(*arrays, divide=["sum"])
    with pytest.raises(ValueError, match='divide must be "sum", "parts" or "factors"; got \'both\''):
        flash_attention_1(*arrays, divide="both")


def test_backends_by_name(lib):
    arrays = random_call(10, (2, 1), 4, 6, 2).arrays(lib, "float32")
    assert same_state(flash_attention(*arrays, backend=lib.name), flash_attention(*arrays))
    with pytest.raises(ValueError, match='backend must be "auto", "numpy", "torch" or "triton"; got \'cuda\''):
        flash_attention(*arrays, backend="cuda")
    other = "torch" if lib.name == "numpy" else "numpy"
    with pytest.raises(RuntimeError, match=f"backend '{other}' cannot run on arrays of {lib.name}"):
        flash_attention(*arrays, backend=other)


def test_the_kernel_is_asked_for_what_it_cannot_do(torch_lib):
    arrays = random_call(11, (2, 1), 4, 6, 2).arrays(torch_lib, "float32")
    for asked in ({"block_m": 2}, {"block_n": 2}, {"order": [0]}, {"counts": Counts()}):
        with pytest.raises(RuntimeError, match=f"backend 'triton' cannot run: its kernel takes no {[*asked][0]}"):
            flash_attention(*arrays, backend="triton", **asked)
    with pytest.raises(RuntimeError, match="backend 'triton' cannot run: .+"):
        flash_attention(*arrays, backend="triton")  # tensors of the CPU, or no Triton at all


def test_auto_alone_may_take_the_fastest_kernel(torch_lib, monkeypatch):
    # backend="triton" names the readable kernels, whatever the card.
    kernels = {"refusal": lambda *_: None, "flash_attention_by_kernel": lambda *_, fastest: fastest}
    arrays = [as_on_gpu(x) for x in random_call(11, (2, 1), 4, 6, 2).arrays(torch_lib, "float32")]
    monkeypatch.setattr(backends, "load", lambda path: kernels[path.removeprefix("fdmath.kernels.flash:")])
    assert flash_attention(*arrays) is True and flash_attention(*arrays, backend="triton") is False


def test_masks_of_random_shape(lib):
    for seed, shape in enumerate([(2, 4, 5, 9), (2, 1, 5, 9), (1, 4, 1, 9), (5, 1), (9,)]):
        call = random_call(seed, (4, 2), 5, 9, 3, batch=(2,), mask=random_mask(seed, *shape), causal=seed % 2 == 0)
        for forward, kind in FORWARDS.values():
            state = forward(*call.arrays(lib, "float32"), block_m=2, block_n=4, **call.options(lib))
            judge(call.certified(), state, call.budget("float32", spans(call, 4), kind, sequential))


def test_a_gradient_of_flash_attention_1_is_refused_and_not_dropped(torch_lib):
    arrays = random_call(12, (2, 1), 4, 6, 2).arrays(torch_lib, "float32")
    plain = flash_attention_1(*arrays)
    o, lse = state = flash_attention_1(arrays[0].requires_grad_(), *arrays[1:])
    assert same_state(LSEState(o.detach(), lse.detach()), plain) and type(state) is LSEState
    for x in state:
        with pytest.raises(RuntimeError, match="flash_attention_1 has no gradient; fdmath.flash_attention has"):
            x.sum().backward(retain_graph=True)
