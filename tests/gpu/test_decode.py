"""The split-KV and merge kernels compiled, on a CUDA device: steps, graphs, streams, large caches, bits."""

import itertools
import math

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath import LSEState, backend_for, split_kv_attention  # noqa: E402
from fdmath.algebra.rounding import format_of  # noqa: E402
from fdmath.kernels.merge import launch_merge, merge_states  # noqa: E402
from fdmath.kernels.split_kv import STEPS, decode_by_step, split_kv_decode, workspace_size  # noqa: E402
from fdmath.verify import reference  # noqa: E402
from tests.attention.calls import Call, numbers  # noqa: E402
from tests.gpu.tensors import FORMATS, equal, normal  # noqa: E402
from tests.kernels.calls import budget  # noqa: E402


def judge(call, dtype, state, **splits):
    """Nothing; fails unless the state is within its budget of what the oracle, or float64 and its bound, certifies."""
    o, lse = (x.detach().cpu().double().numpy() for x in state)
    right = reference.attention(call.q, call.k, call.v, call.scale, call.visible())
    found = right.judge(LSEState(o, lse), budget(call, dtype, **splits))
    assert found.verdict == "pass", found.detail


def tensors(call, dtype):
    """q, k and v of a call on the device."""
    return [torch.from_numpy(x).to("cuda", getattr(torch, dtype)) for x in (call.q, call.k, call.v)]


@pytest.fixture(autouse=True)
def seed():
    """The same random numbers in every run."""
    torch.manual_seed(0)


@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_within_the_budget(step):
    rng = np.random.default_rng(1)
    call = Call(numbers(rng, 2, 8, 1, 64), numbers(rng, 2, 2, 700, 64), numbers(rng, 2, 2, 700, 64))
    judge(call, "float16", decode_by_step(step, *tensors(call, "float16"), num_splits=5), num_splits=5)


@pytest.mark.parametrize("dtype", FORMATS[:2])
def test_the_errors_of_a_long_decode_are_the_outputs_rounding(dtype):
    shapes = (1, 32, 1, 128), (1, 8, 32768, 128), (1, 8, 32768, 128)
    q, k, v = (normal(*shape, dtype=getattr(torch, dtype)) for shape in shapes)
    o, lse = split_kv_decode(q, k, v)
    scores = q.double() @ k.double().repeat_interleave(4, 1).mT / math.sqrt(128)
    right = torch.softmax(scores, -1) @ v.double().repeat_interleave(4, 1)
    error = ((o.double() - right).norm() / right.norm()).item()
    u = torch.finfo(o.dtype).eps / 2
    assert error <= u  # in the mean, rounding o costs 0.58 u at most, and rounding P almost nothing at 32768 keys
    assert (lse - scores.logsumexp(-1)).abs().max().item() <= 16 * 2**-24 * lse.abs().max().item()


def test_a_graph_replays_with_other_lengths_and_refuses_those_beyond_the_cache():
    q, k, v = normal(4, 8, 1, 128), normal(4, 2, 900, 128), normal(4, 2, 900, 128)
    lens = torch.tensor([900, 3, 0, 451], device="cuda", dtype=torch.int32)
    for check in (False, True):
        split_kv_decode(q, k, v, seq_lens=lens, check=check)
        graph = torch.cuda.CUDAGraph()
        space = torch.full((workspace_size(q, k, v),), math.nan, device="cuda")
        with torch.cuda.graph(graph):
            state = split_kv_decode(q, k, v, seq_lens=lens, check=check, workspace=space)
        for new in ([900, 3, 0, 451], [9, 900, 900, 1], [0, 0, 0, 0]):
            lens.copy_(torch.tensor(new))
            graph.replay()
            assert equal(state, split_kv_decode(q, k, v, seq_lens=lens))
        lens.copy_(torch.tensor([901, 5, -1, 900]))
        graph.replay()
        cut = split_kv_decode(q, k, v, seq_lens=lens.clamp(0, 900))
        if check:
            assert state.o[[0, 2]].isnan().all() and state.lse[[0, 2]].isnan().all()
            assert equal((state.o[[1, 3]], state.lse[[1, 3]]), (cut.o[[1, 3]], cut.lse[[1, 3]]))
            with pytest.raises(ValueError, match=r"^seq_lens must be from 0 to the 900 slots"):
                split_kv_decode(q, k, v, seq_lens=lens, check=True)
        else:
            assert equal(state, cut)
        lens.copy_(torch.tensor([900, 3, 0, 451]))


