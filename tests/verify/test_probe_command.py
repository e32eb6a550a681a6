"""`fdmath probe`: exit codes, what a declaration on the command line means, a function that kills or hangs."""

import json
import re
import sys

import pytest

from fdmath.verify.probe_command import main, told

MINE = '''
import os
import time
import numpy as np

def attention(q, k, v, causal):
    s = q @ k.swapaxes(-1, -2) / np.sqrt(q.shape[-1], dtype=q.dtype)
    if causal:
        s = np.where(np.arange(s.shape[-1]) <= np.arange(s.shape[-2])[:, None], s, -np.inf)
    m = s.max(-1, keepdims=True)
    p = np.exp2((s - m) * np.log2(np.e, dtype=s.dtype))
    l = p.sum(-1, keepdims=True)
    return p @ v / l, (m * np.log2(np.e, dtype=s.dtype) + np.log2(l))[..., 0]

def dies(q, k, v, causal):
    if q.shape[1] != k.shape[1]:
        os._exit(7)
    return attention(q, k, v, causal)

def hangs(q, k, v, causal):
    if q.shape[1] != k.shape[1]:
        time.sleep(60)
    return attention(q, k, v, causal)

def raises(*args):
    raise RuntimeError("no device")
'''


@pytest.fixture
def here(tmp_path, monkeypatch):
    (tmp_path / "spoken.py").write_text(MINE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield tmp_path
    sys.modules.pop("spoken", None)


def asked(*words):
    return main([*words, "--role", "attention", "--in-process", "--dtype", "float32"])


def test_what_is_not_declared_is_found_and_exits_0(here, capsys):
    assert asked("spoken:attention", "--json", "out.json") == 0
    out = capsys.readouterr().out
    assert "log_base" in out and "0 contradict a declaration" in out
    rows = {row["name"]: row for row in json.loads((here / "out.json").read_text(encoding="utf-8"))["traits"]}
    assert rows["log_base"]["value"] == 2 and rows["log_base"]["declared"] is None
    assert rows["causal"]["value"] == "top_left"


def test_a_contradicted_declaration_exits_1_and_a_right_one_0(here, capsys):
    assert asked("spoken:attention", "--log-base", "e") == 1
    assert "1 contradict a declaration (log_base)" in capsys.readouterr().out
    assert asked("spoken:attention", "--log-base=2", "--causal", "top_left") == 0


def test_minus_infinity_can_be_typed_and_no_time_cannot(here, capsys):
    assert asked("spoken:attention", "--empty", "-inf") == asked("spoken:attention", "--empty=-inf")
    with pytest.raises(SystemExit) as ended:
        asked("spoken:attention", "--limit", "-1")
    assert ended.value.code == 2 and "must be more than 0" in capsys.readouterr().err


def test_a_default_is_no_declaration():
    assert told(["mine:fn", "--role", "merge", "--log-base=2", "--in-place"]) == {"log_base", "in_place"}
    assert told(["mine:fn", "--claims", "commutativity"]) >= {"commutativity", "associativity"}


@pytest.mark.parametrize("target", ["spoken:raises", "spoken:absent", "absent:fn", "spoken", "spoken:np"])
def test_what_cannot_run_exits_2_with_a_sentence(here, capsys, target):
    assert asked(target) == 2
    printed = "".join(capsys.readouterr())
    assert "Traceback" not in printed and ("could not run: " in printed or "no device" in printed)


def test_a_contract_that_cannot_be_written_exits_2(here, capsys):
    assert asked("spoken:attention", "--json", str(here / "absent" / "out.json")) == 2
    assert "could not write the contract" in capsys.readouterr().err


@pytest.mark.parametrize(("name", "words"), [("dies", "its process died: exit code 7"), ("hangs", "hung: no answer")])
def test_a_function_that_dies_or_hangs_at_one_question_answers_the_others(here, capsys, name, words):
    assert main([f"spoken:{name}", "--role", "attention", "--limit", "3", "--dtype", "float32"]) == 0
    out = capsys.readouterr().out
    heads = out[out.index("heads   ") :].splitlines()
    assert "could not tell" in heads[0] and words in heads[1]
    assert re.search("causal +top_left", out) and "2 could not be told (heads, empty)" in out
