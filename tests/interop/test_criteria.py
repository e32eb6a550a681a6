"""The three figures of a head on inputs where they are known, and the rule that picks four heads."""

import numpy as np
import pytest

from fdmath.interop.criteria import Profile, choose, profile, quartiles, recorded, weights
from fdmath.interop.smollm2 import NotAsExpected


def test_equal_scores_are_flat_and_each_query_sees_one_key_more():
    p = weights(np.zeros((3, 4)), np.ones((5, 4)))
    assert p.tolist() == [[1 / 3] * 3 + [0, 0], [1 / 4] * 4 + [0], [1 / 5] * 5]
    got = profile(np.zeros((3, 4)), np.ones((5, 4)))
    assert recorded(got.entropy) == 1
    assert got.sink == got.peak == np.mean([1 / 3, 1 / 4, 1 / 5])


@pytest.mark.parametrize(("loud", "expected"), [(0, Profile(1, 0, 0)), (1, Profile(0, 0, 1))])
def test_one_loud_key_is_a_sink_at_the_front_and_a_peak_elsewhere(loud, expected):
    k = np.zeros((4, 1))
    k[loud] = 2000  # e^-2000 is 0 in fp64, so the weights are exactly 0 and 1
    assert profile(np.ones((2, 1)), k) == expected


def test_the_scale_is_one_over_the_root_of_the_head_dimension():
    p = weights(np.array([[1.0, 0, 0, 0]]), np.array([[0.0] * 4, [2 * np.log(3), 0, 0, 0]]))
    assert [recorded(x) for x in p[0]] == [0.25, 0.75]


def heads(**changed):
    """Nine heads of one layer with figures far from every floor, some of them changed."""
    plain = {(0, i): Profile(0.1 + i / 100, 0.3 + i / 100, 0.2 + i / 100) for i in range(9)}
    return plain | {(0, int(name[1:])): Profile(*figures) for name, figures in changed.items()}


def test_each_name_goes_to_the_head_that_the_rule_says():
    profiles = heads(h0=(0.9, 0.1, 0.01), h1=(0.01, 0.95, 0.02), h8=(0.02, 0.2, 0.8))
    assert choose(profiles) == {"sink": (0, 0), "flat": (0, 1), "peaked": (0, 8), "plain": (0, 4)}
    assert quartiles(profiles)[0].sink < profiles[0, 4].sink < quartiles(profiles)[1].sink


@pytest.mark.parametrize("missing", ["h0", "h1", "h8"])
def test_a_name_that_no_head_deserves_is_refused(missing):
    winners = {"h0": (0.9, 0.1, 0.01), "h1": (0.01, 0.95, 0.02), "h8": (0.02, 0.2, 0.8)}
    del winners[missing]
    with pytest.raises(NotAsExpected, match="no head is"):
        choose(heads(**winners))


def test_a_plain_head_outside_the_quartiles_is_refused():
    others = {  # each is at an end in sink or in entropy
        "h3": (0.5, 0.34, 0.23), "h4": (0.01, 0.35, 0.24), "h5": (0.02, 0.36, 0.25),
        "h6": (0.16, 0.7, 0.26), "h7": (0.17, 0.01, 0.27), "h8": (0.18, 0.02, 0.28),
    }  # fmt: skip
    winners = {"h0": (0.9, 0.31, 0.2), "h1": (0.14, 0.95, 0.21), "h2": (0.15, 0.33, 0.8)}
    with pytest.raises(NotAsExpected, match="no head is plain"):
        choose(heads(**winners, **others))


def test_two_names_for_one_head_are_refused():
    with pytest.raises(NotAsExpected, match="two names"):
        choose(heads(h0=(0.6, 0.9, 0.1), h8=(0.02, 0.2, 0.8)))
