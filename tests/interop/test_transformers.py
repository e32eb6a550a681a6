"""Tiny random models on fdmath: eager's tokens, eager's attention within the budget, padding that changes no bit."""

import importlib
import re
from types import SimpleNamespace

import pytest

pytest.importorskip("torch", reason='a model needs the extra "model"')
pytest.importorskip("transformers", reason='a model needs the extra "model"')

import numpy as np
import torch
import transformers

from fdmath import AccState, LSEState, MLOState, flat, sequential, streams, tree
from fdmath.algebra.rounding import unit_roundoff
from fdmath.interop.transformers import Unsupported, attention_forward, register, visible_keys
from tests.attention.calls import Call, numbers

SIZE = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 50, "initializer_range": 0.5, "head_dim": 8}
ARCHITECTURES = {
    "llama": (transformers.LlamaConfig, transformers.LlamaForCausalLM, {}),
    "qwen2": (transformers.Qwen2Config, transformers.Qwen2ForCausalLM, {}),
    "mistral": (transformers.MistralConfig, transformers.MistralForCausalLM, {"sliding_window": None}),
    "gemma": (transformers.GemmaConfig, transformers.GemmaForCausalLM, {}),
}
LENGTHS = (3, 30, 21)


@pytest.fixture(autouse=True)
def defaults():
    """The name "fdmath" as importing the module leaves it."""
    yield
    register()


def tiny(name, **changed):
    config, model, own = ARCHITECTURES[name]
    torch.manual_seed(0)
    return model(config(**SIZE | own | changed, eos_token_id=None, bos_token_id=None, pad_token_id=0)).eval()


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request):
    return tiny(request.param)


@pytest.fixture(scope="module")
def llama():
    return tiny("llama")


def prompt(length):
    return torch.arange(length)[None] * 7 % 50


def generate(model, tokens, mask=None, count=6, **options):
    mask = torch.ones_like(tokens) if mask is None else mask
    return model.generate(tokens, attention_mask=mask, max_new_tokens=count, do_sample=False, **options)[:, -count:]


@pytest.mark.parametrize("options", [
    {}, {"tile": 3}, {"num_splits": 4, "kind": MLOState, "order": tree}, {"tile": 5, "kind": AccState, "order": flat},
    {"tile": 2, "kind": AccState, "order": streams(3)}, {"num_splits": 50, "order": sequential},
], ids=lambda options: " ".join(options) or "none")  # fmt: skip
def test_the_tokens_are_those_of_eager(llama, options):
    llama.set_attn_implementation("eager")
    expected = generate(llama, prompt(25))
    register(**options)
    llama.set_attn_implementation("fdmath")
    assert torch.equal(generate(llama, prompt(25)), expected)


def test_every_layer_lies_within_the_budget_of_its_inputs(model):
    """|o - o_eager| is at most the sum of both bounds; eager divides each weight, which is 2 u Σp|v| more."""
    eager = importlib.import_module(type(model).__module__).eager_attention_forward
    seen = []

    def both(module, query, key, value, mask, **options):
        ours, _ = attention_forward(module, query, key, value, None, options={"backend": "auto"}, **options)
        theirs, _ = eager(module, query, key, value, mask, **options)
        seen.append((query, key, value, options["scaling"], ours, theirs))
        return theirs, None

    transformers.AttentionInterface.register("both", both)
    transformers.AttentionMaskInterface.register("both", transformers.masking_utils.eager_mask)
    model.set_attn_implementation("both")
    generate(model, prompt(20), count=3)
    assert len(seen) == 3 * len(model.model.layers)
    for query, key, value, scale, ours, theirs in seen:
        call = Call(*(x.double().numpy() for x in (query, key, value)), causal=True, scale=scale)
        budget = call.budget("float32", None, AccState).o + call.budget("float32").o + 2 * weighted_sizes(call)
        apart = (ours - theirs).abs().transpose(1, 2).numpy()
        assert np.all(apart <= budget)
    assert max(float((ours - theirs).abs().max()) for *_, ours, theirs in seen) > 0


