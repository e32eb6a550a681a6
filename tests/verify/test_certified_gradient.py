"""The certified gradient: the definition passes, every slip fails, nothing is undecided, shapes are named."""

import numpy as np
import pytest

from fdmath.algebra.rounding import unit_roundoff
from fdmath.attention.reference import attention_gradient

pytest.importorskip("flint")

from fdmath.verify.certified_gradient import certified_gradient  # noqa: E402

RNG = np.random.default_rng(0)
Q, K, V = RNG.standard_normal((4, 3, 2)), RNG.standard_normal((2, 4, 2)), RNG.standard_normal((2, 4, 3))
DO, DLSE = RNG.standard_normal((4, 3, 3)), RNG.standard_normal((4, 3))
# Under a hundred float64 roundings of sums of terms that add up to less than a hundred.
BUDGETS = (100 * 100 * unit_roundoff("float64"),) * 3


@pytest.mark.parametrize("options", [{}, {"causal": True}, {"scale": 1.0}])
def test_the_gradient_by_definition_passes_and_slips_fail(options):
    right = certified_gradient(DO, DLSE, Q, K, V, **options)
    got = attention_gradient(DO, DLSE, Q, K, V, **options)
    assert right.verdict(got, BUDGETS) == "pass"
    for i in range(3):
        zero = [0 * x if i == n else x for n, x in enumerate(got)]
        assert right.verdict(zero, BUDGETS) == "fail"
    assert right.verdict(attention_gradient(DO, None, Q, K, V, **options), BUDGETS) == "fail"
    assert right.verdict([np.full_like(x, np.nan) for x in got], BUDGETS) == "fail"


def test_rows_without_a_key_have_no_gradient():
    right = certified_gradient(DO, DLSE, Q, K[:, :2], V[:, :2], causal=True)
    dq, dk, dv = attention_gradient(DO, DLSE, Q, K[:, :2], V[:, :2], causal=True)
    assert right.verdict((dq, dk, dv), BUDGETS) == "pass" and np.all(dq[:, 0] == 0)
    assert right.verdict((dq, dk, dv), (0.0, 0.0, 0.0)) == "fail"  # an entry is no float64 number


def test_other_shapes_are_named():
    right = certified_gradient(DO, DLSE, Q, K, V)
    with pytest.raises(ValueError, match="gradients must have the shapes of q, k and v"):
        right.verdict((Q, K[:1], V), BUDGETS)
