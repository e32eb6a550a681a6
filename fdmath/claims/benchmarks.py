"""Checks of document B's results and of where FlashDecoding can be had: claims B83 to B95."""

from fractions import Fraction

import numpy as np

from fdmath import _backends as backends
from fdmath.algebra.state import LSEState, MLOState
from fdmath.bench import decode as recorded
from fdmath.bench.decode import OURS, ROWS, Shape, select
from fdmath.bench.published import BLOG, BLOG_ATTENTION, BLOG_HEADS
from fdmath.claims import tables
from fdmath.claims.cases import percent
from fdmath.claims.claim import Observed, check
from fdmath.claims.tables import A100_40GB, END_TO_END, attention_ms, published, stamp, weights_ms
from fdmath.cost.decode import kv_cache_bytes
from fdmath.cost.hardware import A100
from fdmath.cost.models import CODELLAMA_34B, Model
from fdmath.cost.step import cache_share, share_for, share_left, step_floor_seconds, whole_gain
from fdmath.verify.conventions import CONVENTIONS

LLAMA_2_7B = Model("Llama-2-7B", 32, 4096, 32, 32, 128, 11008, 32000, False,
                   "config.json of meta-llama/Llama-2-7b-hf")
METHODS = {"PyTorch": "eager", "FlashAttention": "flash_attention", "Flash-Decoding": "flash_decoding"}
"""The document's names of the three columns of the blog's table."""

ATTENTION_GAIN, WHOLE_GAIN = BLOG_ATTENTION, END_TO_END.gain
SHORT, LONG = END_TO_END.lengths[0], END_TO_END.lengths[-1]


@check("B83")
def how_level_the_bound_stays():
    """The bound (weights and cache read once) at 65536 keys against 512: level while the weights are most of it."""
    kept, share = {}, {}
    for model in CODELLAMA_34B, LLAMA_2_7B:
        short, long = (step_floor_seconds(model, keys, A100) for keys in (SHORT, LONG))
        kept[model.name], share[model.name] = short / long, cache_share(model, LONG)
    level = {name: x < Fraction(1, 2) for name, x in share.items()}
    text = ", ".join(f"{name} {percent(kept[name], 0)}, of which the cache reads {percent(share[name], 0)}"
                     for name in kept)
    return Observed([level["CodeLlama-34B"]], [level["Llama-2-7B"]], figure=(
        f"tokens a second at {LONG} keys of those at {SHORT}, at most: {text}"),
        counterexample=f"Llama-2-7B, batch 1, {LONG} keys: at best {percent(kept['Llama-2-7B'], 0)} of the speed")


@check("B84")
def whether_8_times_end_to_end_can_be():
    """The other work a step with which the blog's kernels make CodeLlama-34B 8 times as fast: it must not be negative.

    Four cards, 48 layers, 65536 keys, for both A100s."""
    other = {device.name: tables.other_ms(device=device) for device in (A100, A100_40GB)}
    old, new = (attention_ms(published(METHODS[name]), LONG) for name in ("FlashAttention", "Flash-Decoding"))
    weights = [f"{weights_ms(device):.1f}" for device in (A100, A100_40GB)]
    return Observed(inside=[x >= 0 for x in other.values()], figure=(
        f"at {LONG} keys attention took {old:.0f} ms and takes {new:.1f} ms, the weights {' or '.join(weights)} ms: "
        f"{WHOLE_GAIN} times with {' or '.join(f'{x:.1f}' for x in other.values())} ms of other work"))


@check("B85")
def how_near_the_kernels_come_to_reading():
    """Shares of the read floor of the kernels alone: the blog's by both A100s' bandwidths, ours as recorded."""
    read = [kv_cache_bytes(row.keys, BLOG_HEADS["dim"], BLOG_HEADS["kv_heads"], row.batch) for row in BLOG]
    rates = [count / row.flash_decoding * 1e6 for count, row in zip(read, BLOG, strict=True)]
    head, rows = recorded.recorded()
    ours = [row["share_of_floor"] for row in select(rows, study="peers", implementation=OURS, status="ok")]
    of_card = ", ".join(f"{percent(min(rates) / x.bandwidth, 0)} to {percent(max(rates) / x.bandwidth, 0)} of an "
                        f"{x.name}'s bandwidth" for x in (A100, A100_40GB))
    return Observed(figure=f"whole steps: not to be told, the figure is missing; kernels alone: the blog's table reads "
                    f"at {of_card}; ours at {percent(min(ours), 0)} to {percent(max(ours), 0)} of the read floor "
                    f"({stamp(head)})")


@check("B86")
def batch_of_the_micro_benchmark():
    """The batch of each row of the blog's table, and its heads beside CodeLlama-34B's."""
    cards = tables.CARDS
    geometry = (BLOG_HEADS["kv_heads"] * cards, BLOG_HEADS["dim"]) == (CODELLAMA_34B.kv_heads, CODELLAMA_34B.dim)
    return Observed(inside=[geometry, *(row.batch == 1 for row in BLOG)], figure=(
        f"batch 1 in {sum(row.batch == 1 for row in BLOG)} of {len(BLOG)} rows, batch · keys = "
        f"{' or '.join(map(str, sorted({row.batch * row.keys for row in BLOG})))}; the heads are CodeLlama-34B's over "
        f"{cards} cards: {geometry}"),
        counterexample=f"the first row: batch {BLOG[0].batch}, {BLOG[0].keys} keys")


