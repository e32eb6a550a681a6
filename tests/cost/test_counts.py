"""The counted machine by hand: 2 heads, matrices of 3 × 4."""

from collections import Counter

import numpy as np

from fdmath._backends import array_namespace
from fdmath.cost.counts import Counts, Machine
from tests.algebra.libraries import dtype_name, holds


def machine(lib, dtype="float32"):
    """A Machine with a tensor "x" of two heads and a tensor "k" that they share, and the first one's array."""
    gpu = Machine(array_namespace(x=lib.array(0.0)), heads=2, work="float32")
    gpu.tensors = {"x": lib.array(np.arange(24.0).reshape(2, 3, 4), dtype), "k": lib.array(np.ones((1, 3, 4)), dtype)}
    if lib.name == "numpy":
        gpu.tensors["x"] = gpu.tensors["x"].copy()
    return gpu


def test_a_shared_tensor_is_read_for_each_head(lib):
    gpu = machine(lib, "float16")
    assert dtype_name(gpu.load("x", slice(0, 2))) == "float32" and holds(gpu.load("k", slice(1, 3)), np.ones((1, 2, 4)))
    assert gpu.counts == Counts(read=Counter(x=16, k=16))


def test_what_is_stored_and_added_is_there(lib):
    gpu = machine(lib)
    gpu.store("x", slice(0, 1), lib.array(np.full((2, 1, 4), 7.0)))
    gpu.add("x", slice(0, 2), lib.array(np.ones((2, 2, 4))))
    assert holds(gpu.load("x", slice(0, 2))[0], [[8.0] * 4, [5.0, 6.0, 7.0, 8.0]])
    assert gpu.counts == Counts(read=Counter(x=16), written=Counter(x=8), added=Counter(x=16))
    assert gpu.counts.moved == 40


def test_each_operation_counts_what_it_makes(lib):
    gpu = machine(lib)
    x, column = lib.array(np.ones((2, 3, 4))), lib.array(np.full((2, 3, 1), 2.0))
    assert holds(gpu.multiply(column, x), np.full((2, 3, 4), 2.0))
    assert holds(gpu.divide(x, column), np.full((2, 3, 4), 0.5))
    assert holds(gpu.exp(0 * column), np.ones((2, 3, 1))) and holds(gpu.log(x), np.zeros((2, 3, 4)))
    assert holds(gpu.matmul(x, lib.array(np.ones((1, 4, 5)))), np.full((2, 3, 5), 4.0))
    assert gpu.meet("full") == "full"
    assert gpu.counts == Counts(exponentials=6, logarithms=24, divisions=24, multiplications=24,
                                matmul_flop=2 * 2 * 3 * 4 * 5, blocks=Counter(full=2))  # fmt: skip
