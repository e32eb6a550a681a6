"""A subject: plain functions, o alone, where tensors live, the widest heads, and what is refused by name."""

from dataclasses import replace

import numpy as np
import pytest

from fdmath.algebra.state import LSEState
from fdmath.attention.reference import attention
from fdmath.verify import LAWS, Subject, verify
from fdmath.verify.cases import CallCase
from fdmath.verify.judge import ask, drawn
from fdmath.verify.laws_of_calls import GROUPS
from fdmath.verify.strategies import in_its_library, plain
from fdmath.verify.subject import SubjectError
from tests.verify import right

NEED_LSE = {"closure", "lse bounds"}
O_ALONE = Subject("o alone", "attention", right.o_alone, lse=False, dtypes=("float32",))


def test_a_plain_function_needs_a_name_and_a_role_alone():
    assert verify(Subject("s", "attention", right.scaled_first), ["anchor", "strides"], cases=5).exit_code == 0


def test_without_lse_its_laws_are_not_applicable_and_counted():
    report = verify(O_ALONE, cases=3)
    said = verify(replace(O_ALONE, fn=right.scaled_first, lse=True), cases=3)
    na = lambda r: {law for (law, _), cell in r.cells.items() if cell.verdict == "n/a"}  # noqa: E731
    assert na(report) - na(said) == NEED_LSE and report.counts()["n/a"] == len(na(report))
    assert report.exit_code == 0, report.failures()


def test_without_lse_o_is_judged_and_named():
    wrong = replace(O_ALONE, fn=lambda *args: right.o_alone(*args) + np.float32(1))
    cell = ask(LAWS["anchor"], wrong, 20)
    assert cell.verdict == "fail" and "o[0, 0, 0, 0]" in cell.counterexample
    nan = replace(O_ALONE, fn=lambda *args: right.o_alone(*args) * np.float32(np.nan))
    assert ask(LAWS["v is 1"], nan, 20).verdict == "fail"


@pytest.mark.parametrize(("fn", "declared", "told"), [
    (right.scaled_first, {"lse": False}, "must return o alone, for it is declared with lse=False; got 2 arrays"),
    (right.o_alone, {}, r"must return \(o, lse\); got ndarray \(declare lse=False if it returns o alone\)"),
    (lambda *args: (*right.scaled_first(*args), 1), {}, r"must return \(o, lse\); got tuple of 3"),
])
def test_another_number_of_arrays_is_told(fn, declared, told):
    subject = Subject("s", "attention", fn, **declared)
    with pytest.raises(SubjectError, match=told):
        plain(subject).run(subject)


def test_a_merge_is_not_told_to_leave_out_its_lse():
    subject = Subject("s", "merge", lambda *args: {})
    with pytest.raises(SubjectError, match=r"must return \(o, lse\); got dict$"):
        plain(subject).run(subject)


@pytest.mark.parametrize(("declared", "told"), [
    ({"device": "cuda"}, "device must be cpu for NumPy arrays; got 'cuda'"),
    ({"lse": False}, "lse=False must go with a result that is not merged on"),
    ({"largest_dim": 0}, "largest_dim must be at least 1; got 0"),
    ({"most_queries": 0}, "most_queries must be at least 1; got 0"),
])
def test_a_declaration_that_cannot_be_is_refused(declared, told):
    with pytest.raises(ValueError, match=told):
        Subject("s", "merge", right.by_logaddexp, **declared)


def test_an_lse_in_base_two_keeps_its_format_and_its_bits_in_a_chain():
    sent = []

    def fn(o1, lse1, o2, lse2):
        sent.extend(x for x in (lse1, lse2))
        return o1, (lse1 + np.float32(1 / 3)).astype(lse1.dtype)

    subject = Subject("s", "merge", fn, log_base=2)
    subject.merge_many([LSEState(np.ones((1, 1), np.float32), np.float32([100.1]))] * 4)
    assert {x.dtype.name for x in sent} == {"float32"}
    assert sent[2] == sent[0] + np.float32(1 / 3) and sent[4] == sent[2] + np.float32(1 / 3)


def test_no_case_is_wider_than_the_subject_takes():
    narrow = Subject("s", "attention", right.scaled_first, largest_dim=3)
    cases = drawn(LAWS["anchor"], narrow, 10) + drawn(LAWS["anchor"], narrow, 3, large=True)
    assert max(max(c.q.shape[-1], c.v.shape[-1]) for c in cases) == 3
    assert not LAWS["wide heads"].concerns(narrow)
    wide = drawn(LAWS["wide heads"], replace(narrow, largest_dim=576), 1, large=True)
    assert [(c.q.shape[-1], c.v.shape[-1]) for c in wide] == [(576, 512)]


def test_no_case_has_more_queries_than_the_subject_takes():
    few = Subject("s", "attention", right.scaled_first, most_queries=2)
    cases = [case for name in ("anchor", "grouped heads") for case in drawn(LAWS[name], few, 10)]
    cases += drawn(LAWS["anchor"], few, 3, large=True)
    assert max(c.q.shape[-2] for c in cases) == 2


def test_grouped_heads_are_asked_at_the_ratios_named():
    cases = [case for seed in range(3) for case in drawn(LAWS["grouped heads"], O_ALONE, 50, seed=seed)]
    assert {(c.k.shape[1], c.q.shape[1] // c.k.shape[1]) for c in cases} == {shape[1:] for shape in GROUPS}


def test_a_causal_call_is_cut_into_a_past_seen_whole_and_a_present():
    case = CallCase(*(np.ones((1, 1, n, 2), np.float32) for n in (2, 5, 5)), causal=True)
    whole = case.visible()[0, 0]
    for at, cut in ((1, 1), (3, 3), (4, 4), (5, 4)):
        past, present = case.split(at)
        assert past.k.shape[-2] == cut and not past.causal
        assert np.array_equal(np.concatenate([past.visible(), present.visible()], axis=-1)[0, 0], whole)


def test_the_library_that_a_function_takes_is_found():
    assert in_its_library(Subject("s", "attention", right.scaled_first)).library == "numpy"
    torch = pytest.importorskip("torch")

    def of_tensors(q, k, v, causal):
        return tuple(attention(torch.as_tensor(q).detach(), k, v, causal=causal)) if torch.is_tensor(q) else None

    assert in_its_library(Subject("s", "attention", of_tensors)).library == "torch"
    assert in_its_library(Subject("s", "attention", len)).library == "numpy"  # it takes neither


def test_tensors_are_sent_to_the_device_named():
    torch = pytest.importorskip("torch")
    subject = Subject("s", "attention", right.scaled_first, library="torch", device="meta")
    assert subject.send(np.ones(2)).device == torch.device("meta")