def test_two_streams_at_once_do_not_see_each_other():
    calls = [[normal(4, heads, n, 128) for heads, n in ((8, 1), (2, 6000), (2, 6000))] for _ in range(2)]
    want = [split_kv_decode(*arrays) for arrays in calls]
    streams = [torch.cuda.Stream() for _ in calls]
    torch.cuda.synchronize()
    found = []
    for _ in range(20):
        for stream, arrays, right in zip(streams, calls, want, strict=True):
            with torch.cuda.stream(stream):
                found.append((split_kv_decode(*arrays), right))
    torch.cuda.synchronize()
    assert all(equal(state, right) for state, right in found)


def test_it_runs_on_the_device_of_its_tensors_whatever_the_current_one():
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two CUDA devices")
    arrays = [normal(1, heads, n, 64) for heads, n in ((4, 1), (2, 900), (2, 900))]
    want = split_kv_decode(*arrays)
    with torch.cuda.device(0):
        state = split_kv_decode(*(x.to("cuda:1") for x in arrays))
        both = merge_states(state.o[None], state.lse[None])
    assert state.o.device.index == both.o.device.index == 1 and torch.cuda.current_device() == 0
    assert all(torch.equal(x.to("cuda:0"), y) for x, y in zip(state, want, strict=True))


@pytest.mark.parametrize("shape", [(0, 8, 2, 1, 50), (2, 8, 2, 0, 50), (2, 8, 2, 1, 0), (2, 8, 2, 3, 50)])
def test_no_sequences_no_queries_no_keys_none_in_use(shape):
    batch, heads, kv, queries, keys = shape
    q, k, v = normal(batch, heads, queries, 64), normal(batch, kv, keys, 64), normal(batch, kv, keys, 80)
    for options in ({}, {"num_splits": 1}, {"num_splits": 9}, {"tile": 16, "causal": True}):
        out = (torch.full((batch, heads, queries, 80), math.nan, device="cuda", dtype=torch.float16),
               torch.full((batch, heads, queries), math.nan, device="cuda"))
        none = torch.zeros(batch, device="cuda", dtype=torch.int64)
        o, lse = split_kv_decode(q, k.fill_(math.nan), v, seq_lens=none, seq_starts=none + keys, out=out, **options)
        assert o.shape == (batch, heads, queries, 80) and (o == 0).all() and (lse == -math.inf).all()


@pytest.mark.parametrize("dtype", FORMATS[:2])
@pytest.mark.parametrize("dim", [64, 128, 256])
def test_what_is_1_everywhere_stays_1_within_an_ulp(dim, dtype):
    kind = getattr(torch, dtype)
    spacing = torch.finfo(kind).eps
    for keys, sharpness in itertools.product((1, 100, 3000), (0.0, 1.0, 30.0)):
        q, k = sharpness * normal(2, 8, 1, dim, dtype=kind), normal(2, 2, keys, dim, dtype=kind)
        o, _ = split_kv_decode(q, k, torch.ones_like(k))
        assert ((o >= 1 - spacing / 2) & (o <= 1 + spacing)).all()


def test_a_graph_may_begin_with_it_and_join_other_work():
    q, k, v = normal(2, 8, 1, 128), normal(2, 2, 5000, 128), normal(2, 2, 5000, 128)
    want, pinned = split_kv_decode(q, k, v), torch.zeros_like(q)
    other, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        first = split_kv_decode(q, k, v)
        pinned.copy_(q)  # a copy, then a kernel started early behind it, then two streams that join
        second = split_kv_decode(pinned, k, v)
        other.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(other):
            third = split_kv_decode(pinned, k, v)
        torch.cuda.current_stream().wait_stream(other)
        fourth = split_kv_decode(pinned, k, v)
        pinned.zero_()
    for _ in range(3):
        graph.replay()
    assert all(equal(state, want) for state in (first, second, third, fourth))


