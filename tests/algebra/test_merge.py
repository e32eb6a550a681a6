"""⊕ of two and of many: what it does exactly. How far it may round is in test_budgets.py."""

import math

import numpy as np
import pytest

from fdmath import AccState, LSEState, MLOState, flat, identity, merge, merge_all, ring, sequential, streams, tree
from fdmath.algebra.merge import stack, unstack
from fdmath.algebra.rounding import round_to
from tests.algebra.libraries import FORMATS, dtype_name, holds, same, same_state, values
from tests.algebra.states import KINDS, LEVELS, empty_states, random_state, state

INF, NAN = math.inf, math.nan
ORDERS = (flat, sequential, tree, streams(2), ring(1))


def rows(s, index):
    """The state of some of the rows of s."""
    return s.map(lambda x: x[index])


def joined(lib, a, b):
    """The rows of a, then those of b."""
    return type(a)(*(lib.module.concatenate([x, y]) for x, y in zip(a, b, strict=True)))


# Values that are exact


def test_the_pencil_example_is_exact_in_triples(lib):
    # Base-2 scores 0, 0 | 1, 2 with values 2, 6 | 0, 3: (Z, Y) = (2, 8) and (6, 12), at reference level 0.
    left, right = (AccState(lib.array(0.0), lib.array(z), lib.array([y])) for z, y in ((2.0, 8.0), (6.0, 12.0)))
    for order in ORDERS:
        for a, b in ((left, right), (right, left)):
            assert all(map(holds, merge_all([a, b], order), (0.0, 8.0, [20.0])))
            assert all(map(holds, merge_all([a.to(MLOState), b.to(MLOState)], order), (0.0, 8.0, [2.5])))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_far_larger_side_wins_exactly(lib, kind, order):
    # faults:E1, E2; claims:A57: e^−1000 is 0 in every format, and the larger value is never exponentiated.
    for low, high in ((0.0, 1000.0), (-1000.0, 0.0), (-1e6, 1e6)):
        a, b = state(lib, kind, [low], [[5.0]]), state(lib, kind, [high], [[7.0]])
        for parts in ([a, b], [b, a]):
            o, lse = merge_all(parts, order).finalize()
            assert holds(o, [[7.0]]) and holds(lse, [high])


@pytest.mark.parametrize("dtype", FORMATS)
def test_equal_values_merge_to_themselves(lib, dtype):
    rng = np.random.default_rng(1)
    o = rng.standard_normal((500, 3)) * 2.0 ** rng.integers(-14, 14, (500, 1))
    for level in LEVELS if dtype != "float16" else LEVELS[:5]:
        a, b = (LSEState(lib.array(o, dtype), lib.array(level + 3 * rng.standard_normal(500), dtype)) for _ in "ab")
        for x, y in ((a, b), (a, a)):
            assert same(merge(x, y).o, a.o)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_ones_stay_ones_at_every_level(lib, kind, order):
    rng = np.random.default_rng(2)
    for level in LEVELS:
        parts = []
        for _ in range(7):
            part = random_state(lib, MLOState, rng, (50, 2), level)
            parts.append(MLOState(part.m, part.l, lib.array(np.ones((50, 2)))).to(kind))
        assert holds(merge_all(parts, order).finalize().o, np.ones((50, 2)))


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_pairs_stay_in_the_hull(lib, dtype):
    rng = np.random.default_rng(3)
    largest, smallest = np.finfo(dtype).max / 2, np.finfo(dtype).smallest_subnormal
    sizes = np.array([1.0, largest, smallest, 4 * smallest])
    for level in LEVELS:
        a, b = (
            LSEState(
                lib.array(rng.uniform(-1, 1, (400, 3)) * rng.choice(sizes, (400, 1)), dtype),
                lib.array(level + rng.standard_normal(400) * rng.choice([0.0, 1e-7, 1.0, 30.0], 400), dtype),
            )
            for _ in "ab"
        )
        low, high = (extreme(values(a.o), values(b.o)) for extreme in (np.minimum, np.maximum))
        o = values(merge(a, b).o)
        assert np.all((low <= o) & (o <= high))


# Laws that hold bit for bit


