"""The checks run: what became of each claim, the table of all, and the report that the tests have stored."""

import hashlib
import json
import shutil
import sys
import textwrap
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

from fdmath.bench import records
from fdmath.claims.claim import VERDICTS, Claim, Observed, verdict
from fdmath.claims.rows import checks, ledger

FOUND = (*VERDICTS, "cited", "error")
"""What can become of a claim: a verdict; "cited", where no check is and a source says it; "error", a check raised."""

FIGURE = 40
"""The columns that the table of a terminal has for the figure, at the least."""

STORE = Path(__file__).parents[2] / ".pytest_cache" / "claims.json"
"""Where the tests of a clone leave the report of all claims (git ignores the folder)."""

PACKAGES = ("numpy", "ml_dtypes", "python-flint", "mpmath", "sympy", "torch")


@dataclass(frozen=True)
class Outcome:
    """What became of one claim. verdict: of FOUND. figure, counterexample: as Observed. error: what the check raised.

    check: the function that was run, None for a cited claim.
    """

    claim: Claim
    verdict: str
    figure: str = ""
    counterexample: str = ""
    seconds: float = 0.0
    error: str = ""
    check: object = field(default=None, compare=False, repr=False)

    @property
    def agrees(self):
        """Whether the verdict found is the expected one; a claim that is only cited is not contradicted."""
        return self.verdict in (self.claim.verdict, "cited")

    @property
    def line(self):
        """The figure in one line; what the check raised, where it did."""
        return " ".join((self.error or self.figure).split())

    def record(self):
        """The outcome as a dict for JSON, without the texts that the ledger holds."""
        return {"id": self.claim.id, "section": self.claim.section, "how": list(self.claim.how),
                "expected": self.claim.verdict, "verdict": self.verdict, "agrees": self.agrees, "figure": self.figure,
                "counterexample": self.counterexample, "seconds": self.seconds, "error": self.error}

    def __str__(self):
        """The whole row, a paragraph for each field that says something."""
        claim, check = self.claim, self.check
        label = {"refuted": "right", "open": "would settle it"}.get(claim.verdict, "conditions")
        where = f"{check.__module__}:{check.__name__}" if check else ""
        rows = {
            "statement": claim.statement, label: claim.conditions, "how": ", ".join(claim.how),
            "expected": claim.verdict, "found": self.verdict, "figure": self.figure, "error": self.error,
            "counterexample": self.counterexample, "lessons": ", ".join(f"{n:02d}" for n in claim.lesson),
            "sources": "\n".join(claim.sources), "check": where, "": " ".join((check.__doc__ or "").split()) if check
            else "", "seconds": f"{self.seconds:.2f}" if check else ""}
        return "\n".join([f"{claim.id}  document {claim.document}, {claim.section}", *_paragraphs(rows)])


def _paragraphs(rows, widest=118, indent=17):
    """Each text that is not empty under its label, wrapped to the terminal."""
    width = max(2 * indent, min(widest, _terminal() or widest))
    for label, text in rows.items():
        for i, line in enumerate(line for part in text.splitlines() for line in textwrap.wrap(part, width - indent)):
            yield f"  {label if i == 0 else '':<{indent - 2}}{line}"


def judge(claim, check=None):
    """The Outcome of one claim: what its check finds; "cited" for a claim that is cited alone, with its sources.

    A claim that says it is checked and has no check is an error, whatever it cites.
    """
    start = time.perf_counter()
    if check is None and claim.sources and claim.how == ("cited",):
        return Outcome(claim, "cited", "cited, not checked")
    try:
        if check is None:
            raise LookupError("the claim has no check, and is not cited alone")
        observed = check()
        if not isinstance(observed, Observed):
            raise TypeError(f"an Observed expected, not {type(observed).__name__}")
        found, error = verdict(observed), ""
    except Exception as raised:
        observed, found, error = Observed(), "error", f"{type(raised).__name__}: {raised}"
    seconds = time.perf_counter() - start
    return Outcome(claim, found, observed.figure, observed.counterexample, seconds, error, check)


