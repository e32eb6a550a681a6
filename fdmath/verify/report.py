"""The matrix law × subject: its cells, counts, exit code, and the ways to print it."""

import json
from dataclasses import asdict, dataclass

MARKS = {"pass": "✓", "fail": "✗", "undecided": "?", "not run": "!", "n/a": "–"}


@dataclass(frozen=True)
class Cell:
    """One law asked of one subject.

    verdict: "pass", "fail", "undecided", "not run" (it could not), "n/a" (the law is not about this role).
    grade: "bitwise", "budget" or "false" (the law is broken on purpose, and the cell passes when a
    counterexample is shown). worst_ratio: the largest error / budget seen. bitwise: it held bit for bit too.
    """

    verdict: str
    grade: str
    cases: int = 0
    worst_ratio: float = 0.0
    seconds: float = 0.0
    counterexample: str = ""
    bitwise: bool = False

    @property
    def slack(self):
        """Whether cases were judged and none came within a factor 100 of the budget, though none was exact."""
        return self.grade == "budget" and self.verdict == "pass" and 0 < self.worst_ratio < 0.01


class Report:
    """The cells of a run, keyed (law, subject), in the order of the laws and subjects."""

    def __init__(self, laws, subjects, cells):
        self.laws, self.subjects, self.cells = list(laws), list(subjects), dict(cells)

    @property
    def exit_code(self):
        """0 all lawful; 1 a law broken; 2 something could not run, is undecided, or a cell is missing."""
        verdicts = [cell.verdict for cell in self.cells.values()]
        if "fail" in verdicts:
            return 1
        complete = all((law.name, s.name) in self.cells for law in self.laws for s in self.subjects)
        asked = any(v != "n/a" for v in verdicts)
        return 0 if complete and asked and not {"not run", "undecided"} & set(verdicts) else 2

    def counts(self):
        """How many cells have each verdict, "missing" among them."""
        counts = dict.fromkeys(MARKS, 0)
        for cell in self.cells.values():
            counts[cell.verdict] += 1
        counts["missing"] = len(self.laws) * len(self.subjects) - len(self.cells)
        return counts

    def summary(self):
        """Law, equation, grade and verdict, a line each: the same text on every machine."""
        lines = []
        for subject in self.subjects:
            rows = [(law, self.cells.get((law.name, subject.name))) for law in self.laws]
            rows = [(law, cell) for law, cell in rows if cell is None or cell.verdict != "n/a"]
            held = sum(cell is not None and cell.verdict == "pass" for _, cell in rows)
            lines.append(f"{subject.name}: {held} of {len(rows)} laws hold")
            for law, cell in rows:
                verdict = "missing" if cell is None else cell.verdict
                grade = "" if cell is None else cell.grade
                shown = "false, as shown" if grade == "false" and verdict == "pass" else verdict
                lines.append(f"  {law.name:<26}{law.equation:<58}{grade:<9}{shown}".rstrip())
        return "\n".join(lines)

    def matrix(self):
        """The table law × subject of marks, and the counts."""
        width = max(len(law.name) for law in self.laws) + 2
        key = [f"{i + 1:>4} = {s.name}" for i, s in enumerate(self.subjects)]
        head = " " * width + "".join(f"{i + 1:>4}" for i in range(len(self.subjects)))
        rows = [law.name.ljust(width) + "".join(f"{self._mark(law, s):>4}" for s in self.subjects) for law in self.laws]
        counts = ", ".join(f"{n} {verdict}" for verdict, n in self.counts().items())
        legend = "✓ holds within its bound, = holds bit for bit as claimed, f false on purpose and shown so, " \
                 "✗ broken, ? undecided, ! not run, – not about this role"
        return "\n".join([*key, "", head, *rows, "", f"{len(self.cells)} cells: {counts}", legend])

    def _mark(self, law, subject):
        cell = self.cells.get((law.name, subject.name))
        if cell is None:
            return "?!"
        if cell.verdict == "pass" and cell.grade != "budget":
            return {"bitwise": "=", "false": "f"}[cell.grade]
        return MARKS[cell.verdict]

    def ratios(self):
        """The worst error / budget of every law over the subjects, and the subjects whose budget is slack."""
        lines = []
        for law in self.laws:
            cells = {s.name: self.cells.get((law.name, s.name)) for s in self.subjects}
            cells = {n: c for n, c in cells.items() if c and c.grade == "budget" and c.verdict == "pass"}
            if not cells:
                continue
            worst = max(cells, key=lambda n: cells[n].worst_ratio)
            slack = [n for n, c in cells.items() if c.slack]
            note = f"; never within a factor 100: {', '.join(slack)}" if slack else ""
            lines.append(f"{law.name:<28}{cells[worst].worst_ratio:8.4f}  {worst}{note}")
        return "\n".join(lines)

    def failures(self):
        """Every broken or undecided cell: law, smallest input, what was got; and what kept a subject from running."""
        blocks = []
        for s in self.subjects:
            cells = [(law, self.cells.get((law.name, s.name))) for law in self.laws]
            unrun = {cell.counterexample for _, cell in cells if cell and cell.verdict == "not run"}
            blocks += [f"{s.name}: not run\n{_indented(text)}" for text in sorted(unrun)]
            blocks += [f"{s.name}: {law.name}: {cell.verdict}\n  law: {law.equation}\n  {law.sentence}\n"
                       + _indented(cell.counterexample)
                       for law, cell in cells if cell and cell.verdict in ("fail", "undecided")]
        return "\n\n".join(blocks)

    def proofs(self):
        """The counterexample of every law that a subject declares false: false on purpose, proved by example."""
        shown = [(key, cell) for key, cell in self.cells.items() if cell.grade == "false" and cell.verdict == "pass"]
        return "\n\n".join(f"{subject}: {law} is false\n{_indented(c.counterexample)}" for (law, subject), c in shown)

    def to_json(self):
        """The report as a JSON text: schema, exit code, counts, and a record a cell."""
        rows = [{"law": law, "subject": subject, **asdict(cell)} for (law, subject), cell in self.cells.items()]
        return json.dumps({"schema": 1, "exit_code": self.exit_code, "counts": self.counts(), "cells": rows}, indent=1,
                          default=str)

    def __str__(self):
        return "\n\n".join(part for part in (self.matrix(), self.proofs(), self.failures()) if part)


def _indented(text):
    return "\n".join(f"  {line}" for line in text.splitlines())
