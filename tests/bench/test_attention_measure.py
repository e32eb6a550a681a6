"""Contenders checked and rows measured, on the CPU with a clock that is pretended; what is wrong or absent is said."""

import functools
import os
import subprocess
import sys
from dataclasses import replace

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath.attention.reference import attention_gradient  # noqa: E402
from fdmath.bench import attention_measure as measure  # noqa: E402
from fdmath.bench import ceilings  # noqa: E402
from fdmath.bench.attention import ATOMICS, ERRORS, OURS, PASSES, most_errors  # noqa: E402
from fdmath.bench.attention_peers import CONTENDERS, Contender, subject_contender  # noqa: E402
from fdmath.verify import Subject  # noqa: E402
from tests.bench.attention_lab import LAB, SMALL, Pretended, definition, right, with_gradient  # noqa: E402


def rows_of(*peers, shape=SMALL, study="speed"):
    """The rows of the peers."""
    return measure.timed_rows(LAB, shape, peers, study)


@pytest.mark.parametrize("study, rate", [("speed", 700), ("sustained", 600)])
@pytest.mark.parametrize("causal", [False, True])
def test_a_right_contender_is_timed_in_both_passes_with_its_errors(causal, study, rate):
    shape = SMALL._replace(causal=causal)
    forward, backward = rows_of(Contender("right", right), shape=shape, study=study)
    for row, which in ((forward, "forward"), (backward, "backward")):
        assert (row["study"], row["pass"], row["status"], row["note"]) == (study, which, "ok", None)
        assert (row["us"], row["us_least"], row["us_most"]) == (3.0, 2.0, 4.0)
        assert row["share_of_matrix"] == row["tflops"] / rate
        assert all(0 < row[name] <= 2.0**-8 for name in ERRORS[which] if name != "err_lse")  # one rounding each
        assert [name for name in ERRORS[which] if row[name] is None] == []
    assert forward["err_lse"] < 2.0**-24 and forward["err_dq"] is None and backward["err_o"] is None


@pytest.mark.parametrize("change, field", [
    (lambda o, lse: (o * 1.02, lse), "err_o"), (lambda o, lse: (o, lse + 0.1), "err_lse"),
    (lambda o, lse: (o * float("nan"), lse), "err_o"), (lambda o, lse: (o.transpose(1, 2), lse), "err_o")])
def test_a_wrong_forward_is_marked_and_timed(change, field):
    peer = Contender("wrong", lambda shape: lambda *x: change(*right(shape)(*x)), passes=("forward",))
    wrong, fine = rows_of(peer, Contender("right", right, passes=("forward",)))
    assert wrong["status"] == "wrong" and wrong["note"].startswith(field) and wrong["us"] == 3.0
    assert fine["status"] == "ok"


@pytest.mark.parametrize("change, field", [
    (lambda dq, dk, dv: (dq * 1.02, dk, dv), "err_dq"), (lambda dq, dk, dv: (dq, dv, dv), "err_dk"),
    (lambda dq, dk, dv: (dq, dk, dv / 2), "err_dv"), (lambda dq, dk, dv: (dq, dk[:, :1], dv), "err_dk")])
def test_a_wrong_gradient_is_marked(change, field):
    rows = rows_of(with_gradient(change))
    assert [row["status"] for row in rows] == ["ok", "wrong"] and rows[1]["note"].startswith(field)


def test_a_contender_of_the_other_mask_is_wrong():
    rows = rows_of(Contender("full", lambda shape: right(shape._replace(causal=False))))
    assert [row["status"] for row in rows] == ["wrong", "wrong"]


def test_what_raises_fails_with_its_words_and_the_rest_goes_on():
    def raising(*words):
        raise RuntimeError("no kernel\n for this")

    rows = rows_of(Contender("a", raising), Contender("b", right, gradient=raising), Contender("c", right))
    assert [(row["implementation"], row["status"]) for row in rows] == [
        ("a", "failed"), ("b", "ok"), ("c", "ok"), ("a", "failed"), ("b", "failed"), ("c", "ok")]
    assert rows[0]["note"] == "raised RuntimeError: no kernel for this" and rows[0]["us"] is None


