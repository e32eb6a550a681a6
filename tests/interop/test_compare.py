"""Three implementations side by side on a tiny model, and `fdmath model compare` on one that lies in a folder."""

import json
import math

import pytest

pytest.importorskip("torch", reason='a model needs the extra "model"')
pytest.importorskip("transformers", reason='a model needs the extra "model"')

import torch
import transformers

from fdmath.interop import compare as comparing
from fdmath.interop import compare_command
from fdmath.interop.fetch import cache_folder
from fdmath.interop.smollm2 import SMOLLM2, model_main
from fdmath.interop.transformers import Unsupported, register


@pytest.fixture(autouse=True)
def defaults():
    """The name "fdmath" as importing the module leaves it."""
    yield
    register()


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=50, initializer_range=0.5, attn_implementation="sdpa",
    )  # fmt: skip
    return transformers.LlamaForCausalLM(config).eval()


PROMPT = torch.arange(12)[None] * 7 % 50


def another(factor=None, number=None):
    """Nothing; "fdmath" is sdpa whose output is multiplied by a factor, or a number."""
    sdpa = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS["sdpa"]

    def wrong(*arguments, **options):
        o, _ = sdpa(*arguments, **options)
        return (o * factor if number is None else torch.full_like(o, number)), None

    transformers.AttentionInterface.register("fdmath", wrong)


def test_the_three_take_the_same_tokens(model):
    found = comparing.compare(model, PROMPT, 9)
    assert list(found.streams) == ["eager", "sdpa", "fdmath"] and found.context == 12
    tokens = {name: stream.tokens for name, stream in found.streams.items()}
    assert tokens["fdmath"] == tokens["sdpa"] == tokens["eager"] and len(tokens["eager"]) == 9
    expected = model.generate(PROMPT, attention_mask=torch.ones_like(PROMPT), max_new_tokens=9, do_sample=False)
    assert tokens["eager"] == expected[0, 12:].tolist()
    assert comparing.same([found]) and found.streams["fdmath"].compared == 9
    assert model.config._attn_implementation == "sdpa"


def test_the_first_other_token_is_told_with_its_margin(model):
    another(factor=-1.0)
    found = comparing.compare(model, PROMPT, 5)
    stream, reference = found.streams["fdmath"], found.streams["eager"]
    (first,) = stream.differences
    assert not comparing.same([found]) and stream.compared == first.step + 1
    assert first.reference == reference.tokens[first.step] != stream.tokens[first.step] == first.other
    assert stream.tokens[:first.step] == reference.tokens[:first.step]
    assert first.margin == first.reference_logits[0] - first.reference_logits[1] >= 0
    assert first.other_logits[1] >= first.other_logits[0]
    assert 0 < first.margin <= 2 * stream.largest
    assert f"margin {first.margin:.2e}" in comparing.text_of(found, str)


def test_given_tokens_every_step_is_compared(model):
    forced = torch.arange(6)[None]
    assert comparing.compare(model, PROMPT, 6, forced=forced).streams["fdmath"].compared == 6
    another(factor=-1.0)
    found = comparing.compare(model, PROMPT, 6, forced=forced)
    assert found.streams["fdmath"].compared == 6 and len(found.streams["fdmath"].differences) > 1
    with torch.no_grad():
        logits = model(torch.cat([PROMPT, forced], dim=1)).logits[0, 11:-1]
    assert found.streams["eager"].tokens == logits.argmax(-1).tolist()


def test_nan_is_another_token(model):
    another(number=math.nan)
    found = comparing.compare(model, PROMPT, 3)
    assert not comparing.same([found]) and math.isnan(found.streams["fdmath"].largest)


def test_times_cover_every_step_but_the_prompt_s(model):
    found = comparing.compare(model, PROMPT, 10)
    rows = comparing.times(found)
    assert [(a, b) for a, b, _ in rows] == [(13, 14), (15, 16), (17, 18), (19, 21)]
    assert all(seconds > 0 for *_, row in rows for seconds in row.values())
    assert comparing.times(comparing.compare(model, PROMPT, 1)) == []


