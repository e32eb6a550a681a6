"""Traces: the pencil example digit for digit, and every step of every order."""

import math

import numpy as np
import pytest

from fdmath import AccState, LSEState, MLOState, flat, merge_all, ring, sequential, streams, trace, trace_keys, tree
from fdmath.algebra.rounding import KAPPA, unit_roundoff
from tests.algebra.libraries import FORMATS, dtype_name, holds, same, values
from tests.algebra.states import KINDS, empty_states, random_state, state

# Base-2 scores 0, 0, 1, 2 with values 2, 6, 0, 3: (step, m, α, l, acc, o, lse) after each key.
PENCIL = [
    ("key 1", 0.0, 0.0, 1.0, 2.0, 2.0, 0.0),
    ("key 2", 0.0, 1.0, 2.0, 8.0, 4.0, 1.0),
    ("key 3", 1.0, 0.5, 2.0, 4.0, 2.0, 2.0),
    ("key 4", 2.0, 0.5, 2.0, 5.0, 2.5, 3.0),
]


@pytest.mark.parametrize("dtype", FORMATS)
def test_the_pencil_example_key_by_key(lib, dtype):
    rows = trace_keys(lib.array([0, 0, 1, 2], dtype), lib.array([2, 6, 0, 3], dtype), base=2)
    for row, (step, m, alpha, l, acc, o, lse) in zip(rows, PENCIL, strict=True):
        assert row.step == step
        assert holds(row.m, m) and holds(row.alpha, alpha) and holds(row.l, l) and holds(row.lse, lse)
        assert holds(row.acc, [acc]) and holds(row.o, [o])
        assert {dtype_name(x) for x in row[1:]} == {"float64" if dtype == "float64" else "float32"}


def test_the_table_of_the_pencil_example_is_printed(lib):
    rows = trace_keys(lib.array([0, 0, 1, 2]), lib.array([2, 6, 0, 3]), base=2)
    assert str(rows) == repr(rows) == "\n".join([
        " step  m  alpha  l  acc    o  lse",
        "key 1  0      0  1    2    2    0",
        "key 2  0      1  2    8    4    1",
        "key 3  1    0.5  2    4    2    2",
        "key 4  2    0.5  2    5  2.5    3",
    ])  # fmt: skip
    table = rows._repr_html_()
    assert table.count("<tr>") == 5 and "<td>2.5</td>" in table and "<th>alpha</th>" in table


@pytest.mark.parametrize("dtype", FORMATS)
def test_a_table_shows_any_format(lib, dtype):
    part = AccState(lib.array([2.0], dtype), lib.array([1.0], dtype), lib.array([[3.0, -0.5]], dtype))
    row = str(trace([part], flat)).splitlines()[1]
    assert " ".join(row.split()) == "part 1 2 1 1 3, -0.5 3, -0.5 2"


@pytest.mark.parametrize("order", [sequential, tree, streams(5), flat])
@pytest.mark.parametrize("kind", [MLOState, AccState])
def test_the_pencil_example_tile_by_tile(lib, order, kind):
    tiles = [AccState(lib.array(0.0), lib.array(z), lib.array([y])).to(kind) for z, y in ((2.0, 8.0), (6.0, 12.0))]
    rows = trace(tiles, order)
    assert [row.step for row in rows] == ["part 1", "part 2", "flat" if order is flat else "merge 1"]
    for row, expected in zip(rows, [(2, 8, 4), (6, 12, 2), (8, 20, 2.5)], strict=True):
        assert holds(row.m, 0.0) and holds(row.alpha, 1.0) and holds(row.l, expected[0])
        assert holds(row.acc, [expected[1]]) and holds(row.o, [expected[2]])
        assert same(row.lse, AccState(row.m, row.l, row.acc).finalize().lse)


