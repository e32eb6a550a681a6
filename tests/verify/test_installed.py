"""Adapters of installed packages: the table, what is missing, strict expectations, and layouts against stand-ins."""

import ast
import importlib.util
import inspect
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from fdmath.verify import installed, subjects
from fdmath.verify.installed import (
    ADAPTERS,
    adapter,
    as_found,
    asked_with_keys,
    elsewhere,
    expected,
    here,
    installed_subject,
    missing,
    to_ask_with_keys,
    tried,
)
from fdmath.verify.installed.adapter import DEVICES, FLUSHED
from fdmath.verify.installed.expectations import read, surprises
from fdmath.verify.judge import ask, verify
from fdmath.verify.laws import LAWS
from fdmath.verify.report import Cell, Report
from fdmath.verify.subject import Subject, SubjectError
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
        for device in one.devices:
            subject = Subject(one.name, one.role, lambda *_: None, library=one.library, **one.declared_on(device))
            assert subject.flushed == (FLUSHED if device == "cuda" or one.package == "jax" else 0)
            assert subject.device == (device if one.library == "torch" else "cpu")
            assert (subject.input_precision == "tf32") == (device == "cuda" and one.package == "jax")
        assert not {"log_base", "empty", "lse_layout", "causal", "heads", "scale"} & set(one.declared)  # the probe's


def test_every_adapter_is_here_or_missing_or_elsewhere():
    known = [here(), missing(), elsewhere()]
    assert sorted(name for names in known for name in names) == sorted(ADAPTERS)
    assert elsewhere()["torch flash, CUDA"] == "runs on cuda alone"
    for refused in (here, lambda device, name: installed_subject(name, device)):
        with pytest.raises(ValueError, match="vLLM merge_attn_states: runs on cuda alone"):
            refused("cpu", "vLLM merge_attn_states")
        with pytest.raises(ValueError, match="name must be one of torch flash"):
            refused("cpu", "vllm")
    assert here("cpu", "fdmath, decode") == ["fdmath, decode"] or "fdmath, decode" in missing()


def test_what_is_not_installed_is_told_from_what_is_for_another_device():
    absent = adapter.Adapter("a", "merge", "vllm_ops:merge", "no_such_package", ("cuda",))
    assert absent.not_installed() == "no_such_package is not installed"
    assert absent.elsewhere("cuda") == "" and absent.elsewhere("cpu") == "runs on cuda alone"


@needs_torch
@pytest.mark.parametrize("there", [True, False])
def test_without_a_cuda_device_nothing_of_torch_is_for_cuda(monkeypatch, there):
    monkeypatch.setattr(importlib.import_module("torch").cuda, "is_available", lambda: there)
    told = elsewhere("cuda")
    assert (told.get("torch flash, CUDA"), told.get("torch math, decode")) == (
        (None, None) if there else ("torch sees no CUDA device",) * 2)


def of_function(fn, role="attention"):
    """A Subject of a function that stands where a package's would, on NumPy arrays."""
    return Subject("stand-in", role, fn)


def test_what_an_ordinary_call_raises_is_said_in_a_line():
    def unbuilt(*args):
        raise NotImplementedError("No operator found\n    query: shape=(1, 64, 1, 64)")

    with pytest.raises(SubjectError) as told:
        tried(of_function(unbuilt))
    assert str(told.value) == "cannot run an ordinary call: NotImplementedError: No operator found"


def test_a_package_that_sees_no_device_is_told_from_one_that_breaks():
    def far(*args):
        raise adapter.NoDevice("none is seen")

    assert tried(of_function(far)) == "none is seen"


def test_what_breaks_in_other_calls_alone_is_asked():
    def particular(q, k, v, causal):
        if causal or k.shape != (1, 1, 64, 64) or q.shape[-2:] != (64, 64):
            raise RuntimeError("not taken")
        return "no state at all"

    assert tried(of_function(particular)) == ""


def test_a_function_of_numpys_arrays_is_told_the_device(monkeypatch):
    monkeypatch.setattr(adapter.backends, "load", lambda path: lambda *args, device: device)
    one = adapter.Adapter("stand-in", "attention", "some_ops:fn", "numpy", library="numpy")
    assert [one.subject(device).fn(1, 2, 3, False) for device in DEVICES] == list(DEVICES)


def test_jax_calculates_on_the_device_that_was_asked_for(monkeypatch):
    jax = pytest.importorskip("jax")
    attend, used = jax.nn.dot_product_attention, []
    monkeypatch.setattr(jax.nn, "dot_product_attention",
                        lambda q, *args, **more: used.append(q.device.platform) or attend(q, *args, **more))
    for name in ("JAX, attention", "JAX, decode"):
        assert tried(ADAPTERS[name].subject("cpu")) == ""
        monkeypatch.setattr(jax, "devices", none_but_a_cpu(jax.devices))
        assert tried(ADAPTERS[name].subject("cuda")).startswith("jax sees no device cuda")
    assert used == ["cpu", "cpu"]


def none_but_a_cpu(devices):
    """jax.devices of a machine without a GPU."""
    def asked(kind):
        if kind != "cpu":
            raise RuntimeError(f"Unknown backend {kind}")
        return devices(kind)

    return asked


