"""float32 multiplied in TF32: the probe sees it, a broken law is explained by it, and declared it is lawful."""

import math
from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from fdmath.verify import LAWS, Subject, verify
from fdmath.verify.backward import _lost_by_rounding
from fdmath.verify.cases import BlockCase, CallCase
from fdmath.verify.explain import explained, rounding_found
from fdmath.verify.judge import ask
from fdmath.verify.mutants.backward_passes import cleaned, summed, weights
from fdmath.verify.mutants.ways import bottom_right, interleaved
from fdmath.verify.probe import probe
from fdmath.verify.probing.caller import in_pieces
from fdmath.verify.probing.precision import to_format
from fdmath.verify.tf32 import EXACT, TF32, eleven_bits
from tests.verify.speakers import rounded, speaker

HOWS = ("rounded", "cut off")
SUMS = {"anchor", "v is 1", "lse bounds", "linearity", "gradient of o", "gradient of lse", "wide heads"}
"""Laws that factors of few bits break."""


def short(x, how):
    """float32 numbers in TF32, rounded to nearest or cut off; others as they are."""
    if x.dtype != np.float32:
        return x
    if how == "rounded":
        return rounded(x, "tf32").astype(np.float32)
    return (np.ascontiguousarray(x).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)


def product(a, b, how):
    """a @ b of factors in TF32."""
    return short(a, how) @ short(b, how)


def attention(q, k, v, causal, *, how):
    """(o, lse), both products in TF32."""
    seen = bottom_right(q, k, causal)
    _, _, q, k, v = cleaned(q, q[..., 0], q, k, v, seen)
    k, v = (interleaved(x, q.shape[1]) for x in (k, v))
    s = np.where(seen, product(q, np.swapaxes(k, -1, -2), how) * np.asarray(q.shape[-1]**-0.5, q.dtype), -np.inf)
    m = s.max(axis=-1, initial=-np.inf)
    p = np.exp(s - np.where(np.isneginf(m), 0, m)[..., None])
    l = p.sum(axis=-1)
    with np.errstate(divide="ignore"):
        return product(p, v, how) / np.where(l == 0, 1, l)[..., None], (m + np.log(l)).astype(q.dtype)


def backward(do, dlse, q, k, v, o, lse, causal, *, how):
    """(dq, dk, dv), all five products in TF32."""
    seen = bottom_right(q, k, causal)
    do, dlse, q, k, v = cleaned(do, dlse, q, k, v, seen)
    kv, scale = k.shape[1], np.asarray(1 / math.sqrt(q.shape[-1]), q.dtype)
    k, v = (interleaved(x, q.shape[1]) for x in (k, v))
    p = weights(scale * product(q, np.swapaxes(k, -1, -2), how), lse[..., None], seen)
    ds = p * (product(do, np.swapaxes(v, -1, -2), how) - (np.sum(do * o, axis=-1) - dlse)[..., None])
    dk, dv = scale * product(np.swapaxes(ds, -1, -2), q, how), product(np.swapaxes(p, -1, -2), do, how)
    return scale * product(ds, k, how), summed(dk, kv), summed(dv, kv)


def subject(how, **declared):
    return Subject("s", "attention", partial(attention, how=how), partial(backward, how=how), **declared)


def block(scores, v, how, sums_cut=False):
    """(o, lse) of a block whose P·v is in TF32; sums_cut: so is P where l sums it."""
    m = scores.max(axis=-1, initial=-np.inf)
    p = np.exp(scores - np.where(np.isneginf(m), 0, m)[:, None])
    l = (short(p, how) if sums_cut else p).sum(axis=-1)
    seen = np.where(np.any(scores > -np.inf, axis=0)[:, None], v, np.zeros_like(v))
    with np.errstate(divide="ignore"):
        return product(p, seen, how) / np.where(l == 0, 1, l)[:, None], m + np.log(l)


