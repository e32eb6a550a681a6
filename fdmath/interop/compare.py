"""A model decoding with eager, sdpa and fdmath attention side by side: tokens, logits, and the time of a token.

Every implementation has a cache of its own and takes its own tokens, greedily, or all are given the tokens of a text;
at each step they run in turn, so that what slows the machine slows all. Needs the ``[model]`` extra.
"""

import inspect
import math
import statistics
import time
from dataclasses import asdict, dataclass, field

import torch
import transformers
from tqdm.auto import tqdm

from fdmath.algebra.merge import flat
from fdmath.algebra.order import sequential, streams, tree
from fdmath.algebra.state import AccState, LSEState, MLOState
from fdmath.interop.transformers import Unsupported, register

REFERENCE, PEER, OURS = "eager", "sdpa", "fdmath"
KINDS = {"lse": LSEState, "mlo": MLOState, "acc": AccState}
ORDERS = {"flat": flat, "tree": tree, "chain": sequential, "streams": streams(5)}
RANGES = 4  # of context lengths that times are told for


@dataclass(frozen=True)
class Difference:
    """A step at which an implementation takes another token than the reference, after the same context.

    reference, other: the token of each; logits: for each of the two implementations, its logits of (reference, other).
    margin: by how much the reference prefers its token to the other, in its own logits.
    """

    step: int
    context: int
    reference: int
    other: int
    reference_logits: tuple[float, float]
    other_logits: tuple[float, float]
    margin: float


@dataclass
class Stream:
    """One implementation decoding: its tokens, the seconds of each step, and how it departs from the reference.

    compared: the steps after the same context as the reference; largest: the largest |difference of a logit| in them.
    """

    name: str
    tokens: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    differences: list[Difference] = field(default_factory=list)
    compared: int = 0
    largest: float = 0.0

    @property
    def same(self):
        """Whether every token is the reference's."""
        return not self.differences


@dataclass(frozen=True)
class Comparison:
    """The streams of one prompt of `context` tokens, the reference first; forced: given the tokens of a text."""

    context: int
    forced: bool
    streams: dict[str, Stream]


def compare(model, prompt, tokens, *, names=(REFERENCE, PEER, OURS), forced=None, progress=False):
    """The Comparison of decoding `tokens` tokens after a prompt (1, N) with each of the implementations named.

    The first name is the reference. forced: (1, tokens) token ids, which all are given whatever they would take; else
    each goes on with its own, and is compared up to the first step at which it differs. The model is left with the
    implementation that it had. progress: a bar over the steps.
    """
    before = model.config._attn_implementation
    caches = {name: transformers.DynamicCache(config=model.config) for name in names}
    following = dict.fromkeys(names, prompt)
    found = Comparison(prompt.shape[1], forced is not None, {name: Stream(name) for name in names})
    try:
        for step in tqdm(range(tokens), unit="token", disable=None if progress else True, leave=False):
            logits = {}
            for name, stream in found.streams.items():
                logits[name], seconds = _step(model, name, following[name], caches[name])
                stream.seconds.append(seconds)
            _judge(found, step, logits)
            for name, stream in found.streams.items():
                taken = forced[:, step:step + 1] if found.forced else torch.tensor([[stream.tokens[-1]]])
                following[name] = taken.to(prompt.device)
    finally:
        model.set_attn_implementation(before)
    return found


def _step(model, name, tokens, cache):
    """(logits of the last token (V,) in float32, seconds) of one pass over new tokens (1, n)."""
    _switch(model, name)
    mask = torch.ones(1, cache.get_seq_length() + tokens.shape[1], dtype=torch.int64, device=tokens.device)
    with torch.no_grad():
        start = _now(tokens)
        given = {"attention_mask": mask, _name_of_cache(model): cache, "use_cache": True, "logits_to_keep": 1}
        logits = model(tokens, **given).logits
        return logits[0, -1].float(), _now(tokens) - start


def _name_of_cache(model):
    """The name of the argument that takes the cache, which depends on model and release; its place does too."""
    return "cache" if "cache" in inspect.signature(model.forward).parameters else "past_key_values"


