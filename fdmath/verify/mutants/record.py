"""A mutant: a right subject with one fault planted, the law that kills it, an input on which the two differ."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace

import numpy as np

from fdmath import _backends as backends
from fdmath.verify.subject import CALLED, Subject, SubjectError, to_numpy


@dataclass(frozen=True)
class Mutant:
    """A wrong implementation, a few lines from a right one.

    name; right: the right Subject, its ancestor; fn: the wrong callable, which takes the place of the ancestor's fn, or
    of its backward where `place` says so; fault: the id of a kind of real fault ("B4"), "" for a slip of our own;
    killer: the law that must kill it; apart: the arguments of a call on which the two differ (see `answers`); declared:
    what the mutant declares and its ancestor does not.
    """

    name: str
    right: Subject
    fn: Callable
    fault: str
    killer: str
    apart: tuple
    declared: dict = field(default_factory=dict)
    place: str = "fn"

    @property
    def role(self):
        """The role of the ancestor."""
        return self.right.role

    @property
    def ancestor(self):
        """The right callable."""
        return getattr(self.right, self.place)

    def subject(self):
        """The Subject to be judged, under the mutant's name."""
        return replace(self.right, name=self.name, **{self.place: self.fn}, **self.declared)

    def differs(self):
        """Whether mutant and ancestor give different answers to the stored call."""
        was, now = (answers(subject, self.place, self.apart) for subject in (self.right, self.subject()))
        return len(was) != len(now) or not all(map(_equal, was, now))


def answers(subject, place, args):
    """All that a call shows: what fn or backward returned, after a second call on zeros; what it left in its arguments;
    in torch the gradients too.

    args: the arguments of fn, and before them do and dlse where it is the backward's answers that are asked for. What
    the call raises is an answer too, a text.
    """
    call = subject.call_backward if place == "backward" else subject.call
    try:
        sent = _sent(subject, place, args)
        got = call(*sent)
        call(*_sent(subject, place, [np.zeros_like(x) if isinstance(x, np.ndarray) else x for x in args]))
    except SubjectError as error:
        return [str(error)]
    return [*map(_array, got or ()), *(_array(x) for x in sent if hasattr(x, "shape")), *_slopes(subject, args)]


def _sent(subject, place, args):
    """Copies of args in the subject's library, laid out in memory as they are; in a backward with what fn returned."""
    args = [_copy(subject, x) if isinstance(x, np.ndarray) else x for x in args]
    if place == "fn" or subject.role not in CALLED:
        return args
    do, dlse, *args = args
    return [do, dlse, *args[:3], *subject.call(*args), *args[3:]]


def _copy(subject, x):
    return x.copy(order="K") if subject.library == "numpy" else subject.send(x)


def _slopes(subject, args):
    """The gradients of Σ o + Σ lse (of rows that have keys) by autograd, for torch."""
    if subject.library != "torch":
        return []
    torch = backends.load("importlib:import_module")("torch")
    leaves = [subject.send(x).requires_grad_() for x in args]
    o, lse = subject.call(*leaves)
    total = o.sum() + torch.where(torch.isinf(lse), 0.0, lse).sum()
    return [np.zeros(0) if g is None else _array(g) for g in torch.autograd.grad(total, leaves, allow_unused=True)]


def _array(x):
    return np.array(to_numpy(x))


def _equal(x, y):
    if isinstance(x, str) or isinstance(y, str):
        return isinstance(x, str) and isinstance(y, str) and x == y
    return x.shape == y.shape and bool(np.all((x == y) | ((x != x) & (y != y))))


# -- small inputs ---------------------------------------------------------------------------------------


def parts(*pairs):
    """The arguments of a merge of many: parts of one row, each (o, lse)."""
    o, lse = (np.array(x, np.float32) for x in zip(*pairs, strict=True))
    return o[:, None, None], lse[:, None]


def states(first, second):
    """The arguments of a merge of two states of one row, each (o, lse)."""
    o, lse = parts(first, second)
    return o[0], lse[0], o[1], lse[1]


def keys(*pairs):
    """The arguments of a block of one row: keys, each (score, value)."""
    scores, v = (np.array(x, np.float32) for x in zip(*pairs, strict=True))
    return scores[None], v[:, None]


def call(n, *rest, batch=1, heads=1, kv=1, queries=1, d=2, level=0.0):
    """The arguments of a call: n keys a head with values 1, 2, 3, … and scores of their own, then the rest.

    The last coordinate of q is 1 and that of k is `level`.
    """
    def numbers(*shape):
        return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)

    q = (numbers(batch, heads, queries, d) % 3 - 1) / 2
    k = (numbers(batch, kv, n, d) % 5 - 2) / 4
    q[..., -1], k[..., -1] = 1, level
    return q, k, numbers(batch, kv, n, 1) + 1, *rest


def lengths(*n):
    """The seq_lens of a decode."""
    return np.array(n)
