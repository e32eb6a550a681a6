"""Three answers that no judge of values may accept, of a right subject: zeros, a constant, entries out of place."""

from dataclasses import replace

import numpy as np

from fdmath.algebra.state import LSEState
from fdmath.verify import Subject
from fdmath.verify.subjects import at_once, block, decode, defined, pairwise

RIGHT = {role: Subject(f"right {role}", role, fn) for role, fn in {
    "merge": pairwise(LSEState), "merge_many": at_once(LSEState), "block": block(LSEState),
    "partial": defined, "decode": decode(), "attention": defined,
}.items()}
"""A right subject of each role."""

CHANGES = {
    "zeros": np.zeros_like,
    "constant": lambda x: np.full_like(x, 0.75),
    "permuted": lambda x: np.roll(x, 1).reshape(x.shape),
}
"""What becomes of each array that the right function returns."""


def canary(role, change):
    """The right subject of a role, each of whose results is changed."""
    right = RIGHT[role]
    return replace(right, name=change, fn=lambda *args: tuple(CHANGES[change](x) for x in right.fn(*args)))
