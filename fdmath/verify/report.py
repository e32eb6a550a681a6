"""The matrix law × subject: its cells, counts, exit code, and the ways to print it."""

import json
import re
from collections import Counter
from dataclasses import asdict, dataclass, field, replace

from fdmath.verify.subject import CALLED

MARKS = {"pass": "✓", "fail": "✗", "undecided": "?", "not run": "!", "n/a": "–"}
UNSETTLED = ("fail", "undecided")


@dataclass(frozen=True)
class Cell:
    """One law asked of one subject.

    verdict: "pass", "fail", "undecided", "not run" (it could not), "n/a" (the law is not about this role).
    grade: "bitwise", "budget" or "false" (the law is broken on purpose, and the cell passes when a
    counterexample is shown). worst_ratio: the largest error / budget seen. bitwise: it held bit for bit too.
    dtype: the format of the counterexample. came: what the wrong number was, "nan", "inf" or "number". explained: what
    would explain it, a sentence each. printed: what the subject printed meanwhile, where that was caught. case: the
    case that broke the law, as it was asked.
    """

    verdict: str
    grade: str
    cases: int = 0
    worst_ratio: float = 0.0
    seconds: float = 0.0
    counterexample: str = ""
    bitwise: bool = False
    dtype: str = ""
    came: str = ""
    explained: tuple = ()
    printed: str = ""
    case: object = field(default=None, compare=False, repr=False)

    @property
    def slack(self):
        """Whether cases were judged and none came within a factor 100 of the budget, though none was exact."""
        return self.grade == "budget" and self.verdict == "pass" and 0 < self.worst_ratio < 0.01


