"""Small changes of the code: which they are, what the tests say of each, what is kept and what is asked."""

from types import SimpleNamespace

import pytest

from fdmath.workshop import mutation, mutation_results
from fdmath.workshop.mutants import Mutant, change, mutants, mutated, sample
from fdmath.workshop.mutation_results import Verdict

SOURCE = """def f(a, *, b=True):
    for x in a:
        if x < 2 and b:
            return x + 1
    return None
"""
FORMS = [
    (1, "def f(a, *, b=False):"),
    (2, "for x in []:"),
    (3, "if not x < 2 and b:"),
    (3, "if x < 1 and b:"),
    (3, "if x < 2 or b:"),
    (3, "if x < 3 and b:"),
    (3, "if x <= 2 and b:"),
    (3, "if x >= 2 and b:"),
    (4, "return x * 1"),
    (4, "return x + 0"),
    (4, "return x + 2"),
    (4, "return x - 1"),
]
ORDER = "fdmath/algebra/order.py"
TEST = "tests/algebra/test_order.py"


# The mutants


def test_the_mutants_of_a_source():
    found = [(m.line, change(SOURCE, mutated(SOURCE, m)).partition(" → ")[2]) for m in mutants("f.py", SOURCE)]
    assert sorted(found) == FORMS


def test_a_change_is_named_by_its_lines_wherever_they_stand():
    before, after = "a = 1\nb = (2 +\n     3)\n", "a = 1\nb = (2 -\n     3)\n"
    assert change(before, after) == change("# new\n" + before, "# new\n" + after) == "b = (2 + → b = (2 -"
    assert change("@d\nx = 1\n", "x = 1\n") == "@d → "


def test_what_is_in_the_sample_does_not_hang_on_the_rest():
    sources = {"a.py": SOURCE, "b.py": SOURCE.replace("x + 1", "x * 3")}
    every = [m for name, source in sources.items() for m in mutants(name, source)]
    chosen = sample(every, sources, 10, 6)
    assert len(chosen) == 10 and set(chosen) <= set(every)
    assert chosen != sample(every, sources, 10, 7) and sample(every, sources, 1000, 6) == every
    shifted = {"a.py": "# a line more\n" + SOURCE}
    moved = sample(mutants("a.py", shifted["a.py"]), shifted, 5, 6)
    assert [m._replace(line=m.line - 1) for m in moved] == sample(mutants("a.py", SOURCE), sources, 5, 6)


# The process that judges


@pytest.fixture(scope="module")
def worker():
    root = mutation.repository()
    one = mutation.Worker(root)
    yield one
    one.stop()


def answer(worker, old, new, tests=(TEST,), silence=mutation.SILENCE):
    """The Worker's verdict on order.py with a text replaced, and who gave it."""
    source = (worker.root / ORDER).read_text(encoding="utf-8")
    assert old in source
    told = worker.ask(mutation.question(worker.root, ORDER, source.replace(old, new), list(tests)), silence)
    return told["verdict"], told["by"]


def test_a_worker_judges_one_source_after_the_other_and_changes_no_file(worker):
    before = mutation_results.digest(worker.root / ORDER)
    assert answer(worker, "> 1", "> 1") == ("survived", "")
    assert answer(worker, "> 1", "> 2") == ("killed", TEST)
    assert answer(worker, "level[::2]", "level[::]") == ("killed", TEST)
    assert answer(worker, "import operator", "import nowhere") == ("killed", TEST)
    assert answer(worker, "> 1", "> 1", ["tests/nothing.py"]) == ("error", "tests/nothing.py")
    assert answer(worker, "return level[0]", "while True: pass", silence=2) == ("timeout", "")
    assert answer(worker, "> 1", "> 1") == ("survived", "")
    assert mutation_results.digest(worker.root / ORDER) == before


def test_a_process_that_dies_is_an_error_and_the_next_question_is_answered(worker):
    assert answer(worker, "import operator", "import os; os._exit(1)") == ("error", "the process died")
    assert answer(worker, "> 1", "> 2") == ("killed", TEST)


def test_the_tests_of_a_module_come_first(root):
    files = mutation.tests_of(root, "fdmath/algebra/merge.py")
    assert files[:2] == ["tests/algebra/test_merge.py", "tests/algebra/test_merge_gradients.py"]
    assert {path.name for path in (root / "tests/algebra").glob("test_*.py")} == {f.split("/")[-1] for f in files}
    assert "tests/bench/test_atomics.py" in mutation.tests_of(root, "fdmath/algebra/printed.py")[:2]


