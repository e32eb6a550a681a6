"""The contract probe: for each convention functions that differ in it alone are told apart, and nothing is guessed."""

import json
import math

import numpy as np
import pytest

from fdmath.algebra.state import LSEState
from fdmath.verify import Subject
from fdmath.verify.probe import Contract, Trait, answer, begin, probe
from fdmath.verify.probing.caller import choose
from fdmath.verify.subjects import own_subjects
from tests.verify.speakers import merger, speaker, summed

CALLS = ("partial", "decode", "attention")
FIRST = ("scale", "normalised", "log_base", "lse_layout")
BY = {"empty_o": ("causal", "empty", "no keys"), "empty": ("causal", "empty", "no keys")}


def contract(fn, role="attention", told=None, dtype=None, **declared):
    """What the probe finds of a function declared so."""
    return probe(Subject("mine", role, fn, **declared), dtype, told=told)


def found(name, fn, role="attention", **declared):
    """The value found of one trait, where no question is asked but the first ones and those that it is found by."""
    subject = Subject("mine", role, fn, **declared)

    def run(task, *args):
        if task == "begin":
            return begin(subject, *args)
        return answer(subject, *args) if args[-1] in (*FIRST, *BY.get(name, (name,))) else []

    return probe(subject, run=run)[name].value


def block(**options):
    return lambda scores, v: tuple(x.astype(scores.dtype) for x in summed(scores.astype(np.float64), v, **options))


def many(base=math.e):
    """A merge of many states: the merge of two, folded."""
    two = merger(base=base)

    def fn(o, lse):
        state = o[0], lse[0]
        for part in zip(o[1:], lse[1:], strict=True):
            state = two(*state, *part)
        return state

    return fn


# -- pairs of functions that differ in one convention -----------------------------------------------------


@pytest.mark.parametrize("base", [math.e, 2])
@pytest.mark.parametrize(("role", "make"), [
    *((role, lambda base, role=role: speaker(role, base=base)) for role in CALLS),
    ("block", lambda base: block(base=base)), ("merge", lambda base: merger(base=base)), ("merge_many", many)])
def test_the_base_of_lse(role, make, base):
    assert found("log_base", make(base), role) == base


def test_a_base_of_lse_that_is_not_that_of_the_weights_is_not_told():
    trait = contract(merger(base=math.e, weighed=2), "merge")["log_base"]
    assert trait.value is None and "neither" in trait.evidence


@pytest.mark.parametrize(("changed", "words"), [
    (lambda lse: lse * math.log(2), "a natural lse times ln 2"), (lambda lse: 0 * lse, "it is never written"),
    (np.exp, "the sum itself, not its logarithm")])
def test_an_lse_in_no_base_is_explained(changed, words):
    def fn(q, k, v):
        o, lse = speaker("partial")(q, k, v)
        return o, changed(lse)

    trait = contract(fn, "partial")["log_base"]
    assert trait.value is None and words in trait.evidence


@pytest.mark.parametrize("none", [-np.inf, np.inf, 0.0, -1e30, np.nan])
@pytest.mark.parametrize("role", ["partial", "decode", "attention", "block"])
def test_the_lse_of_no_keys(role, none):
    value = found("empty", block(none=none) if role == "block" else speaker(role, none=none), role)
    np.testing.assert_equal(value, float(np.float32(none)))


@pytest.mark.parametrize("none_o", [0.0, np.nan, 5.0])
@pytest.mark.parametrize("role", ["partial", "decode", "attention", "block"])
def test_the_o_of_no_keys(role, none_o):
    value = found("empty_o", block(none_o=none_o) if role == "block" else speaker(role, none_o=none_o), role)
    np.testing.assert_equal(value, none_o)


@pytest.mark.parametrize("empty", [-np.inf, np.inf])
def test_the_empty_part_of_a_merge(empty):
    assert found("empty", merger(empty=empty), "merge") == empty


def test_two_empty_parts_that_make_something_else_contradict_what_was_declared():
    def fn(o1, lse1, o2, lse2):
        o, lse = merger()(o1, lse1, o2, lse2)
        return o, np.where(lse == -np.inf, np.float32(np.inf), lse)

    two = contract(fn, "merge")
    assert two["empty"].value == -np.inf and two["empty_merged"].value == np.inf
    assert [t.name for t in two.contradictions()] == ["empty_merged"]
    assert [t.name for t in contract(fn, "merge", told={"empty"}).contradictions()] == ["empty_merged"]
    assert contract(fn, "merge", told=()).contradictions() == ()
    assert contract(merger(), "merge")["empty_merged"].value == -np.inf


