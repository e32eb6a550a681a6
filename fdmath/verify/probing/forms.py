"""Call signatures met in released libraries: how each is reached from the call that a role prescribes."""

from typing import NamedTuple

from fdmath.algebra.state import LSEState


class Form(NamedTuple):
    """A signature as text, and wrap(fn): fn made to take the operands in the order of its role."""

    text: str
    wrap: object


def forms(role, kind=LSEState):
    """The Forms of a role, its own first."""
    if role == "merge":
        return MERGE if kind is LSEState else MERGE[:1]
    if role == "merge_many":
        return MERGE_MANY if kind is LSEState else MERGE_MANY[:1]
    return {"block": BLOCK, "partial": PARTIAL, "decode": DECODE, "attention": ATTENTION}[role]


def _itself(fn):
    return fn


def _with(names, **flags):
    """The wrapping that passes operands after q, k, v by `names` (None: not at all), and flags besides."""
    def wrap(fn):
        def call(q, k, v, *rest, **more):
            return fn(q, k, v, **{n: x for n, x in zip(names, rest, strict=True) if n is not None}, **flags, **more)

        return call

    return wrap


def _with_heads(fn):
    """fn of states with an axis of one head: o (R, 1, dv), lse (R, 1)."""
    return lambda o1, lse1, o2, lse2: fn(o1[:, None], lse1[:, None], o2[:, None], lse2[:, None])


def _parts_second(heads):
    """The wrapping that puts the axis of parts behind the rows, and one head behind that."""
    deep = (slice(None), slice(None), None) if heads else ...
    return lambda fn: lambda o, lse: fn(o.swapaxes(0, 1)[deep], lse.swapaxes(0, 1)[deep])


FLAGS = [{}, {"return_lse": True}, {"return_softmax_lse": True}, {"return_residual": True}]


def _named(*names):
    """Forms with the operands after q, k, v passed by names, without and with each flag that asks for lse."""
    passed = "".join(f", {n}=…" for n in names if n is not None)
    return [Form(f"fn(q, k, v{passed}{''.join(f', {f}=True' for f in flags)})", _with(names, **flags))
            for flags in FLAGS]


MERGE = [
    Form("fn(o1, lse1, o2, lse2)", _itself),
    Form("fn(o1, o2, lse1, lse2)", lambda fn: lambda o1, lse1, o2, lse2: fn(o1, o2, lse1, lse2)),
    Form("fn(lse1, o1, lse2, o2)", lambda fn: lambda o1, lse1, o2, lse2: fn(lse1, o1, lse2, o2)),
    Form("fn(o1, lse1, o2, lse2) with an axis of heads", _with_heads),
    Form("fn((o1, lse1), (o2, lse2))", lambda fn: lambda o1, lse1, o2, lse2: fn((o1, lse1), (o2, lse2))),
    Form("fn([o1, o2], [lse1, lse2])", lambda fn: lambda o1, lse1, o2, lse2: fn([o1, o2], [lse1, lse2])),
]
MERGE_MANY = [
    Form("fn(o, lse)", _itself),
    Form("fn(lse, o)", lambda fn: lambda o, lse: fn(lse, o)),
    Form("fn(o, lse) with the parts behind the rows", _parts_second(heads=False)),
    Form("fn(o, lse) with the parts behind the rows, and heads", _parts_second(heads=True)),
    Form("fn([o, …], [lse, …])", lambda fn: lambda o, lse: fn(list(o), list(lse))),
]
BLOCK = [Form("fn(scores, v)", _itself)]
PARTIAL = [Form("fn(q, k, v)", _itself), *_named()[1:]]
DECODE = [
    Form("fn(q, k, v, seq_lens, num_splits)", _itself),
    *_named("seq_lens", "num_splits"),
    *_named("seq_lens", None),
    Form("fn(q, k, v, seq_lens)", lambda fn: lambda q, k, v, lens, splits: fn(q, k, v, lens)),
    *_named("cache_seqlens", "num_splits"),
    *_named("cache_seqlens", None),
]
ATTENTION = [Form("fn(q, k, v, causal)", _itself), *_named("causal"), *_named("is_causal"), *_named(None)]
