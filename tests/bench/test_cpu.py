"""`fdmath bench cpu`: what is timed is what is named, errors are measured, a subject that breaks a law is not timed."""

import json
import sys
from functools import partial

import numpy as np
import pytest

from fdmath.bench import command, cpu
from fdmath.verify import verify

SMALL = ["cpu", "--keys", "40", "--tiles", "16", "--q-heads", "4", "--dim", "8", "--rounds", "1"]
MINE = '''
import numpy as np
import fdmath

def right(q, k, v):
    return fdmath.attention(q, k, v)

def without_scale(q, k, v):
    return fdmath.attention(q, k, v, scale=1.0)

def small_only(q, k, v):
    o, lse = fdmath.attention(q, k, v)
    return (o, lse) if k.shape[-2] < 2500 else (o * 0, lse)

def raises_later(q, k, v):
    assert k.shape[-2] < 2500, "too long"
    return fdmath.attention(q, k, v)

def base_two_last(q, k, v):
    o, lse = fdmath.attention(q, k, v, scale=0.5)
    return o, np.swapaxes(lse / np.log(2), -1, -2).astype(lse.dtype)

stored = {}

def caching(q, k, v):
    key = (id(q), id(k), id(v))
    if k.shape[-2] < 2500:
        return fdmath.attention(q, k, v)
    return stored.setdefault(key, fdmath.attention(q, k, v))

def overwriting(q, k, v):
    state = fdmath.attention(q, k, v)
    if k.shape[-2] > 2500:
        v[...] = np.nan
    return state
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(command, "verify", partial(verify, cases=5))  # whether laws are asked, not how often
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


@pytest.mark.parametrize("scale", [1.0, None])
def test_a_wrong_implementation_is_marked(scale):
    shape = cpu.Shape(1, 4, 2, 8, 40)
    q, k, v = cpu.inputs(shape, "float32")

    def call():
        return cpu.fdmath.attention(q, k, v, scale=scale)

    found = cpu._errors(shape, "float32", cpu.Entry("mine", call, call))
    assert found["status"] == ("wrong" if scale else "ok")
    assert (found["err_o"] > 1e4) == bool(scale)  # in u: a wrong scale, beside less than 100
    for broken in (lambda: (call().o * np.nan, None), lambda: (call().o[..., :1], None)):
        assert cpu._errors(shape, "float32", cpu.Entry("mine", broken, broken))["status"] == "wrong"


def test_a_subject_is_timed_once_it_has_passed_the_laws(here, capsys):
    assert command.main([*SMALL, "--dtypes", "float32", "--subject", "mine:right"]) == 0
    assert "mine:right" in capsys.readouterr().out
    assert command.main([*SMALL, "--dtypes", "float32", "--subject", "mine:without_scale"]) == 1
    out = capsys.readouterr().out
    assert "mine:without_scale is not timed" in out and "anchor" in out and cpu.READ not in out


LARGE = ["cpu", "--keys", "2600", "--tiles", "650", "--q-heads", "4", "--dim", "8", "--rounds", "1", "--no-peers",
         "--libraries", "numpy", "--json", "out.json"]


@pytest.mark.parametrize("name, code, status", [
    ("right", 0, "ok"), ("small_only", 1, "wrong"), ("raises_later", 1, "raised AssertionError: too long"),
    ("caching", 1, "wrong")])
def test_a_subject_that_fails_at_the_timed_size_is_marked(here, name, code, status):
    assert command.main([*LARGE, "--dtypes", "float32", "--subject", f"mine:{name}"]) == code
    rows = json.loads((here / "out.json").read_text(encoding="utf-8"))["rows"]
    assert {row["implementation"]: row["status"] for row in rows}[f"mine:{name}"] == status
    assert all(row["status"] == "ok" for row in rows if row["implementation"].startswith("fdmath"))


def test_the_conventions_that_are_declared_are_those_of_its_errors(here):
    declared = ["--log-base", "2", "--lse-layout", "heads_last", "--scale", "0.5"]
    assert command.main([*LARGE, "--dtypes", "float32", "--subject", "mine:base_two_last", *declared]) == 0
    rows = json.loads((here / "out.json").read_text(encoding="utf-8"))["rows"]
    mine = next(row for row in rows if row["implementation"].startswith("mine"))
    assert mine["err_o"] < 100 and mine["err_lse"] < 100  # in u, beside millions in another base or scale


def test_a_subject_has_arrays_of_its_own(here):
    command.main([*LARGE, "--dtypes", "float32", "--subject", "mine:overwriting", "--in-place"])
    rows = json.loads((here / "out.json").read_text(encoding="utf-8"))["rows"]
    assert all(row["status"] == "ok" for row in rows if row["implementation"].startswith("fdmath"))


@pytest.mark.parametrize("words", [["--keys", "0"], ["--tiles", "-1"], ["--rounds", "none"], ["--batch", "0"]])
def test_a_count_below_one_is_refused_by_name(words, capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(["cpu", *words])
    assert stop.value.code == 2 and words[0] in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--q-heads", "3"], ["--json", "/absent/out.json"],
                                   ["--memory", "--subject", "mine:right"], ["--dtypes", "int8"]])
def test_what_cannot_be_measured_is_said_first(here, words, capsys):
    assert command.main([*SMALL[:-4], "--rounds", "1", *words]) == 2
    assert "could not run" in capsys.readouterr().err


def test_bytes_of_odd_sizes_are_read(capsys):
    assert command.main(["cpu", "--keys", "3", "--tiles", "2", "--q-heads", "1", "--kv-heads", "1", "--dim", "3",
                         "--dtypes", "bfloat16", "--rounds", "1", "--no-peers"]) == 0


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
