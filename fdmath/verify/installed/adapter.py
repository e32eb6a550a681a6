"""An adapter: how the Subject of something that people have installed is made, and why it cannot be here."""

import importlib.util
import warnings
from dataclasses import dataclass, field

import numpy as np

from fdmath import _backends as backends
from fdmath.verify.subject import Subject, described, to_numpy

DEVICES = ("cpu", "cuda")
SIXTEEN = ("float16", "bfloat16")
FLUSHED = 2.0**-126
"""Numbers below it may be taken for 0 on a GPU."""
OWN = "fdmath"
"""The package that is asked whatever it raises: what of ours cannot run is a fault, and never missing."""
ORDINARY = 64
"""The keys, the width and (but in a decode) the queries of an ordinary call."""


@dataclass(frozen=True)
class Adapter:
    """One call of an installed package in one role.

    name, role: of the Subject. path: "module:function" beside this module, imported only where `package` is there.
    devices: where it runs. library: what it takes. declared: what its documentation says and no output can tell (its
    formats, what it rounds, whether it returns lse): the rest is left to the probe, and FLUSHED is added to torch on
    a GPU.
    """

    name: str
    role: str
    path: str
    package: str = "torch"
    devices: tuple = DEVICES
    library: str = "torch"
    declared: dict = field(default_factory=dict)

    def why_not(self, device):
        """Why it cannot be had on the device, as a text; an empty one where it can.

        What others made must also get through an `ordinary` call, whatever that returns: a package may be imported
        without its kernels. One that breaks in other calls alone can be had, and its laws show what breaks.
        """
        if device not in self.devices:
            return f"runs on {' and '.join(self.devices)} alone"
        if importlib.util.find_spec(self.package) is None:
            return f"{self.package} is not installed"
        if self.library == "torch" and importlib.util.find_spec("torch") is None:
            return "torch is not installed"
        if device == "cuda" and not (backends.load("torch:cuda").is_available()):
            return "there is no CUDA device"
        try:
            self.fn()
        except Exception as error:  # a package may break in any way while it is imported
            return f"could not be imported: {type(error).__name__}: {error}"
        raised = "" if self.package == OWN else self._raised(device)
        return f"cannot run an ordinary call: {raised}" if raised else ""

    def _raised(self, device):
        """What an ordinary call raises on the device, its first line; an empty text where it runs to its end."""
        subject = self.subject(device)
        try:
            with backends.quiet(), warnings.catch_warnings():
                warnings.simplefilter("ignore")
                returned = subject.fn(*ordinary(subject))
                for x in returned if isinstance(returned, (tuple, list)) else [returned]:
                    if hasattr(x, "dtype"):
                        to_numpy(x)  # what a GPU still works at may raise yet
        except Exception as error:  # a package may break in any way
            return described(error).split("\n")[0]
        return ""

    def fn(self):
        """The function that the Subject calls, its package imported now."""
        return backends.load(f"fdmath.verify.installed.{self.path}")

    def subject(self, device):
        """The Subject on the device, its conventions the house's until the probe has seen it."""
        return Subject(self.name, self.role, self.fn(), library=self.library, **self.declared_on(device))

    def declared_on(self, device):
        """What its Subject declares on the device."""
        if self.library != "torch":
            return self.declared
        flushed = {"flushed": FLUSHED} if device == "cuda" else {}
        return {"device": device, **flushed, **self.declared}


def ordinary(subject):
    """The arguments of an ordinary call: one sequence and head, 64 keys, d = dv = 64, all ones, nothing masked.

    A merge joins two parts of 64 rows. The format is the first that the subject declares.
    """
    x = backends.cast(np.ones((1, 1, ORDINARY, ORDINARY)), subject.dtypes[0])
    o, lse = x[0, 0], x[0, 0, :, 0]
    arrays, more = {
        "merge": ([o, lse, o, lse], []),
        "merge_many": ([np.stack([o, o]), np.stack([lse, lse])], []),
        "attention": ([x, x, x], [False]),
        "decode": ([x[:, :, :1], x, x, np.array([ORDINARY])], [1]),
    }[subject.role]
    return [*(subject.send(array) for array in arrays), *more]
