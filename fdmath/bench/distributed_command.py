"""`fdmath bench distributed`: ring and tree on ranks of this machine, the parameters of the cost model, the record."""

import argparse
import os
from dataclasses import asdict

from fdmath.bench import records
from fdmath.bench.command import positive
from fdmath.bench.distributed import MEASURED, Work, measure, table


def parser():
    """The argument parser of `fdmath bench distributed`."""
    p = argparse.ArgumentParser(
        prog="fdmath bench distributed", description="Ring attention and tree decoding between processes of this "
        "machine (gloo, one thread each), timed beside the cost model, whose parameters are measured on 1 and 2 ranks.",
        epilog="exit code: 0 measured, 1 a rank sent other bytes than the formula says, 2 could not run")
    p.add_argument("--ranks", type=positive, nargs="+", default=(2, 3, 4), metavar="N")
    p.add_argument("--keys", type=positive, default=Work().keys, help="of the cache of the decode step")
    p.add_argument("--rows", type=positive, default=Work().rows, help="of the attention that goes around")
    p.add_argument("--rounds", type=positive, default=7, help="times that each is asked, in turn")
    p.add_argument("--json", metavar="FILE", help="write rows and provenance as JSON too")
    return p


def run(args, words):
    """The exit code of `fdmath bench distributed words`, whose arguments are args."""
    for name in ("keys", "rows"):
        if uneven := [n for n in args.ranks if getattr(args, name) % (2 * n)]:
            raise ValueError(f"--{name} must be a multiple of {2 * uneven[0]}, for even shards on {uneven[0]} ranks; "
                             f"got {getattr(args, name)}")
    if args.json:
        records.check_writable(args.json)
    work = Work(keys=args.keys, rows=args.rows)
    load = os.getloadavg()[0] if hasattr(os, "getloadavg") else None
    cluster, rows = measure(work, tuple(args.ranks), args.rounds)
    print(table(cluster, rows))
    if args.json:
        told = " ".join(words).replace(args.json, "FILE")  # a record names no folder of the machine
        head = records.provenance(f"fdmath bench distributed {told}", ("numpy", "torch"), MEASURED)
        head |= {"load_before": load, "work": work._asdict(), "cluster": asdict(cluster)}
        records.save(args.json, records.text_of(head, rows))
    return 0 if all(as_the_formula(row) for row in rows) else 1


def as_the_formula(row):
    """Whether a rank handed over as many bytes as the formula says, where there is one."""
    return row["formula"] is None or row["sent"] == row["formula"]
