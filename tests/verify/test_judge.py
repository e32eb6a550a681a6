"""The verifier verified: declarations, verdicts, exit codes, reports, and judgement without the oracle."""

import json
import math
import re
from dataclasses import replace
from functools import partial

import hypothesis
import numpy as np
import pytest

import fdmath
from fdmath import AccState, LSEState, Subject, merge
from fdmath.algebra.rounding import Budget
from fdmath.attention.reference import attention
from fdmath.verify import LAWS, Cell, Report, gradients, reference, strategies, verify
from fdmath.verify.cases import literal
from fdmath.verify.judge import ask, came, measured, ulps
from fdmath.verify.mutants import backward_passes as wrong_backward
from fdmath.verify.reference import Finding, Miss, exactly, same
from fdmath.verify.report import pasted
from fdmath.verify.subjects import defined, own_subjects, pairwise

LOG2 = math.log(2)


def ours(title, library="numpy"):
    return next(s for s in own_subjects([library]) if s.name == f"{title}, {library}")


def in_base_two(o1, lse1, o2, lse2):
    o, lse = merge(*(LSEState(o, lse * np.asarray(LOG2, lse.dtype)) for o, lse in ((o1, lse1), (o2, lse2))))
    return o, lse / np.asarray(LOG2, lse.dtype)


def empty_is_plus_infinity(o1, lse1, o2, lse2):
    turned = [np.where(x == np.inf, -x, x) for x in (lse1, lse2)]
    o, lse = merge(LSEState(o1, turned[0]), LSEState(o2, turned[1]))
    return o, np.where(lse == -np.inf, -lse, lse)


def into_the_first(o1, lse1, o2, lse2):
    o, lse = merge(LSEState(o1, lse1), LSEState(o2, lse2))
    o1[...], lse1[...] = o, lse


def heads_last(q, k, v, causal):
    o, lse = attention(q, k, v, causal=causal)
    return o, np.swapaxes(lse, -1, -2)


def top_left(q, k, v, causal):
    mask = np.tril(np.ones((q.shape[-2], k.shape[-2]), bool)) if causal else None
    return tuple(attention(q, k, v, mask=mask))


def tiled_heads(q, k, v, causal):
    index = np.arange(q.shape[1]) % k.shape[1]
    return tuple(attention(q, k[:, index], v[:, index], causal=causal))


def unscaled(q, k, v, causal):
    return tuple(attention(q, k, v, causal=causal, scale=1.0))


DECLARED = [
    ("merge", in_base_two, {"log_base": 2}),
    ("merge", empty_is_plus_infinity, {"empty": math.inf}),
    ("merge", into_the_first, {"in_place": True}),
    ("attention", heads_last, {"lse_layout": "heads_last"}),
    ("attention", top_left, {"causal": "top_left"}),
    ("attention", tiled_heads, {"heads": "tiled"}),
    ("attention", unscaled, {"scale": 1.0}),
]


def test_a_number_where_nothing_should_be_fails_and_is_told_by_how_much_it_is():
    """The oracle's distance is infinite there, for no budget allows it; what is printed is what came."""
    right = reference.merged((LSEState(np.zeros((1, 1), np.float32), np.array([-np.inf], np.float32)),))
    got = LSEState(np.ones((1, 1), np.float32), np.array([-np.inf], np.float32))
    finding = right.judge(got, Budget(np.full((1, 1), 100.0), np.ones(1)))
    assert finding.verdict == "fail" and finding.ratio == math.inf
    assert (finding.miss.got, finding.miss.right, finding.miss.error) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(("role", "fn", "declared"), DECLARED, ids=[fn.__name__ for _, fn, _ in DECLARED])
def test_a_declared_convention_is_lawful_and_the_same_undeclared_is_not(role, fn, declared):
    report = verify(Subject("declared", role, fn, **declared), cases=8)
    assert report.exit_code == 0, report.failures()
    assert verify(Subject("silent", role, fn), ["anchor", "empty"], cases=200).exit_code != 0