class Report:
    """The Outcomes of a run, in the order of the ledger."""

    def __init__(self, outcomes):
        self.outcomes = list(outcomes)

    @classmethod
    def of_records(cls, rows):
        """The Report of all claims from their records (dicts); KeyError where one of the ledger is not among them."""
        rows, found = {row["id"]: row for row in rows}, checks()
        kept = ("verdict", "figure", "counterexample", "seconds", "error")
        return cls(Outcome(claim, *(rows[claim.id][name] for name in kept), found.get(claim.id)) for claim in ledger())

    def __iter__(self):
        return iter(self.outcomes)

    def __getitem__(self, name):
        """The Outcome of an id; KeyError for one that was not run."""
        found = [outcome for outcome in self if outcome.claim.id == name]
        if not found:
            raise KeyError(name)
        return found[0]

    @property
    def exit_code(self):
        """0 every verdict is the expected one; 1 one is not, in either direction; 2 a check raised, or none was run."""
        verdicts = {outcome.verdict for outcome in self if not outcome.agrees}
        if verdicts - {"error"}:
            return 1
        return 0 if self.outcomes and not verdicts else 2

    def counts(self):
        """How many claims came to each of FOUND."""
        counts = Counter(outcome.verdict for outcome in self)
        return {name: counts[name] for name in FOUND}

    def table(self, width=None):
        """A line for each claim, cut to a width: ✗ where the verdict is not the expected one; then the counts.

        In a width that leaves FIGURE columns or fewer for the figure there is no `how`, and then no section.
        """
        head = ("", "id", "section", "how", "expected", "found", "figure")
        rows = [head, *((" " if o.agrees else "✗", o.claim.id, o.claim.section, ", ".join(o.claim.how),
                         o.claim.verdict, o.verdict, o.line) for o in self)]
        sizes = [max(len(row[i]) for row in rows) for i in range(len(head) - 1)]
        for i in (3, 2):  # from the right, so that the places of the others stay
            if width is not None and width - sum(sizes) - 2 * len(sizes) <= FIGURE:
                del sizes[i]
                rows = [row[:i] + row[i + 1:] for row in rows]
        lines = ["  ".join([*(f"{x:<{n}}" for x, n in zip(row, sizes, strict=False)), row[-1]]).rstrip()
                 for row in rows]
        return "\n".join([*(line[:width] for line in lines), "", self.summary()])

    def summary(self):
        """The counts in a sentence, and the claims whose verdict is not the expected one."""
        counts = ", ".join(f"{n} {name}" for name, n in self.counts().items() if n)
        apart = [o.claim.id for o in self if not o.agrees]
        agreed = f"not as the ledger says: {', '.join(apart)}" if apart else "all as the ledger says"
        count = len(self.outcomes)
        return f"{count} claim{'' if count == 1 else 's'}: {counts}\n{agreed}"

    def to_json(self, command="fdmath claims"):
        """The report as a JSON text: provenance, fingerprint, exit code, counts, and a record a claim."""
        head = records.provenance(command, PACKAGES, ("algebra", "attention", "cost", "oracle", "claims"))
        head |= {"fingerprint": fingerprint(), "exit_code": self.exit_code, "counts": self.counts()}
        return records.text_of(head, [outcome.record() for outcome in self])

    def __str__(self):
        return self.table(_terminal())


def _terminal():
    """The columns of the terminal that is written to; None where the output goes elsewhere."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else None


def run(claims=None, progress=None):
    """The Report of the claims (all of the ledger without them); progress(claim) is called after each."""
    found, outcomes = checks(), []
    for claim in ledger() if claims is None else claims:
        outcomes.append(judge(claim, found.get(claim.id)))
        if progress is not None:
            progress(claim)
    return Report(outcomes)


def fingerprint():
    """A digest of the package's sources and data of claims: a stored report is of this code if it names the same."""
    package, digest = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(p for p in package.rglob("*") if p.suffix in (".py", ".toml", ".json")):
        digest.update(path.relative_to(package).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()


def store(report, path=STORE):
    """Nothing; the file holds the report, for `stored`."""
    Path(path).parent.mkdir(exist_ok=True)
    records.save(path, report.to_json())


def stored(path=STORE):
    """The Report that the tests have stored, of this very code and of every claim; None without one."""
    try:
        record = json.loads(Path(path).read_text(encoding="utf-8"))
        return Report.of_records(record["rows"]) if record["fingerprint"] == fingerprint() else None
    except (OSError, ValueError, KeyError):
        return None


def results():
    """The Report of every claim: the stored one if the tests have just run, else by running all checks."""
    return stored() or run()


__all__ = ["FOUND", "STORE", "Outcome", "Report", "fingerprint", "judge", "results", "run", "store", "stored"]
