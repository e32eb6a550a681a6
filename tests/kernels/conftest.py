"""What the tests of the kernels share: a quicker interpreter, and a line that counts what ran where."""

import importlib.util

import pytest


def pytest_terminal_summary(terminalreporter):
    """Prints how many tests of kernels ran interpreted, were compiled ahead, ran on a GPU, or lacked one."""
    passed, skipped = (terminalreporter.getreports(word) for word in ("passed", "skipped"))
    interpreted = sum(number for r in passed for name, number in r.user_properties if name == "ran interpreted")
    ahead = sum("ahead" in r.nodeid.partition("::")[0] for r in passed)
    ran, lacked = (sum(r.nodeid.startswith("tests/gpu/") for r in reports) for reports in (passed, skipped))
    if interpreted or ahead or ran or lacked:
        terminalreporter.write_line(f"kernel tests: {interpreted} ran interpreted, {ahead} were compiled ahead, "
                                    f"{ran} ran on a GPU, {lacked} were skipped for want of one")


@pytest.fixture(autouse=True, scope="session")
def prepared_once_a_launch():
    """Nothing; while tests run, Triton's interpreter does not prepare what it has prepared.

    It prepares the language anew whenever one device function calls another: once a launch is enough, and nearly
    halves the time.
    """
    here = all(importlib.util.find_spec(name) for name in ("torch", "triton"))
    interpreter = importlib.import_module("triton.runtime.interpreter") if here else None
    if not (hasattr(interpreter, "_patch_lang") and hasattr(interpreter, "_LangPatchScope")):
        yield  # no Triton, or one that does it in another way
        return
    prepare, language = interpreter._patch_lang, (interpreter.tl, interpreter.tl.core)

    def once(fn):
        modules = [x for x in fn.__globals__.values() if any(x is module for module in language)]
        done = modules and all(x.static_assert.__name__ == "_new_static_assert" for x in modules)
        return interpreter._LangPatchScope() if done else prepare(fn)

    interpreter._patch_lang = once
    yield
    interpreter._patch_lang = prepare
