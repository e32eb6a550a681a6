"""The attention state of a set of keys, in three spellings.

Over the reals the state is the pair (Z, Y) = (Σ eˢ, Σ eˢ·v) over the keys of the set, and the state
of two disjoint sets is the *sum* of their states. What is stored is a scaled form of that pair:

    MLOState(m, l, o)     Z = eᵐ·l,    Y = eᵐ·l·o      (document A, section 2.2)
    AccState(m, l, acc)   Z = eᵐ·l,    Y = eᵐ·acc      (document A's code; FlashAttention-2)
    LSEState(o, lse)      Z = e^lse,   Y = e^lse·o     (document A, section 2.3)

m is a reference level, not a value: (m + c, l·e⁻ᶜ, acc·e⁻ᶜ) is the same state. A row is *empty*
(the state of no keys) where Z = 0: lse = −∞, or m = −∞, or l = 0; what o or acc holds there means nothing.
"""

from dataclasses import dataclass

import numpy as np

from fdmath import _backends as backends


class _State:
    """What the three spellings share: shape checks, unpacking in the order written, `a + b`, conversion."""

    def __post_init__(self):
        arrays = dict(zip(self.names, self, strict=True))
        backends.array_namespace(**arrays)
        for name, x in arrays.items():
            backends.float_name(x, name)
        payload = self.payload
        if payload.ndim < 1:
            raise ValueError(f"{self.payload_name} must have at least the axis dv; got shape ()")
        for name, x in arrays.items():
            if name != self.payload_name and x.shape != payload.shape[:-1]:
                raise ValueError(
                    f"{name} must have the shape of {self.payload_name} without its last axis, "
                    f"{tuple(payload.shape[:-1])}; got {tuple(x.shape)}"
                )

    def __iter__(self):
        return iter([getattr(self, name) for name in self.names])

    def __add__(self, other):
        return backends.load("fdmath.algebra.merge:merge")(self, other)

    @property
    def payload(self):
        """The array with the axis dv: o, or acc."""
        return getattr(self, self.payload_name)

    def map(self, fn):
        """The state of the same kind with fn applied to each of its arrays."""
        return type(self)(*map(fn, self))

    def to(self, kind):
        """The same state in the spelling `kind`, each row's statistics in the format that they have here."""
        return convert(self, kind)

    def finalize(self):
        """The state as LSEState: o normalised, lse the natural logarithm; (0, −∞) where empty."""
        return canonical(convert(self, LSEState))


@dataclass(frozen=True, eq=False)
class MLOState(_State):
    """The triple (m, l, o): m, l of shape (…), o of shape (…, dv); o is normalised."""

    m: object
    l: object  # noqa: E741 - the field's own name in both documents
    o: object
    names = ("m", "l", "o")
    payload_name = "o"


@dataclass(frozen=True, eq=False)
class AccState(_State):
    """The triple (m, l, acc): m, l of shape (…), acc = l·o of shape (…, dv)."""

    m: object
    l: object  # noqa: E741
    acc: object
    names = ("m", "l", "acc")
    payload_name = "acc"


@dataclass(frozen=True, eq=False)
class LSEState(_State):
    """The pair (o, lse): o of shape (…, dv), lse (natural logarithm) of shape (…)."""

    o: object
    lse: object
    names = ("o", "lse")
    payload_name = "o"


KINDS = (MLOState, AccState, LSEState)


def check_kind(kind):
    """`kind` itself if it is one of the three spellings; TypeError otherwise."""
    if kind not in KINDS:
        raise TypeError(f"kind must be MLOState, AccState or LSEState; got {kind!r}")
    return kind


def identity(shape, dv, kind=LSEState, like=None):
    """The state of no keys for statistics of `shape`: o = 0, lse = −∞; or m = −∞, l = 0, o = acc = 0.

    `like` is an array whose library, device and dtype are taken (NumPy float32 without it).
    """
    like = np.zeros((), np.float32) if like is None else like
    xp = backends.array_namespace(like=like)
    backends.float_name(like, "like")
    if dv < 0:
        raise ValueError(f"dv must be at least 0; got {dv}")
    where = {"dtype": like.dtype, "device": getattr(like, "device", None)}
    zeros = xp.zeros(tuple(shape), **where)
    payload = xp.zeros((*tuple(shape), dv), **where)
    nothing = xp.full(tuple(shape), float("-inf"), **where)
    return LSEState(payload, nothing) if check_kind(kind) is LSEState else kind(nothing, zeros, payload)


def is_empty(state):
    """A boolean array of the statistics' shape: True where the row is the state of no keys (Z = 0)."""
    if isinstance(state, LSEState):
        return state.lse == float("-inf")
    return (state.m == float("-inf")) | (state.l == 0)


def canonical(state):
    """The state with each empty row replaced by the identity, and rows of level +∞ (no lawful state) by NaN.

    The replacement selects and never multiplies, so a NaN in an empty row is gone afterwards, and no
    gradient reaches an empty row.
    """
    xp = backends.array_namespace(state=state.payload)
    empty = is_empty(state)
    level = state.lse if isinstance(state, LSEState) else state.m
    unlawful = level == float("inf")
    if xp is backends.numpy_namespace and not np.any(empty | unlawful):
        return state  # a question that NumPy answers sooner than it copies; a GPU would have to be waited for
    payload = backends.filled(xp, state.payload, unlawful[..., None], float("nan"))
    payload = backends.filled(xp, payload, empty[..., None], 0.0)
    level = backends.filled(xp, level, unlawful, float("nan"))
    level = backends.filled(xp, level, empty, float("-inf"))
    if isinstance(state, LSEState):
        return LSEState(payload, level)
    return type(state)(level, backends.filled(xp, state.l, empty, 0.0), payload)


def convert(state, kind):
    """`state` in the spelling `kind`.

    lse = m + log l and acc = l·o (document A, 2.3.2); an LSEState becomes the triple with m = lse and l = 1.
    Statistics keep their format (the wider one where m and l differ); work is in float32 at least.
    """
    if isinstance(state, check_kind(kind)):
        return state
    clean = canonical(state)
    xp = backends.array_namespace(state=clean.payload)
    formats = [backends.float_name(x) for x in clean]
    work = backends.working(*formats)
    stats = backends.widest(*(f for f, n in zip(formats, clean.names, strict=True) if n != clean.payload_name))
    payload_name = backends.float_name(clean.payload)
    m, l, payload = _as_triple(xp, clean.map(lambda x: backends.cast(x, work)), normalised=kind is not AccState)
    if kind is LSEState:
        m = m + xp.log(xp.where(l == 0, 1.0, l))
        return LSEState(backends.cast(payload, payload_name), backends.cast(m, stats))
    return kind(*(backends.cast(x, stats) for x in (m, l)), backends.cast(payload, payload_name))


def _as_triple(xp, state, normalised):
    """(m, l, o) or, if not normalised, (m, l, acc) of a canonical state."""
    if isinstance(state, LSEState):
        return state.lse, xp.where(is_empty(state), 0.0, xp.ones_like(state.lse)), state.o
    weight = state.l[..., None]
    if isinstance(state, AccState) and normalised:
        return state.m, state.l, state.acc / xp.where(weight == 0, 1.0, weight)
    if isinstance(state, MLOState) and not normalised:
        return state.m, state.l, state.o * weight
    return tuple(state)