def _switch(model, name):
    """Nothing; the model now computes its attention by `name`. Raises Unsupported where it keeps its own instead."""
    try:
        model.set_attn_implementation(name)  # where a model has only its own, transformers warns and leaves it
    except ValueError as refusal:
        raise Unsupported(str(refusal)) from refusal
    if model.config._attn_implementation != name:
        raise Unsupported(f"{type(model).__name__} does not take its attention from transformers' interface: "
                          f"{name!r} cannot be set")


def _now(tensor):
    """Seconds, when the tensor's device has done what it was asked."""
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)
    return time.perf_counter()


def _judge(found, step, logits):
    """Nothing; each stream has taken its token of this step, and is compared with the reference where it may be."""
    (_, reference), *others = found.streams.items()
    right = logits[reference.name]
    reference.tokens.append(int(right.argmax()))
    for name, stream in others:
        together = found.forced or stream.same
        stream.tokens.append(int(logits[name].argmax()))
        if together:
            stream.compared += 1
            apart = float((logits[name] - right).abs().max())
            stream.largest = stream.largest if apart <= stream.largest or math.isnan(stream.largest) else apart
            if stream.tokens[-1] != reference.tokens[-1] or math.isnan(apart):
                stream.differences.append(_difference(found, step, stream, reference, logits[name], right))


def _difference(found, step, stream, reference, got, right):
    a, b = reference.tokens[-1], stream.tokens[-1]
    of_reference, of_other = (tuple(float(x[i]) for i in (a, b)) for x in (right, got))
    margin = of_reference[0] - of_reference[1]
    return Difference(step, found.context + step, a, b, of_reference, of_other, margin)


def times(found, parts=RANGES):
    """Rows (shortest context, longest context, {name: median seconds of a token}) over ranges of steps.

    The first step is the prompt and is left out.
    """
    steps = range(1, len(next(iter(found.streams.values())).seconds))
    parts = min(parts, len(steps))
    cuts = [1 + len(steps) * i // parts for i in range(parts + 1)] if parts else []
    return [(found.context + a, found.context + b - 1,
             {name: statistics.median(stream.seconds[a:b]) for name, stream in found.streams.items()})
            for a, b in zip(cuts, cuts[1:], strict=False)]


def text_of(found, decode):
    """Lines on one Comparison for people; decode: token ids → text."""
    reference, *others = found.streams.values()
    how = "given the tokens of the text" if found.forced else "each with its own tokens, greedily"
    lines = [f"{len(reference.tokens)} tokens after {found.context}, {how}",
             f"  {reference.name}: {decode(reference.tokens)!r}"]
    for stream in others:
        verdict = "the same tokens" if stream.same else f"{len(stream.differences)} of {stream.compared} tokens differ"
        lines.append(f"  {stream.name}: {verdict} as {reference.name}; largest |Δlogit| {stream.largest:.2e}"
                     f" over {stream.compared} steps".replace("differ as", "differ from"))
        lines += [_sentence(one, reference.name, stream.name, decode) for one in stream.differences[:5]]
    for a, b, seconds in times(found):
        each = ", ".join(f"{name} {one * 1e3:.1f}" for name, one in seconds.items())
        lines.append(f"  ms a token at context {a} to {b}: {each}")
    return "\n".join(lines)


def _sentence(one, reference, other, decode):
    a, b = (repr(decode([token])) for token in (one.reference, one.other))
    (ra, rb), (oa, ob) = one.reference_logits, one.other_logits
    return (f"    step {one.step}, context {one.context}: {reference} takes {a} ({ra:.6g} against {rb:.6g}, margin "
            f"{one.margin:.2e}), {other} takes {b} ({ob:.6g} against {oa:.6g})")


def row_of(found):
    """One Comparison as a dict for JSON."""
    runs = {name: {"same": stream.same, **asdict(stream)} for name, stream in found.streams.items()}
    medians = [{"from": a, "to": b, "seconds": seconds} for a, b, seconds in times(found)]
    return {"context": found.context, "forced": found.forced, "runs": runs, "times": medians}


def same(comparisons):
    """Whether fdmath took the reference's tokens in all Comparisons; NaN logits count as another token."""
    return all(found.streams[OURS].same for found in comparisons)


def use(tile=None, num_splits=None, kind=None, order=None, backend="auto", name=OURS):
    """Nothing; models with attn_implementation=name now take these options, kind and order by their names here."""
    register(tile, num_splits, KINDS.get(kind), ORDERS.get(order), backend, name)
