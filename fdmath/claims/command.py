"""`fdmath claims`: the verdict on every statement of the two documents, computed."""

import argparse
import sys

from fdmath.bench import records
from fdmath.claims.claim import VERDICTS
from fdmath.claims.report import run
from fdmath.claims.rows import checks, ledger
from fdmath.verify.progress import Bar


def parser():
    """The argument parser of `fdmath claims`."""
    p = argparse.ArgumentParser(
        prog="fdmath claims", allow_abbrev=False,
        description="Check the statements of the two documents, and say where the verdict is not the expected one.",
        epilog="exit code: 0 every verdict is the expected one, 1 one is not, 2 a check could not run")
    p.add_argument("--id", metavar="IDS", help="only these, with commas (A24,B79), each with all that is known of it")
    p.add_argument("--verdict", choices=(*VERDICTS, "cited"), help="only claims of this expected verdict; cited: those "
                   "without a check")
    p.add_argument("--document", choices=("A", "B"), help="only this document: A FlashDecoding, B FlashAttention-2")
    p.add_argument("--json", nargs="?", const="-", metavar="FILE", help="the report as JSON, into a file or in place "
                   "of the table")
    return p


def main(argv=None):
    """The exit code of `fdmath claims`: 0 all as expected, 1 a verdict is not, 2 could not run."""
    words = sys.argv[2:] if argv is None else argv
    args = parser().parse_args(words)
    try:
        claims = chosen(args)
        if into_a_file := args.json not in (None, "-"):
            records.check_writable(args.json)
    except (LookupError, ValueError, OSError) as error:
        print(f"could not run: {error.args[0] if isinstance(error, LookupError) else error}", file=sys.stderr)
        return 2
    with Bar(len(claims)) as bar:
        report = run(claims, lambda claim: bar.advance(claim.id))
    text = report.to_json(" ".join(["fdmath claims", *words])) if args.json else ""
    if args.json == "-":
        print(text, end="")
    else:
        print("\n\n".join(map(str, report)) + "\n\n" + report.summary() if args.id else report)
    if into_a_file:
        records.save(args.json, text)
    return report.exit_code


def chosen(args):
    """The Claims that the arguments ask for; LookupError for an unknown id, or where none is left."""
    claims, found = ledger(), checks()
    known = {claim.id: claim.document for claim in claims}
    wanted = list(known) if args.id is None else [name.strip().upper() for name in args.id.split(",") if name.strip()]
    if unknown := [name for name in wanted if name not in known]:
        ranges = [[name for name in known if known[name] == letter] for letter in sorted(set(known.values()))]
        there = " and ".join(f"{ids[0]} to {ids[-1]}" for ids in ranges)
        raise LookupError(f"no claim {', '.join(unknown)}; there are {there}")
    claims = [claim for claim in claims if claim.id in wanted and args.document in (None, claim.document)]
    if args.verdict == "cited":
        claims = [claim for claim in claims if claim.id not in found]
    elif args.verdict:
        claims = [claim for claim in claims if claim.verdict == args.verdict]
    if not claims:
        raise LookupError("no claim is of that kind")
    return claims
