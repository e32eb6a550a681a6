"""Rows of decoding, measured: every peer checked against float64 and timed in turn with the others. Needs torch."""

import functools
import subprocess
import time
from dataclasses import dataclass

import torch

from fdmath.bench import graphs
from fdmath.bench.decode import Floor, judged, most_errors, row_of, steps_from_one, timed
from fdmath.bench.probes import largest, probes

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


CHANGED = "changes its inputs"


def errors(peer, call, place, probes):
    """(what a peer's call errs, {err_o, err_lse, v_ones_ulp}; what is wrong with it, a list of texts).

    The inputs of every Probe are laid into the tensors `place`, one after the other: an answer, or a key, that was
    stored by its address would be found out. Nothing more is asked once the call has changed them.
    """
    found, said = {}, []
    for probe in probes:
        for x, right in zip(place, probe.inputs, strict=True):
            x.copy_(right)
        o, lse = (None if x is None else x.to(probe.o.device) for x in peer.read(call(*place), *place))
        if not all(map(same_bits, place, probe.inputs)):
            return found, [*said, CHANGED]
        ratios = probe.ratios(o, lse, peer.rounding)
        if probe.name == "ones":
            eps = torch.finfo(place[-1].dtype).eps
            found["v_ones_ulp"] = steps_from_one(o.double().cpu().numpy(), eps)
        elif probe.name == "random":
            found |= {"err_o": relative(o, probe.o), "err_lse": None if lse is None else largest(lse, probe.lse)}
        said += [f"{name} of {probe.name} inputs is {ratio:.3g} times what it may be" for name, ratio in ratios.items()
                 if ratio is not None and not ratio <= 1]
    return found, said


def same_bits(x, y):
    """Whether two tensors of 16-bit numbers hold the same bits."""
    return torch.equal(x.view(torch.int16), y.view(torch.int16))


def relative(got, right):
    """‖got − right‖ / ‖right‖; NaN for another shape."""
    if got.shape != right.shape:
        return float("nan")
    return float((got.double() - right).norm() / right.norm())


def checked(bench, shape, peer, probes):
    """(call, row fields) of a peer at a shape: what it errs, whether that may be, and how it fails, if so.

    probes(): the list of Probes. call is None for what shall not be timed: it is slow, or changes what others read.
    """
    why = peer.why_not(bench.dtype)
    if why is not None:
        return None, {"status": "not run", "note": why}
    try:
        call, asked = peer.build(shape), probes()
        place = [x.clone() for x in asked[0].inputs]  # with the strides that they have
        found, said = errors(peer, call, place, asked)
        if CHANGED in said:
            return None, found | {"status": "wrong", "note": "; ".join(said)}
        found["num_splits"] = peer.splits(*place) if peer.splits else None
        seconds = graphs.one_call_seconds(call, place) if place[0].is_cuda else 0.0
    except (Exception, SystemExit) as error:  # a peer may raise anything
        return None, failure(error)
    most = {"v_ones_ulp": most_errors(bench.dtype, peer.rounding, shape.dim, shape.keys, 0, 0)["v_ones_ulp"]}
    said += [note for note in [judged(found, most)["note"]] if note]
    slow = seconds > SLOW
    status = "wrong" if said else "not run" if slow else "ok"
    said += [f"one call takes {seconds:.2g} s, more than {SLOW} s"] if slow else []
    return None if slow else call, found | {"status": status, "note": "; ".join(said) or None}


def failure(error):
    """The {status, note} of what was raised: its kind and its words."""
    return {"status": "failed", "note": f"raised {type(error).__name__}: {' '.join(str(error).split())}"[:300]}


def peer_rows(bench, shape, peers, study="peers"):
    """The rows of one shape: every peer of the list `peers` checked, then all timed in turn."""
    layouts = {first: bench.inputs.sets(shape, first) for first in {peer.keys_first for peer in peers}}
    asked = functools.cache(lambda first, scale, heads: probes(*layouts[first][0], scale, heads))
    found, calls = {}, {}
    for peer in peers:
        of_peer = functools.partial(asked, peer.keys_first, peer.scale, peer.heads)
        call, found[peer.name] = checked(bench, shape, peer, of_peer)
        if call is not None:
            calls[peer.name] = call, layouts[peer.keys_first]
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
