"""`fdmath bench attention`: whole sequences forward and backward on a CUDA device, beside peers and the matrix rate.

The order is ceilings, errors, memory, sustained load, speed; what is there is written after each shape.
"""

import argparse
import os

import numpy as np

from fdmath import _backends as backends
from fdmath.bench.attention import (
    ATOMICS,
    DTYPES,
    ERRORS,
    HIDDEN,
    HOPPER,
    LENGTHS,
    MASKS,
    MINE,
    OURS,
    PASSES,
    STUDIES,
    TOKENS,
    points,
    ratios,
    shape_of,
)
from fdmath.bench.command import positive
from fdmath.bench.decode import best_peer, select, verdict
from fdmath.bench.device import (
    EXIT_CODES,
    PACKAGES,
    Run,
    add_options,
    cannot_run,
    lawful_subject,
    listed_dtypes,
    no_device,
    without_repeats,
)

PEERS = {"flash": "SDPA flash", "cudnn": "SDPA cuDNN", "flex": "FlexAttention", "fa3": "FlashAttention-3",
         "fa4": "FlashAttention-4"}
"""The words that ask for a peer, which head its column too, and its name in the rows."""
HEADS = {OURS: "fdmath", ATOMICS: "atomics", HOPPER: "hopper"} | {name: word for word, name in PEERS.items()}
MEASURED = (
    *(f"kernels/{name}.py" for name in ("checks", "merge")), *(f"kernels/flash{name}.py" for name in (
        "", "_backward", "_call", "_hopper", "_tiles")),
    *(f"bench/attention{name}.py" for name in ("", "_measure", "_peers", "_studies")),
    *(f"bench/{name}.py" for name in ("ceilings", "peers")),
)  # fmt: skip
LAB, STEPS = "fdmath.bench.attention_measure:", "fdmath.bench.attention_studies:"
MIB = 2**20


def parser():
    """The argument parser of `fdmath bench attention`."""
    p = argparse.ArgumentParser(
        prog="fdmath bench attention", conflict_handler="resolve",
        description="FlashAttention-2 forward and backward on a CUDA device, timed in turn with what one would take "
        "instead, in TFLOP/s and as a share of the matrix rate of the same run.",
        epilog=EXIT_CODES)
    p.add_argument("--dims", nargs="+", type=positive, default=(128, 64), metavar="D", help="numbers a head")
    p.add_argument("--masks", nargs="+", choices=MASKS, default=tuple(MASKS), help="default: both")
    p.add_argument("--lengths", nargs="+", type=positive, default=LENGTHS, metavar="S",
                   help=f"tokens a sequence (default: {' '.join(map(str, LENGTHS))})")
    p.add_argument("--tokens", type=positive, default=TOKENS, help=f"batch times length (default: {TOKENS})")
    p.add_argument("--hidden", type=positive, default=HIDDEN, help=f"heads times numbers a head (default: {HIDDEN})")
    p.add_argument("--hopper", action="store_true", help="fdmath's kernel for Hopper cards alone too")
    p.add_argument("--studies", nargs="+", choices=STUDIES, default=tuple(STUDIES), metavar="STUDY",
                   help="; ".join(f"{name}: {words}" for name, words in STUDIES.items()) + " (default: all)")
    add_options(p, PEERS, ("attention",), DTYPES, DTYPES[:1], (
        "a function of yours, of CUDA tensors (q, k, v, causal)",
        "first judged by the laws, as the options declare it; its backward is torch's own"))
    return p


def run(args, words):
    """The exit code of `fdmath bench attention words`, whose arguments are args."""
    args.dtypes = listed_dtypes(args, DTYPES)
    shapes = points(args.dims, args.masks, args.lengths, args.tokens, args.hidden)
    if cannot_run(args, no_device()):
        return 2
    subject = lawful_subject(args) if args.target else None
    if args.target and subject is None:
        return 1
    return _Run(args, words, shapes, subject).everything()


