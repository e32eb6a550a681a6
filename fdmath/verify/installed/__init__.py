"""Subjects of what people have installed: attention, decode and merges of other packages, found and judged as they are.

Nothing is imported until a subject is asked for. What is not for a device is said by `elsewhere`, what is not installed
by `missing`; what is installed (`here`) may still be unable to run, as a call shows (`tried`). An adapter gives a call
the shapes and layouts that its package takes, and declares what no output can tell. Conventions, the base of lse, its
layout, causal alignment, are what the probe finds (`as_found`). What a package is known to do otherwise stands in
expectations.toml (`expected`), a reason a line, and strictly: a law that holds against its line is
a surprise (`surprises`) just as one that breaks without a line, and a line that blames rows without keys is asked
again where there are none (`to_ask_with_keys`).
"""

from dataclasses import replace

from fdmath import _backends as backends
from fdmath.verify.installed.adapter import tried
from fdmath.verify.installed.expectations import asked_with_keys, read, surprises, to_ask_with_keys
from fdmath.verify.installed.table import ADAPTERS


def expected(device="cpu"):
    """The dict (subject, law) → the reason why the law is known to break on the device; ValueError for another."""
    return read(device=device)


def here(device="cpu", name=None):
    """The names of what is installed for the device ("cpu", "cuda"), or the one given; ValueError where it is not.

    Nothing but torch is imported: that it runs is for `tried` to see.
    """
    absent = elsewhere(device) | missing(device)
    if name is None:
        return [n for n in ADAPTERS if n not in absent]
    if name not in ADAPTERS:
        raise ValueError(f"name must be one of {', '.join(ADAPTERS)}; got {name!r}")
    if name in absent:
        raise ValueError(f"{name}: {absent[name]}")
    return [name]


def installed_subject(name, device="cpu"):
    """The Subject of one adapter, its package imported now; ValueError for a name that `here` refuses."""
    here(device, name)
    return ADAPTERS[name].subject(device)


def elsewhere(device="cpu"):
    """The dict name → reason of what is not for the device."""
    return _reasons(lambda adapter: adapter.elsewhere(device))


def missing(device="cpu"):
    """The dict name → reason of what would be for the device and is not installed."""
    return _reasons(lambda adapter: "" if adapter.elsewhere(device) else adapter.not_installed())


def _reasons(why):
    """The dict name → why(adapter) of the adapters where that is no empty text."""
    return {name: reason for name, adapter in ADAPTERS.items() if (reason := why(adapter))}


def as_found(subject, contract=None):
    """The subject with the conventions that its outputs show, by the probe's Contract (made here where none is given).
    """
    contract = backends.load("fdmath.verify.probe:probe")(subject) if contract is None else contract
    return replace(subject, **contract.declarations())


__all__ = ["ADAPTERS", "as_found", "asked_with_keys", "elsewhere", "expected", "here", "installed_subject", "missing",
           "surprises", "to_ask_with_keys", "tried"]
