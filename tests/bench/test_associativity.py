"""Associativity measured: gaps within the bounds, folds that are the folds they claim to be, bounds that can fail."""

import numpy as np
import pytest

import fdmath
from fdmath.algebra import rounding
from fdmath.algebra.merge import unstack
from fdmath.bench import associativity
from fdmath.bench.associativity import (
    COMBINE,
    FORMS,
    LEVELS,
    apart,
    chain,
    chain_budgets,
    chain_states,
    keys,
    long_folds,
    merge_levels,
    prefixes,
    streams_at_once,
    three_states,
    tree_at_once,
)
from fdmath.bench.headline import Form, fold_bound

ROWS = 256
FP32 = rounding.format_of("float32")


@pytest.mark.parametrize("stats", ["float32", "float64", "bfloat16"])
@pytest.mark.parametrize("form", FORMS)
def test_two_bracketings_lie_within_their_bounds_and_are_not_the_same(form, stats):
    rows = [apart(level, form, stats, ROWS) for level in LEVELS]
    assert all(row.ratio <= 1 and 0 <= row.gap <= row.allowed for row in rows)
    assert any(row.gap > 0 for row in rows) and all(row.bitwise < 1 for row in rows)


def test_a_merge_that_is_not_associative_exceeds_its_bound(monkeypatch):
    def mean(a, b):
        return type(a)((a.o + b.o) / 2, np.maximum(a.lse, b.lse))

    monkeypatch.setitem(associativity.FORMS, "mean", Form(fdmath.LSEState, mean, fold_bound))
    row = apart(0, "mean", rows=ROWS)
    assert not row.ratio <= 1 and row.bitwise < 1


def test_one_that_is_associative_on_every_bit_is_said_to_be(monkeypatch):
    def larger(a, b):
        first = a.lse >= b.lse
        return type(a)(np.where(first[:, None], a.o, b.o), np.maximum(a.lse, b.lse))

    monkeypatch.setitem(associativity.FORMS, "max", Form(fdmath.LSEState, larger, fold_bound))
    row = apart(0, "max", rows=ROWS)
    assert row.bitwise == 1 and row.gap == 0


@pytest.mark.parametrize("kind", COMBINE)
@pytest.mark.parametrize("stats", ["float32", "float64", "bfloat16"])
def test_the_states_of_every_spelling_have_the_formats_asked_for(kind, stats):
    for state in three_states(100, kind, stats, ROWS):
        formats = {name: str(getattr(state, name).dtype) for name in state.names}
        assert formats.pop(state.payload_name) == ("float64" if stats == "float64" else "float32")
        assert set(formats.values()) == {stats}


@pytest.mark.parametrize("kind", COMBINE)
def test_the_long_folds_have_the_bits_of_the_orders(kind):
    parts = keys(kind, 24)
    states = unstack(parts)
    for count, state in chain(parts, [1, 2, 24]).items():
        assert _same(state, fdmath.merge_all(states[:count], fdmath.sequential))
    # one element a call: rows of other lengths may take other vector instructions
    lone = parts.map(lambda x: x[:, :1])
    for order, (state, budget) in {fdmath.tree: tree_at_once(lone, FP32),
                                   fdmath.streams(4): streams_at_once(lone, 4, FP32)}.items():
        right = fdmath.merge_all(unstack(lone), order)
        bound = rounding.fold_budget(unstack(lone), order, FP32)
        for x, y, most in zip(_pair(state), _pair(right), bound, strict=True):
            assert np.all(np.abs(x - y) <= 2 * most)
        assert order is not fdmath.tree or _same(merge_levels(lone), state)
        for x, y in zip(budget, bound, strict=True):
            assert np.all(np.abs(x / y - 1) <= 2.0**-20)  # float64 against float64: 2⁻²⁰ tells any two folds apart


def test_streams_that_do_not_come_out_even_are_refused():
    with pytest.raises(ValueError, match="must be a multiple of count; got 10 and 4"):
        streams_at_once(keys(fdmath.LSEState, 10), 4, FP32)


@pytest.mark.parametrize("kind", COMBINE)
def test_the_bounds_of_a_chain_are_those_of_its_fold_and_hold(kind):
    parts = keys(kind, 200)
    bounds, exact, counts = chain_budgets(parts, FP32), prefixes(parts), [1, 2, 50, 200]
    for count, state in chain(parts, counts).items():
        fold = rounding.fold_budget(unstack(parts)[:count], fdmath.sequential, FP32)
        for x, y in zip(bounds, fold, strict=True):
            assert np.all(y <= x[count - 1]) and np.all(x[count - 1] <= 1.25 * y)
        right = fdmath.LSEState(exact.o[count - 1], exact.lse[count - 1])
        judge = 2.0**-40  # a few hundred float64 roundings at most, where the bounds are about 2⁻²³
        for x, y, most in zip(_pair(state), right, bounds, strict=True):
            assert np.all(np.abs(x - y) <= most[count - 1] + judge)


def test_a_proposal_that_is_too_small_is_refused(monkeypatch):
    monkeypatch.setattr(associativity, "_summed", lambda after, carried, kept, worth: np.zeros((len(after) + 1,
                                                                                             *after.shape[1:])))
    with pytest.raises(RuntimeError, match="no bound was found"):
        chain_budgets(keys(fdmath.LSEState, 20), FP32)


def test_the_states_of_a_chain_are_those_of_its_prefixes():
    for kind in COMBINE:
        parts = keys(kind, 30)
        for state, count in ((chain_states(parts), 17), (prefixes(parts), 17)):
            right = fdmath.merge_all([rounding.in_float64(s) for s in unstack(parts)[:count]])
            got = _pair(state.map(lambda x, n=count: x[n - 1]))
            for x, y in zip(got, _pair(right), strict=True):
                assert np.all(np.abs(x - y) <= 2.0**-40)  # some dozens of float64 roundings of numbers below 8


@pytest.mark.parametrize("kind", COMBINE)
def test_long_folds_lie_within_their_bounds_and_depth_sets_the_bound(kind):
    found = long_folds(kind, [5, 20, 400], streams=20)
    assert all(0 <= row.error <= row.bound and row.ratio <= 1 for rows in found.values() for row in rows)
    assert found["tree"][-1].bound < found["streams"][-1].bound < found["chain"][-1].bound


def test_a_chain_that_is_wrong_leaves_its_bound(monkeypatch):
    right = associativity.chain

    def shifted(parts, counts):
        return {n: type(s)(s.o + 1, s.lse) for n, s in right(parts, counts).items()}

    monkeypatch.setattr(associativity, "chain", shifted)
    found = long_folds(fdmath.LSEState, [20], streams=20)
    assert not found["chain"][0].ratio <= 1 and found["tree"][0].ratio <= 1


def _pair(state):
    return rounding.in_float64(state).to(fdmath.LSEState)


def _same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))
