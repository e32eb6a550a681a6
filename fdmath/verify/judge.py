"""Asking laws of subjects: Hypothesis draws the cases, hunts the worst ratio, and shrinks what breaks."""

import difflib
import math
import time
import warnings
import zlib
from dataclasses import replace

import hypothesis
from hypothesis import Phase
from hypothesis.errors import Flaky

from fdmath import _backends as backends
from fdmath.algebra import rounding
from fdmath.algebra.state import LSEState
from fdmath.verify import cut, strategies
from fdmath.verify.laws import LAWS
from fdmath.verify.reference import Finding
from fdmath.verify.report import Cell, Report
from fdmath.verify.subject import CALLED, Subject, SubjectError

CASES = 50
THEOREMS = ("T1", "T3", "T5", "T6")
LEAST_LARGE = 3
"""The least number of large cases besides, at which tiles, splits and groups come into play."""
SEARCH = 400
"""The least number of cases in which a counterexample to a law declared false is looked for."""
MOST_SHOWN = 8
"""The most rows of which m and l are written beside a wrong lse."""


class _Broken(Exception):
    """A case on which the law does not hold (Hypothesis shrinks towards the last one raised)."""


class _Late(BaseException):
    """The time for shrinking is over: a BaseException, which ends Hypothesis's search at once."""


def verify(subject, laws=None, cases=CASES, progress=None, *, seed=0, dtypes=None, explain=False):
    """The Report of one subject, or of a list of subjects, under all laws or those named.

    cases: how many inputs Hypothesis draws for each law. The draws are the same in every run of one seed. progress:
    called with each (law, subject) before it is asked. dtypes: the formats to try in place of those declared.
    explain: say of a broken law which other declaration, or known fault, would explain it; broken laws are asked again.
    Raises ValueError for a name that is no law, for a format that is none, and for two subjects of one name.
    """
    subjects = [subject] if isinstance(subject, Subject) or callable(subject) else list(subject)
    for s in subjects:
        check(s)
    if dtypes is not None:
        subjects = [replace(s, dtypes=tuple(dtypes)) for s in subjects]
    chosen = laws_named(laws)
    names = [s.name for s in subjects]
    if len(set(names)) < len(names):
        raise ValueError(f"subjects must have different names; got {', '.join(names)}")
    cells = {}
    for s in subjects:
        found = _asked(s, chosen, cases, progress, seed)
        if explain:
            found = backends.load("fdmath.verify.explain:explained")(s, found, seed, cases)  # it asks laws itself
        cells |= {(name, s.name): cell for name, cell in found.items()}
    return Report(chosen, subjects, cells)


def _asked(subject, laws, cases, progress, seed):
    """The Cells of one subject, law by law."""
    cells, trouble = {}, cannot_run(subject)
    for law in laws:
        if progress is not None:
            progress(law, subject)
        if trouble and law.concerns(subject):
            cells[law.name] = Cell("not run", law.grade_for(subject), counterexample=trouble)
        else:
            cells[law.name] = ask(law, subject, cases, seed=seed)
    return cells


def cannot_run(subject):
    """What a subject raises on the plainest input of its role; an empty text if it returns a state."""
    case = strategies.plain(subject)
    case = case.taken_by(subject) if subject.role in CALLED else case
    error = why_not(subject, case)
    return error and f"{case}\n{error}"