@pytest.mark.parametrize("field, value", [
    ("role", "fold"), ("library", "jax"), ("log_base", 10), ("empty", 0.0), ("lse_layout", "any"),
    ("causal", "left"), ("heads", "mixed"),
])
def test_a_declaration_that_is_none_is_refused_by_name(field, value):
    with pytest.raises(ValueError, match=f"{field} must be one of"):
        replace(Subject("s", "merge", pairwise(LSEState)), **{field: value})


def test_a_rounded_p_needs_its_declaration():
    import ml_dtypes

    def rounded(scores, v):
        m = np.max(scores, axis=-1, keepdims=True, initial=-np.inf)
        p = np.exp(scores - np.where(np.isinf(m), 0, m))
        l = p.sum(-1)
        low = p.astype(ml_dtypes.bfloat16).astype(p.dtype)
        o = low @ np.where(np.any(scores > -np.inf, axis=0)[:, None], v, 0) / np.where(l == 0, 1, l)[:, None]
        return o, m[:, 0] + np.log(np.where(l == 0, 1, l))

    assert verify(Subject("silent", "block", rounded), ["anchor"], cases=200).exit_code == 1
    assert verify(Subject("declared", "block", rounded, p_dtype="bfloat16"), ["anchor"], cases=200).exit_code == 0


def test_p_may_be_rounded_to_the_inputs_own_format():
    subject = Subject("s", "partial", defined, p_dtype="inputs")
    formats = ("float16", "bfloat16", "float32", "float64")
    assert [subject.p_format(name) for name in formats] == ["float16", "bfloat16", None, None]
    assert replace(subject, p_dtype="float16").p_format("float32") == "float16"


def two_of_three(*_):
    return 1, 2, 3


def no_arrays(*_):
    return None


def wrong_shape(o1, lse1, o2, lse2):
    return o1[:, :0], lse1


def raises(*_):
    raise RuntimeError("no device")


@pytest.mark.parametrize("fn", [two_of_three, no_arrays, wrong_shape, raises])
def test_what_returns_no_state_could_not_run(fn):
    report = verify(Subject("none", "merge", fn), cases=5)
    assert report.exit_code == 2
    assert {c.verdict for c in report.cells.values()} == {"not run", "n/a"}
    assert "none: not run" in report.failures()


def test_an_exception_on_some_inputs_is_a_broken_law():
    def raises_on_empty(o1, lse1, o2, lse2):
        if np.any(np.isneginf(lse1)):
            raise ValueError("lse must be finite")
        return tuple(merge(LSEState(o1, lse1), LSEState(o2, lse2)))

    report = verify(Subject("s", "merge", raises_on_empty), ["left identity", "shift"], cases=20)
    assert report.cells["left identity", "s"].verdict == "fail"
    assert "lse must be finite" in report.cells["left identity", "s"].counterexample
    assert report.cells["shift", "s"].verdict == "pass"


def test_a_subject_that_is_not_repeatable_is_refused():
    rng = np.random.default_rng(0)

    def noisy(o1, lse1, o2, lse2):
        o, lse = merge(LSEState(o1, lse1), LSEState(o2, lse2))
        return o, lse + np.asarray(rng.integers(2), lse.dtype)

    assert verify(Subject("noisy", "merge", noisy), ["commutativity"], cases=50).exit_code == 1


def test_nan_never_passes():
    one = LSEState(np.zeros((1, 1)), np.zeros(1))
    nan = LSEState(np.full((1, 1), np.nan), np.zeros(1))
    wide = (np.full((1, 1), np.inf), np.full(1, np.inf))
    assert same(one, one, wide).verdict == "pass"
    assert same(nan, one, (np.ones((1, 1)), np.ones(1))).verdict == "fail"
    assert reference.merged([one]).judge(nan, _budget(np.inf)).verdict == "fail"


def test_nan_beside_nan_is_the_same_bits():
    nan, one = np.array([[np.nan, 1.0]]), np.zeros(1)
    assert exactly(LSEState(nan, one), LSEState(nan.copy(), one)).verdict == "pass"
    found = exactly(LSEState(nan, one), LSEState(np.array([[np.nan, 2.0]]), one))
    assert (found.verdict, found.ratio, found.miss.where) == ("fail", np.inf, "o[0, 1]")
    assert exactly(LSEState(nan, one), LSEState(nan.astype(np.float32), one)).verdict == "fail"

    def all_nan(o1, lse1, o2, lse2):
        return np.full_like(o1, np.nan), lse1

    assert ask(LAWS["determinism"], Subject("s", "merge", all_nan), 10).verdict == "pass"


