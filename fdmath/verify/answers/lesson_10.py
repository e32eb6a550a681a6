"""Notebook 10: write the backward of one KV head and the query heads that share it."""

import numpy as np

from fdmath.attention.reference import attention, prepare
from fdmath.verify.subject import Subject

LAWS = ("gradient of o", "gradient of lse", "sum over a group", "delta", "weights sum to 1", "gradient causality",
        "gradient of nothing")
"""The laws of a backward pass, each of which makes the calls that it is about: empty rows, groups, masks."""

HINTS = (
    "In order: `s` by one product, $-\\infty$ where not visible; $P = e^{s-\\mathrm{lse}}$; delta is one number a row, "
    "made of `do`, `o` and `dlse`; $dP$ is the product of `do` with `v` transposed; $dS = P\\circ(dP-\\delta)$. Then "
    "the three products (5), (13) and (14): `q` is scaled already, so leave the scale to the caller. `k` and `v` serve "
    "all `g` query heads: their gradients are summed over the first axis.",
    "A row that sees no key has lse $=-\\infty$ and scores $-\\infty$, and $-\\infty-(-\\infty)$ is NaN. Put another "
    "number in place of such an lse, for which $e^{s-\\mathrm{lse}}$ is 0: $+\\infty$, or 0. And mind the sign of "
    "`dlse`: a larger lse alone moves $ds_j$ by $+p_j\\,dlse$, and delta is *subtracted*.",
)


def my_backward(do, dlse, q, k, v, o, lse, visible):
    """(dq, dk, dv) of g query heads on one KV head: q (g, Nq, d), scaled already; k (N, d), v (N, dv), both shared.

    do, o: (g, Nq, dv); dlse, lse: (g, Nq), lse −∞ for a row without a key; visible: booleans (g, Nq, N).
    """
    raise NotImplementedError


def answer(do, dlse, q, k, v, o, lse, visible):
    """(dq, dk, dv) of g query heads on one KV head: q (g, Nq, d), scaled already; k (N, d), v (N, dv), both shared.

    do, o: (g, Nq, dv); dlse, lse: (g, Nq), lse −∞ for a row without a key; visible: booleans (g, Nq, N).
    """
    s = np.where(visible, q @ k.T, -np.inf)
    p = np.exp(s - np.where(lse == -np.inf, np.inf, lse)[..., None])
    delta = np.sum(do * o, axis=-1) - dlse
    ds = p * (do @ v.T - delta[..., None])
    dq = ds @ k
    dk = np.sum(np.swapaxes(ds, -1, -2) @ q, axis=0)
    dv = np.sum(np.swapaxes(p, -1, -2) @ do, axis=0)
    return dq, dk, dv


def subject(fn):
    """The Subject that a reader's function is: attention by definition of scale 1, and fn as its backward pass.

    With that scale a message's numbers are those of the reader, who is given q "scaled already".
    """
    def attend(q, k, v, causal):
        return tuple(attention(q, k, v, causal=causal, scale=1.0))

    return Subject(fn.__name__, "attention", attend, lambda *call: _by_heads(fn, *call), scale=1.0)


def _by_heads(fn, do, dlse, q, k, v, o, lse, causal):
    """The gradients of q, k and v, fn asked of each KV head of each sequence; ValueError for other shapes.

    Rows that see no key may hold NaN or ∞; the reader's function gets 1 in their place. Its arrays are read-only.
    """
    call = prepare(q, k, v, causal=causal, scale=1.0)
    shape = (*call.k.shape[:-2], call.group, call.queries)
    seen = call.visible(0, call.keys)
    visible = np.broadcast_to(True if seen is None else seen, (*call.q.shape[:-1], call.keys))
    by_head = [x.reshape(*shape, x.shape[-1]) for x in (do, call.q, o, visible)]
    do, q, dlse = (np.where(np.isfinite(x), x, 1) for x in (*by_head[:2], dlse.reshape(shape)))
    o, visible, lse = *by_head[2:], lse.reshape(shape)
    found = [np.zeros_like(x) for x in (q, call.k, call.v)]
    for head in np.ndindex(shape[:-2]):
        got = fn(*(_read_only(x[head]) for x in (do, dlse, q, call.k, call.v, o, lse, visible)))
        for whole, part in zip(found, _checked(got, [x[head].shape for x in found]), strict=True):
            whole[head] = part
    if not np.all(visible):
        _hidden_beside_the_lowest(fn, q.dtype)
    return found[0].reshape(*call.out_shape[:-1], -1), *found[1:]


def _read_only(x):
    """A view of the array that cannot be written to."""
    x = x.view()
    x.flags.writeable = False
    return x


def _hidden_beside_the_lowest(fn, dtype):
    """Nothing; ValueError where a key that is not visible gets a gradient because lse is near the lowest number.

    A score that is not visible is −∞, not −1e30: e^(−1e30 − lse) is not 0 where lse is lower still.
    """
    low = np.finfo(dtype).min / 2  # room for a factor log₂e, in base 2
    one, v, none = np.ones((1, 1, 1), dtype), np.ones((2, 1), dtype), np.zeros((1, 1), dtype)
    k, visible = np.array([[low], [0]], dtype), np.array([[[True, False]]])
    got = fn(*map(_read_only, (one, none, one, k, v, one, none + k[0], visible)))
    for name, x in zip(("dk", "dv"), _checked(got, [one.shape, k.shape, v.shape])[1:], strict=True):
        if not np.all(x[1] == 0):
            raise ValueError(f"{name} of a key that is not visible must be 0 beside a key of score {low:.2g}, "
                             f"which is lse; got {x[1]}")


def _checked(got, shapes):
    """The three arrays of one KV head that fn returned; ValueError unless they have these shapes."""
    if not isinstance(got, (tuple, list)) or len(got) != len(shapes):
        what = type(got).__name__ + (f" of {len(got)}" if isinstance(got, (tuple, list)) else "")
        raise ValueError(f"must return three arrays, dq, dk, dv; got {what}")
    found = [np.reshape(x, shape) if np.size(x) == 0 == np.prod(shape) else np.asarray(x)
             for x, shape in zip(got, shapes, strict=True)]  # a list without numbers has no second axis
    for name, x, shape in zip(("dq", "dk", "dv"), found, shapes, strict=True):
        if x.shape != shape:
            raise ValueError(f"{name} of one KV head must have the shape {shape}; got {x.shape}")
    return found


def sample():
    """Arguments of a first call: two query heads of one query on one KV head of two keys."""
    one, keys = np.ones((2, 1, 1)), np.ones((2, 1))
    return one, np.zeros((2, 1)), one, keys, keys, one, np.full((2, 1), 1 + np.log(2)), np.ones((2, 1, 2), bool)
