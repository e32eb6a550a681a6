"""Mutants: wrong implementations, each a few lines from a right one, which the laws of the verifier must kill."""

from fdmath.verify.mutants import backward_passes, blocks, calls, decodes, merges
from fdmath.verify.mutants.record import Mutant

MUTANTS = {m.name: m for module in (merges, blocks, calls, decodes, backward_passes) for m in module.MUTANTS}
"""The mutants by name."""

NOT_PLANTED = {
    "C11": "num_splits that does nothing gives the right state: `fdmath probe` looks whether it really splits",
    "E7": "no role has a sink",
    "H12": "no role has dropout",
    "I4": "a test that never came to the path: `fdmath probe`, and the cases that strategies draw",
    "I5": "a test too weak to see a term: that named laws kill the others here",
    "I6": "a wrong reference: two oracles that know nothing of each other",
    "I8": "a mutant that is none: each is held to differ from its ancestor",
    "I9": "checks that saw a part of the corruption: every entry is compared",
}
"""The kinds of real faults that no mutant has, each with the reason."""


def ancestors(mutants=None):
    """The right Subjects from which mutants (all without it) were made, each once."""
    chosen = MUTANTS.values() if mutants is None else mutants
    return list({m.right.name: m.right for m in chosen}.values())


__all__ = ["MUTANTS", "NOT_PLANTED", "Mutant", "ancestors"]
