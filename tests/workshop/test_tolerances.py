"""The search for tolerances finds what is planted and leaves inputs alone."""

import pytest

from fdmath.workshop import tolerances

PLANTED = [
    "assert error <= 1e-6",
    "assert error <= 0.001 * scale",
    "assert -1e-9 < error",
    "assert error <= max(bound, 1e-7)",
    "assert numpy.allclose(a, b)",
    "numpy.testing.assert_allclose(a, b)",
    "assert a == pytest.approx(b)",
    "check(a, b, atol=1)",
    "check(a, b, rel_tol=0.5)",
    "SLACK = 1e-5",
    "slack: float = 2 * 1e-5",
    "def close(a, b, slack=1e-5): pass",
    "def close(a, b, *, slack=1e-5): pass",
    "assert error <= 1e-6  # noqa: E501",
]
INNOCENT = [
    "assert error <= budget",
    "assert error <= 8 * u",
    "assert error <= 0.5",
    "assert merge([1e-30], 5e-324) == 0",
    "scores = numpy.array([1e-300, 1e-6])",
    "strategy = floats(1e-6, 1e6)",
    "text = 'atol=1e-6'",
    "assert error <= 1e-6  # half an ulp at 16, the largest value here",
    "epsilon = numpy.finfo(x.dtype).eps",
]


@pytest.mark.parametrize("line", PLANTED)
def test_a_planted_tolerance_is_found(line):
    assert tolerances.unexplained(f"first = 1\n{line}\n") == [2]


@pytest.mark.parametrize("line", INNOCENT)
def test_what_is_no_tolerance_or_says_why_is_left_alone(line):
    assert tolerances.unexplained(f"first = 1\n{line}\n") == []


def test_a_call_over_several_lines_is_explained_where_it_is_named():
    assert tolerances.unexplained("assert allclose(\n    a,  # left\n    b,\n)\n") == [1]
    assert tolerances.unexplained("assert allclose(  # exact by T3\n    a,\n    b,\n)\n") == []


def test_package_and_tests_are_searched(tmp_path):
    for folder in ("fdmath", "tests"):
        (tmp_path / folder / "inner").mkdir(parents=True)
        (tmp_path / folder / "inner" / "planted.py").write_text("assert e <= 1e-6\n", encoding="utf-8")
    found = list(tolerances.complaints(tmp_path))
    assert len(found) == 2 and all("planted.py:1: a tolerance without its reason: assert e <= 1e-6" in c for c in found)