def _budget(size):
    from fdmath.algebra.rounding import Budget

    return Budget(np.full((1, 1), size), np.full(1, size))


@pytest.mark.parametrize("title", ["merge o/lse", "merge m/l/acc", "partial_state o/lse", "attention"])
def test_float32_is_judged_without_the_oracle(monkeypatch, title):
    monkeypatch.setattr(reference, "oracle", None)
    subject = replace(ours(title), dtypes=("float32",))
    report = verify(subject, cases=8)
    assert report.exit_code == 0, report.failures()


def test_a_wrong_merge_is_found_without_the_oracle(monkeypatch):
    monkeypatch.setattr(reference, "oracle", None)
    assert verify(Subject("base 2", "merge", in_base_two), ["anchor"]).exit_code == 1


def test_a_float64_error_below_the_reference_is_undecided_not_passed(monkeypatch):
    monkeypatch.setattr(reference, "oracle", None)
    state = LSEState(np.array([[1.0], [2.0]])[:1], np.array([0.3]))
    judged = reference.merged([state, LSEState(np.array([[2.0]]), np.array([0.1]))])
    got = LSEState(judged.o, judged.lse)
    assert judged.judge(got, _budget(0.0)).verdict == "undecided"


def test_the_worse_finding_wins():
    ok, bad, unsure = Finding(0.9, True), Finding(0.1, False, "fail", "bad"), Finding(0.2, False, "undecided", "?")
    assert (ok & bad).detail == "bad"
    assert (unsure & ok).verdict == "undecided"
    assert not (ok & bad).bitwise


def test_report_counts_every_cell_and_misses_none():
    laws, subjects = [LAWS["anchor"], LAWS["shift"]], [ours("merge o/lse")]
    name = subjects[0].name
    done = {("anchor", name): Cell("pass", "budget", 5, 0.5), ("shift", name): Cell("pass", "budget", 5, 0.001)}
    report = Report(laws, subjects, done)
    assert report.exit_code == 0
    assert report.counts()["pass"] == 2
    assert "never within a factor 100: " + name in report.ratios()
    missing = Report(laws, subjects, {("anchor", name): done["anchor", name]})
    assert missing.exit_code == 2
    assert missing.counts()["missing"] == 1
    assert "missing" in missing.summary()


@pytest.mark.parametrize(("verdict", "code"), [("fail", 1), ("undecided", 2), ("not run", 2), ("pass", 0)])
def test_exit_code_of_a_verdict(verdict, code):
    subject = ours("merge o/lse")
    cell = Cell(verdict, "budget", 1)
    assert Report([LAWS["anchor"]], [subject], {("anchor", subject.name): cell}).exit_code == code


def test_nothing_asked_is_not_success():
    assert verify(Subject("s", "block", lambda s, v: None), ["commutativity"]).exit_code == 2


def test_a_wrong_number_is_told_with_its_enclosure_in_ulps_and_in_budgets():
    miss = Miss("o[0]", 1.5, 1.0, 2.0**-60, 0.5, 0.125)
    enclosed, off = measured(miss, "float32")
    low, high = re.fullmatch(r"certified: (\S+) ≤ o\[0\] ≤ (\S+)", enclosed).groups()
    assert float(low) < 1.0 < float(high) and float(high) - float(low) <= 2.0**-51
    assert off == "off by 4.19e+06 ulp of float32, 4 times the budget"  # 2²²
    assert measured(miss._replace(radius=0.0, budget=0.0), "float64") == [
        "off by 2.25e+15 ulp of float64, where none is allowed"]
    assert measured(miss._replace(error=math.inf, right=math.inf), "float32") == []
    assert measured(None, "float32") == []


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
def test_an_ulp_is_the_spacing_of_the_format(dtype):
    spacing = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float32": 2.0**-23, "float64": 2.0**-52}[dtype]
    assert ulps(spacing, 1.0, dtype) == 1.0
    assert ulps(3 * spacing, -1.5, dtype) == 3.0
    assert ulps(spacing, 2.0, dtype) == 0.5
    if dtype in ("float32", "float64"):
        assert ulps(float(np.nextafter(np.zeros(1, dtype), 1)[0]), 0.0, dtype) == 1.0


