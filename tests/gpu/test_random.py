"""Split-KV decoding on random shapes, layouts, lengths and cuts, compiled: 200 calls a format, each within its budget.

Every slot that no query may see holds NaN, and so does whatever lies between rows, before them, in the outputs and in
the workspace.
"""

from typing import NamedTuple

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath import LSEState, partial_state  # noqa: E402
from fdmath.algebra.rounding import block_budget, format_of, score_error  # noqa: E402
from fdmath.kernels.split_kv import split_kv_decode, workspace_size  # noqa: E402
from fdmath.verify import reference  # noqa: E402
from tests.attention.calls import Call, numbers  # noqa: E402
from tests.gpu.tensors import FORMATS, equal  # noqa: E402
from tests.kernels.calls import budget, with_lengths  # noqa: E402

SHAPES, CALLS = 25, 8
LAYOUTS = {"heads first": (0, 0), "wide": (0, 24), "odd": (1, 0), "heads last": (0, 0)}
"""The numbers in memory before and behind a row of d; an odd row begins at no multiple of 4 bytes in 16 bits."""


class Shape(NamedTuple):
    """What a kernel is compiled for, but for the dtype: calls of one shape differ in batch, keys, lengths and cut."""

    dim: int
    width: int
    group: int
    queries: int
    kv_heads: int
    layout: str
    causal: bool

    @classmethod
    def drawn(cls, seed):
        """The shape number `seed`."""
        rng = np.random.default_rng(seed)
        dim = int(rng.choice([64, 80, 96, 128, 128, 192, 256, rng.integers(1, 64)]))
        width = int(rng.choice([dim, dim, 64, 80, 128, 256, rng.integers(1, 64)]))
        group, queries = int(rng.choice([1, 2, 3, 4, 5, 7, 8, 16, 40])), int(rng.choice([1, 1, rng.integers(2, 17)]))
        layout, causal = list(LAYOUTS)[seed % len(LAYOUTS)], bool(rng.random() < 0.5)
        return cls(dim, width, group, queries, int(rng.integers(1, 4)), layout, causal)


def laid_out(x, layout, dtype):
    """The array x (B, H, N, d) on the device in a layout, NaN around it."""
    before, behind = LAYOUTS[layout]
    batch, heads, rows, dim = x.shape
    order = (batch, rows, heads) if layout == "heads last" else (batch, heads, rows)
    memory = torch.full((*order, before + dim + behind), np.nan, device="cuda", dtype=getattr(torch, dtype))
    view = memory.transpose(1, 2) if layout == "heads last" else memory
    view = view[..., before:before + dim]
    return view.copy_(torch.from_numpy(x))


def poisoned(x, starts, lens):
    """x (B, H, N, d) with NaN in every slot that is not in use."""
    slot = np.arange(x.shape[2])
    used = (slot >= starts[:, None]) & (slot < (starts + lens)[:, None])
    return np.where(used[:, None, :, None], x, np.nan)


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("seed", range(SHAPES))
def test_random_calls_are_within_their_budgets(seed, dtype):
    shape, rng = Shape.drawn(seed), np.random.default_rng(1000 + seed)
    for i in range(CALLS):
        batch, keys = int(rng.integers(1, 4)), int(rng.integers(1, 300))
        heads = shape.kv_heads * shape.group
        q, k, v = (numbers(rng, batch, h, n, d) for h, n, d in (
            (heads, shape.queries, shape.dim), (shape.kv_heads, keys, shape.dim), (shape.kv_heads, keys, shape.width)))
        starts = rng.integers(0, keys + 1, batch) * rng.integers(0, 2, batch)
        lens = np.array([rng.integers(0, keys - s + 1) for s in starts])
        splits = {"tile": int(rng.integers(5, 99))} if i % 2 else {"num_splits": int(rng.integers(1, 40))}
        check(Call(q, k, v, shape.causal), shape.layout, dtype, starts, lens, splits)


def check(call, layout, dtype, starts, lens, splits):
    """Nothing; fails unless the kernel's state of each sequence is within its budget, and by tiles the same alone."""
    q = laid_out(call.q, layout, dtype)
    k, v = (laid_out(poisoned(x, starts, lens), layout, dtype) for x in (call.k, call.v))
    from_, count = torch.tensor(starts, device="cuda"), torch.tensor(lens, device="cuda", dtype=torch.int32)
    space = torch.full((workspace_size(q, k, v, **splits),), np.nan, device="cuda")
    hollow = laid_out(np.full((*call.q.shape[:3], call.v.shape[3]), np.nan), layout, dtype)
    out = hollow, torch.full(call.q.shape[:3], np.nan, device="cuda")
    state = split_kv_decode(q, k, v, seq_starts=from_, seq_lens=count, causal=call.causal, out=out, workspace=space,
                            **splits)
    for b, alone in enumerate(with_lengths(call, starts, lens)):
        o, lse = (x[b:b + 1].cpu().double().numpy() for x in state)
        right = reference.attention(alone.q, alone.k, alone.v, alone.scale, alone.visible())
        found = right.judge(LSEState(o, lse), budget(alone, dtype, **splits))
        assert found.verdict == "pass", found.detail
        if "tile" in splits:
            one = split_kv_decode(*(x[b:b + 1] for x in (q, k, v)), seq_starts=from_[b:b + 1], seq_lens=count[b:b + 1],
                                  causal=call.causal, **splits)
            assert equal((one.o[0], one.lse[0]), (state.o[b], state.lse[b]))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("shape", [(2, 8, 2, 1, 9000, 128), (1, 32, 4, 4, 3001, 64), (3, 5, 1, 1, 20001, 80)])
def test_long_calls_are_within_their_budgets_of_float64_on_the_device(shape, dtype):
    batch, heads, kv, queries, keys, dim = shape
    rng = np.random.default_rng(keys)
    arrays = [numbers(rng, batch, h, n, dim) for h, n in ((heads, queries), (kv, keys), (kv, keys))]
    call = Call(*arrays, causal=queries > 1)
    q, k, v = (torch.from_numpy(x).to("cuda") for x in arrays)
    o, lse = split_kv_decode(*(x.to(getattr(torch, dtype)) for x in (q, k, v)), causal=call.causal, num_splits=7)
    k, v = (x.repeat_interleave(heads // kv, 1) for x in (k, v))
    scores = (call.factor() * (q @ k.mT)).masked_fill(~torch.from_numpy(call.visible()).to("cuda"), -np.inf)
    fine, right, bound = format_of("float64"), partial_state(scores, v), budget(call, dtype, num_splits=7)
    radius = block_budget(*(x.cpu().numpy() for x in (scores, v)), fine,
                          score_error(q.cpu(), k.cpu(), call.factor(), fine))
    for got, want, limits in ((o, right.o, (bound.o, radius.o)), (lse, right.lse, (bound.lse, radius.lse))):
        assert bool(((got.double() - want).abs().cpu() <= torch.from_numpy(sum(limits))).all())
