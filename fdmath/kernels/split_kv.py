"""FlashDecoding as Triton kernels: one kernel makes a state of every split of the keys, `merge.py`'s ⊕-es them.

The steps, naive first; `STEPS` holds the settings of each, and one check judges them all:

1. one program a query head reads all its keys alone (`one_program_a_head_kernel`): with few heads, few
   multiprocessors are busy;
2. split: a head's keys go to num_splits programs, each with a state of its own, and a second kernel merges them;
3. packed: the query heads that share a KV head become rows of one program, so that K and V are read once a group;
4. merged early: the second kernel is started while the first still runs, and waits for it where it needs it;
5. started early: so is the first kernel, behind whatever ran before.

Scores carry the factor log₂e inside, because hardware computes 2^x; lse is natural wherever it is stored.
"""

import functools
import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
import triton
import triton.language as tl

from fdmath.algebra.state import LSEState
from fdmath.attention.decode import check_cut
from fdmath.kernels import checks, tuning
from fdmath.kernels.merge import INTERPRETED, launch_merge, raised, rounded
from fdmath.kernels.plan import decode_plan, least_warps

LARGEST_ROWS, MOST_SPLITS = 64, 65535
LOG2E = 1 / math.log(2)
LN2 = tl.constexpr(math.log(2))

STEPS = {
    "one program a head": None,
    "split": {"packed": False, "early": 0},
    "packed": {"packed": True, "early": 0},
    "merged early": {"packed": True, "early": 1},
    "started early": {"packed": True, "early": 2},
}
"""What each step says to `Call.run`; the first is a kernel of its own."""


@triton.jit
def one_program_a_head_kernel(
    q, k, v, o, lse, scale, keys, q_batch, q_head, k_batch, k_head, k_key, v_batch, v_head, v_key, o_batch, o_head,
    lse_batch, lse_head, GROUP: tl.constexpr, DIM: tl.constexpr, BLOCK: tl.constexpr,
):
    """The state (o, lse) of one query of one head: online softmax over all its keys, BLOCK at a time.

    The first step, in its plainest form: DIM a power of two, dv = d, every key in use, at least one. While no score is
    above −∞, m is −∞, and what scores are measured from is 0.
    """
    head, batch = tl.program_id(0).to(tl.int64), tl.program_id(1).to(tl.int64)
    dims = tl.arange(0, DIM)
    query = tl.load(q + batch * q_batch + head * q_head + dims).to(tl.float32)
    k += batch * k_batch + head // GROUP * k_head
    v += batch * v_batch + head // GROUP * v_head
    m, l, acc = float("-inf"), 0.0, tl.zeros([DIM], tl.float32)
    for first in range(0, keys, BLOCK):
        key = first + tl.arange(0, BLOCK)
        inside = (key < keys)[:, None]
        slot = key[:, None].to(tl.int64)
        k_block = tl.load(k + slot * k_key + dims[None, :], inside, 0.0).to(tl.float32)
        v_block = tl.load(v + slot * v_key + dims[None, :], inside, 0.0).to(tl.float32)
        s = tl.where(key < keys, tl.sum(query[None, :] * k_block, 1) * scale, float("-inf"))
        top = tl.maximum(m, tl.max(s, 0))
        reference = tl.where(top == float("-inf"), 0.0, top)
        alpha, p = tl.exp2(m - reference), tl.exp2(s - reference)
        l = alpha * l + tl.sum(p, 0)
        acc = alpha * acc + tl.sum(p[:, None] * v_block, 0)
        m = top
    divisor = tl.where(l == 0, 1.0, l)
    tl.store(o + batch * o_batch + head * o_head + dims, rounded(tl.div_rn(acc, divisor), o.dtype.element_ty))
    tl.store(lse + batch * lse_batch + head * lse_head, (m + tl.log2(divisor)) * LN2)


@triton.jit
def keys_in_use(seq_starts, seq_lens, batch, keys):
    """(start, length, lawful): the first slot of a sequence and its keys, cut to the cache; whether they were in it.

    No sum here passes 2⁶³, whatever 64-bit numbers are given: what lies before the cache is taken off the length.
    """
    start = tl.load(seq_starts + batch).to(tl.int64) if seq_starts is not None else tl.zeros([], tl.int64)
    length = tl.load(seq_lens + batch).to(tl.int64) if seq_lens is not None else keys - start
    lawful = (start >= 0) & (length >= 0) & (length <= keys - start)
    length = tl.maximum(length, 0) + tl.minimum(start, 0)
    start = tl.minimum(tl.maximum(start, 0), keys)
    return start, tl.minimum(tl.maximum(length, 0), keys - start).to(tl.int32), lawful