@pytest.mark.parametrize(("got", "told"), [(math.nan, "nan"), (-math.inf, "inf"), (2.0, "number")])
def test_what_came_is_told(got, told):
    assert came(Finding(1.0, miss=Miss("o", got, 0.0, 0.0, 1.0, 1.0))) == told
    assert came(Finding(1.0)) == ""


def test_the_time_for_shrinking_is_kept_and_shrinking_may_be_left_out():
    def wrong(o1, lse1, o2, lse2):
        return tuple(x * 2 for x in merge(LSEState(o1, lse1), LSEState(o2, lse2)))

    subject = Subject("s", "merge", wrong)
    small, late, large = (ask(LAWS["anchor"], subject, 30, **options)
                          for options in ({}, {"seconds": 0.0}, {"shrink": False}))
    assert {cell.verdict for cell in (small, late, large)} == {"fail"}
    assert late.counterexample and late.cases < small.cases
    assert large.cases < small.cases and len(large.counterexample) >= len(small.counterexample)


def test_another_seed_asks_about_other_inputs_and_formats_can_be_chosen():
    def noted(seen):
        def fn(o1, lse1, o2, lse2):
            seen.append((lse1.tolist(), lse2.tolist(), o1.dtype.name))
            return tuple(merge(LSEState(o1, lse1), LSEState(o2, lse2)))

        return Subject("s", "merge", fn)

    seen = [[], [], []]
    for which, seed in zip(seen, (0, 0, 7), strict=True):
        assert verify(noted(which), ["commutativity"], 20, seed=seed, dtypes=["float32"]).exit_code == 0
    assert seen[0] == seen[1] != seen[2]
    assert {name for calls in seen for *_, name in calls} == {"float32"}
    with pytest.raises(ValueError, match="dtypes"):
        verify(noted([]), dtypes=["float8"])


def test_literals_are_those_of_the_subjects_library():
    torch = pytest.importorskip("torch")
    text = "part 1: np.array([[0., np.nan]], dtype='float32'), np.array([-np.inf], dtype='float32'), " \
           "np.zeros((0, 1), dtype='float64')"
    assert pasted(text, ours("merge o/lse")) == text
    turned = pasted(text, ours("merge o/lse", "torch")).removeprefix("part 1: ")
    o, lse, none = eval(turned, {"torch": torch})  # noqa: S307 - our own output
    assert o.dtype == torch.float32 and torch.isnan(o[0, 1]) and lse.item() == -math.inf
    assert none.shape == (0, 1) and none.dtype == torch.float64


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32", "float64", "int64"])
def test_a_literal_of_many_numbers_is_read_back(dtype):
    import base64
    import zlib

    import ml_dtypes

    numbers = np.random.default_rng(0).normal(size=(3, 70)) * 9
    numbers[0, :3] = np.nan if dtype != "int64" else 7
    x = numbers.astype(ml_dtypes.bfloat16 if dtype == "bfloat16" else dtype)
    text = literal(x)
    again = eval(text, {"np": np, "base64": base64, "zlib": zlib})  # noqa: S307 - our own output
    assert "..." not in text and reference.equal(again, x)
    if dtype in ("float32", "float64"):
        torch = pytest.importorskip("torch")
        turned = pasted(text, ours("merge o/lse", "torch"))
        tensor = eval(turned, {"np": np, "torch": torch, "base64": base64, "zlib": zlib})  # noqa: S307
        assert tensor.dtype == getattr(torch, dtype) and reference.equal(tensor.numpy(), x)


