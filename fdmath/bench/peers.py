"""What decodes on a CUDA device, each behind one adapter: ours, what a user would take instead, and a user's own.

A Peer builds, for a Shape, a call(q, k, v) → (o, lse or None) with the house's shapes and the natural lse. Its package
is imported only then. Those for whole sequences are in `attention_peers`. Needs torch.
"""

import functools
import importlib.util
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch.nn.functional import scaled_dot_product_attention as sdpa

from fdmath import _backends as backends
from fdmath.bench.decode import DTYPES, OURS, TILE, TILED, Rounding
from fdmath.verify.cases import CallCase

SPLITS = 8
"""The num_splits that a subject of role decode is given."""


@dataclass(frozen=True)
class Peer:
    """A decode under a name.

    build(shape): the call(q, k, v) that is timed. read(got, q, k, v): the (o, lse or None) that its answer means.
    package: what must be installed. dtypes: what it takes. keys_first: whether its cache has the keys before the heads
    in memory. rounding: what it rounds to the 16-bit format on the way, see `most_errors`.
    tile: keys a split, where that is fixed. splits(q, k, v): how many splits it takes, where that is known.
    scale, heads: as a Subject declares them.
    """

    name: str
    build: Callable
    read: Callable = lambda got, *_: got
    package: str = "torch"
    dtypes: tuple = DTYPES
    keys_first: bool = False
    rounding: Rounding = Rounding()
    tile: int | None = None
    splits: Callable | None = None
    scale: float | None = None
    heads: str = "interleaved"

    def why_not(self, dtype):
        """Why it cannot run here on inputs of the dtype, as a text; None where it can."""
        if not _installed(self.package):
            return f"{self.package} is not installed"
        return None if dtype in self.dtypes else f"takes {', '.join(self.dtypes)}"


def _installed(package):
    try:
        return importlib.util.find_spec(package) is not None
    except ModuleNotFoundError:  # a package in a package that is not there
        return False


def _ours(shape, tile=None):
    decode = backends.load("fdmath.kernels.split_kv:split_kv_decode")
    return lambda q, k, v: decode(q, k, v, tile=tile)


def planned_splits(q, k, v, tile=None):
    """The number of splits that our kernel takes for these tensors."""
    return backends.load("fdmath.kernels.split_kv:prepare")(q, k, v).plan(tile=tile).num_splits


def sdpa_call(name, shape):
    """torch's own attention by the backend called `name`, told that heads are grouped."""
    chosen, kernel = backends.load("torch.nn.attention:sdpa_kernel"), backends.load("torch.nn.attention:SDPBackend")

    def call(q, k, v):
        with chosen(getattr(kernel, name)):
            return sdpa(q, k, v, is_causal=shape.causal, enable_gqa=shape.group > 1), None

    return call


def _packed(q, shape):
    """q with the query heads of a KV head as its rows: (B, Hkv, g·Nq, d)."""
    return q.reshape(shape.batch, shape.kv_heads, shape.group * shape.queries, shape.dim)


def _efficient(shape):
    """torch's memory-efficient attention, which knows no groups: they are packed by hand."""
    chosen, kernel = backends.load("torch.nn.attention:sdpa_kernel"), backends.load("torch.nn.attention:SDPBackend")

    def call(q, k, v):
        with chosen(kernel.EFFICIENT_ATTENTION):
            return sdpa(_packed(q, shape), k, v).reshape(q.shape), None

    return call


def _eager(shape):
    """Scores, softmax and sum as three calls in the inputs' own format, groups packed."""
    def call(q, k, v):
        scores = _packed(q, shape) @ k.mT * shape.dim**-0.5
        return (torch.softmax(scores, -1) @ v).reshape(q.shape), None

    return call