def broken(report):
    return {law for (law, _), cell in report.cells.items() if cell.verdict == "fail"}


@pytest.mark.parametrize("how", HOWS)
def test_it_is_lawful_where_it_is_declared_and_nowhere_else(how):
    assert broken(verify(subject(how), SUMS, cases=20)) == SUMS
    declared = verify(subject(how, input_precision="tf32"), cases=20)
    assert declared.exit_code == 0, declared.failures()
    assert broken(verify(subject(how, input_precision="ieee"), ["anchor", "gradient of o"], cases=20))
    assert not broken(verify(subject(how, dtypes=("float64",)), ["anchor", "gradient of o"], cases=5))


@pytest.mark.parametrize("how", HOWS)
def test_it_is_lawful_in_a_block_where_it_is_declared(how):
    mine = Subject("s", "block", partial(block, how=how))
    assert "v is 1" in broken(verify(mine, cases=20))
    declared = verify(replace(mine, input_precision="tf32"), cases=20)
    assert declared.exit_code == 0, declared.failures()


def test_bfloat16_is_not_lawful_where_tf32_is_declared(monkeypatch):
    monkeypatch.setitem(globals(), "short", lambda x, how: to_format(x, "bfloat16").astype(x.dtype))
    declared = subject("rounded", input_precision="tf32", dtypes=("float32",))
    asked = {"anchor", "lse bounds"}
    assert broken(verify(declared, asked, cases=20)) == asked
    assert [t.name for t in probe(declared).contradictions()] == ["scores"]


def test_weights_in_bfloat16_are_not_lawful_where_tf32_is_declared():
    declared = Subject("s", "attention", speaker(p="bfloat16", first=True), input_precision="tf32", dtypes=("float32",))
    assert "v is 1" in broken(verify(declared, ["v is 1"], cases=50))


def test_a_score_of_any_size_moves_lse_by_its_own_error_and_o_within_the_values():
    q, v = np.array([[[[2e4, 1.0]]]], np.float32), np.array([[[[3.0], [5.0]]]], np.float32)
    for k, most in (([1.0, 0.0], 2e4 * 2.0**-9), ([-1.0, -1.0], 2e4 * 2.0**-9)):
        case = CallCase(q, np.array([[[[k[0], 0.0], [k[1], 0.0]]]], np.float32), v)
        for claims in ((), ("T3",)):
            budget = case.budget(replace(subject("rounded"), scale=1.0, input_precision="tf32", claims=claims))
            assert most <= budget.lse <= 1.01 * most and budget.o <= 2.1


def test_declared_it_widens_the_budget_of_float32_alone():
    mine, declared = subject("rounded"), subject("rounded", input_precision="tf32")
    for dtype, wider in (("float32", True), ("float64", False), ("float16", False)):
        assert mine.factors(dtype) == EXACT and declared.factors(dtype) == (TF32 if wider else EXACT)
    with pytest.raises(ValueError, match="input_precision must be one of None, ieee, tf32; got 'tf16'"):
        subject("rounded", input_precision="tf16")


@pytest.mark.parametrize("how", HOWS)
def test_a_broken_law_is_explained_by_it(how):
    mine = subject(how)
    cells = {name: ask(LAWS[name], mine, 20) for name in ("anchor", "v is 1", "lse bounds", "gradient of o")}
    assert all(cell.verdict == "fail" and cell.dtype == "float32" for cell in cells.values())
    for cell in explained(mine, cells, cases=20).values():
        assert cell.explained == ("as if the factors of float32's products had eleven bits, as in TF32 (the law holds "
                                  "with the declaration input_precision='tf32')",)


