"""The laws asked of the compiled kernels on a CUDA device, thirty cases a cell: about ten a format."""

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

from fdmath.verify.judge import ask  # noqa: E402
from fdmath.verify.kernels import kernel_subjects  # noqa: E402
from fdmath.verify.laws import LAWS  # noqa: E402

CELLS = [(law, s) for s in kernel_subjects() for law in LAWS.values() if law.concerns(s)]


@pytest.mark.parametrize(("law", "subject"), CELLS, ids=[f"{law.name}-{s.name}" for law, s in CELLS])
def test_law(law, subject):
    cell = ask(law, subject, 30)
    assert cell.verdict == "pass", cell.counterexample
