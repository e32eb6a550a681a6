"""`fdmath probe`: what a function's outputs say about its conventions, precision and habits."""

import argparse
import sys
from functools import partial
from pathlib import Path

from fdmath.verify.apart import CONVENTIONS, contract_in
from fdmath.verify.command import add_declarations, add_limits, declared_in, declared_subject, joined, more_than_0
from fdmath.verify.probe import CLAIMS
from fdmath.verify.worker import Here, Trouble, Worker

OPTIONS = (*CONVENTIONS, "in_place", "library", "p_dtype", "stats_dtype", "input_precision", "claims")
"""The traits, and claims of them, that an option declares."""

SECONDS = 60.0
"""How long a question may take."""


def parser():
    """The argument parser of `fdmath probe`."""
    p = argparse.ArgumentParser(
        prog="fdmath probe", allow_abbrev=False, formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Infer from its outputs alone what conventions a function follows, how precise it is and what it\n"
                    "overwrites. What is declared is held against what is found.",
        epilog="exit code: 0 nothing contradicts a declaration, 1 something does, 2 no call returned a state")
    p.add_argument("target", help="package.module:function, importable from here")
    add_declarations(p)
    add_limits(p)
    p.add_argument("--device", help="where torch has its tensors: cpu (the default) or cuda")
    p.add_argument("--limit", type=more_than_0(float), metavar="SECONDS", default=SECONDS,
                   help=f"the time for a question (default: {SECONDS:g})")
    p.add_argument("--in-process", action="store_true", help="ask in this process, for a debugger; no limit")
    p.add_argument("--json", metavar="FILE", help="write the contract as JSON too")
    return p


def main(argv=None):
    """The exit code of `fdmath probe`: 0 as declared, 1 a declaration is contradicted, 2 no call returned a state."""
    words = joined(sys.argv[2:] if argv is None else argv)
    args = parser().parse_args(words)
    try:
        contract = probed(args, told(words))
    except (Trouble, ValueError) as error:
        print(f"could not run: {error}", file=sys.stderr)
        return 2
    print(contract)
    print(f"\n{_said(contract)}")
    if args.json:
        try:
            Path(args.json).write_text(contract.to_json(), encoding="utf-8")
        except OSError as error:
            print(f"could not write the contract: {error}", file=sys.stderr)
            return 2
    return 2 if contract.dtype is None else 1 if contract.contradictions() else 0


def told(words):
    """The names of the traits that a command line declares."""
    names = declared_in(words) & set(OPTIONS)
    return names | set(CLAIMS) if "claims" in names else names


def probed(args, names):
    """The Contract of the target, each question asked in a process of its own that may hang or die; raises Trouble."""
    guard = Here if args.in_process else Worker
    with guard(partial(declared_subject, args), args.limit) as worker:
        subject = worker.run("fdmath.verify.apart:seen")
        only = None if "," in args.dtypes else args.dtypes
        return contract_in(worker, subject, names, only, risky=not args.in_process)


def _said(contract):
    """The last line: how many traits were told, not told, and contradict what was declared."""
    wrong = [t.name for t in contract.contradictions()]
    unknown = [t.name for t in contract.undecided()]
    parts = [f"{len(contract.traits) - len(unknown)} traits told",
             f"{len(unknown)} could not be told" + (f" ({', '.join(unknown)})" if unknown else ""),
             f"{len(wrong)} contradict a declaration" + (f" ({', '.join(wrong)})" if wrong else "")]
    return "; ".join(parts)


__all__ = ["main", "parser", "probed", "told"]
