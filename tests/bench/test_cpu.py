"""`fdmath bench cpu`: what is timed is what is named, errors are measured, a subject that breaks a law is not timed."""

import json
import sys

import numpy as np
import pytest

from fdmath.bench import command, cpu

SMALL = ["cpu", "--keys", "40", "--tiles", "16", "--q-heads", "4", "--dim", "8", "--rounds", "1"]
MINE = '''
import numpy as np
import fdmath

def right(q, k, v):
    return fdmath.attention(q, k, v)

def without_scale(q, k, v):
    return fdmath.attention(q, k, v, scale=1.0)
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("mine", None)


def test_rows_name_what_was_timed_with_its_errors(here, capsys):
    assert command.main([*SMALL, "--dtypes", "float32", "--orders", "flat", "chain", "--json", "out.json"]) == 0
    record = json.loads((here / "out.json").read_text(encoding="utf-8"))
    rows = {row["implementation"]: row for row in record["rows"]}
    ours = [cpu.name_of(library, 16, "lse", order) for library in ("torch", "numpy") for order in ("flat", "chain")]
    assert set(rows) == {cpu.READ, cpu.GQA, cpu.PACKED, *ours} and rows[cpu.READ]["share_of_floor"] == 1
    for name, row in rows.items():
        assert row["bytes"] == 2 * 2 * 40 * 8 * 4 and 0 < row["least"] <= row["seconds"] <= row["most"]
        if name != cpu.READ:
            assert 0 < row["err_o"] < 100  # in u: a wrong mask or scale would be millions
    assert all(row["err_lse"] < 100 for name, row in rows.items() if name in ours)  # in u, of an lse near 4
    assert record["command"].startswith("fdmath bench cpu --keys 40")
    out = capsys.readouterr().out
    assert all(name in out for name in rows) and "N 40  float32" in out


def test_a_wrong_implementation_has_a_large_error():
    shape = cpu.Shape(1, 4, 2, 8, 40)
    q, k, v = cpu.inputs(shape, "float32")
    calls = {"wrong": lambda: cpu.fdmath.attention(q, k, v, scale=1.0)}
    assert min(cpu._errors(shape, "float32", calls)["wrong"]) > 1e4  # in u, beside less than 100 for a right one


def test_a_subject_is_timed_once_it_has_passed_the_laws(here, capsys):
    assert command.main([*SMALL, "--dtypes", "float32", "--subject", "mine:right"]) == 0
    assert "mine:right" in capsys.readouterr().out
    assert command.main([*SMALL, "--dtypes", "float32", "--subject", "mine:without_scale"]) == 1
    out = capsys.readouterr().out
    assert "mine:without_scale is not timed" in out and "anchor" in out and cpu.READ not in out


def test_memory_is_printed_against_the_keys(capsys):
    assert command.main(["cpu", "--memory", "--keys", "64", "128", "--tiles", "16", "--dtypes", "float32"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:3]] == ["64", "128"]


def test_peak_bytes_sees_a_copy():
    x = np.zeros(2**18, np.float32)
    assert cpu.peak_bytes(lambda: x + 1) >= x.nbytes > cpu.peak_bytes(lambda: np.add(x, 1, out=x)) + 2**19


@pytest.mark.parametrize("words", [[], ["gpu"], ["-h"]])
def test_a_bench_that_there_is_not(words, capsys):
    assert command.main(words) == (0 if words == ["-h"] else 2)
    assert "cpu" in (capsys.readouterr().out if words == ["-h"] else capsys.readouterr().err)


def test_what_could_not_run_is_code_2(capsys):
    assert command.main([*SMALL, "--subject", "absent:fn"]) == 2
    assert "could not run" in capsys.readouterr().err
