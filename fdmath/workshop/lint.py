"""`fdmath lint`: style, imports, tolerances and the rules for notebooks."""

import argparse
import subprocess
import sys

from fdmath.workshop import notebook_rules, repository, tolerances

IMPORT_LINTER = "from importlinter.cli import lint_imports; raise SystemExit(lint_imports(no_cache=True, no_logo=True))"


def tool(*command):
    """A check that runs `python *command` in the repository; its complaint is a non-zero exit code."""

    def check(root):
        code = subprocess.run([sys.executable, *command], cwd=root).returncode
        if code != 0:
            yield f"exit code {code}"

    return check


CHECKS = {
    "ruff": tool("-m", "ruff", "check", "."),
    "import-linter": tool("-c", IMPORT_LINTER),
    "tolerances": tolerances.complaints,
    "notebook rules": notebook_rules.complaints,
}


def main(argv=None):
    """The exit code of `fdmath lint`: 0 if no check complains, else 1."""
    argparse.ArgumentParser(prog="fdmath lint", description=__doc__).parse_args(argv)
    root, failed = repository(), []
    for name, check in CHECKS.items():
        complaints = list(check(root))
        print("\n".join([*complaints, f"{name}: {len(complaints) or 'no'} complaints"]), flush=True)
        failed += [name] if complaints else []
    print(f"lint: {len(CHECKS) - len(failed)} of {len(CHECKS)} checks passed; failed: {', '.join(failed) or 'none'}")
    return 1 if failed else 0
