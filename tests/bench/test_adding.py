"""Sums in many orders: exact numbers do not mind, floats do, no order leaves the bound; and what a lost update does."""

import itertools

import numpy as np

from fdmath.bench.adding import load_add_store, sampled_orders, spread, sum_bound, sums_in_orders
from fdmath.bench.atomics import interleavings, tally

ALL = list(itertools.permutations(range(5)))


def test_whole_numbers_have_one_sum():
    sums = sums_in_orders(np.float32([[1, 2], [3, 5], [7, 11], [13, 17], [19, 23]]), ALL)
    assert sums.shape == (120, 2) and np.all(sums == [43, 58]) and np.all(spread(sums) == 0)


def test_the_order_is_that_of_the_row():
    big = np.float32([1, 2.0**24, -(2.0**24)])
    assert sums_in_orders(big, [[0, 1, 2], [1, 2, 0]]).tolist() == [0, 1]


def test_no_order_leaves_the_bound_and_some_orders_differ():
    terms = np.random.default_rng(0).standard_normal((5, 40)).astype(np.float32)
    sums, exact = sums_in_orders(terms, ALL), np.sum(terms.astype(np.float64), axis=0)
    off = np.abs(sums - exact)  # float64 sums of five float32 numbers are exact but for 2^-50 of them
    assert np.all(off <= sum_bound(terms)) and np.any(spread(sums) > 0)
    assert np.any(off > sum_bound(terms) / 8)  # else an empty promise


def test_sampled_orders_are_permutations_that_begin_with_the_identity():
    drawn = sampled_orders(6, 50)
    assert drawn.shape == (50, 6) and np.all(np.sort(drawn, axis=1) == np.arange(6))
    assert np.all(drawn[0] == np.arange(6)) and len(np.unique(drawn, axis=0)) > 30


def test_load_add_store_loses_updates():
    found = tally(lambda order: load_add_store((1, 2), order), interleavings((2, 2)))
    assert found == {1: 2, 2: 2, 3: 2}  # claims:B39