@triton.jit
def keys_of_split(split, num_splits, tile, length, TILED: tl.constexpr):
    """(first, last): split number `split` of `length` keys holds first ≤ j < last (`key_ranges` of `attention.decode`).

    TILED: tiles of `tile` keys, the last one short; else num_splits even parts, the larger ones first.
    """
    if TILED:
        first = split * tile
        last = first + tile
    else:
        size, larger = length // num_splits, length % num_splits
        first = split * size + tl.minimum(split, larger)
        last = first + size + (split < larger).to(tl.int32)
    return first, tl.minimum(last, length)


@triton.jit
def load(pointers, real, PADDED: tl.constexpr):
    """What the pointers point to; 0 where it is not real. Without padding all is."""
    if PADDED:
        x = tl.load(pointers, real, 0.0)
    else:
        x = tl.load(pointers)
    return x


@triton.jit(do_not_specialize=["keys", "tile", "num_splits"])
def split_kv_kernel(
    q, k, v, o, lse, seq_starts, seq_lens, scale, keys, tile, num_splits, queries,
    q_batch, q_head, q_query, k_batch, k_head, v_batch, v_head,
    o_split, o_batch, o_head, o_query, lse_split, lse_batch, lse_head, lse_query,
    k_key: tl.constexpr, v_key: tl.constexpr, DIM: tl.constexpr, WIDTH: tl.constexpr, GROUP: tl.constexpr,
    PACKED: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, DIMS: tl.constexpr, WIDTHS: tl.constexpr,
    TILED: tl.constexpr, CAUSAL: tl.constexpr, CHECK: tl.constexpr, EARLY: tl.constexpr, RAISED: tl.constexpr,
):
    """The state (o, lse) that some rows of a sequence have of one split of its keys.

    A row is one query of one of the PACKED query heads of a program, which share a KV head (GROUP share it in all); a
    program takes ROWS of its rows. scale holds log₂e. DIMS and WIDTHS are DIM and WIDTH up to a power of two. The
    strides of keys are constants, because a tile's addresses are, then. The interpreter multiplies in float32.
    P is multiplied by RAISED, a power of two, while it is in v's format, and the sum divided by it.
    """
    if EARLY:  # the next kernel may start when it likes
        tl.extra.cuda.gdc_launch_dependents()
    batch, split = tl.program_id(0).to(tl.int64), tl.program_id(2)
    blocks = tl.cdiv(PACKED * queries, ROWS)
    row = tl.program_id(1) % blocks * ROWS + tl.arange(0, ROWS)
    first_head = tl.program_id(1) // blocks * PACKED
    kv_head, head, query = (first_head // GROUP).to(tl.int64), (first_head + row // queries).to(tl.int64), row % queries
    if EARLY:  # from here on memory is read: wait until the kernel before this one has written it
        tl.extra.cuda.gdc_wait()
    start, length, lawful = keys_in_use(seq_starts, seq_lens, batch, keys)
    first, last = keys_of_split(split, num_splits, tile, length, TILED)

    dims, columns = tl.arange(0, DIMS), tl.arange(0, WIDTHS)
    real, real_dims, real_columns = (row < PACKED * queries)[:, None], dims < DIM, (columns < WIDTH)[None, :]
    q += batch * q_batch + head * q_head + query.to(tl.int64) * q_query
    k += batch * k_batch + kv_head * k_head + start * k_key
    v += batch * v_batch + kv_head * v_head + start * v_key
    q_rows = tl.load(q[:, None] + dims[None, :], real & real_dims[None, :], 0.0)
    if INTERPRETED:
        q_rows = q_rows.to(tl.float32)

    m = tl.full([ROWS], float("-inf"), tl.float32)
    l = tl.zeros([ROWS], tl.float32)
    acc = tl.zeros([ROWS, WIDTHS], tl.float32)
    for block in range(first, last, BLOCK):
        key = block + tl.arange(0, BLOCK)
        slot = tl.minimum(key, last - 1).to(tl.int64)  # beyond the split its last key again, with weight 0 below
        k_block = load(k + slot[None, :] * k_key + dims[:, None], real_dims[:, None], DIM < DIMS)
        v_block = load(v + slot[:, None] * v_key + columns[None, :], real_columns, WIDTH < WIDTHS)
        if INTERPRETED:
            k_block, v_block = k_block.to(tl.float32), v_block.to(tl.float32)
        s = tl.dot(q_rows, k_block, input_precision="ieee") * scale
        seen = (key < last)[None, :]
        if CAUSAL:
            seen = seen & (key[None, :] <= query[:, None] + length - queries)
        s = tl.where(seen, s, float("-inf"))
        top = tl.maximum(m, tl.max(s, 1))
        reference = tl.where(top == float("-inf"), 0.0, top)
        alpha, p = tl.exp2(m - reference), tl.exp2(s - reference[:, None])
        l = alpha * l + tl.sum(p, 1)
        p = rounded(p * RAISED, v.dtype.element_ty).to(v_block.dtype)
        acc = tl.dot(p, v_block, acc * alpha[:, None], input_precision="ieee")
        m = top

    divisor = tl.where(l == 0, 1.0, l)
    natural, result = (m + tl.log2(divisor)) * LN2, acc * tl.div_rn(1.0, divisor * RAISED)[:, None]
    result = tl.where((l == 0)[:, None], 0.0, result)  # selected: 0 times a NaN that others of the rows see is in acc
    if CHECK:  # lengths that the cache does not have give no number, also when a captured graph is replayed
        natural, result = tl.where(lawful, natural, float("nan")), tl.where(lawful, result, float("nan"))
    o += split.to(tl.int64) * o_split + batch * o_batch + head * o_head + query.to(tl.int64) * o_query
    lse += split.to(tl.int64) * lse_split + batch * lse_batch + head * lse_head + query.to(tl.int64) * lse_query
    tl.store(o[:, None] + columns[None, :], rounded(result, o.dtype.element_ty), real & real_columns)
    tl.store(lse, natural, row < PACKED * queries)


def split_kv_decode(q, k, v, *, seq_lens=None, seq_starts=None, num_splits=None, tile=None, causal=False, scale=None,
                    out=None, workspace=None, check=False):
    """The attention state (o, lse) of few queries a sequence, by FlashDecoding on a CUDA device.

    q: (…, Hq, Nq, d), k: (…, Hkv, N, d), v: (…, Hkv, N, dv), of one dtype, float16, bfloat16 or float32 (multiplied in
    full float32); Nq ≤ 16, d and dv from 1 to 256; any strides but that of the last axis, which is 1.
    o: (…, Hq, Nq, dv) in q's dtype, lse: (…, Hq, Nq), natural logarithm, float32; a row without keys is (0, −∞).
    seq_lens: (B,) integers on the device, the keys in use of each sequence; seq_starts: (B,), the slot of its first.
    causal: the last query sees the last key in use. num_splits: even splits, empty ones allowed; tile: keys a split,
    which makes a row's bits independent of its batch (`merge_tile`); give at most one (neither: `decode_plan` decides,
    or with FDMATH_TUNE=1 in the environment `tuned_plan`).
    out: (o, lse) to be written; workspace: float32, at least `workspace_size` numbers; both may hold anything, and lie
    in no memory of each other or of what is read.
    check: read the lengths on the host and raise for any that the cache does not have; while a CUDA graph is captured
    nothing can be read, and such a row becomes NaN. Without it lengths are cut to the cache, at both of its ends.
    P, 2¹⁴ times P in float16, is rounded to v's dtype before P·v, and l sums the unrounded P: v ≡ 1 gives 1 within an
    ulp of o's dtype, and lse keeps float32's accuracy. Deterministic; no synchronisation without check; no gradient;
    in Triton's interpreter it runs on the CPU. Not promised: q·k, scale·q·k or that times log₂e beyond float32's
    range (q·k from 3.4e38 on, a score from 2.35e38 on), though the score itself would be finite.
    Raises TypeError for kinds, dtypes and devices, ValueError for shapes and values. Source: document A, section 3.
    """
    call = prepare(q, k, v, seq_lens=seq_lens, seq_starts=seq_starts, causal=causal, scale=scale, check=check)
    plan, (o, lse) = call.plan(num_splits, tile), checks.results(q, v, out)
    written = {} if out is None else {"out's o": o, "out's lse": lse}
    if workspace is not None:
        workspace = written["workspace"] = checks.room(workspace, call.partial_numbers(plan.num_splits), q)
    if written:
        read = {"q": q, "k": k, "v": v, "seq_lens": seq_lens, "seq_starts": seq_starts}
        checks.check_apart(written, {name: x for name, x in read.items() if x is not None})
    call.run(plan, o, lse, workspace)
    return LSEState(o, lse)


def workspace_size(q, k, v, *, num_splits=None, tile=None):
    """The float32 numbers that the partial states of split_kv_decode(q, k, v, …) need; 0 if there is one split."""
    call = prepare(q, k, v)
    return call.partial_numbers(call.plan(num_splits, tile).num_splits)


@dataclass(frozen=True, eq=False)
class Call:
    """One checked call: q, k and v with four axes, as views, and what decides who sees what."""

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    seq_lens: torch.Tensor | None
    seq_starts: torch.Tensor | None
    causal: bool
    scale: float
    poison: bool

    @property
    def group(self):
        """Query heads that share a KV head."""
        return self.q.shape[1] // self.k.shape[1]

    def plan(self, num_splits=None, tile=None):
        """The Plan of the call on its device. Raises TypeError, ValueError for what is no split or tile."""
        tile, num_splits = check_cut(tile, num_splits)
        device, rows = device_of(self.q), self.group * self.q.shape[2]
        programs = len(self.k) * self.k.shape[1] * -(-rows // LARGEST_ROWS)
        key_bytes = (padded(self.k.shape[3]) + padded(self.v.shape[3])) * self.k.element_size()
        plan = decode_plan(programs, self.k.shape[2], key_bytes, device.multiprocessors, device.shared,
                           num_splits=num_splits, tile=tile)
        if num_splits is None and tile is None and tuning.wanted(self.q):
            plan = tuning.tuned_plan(self, plan)
        if plan.num_splits > MOST_SPLITS:
            raise ValueError(f"there must be at most {MOST_SPLITS} splits; got {plan.num_splits}")
        return plan

    def partial_numbers(self, num_splits):
        """The float32 numbers of num_splits partial states; none are kept of a single one."""
        return num_splits * math.prod(self.q.shape[:3]) * (self.v.shape[3] + 1) if num_splits > 1 else 0

    def run(self, plan, o, lse, workspace=None, packed=True, early=2):
        """Nothing; the state is written to o and lse. packed, early: see `STEPS` (early only where the device can)."""
        o, lse = checks.four_axes("out", o, o.ndim), checks.four_axes("out", lse[..., None], o.ndim)[..., 0]
        early = early if device_of(self.q).early else 0
        if not o.numel():
            return
        with torch.cuda.device_of(self.q):
            if plan.num_splits == 1:
                self.split(plan, o[None], lse[None], packed, early)
                return
            parts = self._parts(plan.num_splits, workspace)
            self.split(plan, *parts, packed, early)
            launch_merge(*(x.flatten(1, 3) for x in parts), o, lse, fixed=plan.tile > 0, early=early > 0)

    def _parts(self, num_splits, workspace):
        """The workspace, of `partial_numbers`, as o (S, B, Hq, Nq, dv) and lse (S, B, Hq, Nq)."""
        shape, width, needed = (num_splits, *self.q.shape[:3]), self.v.shape[3], self.partial_numbers(num_splits)
        if workspace is None:
            workspace = torch.empty(needed, dtype=torch.float32, device=self.q.device)
        o, lse = workspace.split([needed // (width + 1) * width, needed // (width + 1)])
        return o.view(*shape, width), lse.view(shape)

    def run_one_program_a_head(self, o, lse):
        """Nothing; the state is written to o and lse by the first step's kernel, which takes plain inputs alone."""
        (batch, heads, queries, dim), keys = self.q.shape, self.k.shape[2]
        if batch > checks.MOST_HEADS:
            raise ValueError(f"the first step takes at most {checks.MOST_HEADS} sequences; got {batch}")
        if queries != 1 or dim != self.v.shape[3] or dim != padded(dim) or keys < 1:
            raise ValueError(f"the first step takes one query, at least one key, and d = dv, a power of two from 16; "
                             f"got q {tuple(self.q.shape)}, v {tuple(self.v.shape)}")
        o, lse = checks.four_axes("out", o, o.ndim), checks.four_axes("out", lse[..., None], o.ndim)[..., 0]
        with torch.cuda.device_of(self.q):
            one_program_a_head_kernel[heads, batch](
                self.q, self.k, self.v, o, lse, self.scale * LOG2E, keys, *self.q.stride()[:2], *self.k.stride()[:3],
                *self.v.stride()[:3], *o.stride()[:2], *lse.stride()[:2], GROUP=self.group, DIM=dim, BLOCK=64,
            )  # fmt: skip

    def split(self, plan, o, lse, packed=True, early=2):
        """Nothing; the states of the splits are written to o (S, B, Hq, Nq, dv) and lse (S, B, Hq, Nq)."""
        (batch, heads, queries, dim), width = self.q.shape, self.v.shape[3]
        together = self.group if packed else 1
        rows = min(padded(together * queries), LARGEST_ROWS)
        grid = (batch, -(-together * queries // rows) * (heads // together), plan.num_splits)
        split_kv_kernel[grid](
            self.q, self.k, self.v, o, lse, self.seq_starts, self.seq_lens, self.scale * LOG2E, self.k.shape[2],
            min(plan.tile, self.k.shape[2]), plan.num_splits, queries,
            *self.q.stride()[:3], *self.k.stride()[:2], *self.v.stride()[:2], *o.stride()[:4], *lse.stride(),
            k_key=self.k.stride(2), v_key=self.v.stride(2), DIM=dim, WIDTH=width, GROUP=self.group, PACKED=together,
            ROWS=rows, BLOCK=plan.block, DIMS=padded(dim), WIDTHS=padded(width), TILED=plan.tile > 0,
            CAUSAL=self.causal and queries > 1, CHECK=self.poison, EARLY=early > 0,
            RAISED=raised(self.v.dtype),
            num_warps=max(plan.warps, least_warps(rows, padded(width))), num_stages=plan.stages,
            **({"launch_pdl": True} if early > 1 and plan.early else {}),
        )  # fmt: skip


def decode_by_step(step, q, k, v, num_splits=None):
    """The attention state (o, lse) of a decode as the kernels were at a step, one of STEPS: to see what each adds.

    As `split_kv_decode` without options; the first step takes one query, d = dv a power of two, and at least one key,
    and makes no use of num_splits.
    """
    if step not in tuple(STEPS):
        raise ValueError(f"step must be one of {', '.join(STEPS)}; got {step!r}")
    check_cut(None, num_splits)
    call = prepare(q, k, v)
    o, lse = checks.results(q, v, None)
    if STEPS[step] is not None:
        call.run(call.plan(num_splits), o, lse, **STEPS[step])
    else:
        call.run_one_program_a_head(o, lse)
    return LSEState(o, lse)


def prepare(q, k, v, *, seq_lens=None, seq_starts=None, causal=False, scale=None, check=False):
    """The checked Call; raises TypeError for kinds, dtypes and devices, ValueError for shapes and values."""
    four = checks.check_inputs(q, k, v)
    causal, check = checks.check_flag("causal", causal), checks.check_flag("check", check)
    for name, x in (("seq_lens", seq_lens), ("seq_starts", seq_starts)):
        checks.check_lengths(name, x, q, len(four[0]))
    capturing = q.is_cuda and torch.cuda.is_current_stream_capturing()
    if check and not capturing:
        checks.check_cache(seq_lens, seq_starts, k.shape[-2])
    return Call(*four, seq_lens, seq_starts, causal, checks.check_scale(scale, q.shape[-1]), check and capturing)


class Device(NamedTuple):
    """What a plan must know of a device; early: whether a kernel can start before the one before it has ended."""

    multiprocessors: int
    shared: int
    early: bool


@functools.cache
def _device(index):
    """The Device of a number; kernels start early from compute capability 9 on."""
    properties = torch.cuda.get_device_properties(index)
    early = torch.version.hip is None and properties.major >= 9 and hasattr(tl.extra.cuda, "gdc_wait")
    return Device(properties.multi_processor_count, properties.shared_memory_per_block_optin, early)


def device_of(x):
    """The Device that a tensor is on; for the interpreter one with room for the smallest steps, to take several."""
    return _device(x.device.index) if x.is_cuda else Device(1, 0, False)


def padded(size):
    """The axis that holds `size` numbers in a kernel: a power of two, at least 16."""
    return max(16, 1 << (size - 1).bit_length())
