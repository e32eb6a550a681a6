"""`fdmath mutants`: which law kills which wrong implementation, and whether each mutant still differs and dies."""

import argparse
import sys
import tempfile
from pathlib import Path

from hypothesis.configuration import set_hypothesis_home_dir

from fdmath.verify.laws import LAWS
from fdmath.verify.mutants import MUTANTS, ancestors
from fdmath.verify.mutants.matrix import CASES, ENOUGH, kill_matrix, killed_by_default, trouble_of
from fdmath.verify.progress import Bar


def parser():
    """The argument parser of `fdmath mutants`."""
    p = argparse.ArgumentParser(
        prog="fdmath mutants", allow_abbrev=False,
        description="The kill matrix mutant x law. Every mutant must differ from the right code that it was made from\n"
                    "and die by the law named for it, every law must kill one, and all that is right must pass.",
        formatter_class=argparse.RawDescriptionHelpFormatter, epilog="exit code: 0 so, 1 not so, 2 could not run")
    p.add_argument("--quick", action="store_true",
                   help=f"instead: do the cases that `fdmath verify` asks by default kill at least {ENOUGH:.0%}%?")
    p.add_argument("--only", metavar="TEXT", default="",
                   help="only mutants whose fault or name contains this text (docs/faults.md lists the faults)")
    p.add_argument("--cases", type=int, default=CASES, help=f"small inputs a cell (default: {CASES})")
    p.add_argument("--seed", type=int, default=0, help="another seed draws other inputs (default: 0)")
    p.add_argument("--json", metavar="FILE", help="write the matrix as JSON too")
    return p


def main(argv=None):
    """The exit code of `fdmath mutants`: 0 as it should be, 1 not, 2 could not run."""
    args = parser().parse_args(argv)
    set_hypothesis_home_dir(Path(tempfile.gettempdir()) / "fdmath-hypothesis")  # no folder in the current one
    chosen = [m for m in MUTANTS.values() if args.only in f"{m.fault} {m.name}"]
    if not chosen:
        print(f"no mutant has {args.only!r} in its name or as its fault", file=sys.stderr)
        return 2
    if args.quick:
        return _quick(chosen, args.seed)
    with Bar(len(ancestors(chosen)) * len(LAWS)) as bar:
        matrix = kill_matrix(chosen, cases=args.cases, seed=args.seed, progress=_turned(bar), whole=not args.only)
    print(matrix)
    print(f"{matrix.seconds:.0f} s")
    if args.json:
        try:
            Path(args.json).write_text(matrix.to_json(), encoding="utf-8")
        except OSError as error:
            print(f"could not write the matrix: {error}", file=sys.stderr)
            return 2
    return matrix.exit_code


def _quick(chosen, seed):
    """The exit code of --quick: whether the default profile kills enough."""
    unrun = [m for m in chosen if trouble_of(m)]
    chosen = [m for m in chosen if m not in unrun]
    with Bar(len(chosen)) as bar:
        fates = killed_by_default(chosen, seed, _turned(bar))
    survivors = [name for name, law in fates.items() if not law]
    share = 1 - len(survivors) / max(len(fates), 1)
    print("\n".join([*(f"{m.name}: not run: {trouble_of(m)}" for m in unrun), *(f"{s}: survives" for s in survivors)]))
    print(f"{share:.1%} of {len(fates)} mutants killed by fdmath verify by default; at least {ENOUGH:.0%} must be")
    return 1 if not share >= ENOUGH else 2 if unrun else 0


def _turned(bar):
    """The bar's step for what goes by subjects first."""
    return lambda subject, law: bar.step(law, subject)