def test_an_accepted_failure_is_none_and_a_contradiction_is_one():
    subject, law = ours("merge o/lse"), LAWS["anchor"]
    cells = {("anchor", subject.name): Cell("fail", "budget", 1, counterexample="x")}
    assert Report([law], [subject], cells).exit_code == 1
    accepted = Report([law], [subject], cells, accepted={("anchor", subject.name): "known since 1.2"})
    assert accepted.exit_code == 0 and "accepted: known since 1.2" in accepted.failures()
    held = {("anchor", subject.name): Cell("pass", "budget", 1)}
    contradicted = Report([law], [subject], held, contradictions=["log_base=2 is declared, but e is found"])
    assert contradicted.exit_code == 1 and "contradicted: log_base=2" in str(contradicted)
    assert json.loads(contradicted.to_json())["contradictions"] == contradicted.contradictions


def test_what_could_not_run_is_said_once_with_the_laws_and_a_line_to_ask_again():
    subject, laws = ours("merge o/lse"), [LAWS["anchor"], LAWS["shift"]]
    cells = {(law.name, subject.name): Cell("not run", "budget", counterexample="no device") for law in laws}
    report = Report(laws, [subject], cells, replay=lambda law, s: f"again {law}")
    assert report.failures() == f"{subject.name}: not run: anchor, shift\n  no device\n  replay: again anchor"


def test_what_a_function_in_base_two_returned_is_told_as_it_returned_it():
    def off_by_one(o1, lse1, o2, lse2):
        o, lse = in_base_two(o1, lse1, o2, lse2)
        return o, lse + np.asarray(1, lse.dtype)

    subject = Subject("s", "merge", off_by_one, log_base=2)
    report = verify(subject, ["commutativity", "anchor"], cases=20)
    text = report.cells["anchor", "s"].counterexample
    got, returned = (float(re.search(pattern, text).group(1)) for pattern in (
        r"lse\[\d\]: got (\S+),", r"that is (\S+) in base 2, as the function returned it"))
    assert returned == float(f"{got / LOG2:.9g}")
    assert "fn(*part_1, *part_2)" in report.failures() and "the function was given it" in report.failures()


def test_a_page_that_names_a_fault_says_where_faults_are_listed():
    subject, law = ours("merge o/lse"), LAWS["anchor"]
    cell = Cell("fail", "budget", 1, counterexample="x", explained=("this resembles fault A1: …", "and fault A6: …"))
    text = Report([law], [subject], {("anchor", subject.name): cell}).failures()
    assert text.count("(docs/faults.md)") == 1 and text.endswith("fault A6: … (docs/faults.md)")


def test_the_gradient_towards_an_empty_state_is_told():
    torch = pytest.importorskip("torch")

    def unguarded(o1, lse1, o2, lse2):
        lse = torch.logaddexp(lse1, lse2)
        w = torch.exp(lse2 - torch.where(torch.isinf(lse), torch.zeros_like(lse), lse))
        o1, o2 = (torch.where(torch.isinf(x)[..., None], torch.zeros_like(o), o) for o, x in ((o1, lse1), (o2, lse2)))
        return (1 - w)[..., None] * o1 + w[..., None] * o2, lse

    cell = ask(LAWS["gradient"], Subject("s", "merge", unguarded, library="torch"), 30)
    assert cell.verdict == "fail"
    told = r"the gradient towards (o|lse)\[\d\] of part \d, an empty state, is .*nan.* and must be 0: of Σ go·o"
    assert re.search(told, cell.counterexample)


def test_json_holds_every_cell():
    report = verify(ours("merge o/lse"), ["anchor", "empty"], cases=5)
    told = json.loads(report.to_json())
    assert (told["exit_code"], len(told["cells"])) == (0, 2)
    assert {c["law"] for c in told["cells"]} == {"anchor", "empty"}


def test_summary_is_the_same_twice_and_names_no_figure():
    texts = [verify(ours("merge o/lse"), cases=n).summary() for n in (5, 7)]
    assert texts[0] == texts[1]
    assert "23 of 23 laws hold" in texts[0]  # the false law is one of them
    assert "false, as shown" in texts[0]


def test_names_of_laws_and_subjects_are_checked():
    with pytest.raises(ValueError, match="laws must be among anchor"):
        verify(ours("merge o/lse"), ["assoc"])
    with pytest.raises(ValueError, match="subjects must have different names"):
        verify([ours("merge o/lse")] * 2)


