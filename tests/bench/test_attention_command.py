"""`fdmath bench attention`: what is asked for, refused, printed and recorded; a device and its clock are pretended."""

import functools
import json
import sys

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath.bench import attention, attention_command, attention_measure, command, peers  # noqa: E402
from fdmath.bench import attention_studies as studies  # noqa: E402
from fdmath.bench import device as device_bench  # noqa: E402
from fdmath.bench.attention import ATOMICS, HOPPER, MINE, OURS, Shape, row_of  # noqa: E402
from fdmath.bench.attention_peers import CONTENDERS, Contender  # noqa: E402
from tests.bench.attention_lab import right  # noqa: E402

THEIRS = '''
import fdmath

def right(q, k, v, causal):
    o, lse = fdmath.attention(q.double(), k.double(), v.double(), causal=causal)
    return o.to(q.dtype), lse.float()

def never_causal(q, k, v, causal):
    return right(q, k, v, False)
'''
RATES = {"short": 700.0, "sustained": 600.0}
SMALL = ["attention", "--dims", "16", "--hidden", "32", "--tokens", "32", "--lengths", "16", "32", "--peers", "flash"]


class Pretended:
    """A clock on which every call takes 20 µs."""

    rounds = 1

    def seconds(self, call):
        return [20e-6]


@pytest.fixture
def device(tmp_path, monkeypatch):
    """A pretended device on which every contender is right; yields the table of contenders to change."""
    (tmp_path / "mine.py").write_text(THEIRS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(attention_command, "no_device", lambda: "")
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda: "Pretended")
    monkeypatch.setattr(attention_measure, "matrix_rates", lambda dtype: RATES)
    monkeypatch.setattr(studies, "compile_ahead", lambda tasks, processes: tasks)
    clocks = dict.fromkeys(attention_measure.CLOCKS, Pretended())
    lab = functools.partial(attention_measure.Lab, device="cpu", clocks=clocks)
    monkeypatch.setattr(attention_measure, "Lab", lab)
    monkeypatch.setattr(studies, "GROWING", (16, 32))
    monkeypatch.setattr(studies, "peak_bytes", lambda peer, shape, *tensors: 100 * shape.keys)
    monkeypatch.setattr(studies, "Shape", functools.partial(Shape, q_heads=2, kv_heads=2, dim=16))
    on_device = peers.on_device
    monkeypatch.setattr(peers, "on_device", lambda subject: on_device(subject, "cpu"))
    table = {name: Contender(name, right) for name in CONTENDERS}
    table[ATOMICS] = Contender(ATOMICS, right, passes=("backward",))
    table[HOPPER] = Contender(HOPPER, right, passes=("forward",))
    monkeypatch.setattr("fdmath.bench.attention_peers.CONTENDERS", table)
    yield table
    sys.modules.pop("mine", None)


def test_without_a_device_one_sentence_says_what_to_do(capsys):
    assert command.main(["attention"]) == 2
    said = capsys.readouterr().err.splitlines()
    assert len(said) == 1 and "CUDA device" in said[0] and "fdmath bench cpu" in said[0]


def test_every_word_names_a_contender_that_there_is():
    assert set(attention_command.PEERS.values()) == set(CONTENDERS) - set(MINE)
    assert set(attention_command.TABLES) == set(attention.STUDIES)
    assert attention_command.parser().parse_args([]).dtypes == ("bfloat16",)


@pytest.mark.parametrize("words, said", [
    (["--dims", "96"], "--dims must divide"), (["--lengths", "99999"], "--lengths must be at most"),
    (["--dtypes", "float32"], "float32"), (["--library", "numpy"], "--library"),
    (["--json", "/absent/out.json"], "absent")])
def test_what_cannot_be_measured_is_said_first(device, words, said, capsys):
    assert command.main(["attention", *words]) == 2
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--dims", "0"], ["--masks", "half"], ["--peers", "none"], ["--studies", "none"],
                                   ["--seconds", "-1"], ["--role", "merge"]])
def test_words_that_there_are_not_are_refused_by_name(words, capsys):
    with pytest.raises(SystemExit) as stop:
        command.main(["attention", *words])
    assert stop.value.code == 2 and words[0] in capsys.readouterr().err