def test_kernels_started_early_never_read_what_is_not_yet_written():
    k, v, q = normal(1, 8, 4096, 128), normal(1, 8, 4096, 128), normal(1, 32, 1, 128)
    calm = [split_kv_decode(q * (i + 1), k, v) for i in range(8)]
    torch.cuda.synchronize()
    for _ in range(50):  # each call reads what the kernel before it has just written
        x = q.clone()
        for i in range(8):
            state = split_kv_decode(x, k, v)
            assert equal(state, calm[i]) if i == 7 else True
            x = q * (i + 2)


def test_the_same_bits_every_time_alone_in_a_batch_and_whatever_memory_held():
    q, k, v = normal(24, 8, 1, 128), normal(24, 2, 3000, 128), normal(24, 2, 3000, 128)
    lens = torch.randint(0, 3001, (24,), device="cuda")
    want = split_kv_decode(q, k, v, seq_lens=lens, tile=512)
    space = torch.full((workspace_size(q, k, v, tile=512),), math.nan, device="cuda")
    assert all(equal(split_kv_decode(q, k, v, seq_lens=lens, tile=512, workspace=space), want) for _ in range(20))
    usual = split_kv_decode(q, k, v, seq_lens=lens)
    assert all(equal(split_kv_decode(q, k, v, seq_lens=lens), usual) for _ in range(20))
    for b in range(24):
        alone = split_kv_decode(q[b:b + 1], *(x[b:b + 1, :, :lens[b]] for x in (k, v)), tile=512)
        assert equal((alone.o[0], alone.lse[0]), (want.o[b], want.lse[b]))
    slot = torch.arange(3000, device="cuda")
    dirty = [x.masked_fill((slot >= lens[:, None])[:, None, :, None], math.nan) for x in (k, v)]
    assert equal(split_kv_decode(q, *dirty, seq_lens=lens, tile=512), want)


@pytest.mark.parametrize("layout", ["heads first", "heads last"])
def test_a_cache_beyond_2_to_the_31_numbers_is_read_at_its_end(layout):
    if torch.cuda.get_device_properties(0).total_memory < 24 * 2**30:
        pytest.skip("needs 24 GiB of memory")
    heads, keys, dim = 2, 2**23 + 1000, 128  # 2³¹ numbers and more
    k = torch.zeros((1, heads, keys, dim) if layout == "heads first" else (1, keys, heads, dim), device="cuda",
                    dtype=torch.float16)
    v = torch.zeros_like(k)
    if layout == "heads last":
        k, v = k.transpose(1, 2), v.transpose(1, 2)
    k[:, :, -700:], v[:, :, -700:] = normal(1, heads, 700, dim), normal(1, heads, 700, dim)
    q = normal(1, 8, 1, dim)
    start = torch.tensor([keys - 700], device="cuda")
    want = split_kv_decode(q, k[:, :, -700:], v[:, :, -700:], num_splits=3)
    assert equal(split_kv_decode(q, k, v, seq_starts=start, num_splits=3), want)
    whole = split_kv_decode(torch.zeros_like(q), k, v.fill_(1))
    assert (whole.o == 1).all()
    assert (whole.lse - math.log(keys)).abs().max().item() <= 8 * 2**-24 * math.log(keys)  # a few roundings of lse


def test_auto_takes_the_kernel_where_it_can_do_what_is_asked():
    q, k, v = normal(2, 8, 1, 128), normal(2, 2, 700, 128), normal(2, 2, 700, 128)
    assert backend_for(q, k, v) == "triton"
    assert equal(split_kv_attention(q, k, v), split_kv_decode(q, k, v))
    assert backend_for(*(x.double() for x in (q, k, v))) == "torch"
    assert backend_for(q.clone().requires_grad_(), k, v) == "torch"
    assert backend_for(q.expand(-1, -1, 17, -1), k, v) == "torch"
    mask = torch.rand(2, 1, 1, 700, device="cuda") < 0.5
    masked = split_kv_attention(q, k, v, mask=mask)
    assert masked.o.is_cuda and not equal(masked, split_kv_decode(q, k, v))
    with pytest.raises(RuntimeError, match=r"^backend 'triton' cannot run: its kernel takes no mask"):
        split_kv_attention(q, k, v, mask=mask, backend="triton")


