"""The split-KV kernels in Triton's interpreter: run by `test_interpreted.py` in a process of its own."""

import math
import tracemalloc
from dataclasses import replace

import numpy as np
import pytest
import torch

from fdmath import AccState, LSEState, backend_for, split_kv_attention, tree
from fdmath.kernels.split_kv import STEPS, decode_by_step, prepare, split_kv_decode, workspace_size
from tests.attention.calls import Call, numbers, random_call
from tests.kernels.calls import DECODE, judged, with_lengths

FORMATS = ("float32", "float16", "bfloat16")


def tensors(call, dtype="float32"):
    """q, k and v of a call as torch tensors."""
    return [torch.from_numpy(x).to(getattr(torch, dtype)) for x in (call.q, call.k, call.v)]


def run(call, dtype="float32", **options):
    """What the kernel makes of a call."""
    return split_kv_decode(*tensors(call, dtype), causal=call.causal, scale=call.scale, **options)


def equal(a, b):
    """Whether two states are equal bit for bit, NaN equal to NaN."""
    return all(x.dtype == y.dtype and torch.equal(torch.nan_to_num(x, 7.0), torch.nan_to_num(y, 7.0))
               and torch.equal(x.isnan(), y.isnan()) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", DECODE)
def test_every_call_is_within_its_budget(name, dtype):
    call = DECODE[name]
    state = run(call, dtype, num_splits=3)
    assert str(state.o.dtype) == f"torch.{dtype}" and state.lse.dtype == torch.float32
    judged(call, dtype, state, num_splits=3)


@pytest.mark.parametrize("splits", [{"num_splits": n} for n in (1, 9, 70)] + [{"tile": 1}, {"tile": 16}])
def test_any_cut_of_the_keys_is_within_its_budget(splits):
    for name in ("grouped heads, dv < d", "causal, N > Nq"):
        judged(DECODE[name], "float32", run(DECODE[name], **splits), **splits)


@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_within_the_budget(step):
    call = random_call(41, (4, 2), 1, 150, 16, batch=(2,))
    judged(call, "float32", decode_by_step(step, *tensors(call), num_splits=3), num_splits=3)


def test_splits_are_what_they_say_and_their_states_are_made():
    call = random_call(42, (2, 1), 1, 10, 16)
    q, k, v = tensors(call)
    space = torch.full((workspace_size(q, k, v, num_splits=4) + 5,), math.nan)
    split_kv_decode(q, k, v, num_splits=4, workspace=space)
    states = space[:4 * 2 * 16].view(4, 2, 16), space[4 * 2 * 16:4 * 2 * 17].view(4, 2)
    for s, (start, stop) in enumerate([(0, 3), (3, 6), (6, 8), (8, 10)]):  # 10 keys in 4 parts, the larger first
        alone = split_kv_decode(q, k[:, start:stop], v[:, start:stop], num_splits=1)
        assert equal((states[0][s], states[1][s]), (alone.o[:, 0], alone.lse[:, 0]))
    assert space[-5:].isnan().all()  # nothing is written beyond what workspace_size says


@pytest.mark.parametrize("dtype", FORMATS)
def test_lengths_and_starts_are_those_keys_alone(dtype):
    call = random_call(43, (4, 2), 2, 21, 8, 5, batch=(4,), causal=True)
    starts, lens = [0, 5, 21, 20], [21, 0, 0, 1]
    q, k, v = tensors(call, dtype)
    state = split_kv_decode(q, k, v, num_splits=3, causal=True, seq_starts=torch.tensor(starts),
                            seq_lens=torch.tensor(lens, dtype=torch.int32))
    for b, alone in enumerate(with_lengths(call, starts, lens)):
        judged(alone, dtype, LSEState(state.o[b:b + 1], state.lse[b:b + 1]), num_splits=3)
    assert (state.lse[1:3] == -math.inf).all() and (state.o[1:3] == 0).all()


def test_slots_that_are_not_in_use_and_what_memory_held_before_change_nothing():
    q, k, v = tensors(random_call(44, (4, 2), 1, 19, 8, batch=(3,)))
    starts, lens = torch.tensor([0, 4, 19]), torch.tensor([19, 3, 0])
    want = split_kv_decode(q, k, v, seq_starts=starts, seq_lens=lens, num_splits=4)
    slot = torch.arange(19)
    hidden = (slot < starts[:, None]) | (slot >= (starts + lens)[:, None])
    for bad in (math.nan, math.inf):
        dirty = [x.masked_fill(hidden[:, None, :, None], bad) for x in (k, v)]
        out = torch.full_like(want.o, bad), torch.full_like(want.lse, bad)
        space = torch.full((workspace_size(q, k, v, num_splits=4),), bad)
        got = split_kv_decode(q, *dirty, seq_starts=starts, seq_lens=lens, num_splits=4, out=out, workspace=space)
        assert got.o is out[0] and got.lse is out[1]
        assert equal(got, want)


def test_a_nan_that_is_seen_stays_in_its_row_and_head():
    q, k, v = tensors(random_call(45, (4, 2), 1, 11, 8, batch=(2,)))
    want = split_kv_decode(q, k, v, num_splits=3)
    for x, place in ((k, (0, 1, 7, 2)), (v, (0, 1, 7, 2)), (q, (0, 3, 0, 1))):
        bad = x.clone()
        bad[place] = math.nan
        got = split_kv_decode(*(bad if x is y else y for y in (q, k, v)), num_splits=3)
        rows = [2, 3] if x is not q else [3]
        assert got.o[0, rows].isnan().any(-1).all()
        others = [h for h in range(4) if h not in rows]
        assert equal((got.o[0, others], got.lse[0, others]), (want.o[0, others], want.lse[0, others]))
        assert equal((got.o[1], got.lse[1]), (want.o[1], want.lse[1]))


def test_a_score_of_infinity_gives_nan():
    q, k, v = torch.ones(1, 1, 1, 16), torch.zeros(1, 1, 5, 16), torch.ones(1, 1, 5, 16)
    k[0, 0, 3] = math.inf
    with np.errstate(invalid="ignore"):
        assert split_kv_decode(q, k, v, num_splits=2).o.isnan().all()


def test_with_tiles_a_row_has_the_same_bits_alone_and_in_any_batch():
    q, k, v = tensors(random_call(46, (4, 2), 1, 60, 16, batch=(3,)))
    lens, starts = torch.tensor([17, 60, 33]), torch.tensor([0, 0, 20])
    together = split_kv_decode(q, k, v, seq_lens=lens, seq_starts=starts, tile=7)
    for b, (start, length) in enumerate(zip(starts.tolist(), lens.tolist(), strict=True)):
        keys = slice(start, start + length)
        alone = split_kv_decode(q[b:b + 1], k[b:b + 1, :, keys], v[b:b + 1, :, keys], tile=7)
        assert equal((alone.o[0], alone.lse[0]), (together.o[b], together.lse[b]))


def test_with_tiles_the_number_of_parts_that_others_have_moves_no_bit():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 16, 1, 8), torch.randn(2, 4, 23, 8), torch.randn(2, 4, 23, 8)
    together = split_kv_decode(q, k, v, seq_lens=torch.tensor([16, 23]), tile=4)  # 4 parts beside 6
    alone = split_kv_decode(q[:1], k[:1, :, :16], v[:1, :, :16], tile=4)
    assert equal((alone.o[0], alone.lse[0]), (together.o[0], together.lse[0]))