def test_something_coarser_beside_it_is_said_and_it_alone_is_not():
    mine = Subject("s", "attention", speaker(scores="tf32", stats="bfloat16"), dtypes=("float32",))
    told = explained(mine, {"anchor": ask(LAWS["anchor"], mine, 20)}, cases=20)["anchor"].explained
    assert told and all("m, l and lse were rounded to bfloat16" in text for text in told)
    both = "as if the factors of float32's products had eleven bits, as in TF32, and P were rounded to bfloat16"
    found = rounding_found(replace(mine, fn=speaker(scores="tf32", p="bfloat16")))
    assert [d.declared for d in found] == [{"p_dtype": "bfloat16"}, {"input_precision": "tf32", "p_dtype": "bfloat16"}]
    assert str(found[1]).startswith(f"{both} (the law holds with the declaration input_precision='tf32', p_dtype=")
    assert found[1].of(mine) == replace(mine, input_precision="tf32", p_dtype="bfloat16")


@pytest.mark.parametrize("how", HOWS)
def test_the_probe_sees_it_in_products_alone_and_holds_a_declaration_against_it(how):
    found = probe(subject(how, input_precision="ieee", stats_dtype="float32"))
    assert [found[name].value for name in ("scores", "p_dtype", "stats_dtype")] == ["tf32", "tf32", "float32"]
    assert [t.name for t in found.contradictions()] == ["scores"]
    assert not probe(subject(how, input_precision="tf32")).contradictions()
    assert not probe(subject(how, input_precision="ieee"), told={"log_base"}).contradictions()
    assert probe(subject(how, input_precision="ieee"), told={"input_precision"}).contradictions()


def test_pieces_of_a_score_have_eight_bits_and_sum_to_it_in_any_order():
    rng = np.random.default_rng(4)
    x = np.concatenate([rng.normal(size=200) * 2.0 ** rng.integers(-40, 40, 200), [0.0, -0.0, 1.0, -np.inf, np.inf]])
    pieces = in_pieces(x)
    assert pieces.shape == (205, 7) and np.array_equal(pieces.sum(axis=-1), x)
    np.testing.assert_array_equal(to_format(pieces, "bfloat16"), pieces)
    single = in_pieces(x.astype(np.float32).astype(np.float64))
    for order in (slice(None), slice(None, None, -1)):
        total = np.zeros(len(x), np.float32)
        for piece in single.T[order]:
            total = total + piece.astype(np.float32)
        np.testing.assert_array_equal(total, x.astype(np.float32))
    assert not single[:, 3:].any()  # float32 needs three


# -- each term of the bounds --------------------------------------------------------------------------------


def test_the_budget_is_that_of_a_weight_and_a_value_cut_as_far_as_can_be():
    x = np.float32((2**11 + 2 - 2.0**-10) / 2**12)  # half of 1 + 2⁻¹⁰ − 2⁻²², of which eleven bits are 1/2
    assert short(np.array([x]), "cut off") == 0.5
    case = BlockCase(np.array([[0, math.log(x)]], np.float32), np.array([[0], [2 * x]], np.float32))
    mine = Subject("s", "block", partial(block, how="cut off"), input_precision="tf32", dtypes=("float32",))
    found = case.certified().judge(case.run(mine), case.budget(mine))
    assert found.verdict == "pass" and 0.99 <= found.ratio


def test_lse_may_be_that_of_cut_weights_and_no_more():
    scores = np.array([[0, math.log(2**11 + 1.999) - 12 * math.log(2)]], np.float32)
    case = BlockCase(scores, np.ones((2, 1), np.float32))
    mine = Subject("s", "block", partial(block, how="cut off", sums_cut=True), input_precision="tf32")
    found = case.certified().judge(case.run(mine), case.budget(mine))
    assert found.verdict == "pass" and found.ratio > 0.3
    assert case.certified().judge(case.run(mine), case.budget(replace(mine, input_precision=None))).verdict == "fail"


def test_weights_below_the_normal_range_lose_all_that_they_have():
    case = BlockCase(np.array([[0, -95.0]], np.float32), np.array([[0], [1e30]], np.float32))
    mine = Subject("s", "block", partial(block, how="cut off"), input_precision="tf32", claims=("T3",))
    assert not case.run(mine).o.any() and case.certified().judge(case.run(mine), case.budget(mine)).verdict == "pass"


