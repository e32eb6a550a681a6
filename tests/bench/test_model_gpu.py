"""A model in bfloat16 beside itself in float32: what is asked, on a CPU, and what is counted, by hand."""

from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason='a model needs the extra "model"')
pytest.importorskip("transformers", reason='a model needs the extra "model"')

import torch
import transformers

from fdmath.bench import model_gpu
from fdmath.interop import compare
from fdmath.interop.transformers import register

SIZE = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 1, "vocab_size": 50, "head_dim": 16}


@pytest.fixture(autouse=True)
def defaults():
    """The name "fdmath" as importing the module leaves it."""
    yield
    register()


def test_a_model_is_asked_in_bfloat16_with_every_cut_and_judged_after_the_same_tokens(monkeypatch):
    config = transformers.LlamaConfig(**SIZE, eos_token_id=None, bos_token_id=None)
    model, ids = transformers.LlamaForCausalLM(config).eval(), torch.arange(40)[None]
    used, asked, judged = [], [], []
    make, rows = compare.compare, model_gpu._Judge.rows

    def comparing(model, prompt, count, *, names, forced=None):
        asked.append((model.dtype, prompt.shape[1], count, forced if forced is None else forced.tolist()))
        return make(model, prompt, count, names=names, forced=forced)

    def judging(judge, found, ids, how, cut):
        judged.append((judge.exact.dtype, judge.rounded.dtype, how, cut))
        first = found.streams[compare.REFERENCE].tokens if how == "greedy" else asked[-1][-1][0]
        assert ids[0].tolist() == [*range(found.context), *first]
        return rows(judge, found, ids, how, cut)

    monkeypatch.setattr(compare, "use", lambda **options: used.append(options))
    monkeypatch.setattr(compare, "compare", comparing)
    monkeypatch.setattr(model_gpu._Judge, "rows", judging)
    found = model_gpu.on_gpu(model, [ids[:, :9]], ids, (5,), 3, device="cpu", backend="torch")
    assert used == [{"backend": "torch"}] * 2 + [{"backend": "torch", **cut} for cut in model_gpu.CUTS]
    assert asked == [(torch.bfloat16, *rest) for rest in (
        (5, 3, [[5, 6, 7]]), (37, 3, [[37, 38, 39]]), *[(9, 3, None)] * len(model_gpu.CUTS))]
    assert judged == [(torch.float32, torch.bfloat16, *rest) for rest in (
        *[("forced", {})] * 2, *(("greedy", cut) for cut in model_gpu.CUTS))]
    assert [row["implementation"] for row in found] == list(model_gpu.NAMES) * len(used)


class Logits(SimpleNamespace):
    """A model that gives the same logits whatever the tokens."""

    def __call__(self, ids):
        return SimpleNamespace(logits=self.logits[None])

    def set_attn_implementation(self, name):
        assert name == compare.REFERENCE


def test_a_difference_is_explained_up_to_twice_what_bfloat16_moves_a_logit():
    """Three steps after two tokens; the rows before and behind would give other numbers."""
    exact = torch.tensor([[0, 0, 9], [1, 0, -1], [1, 0.5, 0], [1, 0.875, 0], [0, 0, 9]])
    moved = torch.tensor([[4.0], [0.125], [0.25], [0.03125], [4.0]]) * torch.tensor([[0, 1, 0]])
    judge = model_gpu._Judge(Logits(logits=exact), Logits(logits=exact + moved))
    apart = [compare.Difference(step, 2 + step, 0, 1, (0, 0), (0, 0), 0.0625) for step in (1, 2)]
    found = compare.Comparison(2, True, {
        "eager": compare.Stream("eager", [0, 0, 0]),
        "fdmath": compare.Stream("fdmath", [0, 1, 1], differences=apart, compared=3, largest=0.75)})
    eager, ours = judge.rows(found, torch.zeros(1, 5, dtype=torch.int64), "forced", {"tile": 7})
    assert eager == {"how": "forced", "tile": 7, "context": 2, "implementation": "eager", "compared": 3, "as_eager": 3,
                     "explained": 0, "as_float32": 3, "largest_difference": 0, "rounding": 0.25, "differences": []}
    assert ours == {**eager, "implementation": "fdmath", "as_eager": 1, "explained": 1, "as_float32": 1,
                    "largest_difference": 0.75, "differences": [
                        {"step": 1, "margin": 0.0625, "margin_float32": 0.5, "rounding": 0.25, "explained": True},
                        {"step": 2, "margin": 0.0625, "margin_float32": 0.125, "rounding": 0.03125,
                         "explained": False}]}
