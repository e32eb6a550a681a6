"""Rows of attention, measured: every contender checked against float64, then timed in turn with the others.

Needs torch and Triton.
"""

import functools
import math
import statistics
import time
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from triton.testing import do_bench

import fdmath
from fdmath.attention.reference import attention_gradient
from fdmath.bench import ceilings
from fdmath.bench.attention import DTYPES, ERRORS, PASSES, most_errors, row_of
from fdmath.bench.attention_peers import NotDifferentiable
from fdmath.bench.decode import judged, timed
from fdmath.bench.measure import CHANGED, failure, relative, same_bits
from fdmath.bench.timing import Timing


class Clock(NamedTuple):
    """How a call is timed: a pause in seconds, then warm-up and measurement in milliseconds, and all that `rounds`
    times, the others in between."""

    pause: float
    warm: int
    measured: int
    rounds: int

    def seconds(self, call):
        """The seconds of each call of one round, by the device's events; the L2 cache is overwritten before each."""
        time.sleep(self.pause)
        return [ms / 1e3 for ms in do_bench(call, warmup=self.warm, rep=self.measured, return_mode="all")]

    def all(self, call):
        """The seconds of each call of all rounds, one after the other."""
        return [seconds for _ in range(self.rounds) for seconds in self.seconds(call)]


CLOCKS = {"short": Clock(0.1, 8, 60, 2), "sustained": Clock(0.0, 250, 250, 1)}
KINDS = {"speed": "short", "sustained": "sustained"}
"""The clock, and the ceiling, of each study that times."""


def in_turn(calls, clock):
    """name → Timing of calls without arguments, each round asking all of them; an Exception for what raises."""
    times, broken = {name: [] for name in calls}, {}
    for _ in range(clock.rounds):
        for name in [name for name in calls if name not in broken]:
            try:
                times[name] += clock.seconds(calls[name])
            except (Exception, SystemExit) as error:  # a peer may raise anything
                broken[name] = error
    found = {name: Timing(statistics.median(t), min(t), max(t)) for name, t in times.items() if name not in broken}
    return found | broken


def matrix_rates(dtype, clocks=CLOCKS):
    """{"short", "sustained"}: 10¹² operations a second of a large product, timed as the rows are."""
    return {name: ceilings.matmul_tflops(dtype, time=lambda call, clock=clock: statistics.median(clock.all(call)))
            for name, clock in clocks.items()}


@dataclass(frozen=True)
class Lab:
    """Where rows are measured: a dtype by name, the device, its `matrix_rates`, and the clocks."""

    dtype: str
    device: str = "cuda"
    rates: dict = field(default_factory=dict)
    clocks: dict = field(default_factory=lambda: CLOCKS)

    def tensors(self, shape):
        """q, k, v and do of normal numbers, (B, H, N, d), the same ones every time."""
        numbers = torch.Generator(self.device).manual_seed(0)
        heads = ((shape.q_heads, shape.queries), (shape.kv_heads, shape.keys), (shape.kv_heads, shape.keys),
                 (shape.q_heads, shape.queries))
        return [torch.randn(shape.batch, *size, shape.dim, generator=numbers, device=self.device,
                            dtype=getattr(torch, self.dtype)) for size in heads]


def first_heads(shape, q, k, v, do, count=1):
    """q, k, v and do of the first `count` KV heads of the first sequence, in float64."""
    group = count * shape.group
    return [x[:1, :n].detach().double() for x, n in ((q, group), (k, count), (v, count), (do, group))]


def exact(shape, tensors, scale=None):
    """name → o, lse, dq, dk or dv by definition, of q, k, v and do in float64; None where the memory is too small."""
    q, k, v, do = tensors
    options = {"causal": shape.causal, "scale": scale}
    try:
        state = fdmath.attention(q, k, v, **options)
        found = *state, *attention_gradient(do, None, q, k, v, **options)
    except torch.cuda.OutOfMemoryError:
        return None
    return dict(zip(("o", "lse", "dq", "dk", "dv"), found, strict=True))


def errors(got, which, shape, right):
    """{err_…: …} of what a pass gave, whose first heads are compared with right; None for what is not there.

    NaN for another shape.
    """
    found, shapes = {}, result_shapes(shape)
    for name, x in zip(ERRORS[which], got, strict=True):
        result = name.removeprefix("err_")
        if x is None or right is None:
            found[name] = None
        elif x.shape != shapes[result]:
            found[name] = math.nan
        else:
            want = right[result]
            found[name] = relative(x.detach()[:1, :want.shape[1]].to(want.device), want)
    return found