def test_in_natural_logarithms_alpha_is_the_exponential_of_the_step(lib):
    rows = trace_keys(lib.array([0.0, 1.0]), lib.array([[1.0, 2.0], [3.0, 4.0]]))
    assert holds(rows[0].acc, [1.0, 2.0]) and holds(rows[0].lse, 0.0) and holds(rows[1].m, 1.0)
    alpha = lib.array(math.exp(-1.0))
    # exp within κ u, and the float that is compared with within u.
    assert abs(values(rows[1].alpha) - values(alpha)) <= (KAPPA + 1) * unit_roundoff("float32") * values(alpha)
    assert same(rows[1].l, rows[1].alpha + 1) and same(rows[1].acc, rows[1].alpha * rows[0].acc + lib.array([3.0, 4.0]))


def test_unseen_keys_leave_no_trace(lib):
    scores, v = [-math.inf, -math.inf, 0, -math.inf, 1], [math.nan, 5, 2, math.inf, 6]
    rows = trace_keys(lib.array(scores), lib.array(v), base=2)
    for row in rows[:2]:
        assert holds(row.m, -math.inf) and holds(row.lse, -math.inf)
        assert holds(row.alpha, 0.0) and holds(row.l, 0.0) and holds(row.acc, [0.0]) and holds(row.o, [0.0])
    for row in rows[2:4]:
        assert holds(row.m, 0.0) and holds(row.l, 1.0) and holds(row.acc, [2.0]) and holds(row.o, [2.0])
    assert holds(rows[3].alpha, 1.0) and holds(rows[4].alpha, 0.5)
    assert holds(rows[4].l, 1.5) and holds(rows[4].acc, [7.0])


def test_no_keys_no_rows(lib):
    assert trace_keys(lib.array([]), lib.array([])) == ()


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [sequential, tree, streams(2), ring(1), flat])
def test_a_trace_ends_where_the_fold_does(lib, kind, order):
    rng = np.random.default_rng(1)
    parts = [random_state(lib, kind, rng, (3, 2)) for _ in range(5)]
    rows, folded = trace(parts, order), merge_all(parts, order)
    assert len(rows) == 5 + (1 if order is flat else 4)
    for row, part in zip(rows, parts, strict=False):
        assert same(row.m, part.to(AccState).m) and same(row.acc, part.to(AccState).acc)
        assert holds(row.alpha, [1.0] * 3)
    assert same(rows[-1].o, folded.to(MLOState).o) and same(rows[-1].l, folded.to(AccState).l)
    last = merge_all(parts[:2], sequential).to(AccState)
    if order is flat:
        assert np.array_equal(values(rows[-1].alpha), values(lib.module.exp(rows[0].m - rows[-1].m)))
    if order in (sequential, tree):
        assert rows[5].step == "merge 1" and same(rows[5].acc, last.acc)
        assert np.array_equal(values(rows[5].alpha), values(lib.module.exp(parts[0].to(AccState).m - last.m)))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("order", [sequential, flat])
def test_empty_states_have_numbers_in_their_trace(lib, kind, order):
    for nothing in empty_states(lib, kind, 1, 1)[:3]:
        rows = trace([nothing, nothing, state(lib, kind, [0.0], [[7.0]])], order)
        assert holds(rows[-1].o, [[7.0]]) and holds(rows[-1].alpha, [0.0])
        assert all(not np.isnan(values(row.alpha)).any() for row in rows)


def test_what_cannot_be_traced_is_refused(lib):
    scores, v = lib.array([0.0, 1.0]), lib.array([2.0, 3.0])
    with pytest.raises(ValueError, match=r"^base must be math.e or 2; got 10$"):
        trace_keys(scores, v, base=10)
    for s, x in ((scores, v[:1]), (scores[None], v), (scores, v[:, None, None]),
                 (scores, lib.array(np.zeros((3, 2))))):  # fmt: skip
        with pytest.raises(ValueError, match=r"^scores must be \(N,\) and v \(N,\) or \(N, dv\); got \("):
            trace_keys(s, x)
    with pytest.raises(TypeError, match=r"^scores must have a float dtype .*; got int32$"):
        trace_keys(lib.integers([0, 1]), v)
    pair = state(lib, LSEState, [0.0], [[7.0]])
    with pytest.raises(TypeError, match=r"^state 1 must be of the kind of state 0"):
        trace([pair, pair.to(MLOState)], sequential)