@check("B87")
def largest_gain_in_the_table():
    """FlashAttention over Flash-Decoding in the rows of the blog's table, and on the lines through those of batch 1."""
    gain = {row.keys: row.flash_attention / row.flash_decoding for row in BLOG}
    most = max(gain, key=gain.get)
    old, new = published("flash_attention"), published("flash_decoding")
    limit = old.us_a_key / new.us_a_key
    first = (ATTENTION_GAIN * new.start_us - old.start_us) / (old.us_a_key - ATTENTION_GAIN * new.us_a_key)
    return Observed(inside=[limit >= ATTENTION_GAIN, first > most], outside=[gain[most] >= ATTENTION_GAIN], figure=(
        f"{ATTENTION_GAIN} stands in the blog's text; its table has at most {gain[most]:.1f} ({most} keys), and "
        f"{gain[LONG]:.1f} at {LONG}; lines through its rows of batch 1 would reach {ATTENTION_GAIN} at {first:.0f} "
        f"keys, and at most {limit:.0f}"), counterexample=f"{most} keys, batch 1: {gain[most]:.1f} times")


@check("B88")
def attention_time_against_length():
    """A kernel's time with the batch held at 8 and the keys growing; and the bytes of the blog's flat rows."""
    where, us = growing()
    first, last = min(us), max(us)
    flat_rows = [row for row in BLOG if row.keys <= LONG]
    read = {kv_cache_bytes(row.keys, BLOG_HEADS["dim"], BLOG_HEADS["kv_heads"], row.batch) for row in flat_rows}
    line = published("flash_decoding")
    return Observed(inside=[us[last][1] <= us[first][2], len(read) == len(flat_rows)], figure=(
        f"the {len(flat_rows)} rows up to {LONG} keys all read {min(read) / 1e6:.1f} MB, batch · keys being fixed; "
        f"with batch 8: {us[first][0]:.1f} µs at {first} keys, {us[last][0]:.1f} µs at {last}, {last // first} times "
        f"as many ({where}); the blog's rows of batch 1 lie on {line.start_us:.0f} µs + {1000 * line.us_a_key:.2f} µs "
        f"per 1000 keys"),
        counterexample=f"batch 8, {first} and {last} keys: {us[last][0] / us[first][0]:.1f} times as long")


def growing(lengths=(512, 2048, 8192, 32768)):
    """(where, {keys: (median, least, most) µs}): our kernel at batch 8 with the blog's heads; live on a GPU."""
    if on_a_gpu():
        return live_times(lengths)
    head, rows = recorded.recorded()
    found = {keys: select(rows, study="lengths", implementation=OURS, keys=keys, status="ok")[0] for keys in lengths}
    return stamp(head), {keys: (row["us"], row["us_least"], row["us_most"]) for keys, row in found.items()}


def on_a_gpu():
    """Whether there is a CUDA device here, and Triton to use it."""
    try:
        return backends.load("torch:cuda").is_available() and bool(backends.load("triton:jit"))
    except ImportError:
        return False


def live_times(lengths):
    """The same, measured on the CUDA device that is here."""
    inputs_of, graph, alternating = (backends.load(f"fdmath.bench.graphs:{name}")
                                     for name in ("Inputs", "Graph", "alternating"))
    shapes = {keys: Shape(f"B=8,S={keys}", 8, **_heads(), keys=keys) for keys in lengths}
    inputs, kernel = inputs_of("float16", shapes.values()), backends.load("fdmath.kernels.split_kv:split_kv_decode")
    times = alternating({keys: graph(kernel, inputs.sets(shape)) for keys, shape in shapes.items()}, visits=1)
    device = backends.load("torch:cuda").get_device_name()
    return f"{device}, measured now", {keys: tuple(1e6 * x for x in (t.median, t.least, t.most))
                                       for keys, t in times.items()}


def _heads():
    return {name: BLOG_HEADS[name] for name in ("q_heads", "kv_heads", "dim")}


@check("B89")
def amdahl_between_50_and_8():
    """The share of the old time that makes 50 and 8 fit: a share that exists, and gives 8 back."""
    share = share_for(WHOLE_GAIN, ATTENTION_GAIN)
    return Observed(inside=[0 < share <= 1, whole_gain(share, ATTENTION_GAIN) == WHOLE_GAIN], figure=(
        f"attention had {percent(share, 1)} of the time (with a kernel however fast at least "
        f"{percent(1 - Fraction(1, WHOLE_GAIN), 1)}): made {ATTENTION_GAIN} times as fast, all is "
        f"{whole_gain(share, ATTENTION_GAIN)} times"))


