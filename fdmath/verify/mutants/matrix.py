"""The kill matrix: every ancestor and every mutant, asked the laws of its role on cases drawn once for all of a kin.

A cell ends at the first case that breaks its law. Nothing is shrunk and nothing is aimed at, so that one list of cases
serves an ancestor and all that were made from it.
"""

import json
import time
import warnings
from dataclasses import asdict, dataclass
from importlib.util import find_spec

from fdmath import _backends as backends
from fdmath.verify.judge import LEAST_LARGE, ask, cannot_run, drawn
from fdmath.verify.laws import LAWS
from fdmath.verify.subject import SubjectError

CASES = 30
"""Small inputs a cell, beside LEAST_LARGE large ones: fewer than `fdmath verify` draws, for 5 minutes on one core."""
PATIENCE = 200
"""Small inputs of a law before it is said not to kill the mutant that it is named for: few draws are needed, mostly."""
ENOUGH = 0.95
"""The share of the mutants that the default profile of `fdmath verify` must kill."""


@dataclass
class Fate:
    """What became of one mutant: whether it differs from its ancestor, the laws asked, those that killed it.

    trouble: why it could not be asked.
    """

    mutant: str
    role: str
    fault: str
    killer: str
    differs: bool
    asked: list
    killers: list
    trouble: str = ""


@dataclass
class Matrix:
    """The fates of mutants under laws, and what the ancestors did.

    laws: names. whole: whether these are all mutants, so that every law must kill one. lawful: how many cells of the
    ancestors held; unlawful: sentences on those that did not.
    """

    laws: list
    fates: list
    lawful: int
    unlawful: list
    whole: bool = True
    seconds: float = 0.0

    def troubles(self):
        """A sentence on each thing that is wrong: with an ancestor, a mutant, a named killer or a law."""
        found = list(self.unlawful)
        for fate in self.fates:
            if fate.trouble:
                found.append(f"{fate.mutant}: not run: {fate.trouble}")
                continue
            if not fate.differs:
                found.append(f"{fate.mutant}: gives what its ancestor gives on the stored input")
            if not fate.killers:
                found.append(f"{fate.mutant}: survives")
            elif fate.killer not in fate.killers:
                found.append(f"{fate.mutant}: not killed by {fate.killer}, but by {', '.join(fate.killers)}")
        if self.whole:
            found += [f"law {law}: kills nothing" for law in self.laws if not any(law in f.killers for f in self.fates)]
        return found

    @property
    def exit_code(self):
        """0 if nothing is wrong, 1 if anything is, 2 if that is only that some could not run."""
        unrun = sum(bool(fate.trouble) for fate in self.fates)
        return 1 if len(self.troubles()) > unrun else 2 if unrun else 0

    def __str__(self):
        width = max(len(fate.mutant) for fate in self.fates) + 2
        key = [f"{i + 1:>4} {law}" for i, law in enumerate(self.laws)]
        head = [" " * (width + 5) + "".join(line) for line in zip(*(f"{i + 1:>2}" for i in range(len(self.laws))),
                                                                  strict=True)]
        rows = [f"{fate.fault:<5}{fate.mutant:<{width}}" + "".join(self._mark(fate, law) for law in self.laws)
                for fate in self.fates]
        dead = sum(bool(fate.killers) for fate in self.fates)
        kills = sum(len(fate.killers) for fate in self.fates)
        sums = [f"{len(self.fates)} mutants, {dead} dead; {kills} kills by {len(self.laws)} laws; "
                f"{self.lawful} cells of ancestors hold",
                "K killed by the law named for it, x killed, . lets it pass"]
        return "\n".join([*key, "", *head, *rows, "", *sums, *self.troubles()])

    def _mark(self, fate, law):
        if law in fate.killers:
            return "K" if law == fate.killer else "x"
        return "." if law in fate.asked else " "

    def to_json(self):
        """The matrix as a JSON text: schema, exit code, troubles, and a record a mutant."""
        return json.dumps({"schema": 1, "exit_code": self.exit_code, "troubles": self.troubles(), "laws": self.laws,
                           "lawful": self.lawful, "mutants": [asdict(fate) for fate in self.fates]}, indent=1)


