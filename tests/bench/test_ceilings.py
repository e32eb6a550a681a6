"""What a device can do at most: sizes, and the read kernel, which must read every number (in Triton's interpreter)."""

import functools
import os
import subprocess
import sys

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath.bench import ceilings  # noqa: E402
from fdmath.bench.decode import Shape, rows_named  # noqa: E402
from fdmath.bench.timing import Timing  # noqa: E402

READ = """
import numpy as np, torch
from fdmath.bench import ceilings
x = torch.randint(-2**31, 2**31 - 1, (5000,), dtype=torch.int32)
for how in ((256, 1, 4), (256, 4, 4), (1024, 2, 8)):
    out = torch.zeros(40, dtype=torch.int32)
    ceilings.read(x, out, *how)
    assert np.bitwise_xor.reduce(out.numpy()) == np.bitwise_xor.reduce(x.numpy()), how
"""


def test_every_number_is_read():
    run = subprocess.run([sys.executable, "-c", READ], env=os.environ | {"TRITON_INTERPRET": "1"}, capture_output=True,
                         text=True, encoding="utf-8", check=False)
    assert run.returncode == 0, run.stderr


def test_sizes_are_those_of_the_rows_and_some_between():
    mib = [size // 2**20 for size in ceilings.sizes_of(rows_named(["all"]), "float16")]
    assert mib == sorted(set(mib)) and {1, 4, 8, 16, 32, 64, 66, 128, 256, 512, 1025} <= set(mib)
    assert len(ceilings.sizes_of([Shape("a", keys=1)], "float16")) >= 2


class Clock:
    """A graph whose call takes as long as its arguments say, in place of a device."""

    def __init__(self, call, sets, calls=20):
        self.us = 2 + 4 * sets[0][0].numel() / 4e6 if sets[0] else 0.5


def test_ceilings_are_derived_from_what_is_timed(monkeypatch):
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(ceilings, "Graph", Clock)
    monkeypatch.setattr(ceilings, "alternating", lambda graphs, **how: {
        name: Timing(*3 * [graph.us / 1e6]) for name, graph in graphs.items()})
    monkeypatch.setattr(ceilings, "LARGE", 2**22)
    for name in ("empty", "randn", "randint"):
        made = getattr(torch, name)
        monkeypatch.setattr(ceilings.torch, name, lambda *a, device, made=made, **k: made(*a, **k))
    monkeypatch.setattr(ceilings, "matmul_tflops", functools.partial(ceilings.matmul_tflops, size=64))
    found = ceilings.measure([2**20, 2**21], ["float16"])
    floor = found["floor"]
    assert (f"{floor['start_us']:.4f}", f"{floor['gb_per_s']:.2f}") == ("2.0000", "4000.00")
    assert [count for count, _ in floor["points"]] == [2**20, 2**21] and floor["misfit"] < 1e-9  # points on a line
    assert f"{found['read_gb_per_s']:.3f}" == f"{2**22 / (2 + 2**22 / 4e6) / 1e3:.3f}"
    assert found["launch_us"] == {"1": 0.5, "132": 0.5, "1056": 0.5}
    assert f"{found['matmul_tflops']['float16']:.6f}" == f"{2 * 64**3 / 0.5e-6 / 1e12:.6f}"
