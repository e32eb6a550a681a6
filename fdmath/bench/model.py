"""SmolLM2 decoding on fdmath, recorded: the tokens of eager under many options, and attention's share of a step.

    python -m fdmath.bench.model tokens|long|forced|time|heads|reading|answers|gpu [--out FOLDER]

needs the model in the cache (`fdmath model fetch`) and the ``[model]`` extra; gpu: a CUDA device and Triton too.
Threads are torch's own setting.
"""

import argparse
import statistics
import sys
import time
from importlib import resources
from pathlib import Path

import torch
import transformers
from tqdm.auto import tqdm

from fdmath.bench import model_gpu
from fdmath.bench import model_statistics as statistics_of
from fdmath.bench.records import provenance, write
from fdmath.interop import capture, compare, fetch
from fdmath.interop.smollm2 import SMOLLM2

PROMPTS = ("Explain in three sentences why the sun rises in the east.", "def fibonacci(n):\n",
           "Once upon a time, in a village by the sea, there lived", "The three laws of thermodynamics are",
           "List five animals that live in the Arctic:\n1.")
CUTS = ({"tile": 7}, {"tile": 64}, {"num_splits": 1}, {"num_splits": 5})
SPELLINGS = (("lse", "flat"), ("mlo", "tree"), ("acc", "streams"))
MEASURED = ("algebra", "attention", "interop")
TIMED, STEPS = (250, 1000, 4000), 50  # tokens of context, alternating steps at each
CONTEXTS = (16, 64, 256, 768)  # tokens of the stored text before those that are given
QUOTED = (300, 700, 1100)  # tokens of the stored text that are gone on with


def tokens(model, tokenizer, prompts, count, options):
    """Rows of `count` tokens from each prompt under each of the options, beside eager, which decodes them once."""
    names = {f"fdmath {i}": chosen for i, chosen in enumerate(options)}
    for name, chosen in names.items():
        compare.use(**chosen, name=name)
    rows = []
    for prompt in tqdm(prompts, unit="prompt", disable=None):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        found = compare.compare(model, ids, count, names=(compare.REFERENCE, *names))
        rows += [{"prompt": prompt, **chosen, **_summary(found, name)} for name, chosen in names.items()]
    return rows


def forced(model, tokenizer, count, contexts=CONTEXTS):
    """Rows for sdpa and fdmath: `count` tokens of the stored text, given to both and eager after each of the contexts.

    The last context is all but the last `count` tokens of the text.
    """
    ids = stored_text(tokenizer)
    compare.use()
    rows = []
    for context in (*contexts, ids.shape[1] - count):
        following = ids[:, context:context + count]
        found = compare.compare(model, ids[:, :context], count, forced=following, progress=True)
        rows += [{"implementation": name, **_summary(found, name)} for name in (compare.PEER, compare.OURS)]
    return rows


def stored_text(tokenizer):
    """The token ids (1, N) of the text that the package holds."""
    text = (resources.files("fdmath") / "data" / "text.txt").read_text(encoding="utf-8")
    return tokenizer(text, return_tensors="pt").input_ids


def _summary(found, name):
    """What a record keeps of one stream of a Comparison."""
    one = found.streams[name]
    return {"context": found.context, "tokens": len(one.tokens), "same": one.same, "compared": one.compared,
            "largest_difference": one.largest, "differences": [vars(x) for x in one.differences]}


def time_of_attention(model, context, steps=STEPS):
    """Rows for sdpa and fdmath: median ms of attention, summed over the layers, and of the whole step, in turn.

    The keys and values of the context are random: a time does not ask what they are. cpu: of the process, which work
    of others on the machine disturbs less.
    """
    cache, token = _filled(model, context), torch.tensor([[1]])
    spent, seen = [0.0, 0.0], {name: [] for name in (compare.PEER, compare.OURS)}
    compare.use()
    for name in seen:
        _register_timed(name, spent)
    for step in tqdm(range(-2, steps), unit="step", disable=None):
        for name, found in seen.items():
            model.set_attn_implementation(f"timed_{name}")
            spent[:] = 0.0, 0.0
            start = _clocks()
            with torch.no_grad():
                model(token, None, None, cache, use_cache=True)
            whole = [b - a for a, b in zip(start, _clocks(), strict=True)]
            cache.crop(-1)
            if step >= 0:
                found.append((*spent, *whole))
    names = ("attention_ms", "attention_cpu_ms", "step_ms", "step_cpu_ms")
    return [{"context": context, "steps": steps, "implementation": name, "threads": torch.get_num_threads(),
             **{what: 1e3 * statistics.median(x) for what, x in zip(names, zip(*found, strict=True), strict=True)}}
            for name, found in seen.items()]


