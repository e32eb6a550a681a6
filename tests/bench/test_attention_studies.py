"""Errors and bits, memory, sustained load, and what is compiled ahead: on the CPU, the allocator pretended."""

import functools
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath.bench import attention_peers  # noqa: E402
from fdmath.bench import attention_studies as studies  # noqa: E402
from fdmath.bench.attention import ATOMICS, HOPPER, OURS, Shape, most_bytes, shape_of  # noqa: E402
from fdmath.bench.attention_peers import CONTENDERS, Contender  # noqa: E402
from tests.bench.attention_lab import LAB, SMALL, right, with_gradient  # noqa: E402


def test_errors_are_of_several_heads_and_say_whether_the_bits_are_the_same():
    rows = studies.error_rows(LAB, SMALL, [Contender(name, right) for name in (OURS, "other")])
    assert [row["pass"] for row in rows] == ["forward"] * 2 + ["backward"] * 2
    assert [row["note"] for row in rows] == ["20 runs, the same bits", None] * 2
    assert all(row["us"] is None and row["study"] == "errors" for row in rows)
    tensors = LAB.tensors(SMALL)
    two, = {x.shape[1] // n for x, n in zip(studies.first_heads(SMALL, *tensors, 2), (2, 1, 1, 2), strict=True)}
    assert two == 2


@pytest.mark.parametrize("name, which, status", [
    (OURS, "forward", "wrong"), (OURS, "backward", "wrong"), (HOPPER, "forward", "wrong"), (HOPPER, "backward", "ok"),
    (ATOMICS, "backward", "ok")])
def test_other_bits_are_wrong_but_where_dq_is_added_in_any_order(name, which, status):
    calls = iter(range(100))
    found = studies.repeated(lambda: (torch.tensor(float(next(calls) == 3)),), (name, which))
    assert found == {"status": status, "note": "1 of 20 runs give other bits"}
    assert studies.repeated(lambda: (torch.tensor(float("nan")),), (OURS, "forward"), 3)["status"] == "wrong"


class Allocator:
    """Of torch.cuda, what is asked about memory: the peak is `taken` bytes above what was there before."""

    def __init__(self, monkeypatch, taken):
        self.peak = taken
        for name, found in (("memory_allocated", 1000), ("max_memory_allocated", 1000 + taken), ("synchronize", None),
                            ("empty_cache", None), ("reset_peak_memory_stats", None)):
            monkeypatch.setattr(torch.cuda, name, lambda found=found: found)


def test_peak_bytes_are_beside_the_tensors_themselves(monkeypatch):
    monkeypatch.setattr(studies, "Shape", functools.partial(Shape, q_heads=2, kv_heads=2, dim=16))
    own, shape = 4 * 2 * 8 * 16 * 2, Shape(1, 2, 2, 16, 8, 8, True)
    most = most_bytes(shape, OURS)
    peers = [Contender(OURS, right), Contender("other", right), Contender("compiles", right, compiles=True),
             Contender("forward", right, passes=("forward",))]
    for over, status in ((0, "ok"), (1, "wrong")):
        Allocator(monkeypatch, own + most + over)
        rows = studies.memory_rows(LAB, 8, peers)
        assert [row["implementation"] for row in rows] == [OURS, "other"]
        assert [row["peak_bytes"] for row in rows] == [most + over] * 2
        assert [row["status"] for row in rows] == [status, "ok"] and shape_of(rows[0]) == shape


def test_what_fails_in_memory_is_said(monkeypatch):
    monkeypatch.setattr(studies, "Shape", functools.partial(Shape, q_heads=2, kv_heads=2, dim=16))
    rows = studies.memory_rows(LAB, 8, [CONTENDERS[OURS], Contender("absent", right, package="no_such_package")])
    assert [row["status"] for row in rows] == ["failed", "not run"] and "CUDA" in rows[0]["note"]


def test_studies_are_made_of_the_points_asked_for():
    shapes = [Shape(16384 // n, 16, 16, 128, n, n, c) for c in (False, True) for n in (512, 4096, 8192)]
    kinds = {study: [(step.args[1] if study == "memory" else step.args[1].keys)
                     for step in studies.steps_of(study, LAB, shapes, [], 16384)]
             for study in ("errors", "memory", "speed", "sustained")}
    assert kinds == {"errors": [2048, 2048], "memory": [2**i for i in range(10, 18)],
                     "speed": [512, 4096, 8192] * 2, "sustained": [4096, 4096]}
    assert studies.sustained_shapes(shapes[:1]) == shapes[:1]
    assert [s.keys for s in studies.erring_shapes(shapes, 1000)] == [1000, 1000]
    assert [s.batch for s in studies.erring_shapes(shapes, 16384)] == [8, 8]


def test_tasks_are_compiled_and_what_fails_stops_nothing(monkeypatch):
    done = []
    monkeypatch.setattr(studies, "ProcessPoolExecutor", lambda n, fresh: ThreadPoolExecutor(n))
    monkeypatch.setattr(studies, "compile_one", lambda *task: done.append(task) if task[2] else 1 / 0)
    tasks = [("bfloat16", SMALL, name) for name in ("a", "", "b")]
    assert sorted(studies.compile_ahead(tasks, 2)) == sorted(tasks) and len(done) == 2


def test_what_is_compiled_has_run_forward_and_backward(monkeypatch):
    seen = []
    peer = with_gradient(lambda *gradients: seen.append("backward") or gradients)
    monkeypatch.setattr(attention_peers, "CONTENDERS", {"a": peer, "b": replace(peer, package="no_such_package")})
    studies.compile_one("bfloat16", SMALL, "a", "cpu")
    studies.compile_one("bfloat16", SMALL, "b", "cpu")
    assert seen == ["backward"]