class _Run(Run):
    """One run of the command."""

    def __init__(self, args, words, shapes, subject):
        self.shapes = shapes
        table, one = (backends.load(f"fdmath.bench.attention_peers:{name}")
                      for name in ("CONTENDERS", "subject_contender"))
        own = MINE if args.hopper else (OURS, ATOMICS)
        self.peers = [table[name] for name in (*own, *(PEERS[word] for word in args.peers))]
        self.peers += [one(subject)] if subject else []
        super().__init__("attention", args, words, (*PACKAGES, "fa3-fwd", "flash-attn-4"), MEASURED,
                         [*MINE, *([subject.name] if subject else [])])

    def everything(self):
        """The exit code, after ceilings and studies."""
        self._compile()
        self.head["ceilings"] = {"matmul_tflops": {dtype: backends.load(LAB + "matrix_rates")(dtype)
                                                   for dtype in self.args.dtypes}}
        self.took("ceilings")
        print(ceilings_table(self.head), flush=True)
        for study in (name for name in STUDIES if name in self.args.studies):
            for dtype in self.args.dtypes:
                self._study(study, dtype)
        return self.finish()

    def _compile(self):
        """Nothing; what compiles for each shape has been compiled, in several processes at once.

        The kernels of ours are the same at every length.
        """
        erring, ahead = (backends.load(STEPS + name) for name in ("erring_shapes", "compile_ahead"))
        every = list(dict.fromkeys([*erring(self.shapes, self.args.tokens), *self.shapes]))
        kinds = list({(shape.dim, shape.causal): shape for shape in every}.values())
        tasks = [(dtype, shape, peer.name) for dtype in self.args.dtypes for peer in self.peers if peer.compiles
                 for shape in (kinds if peer.name in MINE else every)]
        for _ in self.bar(ahead(tasks, min(len(tasks), os.cpu_count() or 1)), "compiling"):
            pass

    def _study(self, study, dtype):
        """Nothing; the rows of one study in one dtype are measured, kept and printed."""
        lab, steps = backends.load(LAB + "Lab"), backends.load(STEPS + "steps_of")
        lab = lab(dtype, rates=self.head["ceilings"]["matmul_tflops"][dtype])
        for step in self.bar(steps(study, lab, self.shapes, self.peers, self.args.tokens), f"{dtype} {study}"):
            try:
                self.keep(step())
            except Exception as error:  # one shape need not cost the others
                self.trouble(f"{study}, {dtype}", error)
        print(TABLES[study](select(self.rows, study=study, dtype=dtype), self.mine), flush=True)


def ceilings_table(head):
    """The ceilings as text."""
    rates = ", ".join(f"{dtype} {found['short']:.0f} in short bursts, {found['sustained']:.0f} sustained"
                      for dtype, found in head["ceilings"]["matmul_tflops"].items())
    return f"{head['device']}, driver {head['driver']}\n8192³ product, TFLOP/s: {rates}"


def speed_table(rows, mine=MINE):
    """Timed rows of one study and dtype as text, a block for each pass: TFLOP/s of each, the verdict on ours, errors.

    mine: the implementations that are no peers. Below: what did not run or was wrong, and why.
    """
    lines = []
    for which in PASSES:
        found = select(rows, **{"pass": which})
        if found:
            lines += ["", *_block(found, which, mine)]
    return "\n".join([*lines, *_trouble(rows), "of matrix: ours / the product of the same clock. level: the slower "
                      "one's best call reaches the faster one's median. price: of determinism, time / time with "
                      "atomics"])


def _block(rows, which, mine):
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    price = ratios(rows, "us", OURS, ATOMICS)
    heads = "".join(f"{_head(name):>9}" for name in names)
    head = f"{rows[0]['dtype']} {rows[0]['study']} {which}, TFLOP/s"
    lines = [head, f"{'':<22}{heads}{'of matrix':>10}{'price':>7}  {'best peer':<17}{'ours/it':>7} {'':<7}"
             + "".join(f"{name.replace('_', ' '):>9}" for name in ERRORS[which])]
    for shape in sorted(set(map(shape_of, rows)), key=lambda s: (-s.dim, s.causal, s.keys)):
        here = [row for row in rows if shape_of(row) == shape]
        lines.append(_line(shape, here, names, price.get(shape), mine))
    return [*lines, *_beside(rows, names, mine)]


