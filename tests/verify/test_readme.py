"""README's section on verifying: its adapters, taken from the text, are lawful; its commands and options are there."""

import re
import sys

import pytest

from fdmath.pytest_plugin import OPTIONS
from fdmath.verify.command import main, parser
from fdmath.verify.subject import ROLES

KERNELS = '''
import numpy as np

from fdmath.algebra.merge import merge
from fdmath.algebra.state import LSEState
from fdmath.attention.decode import split_kv_attention
from fdmath.attention.reference import attention


def merge_into(o1, lse1, o2, lse2):
    o1[...], lse1[...] = merge(LSEState(o1, lse1), LSEState(o2, lse2))


class Decoder:
    def __init__(self, num_splits):
        self.num_splits = num_splits

    def plan(self, seq_lens):
        self.seq_lens = seq_lens

    def run(self, q, k, v, return_lse):
        mask = np.arange(k.shape[-2]) < self.seq_lens[:, None, None, None]
        return tuple(split_kv_attention(q, k, v, num_splits=self.num_splits, mask=mask))


def attention_of_tokens(q, k, v, causal):
    o, lse = attention(*(x.swapaxes(1, 2) for x in (q, k, v)), causal=causal)
    return o.swapaxes(1, 2), lse.swapaxes(1, 2)
'''
HEADER = re.compile(r"^# fdmath verify adapters:(\w+) (.*)$", re.MULTILINE)


@pytest.fixture(scope="module")
def section(root):
    """The text of README's section."""
    text = (root / "README.md").read_text(encoding="utf-8")
    return text.split("## Verify your own merge or kernel\n")[1].split("\n## ")[0]


@pytest.fixture
def adapters(section, tmp_path, monkeypatch):
    """The adapters as a module beside a stand-in of the kernels that they adapt; (name, options) of each."""
    blocks = [block for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL) if HEADER.search(block)]
    (tmp_path / "adapters.py").write_text("\n".join(blocks), encoding="utf-8")
    (tmp_path / "mykernels.py").write_text(KERNELS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    yield [HEADER.search(block).groups() for block in blocks]
    for name in ("adapters", "mykernels"):
        sys.modules.pop(name, None)


def test_the_three_adapters_are_lawful_as_the_text_calls_them(adapters, capsys):
    assert [name for name, _ in adapters] == ["merge", "decode", "attention"]
    for name, options in adapters:
        words = [*options.split(), "--cases", "6", "--only", "anchor,shift,empty,inputs kept", "--in-process"]
        assert main([f"adapters:{name}", *words]) == 0, capsys.readouterr().out
    said = capsys.readouterr().out
    assert "taken as in_place=True" in said and "lse_layout heads_last: " in said


def test_an_adapter_is_ten_lines_at_most(section):
    blocks = [block for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL) if HEADER.search(block)]
    assert all(len(block.splitlines()) <= 10 for block in blocks)


def test_options_and_roles_of_the_text_are_those_of_the_command(section):
    known = {option for action in parser()._actions for option in action.option_strings} | set(OPTIONS)
    assert set(re.findall(r"--[a-z][a-z-]*", section)) - known == set()
    assert all(f"`{role}`" in section for role in ROLES)
