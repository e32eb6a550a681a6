"""A laboratory on the CPU for the benches of attention: a clock that is pretended, contenders that are right."""

import fdmath
from fdmath.bench import attention_measure as measure
from fdmath.bench import attention_peers
from fdmath.bench.attention import Shape
from fdmath.bench.attention_peers import Contender

SMALL = Shape(2, 4, 2, 16, 24, 24, True)


class Pretended:
    """A clock on which every call that runs takes 3 µs."""

    rounds = 1

    def seconds(self, call):
        call()
        return [2e-6, 3e-6, 4e-6]

    all = seconds


LAB = measure.Lab("bfloat16", "cpu", {"short": 700.0, "sustained": 600.0}, dict.fromkeys(measure.CLOCKS, Pretended()))


def definition(q, k, v, causal):
    """(o, lse) by definition in float64, rounded once; torch follows its gradient."""
    o, lse = fdmath.attention(q.double(), k.double(), v.double(), causal=causal)
    return o.to(q.dtype), lse.float()


def right(shape):
    """A forward that is right."""
    return lambda q, k, v: definition(q, k, v, shape.causal)


def with_gradient(change):
    """A Contender that is right but for change(dq, dk, dv)."""
    return Contender("changed", right, gradient=lambda *call: lambda: change(*attention_peers.by_autograd(*call)()))
