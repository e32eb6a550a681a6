"""JAX's dot_product_attention, which returns lse where the residual is asked for. Needs jax; takes NumPy arrays.

Its q is (B, Nq, H, d); the residual comes as (B, Nq, H), and is handed on as it comes. JAX compiles every shape anew,
half a second each, so calls are filled up to a few: with zeros in d, with rows that are cut off again, and with keys
of which the lengths tell that they are not there.
"""

import jax
import jax.numpy as jnp
import numpy as np

KEYS = (0, 1, 4, 8, 256)
ROWS = (1, 3)
WIDTHS = (8, 128)


def attention(q, k, v, causal):
    """(o, lse) of jax.nn.dot_product_attention in the role attention; it is told lengths where keys were filled up."""
    keys = k.shape[-2]
    lens = None if keys == _next(keys, KEYS) else np.full(len(k), keys)
    return _attend(q, k, v, lens, is_causal=causal)


def decode(q, k, v, seq_lens, num_splits):
    """(o, lse) of the same in the role decode, told the lengths; it splits nothing."""
    return _attend(q, k, v, seq_lens)


def _attend(q, k, v, lens, **options):
    rows, dv, scale = q.shape[-2], v.shape[-1], q.shape[-1] ** -0.5
    width = _next(max(q.shape[-1], dv), WIDTHS)
    q = _filled(q, _next(rows, ROWS), width)
    k, v = (_filled(x, _next(x.shape[-2], KEYS), width) for x in (k, v))
    if lens is not None:
        options["key_value_seq_lengths"] = jnp.asarray(lens, jnp.int32)
    o, lse = jax.nn.dot_product_attention(q, k, v, scale=scale, return_residual=True, **options)
    return np.swapaxes(np.asarray(o), 1, 2)[..., :rows, :dv], np.asarray(lse)[:, :rows]


def _next(size, sizes):
    """The least of `sizes` that is not below size, or the next power of two beyond them."""
    return next((s for s in sizes if s >= size), 1 << max(size - 1, 0).bit_length())


def _filled(x, tokens, width):
    """x (B, H, n, d) as a JAX array (B, tokens, H, width), with zeros in the places that it does not have."""
    missing = [(0, 0), (0, 0), (0, tokens - x.shape[-2]), (0, width - x.shape[-1])]
    return jnp.asarray(np.swapaxes(np.pad(x, missing), 1, 2))
