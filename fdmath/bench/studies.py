"""What notebook 08 asks of the kernel beside its peers: its steps, splits, lengths, tiles, its merge, and its errors.

Each study takes a Bench and gives its rows one shape at a time, so that what is there can be kept. Needs torch and
Triton.
"""

import torch

from fdmath.bench.decode import OURS, ROWS, Shape, best_peer, judged, timed
from fdmath.bench.measure import failure, peer_rows, relative
from fdmath.bench.peers import PEERS
from fdmath.bench.probes import largest, probe
from fdmath.kernels.merge import merge_states
from fdmath.kernels.split_kv import STEPS, decode_by_step, device_of, prepare, split_kv_decode

EVERY = [shape for shapes in ROWS.values() for shape in shapes]
NAMED = {shape.name: shape for shape in EVERY}
STEPPED = tuple(NAMED[name] for name in ("blog B=8,S=8192", "L8B B=1,S=8192", "L8B B=16,S=8192"))
SPLIT = tuple(NAMED[name] for name in ("blog B=8,S=8192", "blog B=1,S=131072", "L8B B=1,S=8192", "L8B B=1,S=131072",
                                       "tiny B=1,S=1024"))
GROWING = tuple(Shape(f"B=8,S={2**i}", 8, 16, 2, 128, 2**i) for i in range(8, 18))
TILES = (256, 512, 1024, 2048, 4096)
LEAST_TILED = 64 * 2**20
"""The bytes of K and V from which rows are asked for the price of a fixed tile."""
MOST_PROGRAMS = 8
"""How many programs a multiprocessor the most splits make."""
STORED = ("float32", "float16", "bfloat16")


def steps(bench):
    """Each step of the kernel, `STEPS`, on three shapes."""
    for shape in STEPPED:
        sets = bench.inputs.sets(shape)
        calls = {name: (lambda q, k, v, name=name: decode_by_step(name, q, k, v), sets) for name in STEPS}
        yield _rows("steps", bench, shape, calls)


def splits(bench):
    """The kernel with 1, 2, 4, … splits, and with those of its own plan (OURS)."""
    for shape in SPLIT:
        sets = bench.inputs.sets(shape)
        programs, several = shape.batch * shape.kv_heads, MOST_PROGRAMS * _multiprocessors()
        counts = [2**i for i in range(20) if 2**i == 1 or programs * 2**i <= several and shape.keys >= 16 * 2**i]
        calls = {count: (lambda q, k, v, n=count: split_kv_decode(q, k, v, num_splits=n), sets) for count in counts}
        planned = _plan(sets).num_splits
        yield _rows("splits", bench, shape, {OURS: (split_kv_decode, sets), **calls},
                    lambda name, planned=planned: {"num_splits": planned if name == OURS else name,
                                                   "note": "by its own plan" if name == OURS else None})


def lengths(bench):
    """Ours and the best peer of one shape, at a batch of 8 and 256 to 131072 keys.

    The blog's rows hold batch · keys fixed, and the bytes with it: that is why they look flat.
    """
    peers = [peer for peer in PEERS.values() if peer.name != OURS and peer.tile is None
             and peer.name != "FlexAttention, mask"]  # compiled for each length, and in no row the best
    best = None
    for shape in reversed(GROWING):
        chosen = peers if best is None else [best]
        found = peer_rows(bench, shape, [PEERS[OURS], *chosen], "lengths")
        ahead = best_peer(found)
        if best is None and ahead is not None:
            best = PEERS[ahead["implementation"]]
        yield found


def tiles(bench):
    """The kernel with a fixed tile, which makes a row's bits independent of its batch, beside its own plan."""
    for shape in EVERY:
        if 2 * shape.cache * torch.finfo(getattr(torch, bench.dtype)).bits // 8 < LEAST_TILED:
            continue
        sets = bench.inputs.sets(shape)
        calls = {tile: (lambda q, k, v, tile=tile: split_kv_decode(q, k, v, tile=tile), sets) for tile in TILES}
        counts = {OURS: _plan(sets).num_splits} | {tile: -(-shape.keys // tile) for tile in TILES}
        yield _rows("tiles", bench, shape, {OURS: (split_kv_decode, sets), **calls},
                    lambda name, counts=counts: {"tile": None if name == OURS else name, "num_splits": counts[name]})


def merge(bench):
    """The whole call beside its first kernel alone ("split alone", whose result is not merged), where it splits."""
    for shape in EVERY:
        sets = bench.inputs.sets(shape)
        plan = _plan(sets)
        if plan.num_splits > 1:
            calls = {OURS: (split_kv_decode, sets), "split alone": (_split_alone(plan), sets)}
            yield _rows("merge", bench, shape, calls, lambda name, plan=plan: {"num_splits": plan.num_splits})


def errors(bench):
    """Errors of o, rounded to the inputs' dtype, and of lse against the splits; lse of the parts stored in STORED.

    implementation: "lse stored in …"; the parts' o is float32 in all.
    """
    for shape in (NAMED["L8B B=1,S=8192"], NAMED["blog B=1,S=131072"]):
        q, k, v = bench.inputs.sets(shape)[0]
        right = probe("random", q, k, v)
        rows = []
        for count in (2**i for i in range(9)):
            parts = _split_alone(prepare(q, k, v).plan(count))(q, k, v)
            rows += [_error_row(bench, shape, count, stored, parts, right) for stored in STORED]
        yield rows


STUDIES = {study.__name__: study for study in (steps, splits, lengths, tiles, merge, errors)}


def _rows(study, bench, shape, calls, fields=lambda name: {}):
    """The rows of calls that are only timed; a name that is a number is OURS with a setting. fields(name): more."""
    return [bench.row(study, shape, name if isinstance(name, str) else OURS,
                      **(failure(timing) if isinstance(timing, BaseException) else timed(timing) | fields(name)))
            for name, timing in bench.timings(calls).items()]


def _plan(sets):
    return prepare(*sets[0]).plan()


def _multiprocessors():
    return torch.cuda.get_device_properties(0).multi_processor_count


def _split_alone(plan):
    """A call of the first kernel alone, that writes the parts."""
    def call(q, k, v):
        o, lse = _room(q, v, plan.num_splits)
        prepare(q, k, v).split(plan, o, lse, early=2 if device_of(q).early else 0)
        return o, lse

    return call


def _room(q, v, count):
    """Room for `count` partial states in float32: o (S, B, Hq, Nq, dv) and lse (S, B, Hq, Nq)."""
    shape = count, *q.shape[:-1]
    return q.new_empty((*shape, v.shape[-1]), dtype=torch.float32), q.new_empty(shape, dtype=torch.float32)


def _error_row(bench, shape, count, stored, parts, right):
    """The row of the merge of parts whose lse is stored in the format `stored`; a note: errors by what they may be."""
    o, lse = merge_states(parts[0], parts[1].to(getattr(torch, stored)))
    o = o.to(getattr(torch, bench.dtype))
    found, note = {"err_o": relative(o, right.o), "err_lse": largest(lse, right.lse)}, {}
    if stored == "float32":  # the others are here to be seen failing
        note = judged(right.ratios(o, lse, PEERS[OURS].rounding), {"err_o": 1, "err_lse": 1})
    return bench.row("errors", shape, f"lse stored in {stored}", num_splits=count, **found, **note)