def kill_matrix(mutants, laws=None, cases=CASES, seed=0, progress=None, whole=False):
    """The Matrix of mutants, a list, and their ancestors under the laws named (all without).

    cases: how many small inputs a cell is asked, beside LEAST_LARGE large ones. progress: called with each cell.
    """
    start = time.perf_counter()
    chosen = [LAWS[name] for name in laws or LAWS]
    fates = {m.name: _fate(m) for m in mutants}
    lawful, unlawful = 0, []
    for right, kin in _families(mutants):
        for law in chosen:
            if progress:
                progress(right, law)
            asked = [m for m in kin if law.concerns(m.subject()) and not fates[m.name].trouble]
            concerned = law.concerns(right) and not fates[kin[0].name].trouble
            if not asked and not concerned:
                continue
            inputs = inputs_of(law, right if concerned else asked[0].subject(), cases, seed)
            for m in asked:
                fates[m.name].asked.append(law.name)
                if kills(law, m, inputs):
                    fates[m.name].killers.append(law.name)
            if concerned:
                bad = broken(law, right, inputs)
                lawful += bad is None
                unlawful += [] if bad is None else [f"ancestor {right.name}: breaks {law.name} on\n{bad}"]
    names = [law.name for law in chosen]
    return Matrix(names, list(fates.values()), lawful, unlawful, whole, time.perf_counter() - start)


def _fate(mutant):
    """The Fate of a mutant of which no law has been asked."""
    trouble = trouble_of(mutant)
    differs = not trouble and mutant.differs()
    return Fate(mutant.name, mutant.role, mutant.fault, mutant.killer, differs, [], [], trouble)


def trouble_of(mutant):
    """Why the ancestor of a mutant cannot run here; an empty text if it can."""
    absent = mutant.right.library == "torch" and find_spec("torch") is None
    return "torch is not installed" if absent else cannot_run(mutant.right)


def _families(mutants):
    """Each ancestor with the mutants made from it."""
    rights = {m.right.name: m.right for m in mutants}
    return [(right, [m for m in mutants if m.right.name == name]) for name, right in rights.items()]


def inputs_of(law, subject, cases=CASES, seed=0):
    """The cases of a law for a subject and its kin, small ones and LEAST_LARGE large ones."""
    return drawn(law, subject, cases, seed=seed) + drawn(law, subject, LEAST_LARGE, large=True, seed=seed)


def kills(law, mutant, inputs):
    """Whether a law kills a mutant on one of the cases; the law named for it is asked many more before it fails."""
    subject = mutant.subject()
    if broken(law, subject, inputs) is not None:
        return True
    more = ({"count": LEAST_LARGE, "large": True}, {"count": PATIENCE}) if law.name == mutant.killer else ()
    return any(broken(law, subject, drawn(law, subject, **others)) is not None for others in more)


def broken(law, subject, inputs):
    """The first of the cases on which a subject breaks a law; None where it holds on all."""
    return next((case for case in inputs if breaks(law, subject, case)), None)


def breaks(law, subject, case):
    """Whether a subject breaks a law on a case, at the grade that it is asked at."""
    with warnings.catch_warnings(), backends.quiet():
        warnings.simplefilter("ignore")
        try:
            finding = law.check(subject, case)
        except SubjectError:
            return True
    if finding.verdict == "undecided":
        return False
    return finding.verdict == "fail" if law.grade_for(subject) == "budget" else not finding.bitwise


def killed_by_default(mutants, seed=0, progress=None):
    """The dictionary of mutants, by name, to the law that kills each as `fdmath verify` asks them; "" for none.

    The named killer is asked first: who is killed by any law is killed.
    """
    fates = {}
    for m in mutants:
        subject = m.subject()
        order = [LAWS[m.killer], *(law for law in LAWS.values() if law.name != m.killer)]
        found = (law.name for law in order if ask(law, subject, seed=seed, shrink=False).verdict == "fail")
        fates[m.name] = next(found, "")
        if progress:
            progress(m.right, LAWS[m.killer])
    return fates
