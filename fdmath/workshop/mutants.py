"""The mutants of a module: cosmic-ray's small changes of a source, and which of them count here.

Of cosmic-ray's operators only those are taken whose change can survive a test at all: + by − and by ×, say, but not
by <<, which no float takes. A kill rate over the others would be near 1 whatever the tests are worth.
"""

import hashlib
from typing import NamedTuple

from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

BINARY = {
    "Add": ("Sub", "Mul"),
    "Sub": ("Add", "Mul"),
    "Mul": ("Div", "Add"),
    "Div": ("Mul", "Sub"),
    "FloorDiv": ("Div", "Mul"),
    "Mod": ("FloorDiv", "Add"),
    "Pow": ("Mul", "Add"),
    "BitOr": ("BitAnd", "BitXor"),
    "BitAnd": ("BitOr", "BitXor"),
}
COMPARISON = {
    "Eq": ("NotEq",),
    "NotEq": ("Eq",),
    "Lt": ("LtE", "GtE"),
    "LtE": ("Lt", "Gt"),
    "Gt": ("GtE", "LtE"),
    "GtE": ("Gt", "Lt"),
    "Is": ("IsNot",),
    "IsNot": ("Is",),
}
OPERATORS = (
    *(f"ReplaceBinaryOperator_{old}_{new}" for old, others in BINARY.items() for new in others),
    *(f"ReplaceComparisonOperator_{old}_{new}" for old, others in COMPARISON.items() for new in others),
    *(f"ReplaceUnaryOperator_Delete_{old}" for old in ("USub", "Not", "Invert")),
    "AddNot",
    "ReplaceTrueWithFalse",
    "ReplaceFalseWithTrue",
    "ReplaceAndWithOr",
    "ReplaceOrWithAnd",
    "ReplaceBreakWithContinue",
    "ReplaceContinueWithBreak",
    "ExceptionReplacer",
    "NumberReplacer",
    "RemoveDecorator",
    "ZeroIterationForLoop",
)


class Mutant(NamedTuple):
    """One small change: the module's path in the repository, the line, the operator, and which of its places."""

    module: str
    line: int
    operator: str
    place: int


def mutants(module, source):
    """The Mutants of a source, by line."""
    nodes = list(ast_nodes(get_ast(source)))
    found = []
    for name in OPERATORS:
        operator = OperatorProvider()[name]()
        starts = [(start[0], node) for node in nodes for start, _ in operator.mutation_positions(node)]
        found += [Mutant(module, line, name, place) for place, (line, node) in enumerate(starts) if is_code(node)]
    return sorted(found)


def is_code(node):
    """Whether the node is no * or / of a signature, which cosmic-ray takes for an operator."""
    return node.parent is None or node.parent.type not in ("parameters", "lambdef")


def mutated(source, mutant):
    """The source with the mutant's change (text)."""
    return mutate_code(source, OperatorProvider()[mutant.operator](), mutant.place)


def change(source, other):
    """The lines in which two sources differ, as "before → after" with single spaces: what names a mutant to a reader.

    An edit elsewhere in the module does not move it, as it would move a line number.
    """
    old, new = source.splitlines(), other.splitlines()
    while old and new and old[0] == new[0]:
        old, new = old[1:], new[1:]
    while old and new and old[-1] == new[-1]:
        old, new = old[:-1], new[:-1]
    return " → ".join(" ".join(" ".join(lines).split()) for lines in (old, new))


def sample(all_mutants, sources, count, seed):
    """`count` of the mutants, or all where there are fewer: those with the smallest hash of seed and line of code.

    No random generator: a mutant is in the sample or not whatever else a module gains or loses.
    """

    def key(mutant):
        code = sources[mutant.module].splitlines()[mutant.line - 1].strip()
        return hashlib.sha256(f"{seed} {mutant.module} {mutant.operator} {code}".encode()).hexdigest(), mutant

    return sorted(sorted(all_mutants, key=key)[:count])