def why_not(subject, case):
    """What a subject raises on a case; an empty text if it returns a state."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # one that writes what it may only read does run, and breaks the law named for that
            case.run(subject if subject.in_place else subject.watched([]))
    except SubjectError as error:
        return str(error)
    return ""


def check(subject):
    """Nothing; raises TypeError for what is no Subject, ValueError for a claim that names nothing."""
    if not isinstance(subject, Subject):
        raise TypeError(f"subject must be a Subject(name, role, fn, …); got {type(subject).__name__}")
    unknown = [name for name in (*subject.claims, *subject.false) if name not in (*LAWS, *THEOREMS)]
    if unknown:
        raise ValueError(f"claims must be names of laws or one of {', '.join(THEOREMS)}; got {', '.join(unknown)}")


def laws_named(names=None):
    """The Laws of these names in their order, all for None; ValueError for a name that is no law."""
    for name in names or ():
        if name not in LAWS:
            near = difflib.get_close_matches(name, LAWS, 1)
            meant = f" (did you mean {near[0]!r}?)" if near else ""
            raise ValueError(f"laws must be among {', '.join(LAWS)}; got {name!r}{meant}")
    return list(LAWS.values()) if names is None else [LAWS[name] for name in names]


def ask(law, subject, cases=CASES, *, seed=0, shrink=True, seconds=math.inf):
    """The Cell of one law asked of one subject.

    shrink: whether the counterexample is made small. seconds: when to be content with the smallest one so far.
    """
    if not law.concerns(subject):
        return Cell("n/a", law.grade_for(subject))
    start = time.perf_counter()
    record = _Record(law, subject, seed, shrink, start + seconds)
    with warnings.catch_warnings(), backends.quiet():
        warnings.simplefilter("ignore")
        verdict = record.hunt(cases)
    seconds = time.perf_counter() - start
    return Cell(verdict, record.grade, record.count, record.worst, seconds, record.text, record.bitwise, record.dtype,
                record.came, case=record.case)


def drawn(law, subject, count, *, large=False, seed=0):
    """A list of `count` cases of a law and a subject, as they are drawn for it."""
    cases = []
    _generate(law, subject, count, large, seed, [Phase.generate], cases.append)
    return cases


def _generate(law, subject, count, large, seed, phases, look):
    """Nothing; `look` was called with `count` cases, and with those that shrinking tries once it has raised."""
    settings = hypothesis.settings(
        max_examples=count, database=None, deadline=None, phases=phases,
        suppress_health_check=list(hypothesis.HealthCheck), print_blob=False, report_multiple_bugs=False,
    )

    def one(case):
        look(case)

    strategy = law.strategy(subject, large=large)
    if subject.role in CALLED and (subject.dims or not subject.grouped or not subject.splits):
        strategy = strategy.map(lambda case: case.taken_by(subject))
    text = f"{law.name}, {subject.role}" + (f", {seed}" if seed else "")
    hypothesis.seed(zlib.crc32(text.encode()))(  # the same draws in every run
        settings(hypothesis.given(strategy)(one)))()


class _Record:
    """The state of one hunt: cases seen, worst ratio, the smallest counterexample so far."""

    def __init__(self, law, subject, seed=0, shrink=True, until=math.inf):
        self.law, self.subject, self.grade = law, subject, law.grade_for(subject)
        self.seed, self.until, self.shrink = seed, until, shrink
        self.phases = [Phase.generate, Phase.target, *([Phase.shrink] if shrink else [])]
        self.count, self.worst, self.text, self.bitwise, self.broken = 0, 0.0, "", True, False
        self.dtype, self.came, self.case = "", "", None
        self.undecided = self.raised = False

    def hunt(self, cases):
        """The verdict after `cases` small draws and some large ones (and the shrinking of the first that breaks it)."""
        large = False
        try:
            if self.grade == "false":
                self._draw(max(cases, SEARCH), large=False)
            else:
                self._draw(cases, large=False)
                large = True
                self._draw(max(LEAST_LARGE, cases // 50), large=True)
        except (_Broken, _Late):
            if large and self.shrink:
                self._cut()
            return "pass" if self.grade == "false" and not self.raised else "fail"
        except Flaky as error:
            self.text = f"not repeatable: the same input gave two answers ({type(error).__name__})\n{self.text}"
            return "fail"
        if self.count == 0:
            self.text = "no case was drawn"
            return "not run"
        if self.grade == "false":
            self.text = "declared false, and no counterexample was found"
            return "fail"
        return "undecided" if self.undecided else "pass"

    def _draw(self, count, large):
        """Nothing; `count` cases have been looked at (raises _Broken with the smallest one that breaks the law)."""
        def one(case):
            finding = self.look(case)
            if math.isfinite(finding.ratio):
                hypothesis.target(float(finding.ratio), label="error / budget")

        _generate(self.law, self.subject, count, large, self.seed, self.phases, one)

    def _cut(self):
        """Nothing; the large case told of is cut to the smallest that breaks the law, or as small as there was time."""
        try:
            self._breaks(cut.smallest(self.case, self._breaks, self.subject))
        except _Late:
            pass

    def _breaks(self, case):
        """Whether the law does not hold on a case, which is then the one told of."""
        try:
            self.look(case)
        except _Broken:
            return True
        return False

    def look(self, case):
        """The Finding of one case; raises _Broken where the law does not hold at its grade."""
        if self.broken and time.perf_counter() > self.until:
            raise _Late
        self.count += 1
        try:
            finding = self.law.check(self.subject, case)
        except SubjectError as error:
            finding, self.raised = Finding(math.inf, False, "fail", str(error)), True
        self.bitwise = self.bitwise and finding.bitwise
        if finding.verdict == "undecided" and not self.undecided and not self.broken:
            self.undecided = True
            self._tell(case, finding)
        holds = finding.bitwise if self.grade != "budget" else finding.verdict != "fail"
        if not holds and finding.verdict != "undecided":
            self._tell(case, finding)
            self.text += self._statistics(case, finding)
            self.broken = True
            raise _Broken
        self.worst = max(self.worst, finding.ratio)
        return finding

    def _tell(self, case, finding):
        """Nothing; the record tells of this case, its format, what came and how far off that is."""
        shown, self.case = case if finding.shown is None else finding.shown, case
        self.dtype, self.came = case.dtype, came(finding)
        lines = (str(shown), finding.detail, self._returned(finding.miss), *measured(finding.miss, self.dtype))
        self.text = "\n".join(x for x in lines if x)

    def _returned(self, miss):
        """What a subject in base 2 returned where a natural lse is told; "" for others."""
        if self.subject.log_base != 2 or miss is None or not miss.where.startswith("lse"):
            return ""
        return f"that is {miss.got / math.log(2):.9g} in base 2, as the function returned it"

    def _statistics(self, case, finding):
        """A line with the m and l behind the wrong lse of a triple; empty for other findings and long arrays."""
        if self.subject.kind is LSEState or not finding.detail.startswith("lse"):
            return ""
        state = (case if finding.shown is None else finding.shown).run(self.subject)
        if isinstance(state, LSEState) or state.m.size > MOST_SHOWN:
            return ""
        return f"\nlse is m + log l; returned were m = {state.m.tolist()}, l = {state.l.tolist()}"


LOW = -1e3
"""Below it a wrong number may be a stand-in for −∞: −10⁴, −65504, −10³⁰."""


def came(finding):
    """What a wrong result was: "nan", "inf", "zero", "low", another "number", or "" where it was no wrong number."""
    if finding.miss is None:
        return ""
    got = finding.miss.got
    if not math.isfinite(got):
        return "nan" if math.isnan(got) else "inf"
    return "zero" if got == 0 else "low" if got < LOW else "number"


def measured(miss, dtype):
    """Lines that say between what bounds the right number is certified and how far off the wrong one is."""
    if miss is None:
        return []
    lines = []
    if miss.radius > 0 and math.isfinite(miss.right):
        low = math.nextafter(miss.right - miss.radius, -math.inf)
        high = math.nextafter(miss.right + miss.radius, math.inf)
        lines.append(f"certified: {low!r} ≤ {miss.where} ≤ {high!r}")
    if math.isfinite(miss.error) and miss.error > 0:
        budgets = f"{miss.error / miss.budget:.3g} times the budget" if miss.budget > 0 else "where none is allowed"
        lines.append(f"off by {ulps(miss.error, miss.right, dtype):.3g} ulp of {dtype}, {budgets}")
    return lines


def ulps(error, right, dtype):
    """An error in units of the spacing of the format `dtype` at the right number."""
    spacing = 2 * rounding.unit_roundoff(dtype) * 2.0 ** math.floor(math.log2(abs(right))) if right else 0.0
    return error / max(spacing, rounding.smallest_subnormal(dtype))
