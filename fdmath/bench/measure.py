"""Rows of decoding, measured: every peer checked against float64 and timed in turn with the others. Needs torch."""

import subprocess
import time
from dataclasses import dataclass

import torch

import fdmath
from fdmath.bench import graphs
from fdmath.bench.decode import Floor, judged, most_errors, row_of, steps_from_one, timed
from fdmath.verify.cases import CallCase

SLOW = 0.05
"""The seconds of one call from which a peer is not timed."""


@dataclass(frozen=True)
class Bench:
    """Where rows are measured: the input sets of one dtype, the read floor, and when to begin nothing more.

    inputs: `graphs.Inputs`; until: a time of `time.monotonic`, or None; time_all(name → (call, sets)): name → Timing.
    """

    inputs: graphs.Inputs
    floor: Floor | None = None
    until: float | None = None
    time_all: object = None

    @property
    def dtype(self):
        """The name of the inputs' dtype."""
        return self.inputs.dtype

    @property
    def over(self):
        """Whether the time is up."""
        return self.until is not None and time.monotonic() > self.until

    def row(self, study, shape, implementation, **found):
        """The row that was found for an implementation."""
        return row_of(study, shape, self.dtype, implementation, self.floor, **found)

    def timings(self, calls):
        """name → Timing of calls, name → (call, sets), timed in turn; what cannot be captured is an Exception instead.
        """
        if self.time_all is not None:
            return self.time_all(calls)
        captured, broken = {}, {}
        for name, (call, sets) in calls.items():
            try:
                captured[name] = graphs.Graph(call, sets)
            except (Exception, SystemExit) as error:  # a peer may raise anything
                broken[name] = error
        return graphs.alternating(captured) | broken


def exact(q, k, v, scale=None, heads="interleaved"):
    """(o, lse) of attention by definition in float64, on the tensors' device; heads: as a Subject declares them."""
    order = torch.as_tensor(CallCase(q, k, v).heads_in_order(_Heads(heads)), device=q.device)
    state = fdmath.attention(q[:, order].double(), k.double(), v.double(), scale=scale)
    return [x[:, torch.argsort(order)] for x in state]


@dataclass(frozen=True)
class _Heads:
    heads: str


def errors(peer, call, q, k, v, right):
    """{err_o, err_lse, v_ones_ulp} of a peer's call on one input set, whose exact (o, lse) is `right`.

    v is set to 1 in place for the last of them, and set back: a call that stores its answers would be found out.
    """
    o, lse = (None if x is None else x.to(right[0].device) for x in peer.read(call(q, k, v), q, k, v))
    found = {"err_o": relative(o, right[0]), "err_lse": None if lse is None else _largest(lse, right[1])}
    kept = v.clone()
    v.fill_(1)
    ones, _ = peer.read(call(q, k, v), q, k, v)
    v.copy_(kept)
    eps = torch.finfo(v.dtype).eps
    return found | {"v_ones_ulp": steps_from_one(ones.double().cpu().numpy(), eps)}


def relative(got, right):
    """‖got − right‖ / ‖right‖; NaN for another shape."""
    if got.shape != right.shape:
        return float("nan")
    return float((got.double() - right).norm() / right.norm())


def _largest(got, right):
    """The largest |got − right|; NaN for another shape, or if one is NaN."""
    return float((got.double() - right).abs().max()) if got.shape == right.shape else float("nan")


def checked(bench, shape, peer, sets):
    """(call, row fields) of a peer at a shape: what it errs on set 0, whether that may be, and how it fails, if so.

    call is None for what shall not be timed.
    """
    why = peer.why_not(bench.dtype)
    if why is not None:
        return None, {"status": "not run", "note": why}
    try:
        call = peer.build(shape)
        first = [x.clone() for x in sets[0]]  # with the strides that they have
        right = exact(*first, peer.scale, peer.heads)
        found = errors(peer, call, *first, right) | {"num_splits": peer.splits(*first) if peer.splits else None}
        seconds = graphs.one_call_seconds(call, first) if first[0].is_cuda else 0.0
    except (Exception, SystemExit) as error:  # a peer may raise anything
        return None, failure(error)
    found |= judged(found, most_errors(bench.dtype, peer.roundings, float(right[1].abs().max()), shape.keys))
    if seconds > SLOW:
        return None, found | {"status": "not run", "note": f"one call takes {seconds:.2g} s, more than {SLOW} s"}
    return call, found


def failure(error):
    """The {status, note} of what was raised: its kind and its words."""
    return {"status": "failed", "note": f"raised {type(error).__name__}: {' '.join(str(error).split())}"[:300]}


def peer_rows(bench, shape, peers, study="peers"):
    """The rows of one shape: every peer of the list `peers` checked, then all timed in turn."""
    layouts = {first: bench.inputs.sets(shape, first) for first in {peer.keys_first for peer in peers}}
    found, calls = {}, {}
    for peer in peers:
        sets = layouts[peer.keys_first]
        call, found[peer.name] = checked(bench, shape, peer, sets)
        if call is not None:
            calls[peer.name] = call, sets
    for name, timing in bench.timings(calls).items():
        found[name] |= failure(timing) if isinstance(timing, BaseException) else timed(timing)
    return [bench.row(study, shape, peer.name, tile=peer.tile, **found[peer.name]) for peer in peers]


def driver():
    """The version of the device's driver, as nvidia-smi prints it; "unknown" where that is not there."""
    try:
        asked = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
        return subprocess.run(asked, capture_output=True, text=True, check=True).stdout.split()[0]
    except (OSError, subprocess.CalledProcessError, IndexError):
        return "unknown"