@check("B90")
def share_of_attention_afterwards():
    """The share of the new time that attention has: by Amdahl's law, and by the blog's table with other work."""
    left = share_left(share_for(WHOLE_GAIN, ATTENTION_GAIN), ATTENTION_GAIN)
    new = attention_ms(published("flash_decoding"), LONG)
    modelled = {device.name: new / (new + weights_ms(device) + tables.other_ms(device=device))
                for device in (A100, A100_40GB)}
    return Observed(inside=[left < Fraction(1, 2), *(x < Fraction(1, 2) for x in modelled.values())], figure=(
        f"{percent(left, 0)} by Amdahl's law; {' or '.join(percent(x, 0) for x in modelled.values())} with the table's "
        f"times, {LONG} keys"))


@check("B93")
def what_released_kernels_store():
    """The spelling in which FlashMLA and vLLM's PagedAttention v2 store parts, and what the 1e-6 of the latter does."""
    mla, paged = (CONVENTIONS[name] for name in ("FlashMLA decode", "vLLM PagedAttention v2"))
    one = np.ones((1, 1), np.float32)
    zero = np.zeros(1, np.float32)
    o, _ = mla.merge(one, zero, one, zero)
    stored = "m, l, o" if paged.kind is MLOState else paged.kind.__name__
    _, _, reduced = paged.merge(zero, one[0], one, zero, one[0], one)
    return Observed(inside=[mla.kind is LSEState], outside=[paged.kind is LSEState], figure=(
        f"FlashMLA stores (o, lse), lse in base {mla.inside_base}; PagedAttention v2 {stored}, and adds 1e-6 to the "
        f"divisor: two keys, V = 1: {o.item():g} and {reduced.item():.7f}"),
        counterexample=f"PagedAttention v2 stores {stored}, no lse")


@check("B94")
def how_alike_short_contexts_are():
    """Whole steps at 512 to 2048 keys, alike while attention is the lesser part; and kernels alone, as recorded."""
    short = [keys for keys in END_TO_END.lengths if keys <= 2048]
    inside, share = [], {}
    for name, method in METHODS.items():
        for keys in short:
            attention = attention_ms(published(method), keys)
            share[name, keys] = attention / (attention + weights_ms())
            inside.append(share[name, keys] < Fraction(1, 2))
    head, rows = recorded.recorded()
    outside, us = [], {}
    for shape in (x for x in ROWS["tiny"] if x.batch == 1 and x.keys <= 2048):
        found = {row["implementation"]: row for row in select(rows, study="peers", dtype="float16", row=shape.name)}
        outside.append(recorded.verdict(found[OURS], found["eager, grouped"]) == "level")
        us[shape.keys] = found["eager, grouped"]["us"] / found[OURS]["us"]
    parts = ", ".join(f"{name} {percent(share[name, short[-1]], 0)}" for name in METHODS)
    ratios = ", ".join(f"{x:.1f} at {keys}" for keys, x in us.items())
    return Observed(inside, outside, figure=(
        f"CodeLlama-34B, weights and the blog's attention: attention is, at {short[-1]} keys, {parts} of a step; "
        f"kernels alone, PyTorch over ours: {ratios} keys ({stamp(head)})"),
        counterexample=f"the attention of Llama-3-8B's heads alone, batch 1, {max(us)} keys: PyTorch takes "
        f"{us[max(us)]:.1f} times as long as ours")


@check("B95")
def how_the_others_fall():
    """The fall of the others' tokens a second, from 512 to 65536 keys: how far, how steeply, and which is last.

    A cliff would be a time that more than doubles where the keys do; published and recorded, at batch 1.
    """
    others = ("PyTorch", "FlashAttention")
    step = {name: [weights_ms() + attention_ms(published(METHODS[name]), keys) for keys in (SHORT, LONG)]
            for name in others}
    fall = {name: long / short for name, (short, long) in step.items()}
    where, rows = tables.micro_benchmark()
    one, two = (row for row in rows if row.batch == 1)
    doubled = [getattr(two, name) / getattr(one, name)
               for name in ("eager", "flash_attention", "eager_here", "flash_here")]
    return Observed(inside=[*(x > WHOLE_GAIN / 2 for x in fall.values()), *(x > 2 for x in doubled),
                            one.eager > one.flash_attention], figure=(
        f"modelled with the lines of the blog's table, {SHORT} to {LONG} keys: "
        f"{', '.join(f'{name} 1/{x:.0f} of its speed' for name, x in fall.items())}; from {one.keys} keys to twice as "
        f"many attention takes {doubled[0]:.3f} (PyTorch) and {doubled[1]:.3f} times as long, here {doubled[2]:.2f} "
        f"and {doubled[3]:.2f} ({where}): a slope, no cliff; of FasterTransformer the blog prints no number"),
        counterexample=f"batch 1, {one.keys} keys, in the blog's table: PyTorch {one.eager:g} µs, FlashAttention "
        f"{one.flash_attention:g} µs, so that PyTorch does not fall the lower of the two")
