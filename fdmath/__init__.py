"""fdmath: every way of computing attention in pieces is one sum; see it, prove it, measure it, test your own.

Importing fdmath imports NumPy alone. The public names are loaded when first used.
"""

import importlib

__version__ = "0.1.0"

_PUBLIC = {
    "MLOState": "fdmath.algebra.state",
    "AccState": "fdmath.algebra.state",
    "LSEState": "fdmath.algebra.state",
    "identity": "fdmath.algebra.state",
    "merge": "fdmath.algebra.merge",
    "merge_all": "fdmath.algebra.merge",
    "flat": "fdmath.algebra.merge",
    "flat_printed": "fdmath.algebra.printed",
    "sequential": "fdmath.algebra.order",
    "tree": "fdmath.algebra.order",
    "streams": "fdmath.algebra.order",
    "ring": "fdmath.algebra.order",
    "trace": "fdmath.algebra.trace",
    "trace_keys": "fdmath.algebra.trace",
    "partial_state": "fdmath.attention.softmax",
    "attention": "fdmath.attention",
    "split_kv_attention": "fdmath.attention.decode",
    "flash_attention": "fdmath.attention.flash",
    "flash_attention_backward": "fdmath.attention.flash",
    "backend_for": "fdmath.attention.decode",
    "certified_attention": "fdmath.oracle",
    "verify": "fdmath.verify",
    "probe": "fdmath.verify.probe",
    "Subject": "fdmath.verify",
    "LAWS": "fdmath.verify",
    "load_example": "fdmath.examples",
}

__all__ = ["__version__", *_PUBLIC]


def __getattr__(name):
    if name not in _PUBLIC:
        raise AttributeError(f"module 'fdmath' has no attribute {name!r}")
    module = importlib.import_module(_PUBLIC[name])
    value = module if module.__name__ == f"{__name__}.{name}" else getattr(module, name)
    globals()[name] = value
    return value


def __dir__():
    return sorted({*globals(), *_PUBLIC})
