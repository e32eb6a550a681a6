"""Document B's two benchmark tables, as data with their source, beside what was recorded here.

Of the first, tokens a second of CodeLlama-34B against the length, the document has no number and its source a picture
only: what can be said is computed, from weights read once and the attention of the second. The second is the blog's
table (`fdmath.bench.published`), beside the newest record of a card. Published and recorded times are of different
cards and software: the shape of a column may be compared, its height may not.
"""

from dataclasses import dataclass, replace
from typing import NamedTuple

from fdmath.bench import decode as recorded
from fdmath.bench import records
from fdmath.bench.decode import OURS, ROWS, select
from fdmath.bench.published import BLOG, BLOG_HEADS, BLOG_SOURCE
from fdmath.cost.decode import read_floor_seconds
from fdmath.cost.hardware import A100, H200
from fdmath.cost.models import CODELLAMA_34B, Model
from fdmath.cost.step import step_floor_seconds

A100_40GB = replace(A100, name="A100 40 GB", bandwidth=1555 * 10**9,
                    source="vendor figure, NVIDIA A100 40 GB data sheet; not measured here")
"""The blog does not say which A100 it had: both are asked."""

CARDS = CODELLAMA_34B.q_heads // BLOG_HEADS["q_heads"]
"""The cards over which the blog's heads share the model out: 64 query heads in parts of 16."""


@dataclass(frozen=True)
class EndToEnd:
    """What the document, and the blog, say of the first benchmark: how it was set up, and what came out, in words."""

    model: Model = CODELLAMA_34B
    batch: int = 1
    lengths: tuple = tuple(2**i for i in range(9, 17))
    methods: tuple = ("PyTorch", "FlashAttention v2", "FasterTransformer", "Flash-Decoding",
                      "bound: weights and KV cache read once")
    gain: int = 8
    source: str = f"{BLOG_SOURCE.partition(':')[0]}; the figure decoding_codellama34b.png, without printed numbers"


END_TO_END = EndToEnd()


class Line(NamedTuple):
    """A kernel's time at batch 1 against the keys: start_us + us_a_key · keys."""

    start_us: float
    us_a_key: float

    def us(self, keys):
        """The microseconds at so many keys."""
        return self.start_us + self.us_a_key * keys


def through(points):
    """The Line through two points (keys, µs)."""
    (n, a), (m, b) = points
    slope = (b - a) / (m - n)
    return Line(a - slope * n, slope)


def published(method):
    """The Line through the two rows of the blog's table whose batch is 1; method: a field of BlogRow."""
    return through([(row.keys, getattr(row, method)) for row in BLOG if row.batch == 1])


def measured(implementation, dtype="float16"):
    """The Line through the same two rows as recorded here, of an implementation that was right in both."""
    _, rows = recorded.recorded()
    names = [shape.name for shape in ROWS["blog"] if shape.batch == 1]
    found = [select(rows, study="peers", dtype=dtype, row=name, implementation=implementation, status="ok")[0]
             for name in names]
    return through([(row["keys"], row["us"]) for row in found])


def attention_ms(line, keys):
    """The milliseconds of attention in one step of CodeLlama-34B: its layers, one after the other."""
    return END_TO_END.model.layers * line.us(keys) / 1e3


def weights_ms(device=A100):
    """The milliseconds in which CARDS devices, side by side, read the weights at their printed bandwidth."""
    return float(1e3 * read_floor_seconds(END_TO_END.model.weight_bytes(), device)) / CARDS


def other_ms(keys=65536, gain=END_TO_END.gain, device=A100):
    """The other work a step, in ms, with which the blog's two kernels make the whole `gain` times as fast.

    (old + w + x) / (new + w + x) = gain, solved for x; negative where no such work is possible. Source: claims:B84.
    """
    old, new = (attention_ms(published(name), keys) for name in ("flash_attention", "flash_decoding"))
    return (old + weights_ms(device) - gain * (new + weights_ms(device))) / (gain - 1)


class Step(NamedTuple):
    """Tokens a second at a length. bound: CARDS cards read weights and cache once; others: weights, and attention.

    On A100s by the blog's table (eager, flash_attention, flash_decoding), on H200s by the record (…_here, ours).
    Modelled, not measured: there is nothing in it but weights and attention, and attention lies on a Line.
    """

    keys: int
    bound: float
    eager: float
    flash_attention: float
    flash_decoding: float
    bound_here: float
    eager_here: float
    flash_here: float
    ours: float


def end_to_end():
    """The list of Steps of the first benchmark, one a length."""
    asked = [(A100, [published(name) for name in ("eager", "flash_attention", "flash_decoding")]),
             (H200, [measured(name) for name in ("eager, grouped", "SDPA flash", OURS)])]
    return [Step(keys, *(x for device, lines in asked for x in _tokens(device, lines, keys)))
            for keys in END_TO_END.lengths]


def _tokens(device, lines, keys):
    """Tokens a second: the bound, then with the attention of each Line."""
    bound = float(CARDS / step_floor_seconds(END_TO_END.model, keys, device))
    return bound, *(1e3 / (weights_ms(device) + attention_ms(line, keys)) for line in lines)


class Micro(NamedTuple):
    """A row of the second benchmark, in µs: published of an A100, recorded of the card that the stamp names.

    read: the least time for as many bytes by the record's own fit; best: the quickest that was right, other than ours.
    """

    batch: int
    keys: int
    eager: float
    flash_attention: float
    flash_decoding: float
    eager_here: float
    flash_here: float
    best_here: float
    best: str
    ours: float
    read: float


def micro_benchmark(dtype="float16"):
    """(stamp, rows): which record it is, in words, and the list of Micro rows of the blog's table."""
    head, rows = recorded.recorded()
    return stamp(head), [_micro(row, shape, select(rows, study="peers", dtype=dtype, row=shape.name))
                         for row, shape in zip(BLOG, ROWS["blog"], strict=True)]


def _micro(published_row, shape, rows):
    """One row of the table; raises ValueError where it and the record are not of one shape."""
    if (published_row.batch, published_row.keys) != (shape.batch, shape.keys):
        raise ValueError(f"rows must be in the blog's order; got {shape.name} beside batch {published_row.batch}")
    us = {row["implementation"]: row["us"] for row in rows if row["status"] == "ok"}
    best = recorded.best_peer(rows)
    return Micro(*published_row, us["eager, grouped"], us["SDPA flash"], best["us"], best["implementation"], us[OURS],
                 rows[0]["floor_us"])


def stamp(head):
    """A record's device, date and commit, in words."""
    return f"{head['device']}, {head['date']}, commit {head['commit']}"


def model_steps():
    """(stamp, rows) of the newest record of whole steps of a real model on a CPU; see `fdmath.bench.model`."""
    head, rows = records.newest("model_time")
    return f"{head['model']}: {stamp(head)}", rows


__all__ = ["A100_40GB", "CARDS", "END_TO_END", "EndToEnd", "Line", "Micro", "Step", "attention_ms", "end_to_end",
           "measured", "micro_benchmark", "model_steps", "other_ms", "published", "stamp", "through", "weights_ms"]