def test_a_row_that_sees_no_key_is_nothing_beside_one_that_sees_nan():
    q, v = torch.ones(1, 1, 2, 16), torch.full((1, 1, 1, 16), math.nan)
    for splits in (1, 2):
        o, lse = split_kv_decode(q, torch.ones(1, 1, 1, 16), v, causal=True, num_splits=splits)
        assert (o[0, 0, 0] == 0).all() and lse[0, 0, 0] == -math.inf and o[0, 0, 1].isnan().all()


def test_a_scale_that_float32_cannot_hold_is_0():
    q, k, v = tensors(random_call(50, (2, 1), 1, 9, 8))
    assert equal(split_kv_decode(q, k, v, scale=1e-50), split_kv_decode(q, k, v, scale=0.0))


@pytest.mark.parametrize(("cut", "same"), [
    ({"tile": 2**70}, {"tile": 9}),
    ({"tile": np.int64(2)}, {"tile": 2}),
    ({"num_splits": np.int64(3)}, {"num_splits": 3}),
])  # fmt: skip
def test_a_cut_may_be_any_integer(cut, same):
    q, k, v = tensors(random_call(52, (2, 1), 1, 9, 8))
    assert equal(split_kv_decode(q, k, v, **cut), split_kv_decode(q, k, v, **same))
    assert all(type(number) in (int, bool) for number in prepare(q, k, v).plan(**cut))  # what a launch takes


