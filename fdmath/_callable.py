"""Packages that can be called like the function they are named after.

`fdmath.attention` and `fdmath.verify` are packages and public functions at once; importing a package
always puts the module under its name in `fdmath`, so the module itself is made callable.
"""

import functools
import inspect
import sys
import types


def make_callable(module_name, function):
    """The module called `module_name`, which from now on can be called as `function` is."""
    module = sys.modules[module_name]

    class CallableModule(types.ModuleType):
        __call__ = staticmethod(functools.wraps(function)(lambda *args, **kwargs: function(*args, **kwargs)))

    module.__class__ = CallableModule
    module.__signature__ = inspect.signature(function)
    module.__wrapped__ = function
    return module
