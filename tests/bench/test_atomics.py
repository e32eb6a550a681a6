"""Atomics in every order: the orders are all there, and document B's merge is wrong in most of them."""

from fractions import Fraction
from math import factorial, prod

import pytest

from fdmath.algebra.printed import atomic_merge_as_printed_B
from fdmath.bench.atomics import interleavings, maxima_first, tally

PENCIL = [(0, Fraction(2), Fraction(8)), (2, Fraction(3, 2), Fraction(3))]  # (m, l, acc) in base 2


def base_2(x):
    return Fraction(2) ** x


def result(parts):
    """order → o, by the printed merge."""
    def one(order):
        _, l, acc = atomic_merge_as_printed_B(parts, order, base_2)
        return acc / l
    return one


@pytest.mark.parametrize("steps", [(1,), (3, 3), (2, 2, 2), (1, 2, 3), (0, 2)])
def test_every_order_is_there_once(steps):
    orders = list(interleavings(steps))
    assert len(orders) == len(set(orders)) == factorial(sum(steps)) // prod(map(factorial, steps))
    assert all(order.count(block) == n for order in orders for block, n in enumerate(steps))


def test_the_printed_merge_is_right_behind_a_barrier():
    orders = [order for order in interleavings((3, 3)) if maxima_first(order, 2)]
    assert 0 < len(orders) < 20 and tally(result(PENCIL), orders) == {Fraction(5, 2): len(orders)}


def test_the_printed_merge_is_wrong_without_one():
    found = tally(result(PENCIL), interleavings((3, 3)))
    assert sum(found.values()) == 20 and Fraction(5, 2) in found and len(found) > 1
    assert found[Fraction(22, 7)] > 0  # the first block is done before the second begins: 11 / (7/2)
    assert result(PENCIL)((0, 0, 0, 1, 1, 1)) == Fraction(22, 7)


def test_the_claim_s_own_example():
    parts = [(0, 1, 0), (10, 1, 1)]  # B79, in base 2
    m, l, acc = atomic_merge_as_printed_B(parts, (0, 0, 0, 1, 1, 1), base_2)
    assert (m, l, acc) == (10, 2, 1)  # right: l = 1 + 2^-10, and o close to 1, not 1/2


def test_equal_levels_are_right_in_every_order():
    parts = [(1, Fraction(2), Fraction(8)), (1, Fraction(3), Fraction(6))]
    assert tally(result(parts), interleavings((3, 3))) == {Fraction(14, 5): 20}


def test_an_order_that_is_none_is_refused():
    with pytest.raises(ValueError, match="each of 2 blocks three times"):
        atomic_merge_as_printed_B(PENCIL, (0, 0, 1, 1, 1), base_2)
