"""`fdmath bench`: measurements, each with a table for the reader and JSON for the record."""

import argparse
import sys

from fdmath import _backends as backends
from fdmath.bench import cpu, records
from fdmath.verify.command import add_declarations, declared_subject
from fdmath.verify.judge import verify

BENCHES = {"cpu": "fdmath.bench.command", "decode": "fdmath.bench.decode_command",
           "attention": "fdmath.bench.attention_command", "distributed": "fdmath.bench.distributed_command"}
"""Where each bench has its `parser()` and its `run(args, words)`."""


def positive(text):
    """The integer of at least 1 that an option's text names; argparse says so where it is none."""
    if not (text.isdecimal() and int(text) > 0):
        raise argparse.ArgumentTypeError(f"must be an integer of at least 1; got {text!r}")
    return int(text)


def parser():
    """The argument parser of `fdmath bench cpu`."""
    p = argparse.ArgumentParser(
        prog="fdmath bench cpu", description="Split-KV decoding on this CPU, timed in turn with torch's attention and "
        "with the time to read K and V once.",
        epilog="exit code: 0 measured, 1 a row is wrong or the subject breaks a law (not timed then), 2 could not run")
    shape = cpu.Shape()
    p.add_argument("--keys", type=positive, nargs="+", default=(4096, 16384, 65536), metavar="N")
    p.add_argument("--tiles", type=positive, nargs="+", default=cpu.Plan.tiles, metavar="KEYS", help="keys a tile")
    p.add_argument("--batch", type=positive, default=shape.batch)
    p.add_argument("--q-heads", type=positive, default=shape.q_heads)
    p.add_argument("--kv-heads", type=positive, default=shape.kv_heads)
    p.add_argument("--dim", type=positive, default=shape.dim)
    p.add_argument("--kinds", nargs="+", choices=cpu.KINDS, default=("lse",), help="spellings of the tiles' states")
    p.add_argument("--orders", nargs="+", choices=cpu.ORDERS, default=("flat",), help="orders of merging them")
    p.add_argument("--libraries", nargs="+", choices=("torch", "numpy"), default=("torch", "numpy"))
    p.add_argument("--no-peers", action="store_true", help="fdmath and the read floor alone")
    p.add_argument("--rounds", type=positive, default=cpu.Plan.rounds, help="times that each is asked, in turn")
    p.add_argument("--memory", action="store_true", help="the peak memory of a call against the keys, nothing timed")
    p.add_argument("--json", metavar="FILE", help="write rows and provenance as JSON too")
    theirs = p.add_argument_group("a function of yours", "first judged by the laws, as the options declare it")
    theirs.add_argument("--subject", dest="target", metavar="PACKAGE.MODULE:FUNCTION")
    add_declarations(theirs, roles=("partial", "decode", "attention"))
    p.set_defaults(dtypes="float32,bfloat16")
    return p


def main(argv=None):
    """The exit code of `fdmath bench WHAT …`; 2 for a WHAT that there is not."""
    what, *rest = (sys.argv[2:] if argv is None else argv) or [""]
    if what not in BENCHES:
        wrong = what not in ("-h", "--help")
        print(f"usage: fdmath bench {{{','.join(BENCHES)}}} …    (fdmath bench cpu --help says more)",
              file=sys.stderr if wrong else sys.stdout)
        return 2 if wrong else 0
    args = backends.load(f"{BENCHES[what]}:parser")().parse_args(rest)
    try:
        return backends.load(f"{BENCHES[what]}:run")(args, rest)
    except (Exception, SystemExit) as error:  # importing a subject may raise anything
        print(f"could not run: {type(error).__name__}: {error}", file=sys.stderr)
        return 2


def run(args, words):
    """The exit code of `fdmath bench cpu words`, whose arguments are args."""
    shapes = [cpu.Shape(args.batch, args.q_heads, args.kv_heads, args.dim, keys) for keys in args.keys]
    dtypes = args.dtypes.split(",")
    if args.memory and args.target:
        raise ValueError("--memory measures fdmath alone; leave --subject out")
    if args.q_heads % args.kv_heads:
        raise ValueError(f"--q-heads must be a multiple of --kv-heads, {args.kv_heads}; got {args.q_heads}")
    if args.json:
        records.check_writable(args.json)
    if args.memory:
        rows = [row for dtype in dtypes for row in cpu.memory_rows(shapes, dtype, max(args.tiles))]
        print(memory_table(rows))
    else:
        subject = declared_subject(args) if args.target else None
        if subject and not _lawful(subject):
            return 1
        plan = cpu.Plan(tuple(args.tiles), tuple(args.kinds), tuple(args.orders), tuple(args.libraries), subject,
                        args.rounds, not args.no_peers)
        rows = cpu.measure(shapes, dtypes, plan)
        print(table(rows))
    if args.json:
        head = records.provenance(f"fdmath bench cpu {' '.join(words)}", ("numpy", "ml_dtypes", "torch"), cpu.MEASURED)
        records.save(args.json, records.text_of(head, rows))
    return 1 if any(row.get("status", "ok") != "ok" for row in rows) else 0


def _lawful(subject):
    """Whether the subject passes the laws; what it breaks is printed."""
    report = verify(subject)
    if report.exit_code != 0:
        print(report.failures())
        print(f"{subject.name} is not timed: first it must pass the laws")
    return report.exit_code == 0


def table(rows):
    """The rows as text, a block for each shape and dtype: milliseconds, speed, share of the read floor, errors."""
    lines = []
    for row in rows:
        if row["implementation"] == cpu.READ:
            lines += ["", "B {batch}  Hq {q_heads}  Hkv {kv_heads}  d {dim}  N {keys}  {dtype}".format(**row),
                      f"{'':<44}{'ms':>9}{'GB/s':>7}{'of floor':>9}{'err o':>8}{'err lse':>8}"]
        if "seconds" not in row:
            lines.append(f"{row['implementation']:<44}  not timed: {row['status']}")
            continue
        errors = "".join("-".rjust(8) if x is None else f"{x:>8.2g}" for x in (row["err_o"], row["err_lse"]))
        mark = "" if row["status"] == "ok" else f"  {row['status'].upper()}"
        lines.append(f"{row['implementation']:<44}{1e3 * row['seconds']:>9.2f}{row['gb_per_s']:>7.1f}"
                     f"{row['share_of_floor']:>9.2f}{errors}{mark}")
    lines += ["", "of floor: time to read K and V once / time",
              "err o in u·Σp|v|, err lse in u (2^-24; float64: 2^-53)"]
    return "\n".join(lines)


def memory_table(rows):
    """The rows of `cpu.memory_rows` as text: peak memory beside the inputs, against the keys."""
    lines = [f"{'keys':>8}  {'dtype':<9}{'peak MB':>9}{'K and V MB':>12}{'scores MB':>11}"]
    lines += [f"{r['keys']:>8}  {r['dtype']:<9}{r['peak'] / 1e6:>9.2f}{r['kv_bytes'] / 1e6:>12.2f}"
              f"{r['score_bytes'] / 1e6:>11.2f}" for r in rows]
    return "\n".join([*lines, "peak: what a call takes beside its inputs, in tiles of "
                               + ", ".join(str(t) for t in sorted({r["tile"] for r in rows})) + " keys"])
