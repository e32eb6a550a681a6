"""The probe on formats: of P, of the statistics, of the factors of scores; each told apart from each other one."""

import math

import numpy as np
import pytest

from fdmath.verify import Subject
from fdmath.verify.probe import answer, begin, probe
from fdmath.verify.probing.precision import to_format
from tests.verify.speakers import merger, rounded, speaker, summed

FIRST = ("scale", "normalised", "log_base", "lse_layout")


def found(name, fn, role="partial", dtype=None, **declared):
    """The Trait found of one format."""
    subject = Subject("mine", role, fn, **declared)

    def run(task, *args):
        if task == "begin":
            return begin(subject, *args)
        return answer(subject, *args) if args[-1] in (*FIRST, name) else []

    return probe(subject, dtype, run=run)[name]


def block(**options):
    return lambda scores, v: tuple(x.astype(scores.dtype) for x in summed(scores.astype(np.float64), v, **options))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("p", ["float32", "tf32", "float16", "bfloat16"])
@pytest.mark.parametrize("role", ["partial", "decode", "attention", "block"])
def test_the_format_of_p(role, p, first):
    fn = block(p=p, first=first) if role == "block" else speaker(role, p=p, first=first)
    assert found("p_dtype", fn, role).value == p


@pytest.mark.parametrize("p", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("inputs", ["float16", "bfloat16"])
def test_the_format_of_p_shows_through_an_output_of_16_bits(inputs, p):
    assert found("p_dtype", speaker("partial", p=p), dtype=inputs).value == p


def test_in_float64_a_p_of_float32_shows():
    assert found("p_dtype", speaker("partial", p="float32"), dtype="float64").value == "float32"
    assert found("p_dtype", speaker("partial"), dtype="float64").value == "float64"


@pytest.mark.parametrize("p", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("base", [math.e, 2])
def test_the_format_of_a_merges_weights(base, p):
    assert found("p_dtype", merger(base=base, weights=p), "merge").value == p


def test_a_p_on_a_grid_of_its_own_is_not_told():
    def fn(q, k, v):
        s = q @ k.swapaxes(-1, -2) / 8
        w = np.exp(s - s.max(-1, keepdims=True))
        w = np.rint(w * 100) / 100
        return w @ v / w.sum(-1, keepdims=True), np.log(w.sum(-1)) + s.max(-1)

    assert found("p_dtype", fn).value is None


@pytest.mark.parametrize("stats", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("role", ["partial", "block"])
def test_the_format_of_the_statistics(role, stats):
    fn = block(stats=stats) if role == "block" else speaker(role, stats=stats)
    assert found("stats_dtype", fn, role).value == stats


@pytest.mark.parametrize("base", [math.e, 2])
@pytest.mark.parametrize("levels", ["float64", "float16", "bfloat16"])
def test_a_merge_that_rounds_lse_before_it_weighs_is_seen_though_its_lse_is_exact(levels, base):
    def fn(o1, lse1, o2, lse2):
        o, _ = merger(base=base, levels=levels)(o1, lse1, o2, lse2)
        return o, merger(base=base)(o1, lse1, o2, lse2)[1]

    assert found("stats_dtype", fn, "merge").value == {"float64": "float32"}.get(levels, levels)


@pytest.mark.parametrize("tile", [1, 64, 1024])
@pytest.mark.parametrize("running", ["float32", "float16", "bfloat16"])
def test_a_running_sum_of_few_bits_is_seen(running, tile):
    def fn(scores, v):
        o, lse = summed(scores.astype(np.float64), v)
        l, m = np.zeros(len(scores)), scores.max(axis=-1).astype(np.float64)
        for start in range(0, scores.shape[-1], tile):
            l = rounded(l + np.exp(scores[:, start : start + tile] - m[:, None]).sum(axis=-1), running)
        return o.astype(scores.dtype), (m + np.log(l)).astype(np.float32)

    trait = found("stats_dtype", fn, "block")
    assert trait.value == running
    assert ("2201 equal items count as 256" in trait.evidence) == (running == "bfloat16" and tile == 1)


@pytest.mark.parametrize("seen", [slice(-256, None), slice(128), slice(None, None, -1)])
def test_items_that_are_not_seen_are_not_taken_for_a_sum_of_few_bits(seen):
    def fn(scores, v):
        return block()(scores[:, seen], v[seen])

    trait = found("stats_dtype", fn, "block")
    assert trait.value == ("float32" if seen.step else None)
    assert ("weigh nothing" in trait.evidence) is not bool(seen.step)


@pytest.mark.parametrize("scores", ["float32", "tf32", "bfloat16"])
@pytest.mark.parametrize("role", ["partial", "decode", "attention"])
def test_the_bits_of_q_and_k_in_the_scores(role, scores):
    assert found("scores", speaker(role, scores=scores), role).value == scores


def test_a_declared_format_is_contradicted_by_a_coarser_one_alone():
    fn = speaker("partial", p="float16")
    assert found("p_dtype", fn, p_dtype="float32").contradicted
    assert not found("p_dtype", fn, p_dtype="float16").contradicted
    assert not found("p_dtype", fn, p_dtype="bfloat16").contradicted  # more room than it takes
    assert not found("p_dtype", fn).contradicted  # nothing was declared


@pytest.mark.parametrize("name", ["tf32", "float16", "bfloat16", "float32"])
def test_rounding_to_a_format_is_that_of_its_bits(name):
    x = np.concatenate([np.random.default_rng(3).normal(size=1000), 2.0 ** -np.arange(1, 15) * (1 + 2.0**-11)])
    np.testing.assert_array_equal(to_format(x.astype(np.float32), name), rounded(x.astype(np.float32), name))
