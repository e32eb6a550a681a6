"""States that tests merge: plain, random at any score level, and built to be hard."""

import numpy as np

from fdmath import AccState, LSEState, MLOState

KINDS = (LSEState, MLOState, AccState)
LEVELS = (0.0, 1.0, 10.0, 100.0, 1e3, 1e4, 1e5, 1e6)


def state(lib, kind, level, payload, dtype="float32", mass=1.0):
    """The state of a kind with o = payload: lse = level, or m = level and l = mass; acc = l·o must be exact."""
    level, payload = np.broadcast_to(level, np.shape(payload)[:-1]), np.asarray(payload, dtype=np.float64)
    if kind is LSEState:
        return LSEState(lib.array(payload, dtype), lib.array(level, dtype))
    mass = np.broadcast_to(mass, level.shape)
    payload = payload * mass[..., None] if kind is AccState else payload
    return kind(lib.array(level, dtype), lib.array(mass, dtype), lib.array(payload, dtype))


def empty_states(lib, kind, rows, dv, dtype="float32"):
    """Every way of writing the state of no keys: the payload is 0, NaN or infinite, Z is 0 by m or by l."""
    written = []
    for payload in (0.0, np.nan, np.inf):
        o = lib.array(np.full((rows, dv), payload), dtype)
        nothing, zero, one = (lib.array(np.full(rows, x), dtype) for x in (-np.inf, 0.0, 1.0))
        if kind is LSEState:
            written.append(LSEState(o, nothing))
        else:
            written += [kind(nothing, zero, o), kind(nothing, one, o), kind(one, zero, o)]
    return written


def random_state(lib, kind, rng, shape, level=0.0, spread=3.0, dtype="float32"):
    """A random state: levels N(level, spread²), l from 1 to 100, o normal; shape is (rows…, dv)."""
    levels = level + spread * rng.standard_normal(shape[:-1])
    o = rng.standard_normal(shape)
    if kind is LSEState:
        return LSEState(lib.array(o, dtype), lib.array(levels, dtype))
    mass = lib.array(100.0 ** rng.random(shape[:-1]), dtype)
    return kind(lib.array(levels, dtype), mass, lib.array(o, dtype))
