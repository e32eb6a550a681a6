"""The lab's options: loopback only, a token of Jupyter's own, the first notebook."""

import os

import pytest

from fdmath.workshop import lab


def test_the_server_is_for_this_machine_with_its_token(tmp_path):
    words = lab.options(tmp_path, ["--no-browser"])
    assert "--ServerApp.ip=127.0.0.1" in words and words[-1] == "--no-browser"
    assert f"--ServerApp.root_dir={tmp_path}" in words
    assert "--LabApp.default_url=/lab/tree/notebooks/00_start_here.ipynb" in words
    assert not any("token" in word or "password" in word for word in words)


@pytest.mark.parametrize(("user", "allowed"), [(0, True), (1000, False)])
def test_root_is_let_in(tmp_path, monkeypatch, user, allowed):
    monkeypatch.setattr(os, "geteuid", lambda: user, raising=False)
    assert ("--allow-root" in lab.options(tmp_path, [])) is allowed


def test_the_words_that_are_not_ours_go_to_jupyterlab(monkeypatch):
    seen = []
    monkeypatch.setattr(lab.LabApp, "launch_instance", seen.append)
    assert lab.main(["--no-browser", "--port=9999"]) == 0
    assert seen[0][-2:] == ["--no-browser", "--port=9999"]
