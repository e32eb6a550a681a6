"""The tools of a lesson: source as it stands in the package, a copy to edit, a mutant by one replacement."""

import numpy as np
import pytest

import fdmath
from fdmath import AccState, lesson, merge
from fdmath.algebra.merge import combine_acc, flat
from fdmath.attention.reference import attention
from fdmath.lesson import edit_source, editable, edited, show_markdown, show_source, source_of
from fdmath.plotting import claim


def states():
    def one(m, l, payload):  # noqa: E741
        return AccState(*(np.array(x, np.float32) for x in ([m], [l], [payload])))

    return one(0, 2, [4]), one(0, 6, [2])


def same(a, b):
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


def test_the_source_is_found_behind_a_package_that_can_be_called():
    assert source_of(fdmath.attention) == source_of(attention)
    assert source_of(attention).startswith("def attention(q, k, v")


def test_source_is_shown_with_the_module_that_it_stands_in(capsys):
    show_source(merge)
    assert capsys.readouterr().out.startswith("# fdmath.algebra.merge\ndef merge(a, b):")


def test_in_a_notebook_source_is_shown_as_plain_text_and_as_a_code_block(monkeypatch):
    shown = []
    monkeypatch.setattr(lesson, "get_ipython", object)
    monkeypatch.setattr(lesson, "display", lambda data, raw: shown.append(data))
    show_source(merge)
    assert shown[0]["text/markdown"] == f"```python\n{shown[0]['text/plain']}\n```"


def test_markdown_is_shown_with_its_text_and_without_a_notebook_the_text_is_printed(monkeypatch, capsys):
    show_markdown("*a*", "a")
    assert capsys.readouterr().out == "a\n"
    shown = []
    monkeypatch.setattr(lesson, "get_ipython", object)
    monkeypatch.setattr(lesson, "display", lambda data, raw: shown.append(data))
    show_markdown("*a*", "a")
    assert shown == [{"text/plain": "a", "text/markdown": "*a*"}]


@pytest.mark.parametrize("fn", [merge, flat, combine_acc, fdmath.attention])
def test_an_editable_copy_runs_as_it_stands(fn):
    cell = {}
    exec(editable(fn), cell)
    assert any(name.startswith("my_") for name in cell)


def test_an_editable_copy_does_what_the_original_does():
    cell = {}
    exec(editable(merge), cell)
    a, b = states()
    assert same(cell["my_merge"](a, b), merge(a, b))


def test_a_copy_of_a_function_that_calls_itself_calls_the_copy():
    code = "def down(n):\n    return 0 if n == 0 else down(n - 1)  # ⊕ down\n"
    assert lesson._renamed(code, "down", "my_down") == code.replace("down(", "my_down(")


def test_in_a_notebook_the_copy_goes_into_the_next_cell(monkeypatch, capsys):
    cells = []
    shell = type("Shell", (), {"set_next_input": lambda self, text: cells.append(text)})
    monkeypatch.setattr(lesson, "get_ipython", shell)
    edit_source(merge)
    assert cells == [editable(merge)]
    assert capsys.readouterr().out == "The cell below holds my_merge, yours to break and to mend.\n"


def test_without_a_notebook_the_copy_is_printed(capsys):
    edit_source(combine_acc)
    assert capsys.readouterr().out == editable(combine_acc) + "\n"


def test_a_replacement_changes_the_function_and_what_uses_it_but_not_the_package():
    a, b = states()
    before = merge(a, b)
    broken = edited(combine_acc, "alpha * a.l + beta * b.l", "alpha * a.l - beta * b.l", returns=merge)
    assert broken(a, b).l == [-4.0]
    assert same(merge(a, b), before)


def test_a_replacement_in_the_function_itself_is_returned_by_default():
    assert edited(claim, "Not so: ", "No: ")(False, "It is.") == "No: It is."
    assert claim(False, "It is.") == "Not so: It is."


@pytest.mark.parametrize("old, new", [("no such piece", ""), ("alpha", "beta"), ("alpha * a.l", "alpha * a.l")])
def test_a_mutant_that_might_not_differ_is_refused(old, new):
    with pytest.raises(ValueError, match="exactly once and differ"):
        edited(combine_acc, old, new)
