"""A model in bfloat16 beside itself in float32, on the CPU: what is counted, and that a fault is not explained."""

import pytest

pytest.importorskip("torch", reason='a model needs the extra "model"')
pytest.importorskip("transformers", reason='a model needs the extra "model"')

import torch
import transformers

from fdmath.bench import model_gpu
from fdmath.interop import compare
from fdmath.interop.transformers import register, visible_keys

SIZE = {"hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 50, "initializer_range": 0.3, "head_dim": 16}
COUNT = 8


@pytest.fixture(autouse=True)
def defaults():
    """The name "fdmath" as importing the module leaves it."""
    yield
    register()


def rows():
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**SIZE, eos_token_id=None, bos_token_id=None)).eval()
    ids = torch.arange(40)[None] * 7 % 50
    return model_gpu.on_gpu(model, [ids[:, :9]], ids, (5,), COUNT, device="cpu", backend="torch")


def test_every_step_is_counted_and_every_difference_has_its_margin():
    found = rows()
    assert [(row["how"], row["implementation"]) for row in found] == [
        (how, name) for how in ["forced"] * 2 + ["greedy"] * len(model_gpu.CUTS) for name in model_gpu.NAMES]
    for row in found:
        assert len(row["differences"]) == row["compared"] - row["as_eager"]
        assert row["explained"] == sum(one["explained"] for one in row["differences"])
        assert row["how"] == "greedy" or row["compared"] == COUNT
        assert 0 < row["rounding"] and row["as_float32"] <= row["compared"]
        if row["implementation"] == compare.REFERENCE:
            assert (row["as_eager"], row["compared"], row["largest_difference"]) == (COUNT, COUNT, 0)


def test_a_wrong_attention_is_not_explained_by_rounding(monkeypatch):
    def blind(module, query, key, value, mask, **options):
        return torch.zeros_like(query).transpose(1, 2), None

    monkeypatch.setattr(compare, "use", lambda **_: None)
    transformers.AttentionInterface.register(compare.OURS, blind)
    transformers.AttentionMaskInterface.register(compare.OURS, visible_keys)
    ours = [row for row in rows() if row["implementation"] == compare.OURS]
    assert any(row["explained"] < row["compared"] - row["as_eager"] for row in ours)
