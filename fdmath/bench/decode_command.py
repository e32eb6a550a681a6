"""`fdmath bench decode`: split-KV decoding on a CUDA device, its peers, the table, and the record.

The order is ceilings, peers, studies; what is there is written after each shape, so that little is lost.
"""

import argparse
import gc

from fdmath import _backends as backends
from fdmath.bench.command import positive
from fdmath.bench.decode import DTYPES, OURS, ROWS, TILED, Floor, Shape, best_peer, rows_named, verdict
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

PEERS = {"cudnn": "SDPA cuDNN", "flash": "SDPA flash", "efficient": "SDPA efficient, packed",
         "eager": "eager, grouped", "flex": "FlexAttention, mask", "xformers": "xFormers split-K",
         "fa3": "FlashAttention-3"}
"""The words that ask for a peer, which head its column too, and its name in the rows."""
STUDIES = ("steps", "splits", "lengths", "tiles", "merge", "errors")
MEASURED = (
    *(f"kernels/{name}.py" for name in ("checks", "merge", "plan", "split_kv", "tuning")),
    *(f"bench/{name}.py" for name in ("ceilings", "decode", "graphs", "measure", "peers", "probes", "studies")),
)  # fmt: skip
HEADS = {OURS: "fdmath", TILED: "tile"} | {name: word for word, name in PEERS.items()}


def parser():
    """The argument parser of `fdmath bench decode`."""
    p = argparse.ArgumentParser(
        prog="fdmath bench decode", conflict_handler="resolve",
        description="Split-KV decoding on a CUDA device, timed in turn with what one would take instead and beside the "
        "time in which the bytes are read.",
        epilog=EXIT_CODES)
    p.add_argument("--rows", nargs="+", default=None, metavar="ROWS",
                   help=f"{', '.join(ROWS)}, all (the default), or names of rows")
    own, shape = p.add_argument_group("a shape of your own, instead of --rows"), Shape("")
    for name in ("batch", "q-heads", "kv-heads", "dim", "keys"):
        own.add_argument(f"--{name}", type=positive, help=f"default: {getattr(shape, name.replace('-', '_'))}")
    p.add_argument("--studies", nargs="*", default=(), choices=(*STUDIES, "all"), metavar="STUDY",
                   help=f"more measurements of the kernel: {', '.join(STUDIES)}, all")
    add_options(p, PEERS, ("decode", "partial", "attention"), DTYPES, DTYPES, (
        "a function of yours, of CUDA tensors", "first judged by the laws, as the options declare it"))
    return p


def run(args, words):
    """The exit code of `fdmath bench decode words`, whose arguments are args."""
    shapes, args.dtypes = shapes_of(args), listed_dtypes(args, DTYPES)
    if cannot_run(args, no_device()):
        return 2
    subject = lawful_subject(args) if args.target else None
    if args.target and subject is None:
        return 1
    return _Run(args, words, shapes, subject).everything()


def shapes_of(args):
    """The Shapes that the arguments ask for; ValueError for heads that do not divide, and for rows beside a shape."""
    given = {name: getattr(args, name) for name in ("batch", "q_heads", "kv_heads", "dim", "keys")}
    given = {name: x for name, x in given.items() if x is not None}
    if not given:
        return rows_named(args.rows or ["all"])
    if args.rows:
        raise ValueError("--rows names shapes of its own; leave it out beside --batch, --keys and the like")
    shape = Shape("yours", **given)
    if shape.q_heads % shape.kv_heads:
        raise ValueError(f"--q-heads must be a multiple of --kv-heads, {shape.kv_heads}; got {shape.q_heads}")
    return [shape._replace(name=f"B={shape.batch},S={shape.keys}")]


