"""Notebook 04: write the formula of ⊕ for the pair (o, lse) so that it loses nothing to the score level."""

import numpy as np

from fdmath.algebra.merge import join
from fdmath.algebra.state import LSEState, canonical
from fdmath.verify.subject import Subject

HINTS = (
    "The merged `lse` is a new number and is rounded; no weight should be taken against it. Which difference of two "
    "*stored* numbers says how much heavier one side is than the other?",
    "Call the side with the larger `lse` *near* and the other *far*. The weight of the far side is $e^{-\\Delta}/"
    "(1+e^{-\\Delta})$ with $\\Delta\\ge0$ the difference of the two `lse`. Then `o = near + w * (far - near)`, and "
    "`lse` is the larger one plus $\\log(1+e^{-\\Delta})$ (`np.log1p`). Or weigh the sides with 1 and $e^{-\\Delta}$, "
    "and divide by the sum of just these weights: that is as good.",
)

FIRST = "v is 1"


def my_pair_merge(o1, lse1, o2, lse2):
    """(o, lse) of both sets of keys together, neither of them empty; lse has shape (R,), o has shape (R, dv)."""
    raise NotImplementedError


def answer(o1, lse1, o2, lse2):
    """(o, lse) of both sets of keys together, neither of them empty; lse has shape (R,), o has shape (R, dv)."""
    swap = (lse2 > lse1)[:, None]
    near, far = np.where(swap, o2, o1), np.where(swap, o1, o2)
    top = np.maximum(lse1, lse2)
    shrink = np.exp(np.minimum(lse1, lse2) - top)
    w = (shrink / (1 + shrink))[:, None]
    return near + w * (far - near), top + np.log1p(shrink)


def subject(fn):
    """The Subject that a reader's formula is, with guards around it: held to T3 for two parts at each ⊕ of a chain.

    T3 is the bound of the form that divides by its own weights, and no less than T5, that of the convex form.
    """
    def guarded(o1, lse1, o2, lse2):
        left, right = (canonical(LSEState(*side)) for side in ((o1, lse1), (o2, lse2)))
        return join(np, left, right, lambda xp, a, b: fn(*a, *b))

    return Subject(fn.__name__, "merge", guarded, claims=("T3",))


def sample():
    """Arguments of a first call: one row on each side."""
    one, two = np.ones(1, np.float32), np.full((1, 2), 2, np.float32)
    return two, one, two, one
