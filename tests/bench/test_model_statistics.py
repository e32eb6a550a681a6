"""What a model loses by statistics in 16 bits: the ways compute attention, and departures are counted as they are."""

import pytest

pytest.importorskip("torch", reason='a model needs the extra "model"')
pytest.importorskip("transformers", reason='a model needs the extra "model"')

import numpy as np
import torch
import transformers

import fdmath
from fdmath.bench import headline
from fdmath.bench import model_statistics as ms

NO_STATISTICS_LOST = [ms.Way(form, stats="float32", tile=5, merging=merging)
                      for form in headline.FORMS for merging in (ms.CHAIN, ms.AT_ONCE)]


@pytest.fixture(scope="module")
def model():
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        head_dim=8, vocab_size=50, initializer_range=0.5, eos_token_id=None, bos_token_id=None, pad_token_id=0)
    return transformers.LlamaForCausalLM(config).eval()


@pytest.fixture(scope="module")
def ids():
    return torch.arange(70)[None] * 7 % 50


@pytest.fixture(scope="module")
def inputs():
    rng = np.random.default_rng(3)
    shapes = (1, 4, 20, 8), (1, 2, 20, 8), (1, 2, 20, 8)
    return [torch.tensor(rng.standard_normal(shape).astype(np.float32)) for shape in shapes]


def departed(way, inputs):
    """The largest error of o by a way, in u·Σp|v| of float32, and of bfloat16."""
    arrays = [x.numpy() for x in inputs]
    right = fdmath.certified_attention(*arrays, causal=True)
    error = right.errors((ms.merged_by(way, *inputs).o.numpy(), right.lse_mid))[0] / right.scale_o
    return float(np.max(error)) * 2.0**24, float(np.max(error)) * 2.0**8


@pytest.mark.parametrize("way", NO_STATISTICS_LOST, ids=lambda way: way.name)
def test_a_way_with_float32_statistics_is_attention(way, inputs):
    assert 0 < departed(way, inputs)[0] < 64  # four tiles, |lse| < 8: T4 allows hundreds


@pytest.mark.parametrize("form", headline.FORMS)
def test_formats_are_rounded_to_and_16_bits_of_output_lose_more(form, inputs):
    way = ms.Way(form, tile=5)
    assert departed(way, inputs)[0] > 1000
    assert departed(ms.Way(form, stats="float32", payload="bfloat16", tile=5), inputs)[0] > 1000
    assert departed(way, inputs)[1] < 64


def test_the_forms_are_not_one_another(inputs):
    found = {form: ms.merged_by(ms.Way(form, tile=5), *inputs).o for form in headline.FORMS}
    printed, convex, triple = found.values()
    assert not torch.equal(printed, convex) and not torch.equal(convex, triple)


def test_a_way_is_an_implementation_of_a_model_that_takes_no_padding(model, ids):
    model.set_attn_implementation(ms.use(ms.Way(ms.TRIPLE, stats="float32", tile=16)))
    padded = torch.ones_like(ids)
    padded[0, :3] = 0
    with torch.no_grad(), pytest.raises(ValueError, match="without padding"):
        model(ids, padded)


def test_reading_compares_every_way_with_eager_at_every_place(model, ids):
    before = model.config._attn_implementation
    ways = (ms.Way(ms.TRIPLE, stats="float32"), ms.Way(ms.PRINTED))
    sdpa, ours, triple, printed, low = ms.reading(model, ids, ways)
    assert [row["tokens"] for row in (sdpa, low)] == [70, 70]
    assert sum(part["tokens"] for part in sdpa["ranges"]) == 70
    largest = [max(part["largest"] for part in row["ranges"]) for row in (sdpa, ours, triple, printed, low)]
    assert 0 < max(largest[:3]) < min(largest[3:]) / 16
    assert triple["form"] == ms.TRIPLE and printed["stats"] == "bfloat16"
    assert model.config._attn_implementation == before and model.dtype == torch.float32


def test_a_departure_counts_other_tokens_and_the_places_at_risk():
    right = torch.tensor([[0.0, 3, 0], [0, 1, 0.5], [0, 0, 4]])
    got = torch.tensor([[0.0, 1.25, 0], [0, 0.5, 0.75], [0, 0, 4]])
    found = ms.departure(right, got, torch.tensor([[1, 1, 2]]))
    assert (found["tokens"], found["other"], found["at_risk"]) == (3, 1, 2)
    assert found["differences"] == [{"context": 2, "reference": 1, "other": 2, "apart": 0.5, "margin": 0.5}]
    loss = [-np.log(np.exp(x) / np.sum(np.exp(row))) for x, row in ((1.25, [0, 1.25, 0]), (0.75, [0, 0.5, 0.75]))]
    assert found["nats"] == pytest.approx(np.mean(loss), rel=2.0**-20)  # a few roundings of float32
    assert found["ranges"] == [{"from": 1, "tokens": 3, "median": 0.5, "largest": 1.75, "other": 1}]


def test_nan_logits_count_as_another_token():
    right = torch.tensor([[0.0, 3]])
    found = ms.departure(right, right * torch.nan, torch.tensor([[1]]))
    assert (found["other"], found["at_risk"]) == (1, 1)


def test_answers_tell_where_a_way_departs(model, ids):
    ways = (ms.Way(ms.TRIPLE, stats="float32", tile=16), ms.Way(ms.PRINTED, payload="bfloat16", tile=4))
    eager, triple, printed = ms.answers(model, [ids], 5, ways)
    assert triple["same"] and triple["ids"] == eager["ids"] and len(eager["ids"]) == 5
    assert triple["largest_difference"] < printed["largest_difference"] / 16
    assert printed["same"] == (printed["ids"] == eager["ids"])


def test_what_is_at_stake_is_the_first_order_of_storing_once():
    scores = np.float32([[0, 0, np.log(2), np.log(4)]])
    case = headline.certified(scores, np.float32([[2], [6], [0], [3]]))
    found = ms.stakes(case, tile=2)
    expected = {"triple_stake": 3 / 4, "pair_stake": (np.log(2) * 3 / 8 + np.log(6) * 3 / 8)}
    assert found == {name: pytest.approx(x / 2.5, rel=2.0**-20) for name, x in expected.items()}  # float32 scores


def test_heads_are_measured_one_by_one(model, ids):
    rows = ms.heads(model, ids)
    assert [(row["layer"], row["head"]) for row in rows] == [(i, j) for i in range(2) for j in range(4)]
    assert all(row[form]["ratio"] <= 1 for row in rows for form in headline.FORMS)
    assert all(0 <= row["sink"] <= 1 and row["pair_stake"] > 0 for row in rows)