PLACES = {"a token": (1, 47), "few after a cache": (4, 47), "a prompt": (30, 30), "a prompt after a cache": (30, 47)}


@pytest.mark.parametrize("causal", [True, False], ids=["causal", "all keys"])
@pytest.mark.parametrize("queries, keys", PLACES.values(), ids=PLACES)
def test_every_path_computes_attention_with_its_scale_and_its_mask(queries, keys, causal):
    """Causal or not as the module says, as the argument says against it, and as a mask says whose tail is no key."""
    rng = np.random.default_rng(2)
    shapes = (1, 4, queries, 8), (1, 2, keys, 8), (1, 2, keys, 6)
    call = Call(*(numbers(rng, *shape) for shape in shapes), causal, scale=0.9)
    arrays = [torch.tensor(x, dtype=torch.float32) for x in (call.q, call.k, call.v)]
    mask = torch.nn.functional.pad(torch.tensor(call.visible()), (0, 5), value=True)
    budget, right = call.budget("float32", None, AccState).o, call.certified()
    for says, module, seen in ((None, causal, None), (causal, not causal, None), (None, not causal, mask)):
        o, _ = attention_forward(SimpleNamespace(is_causal=module), *arrays, seen, options={"backend": "auto"},
                                 scaling=0.9, is_causal=says)
        assert np.all(right.errors((o.transpose(1, 2).numpy(), right.lse_mid))[0] <= budget)


def weighted_sizes(call):
    """u·Σp|v| in float64."""
    k, v = call.repeated()
    scores = np.where(call.visible(), call.factor() * call.q @ np.swapaxes(k, -1, -2), -np.inf)
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return unit_roundoff("float32") * (p / p.sum(axis=-1, keepdims=True)) @ np.abs(v)


def padded(lengths, width):
    tokens = torch.zeros(len(lengths), width, dtype=torch.int64)
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        tokens[row, width - length:], mask[row, width - length:] = prompt(length)[0], 1
    return tokens, mask


def test_a_batch_padded_on_the_left_gives_each_prompt_its_own_tokens(model):
    register(tile=4, kind=MLOState, order=tree)
    model.set_attn_implementation("fdmath")
    together = generate(model, *padded(LENGTHS, max(LENGTHS)))
    for row, length in enumerate(LENGTHS):
        assert torch.equal(together[row], generate(model, prompt(length))[0])


@pytest.mark.parametrize("queries", [1, 4, 30])
def test_padding_changes_no_bit_of_attention_whatever_it_holds(queries):
    torch.manual_seed(1)
    q, k, v = torch.randn(3, 4, queries, 8), torch.randn(3, 2, 30, 8), torch.randn(3, 2, 30, 8)
    _, tokens = padded(LENGTHS, 30)
    mask = visible_keys(3, queries, 30, 30 - queries, attention_mask=tokens.bool())
    assert mask.starts.tolist() == [27, 0, 9]
    for row, length in enumerate(LENGTHS):
        k[row, :, :30 - length] = v[row, :, :30 - length] = torch.nan
    options = {"scaling": 0.3, "options": {"backend": "auto"}}
    together, _ = attention_forward(None, q, k, v, mask, **options)
    for row, length in enumerate(LENGTHS):
        mine = min(length, queries)
        alone, _ = attention_forward(None, q[row:row + 1, :, queries - mine:], k[row:row + 1, :, 30 - length:],
                                     v[row:row + 1, :, 30 - length:], None, **options)
        assert torch.equal(together[row, queries - mine:], alone[0])
        assert torch.equal(together[row, :queries - mine], torch.zeros(queries - mine, 4, 8))


