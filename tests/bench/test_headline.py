"""The headline measurement: its inputs, its bounds, and statements that can fail."""

import dataclasses

import numpy as np
import pytest

import fdmath
from fdmath.bench import headline


@pytest.fixture(scope="module")
def case():
    return headline.synthetic(30, rows=4, keys=200)


@pytest.fixture(scope="module")
def panels():
    return headline.headline(levels=(0, 1000, 10000))


@pytest.mark.parametrize("stats", headline.FORMATS)
@pytest.mark.parametrize("form", headline.FORMS)
def test_errors_lie_within_their_bounds(case, form, stats):
    row = headline.measure(case, form, stats)
    assert row.ratio <= 1
    assert row.error <= row.bound


@pytest.mark.parametrize("stats", headline.FORMATS)
@pytest.mark.parametrize("form", headline.FORMS)
def test_a_wrong_merge_does_not(case, form, stats, monkeypatch):
    right = headline.FORMS[form]

    def too_large(a, b):
        both = right.merge(a, b)
        return dataclasses.replace(both, o=9 * both.o)

    monkeypatch.setitem(headline.FORMS, form, dataclasses.replace(right, merge=too_large))
    assert not headline.measure(case, form, stats).ratio <= 1


def test_the_tiles_hold_all_keys_and_keep_their_statistics_in_the_format(case):
    states = headline.tile_states(case.scores, case.v, fdmath.LSEState, "bfloat16")
    assert len(states) == -(-200 // headline.TILE)
    assert {str(s.lse.dtype) for s in states} == {"bfloat16"}
    whole = fdmath.merge_all(headline.tile_states(case.scores, case.v, fdmath.LSEState, "float32"))
    assert np.all(np.abs(whole.lse - case.exact.lse_mid[:, 0]) < 1)


@pytest.mark.parametrize("form", headline.FORMS)
def test_the_size_of_a_tile_can_be_asked_for(case, form):
    states = headline.tile_states(case.scores, case.v, headline.FORMS[form].kind, "float32", tile=150)
    assert len(states) == 2
    rows = [headline.measure(case, form, "float32", tile) for tile in (150, 2)]
    assert all(row.ratio <= 1 for row in rows) and rows[0] != rows[1]


def test_a_captured_case_is_attention_of_the_head():
    head = fdmath.load_example("smollm2/plain")
    case = headline.captured("smollm2/plain", every=32)
    q, k, v = (np.asarray(x, np.float64) for x in (head.q, head.k, head.v))
    o, lse = fdmath.attention(q, k, v, causal=True)
    assert case.scores.shape == (2, len(k))
    fmt = fdmath.algebra.rounding.format_of("float32")
    rounded = fmt.u * np.max(np.abs(np.where(np.isinf(case.scores), 0, case.scores)), axis=-1)
    # Scores that differ by r move lse by r at most; the float64 definition itself errs far below that.
    assert np.all(np.abs(case.exact.lse_mid[:, 0] - lse[[31, 63]]) <= 2 * rounded)


def test_every_statement_of_the_figure_holds(panels):
    found = list(headline.statements(panels))
    assert len(found) == 7
    assert [sentence for holds, sentence in found if not holds] == []


def test_statements_fail_when_the_measurements_say_otherwise(panels):
    bad = headline.Row(error=1e9, bound=1.0, ratio=1e9)
    good = headline.Row(error=0.0, bound=1.0, ratio=0.0)

    def all_rows(row):
        return {name: dataclasses.replace(p, rows={form: [row] * len(p.levels) for form in headline.FORMS},
                                          head_rows={form: [row] * len(p.head_levels) for form in headline.FORMS})
                for name, p in panels.items()}

    broken = [sentence for row in (bad, good) for holds, sentence in headline.statements(all_rows(row)) if not holds]
    nan = headline.Row(error=float("nan"), bound=1.0, ratio=float("nan"))
    assert len(set(broken)) >= 5
    assert not any(holds for holds, _ in headline.statements(all_rows(nan)))