# What is kept


def test_results_are_read_as_they_were_written(tmp_path):
    digests = {"b.py": "12", "a.py": "34"}
    verdicts = {
        Mutant("b.py", 12, "AddNot", 0): Verdict("killed", "t.py", "x → y"),
        Mutant("b.py", 2, "AddNot", 1): Verdict("survived", "", "α → "),
    }
    path = tmp_path / "results.tsv"
    assert mutation_results.read_results(path) == ({}, {})
    mutation_results.write_results(path, digests, verdicts)
    assert mutation_results.read_results(path) == (digests, verdicts)
    assert [line.split("\t")[1] for line in path.read_text(encoding="utf-8").splitlines()][-2:] == ["2", "12"]


@pytest.mark.parametrize("verdict, by, changed, holds", [
    ("killed", "t.py", set(), True), ("killed", "t.py", {"u.py"}, True), ("killed", "t.py", {"t.py"}, False),
    ("killed", "t.py", {"m.py"}, False), ("survived", "", {"x.py"}, True), ("survived", "", {"u.py"}, False),
    ("timeout", "", {"t.py"}, False), ("error", "t.py", set(), False),
])  # fmt: skip
def test_a_verdict_holds_while_what_it_rests_on_is_unchanged(verdict, by, changed, holds):
    known = Verdict(verdict, by, "x → y")
    assert mutation_results.still_true(Mutant("m.py", 1, "AddNot", 0), known, ["t.py", "u.py"], changed) is holds


def test_every_survivor_that_is_kept_has_its_reason(root):
    _, verdicts = mutation_results.read_results(root / mutation_results.RESULTS)
    reasons = mutation_results.read_reasons(root / mutation_results.REASONS)
    alive = [(m.module, v.change) for m, v in verdicts.items() if v.verdict == "survived"]
    assert verdicts and [one for one in alive if not reasons.get(one)] == []


# What is asked


def finished(algebra, attention):
    """A run in which these verdicts were reached."""
    chosen = {"algebra": algebra, "attention": attention}
    run = SimpleNamespace(mutants={}, verdicts={}, pending=lambda: [])
    for folder, verdicts in chosen.items():
        run.mutants[folder] = [Mutant(f"{folder}.py", line, "AddNot", 0) for line in range(len(verdicts))]
        run.verdicts |= {
            mutant: Verdict(verdict, "", f"{mutant.line} → ")
            for mutant, verdict in zip(run.mutants[folder], verdicts, strict=True)
            if verdict
        }
    return run


def test_enough_killed_and_every_survivor_explained_passes():
    run = finished([*["killed"] * 94, "timeout", *["survived"] * 5], [*["killed"] * 9, "survived"])
    reasons = {("algebra.py", f"{line} → "): "equal" for line in range(95, 100)} | {("attention.py", "9 → "): "equal"}
    assert list(mutation.complaints(run, reasons)) == []
    assert [line.split()[-1] for line in mutation.table(run).splitlines()] == ["rate", "95.0%", "90.0%"]
    del reasons["attention.py", "9 → "]
    assert list(mutation.complaints(run, reasons)) == ["attention.py:9: survives without a reason: 9 → "]


@pytest.mark.parametrize("algebra, attention, complaint", [
    (["killed"] * 18 + ["survived"] * 2, ["killed"], "algebra: 18 of 20 killed, which is less than 95%"),
    (["killed"], ["killed"] * 8 + ["survived"] * 2, "attention: 8 of 10 killed, which is less than 90%"),
    (["killed", ""], ["killed"], "algebra: 1 of 2 mutants are not judged yet"),
    (["killed"] * 40 + ["error"], ["killed"], "algebra.py:40: survives without a reason: 40 → "),
])  # fmt: skip
def test_what_is_missing_is_said(algebra, attention, complaint):
    assert complaint in list(mutation.complaints(finished(algebra, attention), {}))


def test_a_reason_for_what_dies_is_no_reason():
    reasons = {("algebra.py", "0 → "): "equal"}
    [complaint] = mutation.complaints(finished(["killed"], ["killed"]), reasons)
    assert complaint == "algebra.py: a reason for what does not survive: 0 → "
