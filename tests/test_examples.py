"""The captured inputs: what is stored, and that each head is what its name says."""

import hashlib
import json
import subprocess
import sys
from importlib import resources

import numpy as np
import pytest

from fdmath.examples import example_names, load_example

PARTS = ("sink", "flat", "peaked", "plain")
DATA = resources.files("fdmath") / "data"


@pytest.fixture(params=PARTS)
def example(request):
    return load_example(f"smollm2/{request.param}")


def causal_weights(example):
    """Softmax weights by definition, row by row over the keys that the row sees."""
    n = len(example.k)
    p = np.zeros((64, n))
    for i, query in enumerate(example.q.astype(np.float64)):
        seen = n - 64 + i + 1
        exps = np.exp(example.k[:seen].astype(np.float64) @ query / 8)
        p[i, :seen] = exps / exps.sum()
    return p


def figures(example):
    """Sink, entropy and peak, computed anew from the stored numbers."""
    p = causal_weights(example)
    entropy = [-sum(row[row > 0] * np.log(row[row > 0])) / np.log(len(row) - 64 + i + 1) for i, row in enumerate(p)]
    return {"sink": p[:, 0].mean(), "entropy": np.mean(entropy), "peak": p[:, 1:].max(axis=1).mean()}


def test_shapes_and_dtypes_are_what_attention_takes(example):
    tokens = example.meta["text"]["tokens"]
    assert example.q.shape == (64, 64)
    assert example.k.shape == example.v.shape == (tokens, 64)
    assert example.q.dtype == example.k.dtype == example.v.dtype == np.float16
    assert example.causal is True


def test_every_number_is_finite_and_none_is_an_untouched_block(example):
    for array in (example.q, example.k, example.v):
        assert np.isfinite(array).all()
        assert np.count_nonzero(array.any(axis=1)) == len(array)


def test_every_row_of_weights_sees_what_causal_allows(example):
    p = causal_weights(example)
    n = len(example.k)
    assert np.isfinite(p).all()
    assert (p[:, : n - 63] > 0).all()
    assert all((row[n - 64 + i + 1 :] == 0).all() for i, row in enumerate(p))


def test_the_stored_figures_are_those_of_the_stored_numbers(example):
    for criterion, figure in figures(example).items():
        assert example.meta[criterion] == float(f"{figure:.4g}")


@pytest.mark.parametrize(("part", "criterion"), [("sink", "sink"), ("flat", "entropy"), ("peaked", "peak")])
def test_a_head_reaches_the_floor_of_its_name_and_the_others_do_not(part, criterion):
    floor = load_example(f"smollm2/{part}").meta["floors"][part][criterion]
    reached = [name for name in PARTS if figures(load_example(f"smollm2/{name}"))[criterion] >= floor]
    assert reached == [part]


def test_the_plain_head_is_between_the_quartiles_of_all_heads():
    plain = load_example("smollm2/plain")
    low, high = plain.meta["quartiles"]["low"], plain.meta["quartiles"]["high"]
    for criterion, figure in figures(plain).items():
        assert low[criterion] < figure < high[criterion]


def test_the_capture_reproduced_the_model_within_its_bound(example):
    assert 0 < example.meta["error_over_bound"] <= 1
    assert example.meta["error"] > 0


def test_the_query_head_reads_the_kv_head_of_its_group(example):
    group = example.meta["model"]["query_heads"] // example.meta["model"]["kv_heads"]
    assert example.meta["kv_head"] == example.meta["head"] // group


def test_meta_has_provenance_licences_and_the_rule(example):
    meta = example.meta
    assert meta["model"]["licence"] == meta["licence"].partition(",")[0] == "Apache-2.0"
    assert meta["text"]["licence"] == "public domain"
    assert len(meta["model"]["wheel_sha256"]) == len(meta["model"]["gguf_sha256"]) == 64
    assert set(meta["rule"]) == set(PARTS)
    assert {"torch", "transformers", "gguf", "numpy", "python"} == set(meta["versions"])


def test_the_text_is_the_one_that_was_read(example):
    text = (DATA / example.meta["text"]["file"]).read_text(encoding="utf-8")
    assert hashlib.sha256(text.encode("utf-8")).hexdigest() == example.meta["text"]["sha256"]


def test_the_file_has_at_most_a_megabyte_and_a_half_and_nothing_but_the_four_heads():
    file = DATA / "smollm2.npz"
    assert len(file.read_bytes()) <= 1_500_000
    with file.open("rb") as stream, np.load(stream) as archive:
        parts = json.loads(archive["meta"].item())["parts"]
        assert set(parts) == set(PARTS)
        assert set(archive.files) == {"meta"} | {f"{parts[part]['pair']}/{x}" for part in PARTS for x in "qkv"}


def test_both_names_of_a_head_give_the_same_arrays(example):
    twin = load_example(f"smollm2/{example.meta['pair']}")
    assert twin.q is example.q and twin.k is example.k and twin.v is example.v
    assert twin.meta["part"] == example.name.removeprefix("smollm2/")


def test_the_names_are_all_loadable_and_loaded_once():
    names = example_names()
    assert names[:4] == tuple(f"smollm2/{part}" for part in PARTS)
    assert len(set(names)) == 8
    assert all(load_example(name) is load_example(name) for name in names)
    assert all(load_example(name).name == name for name in names)


def test_nothing_of_an_example_can_be_overwritten(example):
    for array in (example.q, example.k, example.v):
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 0
    with pytest.raises(AttributeError):
        example.q = None
    with pytest.raises(TypeError):
        example.meta["part"] = "other"


@pytest.mark.parametrize("name", ["smollm2/sinks", "sink", "smollm2", "smollm2/L0H0", "", "smollm2/L18H8/q"])
def test_an_unknown_name_is_answered_with_the_names(name):
    with pytest.raises(ValueError, match="no example is named") as error:
        load_example(name)
    assert all(known in str(error.value) for known in example_names())


def test_loading_an_example_takes_numpy_alone():
    code = (
        "import sys, fdmath; fdmath.load_example('smollm2/plain');"
        "print(sorted({'torch', 'transformers', 'matplotlib', 'flint', 'tqdm'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
