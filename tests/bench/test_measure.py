"""Peers checked and rows measured, on the CPU with a clock that is pretended; what is wrong, slow or absent is said."""

import math

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath.bench import decode, graphs, measure, peers, probes, studies  # noqa: E402
from fdmath.bench.decode import OURS, TILED, Floor, Shape  # noqa: E402
from fdmath.bench.measure import Bench  # noqa: E402
from fdmath.bench.peers import PEERS, Peer  # noqa: E402
from fdmath.bench.timing import Timing  # noqa: E402
from fdmath.verify import Subject  # noqa: E402

SMALL = Shape("small", 2, 4, 2, 16, 40)


def pretended(calls):
    """name → a Timing for each call that runs, what it raises for the others."""
    found = {}
    for name, (call, sets) in calls.items():
        try:
            call(*sets[-1])
            found[name] = Timing(3e-6, 2e-6, 4e-6)
        except RuntimeError as error:
            found[name] = error
    return found


def bench(dtype="float16", shapes=(SMALL,), seed=0):
    """A Bench on the CPU."""
    inputs = graphs.Inputs(dtype, shapes, device="cpu", rotated=1, seed=seed)
    return Bench(inputs, Floor(2.0, 4000.0), time_all=pretended)


def right(shape):
    """A decode that is right, rounded to the inputs' format once."""
    def call(q, k, v):
        o, lse = probes.exact(q, k, v)
        return o.to(q.dtype), lse.float()

    return call


def broken(change):
    """A Peer that is right but for change(o, lse)."""
    return Peer("broken", lambda shape: lambda q, k, v: change(*right(shape)(q, k, v)))


@pytest.mark.parametrize("dtype", decode.DTYPES)
def test_a_right_peer_is_timed_with_its_errors(dtype):
    (row,) = measure.peer_rows(bench(dtype), SMALL, [Peer("right", right)])
    assert row["status"] == "ok" and row["note"] is None and row["v_ones_ulp"] == 0
    assert (row["us"], row["us_least"], row["us_most"]) == (3.0, 2.0, 4.0)
    assert 0 < row["err_o"] <= torch.finfo(getattr(torch, dtype)).eps / 2 and row["bytes"] == SMALL.bytes_in(dtype)
    assert row["err_lse"] <= 2**-24 * 8  # one rounding of an lse below 8


@pytest.mark.parametrize("change, field", [
    (lambda o, lse: (o * 1.01, lse), "err_o"), (lambda o, lse: (o, lse / math.log(2)), "err_lse"),
    (lambda o, lse: (o * math.nan, lse), "err_o"), (lambda o, lse: (o, lse * math.nan), "err_lse"),
    (lambda o, lse: (o[..., :1], lse), "err_o"), (lambda o, lse: (o, lse[..., None]), "err_lse"),
    (lambda o, lse: (o.roll(1, 1), lse), "err_o"), (lambda o, lse: (torch.where(o == 1, 1.01, o), lse), "v_ones_ulp")])
def test_a_wrong_peer_is_marked_by_what_is_wrong_and_the_rest_goes_on(change, field):
    rows = measure.peer_rows(bench(), SMALL, [broken(change), Peer("right", right)])
    assert [row["status"] for row in rows] == ["wrong", "ok"] and field in rows[0]["note"]
    assert rows[0]["us"] == 3.0  # timed all the same, and marked


def test_a_stored_answer_is_found_out():
    stored = {}

    def caching(shape):
        return lambda *tensors: stored.setdefault(tuple(map(id, tensors)), right(shape)(*tensors))

    (row,) = measure.peer_rows(bench(), SMALL, [Peer("stored", caching)])
    assert row["status"] == "wrong" and "v_ones_ulp" in row["note"]


LONG = Shape("long", 1, 4, 2, 16, 16384)


def of_keys(chosen):
    """A Peer that is right, but for the keys chosen(k) that it sees."""
    return Peer("broken", lambda shape: lambda q, k, v: right(shape)(q, chosen(k), chosen(v)))