def mixed_operands(lib, kind, dtype, other, level):
    """Two states whose rows are random, ties, one side empty in every way of writing it, and both sides."""
    rng = np.random.default_rng(4)
    a, b = (random_state(lib, kind, rng, (60, 3), level, dtype=name) for name in (dtype, other))
    ties = [random_state(lib, kind, rng, (9, 3), level, spread=0.0, dtype=name) for name in (dtype, other)]
    parts = [(a, b), ties]
    ways = (empty_states(lib, kind, 2, 3, name) for name in (dtype, other))
    for nothing_a, nothing_b in zip(*ways, strict=True):
        parts += [(nothing_a, rows(b, slice(0, 2))), (rows(a, slice(0, 2)), nothing_b), (nothing_a, nothing_b)]
    first, second = parts[0]
    for x, y in parts[1:]:
        first, second = joined(lib, first, x), joined(lib, second, y)
    return first, second


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype, other", [(f, f) for f in FORMATS] + [("float16", "float32"), ("bfloat16", "float16")])
def test_merge_commutes(lib, kind, dtype, other):
    for level in (0.0, 100.0, 1e4):
        a, b = mixed_operands(lib, kind, dtype, other, level)
        assert same_state(merge(a, b), merge(b, a))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dtype", FORMATS)
def test_the_empty_state_changes_nothing(lib, kind, dtype):
    a = random_state(lib, kind, np.random.default_rng(5), (4, 3), dtype=dtype)
    for nothing in empty_states(lib, kind, 4, 3, dtype):
        assert same_state(merge(a, nothing), a)
        assert same_state(merge(nothing, a), a)
        assert same_state(merge(nothing, nothing), identity((4,), 3, kind, like=a.payload))


@pytest.mark.parametrize("kind", KINDS)
def test_an_empty_row_leaves_the_other_rows_alone(lib, kind):
    a, b = (random_state(lib, kind, np.random.default_rng(seed), (4, 2)) for seed in (6, 7))
    plain = merge(a, b)
    for nothing in empty_states(lib, kind, 1, 2):
        merged = merge(a, joined(lib, rows(b, slice(0, 3)), nothing))
        assert same_state(rows(merged, slice(0, 3)), rows(plain, slice(0, 3)))
        assert same_state(rows(merged, slice(3, 4)), rows(a, slice(3, 4)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_empty_parts_change_no_fold(lib, kind, order):
    rng = np.random.default_rng(8)
    parts = [random_state(lib, kind, rng, (4, 2)) for _ in range(5)]
    nothing = empty_states(lib, kind, 4, 2)
    if order in (flat, sequential):
        expected = merge_all(parts, order)
        for place in range(6):
            assert same_state(merge_all(parts[:place] + nothing[:3] + parts[place:], order), expected)
    else:  # the brackets of the others move with the number of parts: one part among empties stays itself
        for place in range(4):
            assert same_state(merge_all(nothing[:place] + parts[:1] + nothing[place:3], order), parts[0])
    assert same_state(merge_all(nothing, order), identity((4,), 2, kind, like=parts[0].payload))


# Formats, rows, axes


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [flat, sequential])
@pytest.mark.parametrize("dtype, other, wider", [
    ("float16", "float16", "float16"), ("bfloat16", "bfloat16", "bfloat16"), ("float16", "bfloat16", "float32"),
    ("float16", "float32", "float32"), ("float32", "bfloat16", "float32"), ("float32", "float64", "float64"),
    ("bfloat16", "float64", "float64"),
])  # fmt: skip
def test_the_result_has_the_wider_format_and_is_rounded_once(lib, kind, order, dtype, other, wider):
    rng = np.random.default_rng(9)
    a, b = random_state(lib, kind, rng, (50, 2), dtype=dtype), random_state(lib, kind, rng, (50, 2), dtype=other)
    work = "float64" if wider == "float64" else "float32"
    merged = merge_all([a, b], order)
    assert {dtype_name(x) for x in merged} == {wider}
    exact = merge_all([s.map(lambda x: lib.array(values(x), work)) for s in (a, b)], order)
    assert same_state(merged, exact.map(lambda x: lib.array(values(round_to(x, wider)), wider)))


def test_a_16_bit_payload_beside_32_bit_statistics(lib):
    # The o of a finished call merged with a running fp32 part: an everyday thing.
    finished = LSEState(lib.array([[1.0]], "float16"), lib.array([0.0], "float32"))
    running = LSEState(lib.array([[3.0]], "float32"), lib.array([0.0], "float32"))
    assert holds(merge(finished, running).o, [[2.0]]) and dtype_name(merge(finished, running).o) == "float32"
    assert [dtype_name(x) for x in merge(finished, finished)] == ["float16", "float32"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3,), (2, 3), (0, 3), (2, 0), (2, 1, 4, 3)])
