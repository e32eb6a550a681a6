"""Orders as brackets: what is ⊕-ed with what, seen with a ⊕ that writes down its operands."""

import math

import numpy as np
import pytest

from fdmath import flat, ring, sequential, streams, tree
from fdmath.algebra.order import whole

LETTERS = "abcdefgh"


def written(a, b):
    """A ⊕ that writes itself down."""
    return f"({a}{b})"


def brackets(order, count):
    """What an order makes of the first `count` letters."""
    return order(written, iter(LETTERS[:count]))


@pytest.mark.parametrize("order, count, expected", [
    (sequential, 1, "a"),
    (sequential, 4, "(((ab)c)d)"),
    (tree, 1, "a"),
    (tree, 4, "((ab)(cd))"),
    (tree, 5, "(((ab)(cd))e)"),
    (tree, 7, "(((ab)(cd))((ef)g))"),
    (streams(1), 3, "((ab)c)"),
    (streams(2), 5, "(((ac)e)(bd))"),
    (streams(3), 7, "((((ad)g)(be))(cf))"),
    (streams(3, then=sequential), 7, "((((ad)g)(be))(cf))"),
    (streams(5), 8, "((((af)(bg))((ch)d))e)"),
    (streams(4, then=sequential), 8, "((((ae)(bf))(cg))(dh))"),
    (streams(3, then=ring(1)), 3, "((ba)c)"),
    (streams(8), 2, "(ab)"),
    (ring(0), 4, "(((ad)c)b)"),
    (ring(2), 4, "(((cb)a)d)"),
    (ring(6), 4, "(((cb)a)d)"),
    (ring(-1), 4, "(((dc)b)a)"),
    (ring(1), 1, "a"),
])  # fmt: skip
def test_who_meets_whom(order, count, expected):
    assert brackets(order, count) == expected


@pytest.mark.parametrize("order", [sequential, tree, streams(1), streams(3), streams(5), streams(50), ring(3)])
def test_every_part_is_met_once_in_one_merge_fewer_than_parts(order):
    for count in range(1, 9):
        result = brackets(order, count)
        assert sorted(result.replace("(", "").replace(")", "")) == sorted(LETTERS[:count])
        assert result.count("(") == count - 1


def test_a_tree_is_as_flat_as_can_be():
    for count in range(1, 70):
        depth = tree(lambda a, b: max(a, b) + 1, [0] * count)
        assert depth == math.ceil(math.log2(count))


def test_flat_ignores_merge_unless_merge_knows_better():
    class Sum:
        flat = staticmethod(sum)

    assert flat(Sum(), iter([1, 2, 3])) == 6
    assert streams(2, then=flat)(type("Plus", (Sum,), {"__call__": lambda self, a, b: a + b})(), [1, 2, 3]) == 6


@pytest.mark.parametrize("order", [sequential, tree, streams(2), ring(0), flat])
def test_nothing_has_no_sum(order):
    with pytest.raises(ValueError, match=r"^states must hold at least one state; got none$"):
        order(written, [])


def test_counts_and_ranks_are_integers():
    assert brackets(streams(np.int64(2)), 3) == "((ac)b)" and brackets(ring(np.int64(1)), 2) == "(ba)"
    for wrong in (0, -1):
        with pytest.raises(ValueError, match=rf"^n must be at least 1; got {wrong}$"):
            streams(wrong)
    for wrong in (2.0, "2", None, True, [2]):
        with pytest.raises(TypeError, match=r"^n must be an integer; got "):
            streams(wrong)
        with pytest.raises(TypeError, match=r"^rank must be an integer; got "):
            ring(wrong)
    assert whole(-3, "x") == -3
