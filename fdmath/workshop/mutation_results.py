"""What is known of each mutant, as a text file in the repository, and why the survivors are equivalent.

results.tsv is written by `fdmath mutation`: first the digest of each file that a verdict rests on, then a line a
mutant. A verdict holds while its module is as it was and, for a killed mutant, the test file that killed it, for a
survivor every test file that it passed. equivalent.toml is written by people: for each module, the change that
survives and the reason why no test can see it.
"""

import hashlib
import tomllib
from typing import NamedTuple

from fdmath.workshop.mutants import Mutant

FOLDER = "tests/mutation"
RESULTS, REASONS = f"{FOLDER}/results.tsv", f"{FOLDER}/equivalent.toml"
KILLED, SURVIVED, TIMEOUT, ERROR = "killed", "survived", "timeout", "error"


class Verdict(NamedTuple):
    """killed, survived, timeout (killed by the clock) or error; by: the killing test file; change: what did not die."""

    verdict: str
    by: str
    change: str


def digest(path):
    """The first 12 hexadecimal digits of the file's SHA-256, line ends counted as \\n; "" where there is no file."""
    if not path.is_file():
        return ""
    return hashlib.sha256(path.read_text(encoding="utf-8").encode()).hexdigest()[:12]


def read_results(path):
    """({file: digest}, {Mutant: Verdict}) as the results file holds them; both empty where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    digests, verdicts = {}, {}
    for words in (line.split("\t") for line in lines):
        if words[0] == "file":
            digests[words[1]] = words[2]
        elif words[0] != "module":
            module, line, operator, place, verdict, by, change = words
            verdicts[Mutant(module, int(line), operator, int(place))] = Verdict(verdict, by, change)
    return digests, verdicts


def write_results(path, digests, verdicts):
    """Nothing; the results file is written whole, sorted, so that a difference of two is a difference of verdicts."""
    files = ["\t".join(("file", *item)) for item in sorted(digests.items())]
    head = "\t".join((*Mutant._fields, *Verdict._fields))
    rows = ["\t".join(map(str, (*mutant, *verdicts[mutant]))) for mutant in sorted(verdicts)]
    fresh = path.with_suffix(".new")
    fresh.write_text("\n".join([*files, head, *rows, ""]), encoding="utf-8", newline="\n")
    fresh.replace(path)


def still_true(mutant, verdict, tests, changed):
    """Whether a verdict of an earlier run holds, `changed` being the files that are not as they were then."""
    rests_on = {mutant.module, *([verdict.by] if verdict.verdict == KILLED else tests)}
    return verdict.verdict != ERROR and not rests_on & changed


def read_reasons(path):
    """{(module, change): reason} as people wrote them."""
    tables = tomllib.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {(module, change): reason for module, table in tables.items() for change, reason in table.items()}
