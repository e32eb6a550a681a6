"""What a law is, and the one table of them: `laws` and the modules that it names file theirs here.

A law takes a subject and a case and returns a Finding. It is judged at a grade that belongs to the pair
law × subject: "budget" (within the proven bound), "bitwise" (claimed bit for bit), or "false" (broken on
purpose: the cell passes when a counterexample is shown).
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from fdmath.algebra import rounding
from fdmath.algebra.rounding import Budget
from fdmath.verify import strategies
from fdmath.verify.subject import ROLES

MERGING = ("merge", "merge_many")
KEYED = ("block", "partial", "decode", "attention")


@dataclass(frozen=True)
class Law:
    """A law: its name, equation, the roles it is about, the grade asked of a subject that declares nothing,

    the strategy of its cases (a function of the subject, and of large=), its check, and which subjects it
    applies to.
    """

    name: str
    equation: str
    roles: tuple
    grade: str
    strategy: Callable
    check: Callable
    applies: Callable

    @property
    def sentence(self):
        """The law in words: the docstring of its function."""
        return " ".join(self.check.__doc__.split())

    def concerns(self, subject):
        """Whether the law is about this subject."""
        return subject.role in self.roles and self.applies(subject) and subject.takes(self.name)

    def grade_for(self, subject):
        """"bitwise", "budget" or "false", as the subject declares."""
        if self.name in subject.false:
            return "false"
        return "bitwise" if self.name in subject.claims else self.grade


LAWS: dict[str, Law] = {}


def law(equation, roles=ROLES, applies=lambda subject: True, name=None, **drawn):
    """A decorator that makes a Law of a check and files it under its name."""
    def file(check):
        def cases(subject, large=False):
            return strategies.cases(subject, large=large, turn=turn, **drawn)

        turn = len(LAWS)
        title = name or check.__name__.replace("_", " ").strip()
        LAWS[title] = Law(title, equation, roles, "budget", cases, check, applies)
        return check

    return file


# -- budgets of what laws compare ------------------------------------------------------------------------


def both(a, b):
    """The Budget of the difference of two results: the sum of theirs."""
    return Budget(a.o + b.o, a.lse + b.lse)


def no_error(subject):
    """The Budget of what must be exactly equal: zeros, and no bound on an lse that the subject does not return."""
    return Budget(np.zeros(1), np.zeros(()) if subject.lse else np.full((), np.inf))


def slack64(budget, *sizes):
    """The budget widened by the float64 rounding of a right value computed here (a few operations)."""
    u = 8 * rounding.unit_roundoff("float64")
    o = np.where(np.isfinite(sizes[0]), np.abs(sizes[0]), 0.0)
    lse = np.where(np.isfinite(sizes[1]), np.abs(sizes[1]), 0.0) if len(sizes) > 1 else 0.0
    return Budget(budget.o + u * (4 + o), budget.lse + u * (4 + lse))
