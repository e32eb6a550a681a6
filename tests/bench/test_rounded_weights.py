"""v ≡ 1 in the two designs, on the smallest input that tells them apart; what aligned sums lose."""

import math

import numpy as np
import pytest

from fdmath.bench.rounded_weights import aligned_sum, state_of_weights

BELOW_HALFWAY = [1, *3 * [0.5 + 2**-9 - 2**-20]]  # in bfloat16 the weight is rounded to 1/2


def test_the_sum_of_the_rounded_weights_makes_one_exact_and_moves_lse():
    o, l = state_of_weights(BELOW_HALFWAY, np.ones((4, 1)), "bfloat16", of_rounded=True)
    assert o == 1 and l == 2.5


def test_the_sum_of_the_unrounded_weights_keeps_lse_and_may_lose_an_ulp():
    o, l = state_of_weights(BELOW_HALFWAY, np.ones((4, 1)), "bfloat16", of_rounded=False)
    assert o == 255 / 256 and l == math.fsum(BELOW_HALFWAY)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
@pytest.mark.parametrize("of_rounded", [False, True])
def test_weights_that_the_format_has_are_the_same_in_both(dtype, of_rounded):
    o, l = state_of_weights([1, 1, 2, 4], [[2], [6], [0], [3]], dtype, of_rounded)
    assert o == 2.5 and l == 8


def test_small_weights_vanish_from_float16_and_a_lower_level_keeps_them():
    weights = np.array([1.0] + 2**17 * [2.0**-25 * (1 - 2.0**-10)])  # half of float16's smallest number, and less
    ones = np.ones((len(weights), 1))
    assert state_of_weights(weights, ones, "float16", of_rounded=False)[0] == 1 - 8 * 2.0**-11
    assert state_of_weights(2**14 * weights, ones, "float16", of_rounded=False)[0] == 1
    assert state_of_weights(weights, ones, "bfloat16", of_rounded=False)[0] == 1


def test_an_aligned_sum_cuts_off_what_lies_below_the_last_bit_of_the_largest_term():
    last = 2.0**-23  # of 24 bits, beside 1
    assert aligned_sum([1, last, -last, 2 * last]) == 1 + 2 * last
    assert aligned_sum([1, *1000 * [last * (1 - 2.0**-10)]]) == 1 and aligned_sum([-1, *9 * [-last / 2]]) == -1
    assert aligned_sum([1, *8 * [last / 2]], bits=25) == 1 + 4 * last
    assert aligned_sum([1.5, 1.5, last], at_once=1) == 3  # the sum has grown beyond 2, and its last bit with it
    assert aligned_sum([1.5, 1.5, last]) == 3 + last  # in one step the largest term is 1.5
    assert aligned_sum([]) == 0 and aligned_sum([0, 0]) == 0


def test_small_terms_by_themselves_are_all_kept_and_so_they_are_before_a_large_one():
    small = 2**12 * [2.0**-25]
    assert aligned_sum(small) == 2.0**-13 and aligned_sum([*small, 1]) == 1 + 2.0**-13
    assert aligned_sum([1, *small]) == 1