def test_layouts_are_read_and_written_where_they_lie():
    q, k, v = tensors(random_call(47, (4, 2), 2, 13, 8, 5, batch=(2,)))
    want = split_kv_decode(q, k, v, num_splits=2)
    last = [x.transpose(1, 2).contiguous().transpose(1, 2) for x in (q, k, v)]  # (B, N, H, d) in memory
    out = torch.empty(2, 2, 4, 5).transpose(1, 2), torch.empty(4, 2, 2).permute(1, 0, 2)
    assert equal(split_kv_decode(*last, num_splits=2, out=out), want)
    wide = [torch.cat([x, x + 1], -1)[..., :x.shape[-1]] for x in (q, k, v)]
    assert equal(split_kv_decode(*wide, num_splits=2), want)
    one = split_kv_decode(q[0], k[0], v[0], num_splits=2)
    assert equal((one.o, one.lse), (want.o[0], want.lse[0])) and one.o.shape == (4, 2, 5)
    deep = split_kv_decode(*(x[:, None].expand(-1, 1, -1, -1, -1) for x in (q, k, v)), num_splits=2)
    assert deep.o.shape == (2, 1, 4, 2, 5) and equal((deep.o[:, 0], deep.lse[:, 0]), (want.o, want.lse))
    with pytest.raises(ValueError, match=r"^q must have leading axes that fold into one without a copy"):
        split_kv_decode(*(x[None].expand(2, -1, -1, -1, -1).transpose(0, 1) for x in (q, k, v)))


@pytest.mark.parametrize("dtype", FORMATS)
def test_what_is_1_everywhere_stays_1_within_an_ulp(dtype):
    call = random_call(48, (2, 1), 1, 200, 16)
    q, k, v = tensors(call, dtype)
    state = split_kv_decode(q, k, torch.ones_like(v), num_splits=3)
    if dtype == "float32":  # P is not rounded, but summed in another order above and below the fraction bar
        judged(Call(call.q, call.k, np.ones_like(call.v)), dtype, state, num_splits=3)
    else:
        spacing = torch.finfo(state.o.dtype).eps
        assert ((state.o >= 1 - spacing / 2) & (state.o <= 1 + spacing)).all()


def test_many_weights_below_the_format_are_not_lost_beside_a_large_one():
    q, k = torch.zeros(1, 1, 1, 16), torch.zeros(1, 1, 1 + 2**15, 16)
    q[..., 0], k[0, 0, 1:, 0] = 1, -25 - 2.0**-6  # weights 1 and 2¹⁵ times not quite 2⁻²⁵: as they stand, all become 0
    state = split_kv_decode(q.half(), k.half(), torch.ones_like(k).half(), scale=math.log(2), num_splits=1)
    assert (state.o >= 1 - torch.finfo(torch.float16).eps / 2).all()


