"""`fdmath verify`: exit codes 0, 1, 2, the counterexample as literals, JSON, and the matrix."""

import importlib.util
import json
import os
import subprocess
import sys

import numpy as np
import pytest

from fdmath.verify import Subject, command, subjects
from fdmath.verify.command import declared_in, declared_subject, joined, main, own_matrix, parser, replay
from fdmath.verify.report import Cell
from fdmath.verify.worker import Here
from tests.verify import badly_behaved, fake_installed

MINE = '''
import numpy as np

def unguarded(o1, lse1, o2, lse2):
    m = np.maximum(lse1, lse2)
    a, b = np.exp(lse1 - m), np.exp(lse2 - m)
    return (a[:, None] * o1 + b[:, None] * o2) / (a + b)[:, None], m + np.log(a + b)

def base_two(o1, lse1, o2, lse2):
    low = np.maximum(np.maximum(lse1, lse2), -1e30)
    a, b = np.exp2(lse1 - low), np.exp2(lse2 - low)
    total = np.where(a + b == 0, 1, a + b)
    o1, o2 = np.where(a[:, None] == 0, 0, o1), np.where(b[:, None] == 0, 0, o2)
    return (a[:, None] * o1 + b[:, None] * o2) / total[:, None], np.where(a + b == 0, -np.inf, low + np.log2(total))

not_a_function = 3
'''
BROKEN = "def fn(:"
RAISES = "raise RuntimeError('no device')"


def judge(*words):
    """The exit code of `fdmath verify *words` without a second process."""
    return main([*words, "--in-process"])


