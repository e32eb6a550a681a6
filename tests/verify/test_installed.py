"""Adapters of installed packages: the table, what is missing, strict expectations, and layouts against stand-ins."""

import ast
import importlib.util
import inspect
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fdmath.verify import installed
from fdmath.verify.installed import (
    ADAPTERS,
    EXPECTED,
    adapter,
    as_found,
    installed_subject,
    installed_subjects,
    missing,
)
from fdmath.verify.installed.expectations import read, surprises
from fdmath.verify.judge import verify
from fdmath.verify.laws import LAWS
from fdmath.verify.report import Cell, Report
from fdmath.verify.subject import Subject
from tests.verify import fake_packages

needs_torch = pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="torch is not installed")
FOLDER = Path(installed.__file__).parent
CALLS = {
    "merge": ["o1", "lse1", "o2", "lse2"], "merge_many": ["o", "lse"], "attention": ["q", "k", "v", "causal"],
    "decode": ["q", "k", "v", "seq_lens", "num_splits"],
}  # fmt: skip


# -- the table ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ADAPTERS)
def test_an_adapter_names_a_function_of_its_role_without_importing_it(name):
    one = ADAPTERS[name]
    module, function = one.path.split(":")
    if module == "ours":
        return
    tree = ast.parse((FOLDER / f"{module}.py").read_text(encoding="utf-8"))
    found = next(x for x in tree.body if isinstance(x, ast.FunctionDef) and x.name == function)
    needed = len(found.args.args) - len(found.args.defaults)
    assert [a.arg for a in found.args.args][:needed] == CALLS[one.role]
    assert ast.get_docstring(found)


def test_the_declarations_of_every_adapter_make_a_subject():
    for one in ADAPTERS.values():
        Subject(one.name, one.role, lambda *_: None, library=one.library, **one.declared)
        assert not {"log_base", "empty", "lse_layout", "causal", "heads", "scale"} & set(one.declared)  # the probe's


def test_what_is_not_here_is_said_and_the_rest_is_asked(monkeypatch):
    for name in [n for n, one in ADAPTERS.items() if one.package == "transformers"]:
        monkeypatch.delitem(ADAPTERS, name)  # seconds to import
    absent = missing()
    assert {s.name for s in installed_subjects()} == set(ADAPTERS) - set(absent)
    assert absent["torch flash, CUDA"] == "runs on cuda alone"
    with pytest.raises(ValueError, match="vLLM merge_attn_states: runs on cuda alone"):
        installed_subject("vLLM merge_attn_states")
    with pytest.raises(ValueError, match="name must be one of torch flash"):
        installed_subject("vllm")


def test_a_package_that_is_not_there_or_breaks_is_a_reason(monkeypatch):
    absent = adapter.Adapter("a", "merge", "vllm_ops:merge", "no_such_package")
    assert absent.why_not("cpu") == "no_such_package is not installed"
    monkeypatch.setattr(adapter.backends, "load", lambda path: 1 / 0)
    broken = adapter.Adapter("b", "merge", "vllm_ops:merge", "numpy", library="numpy")
    assert broken.why_not("cpu") == "could not be imported: ZeroDivisionError: division by zero"


# -- expectations -------------------------------------------------------------------------------------


def test_every_expectation_names_an_adapter_a_law_and_a_reason():
    assert EXPECTED
    for (subject, law), reason in EXPECTED.items():
        assert subject in ADAPTERS
        assert LAWS[law].roles.count(ADAPTERS[subject].role) == 1
        assert len(reason) > 20


@pytest.mark.parametrize("text, says", [
    ('["a"]\n"no law" = "x"', "no law"), ('["a"]\nanchor = ""', "reason"), ('["a"]\nanchor = 3', "reason"),
])  # fmt: skip
def test_a_file_of_expectations_that_means_nothing_is_refused(tmp_path, text, says):
    file = tmp_path / "expectations.toml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=says):
        read(file)


def report_of(**verdicts):
    """A Report of one subject, `s`, with these verdicts by law (an underscore is a space)."""
    cells = {(law.replace("_", " "), "s"): Cell(verdict, "budget") for law, verdict in verdicts.items() if verdict}
    laws = [LAWS[law.replace("_", " ")] for law in verdicts]
    return Report(laws, [Subject("s", "merge", lambda *_: None)], cells)


@pytest.mark.parametrize("verdict, expected, surprising", [
    ("pass", False, False), ("fail", False, True), ("undecided", False, True), ("not run", False, True),
    (None, False, True), ("n/a", False, False),
    ("pass", True, True), ("fail", True, False), ("undecided", True, True), ("not run", True, True),
    (None, True, True), ("n/a", True, True),
])  # fmt: skip
def test_expectations_are_strict_both_ways(verdict, expected, surprising):
    told = surprises(report_of(anchor=verdict, empty="pass"), {("s", "anchor"): "known"} if expected else {})
    assert len(told) == surprising
    assert not told or told[0].startswith(f"s: anchor: {verdict or 'missing'}")


def test_a_law_that_was_left_out_is_no_surprise():
    assert surprises(report_of(empty="pass"), {("s", "anchor"): "known", ("other", "empty"): "known"}) == []


