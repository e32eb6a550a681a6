"""Conventions for "no keys": what each returns, how each merge fails, and what the adapter repairs."""

import math
from fractions import Fraction

import numpy as np
import pytest

from fdmath.algebra.merge import merge
from fdmath.algebra.rounding import unit_roundoff
from fdmath.algebra.state import LSEState
from fdmath.verify import verify
from fdmath.verify.conventions import (
    CONVENTIONS,
    accumulating_merge,
    clamped_merge,
    fa2_merge,
    flashinfer_merge,
    flashmla_merge,
    logaddexp_merge,
    returned,
    shifted_merge,
    sigmoid_merge,
    softplus_merge,
    split_combine,
    subject,
    to_ours,
    vllm_merge,
    vllm_v2_reduce,
)

INF, NAN = math.inf, math.nan
U = unit_roundoff("float32")
PAIRS = {
    "attention-gym": shifted_merge, "ring": sigmoid_merge, "vLLM": vllm_merge, "clamp": clamped_merge,
    "FlashAttention-2": fa2_merge, "FlashMLA": flashmla_merge, "fdmath": CONVENTIONS["fdmath"].merge,
    "GPU MODE": softplus_merge, "logaddexp": logaddexp_merge,
}


def side(o, lse):
    return np.float32([[o]]), np.float32([lse])


def merged(fn, a, b):
    with np.errstate(all="ignore"):
        o, lse = fn(*side(*a), *side(*b))
    return o.item(), lse.item()


def of(name, scores, v):
    return returned(CONVENTIONS[name], scores, v)


@pytest.mark.parametrize("name", [name for name, c in CONVENTIONS.items() if c.finish])
def test_every_kernel_is_right_on_the_pencil_example(name):
    convention = CONVENTIONS[name]
    o, lse = returned(convention, [s * math.log(2) for s in (0, 0, 1, 2)], [2, 6, 0, 3])
    paid = 1e-6 if name.startswith("vLLM") else 0  # vLLM's own epsilon: l ≥ 1, so at most this share of o
    assert abs(o - 2.5) <= 2.5 * (64 * U + paid)  # 64 > 4 keys × (exp, product, sum, κ) roundings of positive terms
    if lse is not None:
        assert abs(lse * math.log(convention.log_base) - math.log(8)) <= 64 * U * math.log(8)  # as above


def test_every_convention_names_its_source_and_enough_of_them_there_are():
    assert len(CONVENTIONS) >= 12
    assert all(c.source and name == c.name for name, c in CONVENTIONS.items())


@pytest.mark.parametrize("name, nothing, hidden", [
    ("fdmath", (0, -INF), (0, -INF)),
    ("FlashAttention-2", (0, INF), (0, INF)),
    ("FlashMLA decode", (0, INF), (0, INF)),
    ("FlashMLA sparse prefill, 2025-09", (0, -INF), (0, -INF)),
    ("FlashInfer merge_state", (0, -INF), (None, None)),
    ("FlashInfer merge_states, Triton", (0, -5e4), (None, None)),
    ("vLLM PagedAttention v2", (0, None), (None, None)),
    ("PyTorch CPU flash", (0, 0), (0, 0)),
    ("Triton tutorial 06", (0, -INF), (4, -999999)),
    ("JAX Pallas decode", (0, -INF), (4, float(np.float32(-0.7 * np.finfo(np.float32).max)))),
    ("attention-gym", (None, None), (None, None)),
])
def test_what_is_returned_without_keys_and_with_hidden_ones(name, nothing, hidden):
    assert of(name, [], []) == nothing
    assert of(name, [-INF, -INF], [2, 6]) == hidden


def test_the_document_with_a_guarded_tile_returns_the_logarithm_of_its_epsilon():
    o, lse = of("document A, 3.2.2, guarded", [-INF], [5])
    assert o == 0 and lse == float(np.log(np.float32(1e-12)))


@pytest.mark.parametrize("name", PAIRS)
def test_the_merges_are_right_where_both_sides_have_keys(name):
    o, lse = merged(PAIRS[name], (0, 0), (4, math.log(3)))
    bound = 32 * U  # each is fewer than 32 roundings of numbers below 4, weights at least 1/4
    assert abs(o - 3) <= 4 * bound and abs(lse - math.log(4)) <= 2 * bound


@pytest.mark.parametrize("fn", [flashinfer_merge, accumulating_merge])
def test_flashinfers_merges_speak_base_2(fn):
    assert merged(fn, (4, 1), (0, 1)) == (2, 2)


