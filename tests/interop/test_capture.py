"""The capture on a tiny model made here, and (asked for by ``-m model``) on the real one."""

import dataclasses

import numpy as np
import pytest

pytest.importorskip("torch", reason='capturing needs the extra "model"')
pytest.importorskip("transformers", reason='capturing needs the extra "model"')
pytest.importorskip("gguf", reason='capturing needs the extra "model"')
pytest.importorskip("accelerate", reason='capturing needs the extra "model"')

import torch
import transformers

from fdmath.interop import capture as capturing
from fdmath.interop.capture import Captured, Distance, distance, record, table, write
from fdmath.interop.criteria import Profile
from fdmath.interop.smollm2 import NotAsExpected, data_main, model_main

TOKENS = 80


@pytest.fixture(scope="module")
def model():
    """A random Llama of 2 layers, 4 query heads over 2 KV heads, with scores large enough to matter."""
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32,
        intermediate_size=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        vocab_size=50,
        initializer_range=0.5,
        attn_implementation="sdpa",
    )
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def tokens():
    return torch.arange(TOKENS)[None] * 7 % 50


@pytest.fixture(scope="module")
def heads(model, tokens):
    return list(record(model, tokens))


def rounded(one):
    return {letter: getattr(one, letter).astype(np.float16) for letter in "qkv"}


def test_every_head_is_recorded_with_the_kv_head_it_reads(heads):
    named = [(one.layer, one.head, one.kv_head) for one in heads]
    assert named == [(layer, head, head // 2) for layer in range(2) for head in range(4)]
    for one in heads:
        assert one.q.shape == one.o.shape == (64, 8)
        assert one.k.shape == one.v.shape == (TOKENS, 8)
        assert {x.dtype for x in (one.q, one.k, one.v, one.o)} == {np.dtype(np.float32)}


def test_recording_changes_nothing_and_ends_with_the_pass(model, tokens):
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    with torch.no_grad():
        before = model(tokens).logits
        list(record(model, tokens))
        assert torch.get_num_threads() == 2
        assert torch.equal(model(tokens).logits, before)
    assert model.config._attn_implementation == "sdpa"
    torch.set_num_threads(threads)


def test_recording_twice_gives_the_same_bits(model, tokens, heads):
    for first, second in zip(heads, record(model, tokens), strict=True):
        assert all(np.array_equal(getattr(first, x), getattr(second, x)) for x in "qkvo")


def test_the_rounded_numbers_reproduce_the_model_within_the_bound(heads):
    for one in heads:
        got = distance(one, **rounded(one))
        assert 0 < got.ratio <= 1
        assert got.error > 0


@pytest.mark.parametrize("letter", "qkv")
def test_numbers_of_another_head_are_not_within_the_bound(heads, letter):
    for one, other in [(heads[0], heads[2]), (heads[5], heads[7])]:  # they read different KV heads
        wrong = rounded(one) | {letter: rounded(other)[letter]}
        assert distance(one, **wrong).ratio > 1


def test_queries_one_position_off_are_not_within_the_bound(heads):
    for one in heads:
        wrong = rounded(one) | {"q": np.roll(rounded(one)["q"], 1, axis=0)}
        assert distance(one, **wrong).ratio > 1


def test_a_number_that_is_not_finite_is_never_within_the_bound(heads):
    wrong = rounded(heads[0])
    wrong["v"][0, 0] = np.nan
    got = distance(heads[0], **wrong)
    with pytest.raises(NotAsExpected, match="L0H0 is not what the model computed"):
        capturing._check({(0, 0): got})


def test_one_head_past_its_bound_stops_the_capture():
    fine, wrong = Distance(0.0, 1.0), Distance(0.1, np.nextafter(1, 2))
    capturing._check({(0, 0): fine})
    with pytest.raises(NotAsExpected, match="L3H5"):
        capturing._check({(0, 0): fine, (3, 5): wrong})


@pytest.mark.parametrize(
    ("mask", "options"),
    [(torch.zeros(1), {"scaling": 0.125}), (None, {"scaling": 0.1}), (None, {"scaling": 0.125, "dropout": 0.1})],
)
def test_another_attention_than_the_plain_causal_one_is_refused(mask, options):
    capturing._check_call(None, {"scaling": 0.125, "dropout": 0.0}, 64)
    with pytest.raises(NotAsExpected, match="another attention"):
        capturing._check_call(mask, options, 64)


def test_writing_twice_gives_the_same_bytes_and_reads_back(tmp_path, heads):
    captured = Captured({"L0H0/q": rounded(heads[0])["q"]}, {"schema": 1}, {}, {}, {})
    for name in ("a.npz", "b.npz"):
        write(tmp_path / "new" / name, captured)
    assert (tmp_path / "new" / "a.npz").read_bytes() == (tmp_path / "new" / "b.npz").read_bytes()
    with np.load(tmp_path / "new" / "a.npz") as archive:
        assert np.array_equal(archive["L0H0/q"], captured.arrays["L0H0/q"])
        assert archive["meta"].item() == '{"schema": 1}'


def test_the_table_shows_the_chosen_heads_or_all():
    profiles = {(0, head): Profile(head / 4, 0.5, 0.25) for head in range(4)}
    distances = {name: Distance(0.001, 0.5) for name in profiles}
    captured = Captured({}, {}, {"sink": (0, 3)}, profiles, distances)
    assert "L0H3       0.750    0.500   0.250   1.0e-03     0.500  sink" in table(captured)
    assert "L0H0" not in table(captured)
    assert "L0H0" in table(captured, every=True)
    assert "4 heads reproduced; worst error 0.500 of its bound" in table(captured)


def test_without_the_model_file_the_command_says_how_to_get_it(tmp_path, capsys):
    out = tmp_path / "out.npz"
    assert data_main(["capture", "--cache", str(tmp_path), "--out", str(out)]) == 2
    assert "python -m fdmath model fetch" in capsys.readouterr().err
    assert not out.exists()


@pytest.mark.model
@pytest.mark.filterwarnings("default")
def test_the_real_model_gives_the_stored_file_again(request, tmp_path, capsys):
    """Fetches 93 MB unless the cache has them; equal bits are asked for under the stored versions only."""
    if "model" not in request.config.getoption("markexpr"):
        pytest.skip("fetches a model of 93 MB; ask for it: pytest -m model tests/interop")
    assert model_main(["fetch"]) == 0
    for name in ("a.npz", "b.npz"):
        assert data_main(["capture", "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "a.npz").read_bytes() == (tmp_path / "b.npz").read_bytes()
    assert "270 heads reproduced" in capsys.readouterr().out


def test_the_dataclasses_are_frozen(heads):
    with pytest.raises(dataclasses.FrozenInstanceError):
        heads[0].layer = 5
