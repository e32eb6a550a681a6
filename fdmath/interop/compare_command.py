"""``fdmath model compare``: the model and the texts that are asked for, and what is printed and written."""

import argparse
import importlib
import json
import sys
from pathlib import Path

import torch
import transformers

from fdmath.attention.decode import choose_backend
from fdmath.interop import compare as comparing
from fdmath.interop.smollm2 import NotAsExpected, Source

PROMPT = "Explain in three sentences why the sun rises in the east."


class CouldNotRun(OSError):
    """What was asked for cannot be compared, and why."""


def run(options: argparse.Namespace, source: Source) -> None:
    """Nothing; the comparison is printed, and written where ``--json`` says.

    Raises NotAsExpected where fdmath took another token than eager, OSError where the model or the text is not there.
    """
    _check_device(options)
    model, tokenizer = load(options, source)
    comparing.use(options.tile, options.num_splits, options.kind, options.order, options.backend)
    found = []
    for prompt, forced in _texts(options, tokenizer, model.device):
        _check_length(model, prompt.shape[1] + options.tokens)
        found.append(comparing.compare(model, prompt, options.tokens, forced=forced, progress=True))
        print(comparing.text_of(found[-1], tokenizer.decode), flush=True)
    if options.json:
        record = {"model": options.model, "rows": [comparing.row_of(one) for one in found]}
        asked = ("tile", "num_splits", "kind", "order", "backend", "device", "dtype")
        record |= {name: getattr(options, name) for name in asked}
        options.json.write_text(json.dumps(record, indent=1) + "\n", encoding="utf-8")
    if not comparing.same(found):
        raise NotAsExpected("fdmath took another token than eager; the margins above say how near the two were")


def load(options: argparse.Namespace, source: Source) -> tuple:
    """Model, on the device and of the dtype asked for, and its tokenizer; OSError where they are not there."""
    if options.model == "smollm2":
        fetching = importlib.import_module("fdmath.interop.fetch")
        path = fetching.fetched(source, fetching.cache_folder(options.cache))
        print("reading the model: about half a minute", file=sys.stderr)
        model, tokenizer = importlib.import_module("fdmath.interop.capture").load(path)
    else:
        try:
            tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
            model = transformers.AutoModelForCausalLM.from_pretrained(options.model)
        except (OSError, ValueError) as failure:  # the latter where it is of another kind
            why, *_ = str(failure).splitlines()
            raise CouldNotRun(f"{options.model} is no language model that transformers can load: {why}") from failure
    return model.to(options.device, getattr(torch, options.dtype)).eval(), tokenizer


def _check_device(options: argparse.Namespace) -> None:
    """Nothing; raises CouldNotRun where the device is not here, or the backend that is named cannot run on it."""
    if options.device.startswith("cuda") and not torch.cuda.is_available():
        raise CouldNotRun("there is no CUDA device here")
    try:
        head = torch.ones(1, 1, 1, 16, device=options.device, dtype=getattr(torch, options.dtype))
        asked = {"kind": comparing.KINDS.get(options.kind), "order": comparing.ORDERS.get(options.order)}
        choose_backend(options.backend, head, head, head, **{name: x for name, x in asked.items() if x is not None})
    except RuntimeError as failure:
        raise CouldNotRun(str(failure)) from failure


def _check_length(model, tokens: int) -> None:
    """Nothing; raises CouldNotRun where the model has fewer positions than tokens."""
    positions = getattr(model.config, "max_position_embeddings", tokens)
    if tokens > positions:
        raise CouldNotRun(f"prompt and answer are {tokens} tokens; the model has {positions} positions")


def _texts(options: argparse.Namespace, tokenizer, device) -> list[tuple]:
    """(prompt (1, N), forced (1, tokens) or None) of each comparison, as token ids on the device."""
    if options.forced is None:
        prompts = options.prompt or [PROMPT]
        ids = [tokenizer(prompt, return_tensors="pt").input_ids.to(device) for prompt in prompts]
        if any(one.shape[1] == 0 for one in ids):
            raise CouldNotRun("a prompt has no token")
        return [(one, None) for one in ids]
    ids = tokenizer(Path(options.forced).read_text(encoding="utf-8"), return_tensors="pt").input_ids.to(device)
    if ids.shape[1] <= options.tokens:
        raise CouldNotRun(f"{options.forced} has {ids.shape[1]} tokens; --tokens {options.tokens} leaves no context")
    return [(ids[:, :-options.tokens], ids[:, -options.tokens:])]