def test_rows_are_printed_and_recorded(device, tmp_path, capsys):
    assert command.main([*SMALL, "--dtypes", "bfloat16,float16", "--commit", "abc", "--json", "out.json"]) == 0
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    rows = record["rows"]
    assert all(tuple(row) == attention.FIELDS and row["status"] == "ok" for row in rows)
    counts = {study: sum(row["study"] == study for row in rows) for study in attention.STUDIES}
    five = 2 * 5  # two dtypes; forward of two, backward of three
    assert counts == {"errors": 2 * five, "memory": 2 * 2 * 3, "speed": 4 * five, "sustained": 2 * five}
    assert {(row["study"], row["us"]) for row in rows} == {
        ("errors", None), ("memory", None), ("speed", 20), ("sustained", 20)}
    assert record["ceilings"] == {"matmul_tflops": {"bfloat16": RATES, "float16": RATES}} and record["commit"] == "abc"
    assert set(record["seconds"]) >= {"compiling", "ceilings", "bfloat16 speed", "float16 sustained"}
    out = capsys.readouterr().out
    assert "700 in short bursts, 600 sustained" in out and "d 16  causal S 32" in out and "20 runs, the same" in out
    assert "the most that ours errs / SDPA flash: 1.000" in out and "0.0 (100)" in out


def test_only_what_is_asked_for_is_measured(device, tmp_path):
    asked = [*SMALL, "--masks", "causal", "--studies", "speed", "--json", "out.json"]
    assert command.main(asked) == 0
    rows = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["rows"]
    assert {(row["study"], row["causal"], row["keys"]) for row in rows} == {("speed", True, 16), ("speed", True, 32)}
    assert {row["implementation"] for row in rows} == {OURS, ATOMICS, "SDPA flash"}


def test_the_kernel_for_hopper_cards_is_ours_and_measured_when_asked_for(device, tmp_path, capsys):
    assert command.main([*SMALL, "--hopper", "--studies", "speed", "--json", "out.json"]) == 0
    rows = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))["rows"]
    assert {row["pass"] for row in rows if row["implementation"] == HOPPER} == {"forward"}
    out = capsys.readouterr().out
    assert "fdmath, Hopper, times as fast as: flash 1.00 to 1.00" in out and "fdmath, Hopper  " not in out
    device[HOPPER] = Contender(HOPPER, lambda shape: 1 / 0)
    assert command.main([*SMALL, "--hopper", "--studies", "speed"]) == 1


def test_ours_is_compiled_once_a_kind_and_others_at_every_length(device, monkeypatch):
    seen = []
    for name in (OURS, "SDPA flash"):
        device[name] = Contender(name, right, compiles=True)
    monkeypatch.setattr(studies, "compile_ahead", lambda tasks, processes: seen.extend(tasks) or tasks)
    command.main([*SMALL, "--studies", "errors"])
    assert [(name, shape.causal) for _, shape, name in seen].count((OURS, True)) == 1
    assert sorted(shape.keys for _, shape, name in seen if name != OURS and shape.causal) == [16, 32]


def test_a_peer_that_raises_is_said_and_the_rest_goes_on(device, capsys):
    def raising(shape):
        raise OSError("no library")

    device["SDPA flash"] = Contender("SDPA flash", raising)
    assert command.main([*SMALL, "--studies", "speed"]) == 0
    out = capsys.readouterr().out
    assert "SDPA flash, forward: failed: raised OSError: no library (d 16  full   S 16) and 3 more" in out
    device[OURS] = Contender(OURS, raising)
    assert command.main([*SMALL, "--studies", "speed"]) == 1


def test_a_wrong_output_is_code_1(device, capsys):
    device["SDPA flash"] = Contender("SDPA flash", lambda shape: lambda *x: (right(shape)(*x)[0] * 2, None))
    assert command.main([*SMALL, "--studies", "speed"]) == 1
    out = capsys.readouterr().out
    assert "SDPA flash, forward: wrong: err_o 1 is beyond" in out and "!" in out


def test_too_much_memory_is_code_1(device, monkeypatch, capsys):
    monkeypatch.setattr(studies, "peak_bytes", lambda peer, shape, *tensors: 10**8 * shape.keys)
    assert command.main([*SMALL, "--studies", "memory"]) == 1
    assert "fdmath, backward: wrong: 1600000000 bytes are beyond" in capsys.readouterr().out


