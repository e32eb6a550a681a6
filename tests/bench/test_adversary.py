"""The proven bounds on the worst machine of the model: kept, nearly reached, and broken by any step left out."""

import numpy as np
import pytest

from fdmath.algebra import rounding
from fdmath.algebra.merge import flat
from fdmath.algebra.rounding import Format
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.bench.adversary import Adversary, share_of_budget
from fdmath.lesson import edited

KINDS = (LSEState, MLOState, AccState)
ROWS = 4000


def coarse(bits):
    """A Format with u = 2^−bits, in which products of errors show, and without underflow to speak of."""
    return Format(2.0**-bits, 2.0**-60)


@pytest.mark.parametrize("bits", [4, 8, 24])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("carried", [False, True])
def test_one_merge_on_the_worst_machine_is_within_its_budget_and_nearly_fills_it(kind, bits, carried):
    o, lse = share_of_budget(kind, coarse(bits), rows=ROWS, carried=carried)
    assert 0.5 <= o <= 1 and 0.5 <= lse <= 1


@pytest.mark.parametrize("bits", [5, 8, 24])
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("parts", [1, 2, 3, 8])
def test_all_at_once_on_the_worst_machine_is_within_its_budget(kind, bits, parts):
    o, lse = share_of_budget(kind, coarse(bits), parts, flat, rows=ROWS)
    assert 0.25 <= o <= 1 and 0.25 <= lse <= 1


LEFT_OUT = {
    "pair: the computed weight": ("_pair_budget", "np.minimum(w + moved, 0.5)", "w", LSEState, None),
    "pair: what the weight may move": ("_pair_budget", "+ _times(moved, spread)", "", LSEState, None),
    "pair: o itself": ("_pair_budget", "np.abs(o) + reach)", "reach)", LSEState, None),
    "pair: the rounding of lse": ("_pair_budget", "fmt.u * (np.abs(lse) + carried)", "0.0", LSEState, None),
    "pair: log1p": ("_pair_budget", "(1 + fmt.u) * log_sum", "0.0", LSEState, None),
    "triple: the errors of the exponents": ("_triple_budget", "of_a.lse + of_b.lse + rescaled", "rescaled", MLOState,
                                            None),
    "triple: products of errors": ("_triple_budget", "fmt.few * (sizes + 4 * reach)", "fmt.u * sizes", MLOState, None),
    "triple: the sum of l": ("_triple_budget", "* np.expm1(of_2)) + fmt.step", "* np.expm1(of_2))", AccState, None),
    "flat: the sums": ("flat_budget", "added * ((1 + added) * size + np.abs(whole.o) + moved)", "0.0", MLOState, flat),
    "flat: the weights": ("flat_budget", "fmt.u * (distance + fmt.kappa) + fmt.step + of_exponents", "of_exponents",
                          LSEState, flat),
}


@pytest.mark.parametrize("case", LEFT_OUT.values(), ids=LEFT_OUT)
def test_a_bound_that_leaves_out_a_step_is_exceeded(case, monkeypatch):
    name, old, new, kind, order = case
    used = rounding.flat_budget if order is flat else rounding.merge_budget
    short = edited(getattr(rounding, name), old, new, returns=used)
    monkeypatch.setattr(rounding, used.__name__, short)
    assert not all(share <= 1 for share in share_of_budget(kind, coarse(4), order=order, rows=ROWS))


def test_every_rounding_errs_by_the_whole_of_u_and_what_is_exact_stays_exact():
    fmt, x, y = coarse(8), np.full(100, 3.0), np.full(100, 5.0)
    machine = Adversary(fmt, np.random.default_rng(0))
    a, b = machine.number(x), machine.number(y)
    for got, exact in ((a + b, 8.0), (a - b, -2.0), (a * b, 15.0), (a / b, 0.6)):
        assert set(np.asarray(got)) == {exact * (1 - fmt.u), exact * (1 + fmt.u)}
    for got, exact in ((a + 0.0, 3.0), (a * 0.25, 0.75), (a / 2.0, 1.5)):
        assert set(np.asarray(got)) == {exact}
    assert set(np.asarray(1.0 + a)) == {4 * (1 - fmt.u), 4 * (1 + fmt.u)}
    assert set(np.asarray(machine.exp(x * 0))) == {1.0}
    assert np.max(machine.exp(np.full(100, -fmt.u))) == 1.0
    assert set(np.asarray(machine.log1p(x))) == {np.log1p(3.0) * (1 - 4 * fmt.u), np.log1p(3.0) * (1 + 4 * fmt.u)}