def test_any_number_of_axes(lib, kind, shape):
    rng = np.random.default_rng(10)
    parts = [random_state(lib, kind, rng, shape) for _ in range(3)]
    flattened = [s.map(lambda x, s=s: x.reshape(-1) if x is not s.payload else x.reshape(-1, shape[-1])) for s in parts
                 if shape[-1]]  # fmt: skip
    for order in ORDERS:
        merged = merge_all(parts, order)
        assert tuple(merged.payload.shape) == shape
        assert same_state(merge_all(stack(parts), order), merged)
        if flattened:
            lone = merge_all(flattened, order)
            assert all(np.array_equal(values(x).ravel(), values(y).ravel()) for x, y in zip(merged, lone, strict=True))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("level, o", [(INF, 7.0), (NAN, 7.0), (0.0, NAN)])
def test_what_is_no_state_is_nan_and_stays_in_its_row(lib, kind, order, level, o):
    bad = state(lib, kind, [level, 0.0], [[o], [3.0]])
    good = state(lib, kind, [0.0, 0.0], [[5.0], [5.0]])
    for parts in ([bad, good], [good, bad]):
        merged = merge_all(parts, order).finalize()
        assert holds(merged.o, [[NAN], [4.0]])
        assert math.isnan(values(merged.lse)[0]) or level == 0.0
        assert same(merged.lse[1:], merge(good, good).finalize().lse[1:])


# merge_all, stack, unstack


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_a_list_an_iterator_and_a_leading_axis_are_one(lib, kind, order):
    rng = np.random.default_rng(11)
    parts = [random_state(lib, kind, rng, (4, 2)) for _ in range(5)]
    expected = merge_all(parts, order)
    assert same_state(merge_all(iter(parts), order), expected)
    assert same_state(merge_all(stack(parts), order), expected)
    assert all(map(same_state, unstack(stack(parts)), parts))
    assert same_state(merge_all(parts), merge_all(parts, flat))


@pytest.mark.parametrize("kind", [LSEState, AccState])
@pytest.mark.parametrize("order", ORDERS)
def test_one_part_is_itself(lib, kind, order):
    part = random_state(lib, kind, np.random.default_rng(12), (4, 2))
    assert same_state(merge_all([part], order), part)


def test_an_order_may_be_your_own(lib):
    a, b, c = (random_state(lib, LSEState, np.random.default_rng(seed), (4, 2)) for seed in (1, 2, 3))
    assert same_state(merge_all([a, b, c], lambda plus, parts: plus(parts[0], plus(parts[1], parts[2]))),
                      merge(a, merge(b, c)))  # fmt: skip


# Bad input


def test_what_cannot_be_merged_is_refused(lib):
    a = random_state(lib, LSEState, np.random.default_rng(13), (4, 2))
    with pytest.raises(TypeError, match=r"^state 1 must be of the kind of state 0, LSEState; got MLOState$"):
        merge(a, a.to(MLOState))
    with pytest.raises(TypeError, match=r"^state 1 must be an MLOState, AccState or LSEState; got tuple$"):
        merge(a, tuple(a))
    with pytest.raises(TypeError, match=r"^state 1 must be an MLOState, AccState or LSEState; got int$"):
        a + 1
    for other in (rows(a, slice(0, 3)), a.map(lambda x: x[None]), a.map(lambda x: x[:1])):
        with pytest.raises(ValueError, match=r"^state 1 must have the shape of state 0, o \(4, 2\); got \("):
            merge(a, other)
        with pytest.raises(ValueError, match=r"^state 2 must have the shape of state 0"):
            merge_all([a, a, other])
    for nothing in ([], iter(()), rows(a, slice(0, 0))):
        with pytest.raises(ValueError, match=r"^states must hold at least one state; got none$"):
            merge_all(nothing)
    with pytest.raises(ValueError, match=r"^states must have a leading axis of parts; got o of shape \(2,\)$"):
        merge_all(rows(a, 0))
    with pytest.raises(TypeError, match=r"^order must be callable, order\(merge, states\) → state; got 'tree'$"):
        merge_all([a, a], "tree")
    with pytest.raises(TypeError, match=r"^order must return a LSEState; .* returned int$"):
        merge_all([a], lambda plus, parts: 7)


def test_states_of_two_libraries_are_refused(torch_lib):
    a = random_state(torch_lib, LSEState, np.random.default_rng(14), (4, 2))
    b = LSEState(*map(np.float32, map(values, a)))
    with pytest.raises(TypeError, match=r"^state 1 must be of the same library as state 0 \(torch\); got numpy$"):
        merge(a, b)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", ORDERS)
def test_operands_are_not_changed(lib, kind, order):
    # faults:E5. NumPy's operands are read-only as well.
    rng = np.random.default_rng(15)
    parts = [random_state(lib, kind, rng, (4, 2)) for _ in range(3)] + empty_states(lib, kind, 4, 2)
    before = [s.map(lambda x: lib.array(values(x))) for s in parts]
    merge_all(parts, order)
    assert all(map(same_state, parts, before))
