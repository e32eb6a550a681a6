"""Every law of the verifier asked of every kernel in Triton's interpreter: run by `test_interpreted.py`.

Ten cases a cell; FDMATH_KERNEL_CASES=50 in the environment, as `fdmath test kernels --thorough` sets it, asks as many
as of other subjects.
"""

import os

import pytest

from fdmath.verify.command import own_matrix
from fdmath.verify.judge import ask
from fdmath.verify.kernels import kernel_subjects
from fdmath.verify.laws import LAWS

CASES = int(os.environ.get("FDMATH_KERNEL_CASES", "10"))
CELLS = [(law, s) for s in kernel_subjects() for law in LAWS.values() if law.concerns(s)]


@pytest.mark.parametrize(("law", "subject"), CELLS, ids=[f"{law.name}-{s.name}" for law, s in CELLS])
def test_law(law, subject):
    cell = ask(law, subject, CASES)
    assert cell.verdict == "pass", cell.counterexample
    assert cell.cases >= CASES or cell.grade == "false"  # a counterexample ends the search


def test_the_matrix_of_fdmath_verify_holds_the_kernels_where_they_run():
    report = own_matrix(["commutativity"], cases=1)
    assert {s.name for s in kernel_subjects()} < {s.name for s in report.subjects}
    assert report.cells["commutativity", "merge kernel"].verdict == "pass" and report.counts()["missing"] == 0


def test_every_law_but_those_of_a_merge_of_two_and_of_autograd_is_asked_of_a_kernel():
    left = [law for name, law in LAWS.items() if name not in {law.name for law, _ in CELLS}]
    assert all(law.roles == ("merge",) or law.name in ("gradient", "gradient poison", "wide heads") for law in left)
