"""Records of measurements: written with what is needed to repeat them, read back as they were."""

import json
import os
from pathlib import Path

import pytest

from fdmath.bench import records


def test_a_record_comes_back_as_it_was_written(tmp_path):
    head = records.provenance("fdmath bench this", ("numpy", "no-such-package"), ("bench",))
    path = records.write(tmp_path, "this-cpu", head, [{"a": 1, "b": 1.23456789}, [0.000123456, "x", None]])
    read = json.loads(path.read_text(encoding="utf-8"))
    assert path.name == f"this-cpu-{head['date']}.json"
    assert read["rows"] == [{"a": 1, "b": 1.235}, [0.0001235, "x", None]]
    assert set(read) == {"schema", "command", "commit", "device", "versions", "date", "rows"}
    assert list(read["versions"]) == ["numpy"] and read["command"] == "fdmath bench this"


def test_the_commit_says_whether_the_files_differ(monkeypatch):
    calls = []

    def git(words, **how):
        calls.append(words[3:])
        return type("Done", (), {"stdout": "abc123\n" if "rev-parse" in words else calls and " M x\n"})

    monkeypatch.setattr(records.subprocess, "run", git)
    assert records.commit(("algebra",)) == "abc123+"
    assert calls[0][0] == "ls-files" and calls[2] == ["status", "--porcelain", "--", "algebra"]

    def none(*words, **how):
        raise FileNotFoundError

    monkeypatch.setattr(records.subprocess, "run", none)
    assert records.commit(("algebra",)) == "unknown"


def test_what_was_not_recorded_is_said():
    with pytest.raises(FileNotFoundError, match="no record of 'nothing-of-the-kind'"):
        records.newest("nothing-of-the-kind")


def test_a_copy_that_git_does_not_keep_has_no_commit(tmp_path, monkeypatch):
    records.subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    monkeypatch.setattr(records, "__file__", str(tmp_path / "site" / "bench" / "records.py"))
    (tmp_path / "site").mkdir()
    assert records.commit(("algebra",)) == "unknown"


def test_what_json_cannot_hold_is_null():
    assert json.loads(records.text_of({"a": 1}, [{"x": float("nan"), "y": float("inf")}]))["rows"] == [
        {"x": None, "y": None}]


def test_a_file_is_replaced_when_all_is_written_and_kept_when_it_is_not(tmp_path, monkeypatch):
    path = tmp_path / "out.json"
    records.save(path, "old")
    records.save(path, "new")
    assert path.read_text(encoding="utf-8") == "new"
    whole = type(path).write_text

    def breaking(self, text, **how):
        whole(self, text[:1], **how)
        raise OSError("no space left")

    monkeypatch.setattr(type(path), "write_text", breaking)
    with pytest.raises(OSError, match="no space"):
        records.save(path, "newer")
    assert path.read_text(encoding="utf-8") == "new" and list(tmp_path.iterdir()) == [path]


def test_a_link_stays_one_and_what_is_no_file_is_written_to(tmp_path):
    path, link = tmp_path / "out.json", tmp_path / "link.json"
    path.touch()
    try:
        link.symlink_to(path)
    except OSError:
        pytest.skip("no links here")
    records.save(link, "text")
    assert link.is_symlink() and path.read_text(encoding="utf-8") == "text"
    records.check_writable(os.devnull)
    records.save(os.devnull, "text")
    assert not Path(os.devnull).is_file()
