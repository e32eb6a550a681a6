"""What explains a broken law: each wrong merge that people write is named by its law, its convention, its fault."""

import math
import re

import numpy as np
import pytest

from fdmath import LSEState, Subject, merge
from fdmath.algebra.rounding import Budget
from fdmath.attention.decode import split_kv_attention
from fdmath.attention.reference import attention
from fdmath.verify import explain
from fdmath.verify.apart import verify_apart
from fdmath.verify.cases import StateCase
from fdmath.verify.explain import FAULTS, KINDS, explained, explanations, suspects
from fdmath.verify.judge import ask, drawn, verify
from fdmath.verify.laws import LAWS
from fdmath.verify.mutants import MUTANTS
from fdmath.verify.report import Cell
from fdmath.verify.worker import Here


def finite(o, lse):
    """o with 0 in the rows that are empty."""
    return np.where(np.isneginf(lse)[:, None], np.zeros_like(o), o)


def overflowing(o1, lse1, o2, lse2):
    """lse by log(1 + exp(lse2 - lse1)), as it stands in ring attentions."""
    lse = lse1 + np.log(1 + np.exp(lse2 - lse1))
    return np.exp(lse1 - lse)[:, None] * o1 + np.exp(lse2 - lse)[:, None] * o2, lse


def fed_to_exp2(o1, lse1, o2, lse2):
    """Natural lse as an exponent of 2, and a natural logarithm at the end."""
    m = np.maximum(lse1, lse2)
    m = np.where(np.isneginf(m), np.zeros_like(m), m)
    a, b = np.exp2(lse1 - m), np.exp2(lse2 - m)
    total = np.where(a + b == 0, np.ones_like(a), a + b)
    o = (a[:, None] * finite(o1, lse1) + b[:, None] * finite(o2, lse2)) / total[:, None]
    return o, np.where(a + b == 0, lse1, m + np.log(total))


def half_weights(o1, lse1, o2, lse2):
    """Weights rounded to float16."""
    lse = np.logaddexp(lse1, lse2)
    level = np.where(np.isneginf(lse), np.zeros_like(lse), lse)
    a, b = (np.exp(x - level).astype(np.float16).astype(x.dtype) for x in (lse1, lse2))
    return a[:, None] * finite(o1, lse1) + b[:, None] * finite(o2, lse2), lse


def half_statistics(o1, lse1, o2, lse2):
    """lse rounded to float16 before it is merged."""
    low = [x.astype(np.float16).astype(x.dtype) for x in (lse1, lse2)]
    return tuple(merge(LSEState(o1, low[0]), LSEState(o2, low[1])))


def in_base_two(o1, lse1, o2, lse2):
    """A right merge of base-2 lse."""
    o, lse = merge(*(LSEState(o, lse * np.asarray(math.log(2), lse.dtype)) for o, lse in ((o1, lse1), (o2, lse2))))
    return o, lse / np.asarray(math.log(2), lse.dtype)


SHOWN = [
    (overflowing, "fault E1: log(1 + exp(Δ)) overflows"),
    (fed_to_exp2, "fault D2: a natural lse is taken for one in base 2"),
    (half_weights, "as if the weights were rounded to float16 (the law holds with the declaration stats_dtype="),
]


def made_of(fn, **declared):
    return Subject(fn.__name__, "merge", fn, **declared)


@pytest.mark.parametrize(("fn", "told"), SHOWN, ids=[fn.__name__ for fn, _ in SHOWN])
def test_a_common_slip_is_named_with_at_most_three_keys(fn, told):
    report = verify_apart(lambda: made_of(fn), ["anchor", "commutativity", "left identity"], 30, told=(), guard=Here)
    assert report.exit_code == 1
    block = next(b for b in report.failures().split("\n\n") if b.startswith(f"{fn.__name__}: anchor: fail"))
    parts = re.findall(r"^  part \d+: (LSEState.*)$", block, re.MULTILINE)
    states = [eval(text, {"LSEState": LSEState, "np": np}) for text in parts]  # noqa: S307 - our own output
    assert 2 <= len(states) <= 3 and all(s.lse.shape == (1,) for s in states)
    assert "  law: fn(keys) = (Σeˢv / Σeˢ, log Σeˢ)" in block and "  in float32, numpy, cpu:" in block
    assert re.search(r"^  (o|lse)\[.*: got .*, expected ", block, re.MULTILINE)
    assert told in block


def test_a_convention_that_was_not_declared_explains_each_law_that_it_mends():
    found = explanations(made_of(in_base_two), broken("anchor", "shift", "inputs kept"))
    assert all("as if every lse were in base 2 (the law holds with the declaration log_base=2)" in texts
               for texts in found.values())
    declared = Subject("s", "merge", merge_of_natural, log_base=2)
    assert explanations(declared, broken("anchor"))["anchor"][0].startswith("as if every lse were natural")