def test_a_call_that_raises_while_it_is_timed_fails_alone():
    calls = []

    def build(shape):
        def call(q, k, v):
            calls.append(1)
            if len(calls) > 2:
                raise RuntimeError("later")
            return right(shape)(q, k, v)

        return call

    rows = rows_of(Contender("later", build))
    assert [row["status"] for row in rows] == ["failed", "ok"] and "later" in rows[0]["note"] and rows[0]["err_o"] > 0


def test_what_cannot_run_says_why_in_each_of_its_passes():
    rows = rows_of(Contender("absent", right, package="no_such.package"),
                   Contender("other", right, dtypes=("float16",), passes=("forward",)))
    assert [(row["implementation"], row["pass"], row["note"]) for row in rows] == [
        ("absent", "forward", "no_such.package is not installed"), ("other", "forward", "takes float16"),
        ("absent", "backward", "no_such.package is not installed")]
    assert CONTENDERS["FlashAttention-3"].passes == ("forward",)


@pytest.mark.parametrize("change", range(3))
def test_one_that_changes_its_inputs_is_wrong_and_the_others_get_them_as_they_were(change):
    def build(shape):
        def call(*tensors):
            found = right(shape)(*tensors)
            tensors[change].detach().mul_(1.5)
            return found

        return call

    rows = rows_of(Contender("changes", build), Contender("right", right))
    assert [(row["status"], row["us"] is None) for row in rows] == [("wrong", True), ("ok", False)] * 2
    assert rows[0]["note"] == rows[2]["note"] == "changes its inputs"


def test_where_the_memory_is_too_small_for_float64_nothing_is_compared(monkeypatch):
    def full(*args, **options):
        raise torch.OutOfMemoryError

    monkeypatch.setattr(measure, "attention_gradient", full)
    rows = rows_of(Contender("right", right))
    assert [row["status"] for row in rows] == ["ok", "ok"] and rows[0]["err_o"] is rows[1]["err_dq"] is None


def test_one_that_wants_its_keys_first_gets_them_so():
    seen = []

    def build(shape):
        return lambda *x: (seen.append(all(y.transpose(1, 2).is_contiguous() for y in x)), right(shape)(*x))[1]

    rows = rows_of(Contender("first", build, keys_first=True))
    assert all(seen) and [row["status"] for row in rows] == ["ok", "ok"]


@pytest.mark.parametrize("passes", [PASSES, ("forward",)])
def test_a_gradient_is_followed_only_where_one_is_asked_for(passes):
    q, k, v, do = measure.laid_out(Contender("a", right, passes=passes), LAB.tensors(SMALL))
    assert {x.requires_grad for x in (q, k, v)} == {len(passes) == 2} and not do.requires_grad


@pytest.mark.parametrize("causal", [False, True])
def test_torchs_own_flash_is_right_on_a_cpu(causal):
    rows = rows_of(CONTENDERS["SDPA flash"], shape=SMALL._replace(kv_heads=4, causal=causal))
    assert [row["status"] for row in rows] == ["ok", "ok"] and rows[0]["err_lse"] is None


def test_calls_are_timed_in_turn_and_all_rounds_count():
    order = []

    class Clock:
        rounds = 2

        def seconds(self, call):
            order.append(call)
            return [len(order), 10 * len(order)]

    found = measure.in_turn({"a": "a", "b": "b"}, Clock())
    assert order == ["a", "b", "a", "b"] and (found["a"].least, found["a"].median, found["a"].most) == (1, 6.5, 30)


