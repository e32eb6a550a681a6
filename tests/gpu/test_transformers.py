"""A small random model on a CUDA device: eager's tokens by the Triton kernels, and left padding by its starts."""

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")
transformers = pytest.importorskip("transformers")

from fdmath import _backends as backends  # noqa: E402
from fdmath.interop.transformers import attention_forward, register, visible_keys  # noqa: E402

SIZE = {"hidden_size": 256, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4,
        "num_key_value_heads": 2, "vocab_size": 100, "initializer_range": 0.3, "head_dim": 64}
LENGTHS = (3, 70, 41)
COUNT = 12


@pytest.fixture(autouse=True)
def defaults():
    """The name "fdmath" as importing the module leaves it."""
    yield
    register()


@pytest.fixture
def taken(monkeypatch):
    """The names of the kernels that were loaded, one for each call."""
    found, load = [], backends.load
    monkeypatch.setattr(backends, "load", lambda name: found.append(name) or load(name))
    return found


def tiny():
    torch.manual_seed(0)
    config = transformers.Qwen2Config(**SIZE, eos_token_id=None, bos_token_id=None, pad_token_id=0)
    return transformers.Qwen2ForCausalLM(config).eval().to("cuda")


def prompt(length):
    return torch.arange(length, device="cuda")[None] * 7 % 100


def padded(lengths, width):
    """Tokens (B, width) of prompts, padded on the left, and which are none."""
    tokens = torch.zeros(len(lengths), width, dtype=torch.int64, device="cuda")
    mask = torch.zeros_like(tokens)
    for row, length in enumerate(lengths):
        tokens[row, width - length:], mask[row, width - length:] = prompt(length)[0], 1
    return tokens, mask


def generate(model, tokens, mask=None):
    mask = torch.ones_like(tokens) if mask is None else mask
    return model.generate(tokens, attention_mask=mask, max_new_tokens=COUNT, do_sample=False)[:, -COUNT:]


@pytest.mark.parametrize("options", [{}, {"tile": 16}, {"num_splits": 3}], ids=str)
def test_the_tokens_of_float32_are_those_of_eager_and_the_kernel_decodes(options, taken):
    model = tiny()
    model.set_attn_implementation("eager")
    expected = generate(model, prompt(70))
    register(backend="triton", **options)
    model.set_attn_implementation("fdmath")
    assert torch.equal(generate(model, prompt(70)), expected)
    assert sum("split_kv" in name for name in taken) >= SIZE["num_hidden_layers"] * (COUNT - 1)


def test_a_batch_padded_on_the_left_is_each_prompt_alone(taken):
    """In float32: in 16 bits the model's other products round by the batch, and tokens may follow them."""
    register(backend="triton", tile=16)
    model = tiny()
    model.set_attn_implementation("fdmath")
    together = generate(model, *padded(LENGTHS, max(LENGTHS)))
    assert sum("split_kv" in name for name in taken) >= SIZE["num_hidden_layers"] * (COUNT - 1)
    for row, length in enumerate(LENGTHS):
        assert torch.equal(together[row], generate(model, prompt(length))[0])


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
@pytest.mark.parametrize("queries", [1, 4, 70])
def test_padding_changes_no_bit_whatever_it_holds(queries, dtype):
    torch.manual_seed(1)
    q, k, v = (torch.randn(3, heads, n, 64, device="cuda", dtype=getattr(torch, dtype))
               for heads, n in ((4, queries), (2, 70), (2, 70)))
    _, tokens = padded(LENGTHS, 70)
    mask = visible_keys(3, queries, 70, 70 - queries, attention_mask=tokens.bool(), device=q.device)
    assert mask.starts.tolist() == [67, 0, 29]
    for row, length in enumerate(LENGTHS):
        k[row, :, :70 - length] = v[row, :, :70 - length] = torch.nan
    options = {"scaling": 0.3, "options": {"backend": "triton"} | ({"tile": 16} if queries <= 16 else {})}
    together, _ = attention_forward(None, q, k, v, mask, **options)
    for row, length in enumerate(LENGTHS):
        mine = min(length, queries)
        alone, _ = attention_forward(None, q[row:row + 1, :, queries - mine:], k[row:row + 1, :, 70 - length:],
                                     v[row:row + 1, :, 70 - length:], None, **options)
        assert torch.equal(together[row, queries - mine:], alone[0])
        assert torch.equal(together[row, :queries - mine], torch.zeros_like(together[row, :queries - mine]))
