"""The lab's command line: loopback only, a token of Jupyter's own, the first notebook."""

import os
import sys
from pathlib import Path

from fdmath.workshop import lab


def test_the_server_is_for_this_machine_with_its_token(tmp_path):
    words = lab.command(tmp_path, ["--no-browser"])
    assert words[:3] == [sys.executable, "-m", "jupyterlab"]
    assert Path(words[3]) == tmp_path / "notebooks" / "00_start_here.ipynb"
    assert "--ServerApp.ip=127.0.0.1" in words and words[-1] == "--no-browser"
    assert not any("token" in word or "password" in word for word in words)


def test_root_is_let_in(tmp_path, monkeypatch):
    for user, allowed in ((0, True), (1000, False)):
        monkeypatch.setattr(os, "geteuid", lambda user=user: user, raising=False)
        assert ("--allow-root" in lab.command(tmp_path, [])) is allowed
