"""What a notebook cell may need beyond the NumPy set, by its tag, and whether it is here."""

import importlib

from fdmath.workshop import installed


def gpu():
    """Whether torch sees a CUDA GPU."""
    return installed("torch") and importlib.import_module("torch").cuda.is_available()


NEEDS = {
    "needs-torch": ("torch", lambda: installed("torch")),
    "needs-triton": ("triton", lambda: installed("triton")),
    "needs-gpu": ("a CUDA GPU", gpu),
}


def unknown(tags):
    """The tags that ask for something that no machine could have."""
    return [tag for tag in tags if tag.startswith("needs-") and tag not in NEEDS]


def missing(tags):
    """The names of the things that a cell with these tags needs and that are not here."""
    return [name for tag, (name, here) in NEEDS.items() if tag in tags and not here()]
