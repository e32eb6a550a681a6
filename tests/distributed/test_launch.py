"""Ranks as processes: none outlives the call that started it, none starts others by being imported, none is believed
that left before its call returned."""

import subprocess
import sys

import pytest

from fdmath.distributed import launch, run_ranks
from fdmath.distributed.launch import values_of

UNGUARDED = """
from fdmath.distributed import run_ranks

def own():
    return 1

found, = run_ranks("unguarded:own", [()], deadline=60)
print(found.code, found.printed)
"""


def test_no_rank_outlives_an_interrupted_call(monkeypatch):
    started = []

    def interrupted(process, until):
        started.append(process)
        raise KeyboardInterrupt

    monkeypatch.setattr(launch, "_code", interrupted)
    with pytest.raises(KeyboardInterrupt):
        run_ranks("time:sleep", [(600,)])
    assert [process.poll() is None for process in started] == [False]


def test_a_script_that_its_own_ranks_import_starts_no_further_ones(tmp_path):
    (tmp_path / "unguarded.py").write_text(UNGUARDED)
    ran = subprocess.run([sys.executable, "unguarded.py"], cwd=tmp_path, capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0 and ran.stdout.startswith("1 "), ran
    assert "RuntimeError: ranks must not be started by the import of their target" in ran.stdout


def test_a_rank_that_leaves_with_exit_code_0_has_not_returned():
    found, = outcomes = run_ranks("os:_exit", [(0,)])
    assert (found.code, found.value, found.returned) == (0, None, False)
    with pytest.raises(RuntimeError, match="rank 0"):
        values_of(outcomes)
