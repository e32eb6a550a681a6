"""What a whole decode step costs, and what a faster part buys: each law is a function, its docstring the law."""

from fractions import Fraction

from fdmath.cost.decode import read_floor_seconds


def step_floor_seconds(model, keys, device, batch=1):
    """The seconds in which a device reads all weights once and each sequence's cache: no 16-bit step is faster.

    Source: document B, results ("theoretical upper bound"); claims:B70, B82.
    """
    return read_floor_seconds(model.weight_bytes() + model.cache_bytes(keys, batch), device)


def cache_share(model, keys, batch=1):
    """The share of a step's bytes that is the KV cache: cache / (weights + cache)."""
    cache = model.cache_bytes(keys, batch)
    return Fraction(cache, model.weight_bytes() + cache)


def tokens_that_outweigh(model):
    """The least number of cached tokens, over all sequences, whose cache has more bytes than the weights.

    Source: claims:B70 (CodeLlama-34B: about 343 thousand).
    """
    return model.weight_bytes() // model.cache_bytes(1) + 1


def whole_gain(share, gain):
    """Amdahl's law: a part with this share of the time, `gain` times as fast, makes all 1/(1 − f + f/g) as fast."""
    share, gain = _checked(share, gain)
    return 1 / (1 - share + share / gain)


def share_for(whole, gain):
    """The share that a part must have had, if `gain` times as fast it makes all `whole` times as fast.

    f = (1 − 1/w)/(1 − 1/g): Amdahl's law, solved. ValueError for whole > gain. Source: claims:B89.
    """
    if not 1 < whole <= gain:
        raise ValueError(f"whole must be above 1 and at most gain; got {whole} and {gain}")
    return (1 - 1 / Fraction(whole)) / (1 - 1 / Fraction(gain))


def share_left(share, gain):
    """The share of the new time that the part has afterwards: (f/g)/(1 − f + f/g). Source: claims:B90."""
    share, gain = _checked(share, gain)
    return share / gain * whole_gain(share, gain)


def _checked(share, gain):
    """Both as Fractions; ValueError for a share outside of [0, 1] or a gain that is not positive."""
    if not 0 <= share <= 1 or not gain > 0:
        raise ValueError(f"share must be from 0 to 1 and gain positive; got {share} and {gain}")
    return Fraction(share), Fraction(gain)
