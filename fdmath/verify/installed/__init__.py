"""Subjects of what people have installed: attention, decode and merges of other packages, found and judged as they are.

Nothing is imported until a subject is asked for; what is not installed is said by `missing`, and counted apart. An
adapter gives a call the shapes and layouts that its package takes, and declares what no output can tell. Conventions,
the base of lse, its layout, causal alignment, are what the probe finds (`as_found`). What a package is known to do
otherwise stands in expectations.toml (`expected`), a reason a line, and strictly: a law that holds against its line is
a surprise (`surprises`) just as one that breaks without a line.
"""

from dataclasses import replace

from fdmath import _backends as backends
from fdmath.verify.installed.expectations import read, surprises
from fdmath.verify.installed.table import ADAPTERS


def expected(device="cpu"):
    """The dict (subject, law) → the reason why the law is known to break on the device; ValueError for another."""
    return read(device=device)


def installed_subjects(device="cpu"):
    """The Subjects of all that can be had on the device ("cpu", "cuda"), by the house's conventions."""
    return [adapter.subject(device) for adapter in ADAPTERS.values() if not adapter.why_not(device)]


def installed_subject(name, device="cpu"):
    """The Subject of one adapter; ValueError for a name that is none, or that cannot be had on the device."""
    if name not in ADAPTERS:
        raise ValueError(f"name must be one of {', '.join(ADAPTERS)}; got {name!r}")
    if reason := ADAPTERS[name].why_not(device):
        raise ValueError(f"{name}: {reason}")
    return ADAPTERS[name].subject(device)


def missing(device="cpu"):
    """The dict name → reason of what cannot be had on the device."""
    reasons = {adapter.name: adapter.why_not(device) for adapter in ADAPTERS.values()}
    return {name: reason for name, reason in reasons.items() if reason}


def as_found(subject, contract=None):
    """The subject with the conventions that its outputs show, by the probe's Contract (made here where none is given).
    """
    contract = backends.load("fdmath.verify.probe:probe")(subject) if contract is None else contract
    return replace(subject, **contract.declarations())


__all__ = ["ADAPTERS", "as_found", "expected", "installed_subject", "installed_subjects", "missing", "surprises"]