class _Run(Run):
    """One run of the command."""

    def __init__(self, args, words, shapes, subject):
        self.shapes = shapes
        peers, one = (backends.load(f"fdmath.bench.peers:{name}") for name in ("PEERS", "subject_peer"))
        self.peers = [peers[name] for name in (OURS, TILED, *(PEERS[word] for word in args.peers))]
        self.peers += [one(subject)] if subject else []
        super().__init__("decode", args, words, (*PACKAGES, "xformers", "fa3-fwd"), MEASURED,
                         [OURS, TILED, *([subject.name] if subject else [])])

    def everything(self):
        """The exit code, after ceilings, peers and studies."""
        gc.freeze()  # what is imported by now need not be looked through at each capture
        measure, sizes = (backends.load(f"fdmath.bench.ceilings:{name}") for name in ("measure", "sizes_of"))
        self.head["ceilings"] = measure(sizes(self.shapes, self.args.dtypes[0]), self.args.dtypes)
        self.took("ceilings")
        print(ceilings_table(self.head), flush=True)
        for dtype in self.args.dtypes:
            self._peers(dtype)
        for dtype in self.args.dtypes if self.args.studies else ():
            self._studies(dtype)
        return self.finish()

    def _bench(self, dtype, shapes):
        """The Bench of a dtype, with input sets for the shapes."""
        inputs, bench = (backends.load(f"fdmath.bench.{name}") for name in ("graphs:Inputs", "measure:Bench"))
        floor = Floor(*(self.head["ceilings"]["floor"][name] for name in Floor._fields))
        return bench(inputs(dtype, shapes), floor, self.until)

    def _peers(self, dtype):
        """Nothing; the rows of every shape are measured, kept and printed."""
        bench, peer_rows = self._bench(dtype, self.shapes), backends.load("fdmath.bench.measure:peer_rows")
        for shape in self.bar(self.shapes, dtype, bench):
            self.keep(peer_rows(bench, shape, self.peers))
        print(table([row for row in self.rows if row["dtype"] == dtype], self.mine), flush=True)

    def _studies(self, dtype):
        """Nothing; the rows of the studies are measured and kept: all in the first dtype, the errors in each."""
        studies, every, growing = (backends.load(f"fdmath.bench.studies:{n}") for n in ("STUDIES", "EVERY", "GROWING"))
        asked = STUDIES if "all" in self.args.studies else self.args.studies
        asked = [name for name in STUDIES if name in asked and (dtype == self.args.dtypes[0] or name == "errors")]
        bench = self._bench(dtype, [*every, *growing])
        for name in asked:
            try:
                for found in self.bar(studies[name](bench), f"{dtype} {name}", bench):
                    self.keep(found)
            except Exception as error:  # one study need not cost the others
                self.trouble(f"study {name}, {dtype}", error)


def ceilings_table(head):
    """The ceilings as text."""
    found = head["ceilings"]
    floor, launch = found["floor"], found["launch_us"]
    matmul = ", ".join(f"{dtype} {rate:.0f}" for dtype, rate in found["matmul_tflops"].items())
    return "\n".join([
        f"{head['device']}, driver {head['driver']}",
        f"read, large: {found['read_gb_per_s']:.0f} GB/s",
        f"read floor: {floor['start_us']:.2f} µs + bytes / {floor['gb_per_s']:.0f} GB/s, which misses "
        f"{len(floor['points'])} measured sizes by {floor['misfit']:.1%} at most",
        "empty kernel in a graph: " + ", ".join(f"{us:.2f} µs of {n} programs" for n, us in launch.items()),
        f"8192³ product, TFLOP/s: {matmul}"])


def table(rows, mine=(OURS, TILED)):
    """The rows of one dtype as text: a line for each shape, microseconds of each implementation, the verdict on ours.

    mine: the implementations that are no peers. Below: what did not run or was wrong, and why.
    """
    names = list(dict.fromkeys(row["implementation"] for row in rows))
    heads = [HEADS.get(name, name.rpartition(":")[2])[:9] for name in names]
    lines = ["", rows[0]["dtype"] if rows else "",
             f"{'µs':<19}{'floor':>7}" + "".join(f"{head:>10}" for head in heads)
             + f"{'of floor':>10}  {'best peer':<24}{'':>6}{'':<8}{'err o':>8}{'err lse':>9}{'v=1':>5}"]
    for name in dict.fromkeys(row["row"] for row in rows):
        lines.append(_line([row for row in rows if row["row"] == name], names, mine))
    trouble = dict.fromkeys(f"{row['implementation']}: {row['status']}: {row['note']} ({row['row']})"
                            for row in rows if row["status"] != "ok")
    return "\n".join([*lines, *without_repeats(trouble), "of floor: read floor / ours. level: the slower one's best "
                      "replay reaches the faster one's median. v=1: ulps of o from 1"])


def _line(rows, names, mine):
    """One line of the table: the rows of one shape."""
    by = {row["implementation"]: row for row in rows}
    ours, best = by.get(OURS, rows[0]), best_peer(rows, mine)
    times = "".join(f"{'-' if name not in by or by[name]['us'] is None else format(by[name]['us'], '.2f'):>9}"
                    f"{'!' if name in by and by[name]['status'] in ('wrong', 'failed') else ' '}" for name in names)
    text = f"{ours['row']:<19}{ours['floor_us']:>7.2f}{times}"
    if ours["us"] is None:
        return text
    text += f"{ours['share_of_floor']:>10.0%}  "
    text += f"{'':<38}" if best is None else (f"{best['implementation']:<24}{ours['us'] / best['us']:>5.2f} "
                                              f"{verdict(ours, best):<8}")
    return text + "".join(f"{'-' if ours[name] is None else format(ours[name], form):>{width}}" for name, form, width
                          in (("err_o", ".1e", 8), ("err_lse", ".1e", 9), ("v_ones_ulp", ".0f", 5)))