def result_shapes(shape):
    """name → the shape of o, lse, dq, dk or dv."""
    queries, keys = (shape.batch, shape.q_heads, shape.queries), (shape.batch, shape.kv_heads, shape.keys)
    wide = {"o": queries, "dq": queries, "dk": keys, "dv": keys}
    return {"lse": queries, **{name: (*rows, shape.dim) for name, rows in wide.items()}}


def laid_out(peer, tensors):
    """q, k, v and do as the peer wants them in memory, of the first three a gradient where it is asked for one."""
    *qkv, do = ([x.transpose(1, 2).contiguous().transpose(1, 2) for x in tensors] if peer.keys_first else tensors)
    return *(x.detach().requires_grad_("backward" in peer.passes) for x in qkv), do


def calls_of(peer, shape, q, k, v, do):
    """pass → a function that makes its (call without arguments, read), for the passes of a peer.

    read(what the call gives): the arrays that it means. q, k, v, do: as `laid_out` gives them. It has run forward once
    when this returns. Raises whatever it raises.
    """
    call = peer.build(shape)
    got = call(q, k, v)
    found = {"forward": lambda: (lambda: call(q, k, v), lambda got: peer.read(got, q, k, v)),
             "backward": lambda: (peer.gradient(shape, do, q, k, v, got), lambda got: got)}
    return {name: found[name] for name in peer.passes}


def checked(peer, shape, tensors, dtype, right):
    """pass → (call or None, fields of its row): what it errs, whether that may be, and how it fails, if so.

    right(scale): what is `exact`. A peer that changes its inputs is wrong, and not timed.
    """
    why = peer.why_not(dtype)
    if why is not None:
        return dict.fromkeys(peer.passes, (None, {"status": "not run", "note": why}))
    laid = laid_out(peer, tensors)
    before = [x.detach().clone() for x in laid]
    try:
        made = calls_of(peer, shape, *laid)
        found = {which: _checked(peer, shape, dtype, right, which, made[which]) for which in peer.passes}
    except (Exception, SystemExit) as error:  # a peer may raise anything
        found = {which: (None, failure(error)) for which in peer.passes}
    if all(same_bits(x.detach(), y) for x, y in zip(laid, before, strict=True)):
        return found
    for x, y in zip(laid, before, strict=True):
        x.detach().copy_(y)  # for the others
    return {which: (None, fields | {"status": "wrong", "note": CHANGED}) for which, (_, fields) in found.items()}


def _checked(peer, shape, dtype, right, which, make):
    """(call or None, fields) of one pass."""
    try:
        call, read = make()
        erring = errors(read(call()), which, shape, right(peer.scale))
        wider = 4 if peer.rounding.stats in DTYPES else 1  # statistics in 16 bits: eight roundings in place of two
        most = {name: wider * x for name, x in most_errors(dtype, which).items()}
        return call, erring | judged(erring, most)
    except (Exception, SystemExit) as error:
        return None, unable(error)


def unable(error):
    """The {status, note} of what was raised: "not run" where there is no gradient, else "failed"."""
    return {"status": "not run", "note": str(error)} if isinstance(error, NotDifferentiable) else failure(error)


def timed_rows(lab, shape, peers, study="speed"):
    """The rows of one shape: every peer checked, then all passes of all peers timed in turn by the study's clock."""
    tensors, clock = lab.tensors(shape), KINDS[study]
    right = functools.cache(functools.partial(exact, shape, first_heads(shape, *tensors)))
    found, calls = {}, {}
    for peer in peers:
        for which, (call, fields) in checked(peer, shape, tensors, lab.dtype, right).items():
            found[which, peer.name] = fields
            if call is not None:
                calls[which, peer.name] = call
    for name, timing in in_turn(calls, lab.clocks[clock]).items():
        found[name] |= failure(timing) if isinstance(timing, BaseException) else timed(timing)
    rate = lab.rates.get(clock)
    return [row_of(study, which, shape, lab.dtype, name, rate, **found[which, name])
            for which in PASSES for name in (peer.name for peer in peers) if (which, name) in found]
