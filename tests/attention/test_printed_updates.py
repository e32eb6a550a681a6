"""The printed recurrences: (1c) is right and divides at every key; three printed updates are wrong, as written down."""

import math

import numpy as np
import pytest

from fdmath import MLOState, sequential
from fdmath.algebra.rounding import fold_budget, format_of
from fdmath.attention.printed import (
    online_as_printed_A_3_1_1,
    update_as_printed_B,
    update_as_printed_FA2_line_10,
    update_as_printed_FA2_recap,
)
from fdmath.attention.softmax import online_state, partial_state
from tests.algebra.judgement import certified, finished, judge
from tests.algebra.libraries import holds, values
from tests.attention.calls import INF, NAN

PENCIL = [0.0, 0.0, 1.0, 2.0], [2.0, 6.0, 0.0, 3.0]


def base_2(x):
    return 2.0**x


def pencil(lib):
    scores, v = PENCIL
    return lib.array([scores]), lib.array(v)[:, None]


def key_by_key(update, scores, v):
    """The running (m, l, ·) after each key of one row, from the first key on."""
    m, l, o = scores[:, 0], scores[:, 0] * 0 + 1, v[:1]
    states = [(m, l, o)]
    for j in range(1, v.shape[0]):
        states.append(update(*states[-1], scores[:, j:j + 1], v[j:j + 1], exp=base_2))
    return states


def test_1c_of_the_pencil_example_is_exact(lib):
    scores, v = pencil(lib)
    for n, (m, l, o) in enumerate([(0, 1, 2), (0, 2, 4), (1, 2, 2), (2, 2, 2.5)], start=1):
        state = online_as_printed_A_3_1_1(scores[:, :n], v[:n], exp=base_2)
        assert all(map(holds, state, ([m], [l], [[o]])))
    assert all(map(holds, online_as_printed_A_3_1_1(scores[0], v, exp=base_2), (2, 2, [2.5])))  # a row alone


def test_1c_is_right_within_the_bound_of_the_chain(lib):
    rng = np.random.default_rng(2)
    scores, v = lib.array(4 * rng.standard_normal((6, 30))), lib.array(rng.standard_normal((30, 3)))
    keys = [partial_state(scores[:, j:j + 1], v[j:j + 1], MLOState) for j in range(30)]
    printed = MLOState(*online_as_printed_A_3_1_1(scores, v))
    judge(certified(keys), *finished(printed, fold_budget(keys, sequential, format_of("float32"))))
    assert np.array_equal(values(printed.m), values(online_state(scores, v, MLOState).m))


def test_1c_has_no_guard_for_hidden_keys_at_the_start(lib):
    scores, v = lib.array([[-INF, -INF, 0.0]]), lib.array([[5.0], [6.0], [7.0]])
    assert holds(online_as_printed_A_3_1_1(scores[:, 1:], v[1:])[2], [[7.0]])
    assert holds(online_as_printed_A_3_1_1(scores, v)[2], [[NAN]])  # F2
    assert holds(online_as_printed_A_3_1_1(scores[:, :1], v[:1])[1], [1.0])  # no key is seen, and one is counted


def test_1c_overflows_where_o_would_not(lib):
    # claims:A46: the numerator is formed unnormalised, so dividing at every key protects nothing.
    o = online_as_printed_A_3_1_1(lib.array([[0.0, 0.0]], "float16"), lib.array([[4e4], [4e4]], "float16"))[2]
    assert holds(o, [[INF]])


@pytest.mark.parametrize("update, seen", [
    (update_as_printed_B, [2.0, 4.0, 4.0, 5.5]),
    (update_as_printed_FA2_recap, [2.0, 7.0, 7.0, 8.5]),
    (update_as_printed_FA2_line_10, [2.0, 4.0, 8.0, 17.5]),
])
def test_the_printed_updates_are_wrong_on_the_pencil_example(lib, update, seen):
    states = key_by_key(update, *pencil(lib))
    normalised = [o / l[:, None] if update is update_as_printed_FA2_line_10 else o for _, l, o in states]
    assert [values(o).item() for o in normalised] == seen  # right: 2, 4, 2, 2.5
    assert [(values(m).item(), values(l).item()) for m, l, _ in states] == [(0, 1), (0, 2), (1, 2), (2, 2)]


def test_the_smallest_inputs_of_the_ledger(lib):
    # claims:B01: scores (0, log 3), values (1, 0): right 1/4, l₁/l₂ gives 3/4, its inverse 4/3. Rounded to 4 digits.
    m, l, o = lib.array([0.0]), lib.array([1.0]), lib.array([[1.0]])
    scores, v = lib.array([[math.log(3)]]), lib.array([[0.0]])
    for update, wrong in ((update_as_printed_B, 0.75), (update_as_printed_FA2_recap, 1.3333)):
        assert round(values(update(m, l, o, scores, v)[2]).item(), 4) == wrong


@pytest.mark.parametrize("update", [update_as_printed_FA2_recap, update_as_printed_FA2_line_10])
def test_the_inverted_updates_cannot_even_begin(lib, update):
    nothing = lib.array([-INF]), lib.array([0.0]), lib.array([[0.0]])
    assert holds(update(*nothing, lib.array([[0.0]]), lib.array([[1.0]]))[2], [[NAN]])  # 0/0