@pytest.mark.parametrize("width", [64, 80, 128, 256])
def test_parts_that_are_not_there_move_no_bit_of_a_merge_with_a_fixed_tile(width):
    o, lse = normal(130, 7, width, dtype=torch.float32), 3 * normal(130, 7, dtype=torch.float32)
    for parts in (1, 2, 3, 4, 5, 8, 9, 16, 33, 64, 65, 100, 129):
        states = []
        for longer in (parts, parts + 1, 130):
            hidden = lse[:longer].clone()
            hidden[parts:] = -math.inf
            out = torch.empty(1, 1, 7, width, device="cuda"), torch.empty(1, 1, 7, device="cuda")
            launch_merge(o[:longer], hidden, *out, fixed=True)
            states.append(out)
        assert equal(states[0], states[1]) and equal(states[0], states[2])


def test_states_of_no_columns_have_an_lse():
    lse = normal(3, 40, dtype=torch.float32)
    got, want = (merge_states(torch.zeros(3, 40, width, device="cuda"), lse) for width in (0, 9))
    assert got.o.shape == (40, 0) and torch.equal(got.lse, want.lse) and want.lse.isfinite().all()


def test_a_row_that_sees_no_key_is_nothing_beside_one_that_sees_nan():
    q, k = normal(1, 8, 3, 64), normal(1, 2, 2, 64)
    o, lse = split_kv_decode(q, k, torch.full_like(k, math.nan), causal=True, num_splits=1)
    assert (o[:, :, 0] == 0).all() and (lse[:, :, 0] == -math.inf).all() and o[:, :, 1:].isnan().all()


def test_starts_before_the_cache_and_sums_beyond_64_bits_are_cut():
    q, k, v = normal(2, 8, 1, 64), normal(2, 2, 50, 64), normal(2, 2, 50, 64)
    lens, starts = (torch.tensor(x, device="cuda") for x in ([2**63 - 1, 3], [1, -2]))
    cut = [torch.tensor(x, device="cuda") for x in ([49, 1], [1, 0])]
    assert equal(split_kv_decode(q, k, v, seq_lens=lens, seq_starts=starts),
                 split_kv_decode(q, k, v, seq_lens=cut[0], seq_starts=cut[1]))


def test_merge_takes_any_number_of_parts_rows_and_formats():
    for (parts, rows, width), dtype in itertools.product([(1, 5, 64), (2, 900, 128), (70, 33, 80), (1000, 3, 256)],
                                                         (torch.float32, torch.float16, torch.bfloat16)):
        o, lse = normal(parts, rows, width, dtype=dtype), 5 * normal(parts, rows, dtype=torch.float32)
        lse[torch.rand(parts, rows, device="cuda") < 0.3] = -math.inf
        o[lse == -math.inf] = math.nan
        got = merge_states(o, lse)
        clean = torch.where((lse == -math.inf)[..., None], 0.0, o.double())
        total = lse.double().logsumexp(0)
        weight = torch.exp(lse.double() - torch.where(total == -math.inf, 0.0, total))
        right, size = ((weight[..., None] * x).sum(0) for x in (clean, clean.abs()))
        # A weight errs by u(Δ + κ) and the merged lse by as much, Δ ≤ 60 here; then the sums, and o's own format.
        out, fine = format_of(str(dtype).removeprefix("torch.")), format_of("float32")
        bound = (parts + 2 * (60 + fine.kappa)) * fine.u * size
        bound = bound if dtype == torch.float32 else bound + out.u * (right.abs() + bound)
        assert lse[lse > -math.inf].abs().max() <= 30
        assert ((got.o.double() - right).abs() <= bound + out.tiny).all()
        assert torch.equal(got.lse == -math.inf, total == -math.inf)