def without(*lost):
    """What is left of keys without some."""
    def rest(x):
        gone = {j % x.shape[2] for j in lost}
        return x[:, :, [j for j in range(x.shape[2]) if j not in gone]]

    return rest


@pytest.mark.parametrize("dtype", decode.DTYPES)
@pytest.mark.parametrize("shape", [LONG, SMALL, LONG._replace(q_heads=1, kv_heads=1, dim=1)])
@pytest.mark.parametrize("chosen", [
    without(-1), without(0), without(-1, -2, -3, -4), lambda x: torch.cat([x, x[:, :, -1:]], 2),
    lambda x: torch.cat([x[:, :, :1], x], 2)])
def test_one_key_lost_or_twice_is_wrong_however_many_there_are(dtype, shape, chosen):
    (row,) = measure.peer_rows(bench(dtype, [shape]), shape, [of_keys(chosen)])
    assert row["status"] == "wrong" and "err_o of weighted inputs" in row["note"]


@pytest.mark.parametrize("lost", [(4096,), (4095,), (2048 + 4096,), range(256, 512)])
def test_a_key_lost_at_a_border_and_a_lost_tile_are_wrong(lost):
    shape = LONG._replace(q_heads=1, kv_heads=1, dim=64)
    (row,) = measure.peer_rows(bench("bfloat16", [shape]), shape, [of_keys(without(*lost))])
    assert row["status"] == "wrong" and "err_o of weighted inputs" in row["note"]


@pytest.mark.parametrize("dtype", decode.DTYPES)
@pytest.mark.parametrize("heads, dim, keys", [(1, 1, 1), (1, 1, 64), (1, 2, 1024), (2, 16, 3), (1, 64, 8192)])
def test_one_that_is_right_is_never_wrong_even_where_o_cancels(dtype, heads, dim, keys):
    """P and o are rounded, and l sums the P that was."""
    def build(shape):
        def call(q, k, v):
            scores = q.double() @ k.double().mT * shape.dim**-0.5
            p = torch.exp(scores - scores.amax(-1, keepdim=True)).to(q.dtype).double()
            return (p @ v.double() / p.sum(-1, keepdim=True)).to(q.dtype), None

        return call

    shape = Shape("a", 1, heads, heads, dim, keys)
    seeds = range(30 if keys == 64 else 3)
    rows = [measure.peer_rows(bench(dtype, [shape], seed), shape, [Peer("rounded", build)])[0] for seed in seeds]
    assert [row["note"] for row in rows if row["status"] != "ok"] == []
    if keys == 64:
        u = torch.finfo(getattr(torch, dtype)).eps / 2
        assert max(row["err_o"] for row in rows) > 2 * u  # relative to an o that cancels, no bound


@pytest.mark.parametrize("change", ["q", "k", "v"])
@pytest.mark.parametrize("keys_first", [False, True])
def test_one_that_changes_its_inputs_is_wrong_and_not_timed(change, keys_first):
    def build(shape):
        def call(**tensors):
            found = right(shape)(**tensors)
            tensors[change].mul_(1.5)
            return found

        return lambda q, k, v: call(q=q, k=k, v=v)

    rows = measure.peer_rows(bench(), SMALL, [Peer("changes", build, keys_first=keys_first), Peer("right", right)])
    assert [(row["status"], row["us"]) for row in rows] == [("wrong", None), ("ok", 3.0)]
    assert rows[0]["note"] == "changes its inputs"


@pytest.mark.parametrize("stored", range(3))
def test_keys_that_are_stored_by_their_address_are_found_out(stored):
    kept = {}

    def build(shape):
        def call(*tensors):
            at = tensors[stored].data_ptr()
            kept.setdefault(at, tensors[stored].clone())
            return right(shape)(*(kept[at] if i == stored else x for i, x in enumerate(tensors)))

        return call

    (row,) = measure.peer_rows(bench(), SMALL, [Peer("stores", build)])
    assert row["status"] == "wrong" and "weighted inputs" in row["note"]