class Report:
    """The cells of a run, keyed (law, subject), in the order of the laws and subjects.

    notes: by the name of a subject, lines on how it was taken and what a probe found. contradictions: sentences, each a
    declaration that a probe contradicts, or another failure that is no cell. unable: by name the reason why what should
    have been a subject cannot run. accepted: by (law, subject) the reason why a broken law is accepted. replay: a
    function of (law's name, subject) that gives the line which asks it again.
    """

    def __init__(self, laws, subjects, cells, *, notes=None, contradictions=(), unable=None, accepted=None,
                 replay=None):
        self.laws, self.subjects, self.cells = list(laws), list(subjects), dict(cells)
        self.notes, self.contradictions = dict(notes or {}), list(contradictions)
        self.unable, self.accepted, self.replay = dict(unable or {}), dict(accepted or {}), replay

    @property
    def exit_code(self):
        """0 all lawful; 1 a law broken; 2 something could not run, is undecided, or a cell is missing."""
        verdicts = [cell.verdict for key, cell in self.cells.items() if key not in self.accepted]
        if "fail" in verdicts or self.contradictions:
            return 1
        complete = all((law.name, s.name) in self.cells for law in self.laws for s in self.subjects)
        asked = any(cell.verdict != "n/a" for cell in self.cells.values())
        return 0 if complete and asked and not self.unable and not {"not run", "undecided"} & set(verdicts) else 2

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
                 "✗ broken, a broken and accepted, ? undecided, ! not run, – not about this role"
        return "\n".join([*key, "", head, *rows, "", f"{len(self.cells)} cells: {counts}", legend])

    def _mark(self, law, subject):
        cell = self.cells.get((law.name, subject.name))
        if cell is None:
            return "?!"
        if cell.verdict == "fail" and (law.name, subject.name) in self.accepted:
            return "a"
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
        blocks = [f"contradicted: {text}" for text in self.contradictions]
        blocks += filter(None, map(self._shared, self.subjects))
        for s in self.subjects:
            cells = [(law, self.cells.get((law.name, s.name))) for law in self.laws]
            unrun = {}
            for law, cell in cells:
                if cell and cell.verdict == "not run":
                    unrun.setdefault(cell.counterexample, []).append(law.name)
            blocks += [self._unrun(s, text, names) for text, names in unrun.items()]
            blocks += [self._failure(law, s, cell) for law, cell in cells if cell and cell.verdict in UNSETTLED]
        return "\n\n".join(blocks)

    def _shared(self, subject):
        """Explanations that several broken laws of a subject share, a line each with their number; "" for none."""
        broken = [cell for (_, name), cell in self.cells.items() if name == subject.name and cell.verdict == "fail"]
        counts = Counter(text for cell in broken for text in dict.fromkeys(cell.explained))
        lines = [f"{n} of {len(broken)} broken laws: {text}" for text, n in counts.most_common() if n > 1]
        return "\n".join([f"{subject.name}: what may be behind it", *(f"  {line}" for line in lines)]) if lines else ""

    def _unrun(self, subject, text, names):
        again = "" if self.replay is None else f"\nreplay: {self.replay(names[0], subject)}"
        return f"{subject.name}: not run: {_some(names)}\n{_indented(pasted(text, subject) + again)}"

    def _failure(self, law, subject, cell):
        where = ", ".join(x for x in (cell.dtype, subject.library, getattr(subject, "device", "")) if x)
        lines = [f"law: {law.equation}", law.sentence, f"in {where}:", pasted(cell.counterexample, subject)]
        if subject.log_base == 2:
            given = "; the function was given it divided by ln 2" if subject.role not in CALLED else ""
            lines.append(f"(each lse is written as a natural logarithm{given})")
        if subject.role == "merge" and "LSEState(" in cell.counterexample:
            lines.append("(LSEState is fdmath.LSEState; a pair unpacks as the function takes it: fn(*part_1, *part_2))")
        if "zlib." in cell.counterexample:
            lines.append("(arrays of many numbers are packed: import base64, zlib)")
        lines += cell.explained
        if any("fault " in text for text in cell.explained):
            lines[-1] += " (docs/faults.md)"
        if (law.name, subject.name) in self.accepted:
            lines.append(f"accepted: {self.accepted[law.name, subject.name]}")
        if cell.printed:
            lines.append(f"it printed: {cell.printed}")
        if self.replay is not None:
            lines.append(f"replay: {self.replay(law.name, subject)}")
        return f"{subject.name}: {law.name}: {cell.verdict}\n{_indented(chr(10).join(lines))}"

    def proofs(self):
        """The counterexample of every law that a subject declares false: false on purpose, proved by example."""
        shown = [(key, cell) for key, cell in self.cells.items() if cell.grade == "false" and cell.verdict == "pass"]
        return "\n\n".join(f"{subject}: {law} is false\n{_indented(c.counterexample)}" for (law, subject), c in shown)

    def to_json(self):
        """The report as a JSON text: schema, exit code, counts, what was found, contradictions, and a record a cell."""
        rows = [{"law": law, "subject": subject, "accepted": self.accepted.get((law, subject), ""), **_record(cell)}
                for (law, subject), cell in self.cells.items()]
        return json.dumps({"schema": 1, "exit_code": self.exit_code, "counts": self.counts(), "notes": self.notes,
                           "contradictions": self.contradictions, "unable": self.unable, "cells": rows},
                          indent=1, default=str)

    def __str__(self):
        found = [f"{name}:\n" + _indented("\n".join(lines)) for name, lines in self.notes.items() if lines]
        if self.unable:
            lines = "\n".join(f"{name}: {why}" for name, why in self.unable.items())
            found.append(f"installed, but cannot run here:\n{_indented(lines)}")
        return "\n\n".join(part for part in (*found, self.matrix(), self.proofs(), self.failures()) if part)


def _record(cell):
    """The fields of a cell as a dict, without its case: that is in the counterexample, as text."""
    fields = asdict(replace(cell, case=None))
    del fields["case"]
    return fields


def _indented(text):
    return "\n".join(f"  {line}" for line in text.splitlines())


def pasted(text, subject):
    """The text with its NumPy literals as literals of the subject's library."""
    if subject.library != "torch":
        return text
    text = re.sub(r"dtype='(\w+)'", r"dtype=torch.\1", text)
    return re.sub(r"\bnp\.(nan|inf|zeros)\b", r"torch.\1", text.replace("np.array(", "torch.tensor("))


def _some(names, most=4):
    """The names with commas, or how many there are besides the first few."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
