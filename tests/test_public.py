"""The public names: what they are, and that importing fdmath loads NumPy alone."""

import importlib
import inspect
import subprocess
import sys
import types

import numpy as np
import pytest

import fdmath

NAMES = [
    "AccState", "LAWS", "LSEState", "MLOState", "Subject", "attention", "backend_for", "certified_attention",
    "flash_attention", "flash_attention_backward", "flat", "flat_printed", "identity", "load_example", "merge",
    "merge_all", "partial_state", "probe", "ring", "sequential", "split_kv_attention", "streams", "trace", "trace_keys",
    "tree", "verify",
]  # fmt: skip
HEAVY = ("torch", "triton", "flint", "hypothesis", "matplotlib", "transformers", "mpmath", "sympy", "pandas")


def loaded_by(code):
    """Those of HEAVY that a fresh process has loaded after running the code."""
    script = f"{code}\nimport sys\nprint(*(name for name in {HEAVY} if name in sys.modules))"
    return subprocess.run([sys.executable, "-c", script], check=True, capture_output=True, text=True).stdout.split()


def test_importing_fdmath_loads_numpy_alone():
    assert loaded_by("import fdmath") == []
    assert loaded_by("import fdmath; dir(fdmath); fdmath.__all__; fdmath.__version__") == []


def test_calling_the_core_on_numpy_loads_nothing_else():
    core = set(NAMES) - {"LAWS", "Subject", "probe", "verify", "certified_attention"}
    code = "\n".join([
        "import fdmath, numpy as np",
        f"[getattr(fdmath, name) for name in {sorted(core)}]",
        "q = np.ones((2, 3, 4), np.float32)",
        "a = fdmath.attention(q, q, q, causal=True)",
        "b = fdmath.split_kv_attention(q, q, q, tile=2, kind=fdmath.AccState, order=fdmath.streams(2))",
        "fdmath.merge_all([a + b, a], fdmath.tree)",
        "print(fdmath.trace([a, b], fdmath.flat) is None)",
    ])
    assert loaded_by(code) == ["False"]


def test_bfloat16_loads_ml_dtypes_and_nothing_else():
    code = "import ml_dtypes, numpy as np, fdmath\nq = np.ones((1, 1), ml_dtypes.bfloat16)\nfdmath.attention(q, q, q)"
    assert loaded_by(code) == []


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_resolves(name):
    optional = {"certified_attention": "flint", "LAWS": "hypothesis", "Subject": "hypothesis", "verify": "hypothesis"}
    if name in optional:
        pytest.importorskip(optional[name])
    found = getattr(fdmath, name)
    assert name in fdmath.__all__ and name in dir(fdmath)
    assert getattr(fdmath, name) is found
    assert name == "LAWS" or callable(found)
    if name != "LAWS":
        summary = inspect.getdoc(found)
        assert summary and summary.splitlines()[0].endswith((".", ":")), name


def test_the_list_of_public_names_is_whole():
    assert sorted(set(fdmath.__all__) - {"__version__"}) == sorted(NAMES)


def test_what_is_not_public_is_an_attribute_error():
    with pytest.raises(AttributeError, match=r"^module 'fdmath' has no attribute 'softmax'$"):
        fdmath.softmax  # noqa: B018 - the access is what is tested
    assert not hasattr(fdmath, "utils")


def test_attention_is_a_package_and_a_function():
    package = importlib.import_module("fdmath.attention")
    assert isinstance(fdmath.attention, types.ModuleType) and fdmath.attention is package
    reference = importlib.import_module("fdmath.attention.reference")
    x = np.ones((1, 1), np.float32)
    o, lse = fdmath.attention(x, x, x)
    assert o == 1.0 and lse == 1.0
    assert inspect.signature(fdmath.attention) == inspect.signature(reference.attention)
    assert "mask" in inspect.signature(fdmath.attention).parameters
    with pytest.raises(TypeError):
        fdmath.attention()


@pytest.mark.parametrize("first", ["fdmath.attention.decode", "fdmath.attention", "fdmath.algebra", "fdmath"])
def test_attention_can_be_called_whatever_was_imported_first(first):
    code = f"import {first}, numpy, fdmath\nx = numpy.ones((1, 1))\nprint(fdmath.attention(x, x, x).o.item())"
    assert loaded_by(code) == ["1.0"]


def test_the_signatures_that_design_promises():
    parameters = {
        "merge": "a b",
        "merge_all": "states order",
        "identity": "shape dv kind like",
        "partial_state": "scores v kind",
        "streams": "n then",
        "trace": "states order",
        "trace_keys": "scores v base",
        "attention": "q k v causal scale mask out_dtype stats_dtype",
        "split_kv_attention":
            "q k v tile num_splits kind order causal scale mask out_dtype stats_dtype backend",
        "flash_attention": "q k v block_m block_n",
        "flash_attention_backward": "do dlse q k v o lse block_m block_n causal scale mask",
        "backend_for": "q k v",
    }  # fmt: skip
    for name, expected in parameters.items():
        found = list(inspect.signature(getattr(fdmath, name)).parameters)
        assert found[:len(expected.split())] == expected.split()
    keyword_only = inspect.signature(fdmath.split_kv_attention).parameters["tile"].kind
    assert keyword_only is inspect.Parameter.KEYWORD_ONLY