def test_the_unguarded_merges_make_nan_of_two_empty_sides():
    for fn in shifted_merge, sigmoid_merge, vllm_merge, flashinfer_merge, softplus_merge:
        assert all(map(math.isnan, merged(fn, (0, -INF), (0, -INF))))
    o, lse = merged(logaddexp_merge, (0, -INF), (0, -INF))
    assert math.isnan(o) and lse == -INF  # the library's function knows the case, the weights do not


def test_the_softplus_form_overflows_where_the_second_side_is_far_above():
    o, lse = merged(softplus_merge, (1, 0), (7, 200))
    assert lse == INF and o == 0
    assert merged(softplus_merge, (1, 200), (7, 0)) == merged(logaddexp_merge, (7, 0), (1, 200)) == (1, 200)
    assert math.isnan(merged(softplus_merge, (0, -INF), (7, 0))[1])
    assert merged(logaddexp_merge, (0, -INF), (7, 0)) == merged(softplus_merge, (7, 0), (0, -INF)) == (7, 0)


def test_which_empty_side_the_sigmoid_form_bears():
    assert merged(sigmoid_merge, (7, 0), (0, -INF)) == (7, 0)
    o, lse = merged(sigmoid_merge, (0, -INF), (7, 0))
    assert o == 7 and math.isnan(lse)


@pytest.mark.parametrize("name, deep, wrong", [
    ("clamp to -1e4", -2e4, 0.5),  # the real part is lifted to the stand-in, so the two are equal
    ("FlashInfer merge_states, Triton", -6e4, 0),
])
def test_a_finite_stand_in_takes_part_against_a_deep_part(name, deep, wrong):
    convention = CONVENTIONS[name]
    o, lse = merged(convention.merge, (0, convention.empty), (1, deep))
    assert o == wrong and convention.empty <= lse <= convention.empty + 1
    assert merged(convention.merge, (0, convention.empty), (1, 0)) == (1, 0)


def test_the_combines_take_empty_parts_and_cannot_take_what_they_return():
    for fn in fa2_merge, flashmla_merge:
        assert merged(fn, (0, -INF), (7, 0)) == (7, 0)
        assert merged(fn, (0, -INF), (0, -INF)) == (0, INF)
        o, lse = merged(fn, (0, INF), (7, 0))
        assert math.isnan(o) and lse == INF


def test_a_weight_of_zero_is_skipped_or_multiplied():
    with np.errstate(all="ignore"):
        os, lses = np.float32([[[NAN]], [[7]]]), np.float32([[-INF], [0]])
        assert split_combine(os, lses, 2, skips_zero=True)[0].item() == 7
        assert math.isnan(split_combine(os, lses, 2)[0].item())
    assert merged(flashmla_merge, (NAN, -INF), (7, 0))[0] == 7
    assert math.isnan(merged(fa2_merge, (NAN, -INF), (7, 0))[0])


def test_a_nan_score_is_reported_as_an_empty_row_whose_o_is_nan():
    o, lse = merged(fa2_merge, (1, NAN), (7, 0))
    assert math.isnan(o) and lse == INF


def test_vllms_epsilon_costs_a_millionth_of_a_lone_key():
    one, nothing = np.ones(1), np.array([-INF])
    m, l, o = vllm_v2_reduce(0 * one, one, one[None], nothing, 0 * one, 0 * one[None])
    assert (m, l) == (0, 1)
    exact = 1 / (1 + Fraction(1e-6))
    assert abs(Fraction(o.item()) - exact) <= 4 * Fraction(2) ** -53  # four roundings in float64
    assert exact < 1


@pytest.mark.parametrize("name", [name for name, c in CONVENTIONS.items() if c.finish and not name.startswith("vLLM")])
def test_the_adapter_makes_neutral_what_a_kernel_returns_for_a_hidden_row(name):
    convention = CONVENTIONS[name]
    o, lse = returned(convention, [-INF], [5])
    if lse is None:
        o, lse = returned(convention, [], [])
    state = to_ours(convention, *side(o, lse), sees=np.array([False]) if convention.needs_mask else None)
    assert state.o.item() == 0 and state.lse.item() == -INF
    key = LSEState(*side(7, -3e4))
    both = merge(state, key)
    assert both.o.item() == 7 and both.lse.item() == -3e4


