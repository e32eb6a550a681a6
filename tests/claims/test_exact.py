"""Exact exponentials: right identities are found equal, wrong ones are not, whatever the values that decide order."""

import itertools

import numpy as np
import pytest

from fdmath.algebra.printed import flat_as_printed_A_2_2_2, flat_as_printed_A_2_3_4, merge_as_printed_A_3_2_1
from fdmath.claims.exact import Number, definition, keys


def test_levels_are_logarithms():
    (a, b), _ = keys((0, 1))
    assert (a + b).exp() == a.exp() * b.exp()
    assert (a - b).exp() * b.exp() == a.exp()
    assert a.exp().log() == a and not a == b
    assert (a - b).exp().log1p() + b == (a.exp() + b.exp()).log()


def test_levels_compare_as_the_ranks_do():
    for ranks in itertools.permutations(range(4)):
        scores, _ = keys(ranks)
        assert np.max(scores) is scores[ranks.index(3)] and np.min(scores) is scores[ranks.index(0)]
        for i, j in itertools.combinations(range(4), 2):
            assert (scores[i] < scores[j]) == (ranks[i] < ranks[j]) == (not scores[i] >= scores[j])
            assert (scores[i] > scores[j]) == (ranks[i] > ranks[j]) == (not scores[i] <= scores[j])


def test_sums_of_different_keys_never_tie():
    scores, _ = keys(range(5))
    values = [sum((s.exp().value for s in some), start=0)
              for count in range(6) for some in itertools.combinations(scores, count)]
    assert len(set(values)) == len(values)


def test_numbers_mix_with_integers():
    _, (x, y) = keys((0, 1))
    assert 0 + x == x and 1 * x == x and x + y == y + x and x / x == 1
    assert not x == 1 and isinstance(x * 0, Number) and x * 0 == 0


def test_the_definition_is_what_the_merges_of_the_documents_make():
    scores, v = keys((2, 0, 1))
    total, mean = definition(scores, v)
    m, l, o = flat_as_printed_A_2_2_2(scores[:, None], np.ones((3, 1), dtype=object), v[:, None, None])
    assert m[0].exp() * l[0] == total and o[0, 0] == mean
    o, lse = flat_as_printed_A_2_3_4(v[:, None, None], scores[:, None])
    assert lse[0].exp() == total and o[0, 0] == mean


@pytest.mark.parametrize("wrong", ["swapped weights", "one weight dropped", "twice the first"])
def test_a_wrong_merge_is_found(wrong):
    scores, v = keys((0, 1))
    _, mean = definition(scores, v)
    first, second = (v[:1, None], scores[:1]), (v[1:, None], scores[1:])
    o, lse = merge_as_printed_A_3_2_1(*first, *second)
    weights = [np.exp(s - lse)[0] for s in (scores[:1], scores[1:])]
    made = {
        "swapped weights": v[0] * weights[1] + v[1] * weights[0],
        "one weight dropped": v[0] * weights[0] + v[1],
        "twice the first": v[0] * weights[0] + v[0] * weights[1],
    }[wrong]
    assert o[0, 0] == mean and not made == mean