def test_a_query_sees_the_keys_up_to_its_own_place_counted_from_the_end():
    q, v = torch.zeros(1, 1, 3, 16), torch.arange(1.0, 6.0).view(1, 1, 5, 1).expand(-1, -1, -1, 16).contiguous()
    state = split_kv_decode(q, torch.zeros(1, 1, 5, 16), v, causal=True, num_splits=1)
    assert state.o[0, 0, :, 0].tolist() == [2.0, 2.5, 3.0]  # the means of 1 … 3, 1 … 4, 1 … 5: exact in float32
    few = split_kv_decode(q, torch.zeros(1, 1, 2, 16), v[:, :, :2], causal=True, num_splits=1)
    assert few.o[0, 0, :, 0].tolist() == [0.0, 1.0, 1.5] and few.lse[0, 0, 0] == -math.inf


def test_lengths_beyond_the_cache_are_cut_or_refused():
    q, k, v = tensors(random_call(49, (2, 1), 1, 6, 8, batch=(2,)))
    whole = split_kv_decode(q, k, v, num_splits=2)
    assert equal(split_kv_decode(q, k, v, num_splits=2, seq_lens=torch.tensor([99, 6])), whole)
    cut = split_kv_decode(q, k, v, num_splits=2, seq_lens=torch.tensor([-1, 6]), seq_starts=torch.tensor([-3, 0]))
    assert (cut.lse[0] == -math.inf).all() and equal((cut.o[1], cut.lse[1]), (whole.o[1], whole.lse[1]))
    before = split_kv_decode(q, k, v, num_splits=2, seq_lens=torch.tensor([3, 1]), seq_starts=torch.tensor([-2, -1]))
    one = split_kv_decode(q, k, v, num_splits=2, seq_lens=torch.tensor([1, 0]))  # of −2, −1, 0 the cache has slot 0
    assert equal(before, one)
    far = split_kv_decode(q, k, v, num_splits=2, seq_lens=torch.tensor([2**63 - 1, 6]), seq_starts=torch.tensor([1, 0]))
    assert equal(far, split_kv_decode(q, k, v, num_splits=2, seq_lens=torch.tensor([5, 6]),
                                      seq_starts=torch.tensor([1, 0])))
    for lens, starts in (([7, 6], None), ([-1, 6], None), ([6, 6], [0, 1]), ([2**63 - 1, 3], [1, 0])):
        starts = None if starts is None else torch.tensor(starts)
        with pytest.raises(ValueError, match=r"^seq_lens must be from 0 to the 6 slots of the cache"):
            split_kv_decode(q, k, v, seq_lens=torch.tensor(lens), seq_starts=starts, check=True)
    with pytest.raises(ValueError, match=r"^seq_starts must be from 0 to 6"):
        split_kv_decode(q, k, v, seq_starts=torch.tensor([0, 7]), check=True)
    assert equal(split_kv_decode(q, k, v, num_splits=2, seq_lens=torch.tensor([6, 6]), check=True), whole)


def test_a_replayed_graph_refuses_lengths_whose_sum_passes_2_to_the_63():
    call = prepare(*tensors(random_call(53, (2, 1), 1, 6, 8, batch=(2,))), seq_lens=torch.tensor([2**63 - 1, 3]),
                   seq_starts=torch.tensor([1, 0]))
    o, lse = torch.empty(2, 2, 1, 8), torch.empty(2, 2, 1)
    replace(call, poison=True).run(call.plan(num_splits=1), o, lse)
    assert lse[0].isnan().all() and o[0].isnan().all() and lse[1].isfinite().all()


