"""JAX's dot_product_attention, which returns lse where the residual is asked for. Needs jax; takes NumPy arrays.

Its q is (B, Nq, H, d); the residual comes as (B, Nq, H), and is handed on as it comes. JAX compiles every shape anew,
half a second each, so calls are filled up to a few: with zeros in d; with sequences, heads and rows that are cut off
again; and with keys of which the lengths tell that they are not there.
"""

import numpy as np

from fdmath import _backends as backends
from fdmath.verify.installed.adapter import NoDevice

jax, jnp = (backends.load("importlib:import_module")(name) for name in ("jax", "jax.numpy"))

SEQUENCES = HEADS = ROWS = (3,)
KEYS = (0, 1, 4, 8, 256)
WIDTHS = (8, 128, 576)


def attention(q, k, v, causal, device="cpu"):
    """(o, lse) of jax.nn.dot_product_attention in the role attention; it is told lengths where keys were filled up."""
    keys = k.shape[-2]
    lens = None if keys == _next(keys, KEYS) else np.full(len(k), keys)
    return _attend(device, q, k, v, lens, is_causal=causal)


def decode(q, k, v, seq_lens, num_splits, device="cpu"):
    """(o, lse) of the same in the role decode, told the lengths; it splits nothing."""
    return _attend(device, q, k, v, seq_lens)


def _attend(device, q, k, v, lens, **options):
    with jax.default_device(_first(device)):
        return _attend_there(q, k, v, lens, **options)


def _first(device):
    """JAX's first device of a kind ("cpu", "cuda"); NoDevice where it sees none."""
    try:
        return jax.devices(device)[0]
    except RuntimeError as error:
        raise NoDevice(f"jax sees no device {device}: {str(error).splitlines()[0]}") from error


def _attend_there(q, k, v, lens, **options):
    (batch, heads, rows, d), kv, dv = q.shape, k.shape[1], v.shape[-1]
    grouped = q.reshape(batch, kv, heads // kv, rows, d)
    width = _next(max(d, dv), WIDTHS)
    sizes = _next(batch, SEQUENCES), _next(kv, HEADS)
    q = _filled(grouped, *sizes, heads // kv, _next(rows, ROWS), width)
    q = q.reshape(sizes[0], -1, *q.shape[-2:])
    k, v = (_filled(x, *sizes, _next(x.shape[-2], KEYS), width) for x in (k, v))
    if lens is not None:
        options["key_value_seq_lengths"] = jnp.asarray(_filled(np.asarray(lens), sizes[0]), jnp.int32)
    q, k, v = (jnp.asarray(np.swapaxes(x, 1, 2)) for x in (q, k, v))
    o, lse = jax.nn.dot_product_attention(q, k, v, scale=d**-0.5, return_residual=True, **options)
    return np.swapaxes(np.asarray(o), 1, 2)[:batch, :heads, :rows, :dv], np.asarray(lse)[:batch, :rows, :heads]


def _next(size, sizes):
    """The least of `sizes` that is not below size, or the next power of two beyond them."""
    return next((s for s in sizes if s >= size), 1 << max(size - 1, 0).bit_length())


def _filled(x, *shape):
    """x with zeros behind its ends, of the shape given."""
    return np.pad(x, [(0, most - size) for size, most in zip(x.shape, shape, strict=True)])