def test_q_that_is_scaled_before_it_is_cut_loses_what_it_has_below_the_normal_range():
    q, k = (np.array([[[[x, 0]]]], np.float32) for x in (1.99 * 2.0**-75, 1.99 * 2.0**127))
    case = CallCase(q, k, np.ones((1, 1, 1, 1), np.float32))

    def fn(q, k, v, causal):
        s = product(q * np.float32(2.0**-60), np.swapaxes(k, -1, -2), "cut off")
        return np.ones_like(s), s[..., 0]

    mine = Subject("s", "attention", fn, scale=2.0**-60, input_precision="tf32")
    found = case.certified(mine).judge(case.run(mine), case.budget(mine))
    assert found.verdict == "pass" and found.ratio > 0.3


def differentiated(do, dlse, q, k, v, cut=""):
    """(dq, dk, dv) of one head without a mask in float64, the factor that `cut` names cut off to TF32."""
    def factor(x, name):
        return eleven_bits(x)[1] if name == cut else x

    s = q @ k.swapaxes(-1, -2)
    p = np.exp(s - s.max(-1, keepdims=True))
    p = p / p.sum(-1, keepdims=True)
    slope = np.sum(do * (p @ v), axis=-1) - dlse
    ds = p * (factor(do, "do of ds") @ factor(v, "v").swapaxes(-1, -2) - slope[..., None])
    return (factor(ds, "ds of dq") @ factor(k, "k"), factor(ds, "ds of dk").swapaxes(-1, -2) @ factor(q, "q"),
            factor(p, "p").swapaxes(-1, -2) @ factor(do, "do of dv"))


FACTORS = [  # factor, gradient, whether do is 0 (ds is then P·dlse), whether all v are alike (ds is then P·dlse too)
    ("k", 0, True, False), ("q", 1, True, False), ("do of dv", 2, False, False),
    ("ds of dq", 0, True, False), ("ds of dk", 1, True, False), ("p", 2, False, False),
    ("do of ds", 0, False, True), ("v", 1, False, True),
]  # fmt: skip


@pytest.mark.parametrize(("name", "which", "no_do", "alike"), FACTORS, ids=[f[0] for f in FACTORS])
def test_what_one_factor_loses_is_bounded_by_its_own_term(name, which, no_do, alike):
    rng = np.random.default_rng(8)
    q, k, v, do = (rng.normal(size=(1, 1, 6, n)) for n in (4, 4, 3, 3))
    v = np.broadcast_to(v[:, :, :1], v.shape) if alike else v
    do, dlse = do * (not no_do), rng.normal(size=(1, 1, 6)) * (not alike)
    right, got = differentiated(do, dlse, q, k, v), differentiated(do, dlse, q, k, v, name)
    error = np.abs(got[which] - right[which])
    of_weights = TF32 if name in ("ds of dq", "ds of dk", "p") else EXACT
    of_factors = EXACT if of_weights is TF32 else TF32
    bound = _lost_by_rounding(do, dlse, q, k, v, of_weights, of_factors, scale=1.0, mask=np.ones((1, 1, 6, 6), bool))
    assert np.all(error <= bound[which]) and np.max(error / bound[which]) > 0.04


def test_eleven_bits_are_those_of_the_hardware():
    rng = np.random.default_rng(5)
    x = (rng.normal(size=2000) * 2.0 ** rng.integers(-126, 120, 2000)).astype(np.float32)
    x = np.concatenate([x, np.float32([0, 1e-44, -1e-40, 2.0**-136, 1 + 2.0**-11, np.inf])])
    near, below = eleven_bits(x.astype(np.float64))
    np.testing.assert_array_equal(near, rounded(x, "tf32"))
    np.testing.assert_array_equal(below, short(x, "cut off").astype(np.float64))
