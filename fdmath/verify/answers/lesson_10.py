"""Notebook 10: write the backward of one KV head and the query heads that share it."""

import numpy as np

from fdmath import _backends as backends
from fdmath.attention.differentiable import with_gradient
from fdmath.attention.reference import attention, prepare
from fdmath.verify.subject import Subject

FIRST = "gradient"

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
    """The Subject that a reader's function is: attention whose gradient it is. Differentiating it needs torch."""
    def attend(q, k, v, causal):
        return with_gradient(fn.__name__, lambda *x: tuple(attention(*x, causal=causal)),
                             lambda *x: _by_heads(fn, causal, *x), q, k, v)

    return Subject(fn.__name__, "attention", attend, library="torch")


def _by_heads(fn, causal, do, dlse, q, k, v, o, lse):
    """The gradients of q, k and v as tensors, fn asked of each KV head of each sequence in NumPy."""
    call = prepare(*(x.numpy() for x in (q, k, v)), causal=causal)
    shape = (*call.k.shape[:-2], call.group, call.queries)
    seen = call.visible(0, call.keys)
    visible = np.broadcast_to(True if seen is None else seen, (*call.q.shape[:-1], call.keys)).reshape(*shape, -1)
    do, o, q = (x.reshape(*shape, x.shape[-1]) for x in (do.numpy(), o.numpy(), call.q))
    dlse, lse = (x.numpy().reshape(shape) for x in (dlse, lse))
    found = [np.zeros_like(x) for x in (q, call.k, call.v)]
    for head in np.ndindex(shape[:-2]):
        given = do[head], dlse[head], q[head], call.k[head], call.v[head], o[head], lse[head], visible[head]
        for whole, part in zip(found, fn(*given), strict=True):
            whole[head] = part
    dq = (found[0] * call.scale).reshape(*call.out_shape[:-1], -1)
    return tuple(map(backends.load("torch:from_numpy"), (dq, *found[1:])))


def sample():
    """Arguments of a first call: two query heads of one query on one KV head of two keys."""
    one, keys = np.ones((2, 1, 1)), np.ones((2, 1))
    return one, np.zeros((2, 1)), one, keys, keys, one, np.full((2, 1), 1 + np.log(2)), np.ones((2, 1, 2), bool)
