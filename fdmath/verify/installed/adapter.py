"""An adapter: how the Subject of something that people have installed is made, tried, and why it cannot be here."""

import functools
import importlib.util
import warnings
from dataclasses import dataclass, field

import numpy as np

from fdmath import _backends as backends
from fdmath.verify.subject import Subject, SubjectError, described, to_numpy

DEVICES = ("cpu", "cuda")
SIXTEEN = ("float16", "bfloat16")
FLUSHED = 2.0**-126
"""Numbers below it may be taken for 0 on a GPU."""
ORDINARY = 64
"""The keys, the width and (but in a decode) the queries of an ordinary call."""


class NoDevice(RuntimeError):
    """What an adapter raises where its package sees no device of the kind that was asked for."""


@dataclass(frozen=True)
class Adapter:
    """One call of an installed package in one role.

    name, role: of the Subject. path: "module:function" beside this module, imported only where `package` is there.
    devices: where it runs. library: what it takes; NumPy's arrays lie on no device, so that a function of them is told
    it as device=, and raises NoDevice where its package sees none. declared: what its documentation says and no output
    can tell (its formats, what it rounds, whether it returns lse): the rest is left to the probe, and FLUSHED is added
    to torch on a GPU. on_cuda: what it declares there besides.
    """

    name: str
    role: str
    path: str
    package: str = "torch"
    devices: tuple = DEVICES
    library: str = "torch"
    declared: dict = field(default_factory=dict)
    on_cuda: dict = field(default_factory=dict)

    def elsewhere(self, device):
        """Why it is not for the device, as a text; an empty one where it is, as far as can be told without a call."""
        if device not in self.devices:
            return f"runs on {' and '.join(self.devices)} alone"
        of_torch = device == "cuda" and self.library == "torch" and not self.not_installed()
        return "torch sees no CUDA device" if of_torch and not backends.load("torch:cuda").is_available() else ""

    def not_installed(self):
        """Which package is not installed, as a text; an empty one where all are. None is imported."""
        needed = (self.package, "torch") if self.library == "torch" else (self.package,)
        return next((f"{name} is not installed" for name in needed if importlib.util.find_spec(name) is None), "")

    def fn(self):
        """The function that the Subject calls, its package imported now."""
        return backends.load(f"fdmath.verify.installed.{self.path}")

    def subject(self, device):
        """The Subject on the device, its conventions the house's until the probe has seen it."""
        fn = self.fn() if self.library == "torch" else functools.partial(self.fn(), device=device)
        return Subject(self.name, self.role, fn, library=self.library, **self.declared_on(device))

    def declared_on(self, device):
        """What its Subject declares on the device."""
        there = self.on_cuda if device == "cuda" else {}
        if self.library != "torch":
            return {**self.declared, **there}
        flushed = {"flushed": FLUSHED} if device == "cuda" else {}
        return {"device": device, **flushed, **self.declared, **there}


def tried(subject):
    """Why the device is not for the subject, as its package says in an `ordinary` call; an empty text where it is.

    A package may be imported without its kernels: SubjectError with the first line of what else the call raises.
    Whatever it returns will do. What breaks in other calls alone gets through, and its laws show what breaks.
    """
    try:
        with backends.quiet(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            returned = subject.watched([]).fn(*ordinary(subject))  # one that writes its operands does run
            for x in returned if isinstance(returned, (tuple, list)) else [returned]:
                if hasattr(x, "dtype"):
                    to_numpy(x)  # what a GPU still works at may raise yet
    except NoDevice as error:
        return str(error)
    except Exception as error:  # a package may break in any way
        raised = described(error).split("\n")[0]
        raise SubjectError(f"cannot run an ordinary call: {raised}") from error
    return ""


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
