"""An adapter: how the Subject of something that people have installed is made, and why it cannot be here."""

import importlib.util
from dataclasses import dataclass, field

from fdmath import _backends as backends
from fdmath.verify.subject import Subject

SIXTEEN = ("float16", "bfloat16")


@dataclass(frozen=True)
class Adapter:
    """One call of an installed package in one role.

    name, role: of the Subject. path: "module:function" beside this module, imported only where `package` is there.
    devices: where it runs. library: what it takes. declared: what its documentation says and no output can tell (its
    formats, what it rounds, whether it returns lse): the rest is left to the probe.
    """

    name: str
    role: str
    path: str
    package: str = "torch"
    devices: tuple = ("cpu", "cuda")
    library: str = "torch"
    declared: dict = field(default_factory=dict)

    def why_not(self, device):
        """Why it cannot be had on the device, as a text; an empty one where it can."""
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
        return ""

    def fn(self):
        """The function that the Subject calls, its package imported now."""
        return backends.load(f"fdmath.verify.installed.{self.path}")

    def subject(self, device):
        """The Subject on the device, its conventions the house's until the probe has seen it."""
        where = {"device": device} if self.library == "torch" else {}
        return Subject(self.name, self.role, self.fn(), library=self.library, **where, **self.declared)
