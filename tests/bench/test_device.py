"""What the benches of a device share: what is refused first, the record that grows, the clock of a run."""

import argparse
import json
import time

import pytest

pytest.importorskip("torch")

from fdmath.bench import device  # noqa: E402
from fdmath.bench.device import Run  # noqa: E402


def arguments(**given):
    """What the parsers give of the shared options."""
    return argparse.Namespace(**{"json": None, "seconds": None, "commit": "abc", "library": "torch",
                                 "dtypes": ["float16"], **given})


@pytest.fixture
def run(monkeypatch):
    """A Run on a pretended device, of some options."""
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "Pretended")
    return lambda **given: Run("thing", arguments(**given), ["--json", "a b", "--x", "a b"], (), (), ["mine"])


def test_dtypes_may_stand_apart_or_with_commas_and_are_refused_by_name():
    assert device.listed_dtypes(arguments(dtypes=["a,b", "c"]), "abc") == ["a", "b", "c"]
    with pytest.raises(ValueError, match="--dtypes must be among a; got b"):
        device.listed_dtypes(arguments(dtypes=["b"]), "a")
    with pytest.raises(ValueError, match="--library must be torch"):
        device.listed_dtypes(arguments(dtypes=["a"], library="numpy"), "a")


def test_a_missing_device_is_said_and_a_file_that_cannot_be_written_is_said_first(tmp_path, capsys):
    assert device.cannot_run(arguments(json="/absent/file"), "there is none")
    assert "there is none" in capsys.readouterr().err
    path = tmp_path / "out.json"
    assert not device.cannot_run(arguments(json=str(path)), "") and list(tmp_path.iterdir()) == []
    path.write_text("precious", encoding="utf-8")
    assert not device.cannot_run(arguments(json=str(path)), "") and path.read_text(encoding="utf-8") == "precious"
    with pytest.raises(IsADirectoryError):
        device.cannot_run(arguments(json=str(tmp_path)), "")
    with pytest.raises(OSError):
        device.cannot_run(arguments(json="/absent/file"), "")


def test_a_record_names_its_command_and_is_written_as_it_grows(run, tmp_path):
    path = tmp_path / "out.json"
    it = run(json=str(path))
    it.keep([{"a": 1}])
    it.keep([{"a": 2}])
    record = json.loads(path.read_text(encoding="utf-8"))
    assert record["command"] == "fdmath bench thing --json FILE --x 'a b'" and record["rows"] == [{"a": 1}, {"a": 2}]
    assert (record["device"], record["commit"], record["notes"], record["ceilings"]) == ("Pretended", "abc", [], None)


@pytest.mark.parametrize("row, notes, code", [
    ({"status": "ok", "implementation": "mine"}, [], 0), ({"status": "failed", "implementation": "mine"}, [], 1),
    ({"status": "failed", "implementation": "other"}, [], 0), ({"status": "wrong", "implementation": "other"}, [], 1),
    ({"status": "ok", "implementation": "mine"}, ["stopped"], 0),
    ({"status": "wrong", "implementation": "mine"}, ["stopped"], 1)])
def test_the_code_says_what_is_broken_and_not_that_the_time_was_up(run, row, notes, code, capsys):
    it = run()
    it.keep([row])
    it.head["notes"] += notes
    assert it.finish() == code and all(note in capsys.readouterr().out for note in notes)


def test_a_part_that_raised_is_code_1_and_nothing_measured_is_code_2(run, tmp_path, capsys):
    path = tmp_path / "out.json"
    path.write_text("precious", encoding="utf-8")
    nothing = run(json=str(path))
    assert nothing.finish() == 2 and path.read_text(encoding="utf-8") == "precious"
    it = run()
    it.keep([{"status": "ok", "implementation": "mine"}])
    it.trouble("study", OSError("no memory"))
    assert it.finish() == 1 and "study: OSError: no memory" in capsys.readouterr().out


def test_nothing_more_is_begun_when_the_time_is_up(run):
    it = run(seconds=5)
    assert list(it.bar([1, 2], "a")) == [1, 2] and list(it.head["seconds"]) == ["a"] and not it.over
    it.begun = time.monotonic() - 6
    assert list(it.bar([1, 2], "b")) == [] and it.head["notes"] == ["b: stopped after 5 s"]
    assert run().until is None and not run().over


def test_lines_that_differ_in_the_last_brackets_alone_are_one():
    assert device.without_repeats(["a (1)", "b (1)", "a (2)", "a (3)"]) == ["a (1) and 2 more", "b (1)"]
