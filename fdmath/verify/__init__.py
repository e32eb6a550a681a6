"""The verifier: laws of attention states, subjects that they are asked of, and the matrix law × subject.

The package can be called: `fdmath.verify(subject)` is `fdmath.verify.judge.verify`.
"""

from fdmath._callable import make_callable
from fdmath.verify.judge import verify
from fdmath.verify.laws import LAWS, Law
from fdmath.verify.report import Cell, Report
from fdmath.verify.subject import ROLES, Subject

__all__ = ["LAWS", "ROLES", "Cell", "Law", "Report", "Subject", "verify"]

make_callable(__name__, verify)
