"""The gradients of an attention call in balls, entry by entry: each is one directional derivative.

Along the direction that moves a single number of q, k or v the derivative of (o, lse) is certified by power series
(`fdmath.oracle.derivative`), and its product with (do, dlse) is that entry of the gradient. No formula of a backward
pass is used. Needs python-flint.
"""

from dataclasses import dataclass

import numpy as np
from flint import ctx

from fdmath.algebra.rounding import exact
from fdmath.oracle import Enclosure, certified_attention_jvp
from fdmath.oracle.sums import exact as balls


@dataclass(frozen=True, eq=False)
class CertifiedGradient:
    """The exact (dq, dk, dv): all their entries in one row of balls, in the order of q, k, v."""

    enclosure: Enclosure
    shapes: tuple

    def verdict(self, gradients, budgets):
        """"pass", "fail" or "undecided": whether every entry lies within its budget of the exact one.

        gradients: arrays of the shapes of q, k, v; budgets: arrays that broadcast to them. Raises ValueError for
        other shapes.
        """
        for x, shape in zip(gradients, self.shapes, strict=True):
            if tuple(x.shape) != shape:
                raise ValueError(f"gradients must have the shapes of q, k and v, {shape}; got {tuple(x.shape)}")
        budgets = [np.broadcast_to(b, shape) for b, shape in zip(budgets, self.shapes, strict=True)]
        values, bounds = (np.concatenate([exact(x).ravel() for x in xs]) for xs in (gradients, budgets))
        return self.enclosure.verdict((values[:, None], np.zeros(len(values))), (bounds[:, None], 0.0))


def certified_gradient(do, dlse, q, k, v, **options):
    """The CertifiedGradient of a loss with gradients do (…, Hq, Nq, dv) and dlse (…, Hq, Nq).

    q, k, v, causal=, scale=, mask=: as for `certified_attention`, which names the errors raised. One derivative an
    entry: for small calls.
    """
    shapes = tuple(tuple(x.shape) for x in (q, k, v))
    directions = np.split(np.eye(sum(map(np.prod, shapes))), np.cumsum([np.prod(s) for s in shapes])[:-1], axis=1)
    count = len(directions[0])
    values = [np.broadcast_to(exact(x), (count, *shape)) for x, shape in zip((q, k, v), shapes, strict=True)]
    tangents = [x.reshape(count, *shape) for x, shape in zip(directions, shapes, strict=True)]
    slope = certified_attention_jvp(*values, *tangents, **options)
    with ctx.workprec(slope.precision):
        entries = _total(slope.o_ball * balls(exact(do))) + _total(slope.lse_ball * balls(exact(dlse)))
    zeros = balls(np.zeros(count))
    enclosure = Enclosure.from_balls(entries[:, None], zeros, zeros[:, None], np.zeros(count, bool), slope.precision)
    return CertifiedGradient(enclosure, shapes)


def _total(terms):
    """The sum over all axes but the first."""
    return np.sum(terms.reshape(len(terms), -1), axis=1)