@pytest.mark.parametrize("off", [0.0035, -0.0035])
def test_an_lse_that_is_off_by_less_than_sixteen_bits_show_is_wrong(off):
    (row,) = measure.peer_rows(bench("bfloat16", [LONG]), LONG, [broken(lambda o, lse: (o, lse + off))])
    assert row["status"] == "wrong" and "err_lse of random inputs" in row["note"] and "err_o" not in row["note"]


@pytest.mark.parametrize("declared, status", [({}, "wrong"), ({"stats_dtype": "bfloat16"}, "ok")])
def test_an_lse_in_sixteen_bits_is_right_only_where_that_is_declared(declared, status):
    def low(q, k, v):
        o, lse = right(SMALL)(q, k, v)
        return o, lse.to(torch.bfloat16).float()

    subject = Subject("mine", "partial", low, library="torch", **declared)
    (row,) = measure.peer_rows(bench("bfloat16"), SMALL, [peers.subject_peer(subject)])
    assert row["status"] == status, row["note"]


@pytest.mark.parametrize("dtype", decode.DTYPES)
def test_keys_of_the_weighted_probe_weigh_in_every_part_of_the_cache(dtype):
    for count, keys in ((64, 16384), (64, 64), (5, 5), (1, 1)):
        shape = Shape("a", 2, 4, 2, 64, keys)
        q, k, v = bench(dtype, [shape]).inputs.sets(shape)[0]
        asked = probes.probe("weighted", *probes.weighted(q, k, v))
        places = [x.nonzero()[:, 0] for x in asked.v.sum(-1).flatten(0, 1)]
        assert all(len(x) == count and x[0] == 0 and x[-1] == keys - 1 for x in places)
        assert all((x * count // keys).tolist() == list(range(count)) for x in places)
        own = asked.o[..., :count]  # the weight of each of them
        assert own.min() > 1 / 4 / count and own.sum(-1).min() > 0.8 and not asked.o[..., count:].any()
        assert torch.equal(asked.spread, asked.o)


def test_what_raises_fails_with_its_words_and_the_rest_goes_on():
    def raising(shape):
        raise RuntimeError("no kernel\n  for this")

    calls = []

    def later(shape):
        def call(q, k, v):
            calls.append(1)
            if len(calls) > 3:
                raise RuntimeError("captured")
            return right(shape)(q, k, v)

        return call

    rows = measure.peer_rows(bench(), SMALL, [Peer("raises", raising), Peer("later", later), Peer("right", right)])
    assert [row["status"] for row in rows] == ["failed", "failed", "ok"]
    assert rows[0]["note"] == "raised RuntimeError: no kernel for this" and "captured" in rows[1]["note"]
    assert rows[0]["us"] is rows[1]["us"] is None


def test_what_cannot_run_says_why():
    absent = Peer("absent", right, package="no_such_package")
    other = Peer("other", right, dtypes=("bfloat16",))
    rows = measure.peer_rows(bench(), SMALL, [absent, other])
    assert [row["status"] for row in rows] == ["not run"] * 2
    assert [row["note"] for row in rows] == ["no_such_package is not installed", "takes bfloat16"]
    assert PEERS["FlashAttention-3"].why_not("float16") and PEERS["SDPA flash"].why_not("float16") is None


def test_what_is_slow_is_not_timed(monkeypatch):
    monkeypatch.setattr(measure, "SLOW", -1.0)
    (row,) = measure.peer_rows(bench(), SMALL, [Peer("slow", right)])
    assert row["status"] == "not run" and row["us"] is None and "more than" in row["note"] and row["err_o"] > 0
    (row,) = measure.peer_rows(bench(), SMALL, [broken(lambda o, lse: (2 * o, lse))])
    assert row["status"] == "wrong" and row["us"] is None and "more than" in row["note"]


@pytest.mark.parametrize("name", ["SDPA flash", "eager, grouped"])
@pytest.mark.parametrize("shape", [SMALL, SMALL._replace(kv_heads=4)])
def test_peers_that_run_on_a_cpu_are_right_there(name, shape):
    (row,) = measure.peer_rows(bench(shapes=[shape]), shape, [PEERS[name]])
    assert row["status"] == "ok", row["note"]


def test_keys_first_is_the_same_call_in_another_place_in_memory():
    seen = []

    def build(shape):
        return lambda q, k, v: (seen.append(k.transpose(1, 2).is_contiguous()), right(shape)(q, k, v))[1]

    (row,) = measure.peer_rows(bench(), SMALL, [Peer("keys first", build, keys_first=True)])
    assert row["status"] == "ok" and len(seen) == 4 and all(seen)


def test_sets_share_no_memory_and_are_enough():
    inputs = graphs.Inputs("float16", [SMALL], device="cpu", rotated=5 * 4 * SMALL.cache)
    for keys_first in (False, True):
        sets = inputs.sets(SMALL, keys_first)
        assert len(sets) == 5 and len({x.data_ptr() for _, *kv in sets for x in kv}) == 10
        assert all(x.shape == (2, 2, 40, 16) for _, *kv in sets for x in kv) and sets[0][0].shape == (2, 4, 1, 16)
        assert sum(x.numel() for _, *kv in sets for x in kv) == inputs.pool.numel()


def test_graphs_are_replayed_in_turn_and_the_first_replay_does_not_count():
    class Replayed:
        def __init__(self, seconds):
            self.times = iter(seconds)

        def seconds(self):
            return next(self.times)

    found = graphs.alternating({"a": Replayed([9, 1, 2, 9, 3, 4]), "b": Replayed([9, 5, 5, 9, 5, 5])}, 2, 2)
    assert found == {"a": Timing(2.5, 1, 4), "b": Timing(5, 5, 5)}


def conventions(q, k, v, lens, num_splits):
    """Attention with query heads tiled, lse in base 2 and heads last."""
    order = torch.arange(4).reshape(2, 2).T.reshape(-1)
    o, lse = probes.exact(q[:, order].contiguous(), k, v, scale=0.5)
    back = torch.argsort(order)
    assert (lens == k.shape[2]).all() and num_splits == peers.SPLITS
    return o[:, back].to(q.dtype), (lse[:, back] / math.log(2)).float().transpose(1, 2)


def test_a_subject_is_read_by_its_conventions():
    declared = {"library": "torch", "heads": "tiled", "scale": 0.5}
    subject = Subject("mine", "decode", conventions, log_base=2, lse_layout="heads_last", **declared)
    (row,) = measure.peer_rows(bench(), SMALL, [peers.subject_peer(subject)])
    assert row["status"] == "ok", row["note"]
    (row,) = measure.peer_rows(bench(), SMALL, [peers.subject_peer(Subject("mine", "decode", conventions, **declared))])
    assert row["status"] != "ok"


@pytest.mark.parametrize("role, more", [("partial", ()), ("attention", (False,))])
def test_a_subject_is_called_as_its_role_says(role, more):
    def fn(q, k, v, *rest):
        assert rest == more
        return right(SMALL)(q, k, v)

    (row,) = measure.peer_rows(bench(), SMALL, [peers.subject_peer(Subject("mine", role, fn, library="torch"))])
    assert row["status"] == "ok", row["note"]


def test_a_subject_is_reached_on_its_device():
    subject = Subject("mine", "partial", lambda q, n: (q.device, n), library="torch")
    assert peers.on_device(subject, "meta").fn(torch.zeros(1), 3) == (torch.device("meta"), 3)


def test_ours_needs_a_device_and_says_so():
    rows = measure.peer_rows(bench(), SMALL, [PEERS[OURS], PEERS[TILED]])
    assert [row["status"] for row in rows] == ["failed"] * 2 and all("CUDA" in row["note"] for row in rows)
    assert rows[1]["tile"] == decode.TILE


def test_studies_name_their_shapes_and_settings(monkeypatch):
    small = [SMALL._replace(name=name) for name in ("a", "b")]
    names = ("STEPPED", "SPLIT", "GROWING", "EVERY")
    for name in names:
        monkeypatch.setattr(studies, name, small)
    monkeypatch.setattr(studies, "LEAST_TILED", 0)
    monkeypatch.setattr(studies, "_multiprocessors", lambda: 2)
    plan = type("Plan", (), {"num_splits": 3, "block": 16})
    monkeypatch.setattr(studies, "_plan", lambda sets: plan)
    kernel = lambda q, k, v, **settings: right(SMALL)(q, k, v)  # noqa: E731
    for name in ("split_kv_decode", "decode_by_step"):
        monkeypatch.setattr(studies, name, lambda *a, **settings: kernel(*a[-3:]))
    monkeypatch.setattr(studies, "_split_alone", lambda plan: kernel)
    place = bench(shapes=small)
    steps, splits, tiles, merge = (list(studies.STUDIES[name](place)) for name in ("steps", "splits", "tiles", "merge"))
    assert [row["implementation"] for row in steps[0]] == list(studies.STEPS)
    assert [(row["num_splits"], row["note"]) for row in splits[1]] == [(3, "by its own plan"), (1, None), (2, None)]
    assert [(row["tile"], row["num_splits"]) for row in tiles[0]][:3] == [(None, 3), (256, 1), (512, 1)]
    assert [row["implementation"] for row in merge[0]] == [OURS, "split alone"]
    for study in (steps, splits, tiles, merge):
        assert [rows[0]["row"] for rows in study] == ["a", "b"]
        assert all(row["us"] == 3.0 and row["status"] == "ok" for rows in study for row in rows)


def test_lengths_follow_the_best_peer_of_the_longest(monkeypatch):
    monkeypatch.setattr(studies, "GROWING", (SMALL._replace(keys=16), SMALL))
    found = {OURS: Peer(OURS, right), "slow": Peer("slow", right), "fast": Peer("fast", right)}
    monkeypatch.setattr(studies, "PEERS", found)
    times = {OURS: 3e-6, "slow": 5e-6, "fast": 4e-6}
    place = bench()
    clock = lambda calls: {name: Timing(*3 * [times[name]]) for name in calls}  # noqa: E731
    rows = list(studies.lengths(Bench(place.inputs, place.floor, time_all=clock)))
    assert [[row["implementation"] for row in at] for at in rows] == [[OURS, "slow", "fast"], [OURS, "fast"]]
    assert rows[1][0]["keys"] == 16


def test_errors_grow_where_lse_is_stored_low(monkeypatch):
    names = ("L8B B=1,S=8192", "blog B=1,S=131072")
    monkeypatch.setattr(studies, "NAMED", dict.fromkeys(names, SMALL))
    monkeypatch.setattr(studies, "prepare", lambda q, k, v: type("Call", (), {"plan": staticmethod(lambda n: n)}))

    def split_alone(count):
        def call(q, k, v):
            parts = [probes.exact(q, a, b) for a, b in zip(k.chunk(count, 2), v.chunk(count, 2), strict=True)]
            return [torch.stack(x).float() for x in zip(*parts, strict=True)]

        return call

    def merge_states(o, lse):
        weight = torch.softmax(lse.double(), 0)
        return (weight[..., None] * o).sum(0), lse.double().logsumexp(0)

    monkeypatch.setattr(studies, "_split_alone", split_alone)
    monkeypatch.setattr(studies, "merge_states", merge_states)
    monkeypatch.setattr(studies, "range", lambda n: range(3), raising=False)
    rows = next(studies.errors(bench()))
    by = {(row["num_splits"], row["implementation"]): row for row in rows}
    assert len(rows) == 9 and by[2, "lse stored in float32"]["status"] == "ok"
    low, high = (by[2, f"lse stored in {name}"] for name in ("bfloat16", "float32"))
    assert low["err_lse"] > 100 * high["err_lse"] and low["err_o"] > high["err_o"]