def broken(*laws):
    """Failing cells of these laws that do not tell their case."""
    return {law: Cell("fail", "budget") for law in laws}


def merge_of_natural(o1, lse1, o2, lse2):
    return tuple(merge(LSEState(o1, lse1), LSEState(o2, lse2)))


def test_what_is_rounded_is_what_the_probe_finds():
    def found(subject):
        return [(d.declared, d.sentence) for d in explain.rounding_found(subject)]

    assert found(made_of(half_weights)) == [({"stats_dtype": "float16"}, "as if the weights were rounded to float16")]
    assert found(made_of(half_statistics))[-1][1] == "as if m, l and lse were rounded to float16"
    assert found(made_of(merge_of_natural)) == []
    assert found(Subject("s", "block", p_in_float16)) == [({"p_dtype": "float16"}, "as if P were rounded to float16")]


def p_in_float16(scores, v):
    """A block whose P is rounded to float16 before P·v, its sum not."""
    m = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
    p = np.exp(scores - np.where(np.isneginf(m), np.zeros_like(m), m))
    l = p.sum(-1)
    seen = np.where(np.any(scores > -np.inf, axis=0)[:, None], v, np.zeros_like(v))
    o = p.astype(np.float16).astype(p.dtype) @ seen / np.where(l == 0, np.ones_like(l), l)[:, None]
    return o, m[:, 0] + np.log(l)


