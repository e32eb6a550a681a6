"""What a notebook cell may need beyond the NumPy set, by its tag, and whether it is here."""

import importlib
from pathlib import Path

from fdmath.interop.smollm2 import SMOLLM2
from fdmath.workshop import installed


def gpu():
    """Whether torch sees a CUDA GPU."""
    return installed("torch") and importlib.import_module("torch").cuda.is_available()


def transformers():
    """Whether models of transformers can be made and run."""
    return installed("torch") and installed("transformers")


def model():
    """Whether SmolLM2 is in the cache (`fdmath model fetch`) with all that reads it."""
    if not (transformers() and all(map(installed, ("accelerate", "gguf", "platformdirs", "tqdm")))):
        return False
    return Path(importlib.import_module("fdmath.interop.fetch").cache_folder(), SMOLLM2.file_name).is_file()


NEEDS = {
    "needs-torch": ("torch", lambda: installed("torch")),
    "needs-triton": ("triton", lambda: installed("triton")),
    "needs-gpu": ("a CUDA GPU", gpu),
    "needs-transformers": ("transformers", transformers),
    "needs-model": ("SmolLM2 (fdmath model fetch)", model),
}


def unknown(tags):
    """The tags that ask for something that no machine could have."""
    return [tag for tag in tags if tag.startswith("needs-") and tag not in NEEDS]


def missing(tags):
    """The names of the things that a cell with these tags needs and that are not here."""
    return [name for tag, (name, here) in NEEDS.items() if tag in tags and not here()]