MEMORY = torch.zeros(1000)
DOUBLE = torch.zeros(2, 4, 1, 8, dtype=torch.float64)
BAD = {
    "groups": (ValueError, "q must have a number of heads", {"q": torch.zeros(2, 3, 1, 8)}),
    "head dimensions": (ValueError, "k must have the head dimension of q, 8; got 4", {"k": torch.zeros(2, 2, 6, 4)}),
    "batch": (ValueError, "k must have the leading axes of q", {"k": torch.zeros(1, 2, 6, 8)}),
    "keys": (ValueError, "v must have the heads and keys of k", {"v": torch.zeros(2, 2, 5, 8)}),
    "dtypes": (TypeError, "v must have the dtype of q", {"v": torch.zeros(2, 2, 6, 8, dtype=torch.float16)}),
    "double": (TypeError, "q must be float16, bfloat16 or float32; got float64", {"q": DOUBLE}),
    "integers": (TypeError, "q must have a float dtype", {"q": torch.zeros(2, 4, 1, 8).int()}),
    "arrays": (TypeError, "k must be of the same library", {"k": np.zeros((2, 2, 6, 8), np.float32)}),
    "stride": (ValueError, "k must have a last axis of stride 1; got 6", {"k": torch.zeros(2, 2, 8, 6).mT}),
    "queries": (ValueError, "q must have at most 16 queries", {"q": torch.zeros(2, 4, 17, 8)}),
    "wide": (ValueError, "q must have a head dimension from 1 to 256; got 257",
             {"q": torch.zeros(2, 4, 1, 257), "k": torch.zeros(2, 2, 6, 257)}),
    "narrow": (ValueError, "v must have a head dimension from 1 to 256; got 0", {"v": torch.zeros(2, 2, 6, 0)}),
    "splits": (ValueError, "num_splits must be at least 1; got 0", {"num_splits": 0}),
    "tile": (ValueError, "tile must be at least 1; got 0", {"tile": 0}),
    "half a split": (TypeError, "num_splits must be an integer", {"num_splits": 1.5}),
    "both": (ValueError, "give tile or num_splits, not both", {"tile": 2, "num_splits": 2}),
    "too many": (ValueError, "there must be at most 65535 splits; got 70000", {"num_splits": 70000}),
    "meta": (TypeError, "q must be on a CUDA device, or TRITON_INTERPRET=1 .* got meta",
             {x: torch.zeros(2, 2, 6, 8, device="meta") for x in "qkv"}),
    "causal": (TypeError, "causal must be True or False; got 1", {"causal": 1}),
    "check": (TypeError, "check must be True or False; got None", {"check": None}),
    "scale": (ValueError, "scale must be finite", {"scale": math.inf}),
    "a scale beyond float32": (ValueError, r"scale must be finite in float32.* got 1e\+39", {"scale": 1e39}),
    "a scale that log₂e takes beyond float32": (ValueError, "scale must be finite in float32", {"scale": 2.5e38}),
    "lengths' shape": (ValueError, r"seq_lens must have shape \(2,\); got \(1,\)", {"seq_lens": torch.tensor([1])}),
    "lengths' stride": (ValueError, "seq_lens must be contiguous; got stride 2", {"seq_lens": torch.arange(4)[::2]}),
    "lengths' dtype": (TypeError, "seq_starts must be a tensor of torch.int32", {"seq_starts": torch.zeros(2)}),
    "list": (TypeError, "seq_lens must be a tensor of .* got list", {"seq_lens": []}),
    "out": (ValueError, "out must hold o of shape", {"out": (torch.zeros(2, 4, 1, 7), torch.zeros(2, 4, 1))}),
    "out's dtype": (TypeError, "out must hold lse as a tensor of torch.float32",
                    {"out": (torch.zeros(2, 4, 1, 8), torch.zeros(2, 4, 1).half())}),
    "no out": (TypeError, r"out must be a pair \(o, lse\); got int", {"out": 5}),
    "half an out": (TypeError, r"out must be a pair \(o, lse\); got 1 of them", {"out": (torch.zeros(2, 4, 1, 8),)}),
    "o alone": (TypeError, r"out must be a pair \(o, lse\); got torch.float32", {"out": torch.zeros(2, 4, 1, 8)}),
    "o repeated": (ValueError, "out's o must not repeat its memory",
                   {"out": (torch.zeros(1, 1, 1, 8).expand(2, 4, 1, 8), torch.zeros(2, 4, 1))}),
    "lse repeated": (ValueError, "out's lse must not repeat its memory",
                     {"out": (torch.zeros(2, 4, 1, 8), torch.zeros(1).expand(2, 4, 1))}),
    "lse in o": (ValueError, "out's o must not lie in the memory of out's lse",
                 {"out": (MEMORY[:64].view(2, 4, 1, 8), MEMORY[60:68].view(2, 4, 1))}),
    "o in v": (ValueError, "out's o must not lie in the memory of v",
               {"v": MEMORY[:192].view(2, 2, 6, 8), "out": (MEMORY[191:255].view(2, 4, 1, 8), torch.zeros(2, 4, 1))}),
    "workspace in k": (ValueError, "workspace must not lie in the memory of k",
                       {"k": MEMORY[143:335].view(2, 2, 6, 8), "workspace": MEMORY, "num_splits": 2}),
    "workspace in out": (ValueError, "out's lse must not lie in the memory of workspace",
                         {"out": (torch.zeros(2, 4, 1, 8), MEMORY[136:144].view(2, 4, 1)), "workspace": MEMORY,
                          "num_splits": 2}),
    "workspace": (ValueError, "workspace must have at least 144 numbers; got 143",
                  {"workspace": torch.zeros(143), "num_splits": 2}),
    "workspace's stride": (ValueError, r"workspace must be contiguous; got strides \(2,\)",
                           {"workspace": torch.zeros(288)[::2], "num_splits": 2}),
    "no workspace": (TypeError, "workspace must be a tensor of torch.float32",
                     {"workspace": "junk", "num_splits": 1}),
    "workspace's dtype": (TypeError, "workspace must be a tensor of torch.float32",
                          {"workspace": torch.zeros(144).half(), "num_splits": 2}),
}  # fmt: skip