@pytest.fixture
def here(tmp_path, monkeypatch):
    for name, text in (("mine", MINE), ("broken", BROKEN), ("raises", RAISES)):
        (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("mine", None)


def test_a_broken_merge_exits_1_with_a_smallest_input_that_python_reads(here, capsys):
    assert judge("mine:unguarded", "--laws", "empty,shift", "--json", "out.json") == 1
    out = capsys.readouterr().out
    assert "mine:unguarded: empty: fail" in out
    from fdmath import LSEState

    lines = [x.split(": ", 1)[1] for x in out.splitlines() if x.strip().startswith("part ")]
    operands = [eval(x, {"LSEState": LSEState, "np": np}) for x in lines]  # noqa: S307 - our own output
    assert len(operands) == 2
    with np.errstate(invalid="ignore"):
        o, lse = sys.modules["mine"].unguarded(*operands[0], *operands[1])
    assert np.all(np.isnan(o))  # the operands printed are the ones that break it
    assert np.all(np.isneginf([s.lse for s in operands]))
    assert json.loads((here / "out.json").read_text(encoding="utf-8"))["exit_code"] == 1


def test_a_lawful_merge_exits_0_with_its_base_declared_and_1_with_another(here, capsys):
    assert judge("mine:base_two", "--log-base", "2", "--cases", "20") == 0
    assert "no law is broken" in capsys.readouterr().out
    assert judge("mine:base_two", "--log-base", "e", "--cases", "20", "--only", "anchor,shift") == 1
    out = capsys.readouterr().out
    assert "contradicted: mine:base_two: log_base=" in out
    assert "as if every lse were in base 2 (the law holds with the declaration log_base=2)" in out
    assert "replay: fdmath verify mine:base_two --log-base e --cases 20 --in-process --only anchor" in out


def test_what_is_not_declared_is_found_and_said(here, capsys):
    assert judge("mine:base_two", "--cases", "20", "--only", "anchor,shift") == 0
    out = capsys.readouterr().out
    assert "found: log_base 2, empty -inf" in out and "log_base 2: " in out


@pytest.mark.parametrize("target", ["mine:absent", "absent:fn", "mine", "mine:not_a_function", "broken:fn",
                                    "raises:fn"])
def test_what_cannot_be_found_exits_2_and_says_so(here, capsys, target):
    assert judge(target) == 2
    assert "could not run: " in capsys.readouterr().err


def test_a_function_of_another_role_exits_2(here):
    assert judge("mine:unguarded", "--role", "block", "--laws", "anchor") == 2


def test_the_matrix_is_complete_and_the_same_in_two_processes():
    one, two = (own_matrix(["empty", "commutativity"], cases=3, jobs=jobs) for jobs in (1, 2))
    assert one.exit_code == two.exit_code == 0
    assert one.summary() == two.summary()
    assert one.counts()["missing"] == 0


@pytest.mark.parametrize("encoding", ["cp1252", "cp936", "ascii"])
def test_the_matrix_prints_in_any_encoding(encoding):
    env = {**os.environ, "PYTHONIOENCODING": encoding, "PYTHONUTF8": "0"}
    run = subprocess.run([sys.executable, "-m", "fdmath", "verify", "--laws", "empty", "--cases", "2", "--jobs", "1"],
                         capture_output=True, env=env, check=False)
    assert run.returncode == 0, run.stderr
    assert b"cells:" in run.stdout


def test_a_law_about_another_role_is_not_called_held(here, capsys):
    assert judge("mine:unguarded", "--laws", "causality") == 2
    assert "no law was asked" in capsys.readouterr().out


def test_a_report_that_cannot_be_written_exits_2(here, capsys):
    assert judge("mine:unguarded", "--laws", "shift", "--json", str(here / "absent" / "out.json")) == 2
    assert "could not write the report" in capsys.readouterr().err


def test_an_unknown_claim_exits_2(here, capsys):
    assert judge("mine:unguarded", "--claims", "comutativity") == 2
    assert "comutativity" in capsys.readouterr().err


def test_nothing_is_left_beside_the_users_code(here):
    judge("mine:unguarded", "--laws", "shift")
    assert not (here / ".hypothesis").exists()


def test_the_kernels_are_subjects_only_where_they_can_run(monkeypatch):
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not subjects.kernels_run()
    assert [s.name for s in subjects.all_subjects()] == [s.name for s in subjects.own_subjects()]


def test_the_seed_and_the_formats_are_passed_on_and_the_report_holds_all(here):
    words = ["mine:unguarded", "--only", "empty,shift", "--dtype", "float32", "--seed", "3", "--cases", "9"]
    assert judge(*words, "--json", "out.json") == 1
    told = json.loads((here / "out.json").read_text(encoding="utf-8"))
    assert told["schema"] == 1 and told["counts"]["fail"] == 1
    empty, shift = told["cells"]
    assert (empty["law"], empty["verdict"], empty["dtype"], empty["came"]) == ("empty", "fail", "float32", "nan")
    assert any("fault A1" in text for text in empty["explained"])
    assert shift["verdict"] == "pass" and told["notes"]["mine:unguarded"][0].startswith("found: log_base e")


def test_a_declaration_that_changes_the_library_is_told():
    args = parser().parse_args(["math:exp", "--device", "meta"])
    assert (declared_subject(args).library, declared_subject(args).device) == ("torch", "meta")
    assert declared_subject(parser().parse_args(["math:exp"])).device == "cpu"


def test_what_a_function_takes_can_be_declared():
    words = ["math:exp", "--no-lse", "--role", "partial", "--no-groups", "--dims", "64,192:128", "--most-queries", "16",
             "--flushed", "1e-38", "--exp-u", "8", "--largest-dim=256"]
    subject = declared_subject(parser().parse_args(words))
    assert (subject.lse, subject.grouped, subject.dims) == (False, False, ((64, 64), (192, 128)))
    assert (subject.most_queries, subject.flushed, subject.exp_u, subject.largest_dim) == (16, 1e-38, 8, 256)
    names = {"lse", "role", "grouped", "dims", "most_queries", "flushed", "exp_u", "largest_dim"}
    assert declared_in(words) == names


@pytest.mark.parametrize("dims", ["64:64:64", "wide", ""])
def test_head_dimensions_that_are_no_pairs_are_code_2(here, dims):
    with pytest.raises(SystemExit) as ended:
        judge("mine:unguarded", "--dims", dims)
    assert ended.value.code == 2


@pytest.mark.parametrize(("words", "again"), [
    (["m:f", "--only", "anchor,shift", "--seed", "2"], 'fdmath verify m:f --seed 2 --only "left identity"'),
    (["--json", "a b.json", "m:f", "--laws=anchor"], 'fdmath verify m:f --only "left identity"'),
    (["--installed", "--cases", "9"], 'fdmath verify "m:f" --installed --cases 9 --only "left identity"'),
])
def test_the_line_that_asks_again(words, again):
    assert replay(words, "left identity", Subject("m:f", "merge", print)) == again.replace('"m:f"', "m:f")


@pytest.mark.parametrize(("words", "told"), [
    (["mine.py:unguarded"], "as mine:unguarded; got 'mine.py:unguarded'"),
    (["./sub/mine.py"], "as sub.mine:function; got './sub/mine.py'"),
    (["mime:unguarded"], "no module 'mime' here"),
    (["mine:unguarded", "--only", "closre"], "(did you mean 'closure'?)"),
])
def test_a_slip_is_told_what_was_meant(here, capsys, words, told):
    assert judge(*words) == 2
    assert told in capsys.readouterr().err


def test_what_a_module_of_the_users_lacks_is_named(here, capsys):
    (here / "lacking.py").write_text("import no_such_module_here", encoding="utf-8")
    assert judge("lacking:fn") == 2
    assert "No module named 'no_such_module_here'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["--cases", "0"], ["--cases", "-3"], ["--limit", "-1"], ["--limit", "nan"]])
def test_a_number_that_cannot_be_is_refused_by_its_option(capsys, words):
    with pytest.raises(SystemExit, match="2"):
        main(["mine:unguarded", *words])
    assert f"argument {words[0]}: must be more than 0" in capsys.readouterr().err


def test_minus_infinity_can_be_typed_as_the_help_spells_it():
    words = joined(["m:f", "--empty", "-inf", "--seed", "1"])
    assert words == ["m:f", "--empty=-inf", "--seed", "1"]
    assert parser().parse_args(words).empty == "-inf"


def test_how_much_is_asked_is_said_at_once_and_the_formats_at_the_end(here, capsys):
    judge("mine:unguarded", "--only", "shift,causality", "--cases", "5", "--dtype", "float32")
    out, err = capsys.readouterr()
    assert err.startswith("mine:unguarded: laws to ask: 1, each on 5 inputs") and "inputs in float32" in out


@pytest.fixture
def fakes(monkeypatch):
    """The stand-in of what is installed, in this process."""
    monkeypatch.setattr(command, "INSTALLED", fake_installed.__name__)
    monkeypatch.setattr(command, "Worker", Here)


def test_what_is_installed_is_judged_beside_what_is_expected(fakes, monkeypatch, capsys):
    assert main(["--installed", "--only", "inputs kept", "--cases", "5"]) == 0
    out = capsys.readouterr().out
    assert "not installed:\n  1 not installed\n  other: other is not installed" in out
    assert "not for cpu:\n  1 not for cpu\n  far: runs on mars alone" in out and "cannot run here" not in out
    assert "accepted: known since 1.2" in out
    assert 'replay: fdmath verify overwrites --installed --cases 5 --only "inputs kept"' in out
    monkeypatch.setattr(badly_behaved, "overwrites", badly_behaved.right)
    assert main(["overwrites", "--installed", "--only", "inputs kept", "--cases", "5"]) == 1
    assert "contradicted: it keeps its inputs now" in capsys.readouterr().out
    assert main(["right", "--installed", "--device", "cuda", "--only", "inputs kept", "--cases", "5"]) == 1
    assert "contradicted: nothing is expected here" in capsys.readouterr().out


def test_what_dies_hangs_or_raises_in_its_first_call_ends_nothing_but_its_own_process(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(command, "INSTALLED", fake_installed.__name__)
    monkeypatch.setattr(fake_installed, "here", lambda *_: ["dies", "hangs", "raises", "not_made", "right"])
    words = ["--installed", "--only", "shift", "--cases", "2", "--limit", "3", "--json", str(tmp_path / "out.json")]
    assert main(words) == 2
    out = capsys.readouterr().out
    assert ("installed, but cannot run here:\n  dies: its process died: exit code 3, in a call of fn\n"
            "  hangs: hung: no answer within 3 s, in a call of fn\n"
            "  raises: cannot run an ordinary call: RuntimeError: no kernel\n"
            "  not_made: ImportError: no module named mykernel\n\n") in out
    assert "1 = right" in out and "1 not installed" in out
    told = json.loads((tmp_path / "out.json").read_text(encoding="utf-8"))
    assert told["exit_code"] == 2 and list(told["unable"]) == ["dies", "hangs", "raises", "not_made"]


def test_a_broken_law_outweighs_what_cannot_run(fakes, monkeypatch):
    monkeypatch.setattr(fake_installed, "here", lambda *_: ["raises", "overwrites"])
    words = ["--installed", "--only", "inputs kept", "--cases", "5"]
    assert main(words) == 2
    monkeypatch.setattr(fake_installed, "expected", lambda device: {("overwrites", "shift"): "no such law is asked"})
    monkeypatch.setattr(fake_installed, "surprises", lambda *_: [])
    assert main(words) == 1


def test_what_sees_no_device_is_neither_missing_nor_unable(fakes, monkeypatch, capsys):
    monkeypatch.setattr(fake_installed, "here", lambda *_: ["sees_none", "right"])
    assert main(["--installed", "--only", "shift", "--cases", "2"]) == 0
    out = capsys.readouterr().out
    assert "2 not for cpu\n  far: runs on mars alone\n  sees_none: it sees no device" in out
    assert "cannot run here" not in out


@pytest.mark.parametrize("verdict", ["fail", "undecided", "not run"])
def test_a_line_that_blames_rows_without_keys_is_held_to_it(fakes, monkeypatch, capsys, verdict):
    monkeypatch.setattr(fake_installed, "WITH_KEYS", Cell(verdict, "budget"))
    assert main(["overwrites", "--installed", "--only", "inputs kept", "--cases", "5"]) == 1
    assert (f"contradicted: overwrites: inputs kept: {verdict} in rows with keys, accepted in rows without keys alone\n"
            "inputs kept of overwrites, 5 cases") in capsys.readouterr().out


def test_a_wrong_name_lists_what_can_be_asked(capsys):
    assert main(["torch maths", "--installed"]) == 2
    assert "name must be one of torch flash, CPU, attention, " in capsys.readouterr().err


def test_an_expectation_of_no_device_is_refused(capsys):
    assert main(["--installed", "--device", "tpu", "--only", "shift"]) == 2
    assert "device must be one of cpu, cuda; got 'tpu'" in capsys.readouterr().err


def test_progress_needs_no_tqdm(monkeypatch, here):
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "tqdm" else find(name))
    assert judge("mine:unguarded", "--only", "shift", "--cases", "5") == 0
