"""A whole step and Amdahl's law, as exact rationals, against the figures of the claims ledger."""

from fractions import Fraction

import pytest

from fdmath.cost.hardware import A100
from fdmath.cost.models import CODELLAMA_34B, MODELS
from fdmath.cost.step import cache_share, share_for, share_left, step_floor_seconds, tokens_that_outweigh, whole_gain


def test_a_step_reads_the_weights_once_and_every_cache():
    floor = step_floor_seconds(CODELLAMA_34B, 4096, A100, batch=2)
    assert floor * A100.bandwidth == CODELLAMA_34B.weight_bytes() + 2 * CODELLAMA_34B.cache_bytes(4096)
    assert step_floor_seconds(CODELLAMA_34B, 0, A100) * A100.bandwidth == CODELLAMA_34B.weight_bytes()


def test_where_the_cache_outweighs_the_weights():
    assert round(tokens_that_outweigh(CODELLAMA_34B) / 1000) == 343  # B70
    for model in MODELS.values():
        tokens = tokens_that_outweigh(model)
        assert model.cache_bytes(tokens - 1) <= model.weight_bytes() < model.cache_bytes(tokens)
        assert cache_share(model, tokens - 1) <= Fraction(1, 2) < cache_share(model, tokens)


def test_the_cache_at_64k_beside_the_weights():
    ratio = Fraction(CODELLAMA_34B.cache_bytes(65536), CODELLAMA_34B.weight_bytes())
    assert f"{float(ratio):.2f}" == "0.19"  # B71
    assert cache_share(CODELLAMA_34B, 65536) == ratio / (1 + ratio)


def test_amdahl_between_50_times_and_8_times():
    share = share_for(8, 50)
    assert f"{float(share):.3f}" == "0.893" and whole_gain(share, 50) == 8  # B89
    assert round(100 * share_left(share, 50)) == 14  # B90
    assert share_for(8, 10**9) > Fraction(7, 8) > share_for(8, 10**9) - Fraction(1, 10**6)  # B89: at least 87.5 %


def test_amdahl_s_law_at_its_ends():
    assert whole_gain(0, 50) == 1 and whole_gain(1, 50) == 50 and share_for(50, 50) == 1
    assert share_left(1, 50) == 1 and share_left(0, 50) == 0
    new = 1 - Fraction(1, 3) + Fraction(1, 3) / 4
    assert whole_gain(Fraction(1, 3), 4) == 1 / new and share_left(Fraction(1, 3), 4) == Fraction(1, 12) / new


@pytest.mark.parametrize("call, message", [
    (lambda: share_for(51, 50), "whole must be above 1 and at most gain; got 51 and 50"),
    (lambda: share_for(1, 50), "whole must be above 1"),
    (lambda: whole_gain(1.5, 50), "share must be from 0 to 1 and gain positive; got 1.5 and 50"),
    (lambda: share_left(0.5, 0), "share must be from 0 to 1 and gain positive"),
])
def test_what_amdahl_s_law_is_not_about_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()
