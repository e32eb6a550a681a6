"""Every law of the verifier asked of the kernels in Triton's interpreter: run by `test_interpreted.py`.

Ten cases a cell. The merge, and decoding in float32, are asked every law; the other formats and roles those of FEW.
With FDMATH_KERNEL_LAWS=all in the environment every cell is asked.
"""

import os

import pytest

from fdmath.verify.judge import ask
from fdmath.verify.laws import LAWS
from tests.kernels.subjects import subjects

FEW = {"decode": ("anchor", "empty", "v is 1", "poison"), "partial": ("anchor", "empty"),
       "attention": ("anchor", "empty", "causality")}
WHOLE = ("split-KV kernel, float32", "merge kernel")


def asked(law, subject):
    """Whether a cell of the matrix is asked here. The kernels have no gradient, and say so."""
    whole = subject.name in WHOLE or os.environ.get("FDMATH_KERNEL_LAWS") == "all"
    return law.concerns(subject) and law.name != "gradient" and (whole or law.name in FEW[subject.role])


CELLS = [(law, s) for s in subjects("cpu") for law in LAWS.values() if asked(law, s)]


@pytest.mark.parametrize(("law", "subject"), CELLS, ids=[f"{law.name}-{s.name}" for law, s in CELLS])
def test_law(law, subject):
    cell = ask(law, subject, 10)
    assert cell.verdict == "pass", cell.counterexample
    assert cell.cases >= 10
