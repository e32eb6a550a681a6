"""The repository itself: its files, its dependencies said twice and equal, what importing it loads."""

import ast
import importlib.metadata
import re
import subprocess
import sys
from importlib import resources

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

TOP_LEVEL = {
    "notebooks", "fdmath", "tests", "docs", "environment.yml", "pyproject.toml", "constraints.txt", "Makefile",
    "README.md", "LICENSE", "LICENSE-docs", "NOTICE", "CITATION.cff",
}  # fmt: skip
CONDA_NAMES = {"torch": "pytorch"}  # where conda-forge's name is not PyPI's
NOT_IN_CONDA = {"triton"}  # a Linux-only line, which an environment.yml cannot say
BY_PIP = {"sphinx-mathjax-offline"}  # what conda-forge does not have


def tracked(root):
    """The paths that git tracks, as text relative to the root; skips the test outside a clone."""
    done = subprocess.run(["git", "ls-files"], cwd=root, capture_output=True, encoding="utf-8")
    if done.returncode != 0:
        pytest.skip("not a git clone")
    return done.stdout.splitlines()


def requirements(pyproject):
    """The requirements of the core and of every extra (references to fdmath's own extras left out)."""
    project = pyproject["project"]
    texts = [*project["dependencies"], *(t for extra in project["optional-dependencies"].values() for t in extra)]
    return [requirement for requirement in map(Requirement, texts) if requirement.name != "fdmath"]


def conda_line(requirement):
    """A requirement as a line of environment.yml."""
    return CONDA_NAMES.get(requirement.name, requirement.name) + str(requirement.specifier)


def test_top_level_holds_what_the_house_lists(root):
    assert {path.partition("/")[0] for path in tracked(root) if not path.startswith(".")} <= TOP_LEVEL


def test_environment_is_pyproject(root, pyproject):
    environment = yaml.safe_load((root / "environment.yml").read_text(encoding="utf-8"))
    assert environment["channels"] == ["conda-forge", "nodefaults"]
    packages = [line for line in environment["dependencies"] if isinstance(line, str)]
    expected = {conda_line(r) for r in requirements(pyproject) if r.name not in NOT_IN_CONDA | BY_PIP}
    expected |= {"python" + pyproject["project"]["requires-python"], "pip"}
    assert sorted(packages) == sorted(expected)
    by_pip = sorted(conda_line(r) for r in requirements(pyproject) if r.name in BY_PIP)
    assert environment["dependencies"][-1] == {"pip": [*by_pip, "--editable ."]}


def test_every_requirement_is_pinned_within_its_range(root, pyproject):
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    pins = {pin.name: pin for pin in (Requirement(line) for line in lines if not line.startswith("#"))}
    for requirement in requirements(pyproject):
        pinned = str(pins[canonicalize_name(requirement.name)].specifier).removeprefix("==")
        assert requirement.specifier.contains(pinned), f"{requirement} but pinned {pinned}"
    assert not any(name.startswith("nvidia") for name in pins)


def imported(path):
    """The top-level names that a Python file imports by statement."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        if isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module.partition(".")[0]


def test_every_imported_package_is_declared(root, pyproject):
    declared = {canonicalize_name(requirement.name) for requirement in requirements(pyproject)}
    distributions = importlib.metadata.packages_distributions()
    files = [path for folder in ("fdmath", "tests") for path in (root / folder).rglob("*.py")]
    names = {name for path in files for name in imported(path)}
    third_party = names - set(sys.stdlib_module_names) - {"fdmath", "tests"}
    undeclared = {n for n in third_party if not declared & {canonicalize_name(d) for d in distributions.get(n, [])}}
    assert undeclared == set()
    assert {"numpy", "hypothesis"} <= third_party


def test_all_is_every_extra(pyproject):
    extras = pyproject["project"]["optional-dependencies"]
    [everything] = map(Requirement, extras["all"])
    assert everything.extras == set(extras) - {"all"}


def test_the_notebooks_extra_brings_no_torch(pyproject):
    extras = pyproject["project"]["optional-dependencies"]

    def brought(extra):
        for requirement in map(Requirement, extras[extra]):
            if requirement.name == "fdmath":
                yield from (name for inner in requirement.extras for name in brought(inner))
            yield requirement.name

    assert set(brought("notebooks")) & {"torch", "triton", "transformers"} == set()
    assert "torch" in set(brought("model"))


def test_importing_fdmath_loads_numpy_alone():
    script = "import sys, fdmath; fdmath.merge; print(*sorted({m.partition('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, encoding="utf-8", check=True)
    loaded = set(done.stdout.split())
    third_party = {"torch", "triton", "flint", "hypothesis", "matplotlib", "transformers", "pytest", "tqdm", "sympy"}
    assert loaded & third_party == set()
    assert "fdmath" in loaded and "numpy" in loaded


def test_package_data_is_found():
    assert any(path.suffix == ".npz" for path in resources.files("fdmath").joinpath("data").iterdir())


def test_every_make_target_is_one_line_that_readme_shows(root):
    makefile = (root / "Makefile").read_text(encoding="utf-8")
    readme = (root / "README.md").read_text(encoding="utf-8")
    helped, *targets = re.search(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[1].split()
    assert helped == "help" and makefile.index("\nhelp:") < min(makefile.index(f"\n{t}:") for t in targets)  # `make`
    assert set(re.findall(r"^make ([a-z-]+)  ", makefile, re.MULTILINE)) == set(targets)
    for target in targets:
        [recipe] = re.findall(rf"^{target}:.*\n\t(.+)\n(?!\t)", makefile, re.MULTILINE)
        line = recipe.replace("$(PY)", "python").replace(" $(ARGS)", "")
        assert f"| `make {target}` | `{line}` |" in readme


def test_ci_is_make_test(root):
    script = (root / ".ci" / "run").read_text(encoding="utf-8").splitlines()
    assert script[-1] == "exec make test" and "set -eu" in script
