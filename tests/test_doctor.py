"""The doctor: it tries each backend, believes only the right answer, and says what is left without it."""

import json
import sys

import pytest

import fdmath
from fdmath import doctor


def test_numpy_and_what_is_installed_here_work():
    assert doctor.examine("numpy").works


def test_a_wrong_answer_is_not_a_working_backend(monkeypatch):
    monkeypatch.setattr(fdmath, "split_kv_attention", lambda *_, **__: ([[3.5]] * 9, None))
    finding = doctor.examine("numpy")
    assert not finding.works


def test_a_nan_is_not_a_working_backend(monkeypatch):
    monkeypatch.setitem(doctor.PROBES, "numpy", lambda: float("nan"))
    assert not doctor.examine("numpy").works


def test_a_missing_package_is_named_and_the_rest_goes_on(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "torch", None)
    assert doctor.main([]) == 0
    printed = capsys.readouterr().out
    assert "torch" in printed and doctor.WITHOUT["torch"] in printed


def test_what_works_without_one_triton_does_not_rest_on_the_other(monkeypatch, capsys):
    for name in ("triton (compiled)", "triton (interpreted)"):
        monkeypatch.setitem(doctor.PROBES, name, lambda: float("nan"))
    doctor.main([])
    promises = [line for line in capsys.readouterr().out.splitlines() if "works without it: " in line]
    assert len(promises) >= 2
    assert not any("interpreted" in line or "compiled" in line for line in promises)


def test_without_the_core_the_code_is_1(monkeypatch, capsys):
    monkeypatch.setitem(doctor.PROBES, "numpy", lambda: float("nan"))
    assert doctor.main(["--json"]) == 1
    assert json.loads(capsys.readouterr().out)["backends"][0]["works"] is False


def test_json_has_every_backend_and_package(capsys):
    doctor.main(["--json"])
    report = json.loads(capsys.readouterr().out)
    assert [row["name"] for row in report["backends"]] == list(doctor.PROBES) == list(doctor.WITHOUT)
    assert {"numpy", "torch", "ml-dtypes"} <= {row["name"] for row in report["packages"]}


@pytest.mark.parametrize(
    ("here", "pin", "verdict"),
    [("1.0", "1.0", "as pinned"), ("1.1", "1.0", "differs"), ("1.0", None, "no pin"), (None, "1.0", "not installed")],
)
def test_a_package_is_compared_with_its_pin(monkeypatch, here, pin, verdict):
    monkeypatch.setattr(doctor, "declared", lambda: ["numpy"])
    monkeypatch.setattr(doctor, "version", lambda name: here)
    monkeypatch.setattr(doctor, "pins", lambda: {"numpy": pin} if pin else {})
    assert [row["verdict"] for row in doctor.packages()] == [verdict]
