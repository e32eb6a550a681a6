"""The algorithms of document B as printed: right where the document is, wrong where the ledger says so."""

import numpy as np
import pytest

from fdmath import AccState, flash_attention, flash_attention_backward, sequential
from fdmath.attention import printed
from fdmath.attention.reference import attention, attention_gradient
from tests.algebra.libraries import holds, values
from tests.attention.calls import INF, Call, random_call
from tests.attention.test_flash import spans
from tests.attention.test_flash_backward import bounds, within


def plain(seed, queries, keys, dim=3, **options):
    """A random Call of two axes whose scores are not scaled, as printed."""
    return random_call(seed, None, queries, keys, dim, scale=1.0, **options)


def right(state, call, block_n):
    """Whether a float64 state is attention's, certified within the budget of a chain over these key blocks."""
    return call.certified().verdict(state, call.budget("float64", spans(call, block_n), AccState, sequential)) == "pass"


@pytest.mark.parametrize("block_m, block_n", [(2, 3), (4, 4), (3, 2), (64, 64)])
def test_algorithm_1_is_attention_unscaled(lib, block_m, block_n):
    # claims:B56, B57
    call = plain(1, 7, 9, width=2, batch=(2,))
    assert right(printed.algorithm_1_as_printed_B(*call.arrays(lib, "float64"), block_m, block_n), call, block_n)
    scaled = Call(call.q, call.k, call.v)
    assert not right(printed.algorithm_1_as_printed_B(*call.arrays(lib, "float64"), block_m, block_n), scaled, block_n)


def test_a_row_that_sees_nothing_is_nan_as_printed_and_empty_here(lib):
    # F17
    q, k, v = (lib.array(x) for x in ([[1.0]], [[-INF], [-INF]], [[5.0], [7.0]]))
    assert all(np.isnan(values(x)).all() for x in printed.algorithm_1_as_printed_B(q, k, v, 1, 1))
    o, lse = flash_attention(q, k, v, block_m=1, block_n=1, scale=1.0)
    assert holds(o, [[0.0]]) and holds(lse, [-INF])


def test_descending_blocks_under_a_causal_mask(lib):
    # claims:B25: every row but the last block's starts on keys that it does not see.
    call = plain(2, 6, 6, causal=True)
    arrays, seen = call.arrays(lib, "float64"), lib.mask(np.tril(np.ones((6, 6), bool)))
    assert right(printed.algorithm_1_as_printed_B(*arrays, 2, 2, visible=seen), call, 2)
    o, _ = printed.algorithm_1_as_printed_B(*arrays, 2, 2, visible=seen, descending=True)
    assert np.isnan(values(o[:4])).all() and np.isfinite(values(o[4:])).all()
    assert right(flash_attention(*arrays, block_m=2, block_n=2, order=[2, 1, 0], causal=True, scale=1.0), call, 2)


def backward_as_printed(lib, call, visible=None, lse=None, **options):
    """(right gradients, those of Algorithm 2 as printed) for a loss of ones."""
    arrays = call.arrays(lib, "float64")
    o, saved = attention(*arrays, **call.options(lib))
    ones = np.ones(tuple(o.shape))
    do = lib.array(ones, "float64")
    by_definition = attention_gradient(ones, None, call.q, call.k, call.v, causal=call.causal, scale=1.0)
    return by_definition, printed.algorithm_2_as_printed_B(*arrays, o, do, saved, 2, 3, visible, **options)


def test_algorithm_2_never_stores_dq(lib):
    # F19, claims:B64
    call = plain(3, 5, 7, batch=(2,))
    expected, (dq, dk, dv) = backward_as_printed(lib, call)
    assert not values(dq).any() and expected[0].any()
    budget = [2 * b for b in bounds(lib, call, np.ones(call.q.shape), None)]
    within((expected[0], dk, dv), expected, budget)
    within(backward_as_printed(lib, call, write_back=True)[1], expected, budget)  # claims:B61


def test_a_row_that_sees_nothing_spoils_every_gradient_as_printed(lib):
    # F18: exp(−∞ − (−∞)); one row of four poisons all keys.
    call = plain(4, 4, 3, causal=True)
    seen = lib.mask(np.arange(3)[None, :] <= np.arange(4)[:, None] - 1)
    expected, (dq, dk, dv) = backward_as_printed(lib, call, seen, write_back=True)
    assert np.isnan(values(dq[0])).all() and np.isnan(values(dk)).all() and np.isnan(values(dv)).all()
    arrays = call.arrays(lib, "float64")
    o, lse = flash_attention(*arrays, causal=True, scale=1.0)
    do = lib.array(np.ones(tuple(o.shape)), "float64")
    got = flash_attention_backward(do, None, *arrays, o, lse, block_m=2, block_n=3, causal=True, scale=1.0)
    within(got, expected, [2 * b for b in bounds(lib, call, np.ones(call.q.shape), None)])


def test_slices_of_scores_are_not_added(lib):
    # claims:B47: 2 warps of 2 keys each; right is the row of 4 scores, and sums are right for slices of d alone.
    q, k = np.array([[1.0, 2.0]]), np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [2.0, 0.0]])
    by_keys = [lib.array(q @ k[part].T) for part in (slice(0, 2), slice(2, 4))]
    assert holds(printed.score_rows_as_printed_B(by_keys), [[4.0, 4.0]])
    by_dims = [lib.array(q[:, [c]] @ k[:, [c]].T) for c in range(2)]
    assert holds(printed.score_rows_as_printed_B(by_dims), q @ k.T)
