"""Mutants: wrong implementations, each a few lines from a right one, which the laws of the verifier must kill."""

from fdmath.verify.mutants import backward_passes, blocks, calls, merges
from fdmath.verify.mutants.record import Mutant

MUTANTS = {m.name: m for module in (merges, blocks, calls, backward_passes) for m in module.MUTANTS}
"""The mutants by name."""


def ancestors(mutants=None):
    """The right Subjects from which mutants (all without it) were made, each once."""
    chosen = MUTANTS.values() if mutants is None else mutants
    return list({m.right.name: m.right for m in chosen}.values())


__all__ = ["MUTANTS", "Mutant", "ancestors"]
