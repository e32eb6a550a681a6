"""`fdmath bench decode`: what is asked for, refused, printed and recorded; a device and its clock are pretended."""

import functools
import json
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath.bench import ceilings, command, decode, decode_command, graphs, measure, peers, probes, records  # noqa: E402
from fdmath.bench import device as device_bench  # noqa: E402
from fdmath.bench.decode import OURS, TILED, Shape  # noqa: E402
from fdmath.bench.peers import Peer  # noqa: E402
from fdmath.bench.timing import Timing  # noqa: E402

MINE = '''
from fdmath.bench.probes import exact

def right(q, k, v):
    o, lse = exact(q, k, v)
    return o.to(q.dtype), lse.float()

def without_scale(q, k, v):
    o, lse = exact(q, k, v, scale=1.0)
    return o.to(q.dtype), lse.float()
'''
CEILINGS = {"read_gb_per_s": 4500.0,
            "floor": {"start_us": 2.0, "gb_per_s": 4000.0, "points": [[1, 2.0]], "misfit": 0.0},
            "launch_us": {"1": 0.5}, "matmul_tflops": {"float16": 700.0, "bfloat16": 700.0}}
SMALL = ["decode", "--batch", "2", "--q-heads", "4", "--keys", "40", "--dim", "16"]


def right(shape):
    """A decode that is right, with lse."""
    def call(q, k, v):
        o, lse = probes.exact(q, k, v)
        return o.to(q.dtype), lse.float()

    return call


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A pretended device: every call takes 20 µs, and every peer is right; yields the table of peers to change."""
    (tmp_path / "mine.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(decode_command, "no_device", lambda: "")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Pretended")
    monkeypatch.setattr(ceilings, "measure", lambda sizes, dtypes: CEILINGS)
    inputs = graphs.Inputs
    monkeypatch.setattr(graphs, "Inputs", lambda dtype, shapes: inputs(dtype, shapes, device="cpu", rotated=1))
    monkeypatch.setattr(measure.Bench, "timings",
                        lambda self, calls: dict.fromkeys(calls, Timing(20e-6, 19e-6, 21e-6)))
    on_device = peers.on_device
    monkeypatch.setattr(peers, "on_device", lambda subject: on_device(subject, "cpu"))
    table = {name: Peer(name, right) for name in peers.PEERS}
    monkeypatch.setattr(peers, "PEERS", table)
    yield table
    sys.modules.pop("mine", None)


def test_without_a_device_one_sentence_says_what_to_do(capsys):
    assert command.main(["decode"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "CUDA device" in said[0] and "fdmath bench cpu" in said[0]


def test_every_word_names_a_peer_that_there_is():
    assert set(decode_command.PEERS.values()) == set(peers.PEERS) - {OURS, TILED}
    from_studies = pytest.importorskip("fdmath.bench.studies").STUDIES
    assert decode_command.STUDIES == tuple(from_studies)


@pytest.mark.parametrize("words, said", [
    (["--rows", "blogs"], "blogs"), (["--rows", "blog", "--keys", "5"], "--rows"),
    (["--q-heads", "3"], "multiple of --kv-heads, 2; got 3"), (["--dtypes", "float32"], "float32"),
    (["--library", "numpy"], "--library"), (["--json", "/absent/out.json"], "absent")])
def test_what_cannot_be_measured_is_said_first(device, words, said, capsys):
    assert command.main(["decode", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--keys", "0"], ["--peers", "none"], ["--studies", "none"], ["--seconds", "-1"]])
def test_words_that_there_are_not_are_refused_by_name(words, capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(["decode", *words])
    assert stop.value.code == 2 and words[0] in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--dtypes", "float16", "bfloat16"], ["--dtypes", "float16,bfloat16"], []])
def test_rows_are_printed_and_recorded(device, words, tmp_path, capsys):
    assert command.main([*SMALL, *words, "--commit", "abc", "--peers", "cudnn", "eager", "--json", "out.json"]) == 0
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    rows = record["rows"]
    assert [(row["dtype"], row["implementation"]) for row in rows] == [
        (dtype, name) for dtype in decode.DTYPES for name in (OURS, TILED, "SDPA cuDNN", "eager, grouped")]
    assert all(tuple(row) == decode.FIELDS and row["row"] == "B=2,S=40" and row["us"] == 20 for row in rows)
    assert record["ceilings"] == CEILINGS and record["driver"] and record["commit"] == "abc"
    assert record["device"] == "Pretended" and "--json FILE" in record["command"] and record["notes"] == []
    out = capsys.readouterr().out
    assert "B=2,S=40" in out and "level" in out and "bfloat16" in out and "4500 GB/s" in out


def test_a_shape_has_defaults_and_rows_are_all_by_default():
    args = decode_command.parser().parse_args(["--keys", "100"])
    assert decode_command.shapes_of(args) == [Shape("B=1,S=100", keys=100)]
    assert len(decode_command.shapes_of(decode_command.parser().parse_args([]))) == 20


def test_a_peer_that_raises_is_said_and_the_rest_goes_on(device, capsys):
    def raising(shape):
        raise OSError("no library")

    device["SDPA cuDNN"] = Peer("SDPA cuDNN", raising)
    assert command.main([*SMALL, "--dtypes", "float16", "--peers", "cudnn", "flash"]) == 0
    out = capsys.readouterr().out
    assert "SDPA cuDNN: failed: raised OSError: no library" in out and "SDPA flash" in out
    device[OURS] = Peer(OURS, raising)
    assert command.main([*SMALL, "--dtypes", "float16", "--peers"]) == 1


def test_a_wrong_output_is_code_1(device, capsys):
    device["SDPA flash"] = Peer("SDPA flash", lambda shape: lambda q, k, v: (q * float("nan"), None))
    assert command.main([*SMALL, "--dtypes", "float16", "--peers", "flash"]) == 1
    out = capsys.readouterr().out
    assert "SDPA flash: wrong: err_o of random inputs is nan" in out and "20.00!" in out


def test_ours_is_not_ahead_where_it_is_wrong(device, monkeypatch, capsys):
    device[OURS] = Peer(OURS, lambda shape: lambda q, k, v: (2 * right(shape)(q, k, v)[0], None))
    times = {OURS: Timing(10e-6, 9e-6, 11e-6), "SDPA flash": Timing(20e-6, 19e-6, 21e-6)}
    monkeypatch.setattr(measure.Bench, "timings", lambda self, calls: {name: times.get(name) or times["SDPA flash"]
                                                                       for name in calls})
    assert command.main([*SMALL, "--dtypes", "float16", "--peers", "flash"]) == 1
    out = capsys.readouterr().out
    assert "10.00!" in out and "ahead" not in out and " wrong " in out


def test_a_subject_that_breaks_a_law_leaves_the_record_as_it_was(device, monkeypatch, tmp_path):
    monkeypatch.setattr(device_bench, "verify", functools.partial(device_bench.verify, laws=["anchor"], cases=5))
    path = tmp_path / "out.json"
    path.write_text("precious", encoding="utf-8")
    assert command.main([*SMALL, "--role", "partial", "--subject", "mine:without_scale", "--json", str(path)]) == 1
    assert path.read_text(encoding="utf-8") == "precious"


def test_time_that_is_up_is_no_fault_of_what_was_measured(device, monkeypatch, capsys):
    monkeypatch.setattr(measure.Bench, "over", property(lambda self: self.dtype == "bfloat16"))
    assert command.main([*SMALL, "--seconds", "5"]) == 0
    assert "bfloat16: stopped after 5 s" in capsys.readouterr().out


def test_a_subject_is_timed_once_it_has_passed_the_laws(device, monkeypatch, capsys):
    monkeypatch.setattr(device_bench, "verify", functools.partial(device_bench.verify, laws=["anchor"], cases=5))
    asked = [*SMALL, "--dtypes", "float16", "--peers", "--role", "partial", "--p-dtype", "float16", "--subject"]
    assert command.main([*asked, "mine:right"]) == 0
    out = capsys.readouterr().out
    assert "right" in out.splitlines()[7]
    assert command.main([*asked, "mine:without_scale"]) == 1
    out = capsys.readouterr().out
    assert "mine:without_scale is not timed" in out and "µs" not in out


def test_nothing_more_is_begun_when_the_time_is_up(device, monkeypatch, capsys):
    monkeypatch.setattr(measure.Bench, "over", True)
    assert command.main([*SMALL, "--seconds", "5"]) == 2  # nothing was measured
    assert "float16: stopped after 5 s" in capsys.readouterr().out


def test_a_study_that_breaks_is_noted_and_what_came_before_is_kept(device, monkeypatch, tmp_path):
    studies = pytest.importorskip("fdmath.bench.studies")

    def breaking(bench):
        yield [bench.row("steps", Shape("a"), "one", us=1.0)]
        raise RuntimeError("out of memory")

    monkeypatch.setattr(studies, "STUDIES", {"steps": breaking})
    monkeypatch.setattr(studies, "EVERY", [Shape("a", keys=4)])
    monkeypatch.setattr(studies, "GROWING", ())
    assert command.main([*SMALL, "--peers", "--studies", "steps", "--json", "out.json"]) == 1
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert [row["study"] for row in record["rows"]].count("steps") == 1
    assert record["notes"] == ["study steps, float16: RuntimeError: out of memory"]


def test_the_table_says_what_is_missing_once(capsys):
    shapes = [Shape("a"), Shape("b")]
    rows = [decode.row_of("peers", shape, "float16", name, decode.Floor(2.0, 4000.0), **more) for shape in shapes
            for name, more in ((OURS, {"us": 10.0, "us_least": 9.5, "err_o": 3e-4, "err_lse": 1e-6, "v_ones_ulp": 0.0}),
                               ("SDPA cuDNN", {"us": 12.5, "us_least": 12.0}),
                               ("FlashAttention-3", {"status": "not run", "note": "takes bfloat16"}))]
    lines = decode_command.table(rows).splitlines()
    assert lines[1] == "float16" and [line.split()[0] for line in lines[3:5]] == ["a", "b"]
    floor = f"{rows[0]['floor_us']:.2f}"
    assert lines[3].split() == ["a", floor, "10.00", "12.50", "-", f"{rows[0]['share_of_floor']:.0%}", "SDPA", "cuDNN",
                                "0.80", "ahead", "3.0e-04", "1.0e-06", "0"]
    assert lines[5] == "FlashAttention-3: not run: takes bfloat16 (a) and 1 more"


def test_the_record_can_be_read_back(tmp_path, monkeypatch):
    row = decode.row_of("peers", Shape("a"), "float16", OURS, us=1.0)
    path = records.write(tmp_path, "decode-h200", {"date": "2026-11-30", "ceilings": CEILINGS}, [row])
    monkeypatch.setattr(records.resources, "files", lambda name: tmp_path.parent)
    (tmp_path.parent / "bench").mkdir(exist_ok=True)
    target = tmp_path.parent / "bench" / "results"
    target.mkdir(exist_ok=True)
    path.rename(target / path.name)
    head, rows = decode.recorded()
    assert rows == [{**row, "gb_per_s": float(f"{row['gb_per_s']:.4g}")}] and head["ceilings"] == CEILINGS
