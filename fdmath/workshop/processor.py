"""Environments in which NumPy, OpenBLAS and torch compute as on plainer processors.

An output that holds only with this machine's vector units is no output to store in a notebook.
"""

import importlib
import os


def vector_units():
    """The names of the vector units above its baseline that NumPy uses on this processor.

    NumPy refuses names that are part of its baseline, or that the processor lacks, so it is asked.
    """
    return importlib.import_module("numpy").show_config(mode="dicts")["SIMD Extensions"].get("found", [])


def is_avx512(unit):
    """Whether NumPy's name of a vector unit stands for a part of AVX-512 (x86-64-v4 included)."""
    return unit.startswith("AVX512") or unit == "X86_V4"


def plainer_processors():
    """The environment variables of each plainer processor, by its name: no AVX-512, then neither AVX2."""
    units, off = vector_units(), os.environ.get("NPY_DISABLE_CPU_FEATURES", "").split()  # stays off in a run of a run
    common = {"OPENBLAS_CORETYPE": "Prescott", "ATEN_CPU_CAPABILITY": "default"}
    return {
        "without AVX-512": {**common, "NPY_DISABLE_CPU_FEATURES": " ".join([*off, *filter(is_avx512, units)])},
        "without AVX2": {**common, "NPY_DISABLE_CPU_FEATURES": " ".join([*off, *units])},
    }