@pytest.mark.parametrize("name", BAD)
def test_bad_input_raises_and_writes_nothing(name):
    error, text, wrong = BAD[name]
    arrays = {"q": torch.zeros(2, 4, 1, 8), "k": torch.zeros(2, 2, 6, 8), "v": torch.zeros(2, 2, 6, 8)}
    out = torch.full((2, 4, 1, 8), 7.0), torch.full((2, 4, 1), 7.0)
    with pytest.raises(error, match="^" + text):
        split_kv_decode(**{**arrays, **({} if "out" in wrong else {"out": out}), **wrong})
    assert (out[0] == 7).all() and (out[1] == 7).all()


def test_what_a_launch_or_32_bits_cannot_count_is_refused():
    q, one = torch.zeros(2, 4, 1, 8), torch.zeros(2, 2, 1, 8)  # `prepare` alone: no kernel starts were they taken
    for keys in (2**30 + 1, 2**31 + 5):
        with pytest.raises(ValueError, match=f"^k must have at most 1073741824 rows a head; got {keys}"):
            prepare(q, *2 * [one.expand(2, 2, keys, 8)])
    assert prepare(q, *2 * [one.expand(2, 2, 2**30, 8)]).plan(tile=2**30).num_splits == 1
    with pytest.raises(ValueError, match="^q must have at most 65535 heads a sequence; got 65536"):
        prepare(q[:, :1].expand(2, 2**16, 1, 8), one, one)


def test_too_many_splits_are_refused_before_they_are_listed():
    q, one = torch.zeros(2, 4, 1, 8), torch.zeros(2, 2, 1, 8)
    tracemalloc.start()
    with pytest.raises(ValueError, match="^there must be at most 65535 splits; got 100000"):
        split_kv_decode(q, one, one, num_splits=100000)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 100000  # bytes: a list of them has a pointer each