def test_the_adapter_leaves_rows_with_keys_and_turns_base_2_into_natural():
    o, lse = to_ours(CONVENTIONS["FlashInfer merge_state"], np.float32([[4], [0]]), np.float32([1, -INF]))
    assert o.tolist() == [[4], [0]] and lse.tolist() == [float(np.float32(math.log(2))), -INF]
    assert lse.dtype == o.dtype == np.float32
    o, lse = to_ours(CONVENTIONS["FlashAttention-2"], np.float64([[4], [NAN]]), np.float64([5, INF]))
    assert o.tolist() == [[4], [0]] and lse.tolist() == [5, -INF]


def test_what_lse_cannot_tell_is_asked_of_the_mask():
    cpu = CONVENTIONS["PyTorch CPU flash"]
    assert returned(cpu, [0], [0]) == returned(cpu, [-INF], [5]) == (0, 0)
    with pytest.raises(ValueError, match="no value of lse tells an empty row; give sees, from the mask"):
        to_ours(cpu, *side(0, 0))
    state = to_ours(cpu, np.float32([[0], [0]]), np.float32([0, 0]), sees=np.array([True, False]))
    assert state.lse.tolist() == [0, -INF]


COLLISIONS = {"PyTorch CPU flash": (0, 0), "Triton tutorial 06": (-1e6 * math.log(2), 5), "JAX Pallas decode": (
    CONVENTIONS["JAX Pallas decode"].empty, 5), "FlashInfer merge_states, Triton": (-6e4 * math.log(2), 7),
    "document A, 3.2.2, guarded": (float(np.log(np.float32(1e-12))), 0)}


@pytest.mark.parametrize("name", [name for name, c in CONVENTIONS.items() if c.finish and math.isfinite(c.empty)])
def test_a_finite_mark_is_returned_by_a_row_with_a_key_too_so_the_mask_is_asked(name):
    convention, (score, value) = CONVENTIONS[name], COLLISIONS[name]
    none = returned(convention, [], []) if convention.hidden is None else returned(convention, [-INF], [5])
    assert returned(convention, [score], [value]) == none
    with pytest.raises(ValueError, match="give sees, from the mask"):
        to_ours(convention, *side(*none))


def test_a_deep_row_with_a_key_passes_the_adapter_with_the_mask():
    tutorial = CONVENTIONS["Triton tutorial 06"]
    deep = returned(tutorial, [-6e5 * math.log(2)], [7])
    assert deep == (7, -6e5)
    state = to_ours(tutorial, *side(*deep), sees=np.array([True]))
    assert state.o.item() == 7 and state.lse.item() == float(np.float32(-6e5) * math.log(2))


def test_a_row_that_sees_keys_and_is_marked_empty_becomes_nan():
    convention = CONVENTIONS["FlashAttention-2"]
    state = to_ours(convention, np.float32([[NAN], [NAN]]), np.float32([INF, INF]), sees=np.array([True, False]))
    assert np.isnan(state.o[0, 0]) and np.isnan(state.lse[0])
    assert state.o[1, 0] == 0 and state.lse[1] == -INF


def test_an_output_without_lse_is_refused():
    with pytest.raises(ValueError, match="vLLM PagedAttention v2 returns no lse"):
        to_ours(CONVENTIONS["vLLM PagedAttention v2"], np.zeros((1, 1)), None)


@pytest.mark.parametrize("name, laws", [
    ("FlashAttention-2", {"left identity": "fail", "empty": "pass"}),
    ("attention-gym", {"left identity": "fail", "empty": "fail", "v is 1": "pass"}),
    ("clamp to -1e4", {"left identity": "fail", "empty": "fail"}),
    ("vLLM PagedAttention v2", {"empty": "fail", "v is 1": "fail"}),
    ("PyTorch CPU flash", {"empty": "fail", "v is 1": "pass"}),
    ("fdmath", {"left identity": "pass", "right identity": "pass", "empty": "pass", "partition independence": "pass"}),
])
def test_the_laws_name_the_failure(name, laws):
    report = verify(subject(CONVENTIONS[name]), list(laws), cases=20)
    assert {law: cell.verdict for (law, _), cell in report.cells.items()} == laws


@pytest.mark.parametrize("sees", [np.array([1]), np.array([[True]]), np.array([True, False])])
def test_a_mask_that_is_none_is_refused(sees):
    # ~1 is -2, which counts as true: integers would empty every row.
    with pytest.raises(ValueError, match=r"^sees must be boolean, of the shape of lse, \(1,\)"):
        to_ours(CONVENTIONS["Triton tutorial 06"], np.float32([[1]]), np.float32([0]), sees)