# -- on this machine ------------------------------------------------------------------------------------


@needs_torch
def test_the_probe_finds_the_conventions_of_torchs_kernel_untold():
    found = as_found(installed_subject("torch flash, CPU, attention"))
    assert (found.causal, found.heads, found.lse_layout, found.log_base) == (
        "top_left", "interleaved", "heads_first", np.e)
    report = verify(found, laws=["anchor", "causality", "empty", "counting"], cases=10)
    assert surprises(report) == []
    assert {law for (law, _), cell in report.cells.items() if cell.verdict == "fail"} == {"empty"}


@needs_torch
@pytest.mark.parametrize("name", ["torch flash, CPU, decode", "torch math, attention", "torch math, decode",
                                  "fdmath, decode"])  # fmt: skip
def test_laws_hold_or_break_as_expected(name):
    report = verify(as_found(installed_subject(name)), laws=["anchor", "empty", "poison", "v is 1"], cases=10)
    assert surprises(report) == []


@needs_torch
def test_flexattention_reads_top_left_masks_and_returns_natural_lse():
    pytest.importorskip("torch.nn.attention.flex_attention").__dict__["AuxRequest"]
    found = as_found(installed_subject("FlexAttention, attention"))
    assert (found.causal, found.log_base, found.empty) == ("top_left", np.e, -np.inf)
    assert surprises(verify(replace(found, dtypes=("float32",)), laws=["anchor"], cases=3)) == []


@needs_torch
def test_a_call_that_would_end_the_process_is_refused():
    from fdmath.verify.installed.torch_ops import NotCalled, cpu_flash

    torch = pytest.importorskip("torch")
    with pytest.raises(NotCalled, match="SIGFPE"):
        cpu_flash(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 0, 2), torch.ones(1, 1, 0, 2), False)


# -- against stand-ins ------------------------------------------------------------------------------------

ASKED = ("anchor", "empty", "v is 1", "empty rows", "grouped heads")


def asked(name, **found):
    """The laws that a GPU's subject breaks on stand-ins on the CPU, in float32, its conventions as found."""
    one = ADAPTERS[name]
    subject = replace(Subject(one.name, one.role, one.fn(), library="torch", **one.declared), dtypes=("float32",),
                      p_dtype=None, **found)
    report = verify(subject, laws=ASKED, cases=10)
    assert not {c.verdict for c in report.cells.values()} & {"not run", "undecided"}
    return {law for (law, _), cell in report.cells.items() if cell.verdict == "fail"}


@pytest.fixture
def stand_ins(monkeypatch):
    """The packages that need a GPU, as stand-ins; the adapters' modules are imported anew."""
    pytest.importorskip("torch")
    for name in [x for x in sys.modules if x.startswith("fdmath.verify.installed.") and x.endswith("_ops")]:
        monkeypatch.delitem(sys.modules, name)
    fake = dict(inspect.getmembers(fake_packages, inspect.isroutine))
    pick = lambda *names: {name: fake[name] for name in names}  # noqa: E731
    fake_packages.install(monkeypatch, "flashinfer",
                          **pick("merge_state", "merge_states", "single_decode_with_kv_cache"))
    fake_packages.install(monkeypatch, "flash_attn", flash_attn_func=fake["flash_attn_func_2"])
    fake_packages.install(monkeypatch, "fa3_fwd_interface", **pick("flash_attn_func"))
    fake_packages.install(monkeypatch, "xformers.ops.fmha",
                          **pick("memory_efficient_attention_partial", "merge_attentions"))
    fake_packages.install(
        monkeypatch, "xformers.ops.fmha.attn_bias",
        LowerTriangularFromBottomRightMask=fake_packages.LowerTriangularFromBottomRightMask)
    fake_packages.install(monkeypatch, "vllm.v1.attention.ops.merge_attn_states", **pick("merge_attn_states"))
    yield monkeypatch
    for name in [x for x in sys.modules if x.startswith("fdmath.verify.installed.") and x.endswith("_ops")]:
        sys.modules.pop(name)  # those that hold stand-ins


@pytest.mark.parametrize("name, found", [
    ("FlashInfer merge_state", {"log_base": 2}), ("FlashInfer merge_states", {"log_base": 2}),
    ("FlashInfer decode", {"log_base": 2}), ("FlashAttention-2", {}), ("FlashAttention-3", {}),
    ("xFormers partial", {}), ("xFormers merge_attentions", {}), ("vLLM merge_attn_states", {}),
])  # fmt: skip
def test_an_adapter_reads_what_its_package_documents(stand_ins, name, found):
    assert asked(name, **found) == set()


@pytest.mark.parametrize("name", [n for n in ADAPTERS if n.startswith("torch") and "CUDA" in n])
def test_the_operators_of_a_gpu_are_read_as_their_schemas_say(stand_ins, name):
    torch_ops = importlib.import_module("fdmath.verify.installed.torch_ops")
    stand_ins.setattr(torch_ops, "ATEN", fake_packages.Aten)
    assert asked(name) == set()