def test_every_law_says_itself():
    for law in LAWS.values():
        assert law.sentence.endswith("."), law.name
        assert law.equation
        assert law.roles


def test_the_package_is_the_function_too():
    assert fdmath.verify(ours("merge o/lse"), ["empty"], cases=3).exit_code == 0
    assert fdmath.verify.LAWS is LAWS


def test_defined_attention_is_lawful_as_partial():
    assert verify(Subject("partial", "partial", defined), cases=15).exit_code == 0


def test_a_merge_with_its_own_backward_is_differentiated_by_it():
    def backward(do, dlse, o1, lse1, o2, lse2, factor=1.0):
        lse = np.logaddexp(lse1, lse2)
        lse = np.where(np.isneginf(lse), 0, lse)
        found = []
        for mine, other, level, far in ((o1, o2, lse1, lse2), (o2, o1, lse2, lse1)):
            p, q = np.exp(level - lse), np.exp(far - lse)  # 1 - p would lose a small q
            found += [p[:, None] * do, p * (dlse + factor * q * np.sum(do * (mine - other), axis=-1))]
        return found

    finite = replace(ours("merge o/lse"), backward=backward, false=())
    law = LAWS["gradient"]  # chains of two to four parts
    assert ask(law, finite, 40).verdict == "pass"
    wrong = replace(finite, backward=lambda *a: backward(*a, factor=0.0))  # the gradient through lse dropped: H1
    assert ask(law, wrong, 30).verdict == "fail"

    def in_base_two_backward(do, dlse, o1, lse1, o2, lse2, **slip):
        grads = backward(do, dlse / LOG2, o1, lse1 * LOG2, o2, lse2 * LOG2, **slip)
        return [x * LOG2 if i % 2 else x for i, x in enumerate(grads)]

    other = replace(finite, fn=in_base_two, log_base=2, backward=in_base_two_backward, claims=())
    assert ask(law, other, 40).verdict == "pass"
    assert ask(law, replace(other, backward=backward), 30).verdict == "fail"


def test_the_chain_rule_passes_every_part_and_its_own_gradient():
    pytest.importorskip("flint")
    seen = []

    def backward(do, dlse, o1, lse1, o2, lse2):
        seen.append((o1[0, 0], o2[0, 0]))
        return do + 1, dlse, do + 10, dlse

    subject = Subject("s", "merge", lambda o1, lse1, o2, lse2: (o1 + o2, lse1 + lse2), backward)
    parts = np.arange(1.0, 4.0)
    do, _ = gradients._merge_gradient(subject, parts[:, None, None], parts[:, None], np.zeros((1, 1)), np.zeros(1))
    assert seen == [(3.0, 3.0), (1.0, 2.0)]  # (1 ⊕ 2) ⊕ 3 from behind
    assert do[:, 0, 0].tolist() == [2.0, 11.0, 10.0]


def test_a_merge_of_many_with_its_own_backward_is_given_all_parts():
    pytest.importorskip("flint")

    def backward(do, dlse, o, lse, turned=1):
        p = np.exp(lse - np.logaddexp.reduce(lse))
        mean = np.sum(p[..., None] * o, axis=0)
        return (p[..., None] * do)[::turned], p * (dlse + np.sum(do * (o - mean), axis=-1))

    subject = replace(ours("flat merge o/lse"), backward=backward)
    law = replace(LAWS["gradient"], strategy=LAWS["permutation"].strategy)  # no empty states
    assert ask(law, subject, 30).verdict == "pass"
    assert ask(law, replace(subject, backward=partial(backward, turned=-1)), 30).verdict == "fail"


def test_a_backward_of_triples_or_blocks_is_not_asked_for():
    declared = {"backward": lambda *args: args, "library": "numpy"}
    pytest.importorskip("flint")
    assert LAWS["gradient"].concerns(Subject("s", "merge", pairwise(LSEState), **declared))
    for role, kind in (("merge", AccState), ("block", LSEState)):
        assert not LAWS["gradient"].concerns(Subject("s", role, pairwise(kind), kind=kind, **declared))