@pytest.mark.parametrize("role", CALLS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_an_ordinary_call_is_one_of_its_role_in_the_first_format_declared(role, dtype):
    dtypes = (dtype, "float32")
    args = adapter.ordinary(Subject("s", role, lambda *_: None, dtypes=dtypes))
    assert len(args) == len(CALLS[role])
    assert {x.dtype.name for x in args if hasattr(x, "dtype")} - {"int64"} == {dtype}
    width = args[0].shape[-1]
    assert width == 64 and (role != "decode" or args[3].tolist() == [64])


def test_what_a_gpu_raises_only_when_its_results_are_read_counts(monkeypatch):
    monkeypatch.setattr(adapter, "to_numpy", lambda x: 1 / 0)
    with pytest.raises(SubjectError, match="cannot run an ordinary call: ZeroDivisionError: division by zero"):
        tried(of_function(lambda q, k, v, causal: (q, q[..., 0])))


# -- expectations -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", DEVICES)
def test_every_expectation_names_an_adapter_a_law_and_a_reason(device):
    other, = set(DEVICES) - {device}
    assert expected(device)
    for (subject, law), reason in expected(device).items():
        assert subject in ADAPTERS
        assert LAWS[law].roles.count(ADAPTERS[subject].role) == 1
        assert len(reason) > 20
        assert (subject, law) in expected(other) or device in ADAPTERS[subject].devices


def test_lines_below_a_device_count_there_alone(tmp_path):
    file = tmp_path / "expectations.toml"
    file.write_text('["a"]\nanchor = "everywhere"\n["a".cuda]\nempty = "on a GPU"\n["b".cpu]\npoison = "here"',
                    encoding="utf-8")
    everywhere = {("a", "anchor"): "everywhere"}
    assert read(file) == read(file, "cpu") == {**everywhere, ("b", "poison"): "here"}
    assert read(file, "cuda") == {**everywhere, ("a", "empty"): "on a GPU"}
    with pytest.raises(ValueError, match="device must be one of cpu, cuda; got 'tpu'"):
        read(file, "tpu")
    with pytest.raises(ValueError, match="device must be one of cpu, cuda"):
        expected("cuda:0")


@pytest.mark.parametrize("text, says", [
    ('["a"]\n"no law" = "x"', "no law"), ('["a"]\nanchor = ""', "reason"), ('["a"]\nanchor = 3', "reason"),
    ('["a".gpu]\nanchor = "x"', "'gpu', which is no law and no device"), ('["a"]\ncpu = "x"', "'cpu', which is no law"),
    ('["a".cuda]\n"no law" = "x"', "no law"), ('["a".cuda]\nanchor = ""', "reason"),
    ('["a"]\nanchor = "x"\n["a".cpu]\nanchor = "y"', "said once for cpu"),
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


def test_only_what_is_blamed_on_rows_without_keys_is_asked_again():
    reason = "a row without keys returns lse = 0"
    report = report_of(anchor="fail", shift="pass", empty="fail", counting="fail")
    known = {("s", "anchor"): reason, ("s", "shift"): reason, ("s", "empty"): reason, ("s", "counting"): "known",
             ("s", "wide heads"): reason, ("other", "anchor"): reason}
    assert to_ask_with_keys(report, known) == ["anchor"]


def decode_by_definition(fault):
    """The Subject of a decode by definition whose lengths a fault changes, and which gives a row without keys lse 0."""
    right = subjects.decode()

    def decode(q, k, v, seq_lens, num_splits):
        o, lse = right(q, k, v, fault(seq_lens, k), num_splits)
        return o, np.where(np.isneginf(lse), 0, lse).astype(lse.dtype)

    return Subject("s", "decode", decode)


def one_too_few(seq_lens, k):
    """Lengths without the last key of sequences that are not full."""
    return np.where((seq_lens < k.shape[-2]) & (seq_lens > 1), seq_lens - 1, seq_lens)


@pytest.mark.parametrize("law", ["anchor", "counting", "grouped heads", "partition independence"])
def test_a_fault_behind_an_accepted_line_is_found_in_rows_with_keys(law):
    for fault, verdict in ((lambda lens, k: lens, "pass"), (one_too_few, "fail")):
        subject = decode_by_definition(fault)
        assert ask(LAWS[law], subject, 50).verdict == "fail"  # what the line accepts
        assert asked_with_keys(subject, law, 50, 0, 60.0).verdict == verdict


@pytest.mark.parametrize("law", ["convexity", "causality"])
def test_rows_of_more_queries_than_keys_are_rows_without_keys(law):
    def mean_of_all(q, k, v, causal):
        o, lse = subjects.defined(q, k, v, causal)
        mean = np.mean(v, axis=-2, keepdims=True).repeat(q.shape[1] // k.shape[1], axis=1) if k.shape[-2] else 0
        return np.where(np.isneginf(lse)[..., None], mean, o).astype(o.dtype), lse

    subject = Subject("s", "attention", mean_of_all)
    assert ask(LAWS[law], subject, 50).verdict == "fail"
    assert asked_with_keys(subject, law, 50, 0, 60.0).verdict == "pass"


# -- on this machine ------------------------------------------------------------------------------------


@needs_torch
def test_the_probe_finds_the_conventions_of_torchs_kernel_untold():
    found = as_found(installed_subject("torch flash, CPU, attention"))
    assert (found.causal, found.heads, found.lse_layout, found.log_base) == (
        "top_left", "interleaved", "heads_first", np.e)
    report = verify(found, laws=["anchor", "causality", "empty", "counting"], cases=10)
    assert surprises(report, expected()) == []
    assert {law for (law, _), cell in report.cells.items() if cell.verdict == "fail"} == {"empty"}


@needs_torch
@pytest.mark.parametrize("name", ["torch flash, CPU, decode", "torch math, attention", "torch math, decode",
                                  "fdmath, decode"])  # fmt: skip
def test_laws_hold_or_break_as_expected(name):
    report = verify(as_found(installed_subject(name)), laws=["anchor", "empty", "poison", "v is 1"], cases=10)
    assert surprises(report, expected()) == []


@needs_torch
def test_flexattention_reads_top_left_masks_and_returns_natural_lse():
    pytest.importorskip("torch.nn.attention.flex_attention").__dict__["AuxRequest"]
    found = as_found(installed_subject("FlexAttention, attention"))
    assert (found.causal, found.log_base, found.empty) == ("top_left", np.e, -np.inf)
    assert surprises(verify(replace(found, dtypes=("float32",)), laws=["anchor"], cases=3), expected()) == []


@needs_torch
def test_a_call_that_would_end_the_process_is_refused():
    from fdmath.verify.installed.torch_ops import NotCalled, cpu_flash

    torch = pytest.importorskip("torch")
    with pytest.raises(NotCalled, match="SIGFPE"):
        cpu_flash(torch.ones(1, 1, 1, 2), torch.ones(1, 1, 0, 2), torch.ones(1, 1, 0, 2), False)


# -- frames and masks -------------------------------------------------------------------------------------


@needs_torch
def test_what_is_padded_has_plain_strides_whatever_those_of_the_input():
    torch = pytest.importorskip("torch")
    from fdmath.verify.installed.frames import padded

    q = torch.ones(1, 1, 1, 16)
    no_keys = torch.from_numpy(np.ones((1, 1, 3, 16))[:, :, :0].copy())  # NumPy's copy has strides of 0
    one_head = torch.ones(1, 3, 1, 1).transpose(1, 2)  # heads that lie one number apart
    assert no_keys.stride(-1) != 1 and one_head.stride(1) == 1
    _, k, v, *_ = padded(q, no_keys, one_head, 8)
    for x, keys in ((k, 0), (v, 3)):
        assert x.stride() == torch.ones(1, 1, keys, 16).stride()
    assert v[..., 0].tolist() == [[[1, 1, 1]]] and not v[..., 1:].any()


@needs_torch
def test_what_is_wide_enough_is_the_view_that_was_given():
    torch = pytest.importorskip("torch")
    from fdmath.verify.installed.frames import padded

    view = torch.ones(2, 5, 3, 16).transpose(1, 2)[:, :, :4]
    assert all(x is view for x in padded(view, view, view, 8)[:3])


@needs_torch
def test_our_masks_are_made_where_the_keys_are(monkeypatch):
    torch = pytest.importorskip("torch")
    made = []
    monkeypatch.setattr(subjects, "split_kv_attention", lambda *args, mask, **options: made.append(mask) or args[:2])
    q, k = torch.empty(2, 2, 1, 4, device="meta"), torch.empty(2, 1, 6, 4, device="meta")
    subjects.decode()(q, k, k, torch.tensor([3, 6]), 2)  # lengths on the CPU
    made.append(subjects._top_left(q, k))
    assert [(mask.device.type, mask.shape) for mask in made] == [("meta", (2, 1, 1, 6)), ("meta", (1, 6))]


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


def test_an_operator_that_returns_none_is_said_to(stand_ins):
    torch_ops = importlib.import_module("fdmath.verify.installed.torch_ops")
    none = lambda *args, **options: (None, None, None)  # noqa: E731
    stand_ins.setattr(fake_packages.Aten, "_scaled_dot_product_cudnn_attention", staticmethod(none))
    stand_ins.setattr(torch_ops, "ATEN", fake_packages.Aten)
    torch = pytest.importorskip("torch")
    with pytest.raises(torch_ops.NoResult, match=r"returned no result \(None\) for 0 keys"):
        torch_ops.cuda_cudnn(torch.ones(1, 1, 1, 8), torch.ones(1, 1, 0, 8), torch.ones(1, 1, 0, 8), False)


@pytest.mark.parametrize("name", [n for n in ADAPTERS if n.startswith("torch") and "CUDA" in n])
def test_the_operators_of_a_gpu_are_read_as_their_schemas_say(stand_ins, name):
    torch_ops = importlib.import_module("fdmath.verify.installed.torch_ops")
    stand_ins.setattr(torch_ops, "ATEN", fake_packages.Aten)
    assert asked(name) == set()
