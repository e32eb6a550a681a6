"""Models counted from their sizes, against the parameters that their makers state."""

from fdmath.cost.models import CODELLAMA_34B, LLAMA_3_8B, MODELS, SMOLLM2_135M


def test_parameters_are_counted_from_the_sizes():
    assert CODELLAMA_34B.parameters == 33_743_970_304
    assert LLAMA_3_8B.parameters == 8_030_261_248
    assert SMOLLM2_135M.parameters == 134_515_008


def test_a_token_s_cache_and_the_weights():
    assert CODELLAMA_34B.cache_bytes(1) == 196_608  # B70
    assert round(CODELLAMA_34B.weight_bytes() / 1e9, 1) == 67.5  # B70 counts 67.4
    assert LLAMA_3_8B.cache_bytes(1) == 131_072 and SMOLLM2_135M.cache_bytes(1) == 23_040
    assert LLAMA_3_8B.cache_bytes(10, batch=3, number=1) == 15 * LLAMA_3_8B.cache_bytes(1)


def test_every_model_says_where_its_sizes_stand():
    for name, model in MODELS.items():
        assert model.name == name and "config.json" in model.source and model.q_heads % model.kv_heads == 0