def test_a_subject_is_timed_once_it_has_passed_the_laws(device, monkeypatch, capsys):
    laws = functools.partial(device_bench.verify, laws=["anchor", "causality"], cases=30)
    monkeypatch.setattr(device_bench, "verify", laws)
    asked = [*SMALL, "--studies", "speed", "--p-dtype", "bfloat16", "--subject"]
    assert command.main([*asked, "mine:right"]) == 0
    assert "right" in capsys.readouterr().out.splitlines()[4]
    assert command.main([*asked, "mine:never_causal"]) == 1
    out = capsys.readouterr().out
    assert "mine:never_causal is not timed" in out and "TFLOP" not in out


def test_nothing_more_is_begun_when_the_time_is_up(device, monkeypatch, capsys):
    monkeypatch.setattr(device_bench.Run, "over", True)
    assert command.main([*SMALL, "--seconds", "5"]) == 2  # nothing was measured
    assert "bfloat16 speed: stopped after 5 s" in capsys.readouterr().out


def test_a_shape_that_breaks_is_noted_and_the_others_are_kept(device, monkeypatch, tmp_path):
    whole = studies.timed_rows

    def breaking(lab, shape, peers, study="speed"):
        if shape.keys == 16:
            raise RuntimeError("no memory")
        return whole(lab, shape, peers, study)

    monkeypatch.setattr(studies, "timed_rows", breaking)
    assert command.main([*SMALL, "--studies", "speed", "--json", "out.json"]) == 1
    record = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert {row["keys"] for row in record["rows"]} == {32}
    assert record["notes"] == ["speed, bfloat16: RuntimeError: no memory"] * 2


def a_row(name, which, us, **more):
    """A timed row."""
    return row_of("speed", which, Shape(), "bfloat16", name, 700.0, us=us, us_least=us, **more)


def test_a_line_has_the_share_the_price_and_the_verdict():
    rows = [a_row(OURS, "backward", 500.0, err_dq=1e-3), a_row(ATOMICS, "backward", 400.0),
            a_row("SDPA flash", "backward", 1000.0),
            row_of("speed", "backward", Shape(), "bfloat16", "FlashAttention-4", status="not run", note="absent")]
    lines = attention_command.speed_table(rows).splitlines()
    rate = rows[0]["tflops"]
    assert lines[1] == "bfloat16 speed backward, TFLOP/s" and lines[2].split()[:6] == [
        "fdmath", "atomics", "flash", "fa4", "of", "matrix"]
    assert lines[3].split() == ["d", "128", "full", "S", "4096", f"{rate:.0f}", f"{rows[1]['tflops']:.0f}",
                                f"{rate / 2:.0f}", "-", f"{rate / 700:.0%}", "1.25", "SDPA", "flash", "2.00", "ahead",
                                "1.0e-03", "-", "-"]
    assert lines[4] == "fdmath, times as fast as: flash 2.00 to 2.00"
    assert lines[5] == "FlashAttention-4, backward: not run: absent (d 128 full   S 4096)"


def test_tables_of_nothing_are_texts():
    assert all(isinstance(table([]), str) for table in attention_command.TABLES.values())


def test_a_number_that_is_none_is_not_hidden_behind_the_others():
    errors = {OURS: (float("nan"), 1e-3), "SDPA flash": (1e-3, 1e-3)}
    rows = [row_of("errors", "forward", Shape(), "bfloat16", name, err_o=o, err_lse=lse)
            for name, (o, lse) in errors.items()]
    assert attention_command.error_table(rows).endswith("SDPA flash: nan")


def test_points_stand_in_order_whatever_was_measured_first():
    rows = [row_of("speed", "forward", Shape(dim=dim, keys=keys), "bfloat16", OURS, 700.0, us=1.0)
            for dim, keys in ((64, 512), (128, 1024), (128, 512))]
    lines = attention_command.speed_table(rows).splitlines()[3:6]
    assert [line.split()[:5:2] for line in lines] == [["d", "full", "512"], ["d", "full", "1024"], ["d", "full", "512"]]
    assert [line.split()[1] for line in lines] == ["128", "128", "64"]
