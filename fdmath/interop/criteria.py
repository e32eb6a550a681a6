"""What an attention head does with its keys, in three numbers, and the rule that picks four heads by them.

A head is named by ``(layer, head)``.  Its three numbers are means over the captured queries of
the causal softmax weights p over the n visible keys:

- ``sink``     the weight of key 0;
- ``entropy``  -sum p log p, divided by log n: 1 is uniform, 0 is one key;
- ``peak``     the largest weight of any key but key 0.
"""

from typing import NamedTuple

import numpy as np

from fdmath.attention.reference import causal_mask
from fdmath.attention.softmax import softmax_safe
from fdmath.interop.smollm2 import NotAsExpected

RULE = {
    "sink": "the head with the largest sink",
    "flat": "the head with the largest entropy",
    "peaked": "the head with the largest peak",
    "plain": "of the other heads, the one whose worst rank in sink, entropy and peak is nearest the middle; "
    "it must lie between the quartiles of all heads in each",
}
# What the head of each name must have at least, else the capture refuses it.  Half of the weight on one
# key is a sink or a peak in any sense; three quarters of the full entropy is n ** 0.75 keys in effect.
FLOORS = {"sink": ("sink", 1 / 2), "flat": ("entropy", 3 / 4), "peaked": ("peak", 1 / 2)}

Name = tuple[int, int]


class Profile(NamedTuple):
    """Sink, entropy and peak of one head, each in [0, 1]."""

    sink: float
    entropy: float
    peak: float


def visible(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Causal mask (Nq, N) of q (Nq, d) and k (N, d), True = visible; the last query sees the last key."""
    return causal_mask(np, len(q), len(k), q)


def weights(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Causal softmax weights (Nq, N) in fp64 of q (Nq, d) and k (N, d), scores scaled by 1/sqrt(d)."""
    q, k = q.astype(np.float64), k.astype(np.float64)
    return softmax_safe(np.where(visible(q, k), q @ k.T / np.sqrt(q.shape[-1]), -np.inf))


def profile(q: np.ndarray, k: np.ndarray) -> Profile:
    """Profile of a head: q (Nq, d) holds the last Nq queries over the keys k (N, d), Nq < N."""
    p = weights(q, k)
    entropy = -np.sum(p * np.log(np.where(p > 0, p, 1)), axis=-1)
    full = np.log(visible(q, k).sum(axis=-1))
    return Profile(*(float(x.mean()) for x in (p[:, 0], entropy / full, p[:, 1:].max(axis=-1))))


def recorded(figure: float) -> float:
    """A figure with the four digits that are stored: the rest differs with the order in which a machine adds."""
    return float(f"{figure:.4g}")


def quartiles(profiles: dict[Name, Profile]) -> tuple[Profile, Profile]:
    """Lower and upper quartile of sink, entropy and peak over all heads."""
    low, high = np.quantile(list(profiles.values()), [0.25, 0.75], axis=0)
    return Profile(*low.tolist()), Profile(*high.tolist())


def choose(profiles: dict[Name, Profile]) -> dict[str, Name]:
    """Head of each name in RULE; ties go to the lower layer, then the lower head.

    Raises NotAsExpected when a head misses its floor or two names fall on one head.
    """
    names = sorted(profiles)
    table = np.array([profiles[name] for name in names])
    chosen = {part: names[table[:, column].argmax()] for column, part in enumerate(("sink", "flat", "peaked"))}
    rank = table.argsort(axis=0, kind="stable").argsort(axis=0)
    distance = np.abs(rank - (len(names) - 1) / 2).max(axis=1)
    others = [(far, name) for far, name in zip(distance, names, strict=True) if name not in chosen.values()]
    chosen["plain"] = min(others)[1]
    _check(profiles, chosen)
    return chosen


def _check(profiles: dict[Name, Profile], chosen: dict[str, Name]) -> None:
    if len(set(chosen.values())) != len(chosen):
        raise NotAsExpected(f"one head got two names: {chosen}")
    for part, (criterion, floor) in FLOORS.items():
        got = getattr(profiles[chosen[part]], criterion)
        if not got >= floor:
            raise NotAsExpected(f"no head is {part}: the largest {criterion} is {got}, at least {floor} expected")
    low, high = quartiles(profiles)
    if not all(a <= x <= b for a, x, b in zip(low, profiles[chosen["plain"]], high, strict=True)):
        raise NotAsExpected(f"no head is plain: {chosen['plain']} is outside the quartiles {low} to {high}")