def test_a_merge_that_no_mark_leaves_alone_has_none():
    def fn(o1, lse1, o2, lse2):
        w1, w2 = np.exp(np.maximum(lse1, -4)), np.exp(np.maximum(lse2, -4))
        return (w1[:, None] * o1 + w2[:, None] * o2) / (w1 + w2)[:, None], np.log(w1 + w2)

    assert found("empty", fn, "merge") is None


@pytest.mark.parametrize("layout", ["heads_first", "heads_last"])
@pytest.mark.parametrize("role", CALLS)
@pytest.mark.parametrize("base", [math.e, 2])
def test_the_layout_of_lse_with_as_many_heads_as_queries(role, layout, base):
    assert found("lse_layout", speaker(role, layout=layout, base=base), role) == layout


def test_the_evidence_of_a_layout_is_of_the_layout_that_is_told():
    trait = contract(speaker("decode", layout="heads_last"), "decode")["lse_layout"]
    assert trait.value == "heads_last" and trait.evidence.endswith(", heads_last")


def test_a_layout_in_words_and_one_that_is_none():
    def flat(q, k, v):
        o, lse = speaker("partial")(q, k, v)
        return o, lse.swapaxes(0, 1).reshape(q.shape[1], -1)

    def mixed(q, k, v):
        o, lse = speaker("partial")(q, k, v)
        return o, lse[:, ::-1].copy()

    def longer(q, k, v):
        o, lse = speaker("partial")(q, k, v)
        return o, lse[..., None]

    trait = contract(longer, "partial")["lse_layout"]
    assert trait.value == "heads_first, of shape (2, 4, 4, 1)" and trait.evidence.endswith("alone: reshape it so")
    assert found("lse_layout", flat, "partial") == "packed"
    assert found("lse_layout", mixed, "partial") is None


def test_the_layout_of_o():
    def fn(q, k, v):
        o, lse = speaker("partial")(q, k, v)
        return np.ascontiguousarray(o.swapaxes(1, 2)), lse

    assert found("o_layout", fn, "partial") == "heads_last"
    assert found("o_layout", speaker("partial"), "partial") == "heads_first"
    assert found("heads", fn, "partial") == "interleaved"  # what is found of o is used in what follows


@pytest.mark.parametrize("heads", ["interleaved", "tiled"])
@pytest.mark.parametrize("role", CALLS)
def test_the_mapping_of_heads(role, heads):
    assert found("heads", speaker(role, heads=heads), role) == heads


def test_heads_that_cannot_be_grouped_are_not_told():
    def fn(q, k, v):
        if q.shape[1] != k.shape[1]:
            raise ValueError("one KV head for each query head, please")
        return speaker("partial")(q, k, v)

    trait = contract(fn, "partial")["heads"]
    assert trait.value is None and "one KV head for each query head" in trait.evidence


@pytest.mark.parametrize("causal", ["bottom_right", "top_left", "ignored"])
def test_the_alignment_of_causal(causal):
    assert found("causal", speaker(causal=causal)) == causal