def test_outputs_may_lie_between_each_others_rows_and_in_memory_that_is_not_used():
    q, k, v = tensors(random_call(51, (4, 2), 1, 9, 8, batch=(2,)))
    want = split_kv_decode(q, k, v, num_splits=3)
    packed = torch.full((2, 4, 1, 9), math.nan)
    got = split_kv_decode(q, k, v, num_splits=3, out=(packed[..., :8], packed[..., 8]))
    assert equal(got, want) and packed.isfinite().all()
    needed = workspace_size(q, k, v, num_splits=3)
    space = torch.full((needed + 64,), math.nan)
    got = split_kv_decode(q, k, v, num_splits=3, workspace=space, out=(space[needed:].view(2, 4, 1, 8), want.lse))
    assert equal(got, want)


def test_flags_are_checked_whichever_way_the_kernel_is_called():
    arrays = tensors(DECODE["causal, N > Nq"])
    with pytest.raises(TypeError, match="^causal must be True or False; got 'no'"):
        split_kv_attention(*arrays, causal="no", backend="triton")
    with pytest.raises(ValueError, match="^scale must be finite in float32"):
        split_kv_attention(*arrays, scale=1e39, backend="triton")
    assert equal(split_kv_decode(*arrays, causal=np.True_), split_kv_decode(*arrays, causal=True))


@pytest.mark.parametrize(("error", "text", "change"), [
    (ValueError, "step must be one of", {"step": []}),
    (ValueError, "num_splits must be at least 1; got -3", {"num_splits": -3}),
    (TypeError, "num_splits must be an integer; got 'x'", {"num_splits": "x"}),
    (ValueError, "the first step takes at most 3 sequences; got 4", {x: torch.zeros(4, 1, 1, 16) for x in "qkv"}),
])  # fmt: skip
def test_bad_input_of_a_step_raises(error, text, change, monkeypatch):
    monkeypatch.setattr("fdmath.kernels.checks.MOST_HEADS", 3)
    q = torch.zeros(1, 1, 1, 16)
    with pytest.raises(error, match="^" + text):
        decode_by_step(**{"step": "one program a head", "q": q, "k": q, "v": q, **change})


@pytest.mark.parametrize("dtype", FORMATS)
def test_split_kv_attention_runs_it_by_name(dtype):
    call = DECODE["causal, N > Nq"]
    arrays = tensors(call, dtype)
    options = {"num_splits": 3, "causal": True, "scale": 0.5}
    want = split_kv_decode(*arrays, **options)
    assert equal(split_kv_attention(*arrays, **options, backend="triton"), want)
    wide = split_kv_attention(*arrays, **options, backend="triton", out_dtype="float32")
    assert wide.o.dtype == torch.float32 and torch.equal(wide.o.to(arrays[0].dtype), want.o)
    assert backend_for(*arrays) == "torch"  # on a CPU "auto" does not interpret


@pytest.mark.parametrize(("text", "options"), [
    ("its kernel takes no mask", {"mask": torch.ones(1, dtype=torch.bool)}),
    ("its kernel merges pairs", {"kind": AccState}),
    ("its kernel merges pairs", {"order": tree}),
    ("its kernel keeps statistics in float32", {"stats_dtype": "float16"}),
    ("its kernel keeps statistics in float32", {"out_dtype": torch.float64}),
])  # fmt: skip
def test_what_it_cannot_do_is_refused_by_name(text, options):
    arrays = tensors(DECODE["causal, N > Nq"])
    with pytest.raises(RuntimeError, match=f"^backend 'triton' cannot run: {text}"):
        split_kv_attention(*arrays, backend="triton", **options)
    with pytest.raises(RuntimeError, match=r"^backend 'triton' cannot run: its kernel has no gradient"):
        split_kv_attention(arrays[0].requires_grad_(), *arrays[1:], backend="triton")
    with pytest.raises(RuntimeError, match=r"^backend 'triton' cannot run: q must be float16, bfloat16 or float32"):
        split_kv_attention(*(x.detach().double() for x in arrays), backend="triton")


def test_numbers_are_what_the_formats_hold():
    for dtype in (torch.float16, torch.bfloat16):  # the calls above lose nothing on the way into 16 bits
        x = torch.from_numpy(numbers(np.random.default_rng(0), 1000))
        assert torch.equal(x.to(dtype).double(), x)
