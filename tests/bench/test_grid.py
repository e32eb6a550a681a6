"""The error grid: its inputs, its cells within their bounds, wrong code outside them, and the record."""

import math

import numpy as np
import pytest

import fdmath
from fdmath.algebra import rounding
from fdmath.bench import grid


@pytest.fixture(scope="module")
def case():
    return grid.synthetic(100, "float32", levels=(0, 1000))


@pytest.fixture(scope="module")
def rows(case):
    return list(grid.measure(case, 16))


def test_every_kind_order_and_source_is_a_cell_within_its_bound(case, rows):
    cells = {(row.kind, row.order, row.source) for row in rows}
    assert len(rows) == len(cells) == len(grid.KINDS) * len(grid.ORDERS) * len(case.sources)
    assert all(row.ratio <= 1 and row.error <= row.bound for row in rows)


def test_the_worst_error_is_that_of_the_cell(case, rows):
    for kind, order in ("o/lse", "chain"), ("m/l/acc", "tree"):
        found = grid.worst_error(case, 16, kind, order)
        assert found.tolist() == [row.error for row in grid.select(rows, kind=kind, order=order)]
        assert found.shape == (2,) and np.all(found > 0)


def test_sixteen_bit_inputs_are_judged_in_their_own_format():
    case = grid.synthetic(100, "bfloat16", levels=(30,))
    (row,) = grid.measure(case, 32, ["o/lse"], ["tree"])
    assert case.dtype == row.dtype == "bfloat16"
    assert 0 < row.error <= row.bound and row.ratio <= 1
    assert row.bound < 4  # in units of 2⁻⁸: little but the one rounding of o


def test_the_scores_have_their_level_and_the_values_change_halfway(case):
    scores = (case.q @ np.swapaxes(case.k, -1, -2))[:, 0, 0] / math.sqrt(grid.DIM)
    deviation = 1 / math.sqrt(100)  # of a mean of 100 numbers
    assert np.all(np.abs(scores.mean(axis=-1) - case.sources) < 5 * deviation)
    halves = case.v.reshape(2, 2, 50, grid.VALUE_DIM).mean(axis=(0, 2, 3))
    assert halves[0] - halves[1] > 1 / 2


@pytest.mark.parametrize("order", grid.ORDERS)
@pytest.mark.parametrize("kind", grid.KINDS)
def test_a_wrong_call_lies_outside_its_bound(case, kind, order, monkeypatch):
    right = fdmath.split_kv_attention

    def newest_key_forgotten(q, k, v, **options):
        return right(q, k[..., :-1, :], v[..., :-1, :], **options)

    monkeypatch.setattr(fdmath, "split_kv_attention", newest_key_forgotten)
    assert all(not row.ratio <= 1 for row in grid.measure(case, 16, [kind], [order]))


def test_a_result_of_nan_lies_outside_its_bound(case, monkeypatch):
    lost = fdmath.LSEState(np.full((2, 1, 1, grid.VALUE_DIM), np.nan), np.zeros((2, 1, 1)))
    monkeypatch.setattr(fdmath, "split_kv_attention", lambda *arrays, **options: lost)
    assert all(not row.ratio <= 1 for row in grid.measure(case, 16, ["o/lse"], ["flat"]))


@pytest.mark.parametrize("kind", grid.KINDS.values())
def test_the_tiles_of_the_bound_are_those_of_the_call(case, kind):
    parts, errors = grid.tiles_with_budgets(case, 16, kind)
    assert len(parts) == len(errors) == 7
    whole, wide = fdmath.merge_all(parts).finalize(), (x.astype(np.float64) for x in (case.q, case.k, case.v))
    exact = fdmath.attention(*wide)
    budget = grid.call_budget(parts, errors, fdmath.tree, rounding.format_of("float32"))
    # Two float64 computations of one state differ by far less than the float32 bound.
    assert np.all(np.abs(whole.o - exact.o) <= budget.o) and np.all(np.abs(whole.lse - exact.lse) <= budget.lse)


def test_the_bound_grows_with_every_source_of_error(case):
    fmt, order = rounding.format_of("float32"), fdmath.sequential
    parts, errors = grid.tiles_with_budgets(case, 16, fdmath.LSEState)
    none = [rounding.no_error(part) for part in parts]
    full, folded = (grid.call_budget(parts, e, order, fmt) for e in (errors, none))
    coarse = grid.call_budget(parts, errors, order, rounding.format_of("bfloat16"))
    assert np.all(folded.o < full.o) and np.all(full.o < coarse.o)


def test_captured_heads_are_cut_into_ragged_tiles():
    case = grid.captured(grid.HEADS[3:])
    (row,) = grid.measure(case, 1000, ["m/l/acc"], ["chain"])
    assert (row.keys, row.tile, row.source) == (1425, 1000, "smollm2/plain")
    assert row.ratio <= 1


def test_the_grid_has_no_tile_longer_than_its_sequence():
    rows = list(grid.grid(lengths=(16, 64), tiles=(16, 64), dtypes=("float32",), levels=(0,)))
    assert sorted({(row.keys, row.tile) for row in rows}) == [(16, 16), (64, 16), (64, 64)]
    lengths, tiles, cells = grid.table(rows, kind="m/l/o", order="flat")
    assert (lengths, tiles) == ([16, 64], [16, 64])
    assert np.isnan(cells[0, 1]) and np.all(np.isfinite([cells[0, 0], *cells[1]]))
    (row,) = grid.select(rows, kind="m/l/o", order="flat", keys=64, tile=16)
    assert cells[1, 0] == row.error


def test_what_the_command_records_reads_back(tmp_path, capsys, monkeypatch):
    folder = tmp_path / "bench" / "results"
    folder.mkdir(parents=True)
    assert grid.main(["--lengths", "32", "--record", str(folder)]) == 0
    assert "worst error / bound" in capsys.readouterr().out
    monkeypatch.setattr(grid.records.resources, "files", lambda package: tmp_path)
    head, back = grid.recorded()
    rows = list(grid.grid((32,)))
    assert head["command"].endswith("--lengths 32") and {"commit", "device", "versions", "date"} <= set(head)
    assert [row[:6] for row in back] == [row[:6] for row in rows] and len(rows) == 2 * 3 * 12
    assert all(float(f"{a:.4g}") == b for row, got in zip(rows, back, strict=True)
               for a, b in zip(row[6:], got[6:], strict=True))


def test_the_recorded_grid_is_whole_and_within_its_bounds():
    _, rows = grid.recorded()
    cells = {row[:6] for row in rows}
    steps = [(n, t) for n in grid.LENGTHS for t in grid.TILES if t <= n]
    ways = len(grid.KINDS) * len(grid.ORDERS) * len(grid.LEVELS) * len(grid.DTYPES)
    assert len(rows) == len(cells) == len(steps) * ways
    assert all(row.ratio <= 1 and row.error <= row.bound for row in rows)


def test_the_command_fails_where_a_bound_is_broken(monkeypatch, capsys):
    bad = grid.Row(1, 1, "o/lse", "flat", 0, "float32", math.inf, 1.0, math.inf)
    monkeypatch.setattr(grid, "grid", lambda *lengths, **options: [bad])
    assert grid.main([]) == 1
    monkeypatch.setattr(grid, "grid", lambda *lengths, **options: [bad._replace(ratio=math.nan)])
    assert grid.main([]) == 1
