"""Captured inputs of a real model, read from the package's data; NumPy alone.

Four attention heads of SmolLM2-135M-Instruct over the opening of *Alice's Adventures in Wonderland*
(``fdmath/data/README.md``): ``smollm2/sink``, ``smollm2/flat``, ``smollm2/peaked``, ``smollm2/plain``.
Each has a second name, its place in the model, such as ``smollm2/L3H5`` (layer 3, query head 5, from 0).
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import resources
from types import MappingProxyType

import numpy as np

MODEL = "smollm2"


@dataclass(frozen=True, eq=False)
class Example:
    """Inputs of one attention head: q (64, d), k (N, d), v (N, d), fp16, read-only.

    q holds the last 64 queries of N positions, q and k after the rotary embedding: query i sees the
    keys 0 to N - 64 + i, which ``causal=True`` says.  The scale is 1/sqrt(d).  ``meta`` has the
    provenance, the licences, the layer and heads, and the criteria by which the head was picked.
    """

    name: str
    q: np.ndarray = field(repr=False)
    k: np.ndarray = field(repr=False)
    v: np.ndarray = field(repr=False)
    causal: bool
    meta: Mapping = field(repr=False)


def example_names() -> tuple[str, ...]:
    """Names that load_example knows: the four parts, then the same heads by layer and head."""
    return tuple(f"{MODEL}/{part}" for part in [*_parts(), *(entry["pair"] for entry in _parts().values())])


@functools.cache
def load_example(name: str) -> Example:
    """Example of a name such as ``"smollm2/sink"``; each call gives the same record.

    Raises ValueError, which lists the names, when there is none of that name.
    """
    if name not in example_names():
        raise ValueError(f"no example is named {name!r}; expected one of {', '.join(example_names())}")
    which = name.removeprefix(f"{MODEL}/")
    part, entry = next((p, e) for p, e in _parts().items() if which in (p, e["pair"]))
    q, k, v = (_stored()[f"{entry['pair']}/{letter}"] for letter in "qkv")
    about = {key: value for key, value in _meta().items() if key != "parts"}
    return Example(name, q, k, v, causal=True, meta=MappingProxyType({**about, "part": part, **entry}))


@functools.cache
def _stored() -> dict[str, np.ndarray]:
    with (resources.files("fdmath") / "data" / f"{MODEL}.npz").open("rb") as file, np.load(file) as archive:
        arrays = {key: archive[key] for key in archive.files}
    for array in arrays.values():
        array.setflags(write=False)
    return arrays


@functools.cache
def _meta() -> dict:
    return json.loads(_stored()["meta"].item())


def _parts() -> dict[str, dict]:
    return _meta()["parts"]