def flex_call(shape):
    """FlexAttention, compiled; one query gets a mask of 128 × 128 blocks that are all seen: without it nothing splits.
    """
    flex, mask, aux = (backends.load(f"torch.nn.attention.flex_attention:{name}")
                       for name in ("flex_attention", "create_block_mask", "AuxRequest"))
    torch.compiler.reset()  # a compilation for each shape, of which only so many are kept
    compiled = torch.compile(flex, dynamic=False)
    seen = (lambda b, h, i, j: i >= j) if shape.causal else lambda b, h, i, j: j >= 0
    blocks = None
    if shape.causal or shape.queries == 1:
        blocks = mask(seen, None, None, shape.queries, shape.keys, device="cuda", BLOCK_SIZE=128)

    def call(q, k, v):
        o, more = compiled(q, k, v, block_mask=blocks, enable_gqa=shape.group > 1, return_aux=aux(lse=True))
        return o, more.lse

    return call


def _xformers(shape):
    """xFormers' split-K in Triton: one KV head of a group, shown to each of its query heads.

    The operator is called by itself: the public call refuses where xFormers' C++ part, which is not needed, is missing.
    """
    op, inputs = (backends.load(f"xformers.ops.fmha.{name}") for name in ("triton_splitk:FwOp", "common:Inputs"))
    grouped = shape.batch, shape.queries, shape.kv_heads, shape.group, shape.dim

    def call(q, k, v):
        keys, values = (x.transpose(1, 2).unsqueeze(3).expand(-1, -1, -1, shape.group, -1) for x in (k, v))
        o, more = op.apply(inputs(q.transpose(1, 2).reshape(grouped), keys, values), needs_gradient=True)
        return o.flatten(2, 3).transpose(1, 2), more.lse.reshape(q.shape[:-1])

    return call


def flash3_call(shape):
    """FlashAttention-3, left to choose its splits (num_splits=0)."""
    attend = backends.load("fa3_fwd_interface:flash_attn_func")

    def call(q, k, v):
        o, lse = attend(*(x.transpose(1, 2) for x in (q, k, v)), num_splits=0, return_attn_probs=True,
                        causal=shape.causal)
        return o.transpose(1, 2), lse

    return call


PEERS = {
    peer.name: peer for peer in (
        Peer(OURS, _ours, package="triton", splits=planned_splits),
        Peer(TILED, functools.partial(_ours, tile=TILE), package="triton", tile=TILE,
             splits=functools.partial(planned_splits, tile=TILE)),
        Peer("SDPA cuDNN", functools.partial(sdpa_call, "CUDNN_ATTENTION")),
        Peer("SDPA flash", functools.partial(sdpa_call, "FLASH_ATTENTION")),
        Peer("SDPA efficient, packed", _efficient),
        Peer("eager, grouped", _eager, rounding=Rounding(scores=2)),
        Peer("FlexAttention, mask", flex_call),
        Peer("xFormers split-K", _xformers, package="xformers", keys_first=True),
        Peer("FlashAttention-3", flash3_call, package="fa3_fwd", dtypes=("bfloat16",), keys_first=True),
    )
}
"""The Peers by name, ours first."""


def subject_peer(subject):
    """The Peer of a user's Subject, which takes torch tensors: called as its role says, read by its conventions."""
    def build(shape):
        def call(q, k, v):
            return subject.fn(q, k, v, *more)

        lens = torch.full((shape.batch,), shape.keys, device="cuda" if torch.cuda.is_available() else "cpu")
        more = {"decode": (lens, SPLITS), "attention": (shape.causal,), "partial": ()}[subject.role]
        return call

    def read(got, q, k, v):
        o, lse = CallCase(q, k, v).adopted(subject, got)  # alone the shapes of q, k, v matter
        return torch.from_numpy(np.asarray(o, np.float64)), torch.from_numpy(np.asarray(lse, np.float64))

    rounding = Rounding(stats=subject.stats_dtype or "float32", sums_rounded=subject.p_dtype is not None)
    return Peer(subject.name, build, read, rounding=rounding, scale=subject.scale, heads=subject.heads)


def on_device(subject, device="cuda"):
    """The Subject with its tensors moved to the device before each call: as the laws, drawn on the CPU, reach it."""
    def moving(function):
        if function is None:
            return None
        return lambda *args: function(*(x.to(device) if isinstance(x, torch.Tensor) else x for x in args))

    return replace(subject, fn=moving(subject.fn), backward=moving(subject.backward))