def test_what_is_written_and_declared_no_in_place_breaks_the_law_named_for_it():
    for library, fn in (("numpy", into_the_first_and_back), ("torch", into_the_first_and_back)):
        if library == "torch":
            pytest.importorskip("torch")
        report = verify(Subject("s", "merge", fn, library=library), ["inputs kept"], cases=20)
        cell = report.cells["inputs kept", "s"]
        assert report.exit_code == 1 and "fn changed its argument 2, which at [0] was " in cell.counterexample
        assert not LAWS["inputs kept"].concerns(Subject("s", "merge", fn, library=library, in_place=True))


def into_the_first_and_back(o1, lse1, o2, lse2):
    """The right state, and lse1 overwritten by the way."""
    o, lse = merge(LSEState(o1, lse1), LSEState(o2, lse2))
    lse1[...] = lse
    return o, lse


def test_a_shape_or_a_saved_state_that_changes_is_seen():
    def resized(q, k, v, causal):
        state = attention(q, k, v, causal=causal)
        v.resize_(1)
        return tuple(state)

    def blanks_o(do, dlse, q, k, v, o, lse, causal):
        found = wrong_backward.right(do, dlse, q, k, v, o, lse, causal)
        o[...] = 7
        return found

    pytest.importorskip("torch")
    found = verify(Subject("s", "attention", resized, library="torch"), ["inputs kept"], cases=5)
    assert "fn changed its argument 3, whose shape was " in found.cells["inputs kept", "s"].counterexample
    subject = Subject("s", "attention", wrong_backward.forward, blanks_o)
    found = verify(subject, ["inputs kept"], cases=5).cells["inputs kept", "s"]
    assert found.verdict == "fail" and "backward changed its argument 6" in found.counterexample
    assert ask(LAWS["inputs kept"], replace(subject, backward=wrong_backward.right), 20).verdict == "pass"


def test_nan_where_nan_was_is_no_change_and_the_sign_of_zero_neither():
    told = []
    poisoned = replace(ours("merge o/lse"), fn=lambda o, *rest: (np.negative(o, out=o), *rest[:1])).watched(told)
    poisoned.call(np.array([np.nan, 0.0]), np.zeros(2))
    assert not told
    poisoned.call(np.array([0.0, 3.0]), np.zeros(2))
    assert told == ["fn changed its argument 1, which at [1] was 3.0 and is -3.0"]


def test_a_false_law_is_proved_by_an_example():
    report = verify(ours("merge o/lse"), ["bitwise associativity"])
    assert "bitwise associativity is false\n  part 1: LSEState(" in report.proofs()
    assert report.proofs() in str(report)


@pytest.mark.parametrize(("field", "value", "error"), [
    ("fn", 3, TypeError), ("kind", str, TypeError), ("dtypes", ("float8",), ValueError), ("exp_u", -5, ValueError),
    ("p_dtype", "banana", ValueError), ("dtypes", ("float16",), ValueError),
])
def test_a_declaration_that_makes_no_sense_is_refused(field, value, error):
    with pytest.raises(error):
        replace(Subject("s", "merge", pairwise(LSEState)), **{field: value})


def test_a_claim_that_names_nothing_is_refused():
    with pytest.raises(ValueError, match="claims must be names of laws.*comutativity"):
        verify(replace(ours("merge o/lse"), claims=("comutativity",)))
    with pytest.raises(TypeError, match="subject must be a Subject"):
        verify(pairwise(LSEState))


def no_shift(scores, v):
    """A block with guards and without a max shift: lse is +∞ and o NaN from score 89 on (faults:B7)."""
    p = np.exp(scores)
    l = p.sum(-1)
    seen = np.any(scores > -np.inf, axis=0)[:, None]
    return p @ np.where(seen, v, 0) / np.where(l == 0, 1, l)[:, None], np.log(l)


def test_a_state_that_is_none_breaks_the_law_and_does_not_crash_the_judge():
    report = verify(Subject("no shift", "block", no_shift), cases=50)
    assert report.exit_code == 1
    assert {report.cells[law, "no shift"].verdict for law in ("anchor", "closure", "shift")} == {"fail"}