def test_the_clock_pauses_and_counts_in_seconds(monkeypatch):
    seen = []
    monkeypatch.setattr(measure.time, "sleep", seen.append)
    monkeypatch.setattr(measure, "do_bench", lambda call, **how: seen.append(how) or [2.0, 4.0])
    assert measure.Clock(0.1, 8, 60, 2).seconds(None) == [0.002, 0.004]
    assert measure.Clock(0.0, 8, 60, 2).all(None) == [0.002, 0.004] * 2
    del seen[2:]
    assert seen == [0.1, {"warmup": 8, "rep": 60, "return_mode": "all"}]


def test_the_matrix_rate_is_timed_as_the_rows_are(monkeypatch):
    made = torch.randn
    monkeypatch.setattr(ceilings.torch, "randn", lambda *a, device, **more: made(*a, **more))
    monkeypatch.setattr(ceilings, "matmul_tflops", functools.partial(ceilings.matmul_tflops, size=64))
    found = measure.matrix_rates("bfloat16", dict.fromkeys(("short", "sustained"), Pretended()))
    assert found == dict.fromkeys(("short", "sustained"), 2 * 64**3 / 3e-6 / 1e12)


def base_two(q, k, v, causal):
    """Attention whose lse is in base 2, heads last."""
    o, lse = definition(q, k, v, causal)
    return o, (lse / 0.6931471805599453).transpose(1, 2)


def test_a_subject_is_read_by_its_conventions_and_differentiated_by_torch():
    declared = {"library": "torch", "log_base": 2, "lse_layout": "heads_last"}
    rows = rows_of(subject_contender(Subject("mine", "attention", base_two, **declared)))
    assert [row["status"] for row in rows] == ["ok", "ok"], [row["note"] for row in rows]
    rows = rows_of(subject_contender(Subject("mine", "attention", base_two, library="torch")))
    assert rows[0]["status"] != "ok"


def test_a_subject_has_its_own_backward_or_none():
    def backward(do, dlse, q, k, v, o, lse, causal):
        assert dlse.shape == lse.shape and not dlse.any() and causal is True
        return attention_gradient(do, dlse, q, k, v, causal=causal)

    def detached(*call):
        return tuple(x.detach() for x in definition(*call))

    own = Subject("mine", "attention", detached, backward=backward, library="torch")
    assert [row["status"] for row in rows_of(subject_contender(own))] == ["ok", "ok"]
    rows = rows_of(subject_contender(replace(own, backward=None)))
    assert [row["status"] for row in rows] == ["ok", "not run"] and "gradient" in rows[1]["note"]


INTERPRETED = """
from tests.bench.attention_lab import LAB
from fdmath.bench import attention_measure as measure
from fdmath.bench.attention import Shape
from fdmath.bench.attention_peers import ATOMICS, CONTENDERS, OURS
lab = measure.Lab("float16", LAB.device, LAB.rates, LAB.clocks)
rows = measure.timed_rows(lab, Shape(1, 2, 1, 16, 24, 24, True), [CONTENDERS[OURS], CONTENDERS[ATOMICS]])
assert [(row["pass"], row["implementation"], row["status"]) for row in rows] == [
    ("forward", OURS, "ok"), ("backward", OURS, "ok"), ("backward", ATOMICS, "ok")], rows
assert all(row["us"] == 3 for row in rows) and rows[0]["err_lse"] < 2**-20  # float32 statistics
"""


def test_ours_is_right_in_the_interpreter():
    run = subprocess.run([sys.executable, "-c", INTERPRETED], env=os.environ | {"TRITON_INTERPRET": "1"},
                         capture_output=True, text=True, encoding="utf-8", check=False)
    assert run.returncode == 0, run.stderr


def test_ours_needs_a_device_and_says_so():
    rows = rows_of(CONTENDERS[OURS], CONTENDERS[ATOMICS])
    assert [row["status"] for row in rows] == ["failed"] * 3 and all("CUDA" in row["note"] for row in rows)


def test_every_budget_has_its_field():
    for which in PASSES:
        assert tuple(most_errors("float16", which)) == ERRORS[which]