def _beside(rows, names, mine):
    """A line for OURS and one for HOPPER: how many times as fast as each peer that is right, least and most."""
    lines, right = [], select(rows, status="ok")
    for ours in (name for name in (OURS, HOPPER) if name in names):
        times = {name: ratios(right, "us", name, ours).values() for name in names if name not in mine}
        said = [f"{_head(name)} {min(found):.2f} to {max(found):.2f}" for name, found in times.items() if found]
        lines += [f"{ours}, times as fast as: {', '.join(said)}"] if said else []
    return lines


def _line(shape, rows, names, price, mine):
    """One line of a block: the rows of one shape."""
    by = {row["implementation"]: row for row in rows}
    ours, best = by[OURS], best_peer(rows, mine)
    text = f"{shape.point:<22}"
    for name in names:
        there = name in by and by[name]["tflops"] is not None
        mark = "!" if name in by and by[name]["status"] in ("wrong", "failed") else " "
        text += f"{format(by[name]['tflops'], '.0f') if there else '-':>8}{mark}"
    if ours["us"] is None:
        return text
    text += _number(ours["share_of_matrix"], 10, ".0%") + _number(price, 7, ".2f") + "  "
    text += f"{'':<32}" if best is None else (f"{best['implementation']:<17}{best['us'] / ours['us']:>7.2f} "
                                              f"{verdict(ours, best):<7}")
    return text + "".join(_number(ours[name], 9) for name in ERRORS[ours["pass"]])


def error_table(rows, mine=MINE):
    """Rows of the study of errors as text: what each errs, the bits of ours, and ours beside SDPA's flash."""
    fields = [name for which in PASSES for name in ERRORS[which]]
    lines = ["", f"{rows[0]['dtype'] if rows else ''} errors, relative, Frobenius",
             f"{'':<40}" + "".join(f"{name.replace('_', ' '):>10}" for name in fields)]
    calls = {}
    for row in rows:
        calls.setdefault((shape_of(row), row["implementation"]), []).append(row)
    for (shape, name), passes in calls.items():
        found = {field: row[field] for row in passes for field in ERRORS[row["pass"]]}
        said = dict.fromkeys(row["note"] for row in passes if row["note"] and row["status"] == "ok")
        lines.append(f"{shape.point:<22}{name[-17:]:<18}"
                     + "".join(_number(found.get(field), 10, ".2e") for field in fields) + f"  {'; '.join(said)}")
    beside = [ratio for field in fields for ratio in ratios(rows, field, OURS, PEERS["flash"]).values()]
    worst = [f"the most that ours errs / SDPA flash: {np.max(beside):.3f}"] if beside else []  # NaN stays NaN
    return "\n".join([*lines, *_trouble(rows), *worst])


def memory_table(rows, mine=MINE):
    """Rows of the study of memory as text: MiB, and bytes a token, against the tokens."""
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    lines = ["", "peak memory of forward and backward beside q, k, v, o and their gradients: MiB (bytes a token)",
             f"{'tokens':>8}" + "".join(f"{_head(name):>18}" for name in names)]
    for shape in dict.fromkeys(map(shape_of, rows)):
        by = {row["implementation"]: row["peak_bytes"] for row in rows if shape_of(row) == shape}
        lines.append(f"{shape.keys:>8}" + "".join(
            f"{'-' if by.get(name) is None else f'{by[name] / MIB:.1f} ({by[name] / shape.keys:.0f})':>18}"
            for name in names))
    return "\n".join([*lines, *_trouble(rows)])


TABLES = {"errors": error_table, "speed": speed_table, "memory": memory_table, "sustained": speed_table}


def _head(name):
    return HEADS.get(name, name.rpartition(":")[2])[:8]


def _number(x, width, form=".1e"):
    return f"{'-' if x is None else format(x, form):>{width}}"


def _trouble(rows):
    """What did not run or was wrong, and why, one line for all shapes."""
    return without_repeats(dict.fromkeys(
        f"{row['implementation']}, {row['pass']}: {row['status']}: {row['note']} ({shape_of(row).point})"
        for row in rows if row["status"] != "ok"))
