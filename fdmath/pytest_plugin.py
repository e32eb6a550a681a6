"""The laws as tests of somebody's own suite: one line, and pytest runs a test for each law, whose name is the id.

    test_laws = laws_of(my_merge)  # from fdmath.pytest_plugin import laws_of

pytest loads this module in every run where fdmath is installed, so that its options are there; it imports nothing heavy
until `laws_of` is called.
"""

import dataclasses
import importlib

OPTIONS = {"--law-cases": "inputs that each law is asked about", "--law-seed": "another draw of these inputs"}


def pytest_addoption(parser):
    """Nothing; pytest has the OPTIONS."""
    group = parser.getgroup("fdmath", "laws of attention states")
    for option, meaning in OPTIONS.items():
        group.addoption(option, type=int, help=meaning)


def laws_of(subject, role="merge", laws=None, **declared):
    """A test function for pytest: one test for each law that concerns the subject, or for those named.

    subject: a Subject, or a function of the role whose declarations follow; whether that takes torch, works in place or
    returns no lse is found by calling it, where it is not declared. The tests run in pytest's process. Raises TypeError
    for neither, and for a word that is no declaration of a Subject; ValueError for a name that is no law, or a value
    that no declaration has.
    """
    pytest, judge = (importlib.import_module(name) for name in ("pytest", "fdmath.verify.judge"))
    subject = _subject(subject, role, declared)
    names = [law.name for law in judge.laws_named(laws) if law.concerns(subject)]

    @pytest.mark.parametrize("law", names)
    def test_laws(law, request):
        cases, seed = (request.config.getoption(option, None) for option in OPTIONS)
        text = broken(subject, law, cases or judge.CASES, seed or 0, request.node.nodeid)
        if text:
            pytest.fail(text, pytrace=False)

    return test_laws


def broken(subject, law, cases, seed=0, test=""):
    """How the subject breaks the law, as a text with the input and what would explain it; "" where it does not.

    test: the name of the test that asks, for the line that asks again.
    """
    judge, explain = (importlib.import_module(f"fdmath.verify.{name}") for name in ("judge", "explain"))
    report = judge.verify(subject, [law], cases, seed=seed)
    if report.exit_code == 0:
        return ""
    cells = explain.explained(subject, {law: report.cells[law, subject.name]}, seed)
    report.cells = {(law, subject.name): cells[law]}
    words = f" --law-cases {cases}" + (f" --law-seed {seed}" if seed else "")
    report.replay = lambda *_: f'python -m pytest "{test}"{words}'
    return report.failures()


def _subject(subject, role, declared):
    verify = importlib.import_module("fdmath.verify")
    if isinstance(subject, verify.Subject):
        if declared:
            raise TypeError(f"a Subject has its declarations; got {', '.join(declared)} besides")
        return subject
    known = [field.name for field in dataclasses.fields(verify.Subject)][3:]  # after name, role and fn
    if unknown := ", ".join(sorted(set(declared) - set(known))):
        raise TypeError(f"{unknown} is no declaration; there are {', '.join(known)} (and role=, laws=)")
    name = getattr(subject, "__name__", type(subject).__name__)
    made = verify.Subject(name, role, subject, **declared)
    found, _ = importlib.import_module("fdmath.verify.apart").suited(made, tuple(declared))
    return dataclasses.replace(made, **found)


__all__ = ["broken", "laws_of"]