@pytest.mark.parametrize("name", ["GPT2", "OPT"])
def test_the_cache_is_passed_by_its_name(name):
    """These two have other arguments in its place."""
    config = getattr(transformers, f"{name}Config")(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=32, word_embed_proj_dim=32, vocab_size=50)
    torch.manual_seed(0)
    kind = {"GPT2": transformers.GPT2LMHeadModel, "OPT": transformers.OPTForCausalLM}[name]
    assert comparing.same([comparing.compare(kind(config).eval(), PROMPT, 3)])


def test_a_model_that_keeps_its_own_attention_is_not_said_to_agree():
    bloom = transformers.BloomForCausalLM(transformers.BloomConfig(
        hidden_size=32, n_layer=1, n_head=4, vocab_size=50)).eval()
    with pytest.raises(Unsupported, match="does not take its attention from transformers' interface"):
        comparing.compare(bloom, PROMPT, 2)


@pytest.fixture
def in_place(model, monkeypatch):
    """The command's model is the tiny one, and a character is a token."""
    def tokenizer(text, return_tensors):
        return transformers.BatchEncoding({"input_ids": torch.tensor([[ord(c) % 50 for c in text]], dtype=torch.int64)})

    tokenizer.decode = str
    monkeypatch.setattr(compare_command, "load", lambda options, source: (model, tokenizer))


def test_the_command_says_same_and_writes_it(in_place, tmp_path, capsys):
    words = ["compare", "--prompt", "one", "--prompt", "another", "--tokens", "4", "--tile", "3", "--kind", "acc",
             "--order", "streams", "--json", str(tmp_path / "out.json")]
    assert model_main(words) == 0
    assert capsys.readouterr().out.count("fdmath: the same tokens as eager") == 2
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert (record["tile"], record["kind"], record["order"]) == (3, "acc", "streams")
    assert [row["context"] for row in record["rows"]] == [3, 7]
    assert len(record["rows"][0]["runs"]["fdmath"]["tokens"]) == 4


def test_the_command_says_differ(in_place, monkeypatch, capsys):
    monkeypatch.setattr(comparing, "use", lambda *_: another(factor=-1.0))
    assert model_main(["compare", "--tokens", "4"]) == 1
    assert "fdmath took another token than eager" in capsys.readouterr().err


def test_a_text_is_split_into_context_and_given_tokens(in_place, tmp_path, capsys):
    (tmp_path / "text.txt").write_text("a short text", encoding="utf-8")
    assert model_main(["compare", "--forced", str(tmp_path / "text.txt"), "--tokens", "4"]) == 0
    assert "4 tokens after 8, given the tokens of the text" in capsys.readouterr().out
    assert model_main(["compare", "--forced", str(tmp_path / "text.txt"), "--tokens", "12"]) == 2
    assert "leaves no context" in capsys.readouterr().err


COULD_NOT_RUN = {
    "no such model": (["--model", "no/such/folder/here"], "no/such/folder/here is no language model"),
    "no such cache": (["--cache", "nowhere"], "is not in nowhere"),
    "empty prompt": (["--prompt", ""], "a prompt has no token"),
    "long prompt": (["--prompt", 2048 * "x", "--tokens", "1"], "the model has 2048 positions"),
    "no such device": (["--device", "gpu0"], "gpu0"),
    "no kernel here": (["--backend", "triton", "--kind", "acc"], "backend 'triton' cannot run"),
}


@pytest.mark.parametrize(("words", "said"), COULD_NOT_RUN.values(), ids=COULD_NOT_RUN)
def test_what_is_not_there_could_not_run(words, said, tmp_path, monkeypatch, request, capsys):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.chdir(tmp_path)
    if "--prompt" in words:
        request.getfixturevalue("in_place")
    assert model_main(["compare", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--tile", "0"], ["--tile", "2", "--num-splits", "2"], ["--tokens", "-1"],
                                   ["--tile", "x"]])
def test_options_that_make_no_sense_are_refused(words):
    with pytest.raises(SystemExit) as left:
        model_main(["compare", *words])
    assert left.value.code == 2


@pytest.mark.filterwarnings("default")
def test_the_real_model_if_it_is_here(capsys):
    if not (cache_folder() / SMOLLM2.file_name).is_file():
        pytest.skip("SmolLM2 is not in the cache; python -m fdmath model fetch brings it")
    assert model_main(["compare", "--tokens", "3", "--num-splits", "3"]) == 0
    assert "fdmath: the same tokens as eager" in capsys.readouterr().out
