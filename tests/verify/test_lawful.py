"""No false alarm: what is right, and written in another right way, passes every law. FDMATH_SEEDS=10 asks longer."""

import math
import os

import pytest

from fdmath.verify import LAWS, Subject
from fdmath.verify.judge import ask
from tests.verify import right

SEEDS = int(os.environ.get("FDMATH_SEEDS", "1"))
CASES = 50 if SEEDS > 1 else 3
ALL = ("float32", "float64", "float16", "bfloat16")


def made(role, fn, **declared):
    return Subject(fn.__name__, role, fn, **declared)


SUBJECTS = [
    *(made("merge", fn) for fn in (right.by_logaddexp, right.by_two_sigmoids, right.in_base_two, right.in_float64,
                                   right.lazily)),
    *(made("merge_many", fn) for fn in (right.all_from_lse, right.one_by_one)),
    *(Subject(fn.__name__, "block", right.worked(fn), dtypes=ALL) for fn in (
        right.from_below, right.by_powers_of_two, right.key_by_key, right.against_the_running_lse, right.masked_twice,
        right.tile_by_tile)),
    made("block", right.worked(right.from_above), dtypes=ALL, flushed=math.exp(right.ABOVE) * 2.0**-149),
    *(made("attention", fn, dtypes=ALL) for fn in (right.scaled_first, right.padded, right.groups_as_queries,
                                                   right.key_by_key_lazily, right.by_tiles_as_pairs)),
    made("attention", right.top_left, causal="top_left"),
    made("attention", right.o_alone, lse=False),
    made("decode", right.in_uneven_splits, dtypes=ALL),
]


@pytest.mark.parametrize("seed", range(SEEDS))
@pytest.mark.parametrize("subject", SUBJECTS, ids=[s.name for s in SUBJECTS])
def test_a_right_function_breaks_no_law(subject, seed):
    for law in LAWS.values():
        cell = ask(law, subject, CASES, seed=seed)
        assert cell.verdict in ("pass", "n/a"), f"{law.name}: {cell.verdict}\n{cell.counterexample}"