def _clocks():
    return time.perf_counter(), time.process_time()


def _register_timed(name, spent):
    """Nothing; "timed_" + name is the attention of that name, which adds its seconds to `spent`."""
    own = transformers.modeling_utils.ALL_ATTENTION_FUNCTIONS[name]
    mask = transformers.masking_utils.ALL_MASK_ATTENTION_FUNCTIONS[name]

    def timed(*arguments, **options):
        start = _clocks()
        result = own(*arguments, **options)
        spent[:] = [s + b - a for s, a, b in zip(spent, start, _clocks(), strict=True)]
        return result

    transformers.AttentionInterface.register(f"timed_{name}", timed)
    transformers.AttentionMaskInterface.register(f"timed_{name}", mask)


def _filled(model, context):
    """A cache of random keys and values of `context` tokens."""
    config, cache = model.config, transformers.DynamicCache(config=model.config)
    shape = (1, config.num_key_value_heads, context, config.head_dim)
    for layer in range(config.num_hidden_layers):
        cache.update(torch.randn(shape), torch.randn(shape), layer)
    return cache


def main(argv=None):
    """Exit code 0; the record of one study is written to the folder."""
    parser = argparse.ArgumentParser(prog="python -m fdmath.bench.model", description=__doc__.splitlines()[0])
    parser.add_argument("study", choices=("tokens", "long", "forced", "time", "heads", "reading", "answers", "gpu"))
    parser.add_argument("--out", type=Path, default=Path(str(resources.files("fdmath"))) / "bench" / "results")
    parser.add_argument("--commit", metavar="TEXT", help="the commit that is measured, where git is not there to ask")
    options = parser.parse_args(argv)
    gpu = options.study == "gpu"
    if gpu and not torch.cuda.is_available():
        print("could not run: there is no CUDA device", file=sys.stderr)
        return 2
    options.out.mkdir(parents=True, exist_ok=True)  # before minutes are spent on what could not be written
    device = torch.cuda.get_device_name() if gpu else None
    packages, measured = ("torch", "transformers", "numpy"), MEASURED
    if gpu:
        packages, measured = (*packages, "triton"), (*measured, "kernels")
    head = provenance(f"python -m fdmath.bench.model {options.study}", packages, measured, device)
    head["commit"] = options.commit or head["commit"]
    model, tokenizer = capture.load(fetch.fetched(SMOLLM2, fetch.cache_folder()))
    twelve = [cut | {"kind": kind, "order": order} for cut in CUTS for kind, order in SPELLINGS]
    rows = {"tokens": lambda: tokens(model, tokenizer, PROMPTS[:3], 48, twelve),
            "long": lambda: tokens(model, tokenizer, PROMPTS, 256, [{"num_splits": 4}]),
            "forced": lambda: forced(model, tokenizer, 64),
            "time": lambda: [row for context in TIMED for row in time_of_attention(model, context)],
            "heads": lambda: statistics_of.heads(model, stored_text(tokenizer)),
            "reading": lambda: statistics_of.reading(model, stored_text(tokenizer)),
            "answers": lambda: statistics_of.answers(
                model, [stored_text(tokenizer)[:, :n] for n in QUOTED], 48),
            "gpu": lambda: model_gpu.on_gpu(model, [tokenizer(x, return_tensors="pt").input_ids for x in PROMPTS],
                                            stored_text(tokenizer), CONTEXTS, 48)}[options.study]()
    where, number = (device.split()[-1].lower(), "bfloat16") if gpu else ("cpu", "float32")
    head["model"] = f"SmolLM2-135M-Instruct, {number}"
    print(write(options.out, f"model_{options.study}-{where}", head, rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