def test_a_wrong_split_is_not_taken_for_rounding():
    def last_keys_dropped(q, k, v, seq_lens, num_splits):
        kept = np.minimum(seq_lens, k.shape[-2] // num_splits * num_splits or k.shape[-2])
        return tuple(split_kv_attention(q, k, v, mask=np.arange(k.shape[-2]) < kept[:, None, None, None]))

    report = verify_apart(lambda: Subject("s", "decode", last_keys_dropped), ["partition independence"], 10, guard=Here)
    cell = report.cells["partition independence", "s"]
    assert cell.verdict == "fail" and cell.explained and "fault C1" in cell.explained[0]


def all_but_the_first_key(rare):
    """An attention that hides the first of many keys, where `rare` says so."""
    def fn(q, k, v, causal):
        kept = np.arange(k.shape[-2]) >= rare(k)
        return tuple(attention(q, k, v, mask=kept, causal=causal))

    return Subject("s", "attention", fn)


def test_a_declaration_must_hold_on_the_case_that_broke_the_law_and_on_as_many():
    def off_once(q, k, v, causal):
        seen.append(k)
        o, lse = attention(q, k, v, causal=causal)
        return o + np.asarray(np.array_equal(k, rare), o.dtype), lse

    seen, rare = [], None
    subject = Subject("s", "attention", off_once)
    ask(LAWS["anchor"], subject, shrink=False)
    rare = seen[40]
    cell = ask(LAWS["anchor"], subject, shrink=False)
    assert cell.verdict == "fail" and np.array_equal(cell.case.k, rare)
    assert explain._holds("anchor", subject, None, 0, 1) and not explain._holds("anchor", subject, cell.case, 0, 1)
    assert not any("declaration" in text for text in explained(subject, {"anchor": cell})["anchor"].explained)


def test_a_format_that_only_widens_a_budget_explains_nothing(monkeypatch):
    subject = all_but_the_first_key(lambda k: k.shape[-2] > 100)
    monkeypatch.setattr(explain, "rounding_found", lambda _: [
        explain.Declaration({"stats_dtype": "float16"}, "as if m, l and lse were rounded to float16", fault="D13")])
    monkeypatch.setattr(explain, "suspects", lambda *_: [])
    cell = ask(LAWS["duplicate keys"], subject)
    assert cell.verdict == "fail"
    assert explain._holds("duplicate keys", explain.replace(subject, stats_dtype="float16"), cell.case, 0, 20)
    assert explained(subject, {"duplicate keys": cell}, cases=20)["duplicate keys"].explained == ()


def test_float64_worked_on_in_float32_is_said():
    def in_single(o1, lse1, o2, lse2):
        o, lse = merge(*(LSEState(*(x.astype(np.float32) for x in s)) for s in ((o1, lse1), (o2, lse2))))
        return o.astype(o1.dtype), lse.astype(lse1.dtype)

    subject = made_of(in_single)
    cell = ask(LAWS["anchor"], subject)
    assert (cell.verdict, cell.dtype) == ("fail", "float64")
    told, = explained(subject, {"anchor": cell})["anchor"].explained
    assert told.startswith("as if float64 inputs were worked on in float32, alone of the formats (the law holds with")
    assert "stats_dtype='float32'" in told


def test_results_agree_within_both_bounds_and_nan_with_nan():
    def state(o, lse):
        return LSEState(np.array([[o]]), np.array([lse]))

    budget = Budget(np.full((1, 1), 0.25), np.full(1, 0.25))
    one = state(1.0, np.nan)
    assert explain._agree(one, state(1.5, np.nan), budget) and explain._agree(one, one, budget)
    assert not explain._agree(one, state(1.75, np.nan), budget)
    assert not explain._agree(one, state(1.0, 0.0), budget)
    assert not explain._agree(state(1.0, 0.0), one, budget)
    assert explain._agree(state(1.0, np.inf), state(1.0, np.inf), budget)
    assert not explain._agree(state(1.0, np.inf), state(1.0, -np.inf), budget)


def test_a_right_function_resembles_no_mutant_and_needs_no_explanation():
    right = made_of(merge_of_natural)
    assert suspects(right) == []
    cells = {"anchor": ask(LAWS["anchor"], right, 5)}
    assert explained(right, cells) == cells


@pytest.mark.parametrize("role", ["merge", "block"])
def test_a_mutant_that_is_wrong_on_a_case_drawn_resembles_itself_and_not_another(role):
    mutants = [m for m in MUTANTS.values() if (m.role, m.place) == (role, "fn") and m.killer == "anchor"][:2]
    alike = [{s.mutant.fault for s in suspects(m.subject())} for m in mutants]
    assert all(m.fault in faults for m, faults in zip(mutants, alike, strict=True) if faults)
    assert any(alike) and len({frozenset(x) for x in alike}) == len(alike)


def test_a_broken_law_alone_reminds_of_a_kind_of_fault():
    cell = Cell("fail", "budget", came="nan")
    told = explain.kind_of("empty", made_of(merge_of_natural), cell)
    assert told == f"this resembles fault A1: {FAULTS['A1']}"
    assert explain.kind_of("shift", made_of(merge_of_natural), cell) == ""


@pytest.mark.parametrize(("role", "law", "came", "fault"), [
    ("merge", "left identity", "low", "A7"), ("merge", "left identity", "number", ""),
    ("decode", "empty", "zero", "A3"), ("decode", "empty", "number", ""),
    ("decode", "partition independence", "zero", "C1"),
])
def test_a_kind_is_told_by_what_came(role, law, came, fault):
    """Any wrong number at an empty state is not yet a stand-in for −∞, nor a guard that is left in."""
    told = explain.kind_of(law, Subject("s", role, merge_of_natural), Cell("fail", "budget", came=came))
    assert told == (fault and f"this resembles fault {fault}: {FAULTS[fault]}")


def test_an_overflow_is_laid_to_the_exponential_that_alone_overflows():
    low, high, apart = (drawn_levels(x) for x in ((-90, -89), (89, 90), (-90, 0)))
    told = [explain.kind_of("closure", made_of(merge_of_natural), Cell("fail", "budget", came="inf", case=case))
            for case in (low, high, apart, drawn_levels((-10, 90)))]
    assert [text.partition(":")[0] for text in told] == ["", "this resembles fault E2", "this resembles fault E1", ""]


def drawn_levels(levels):
    """A case of two states of these lse."""
    return StateCase(tuple(LSEState(np.zeros((1, 1), np.float32), np.array([x], np.float32)) for x in levels))


def weighed_by_sigmoid(o1, lse1, o2, lse2):
    """The lse of ring attentions, o by a sigmoid: like no mutant where it overflows, for o stays right."""
    w = 1 / (1 + np.exp(lse1 - lse2))[:, None]
    return o1 + w * (o2 - o1), lse1 + np.log(1 + np.exp(lse2 - lse1))


def weighed_in_base_two(o1, lse1, o2, lse2):
    """o by exp2 of a natural lse, and the right lse."""
    return fed_to_exp2(o1, lse1, o2, lse2)[0], np.logaddexp(lse1, lse2)


def weighed_in_base_e(o1, lse1, o2, lse2):
    """o by exp of a base-2 lse, and the right lse."""
    return merge(LSEState(o1, lse1), LSEState(o2, lse2)).o, np.logaddexp2(lse1, lse2)


def wrong_lse_alone(o1, lse1, o2, lse2):
    """A right o, and an lse below its bounds: no base of the weights explains it."""
    o, lse = merge(LSEState(o1, lse1), LSEState(o2, lse2))
    return o, lse - np.asarray(1, lse.dtype)


@pytest.mark.parametrize(("fn", "base", "told"), [
    (weighed_in_base_two, math.e, "as if o were weighed in base 2, and lse taken in base e"),
    (weighed_in_base_e, 2, "as if o were weighed in base e, and lse taken in base 2"),
])
def test_weights_in_another_base_than_lse_are_told(fn, base, told):
    subject = made_of(fn, log_base=base)
    report = verify(subject, ["anchor", "partition independence"], explain=True)
    assert all(cell.verdict == "fail" for cell in report.cells.values())
    assert all(told in " ".join(cell.explained) for cell in report.cells.values())


def test_the_base_of_the_weights_is_not_blamed_for_a_wrong_lse():
    report = verify(made_of(wrong_lse_alone), ["lse bounds"], explain=True)
    (cell,) = report.cells.values()
    assert cell.verdict == "fail" and not any("weighed" in text for text in cell.explained)


def test_log_of_one_plus_exp_is_known_beside_other_weights():
    (cell,) = verify(made_of(weighed_by_sigmoid), ["closure"], explain=True).cells.values()
    assert cell.explained == (f"this resembles fault E1: {FAULTS['E1']}",)


def from_two_buffers():
    """A right merge whose results lie in two buffers, used in turn."""
    buffers, turn = [np.empty(10000), np.empty(10000)], iter(range(10**6))

    def fn(o1, lse1, o2, lse2):
        room = buffers[next(turn) % 2].view(o1.dtype)
        o, lse = room[: o1.size].reshape(o1.shape), room[o1.size : o1.size + lse1.size]
        o[:], lse[:] = merge(LSEState(o1, lse1), LSEState(o2, lse2))
        return o, lse

    return fn


def test_memory_used_again_is_told_and_not_laid_to_empty_states():
    report = verify(made_of(from_two_buffers()), ["determinism"], explain=True)
    (cell,) = report.cells.values()
    assert cell.verdict == "fail" and cell.explained[0].startswith("as if it wrote into memory that is not its own")


def by_logsumexp(o1, lse1, o2, lse2):
    """The weights of an empty side are 0, and meet what it holds; two empty sides give −∞ − (−∞)."""
    lse = np.logaddexp(lse1, lse2)
    return np.exp(lse1 - lse)[:, None] * o1 + np.exp(lse2 - lse)[:, None] * o2, lse


def by_sigmoid(o1, lse1, o2, lse2):
    """An empty left side makes the lse NaN, whatever it holds."""
    with np.errstate(all="ignore"):
        lse = lse1 + np.log1p(np.exp(lse2 - lse1))
    return finite(o1, lse1) + finite(o2, lse2), lse


def test_a_fault_of_empty_sides_is_told_where_mending_it_mends_the_law():
    laws = ["left identity", "right identity", "empty"]
    report = verify_apart(lambda: made_of(by_logsumexp), laws, 20, told=(), guard=Here)
    told = [report.cells[law, "by_logsumexp"].explained for law in laws]
    assert all(len(texts) == 1 for texts in told)
    assert [text[0].partition(":")[0] for text in told] == ["fault A6", "fault A6", "fault A1"]
    assert told[0][0].endswith("(the law holds where 0 is put in place of what an empty side holds, and where two "
                               "empty rows are made an empty one)")  # the other side may be empty too
    assert "2 of 3 broken laws: fault A6: " in report.failures()


def test_a_nan_of_lse_is_not_laid_to_what_an_empty_side_holds():
    subject = made_of(by_sigmoid)
    cell = ask(LAWS["left identity"], subject, 10)
    assert cell.verdict == "fail"
    assert not any("A6" in text for text in explained(subject, {"left identity": cell})["left identity"].explained)


def test_the_tables_name_laws_faults_and_roles_that_there_are():
    assert {fault for fault, *_ in KINDS} <= set(FAULTS)
    assert {law for _, _, laws, _ in KINDS for law in laws} <= set(LAWS)
    assert {came for *_, came in KINDS} <= {"nan", "inf", "zero", "low", "number", ""}
    assert {m.fault for m in MUTANTS.values()} - {""} <= set(FAULTS)
    for declaration in explain.CONVENTIONS:
        assert any(declaration.of(Subject("s", role, merge_of_natural)) or declaration.of(
            Subject("s", role, merge_of_natural, **OTHER)) for role in declaration.roles)


OTHER = {"log_base": 2, "empty": math.inf, "lse_layout": "heads_last", "causal": "top_left", "heads": "tiled"}


def test_drawn_cases_are_those_that_the_law_is_asked_about():
    subject = made_of(merge_of_natural)
    one, two = (drawn(LAWS["anchor"], subject, 5) for _ in range(2))
    assert [str(x) for x in one] == [str(x) for x in two] and len(one) == 5
    assert [str(x) for x in drawn(LAWS["anchor"], subject, 5, seed=1)] != [str(x) for x in one]


def test_verify_explains_where_it_is_asked_to():
    subject = made_of(half_weights)
    report = verify(subject, ["anchor"], 20, explain=True)
    assert "as if the weights were rounded to float16" in report.failures()
    assert "as if" not in verify(subject, ["anchor"], 20).failures()
