"""The phases: all are tried, a failure is a failure, and nothing found is no success."""

import pytest

from fdmath import workshop
from fdmath.workshop import phases
from fdmath.workshop.processor import vector_units

PASSES = ["-c", "print('word'); print('=== 3 passed ===')"]
FAILS = ["-c", "print('=== 1 failed ==='); raise SystemExit(1)"]


def run(monkeypatch, commands, *words):
    """The exit code of `fdmath test *words` with these commands as its phases."""
    monkeypatch.setattr(phases, "COMMANDS", commands)
    return phases.main(list(words))


def test_all_passing_phases_pass_and_their_closing_lines_close(monkeypatch, capfd):
    assert run(monkeypatch, {"unit": PASSES, "laws": PASSES}) == 0
    assert capfd.readouterr().out.splitlines()[-2:] == ["=== 3 passed ===", "=== 3 passed ==="]


def test_one_failing_phase_fails_all_and_the_rest_is_still_tried(monkeypatch, capfd):
    assert run(monkeypatch, {"unit": FAILS, "laws": PASSES}) == 1
    printed = capfd.readouterr().out.splitlines()
    assert printed[-2:] == ["=== 1 failed ===", "=== 3 passed ==="]
    assert [line.split()[2] for line in printed[-6:-4]] == ["failed", "passed"]


def test_what_failed_is_named_again_at_the_end(monkeypatch, capfd, tmp_path):
    (tmp_path / "test_broken.py").write_text("def test_red():\n    assert False\n", encoding="utf-8")
    assert run(monkeypatch, {"unit": [*phases.PYTEST, str(tmp_path)], "laws": PASSES}) == 1
    last = capfd.readouterr().out.split("\nall ")[1].splitlines()
    assert [line.split(" - ")[0].split("::")[1] for line in last if line.startswith("FAILED ")] == ["test_red"]


def test_no_tests_found_is_a_failure(monkeypatch, tmp_path):
    assert run(monkeypatch, {"unit": [*phases.PYTEST, str(tmp_path)]}) == 1


def test_only_the_named_phases_run(monkeypatch, capfd):
    assert run(monkeypatch, {"unit": FAILS, "laws": PASSES}, "laws") == 0


def test_an_unknown_phase_is_code_2(monkeypatch, capfd):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, {"unit": PASSES}, "untit")
    assert ended.value.code == 2


def test_a_shortened_option_is_code_2_and_runs_nothing(monkeypatch, capfd):
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, {"unit": PASSES}, "--portabl")
    assert ended.value.code == 2 and "--- unit" not in capfd.readouterr().out


def test_an_installed_copy_is_told_so_before_any_phase(monkeypatch, capfd, tmp_path):
    monkeypatch.setattr(workshop, "__file__", str(tmp_path / "site-packages" / "fdmath" / "workshop" / "__init__.py"))
    with pytest.raises(SystemExit) as ended:
        run(monkeypatch, {"unit": PASSES})
    said = capfd.readouterr()
    assert ended.value.code == 2 and "needs a clone" in said.err and "--- unit" not in said.out


def test_a_worker_has_one_thread(monkeypatch, capfd):
    for name in phases.ENVIRONMENT:
        monkeypatch.setenv(name, "7")
    show = "import os; print(*(os.environ[n] for n in ('OMP_NUM_THREADS', 'OPENBLAS_NUM_THREADS', 'MKL_NUM_THREADS')))"
    assert run(monkeypatch, {"unit": ["-c", show]}) == 0
    assert capfd.readouterr().out.splitlines()[-1] == "1 1 1"


def test_the_matrix_the_kernels_and_the_groups_of_processes_are_in_one_phase_each():
    assert phases.MATRIX in phases.COMMANDS["laws"]
    assert set(phases.KERNELS) <= set(phases.COMMANDS["kernels"])
    assert phases.GLOO in phases.COMMANDS["gloo"] and phases.CLAIMS in phases.COMMANDS["claims"]
    ignored = {f"--ignore={path}" for path in (phases.MATRIX, *phases.KERNELS, phases.GLOO, phases.CLAIMS, phases.BOOK)}
    assert ignored <= set(phases.COMMANDS["unit"])


def test_the_book_is_tested_only_when_it_is_asked_for(monkeypatch, capfd):
    assert phases.BOOK in phases.COMMANDS["book"]
    commands = {"unit": PASSES, "book": ["-c", "raise SystemExit(3)"]}
    assert run(monkeypatch, commands) == 0
    assert "--- book" not in capfd.readouterr().out
    monkeypatch.setattr(phases, "COMMANDS", commands)
    assert phases.main(["book"]) == 1


def test_counts_of_kernel_tests_close_with_the_last_line(monkeypatch, capfd):
    counts = "kernel tests: 3 ran interpreted"
    assert run(monkeypatch, {"kernels": ["-c", f"print('{counts}'); print('word'); print('=== 3 passed ===')"]}) == 0
    assert capfd.readouterr().out.splitlines()[-2:] == [counts, "=== 3 passed ==="]


@pytest.mark.parametrize(("words", "cases"), [([], "None"), (["--thorough"], "50")])
def test_thorough_asks_the_kernels_as_often_as_others(monkeypatch, capfd, words, cases):
    monkeypatch.delenv("FDMATH_KERNEL_CASES", raising=False)
    show = "import os; print(os.environ.get('FDMATH_KERNEL_CASES'))"
    assert run(monkeypatch, {"kernels": ["-c", show]}, *words) == 0
    assert capfd.readouterr().out.splitlines()[-1] == cases


def test_portable_runs_every_phase_but_lint_and_kernels_on_each_plainer_processor(monkeypatch, capfd):
    show = "import numpy; print('=', *numpy.show_config(mode='dicts')['SIMD Extensions'].get('found', []))"
    assert run(monkeypatch, {"lint": FAILS, "kernels": FAILS, "laws": ["-c", show]}, "--portable") == 0
    plainer, plainest = (line.removeprefix("=").split() for line in capfd.readouterr().out.splitlines()[-2:])
    assert plainer == [unit for unit in vector_units() if "AVX512" not in unit and unit != "X86_V4"]
    assert plainest == []


def test_a_clock_counts_minutes():
    assert [phases.clock(seconds) for seconds in (0.4, 61, 600)] == ["0:00", "1:01", "10:00"]
