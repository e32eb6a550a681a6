"""What the kernels need of the machine that they are imported on."""

import importlib

import pytest

pytest.importorskip("torch")
triton = pytest.importorskip("triton")


@pytest.mark.parametrize("version", ["2.3.1", "3.5.1"])
def test_an_older_triton_is_said_to_be_missing(version, monkeypatch):
    checks = importlib.import_module("fdmath.kernels.checks")
    monkeypatch.setattr(triton, "__version__", version)
    with pytest.raises(ImportError, match=f"Triton 3.6 or later; this is {version}") as caught:
        importlib.reload(checks)
    assert caught.value.name == "triton>=3.6"  # what `split_kv_attention` then says is not installed
