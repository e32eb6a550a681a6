"""A computed state against the oracle's enclosure and a budget: never a tolerance."""

from types import SimpleNamespace

import numpy as np
import pytest

from fdmath import AccState, LSEState, MLOState
from fdmath.algebra.rounding import finish_budget, format_of
from tests.algebra.libraries import dtype_name, values


def certified(parts):
    """The enclosure of the merge of a list of states, whatever their kind."""
    oracle = pytest.importorskip("fdmath.oracle")
    columns = [np.stack([values(x) for x in column]) for column in zip(*parts, strict=True)]
    return {
        LSEState: oracle.certified_merge,
        MLOState: oracle.certified_merge_mlo,
        AccState: oracle.certified_merge_acc,
    }[type(parts[0])](*columns)


def finished(merged, budget):
    """The state as a pair, and its Budget: `budget` and what the conversion may round."""
    pair = isinstance(merged, LSEState)
    fmt = format_of(dtype_name(merged.payload))
    return merged.finalize(), finish_budget(merged, budget, fmt, fmt, pair=pair)


def judge(exact, state, budget):
    """The worst ratios (o, lse) of certified error to budget; fails unless every element is within its budget.

    A NaN has an infinite error and so an infinite ratio; elements without error and budget count as 0.
    """
    ratios = []
    for error, bound in zip(exact.errors(state), budget, strict=True):
        assert np.all(bound >= 0)
        ratio = np.divide(error, bound, out=np.where(error > 0, np.inf, 0.0), where=bound > 0)
        ratios.append(float(np.max(ratio, initial=0.0)))
    assert exact.verdict(state, tuple(budget)) == "pass", f"error over budget: o {ratios[0]:.3g}, lse {ratios[1]:.3g}"
    return SimpleNamespace(o=ratios[0], lse=ratios[1])