def test_the_mask_is_none_only_where_causal_says_it_all():
    assert visible_keys(2, 4, 4) is None
    assert visible_keys(2, 1, 9, 8, attention_mask=torch.ones(2, 9, dtype=torch.bool)) is None
    assert visible_keys(2, 3, 9, 6) is None  # some queries after a cache: the last sees the last key
    assert torch.equal(visible_keys(1, 4, 4, allow_is_causal_skip=False)[0, 0], torch.ones(4, 4).tril().bool())
    assert visible_keys(1, 2, 9, 0, device="meta").is_meta
    room_behind = visible_keys(1, 2, 9, 0)
    assert room_behind.shape == (1, 1, 2, 9) and room_behind.sum() == 1 + 2
    assert not hasattr(room_behind, "starts")
    by_twos = visible_keys(1, 4, 4, mask_function=lambda batch, head, i, j: i // 2 == j // 2)
    assert torch.equal(by_twos[0, 0], torch.block_diag(*[torch.ones(2, 2)] * 2).bool())
    later = visible_keys(1, 2, 4, 2, kv_offset=2)  # keys 2 to 5, and two queries that stand at the first of them
    assert torch.equal(later[0, 0], torch.ones(2, 4).tril().bool())
    holes = torch.tensor([[True, False, True]])
    mask = visible_keys(1, 1, 3, 2, attention_mask=holes)
    assert not hasattr(mask, "starts") and torch.equal(mask[0, 0], holes)


def test_other_padding_and_static_caches_are_taken_as_masks(llama):
    tokens, mask = prompt(12), torch.ones(1, 12, dtype=torch.int64)
    mask[0, 4:7] = 0  # a hole
    expected = {}
    for name in ("eager", "fdmath"):
        llama.set_attn_implementation(name)
        got = generate(llama, tokens, mask), generate(llama, tokens, cache_implementation="static")
        assert all(torch.equal(x, y) for x, y in zip(expected.setdefault("eager", got), got, strict=True))


def test_gradients_pass_through(llama):
    grads = []
    for name in ("eager", "fdmath"):
        llama.set_attn_implementation(name)
        llama.zero_grad()
        llama(prompt(20), labels=prompt(20)).loss.backward()
        grads.append(llama.model.layers[0].self_attn.q_proj.weight.grad.clone())
    assert float(grads[0].abs().max()) > 0
    worst = float((grads[0] - grads[1]).abs().max() / grads[0].abs().max())
    assert worst <= 2**-10  # a thousandth is far from what rounding does (2^-20 here) and from a gradient that is wrong


def attend(mask=None, **asked):
    q = torch.ones(1, 2, 3, 4)
    return attention_forward(None, q, q, q, mask, options={"backend": "auto"}, **asked)


@pytest.mark.parametrize("asked", [
    {"dropout": 0.1}, {"output_attentions": True}, {"sliding_window": 2}, {"softcap": 30.0},
    {"s_aux": torch.zeros(2)}, {"position_bias": torch.zeros(1, 2, 3, 3)},
], ids=lambda asked: next(iter(asked)))  # fmt: skip
def test_what_is_not_supported_is_refused_by_name(asked):
    with pytest.raises(Unsupported, match=next(iter(asked))):
        attend(**asked)
    attend(**dict.fromkeys(asked))


def test_a_mask_of_numbers_is_refused():
    with pytest.raises(Unsupported, match="mask of numbers"):
        attend(torch.zeros(1, 1, 3, 3))


def test_a_model_says_what_it_asks_for(llama):
    llama.set_attn_implementation("fdmath")
    with pytest.raises(Unsupported, match="output_attentions"):
        llama(prompt(5), output_attentions=True)
    windowed = tiny("mistral", sliding_window=8)
    windowed.set_attn_implementation("fdmath")
    with pytest.raises(Unsupported, match="config.sliding_window = None"):
        windowed(prompt(5))


@pytest.mark.parametrize(("options", "error"), [
    ({"tile": 2, "num_splits": 3}, ValueError), ({"tile": 0}, ValueError), ({"kind": dict}, TypeError),
    ({"order": 3}, TypeError), ({"backend": "numpy"}, ValueError),
], ids=str)  # fmt: skip
def test_options_are_checked_when_they_are_registered(options, error):
    with pytest.raises(error):
        register(**options)


@pytest.mark.parametrize("options", [{"tile": 2}, {"num_splits": 3, "kind": AccState, "order": tree}],
                         ids=lambda options: " ".join(options))  # fmt: skip
@pytest.mark.parametrize("queries", [1, 4])
def test_options_reach_split_kv(queries, options, monkeypatch):
    taken = []
    monkeypatch.setattr("fdmath.interop.transformers.split_kv_attention",
                        lambda q, k, v, **asked: taken.append(asked) or LSEState(q, q[..., 0]))
    register(**options)
    forward = transformers.AttentionInterface()["fdmath"]
    forward(None, torch.ones(1, 4, queries, 4), *[torch.ones(1, 2, 5, 4)] * 2, None)
    assert taken == [options | {"backend": "auto", "causal": True, "scale": None}]


def test_the_backend_reaches_flash_attention(monkeypatch):
    taken = []
    monkeypatch.setattr("fdmath.interop.transformers.flash_attention",
                        lambda q, k, v, **asked: taken.append(asked) or LSEState(q, q[..., 0]))
    attention_forward(None, *[torch.ones(1, 2, 20, 4)] * 3, None, options={"backend": "torch", "tile": 2}, scaling=0.3)
    assert taken == [{"backend": "torch", "causal": True, "scale": 0.3}]


def test_one_kernel_takes_the_tokens_of_a_padded_batch(monkeypatch):
    taken = []
    monkeypatch.setattr("fdmath.interop.transformers._by_kernel", lambda *_: True)
    monkeypatch.setattr("fdmath.interop.transformers.backends.load", lambda _: lambda q, k, v, **asked:
                        taken.append(asked) or LSEState(q, q[..., 0]))
    mask = visible_keys(3, 1, 30, 29, attention_mask=padded(LENGTHS, 30)[1].bool())
    k = torch.ones(3, 2, 30, 4)
    attention_forward(None, torch.ones(3, 4, 1, 4), k, k, mask, options={"backend": "auto", "tile": 2}, scaling=0.3)
    assert taken == [{"seq_starts": mask.starts, "scale": 0.3, "tile": 2}]


def test_kv_heads_are_not_copied(monkeypatch):
    taken = []
    monkeypatch.setattr("fdmath.interop.transformers.split_kv_attention",
                        lambda q, k, v, **_: taken.append(k) or LSEState(q, q[..., 0]))
    k = torch.ones(1, 2, 5, 4)
    attention_forward(None, torch.ones(1, 4, 2, 4), k, k, None, options={"backend": "auto"})
    assert taken[0] is k


def test_the_lines_of_readme_run(root, monkeypatch, capsys):
    """README's ten lines as they stand; what they would load is a tiny model."""
    text = (root / "README.md").read_text(encoding="utf-8")
    example = next(x for x in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "interop.transformers" in x)
    assert len(example.splitlines()) <= 10

    def model(name, attn_implementation):
        found = tiny("llama")
        found.set_attn_implementation(attn_implementation)
        return found

    def tokenizer(text, return_tensors):
        ids = prompt(len(text))
        return transformers.BatchEncoding({"input_ids": ids, "attention_mask": torch.ones_like(ids)})

    tokenizer.decode = lambda tokens: f"{len(tokens)} tokens"
    monkeypatch.setattr(transformers.AutoModelForCausalLM, "from_pretrained", model)
    monkeypatch.setattr(transformers.AutoTokenizer, "from_pretrained", lambda name: tokenizer)
    exec(example, {})
    assert capsys.readouterr().out == "44 tokens\n"
