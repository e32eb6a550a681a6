"""A process that judges mutants one after the other: NumPy, torch and pytest are imported once, not once a mutant.

A mutant is planted as the source of its module in a fresh import of fdmath and of the tests; no file is changed.
Speaks JSON, a line a message: {"module", "path", "source", "tests"} comes; null goes after each step of a test, as a
sign of life, and {"verdict", "by"} at the end.
"""

import importlib
import importlib.abc
import importlib.machinery
import importlib.util
import json
import os
import sys
from pathlib import Path

KILLED, SURVIVED, ERROR = "killed", "survived", "error"
OPTIONS = [
    "--exitfirst", "--quiet", "--assert=plain", "--import-mode=importlib", "--strict-markers", "-o", "addopts=",
    *(f"-pno:{name}" for name in ("cacheprovider", "xdist", "nbval", "unraisableexception", "threadexception")),
]  # fmt: skip
"""Nobody reads why a test failed, so asserts are not rewritten; the last two plugins collect garbage twice a run."""


class Plant(importlib.abc.MetaPathFinder, importlib.machinery.SourceFileLoader):
    """The finder and loader of one module, whose source is the text given and not what its file holds."""

    def __init__(self, module, path, source):
        super().__init__(module, path)
        self.source = source

    def find_spec(self, name, path=None, target=None):
        return importlib.util.spec_from_file_location(name, self.path, loader=self) if name == self.name else None

    def get_code(self, fullname):
        return compile(self.source, self.path, "exec", dont_inherit=True)


class Witness:
    """A pytest plugin: whether a test, or the import of its file, `failed`; each report is told to `alive`."""

    def __init__(self, alive):
        self.alive, self.failed = alive, False

    def pytest_runtest_logreport(self, report):
        self.alive()
        self.failed |= report.failed

    pytest_collectreport = pytest_runtest_logreport


def forget():
    """Nothing; fdmath and its tests are imported anew when next asked for."""
    for name in [name for name in sys.modules if name.partition(".")[0] in ("fdmath", "tests")]:
        del sys.modules[name]


def judge(module, path, source, tests, alive=lambda: None):
    """The {"verdict", "by"} of the tests (files) on the module with that source; the first that fails ends it.

    killed: a test of the file `by` failed, or could not be imported. survived: all passed. error: pytest itself
    failed on the file `by`, or found no tests there.
    """
    pytest = importlib.import_module("pytest")
    plant, witness = Plant(module, path, source), Witness(alive)
    sys.meta_path.insert(0, plant)
    try:
        for test in tests:
            forget()
            code = pytest.main([*OPTIONS, test], plugins=[witness])
            if witness.failed or code:
                return {"verdict": KILLED if witness.failed else ERROR, "by": test}
    finally:
        sys.meta_path.remove(plant)
    return {"verdict": SURVIVED, "by": ""}


def main():
    """Nothing; answers until the input ends. What tests print goes nowhere."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8")

    def say(message):
        print(json.dumps(message), file=answers, flush=True)

    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        os.dup2(nowhere.fileno(), 1)
        for line in sys.stdin:
            say(judge(**json.loads(line), alive=lambda: say(None)))


if __name__ == "__main__":
    main()
