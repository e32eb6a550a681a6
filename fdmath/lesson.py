"""What a notebook does with code: shows a function of the package, hands out an editable copy, changes one piece.

The code of a lesson is never typed twice: it is the package's own source, read when the cell runs.
"""

import ast
import builtins
import inspect
import sys
import textwrap

from IPython import get_ipython
from IPython.display import display


def source_of(fn):
    """The source of the function, as text; the function itself where `fn` is a module that can be called."""
    return textwrap.dedent(inspect.getsource(inspect.unwrap(fn)))


def show_source(fn):
    """Nothing; the source of a function of the package is displayed, highlighted where the viewer can.

    A cell that shows source carries the tag nbval-ignore-output: what the code *does* is compared elsewhere.
    Outside a notebook the source is printed.
    """
    code = f"# {inspect.unwrap(fn).__module__}\n{source_of(fn)}".rstrip()
    if get_ipython() is None:
        print(code)
    else:
        display({"text/plain": code, "text/markdown": f"```python\n{code}\n```"}, raw=True)


def show_markdown(markdown, text):
    """Nothing; the Markdown is displayed, with a plain text beside it for whoever renders none.

    Outside a notebook the text is printed.
    """
    if get_ipython() is None:
        print(text)
    else:
        display({"text/plain": text, "text/markdown": markdown}, raw=True)


def editable(fn):
    """The text of a cell that defines `my_…`, a copy of the function, with the imports that it needs.

    It runs as it stands: every name that the function takes from its module is imported from there.
    """
    fn = inspect.unwrap(fn)
    code = _renamed(source_of(fn), fn.__name__, f"my_{fn.__name__}")
    needed = _names_from_module(fn)
    imports = f"from {fn.__module__} import {', '.join(needed)}\n\n\n" if needed else ""
    return imports + code


def edit_source(fn):
    """Nothing; an editable copy of the function is put into a new cell below, under the name `my_…`.

    Outside a notebook the copy is printed.
    """
    shell, name = get_ipython(), f"my_{inspect.unwrap(fn).__name__}"
    if shell is None:
        print(editable(fn))
        return
    shell.set_next_input(editable(fn))
    print(f"The cell below holds {name}, yours to break and to mend.")


def edited(fn, old, new, returns=None):
    """The function as it would be if one piece of its source were another: a mutant made in one line.

    The module of `fn` is read anew with `old` replaced by `new` inside fn; the module itself is untouched.
    returns: a function of that module that uses fn, to have instead of fn.
    Raises ValueError unless `old` stands in fn exactly once, so that no mutant is what it was.
    """
    fn = inspect.unwrap(fn)
    code, module = source_of(fn), sys.modules[fn.__module__]
    if code.count(old) != 1 or old == new:
        raise ValueError(f"old must stand in {fn.__name__} exactly once and differ from new; got {old!r}")
    scope = {"__name__": module.__name__}
    exec(inspect.getsource(module).replace(code, code.replace(old, new)), scope)
    return scope[(returns or fn).__name__]


def _renamed(code, old, new):
    """The source of one function with its own name replaced, where it is defined and where it calls itself."""
    places = [
        (node.lineno, node.col_offset + (len("def ") if isinstance(node, ast.FunctionDef) else 0))
        for node in ast.walk(ast.parse(code))
        if getattr(node, "name", getattr(node, "id", None)) == old
    ]
    lines = code.splitlines()
    for line, column in sorted(places, reverse=True):
        text = lines[line - 1].encode()
        lines[line - 1] = (text[:column] + new.encode() + text[column + len(old.encode()) :]).decode()
    return "\n".join(lines) + "\n"


def _names_from_module(fn):
    """The names, sorted, that the function reads from its own module (itself and Python's built-ins left out)."""
    module = vars(sys.modules[fn.__module__])
    read = {node.id for node in ast.walk(ast.parse(source_of(fn))) if isinstance(node, ast.Name)}
    return sorted(name for name in read if name in module and name != fn.__name__ and not hasattr(builtins, name))
