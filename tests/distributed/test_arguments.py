"""What ring and tree refuse before anything is sent, in a group of this process alone."""

import numpy as np
import pytest
import torch
import torch.distributed as dist

from fdmath.distributed import ring_attention, tree_decode

X = torch.ones(2, 3, 4)


@pytest.fixture(autouse=True)
def alone():
    """A group of one rank, while a test runs."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()


@pytest.mark.parametrize("call", [ring_attention, tree_decode])
def test_arrays_that_are_no_tensors_or_do_not_fit_are_refused(call):
    with pytest.raises(TypeError, match="q must be a torch tensor"):
        call(*3 * [np.ones((2, 3, 4))])
    with pytest.raises(TypeError, match="k must have the dtype of q"):
        call(X, X.double(), X)
    with pytest.raises(ValueError, match="k must have the head dimension of q"):
        call(X, X[..., :3], X)


def test_a_ring_refuses_rows_that_are_not_those_of_its_layout():
    with pytest.raises(ValueError, match="k must have the 4 rows that layout gives rank 0; got 3"):
        ring_attention(X, X, X, layout=[[(0, 4)]])
    with pytest.raises(ValueError, match="layout must have an entry for each of 1 ranks; got 2"):
        ring_attention(X, X, X, layout=[[(0, 3)], []])
    with pytest.raises(ValueError, match="q must have the 3 rows of k"):
        ring_attention(X[:, :2], X, X, causal=True)


def test_a_tree_refuses_what_it_does_not_know():
    with pytest.raises(ValueError, match="exchange"):
        tree_decode(X, X, X, exchange="scatter")
    with pytest.raises(TypeError, match="kind"):
        tree_decode(X, X, X, kind=tuple)
    with pytest.raises(TypeError, match="order"):
        tree_decode(X, X, X, order="flat")


def test_a_tree_has_no_gradient_and_says_who_has():
    state = tree_decode(X.clone().requires_grad_(), X, X)
    with pytest.raises(RuntimeError, match="tree_decode has no gradient; ring_attention has one"):
        state.o.sum().backward()
