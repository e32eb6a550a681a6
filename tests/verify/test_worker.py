"""A subject in a process of its own: what hangs, dies or prints there is said, and the other laws are still asked."""

import os
from functools import partial

import pytest

from fdmath.verify.apart import verify_apart
from fdmath.verify.worker import Here, Trouble, Worker
from tests.verify import badly_behaved


def judged(name, laws=None, **options):
    """The Report of one of the badly behaved, in this process."""
    return verify_apart(partial(badly_behaved.made, name), laws, 20, guard=Here, **options)


def test_hanging_and_dying_are_verdicts_of_one_law_each_and_the_rest_is_asked():
    laws = ["empty", "left identity", "shift", "convexity"]
    report = verify_apart(partial(badly_behaved.made, "unlucky"), laws, 20, seconds=5)
    hung, died, left, held = (report.cells[law, "unlucky"] for law in laws)
    assert [cell.verdict for cell in (hung, died, left, held)] == ["not run"] * 3 + ["pass"]
    assert hung.counterexample.startswith("hung: no answer within 5 s, in a call of fn\nargument 1 = np.array(")
    assert "argument 2 = np.array([-np.inf], dtype='float" in hung.counterexample
    assert "its process died: " in died.counterexample and "argument 4 = np.array([0.]" in died.counterexample
    assert "its process died: exit code 3, in a call of fn" in left.counterexample
    assert held.printed.startswith("merging | as C would | merging") and held.printed.endswith(" bytes)")
    assert report.exit_code == 2
    assert "unlucky: not run: empty" in report.failures() and "np.array(" in report.failures()


def test_a_process_that_died_is_begun_anew_and_told_what_is_declared():
    with Worker(partial(badly_behaved.made, "unlucky")) as worker:
        with pytest.raises(Trouble, match="exit code 5"):
            worker.run("tests.verify.test_worker:leave", 5)
        assert worker.run("tests.verify.test_worker:name_of") == "unlucky"  # begun anew
        worker.declared = {"name": "renamed"}
        assert worker.run("tests.verify.test_worker:name_of") == "renamed"
        with pytest.raises(Trouble, match="ZeroDivisionError: division by zero"):
            worker.run("tests.verify.test_worker:divide")
        with pytest.raises(Trouble, match="the answer cannot leave its process"):
            worker.run("tests.verify.test_worker:function_of")


def test_exceptions_of_any_kind_are_named_with_their_input():
    laws = ["empty", "left identity", "shift", "convexity"]
    report = verify_apart(partial(badly_behaved.made, "raises_what_is_met_seldom"), laws, 20)
    cells = [report.cells[law, "raises_what_is_met_seldom"] for law in laws]
    assert [cell.verdict for cell in cells] == ["fail"] * 3 + ["pass"]
    for cell, said in zip(cells, ("raised KeyboardInterrupt: ", "raised Leaving: bye",
                                  "raised Unsayable, whose text cannot be had"), strict=False):
        assert said in cell.counterexample and "part 1: LSEState(" in cell.counterexample


def leave(subject, code):
    os._exit(code)


def name_of(subject):
    return subject.name


def divide(subject):
    return 1 / 0


def function_of(subject):
    return lambda: subject


def test_what_cannot_be_made_is_told_without_a_traceback(capfd):
    for guard in (Here, Worker):
        with pytest.raises(Trouble, match="^ImportError: no module named mykernel$"):
            verify_apart(badly_behaved.not_made, ["shift"], guard=guard)
    assert "Traceback" not in "".join(capfd.readouterr())


def test_written_inputs_break_the_law_named_for_it():
    cell = judged("overwrites", ["inputs kept"]).cells["inputs kept", "overwrites"]
    assert cell.verdict == "fail" and "fn changed its argument 2" in cell.counterexample
    assert any("fault E5" in text for text in cell.explained)


@pytest.mark.parametrize(("name", "said"), [
    ("drops_a_column", "must return the shape"), ("whole_numbers", "returned no state: "),
])
def test_a_wrong_shape_or_dtype_on_some_inputs_breaks_the_laws_that_meet_it(name, said):
    report = judged(name, ["commutativity", "counting"])
    assert report.exit_code == 1
    assert said in report.cells["commutativity", name].counterexample


def test_working_in_place_is_found_and_said_unless_it_is_declared_otherwise():
    found = judged("into_the_first", ["shift"], told=())
    assert found.exit_code == 0
    assert found.notes["into_the_first"][0].startswith("taken as in_place=True")
    assert judged("into_the_first", ["shift"]).exit_code == 2