SCALES = {"1/sqrt(d)": lambda d: d**-0.5, "1/sqrt(padded d)": lambda d: (2 ** math.ceil(math.log2(d))) ** -0.5,
          "1/sqrt(padded d) ": lambda d: (-(-d // 32) * 32) ** -0.5, "8/d": lambda d: 8 / d,
          1.0: lambda d: 1.0, 0.0625: lambda d: 0.0625, "1/d": lambda d: 1 / d,
          "1/sqrt(d) with exp2 for exp": lambda d: math.log(2) * d**-0.5}


@pytest.mark.parametrize("value", SCALES)
@pytest.mark.parametrize("role", CALLS)
def test_the_scale(role, value):
    trait = found("scale", speaker(role, scale=SCALES[value]), role)
    assert trait == value.strip() if isinstance(value, str) else np.float32(trait) == np.float32(value)


@pytest.mark.parametrize("scale", [lambda d: d**-0.7, lambda d: (d + 20) ** -0.5, lambda d: 6.4 / d])
def test_a_scale_that_is_no_closed_form_and_no_padding_in_use_is_not_told(scale):
    assert found("scale", speaker("partial", scale=scale), "partial") is None


def test_what_is_bent_before_the_product_has_no_scale_and_no_coarse_factors():
    def fn(q, k, v):
        return speaker("partial")(np.tanh(q), k, v)

    assert found("scale", fn, "partial") is None and found("scores", fn, "partial") is None


def test_whether_o_is_divided_by_the_sum():
    for divide in (True, False):
        assert found("normalised", speaker("partial", divide=divide), "partial") is divide
        assert found("normalised", block(divide=divide), "block") is divide


def test_whether_lse_is_there_at_all():
    bare = contract(lambda q, k, v: speaker("partial")(q, k, v)[0], "partial")
    assert bare["lse"].value is False and bare["lse"].contradicted
    assert "log_base" not in bare and bare["scale"].value == "1/sqrt(d)" and bare["empty_o"].value == 0
    assert contract(speaker("partial"), "partial")["lse"].value is True


# -- calls ------------------------------------------------------------------------------------------------


def test_the_signature_that_works_is_found():
    right = speaker()
    assert found("call", right) == "fn(q, k, v, causal)"
    named = contract(lambda q, k, v, dropout=0.0, is_causal=False, return_lse=False:
                     right(q, k, v, is_causal) if return_lse else right(q, k, v, is_causal)[0])
    assert named["call"].value == "fn(q, k, v, is_causal=…, return_lse=True)"
    assert named["causal"].value == "bottom_right"
    assert [t.name for t in named.contradictions()] == ["call"]


@pytest.mark.parametrize(("fn", "text"), [
    (lambda o1, o2, lse1, lse2: merger()(o1, lse1, o2, lse2), "fn(o1, o2, lse1, lse2)"),
    (lambda os, lses: merger()(os[0], lses[0], os[1], lses[1]), "fn([o1, o2], [lse1, lse2])"),
    (lambda a, b: LSEState(*merger()(*a, *b)), "fn((o1, lse1), (o2, lse2))")])
def test_the_signature_of_a_merge_is_found(fn, text):
    assert contract(fn, "merge")["call"].value == text
    assert contract(fn, "merge")["log_base"].value == math.e


@pytest.mark.parametrize(("fn", "text"), [
    (lambda lse, o: many()(o, lse), "fn(lse, o)"),
    (lambda o, lse: many()(o.swapaxes(0, 1), lse.swapaxes(0, 1)), "fn(o, lse) with the parts behind the rows"),
    (lambda os, lses: many()(np.stack(os), np.stack(lses)) if isinstance(os, list) else 1 / 0, "fn([o, …], [lse, …])")])
def test_the_signature_of_a_merge_of_many_is_found(fn, text):
    assert found("call", fn, "merge_many") == text


@pytest.mark.parametrize(("fn", "text"), [
    (lambda q, k, v, *, cache_seqlens: speaker("decode")(q, k, v, cache_seqlens, 1), "fn(q, k, v, cache_seqlens=…)"),
    (lambda q, k, v, lens: speaker("decode")(q, k, v, lens, 1), "fn(q, k, v, seq_lens)")])
def test_the_signature_of_a_decode_is_found(fn, text):
    assert found("call", fn, "decode") == text


def test_results_are_told_by_their_shapes():
    def fn(q, k, v):
        o, lse = speaker("partial")(q, k, v)
        return lse, None, "words", o, np.arange(3)

    assert found("log_base", fn, "partial") == math.e


def test_a_library_that_is_not_the_one_declared_is_found():
    pytest.importorskip("torch")

    def fn(q, k, v):
        s = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        return s.softmax(-1) @ v, s.logsumexp(-1)

    library = contract(fn, "partial")["library"]
    assert library.value == "torch" and library.contradicted


def test_a_format_that_alone_works_is_found():
    def fn(q, k, v):
        if q.dtype != np.float16:
            raise TypeError("half precision only")
        return speaker("partial")(q, k, v)

    assert contract(fn, "partial").dtype == "float16"
    assert contract(fn, "partial", dtype="float32").dtype is None


# -- what is declared -------------------------------------------------------------------------------------


def test_declarations_make_a_subject_that_the_probe_does_not_contradict():
    fn = speaker("attention", base=2, none=np.inf, layout="heads_last", causal="top_left", heads="tiled",
                 scale=lambda d: 1.0)
    first = contract(fn)
    assert {t.name for t in first.contradictions()} >= {"log_base", "lse_layout", "causal", "heads", "scale"}
    wanted = {"log_base": 2, "lse_layout": "heads_last", "causal": "top_left", "heads": "tiled", "scale": 1.0,
              "in_place": False, "empty": np.inf}
    assert first.declarations() == wanted
    assert contract(fn, **first.declarations()).contradictions() == ()


def test_what_is_not_told_is_not_contradicted():
    fn = speaker("attention", base=2, causal="top_left")
    assert contract(fn, told=()).contradictions() == ()
    assert [t.name for t in contract(fn, told={"causal"}).contradictions()] == ["causal"]


def test_a_finite_lse_of_no_keys_is_no_declaration_and_contradicts_each():
    found_zero = contract(speaker("decode", none=0.0), "decode")
    assert "empty" not in found_zero.declarations() and found_zero["empty"].contradicted
    assert contract(speaker("decode", none=np.nan), "decode")["empty"].contradicted


def test_fdmaths_own_numpy_subjects_are_as_declared():
    for subject in own_subjects(["numpy"]):
        own = probe(subject)
        assert own.contradictions() == () and own.undecided() == (), f"{own}"


# -- bad functions ----------------------------------------------------------------------------------------


def leaves(*args):
    raise SystemExit(3)


@pytest.mark.parametrize(("fn", "words"), [
    (lambda *args: None, "NoneType"), (lambda *args: "words", "str"), (lambda *args: 1 / 0, "ZeroDivisionError"),
    (lambda: None, "TypeError"), (lambda *args: (np.ones(3), np.ones(2)), "(3,)"), (lambda *args: [], "list"),
    (lambda *args: {"o": args[0]}, "dict"), (leaves, "SystemExit")])
@pytest.mark.parametrize("role", ["merge", "merge_many", "block", *CALLS])
def test_what_returns_no_state_is_said_in_a_sentence(fn, words, role):
    bad = contract(fn, role)
    assert bad.dtype is None and [t.name for t in bad.traits] == ["call"]
    assert bad["call"].value is None and words in bad["call"].evidence, bad["call"].evidence


def test_a_function_that_fails_at_some_questions_answers_the_others():
    def fn(q, k, v):
        if k.shape[-2] > 100:
            raise MemoryError("too many keys")
        return speaker("partial")(q, k, v)

    some = contract(fn, "partial")
    assert "too many keys" in some["stats_dtype"].evidence and some["stats_dtype"].value is None
    assert some["log_base"].value == math.e


@pytest.mark.parametrize("value", [np.nan, np.inf, 0.0, 0.3])
@pytest.mark.parametrize("role", CALLS)
def test_garbage_of_the_right_shape_tells_nothing(role, value):
    def fn(q, k, v, *rest):
        return np.full((*q.shape[:3], v.shape[-1]), value, np.float32), np.full(q.shape[:3], value, np.float32)

    garbage = contract(fn, role)
    told = {"log_base", "lse_layout", "heads", "p_dtype", "stats_dtype", "scale", "causal", "scores"} & {
        t.name for t in garbage.traits if t.value is not None}
    assert told == set(), str(garbage)


@pytest.mark.parametrize("o", ["bhnd", "bnhd", "bhd", "hbnd", "nd"])
@pytest.mark.parametrize("lse", ["bhn", "bnh", "hbn", "bh", "n", "bhnn", ""])
def test_results_of_any_shape_are_read_or_refused(o, lse):
    def fn(q, k, v):
        size = {"b": q.shape[0], "h": q.shape[1], "n": q.shape[2], "d": v.shape[3]}
        rng = np.random.default_rng(5)
        return tuple(rng.normal(size=[size[x] for x in axes]).astype(np.float32) for axes in (o, lse) if axes)

    for t in contract(fn, "partial").traits:
        assert t.evidence


def test_what_a_function_prints_is_not_shown(capsys):
    contract(lambda *args: print("noise") or speaker("partial")(*args), "partial")
    assert capsys.readouterr().out == ""


# -- the record -------------------------------------------------------------------------------------------


def test_the_contract_in_words_and_as_json():
    traits = (Trait("log_base", 2, "seen 1.", math.e), Trait("empty", -math.inf, "seen 2.", -math.inf),
              Trait("heads", None, "seen 3.", "tiled"), Trait("empty_o", 0.0, "seen 4."))
    record = Contract("mine", "decode", "float32", traits)
    text = str(record)
    assert [line[0] for line in text.splitlines()[1::2]] == ["✗", "✓", "?", "·"]
    assert "log_base  2               declared e" in text and "could not tell" in text
    rows = json.loads(record.to_json())["traits"]
    assert [row["contradicted"] for row in rows] == [True, False, False, False] and rows[1]["value"] == "-inf"
    assert record.declarations() == {"log_base": 2, "empty": -math.inf}


def test_choose_takes_what_is_near_and_never_nan():
    two = {"one": [1.0, 1.0], "three": [1.0, 3.0]}
    assert choose([1.0, 1.0], two) == "one" and choose([1.0, 3.0], two) == "three"
    assert choose([1.0, 2.0], two) is None and choose([1.0, np.nan], two) is None and choose([np.inf, 1.0], two) is None
