"""A broken ⊕ does not go unnoticed: several verdicts are then not the expected ones."""

import pytest

from fdmath.algebra import merge, printed
from fdmath.algebra.state import LSEState
from fdmath.claims import checks, judge, ledger


def growing(xp, m1, m2, exp=None):
    """`_rescale` with the sign of its exponents turned round."""
    exp = exp or xp.exp
    m = xp.maximum(m1, m2)
    return m, exp(m - m1), exp(m - m2)


def unweighted(xp, a, b):
    """`combine_lse` with the weights dropped: the mean of the two outputs."""
    _, lse = merge.combine_lse(xp, a, b)
    return (a.o + b.o) * 0.5, lse


def squared(o1, lse1, o2, lse2):
    """The printed ⊕ with one weight squared."""
    o, lse = printed.merge_as_printed_A_2_3_5(o1, lse1, o2, lse2 + lse2)
    return o, lse


BREAKS = {
    "sign of an exponent": (lambda patch: patch.setattr(merge, "_rescale", growing),
                            ("A18", "A21", "A32", "B03", "B04", "B77", "B78")),
    "dropped weight": (lambda patch: patch.setitem(merge._COMBINE, LSEState, unweighted),
                       ("A28", "A29", "A30", "A32", "A34", "B78")),
    "printed, a weight squared": (lambda patch: patch.setattr("fdmath.claims.pair.PRINTED", (squared, squared)),
                                  ("A02", "A04", "A30", "A32", "A34")),
}
"""Ways to break ⊕, each with claims whose verdict it changes: five at least."""


@pytest.mark.parametrize("name", BREAKS)
def test_a_broken_merge_is_noticed(monkeypatch, name):
    broken, noticing = BREAKS[name]
    broken(monkeypatch)
    found = {claim.id: judge(claim, checks()[claim.id]).verdict for claim in ledger() if claim.id in noticing}
    assert len(found) >= 5 and set(found.values()) == {"refuted"}, found
