"""What a probe found: traits with their evidence, and the contract that they make."""

import json
import math
import textwrap
from dataclasses import asdict, dataclass

from fdmath._backends import FLOATS
from fdmath.algebra.rounding import unit_roundoff

UNKNOWN = "could not tell"
CALLED_SO = {"commutativity": "commutative in bits", "associativity": "associative in bits",
             "split_invariance": "splits alike in bits", "batch_invariance": "mates alike in bits"}
"""How a trait about bits is headed: that a law of the same name holds within its budget is another matter."""
COARSER = ("p_dtype", "stats_dtype", "scores")
"""Formats: a declaration is contradicted only by a coarser one, since it only ever asks for room."""
DECLARABLE = {
    "log_base": (math.e, 2), "empty": (-math.inf, math.inf), "lse_layout": ("heads_first", "heads_last"),
    "causal": ("bottom_right", "top_left"), "heads": ("interleaved", "tiled"), "in_place": (True, False),
}
"""The conventions that a Subject can declare, and the values that it has for them (scale apart)."""


@dataclass(frozen=True)
class Trait:
    """One finding: its name, the value found (None: could not tell), the evidence in a sentence, what was declared.

    declared is None where nothing was declared of it.
    """

    name: str
    value: object
    evidence: str
    declared: object = None

    @property
    def contradicted(self):
        """Whether the value found is not the one declared."""
        if self.value is None or self.declared is None:
            return False
        if self.name == "in_place":  # a function that may write its operands need not
            return self.value and not self.declared
        if self.name in COARSER:
            return unit(self.value) > unit(self.declared)
        if isinstance(self.value, float) and math.isnan(self.value):
            return True
        return self.value != self.declared

    @property
    def mark(self):
        """✗ for what is contradicted, ? for what could not be told, ✓ for a declaration that fits, · for a finding."""
        return "✗" if self.contradicted else "?" if self.value is None else "·" if self.declared is None else "✓"


def unit(name):
    """u of one of FLOATS, or of "tf32"."""
    return unit_roundoff(name if name in FLOATS else "float16")  # TF32 has float16's eleven bits


@dataclass(frozen=True)
class Contract:
    """What a function's outputs say about it: `traits`, in the order in which they were asked.

    subject: its name. dtype: the format of the inputs that it was asked with, None where no call worked.
    """

    subject: str
    role: str
    dtype: str | None
    traits: tuple

    def __getitem__(self, name):
        """The Trait of a name; KeyError where it was not asked of this role."""
        return {t.name: t for t in self.traits}[name]

    def __contains__(self, name):
        return any(t.name == name for t in self.traits)

    def declarations(self):
        """The conventions found, as a dict for dataclasses.replace(subject, **…); nothing that widens a budget."""
        found = {t.name: t.value for t in self.traits
                 if t.name in DECLARABLE and any(same(t.value, allowed) for allowed in DECLARABLE[t.name])}
        scale = next((t.value for t in self.traits if t.name == "scale"), None)
        if scale == "1/sqrt(d)":
            found["scale"] = None
        elif isinstance(scale, float):
            found["scale"] = scale
        return found

    def contradictions(self):
        """The traits whose declared value the outputs contradict."""
        return tuple(t for t in self.traits if t.contradicted)

    def undecided(self):
        """The traits that could not be told."""
        return tuple(t for t in self.traits if t.value is None)

    def to_json(self):
        """The contract as a JSON text; infinities and NaN are written as texts."""
        rows = [{**asdict(t), "value": _plain(t.value), "declared": _plain(t.declared), "contradicted": t.contradicted}
                for t in self.traits]
        return json.dumps({"schema": 1, "subject": self.subject, "role": self.role, "dtype": self.dtype,
                           "traits": rows}, indent=1)

    def __str__(self):
        names = [CALLED_SO.get(t.name, t.name) for t in self.traits]
        values = [shown(t.value) for t in self.traits]
        wide, wider = (max(map(len, column), default=0) for column in (names, values))
        lines = [f"{self.subject}, {self.role}, asked in {self.dtype or 'no format'}"]
        for t, name, value in zip(self.traits, names, values, strict=True):
            declared = "" if t.declared is None else f"declared {shown(t.declared)}"
            lines.append(f"{t.mark} {name:<{wide}}  {value:<{wider}}  {declared}".rstrip())
            lines += textwrap.wrap(t.evidence, 112, initial_indent="      ", subsequent_indent="      ")
        return "\n".join(lines)


def same(value, other):
    """Whether two values are equal and of one kind (True is not 1)."""
    return isinstance(value, bool) == isinstance(other, bool) and value == other


def shown(value):
    """A value found or declared, in words."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value == math.e:
        return "e"
    return f"{value:.7g}" if isinstance(value, (int, float)) else str(value)


def _plain(value):
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