def fixed_level(scores, v, level=20):
    """A block against a level fixed 20 above its maximum: a lawful gauge (notebook 03)."""
    m = np.max(scores, axis=-1, initial=-np.inf)
    m = np.where(np.isinf(m), 0, m) + np.asarray(level, scores.dtype)
    p = np.exp(scores - m[:, None])
    l = p.sum(-1)
    seen = np.any(scores > -np.inf, axis=0)[:, None]
    divisor = np.where(l == 0, 1, l)
    return p @ np.where(seen, v, 0) / divisor[:, None], np.where(l == 0, -np.inf, m + np.log(divisor))


def in_base_two_inside(scores, v):
    """A block that works in base 2 and returns its lse in base 2."""
    o, lse = fixed_level(scores, v, 0)
    return o, lse / np.asarray(LOG2, lse.dtype)


LOST = math.exp(20) * 2.0**-126
"""Below it a value times e^-20 is no normal number of float32."""


@pytest.mark.parametrize(("fn", "declared"), [(fixed_level, {"flushed": LOST}), (in_base_two_inside, {"log_base": 2})])
def test_right_but_unusual_blocks_are_accepted(fn, declared):
    report = verify(Subject("unusual", "block", fn, **declared), cases=50)
    assert report.exit_code == 0, report.failures()


SIZED = [
    ("merge", lambda o1, s1, o2, s2: _only(merge(LSEState(o1, s1), LSEState(o2, s2)), o1, columns=3)),
    ("merge_many", lambda o, s: tuple(fdmath.merge_all(LSEState(o[:6], s[:6])))),
    ("block", lambda scores, v: tuple(fdmath.partial_state(scores[:, :16], v[:16]))),
    ("attention", lambda q, k, v, causal: tuple(attention(q, k, v, causal=causal and k.shape[-2] <= 8))),
]


def _only(state, o1, columns):
    """The state with the columns from `columns` on taken from the first side."""
    return np.concatenate([state.o[:, :columns], o1[:, columns:]], axis=1), state.lse


@pytest.mark.parametrize(("role", "fn"), SIZED, ids=[role for role, _ in SIZED])
def test_a_fault_that_only_large_inputs_show_is_found(role, fn):
    assert verify(Subject("toy", role, fn), ["anchor", "causality"], cases=100).exit_code == 1


@pytest.mark.parametrize("role", ["partial", "decode", "attention"])
@pytest.mark.parametrize("law", ["anchor", "convexity"])
def test_three_sequences_and_a_group_of_three_are_always_asked(role, law):
    shared = []

    def fn(q, k, v, *rest):
        seen = np.arange(k.shape[-2]) < rest[0][:, None, None, None] if role == "decode" else None
        o, lse = attention(q, k, v, mask=seen, causal=rest[0] if role == "attention" else False)
        if np.all(np.any(o, axis=-1)):  # a row of zeros would hide a row that is missing
            shared.append((len(q), q.shape[1] // k.shape[1]))
        return o, lse

    assert ask(LAWS[law], Subject("s", role, fn), 1).verdict == "pass"
    assert (3, 3) in shared
    first = []
    draw = hypothesis.settings(max_examples=1, database=None, phases=[hypothesis.Phase.generate])
    draw(hypothesis.given(strategies.cases(Subject("s", role, fn), large=True))(lambda case: first.append(case)))()
    assert first[0].visible().all() and first[0].q.shape[:2] == (3, 3) and first[0].k.shape[1] == 1


FEW = {
    "batch > 2": lambda q, k: q.shape[0] > 2,
    "three KV heads": lambda q, k: k.shape[1] > 2,
    "a group > 2": lambda q, k: q.shape[1] // k.shape[1] > 2,
}


@pytest.mark.parametrize("role", ["partial", "decode", "attention"])
@pytest.mark.parametrize("few", FEW.values(), ids=FEW)
def test_a_fault_of_three_sequences_or_heads_is_found(few, role):
    def zero_where_many(q, k, v, *rest):
        seen = np.arange(k.shape[-2]) < rest[0][:, None, None, None] if role == "decode" else None
        o, lse = attention(q, k, v, mask=seen, causal=rest[0] if role == "attention" else False)
        return o * (not few(q, k)), lse

    assert verify(Subject("toy", role, zero_where_many), ["anchor"], cases=50).exit_code == 1
