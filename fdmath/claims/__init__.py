"""Every checkable statement of the two documents, each with a check that computes its verdict.

`fdmath.claims.ledger()` is the list of Claims, `fdmath claims` the command that runs their checks.
"""

from fdmath.claims.claim import Claim, Observed, check, verdict
from fdmath.claims.report import Outcome, Report, judge, results, run
from fdmath.claims.rows import checks, ledger

__all__ = ["Claim", "Observed", "Outcome", "Report", "check", "checks", "judge", "ledger", "results", "run", "verdict"]
