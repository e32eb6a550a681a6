"""The search for tolerances: small numbers that a result is compared with, and helpers that bring their own.

A tolerance pulled from the air is how wrong code passes. Errors are compared with a bound from
fdmath.algebra.rounding, with an enclosure, or exactly; a number that must stand says why on its line.
Inputs of a test (a list of tiny scores, an argument) are no tolerances and are left alone.
"""

import ast
import io
import re
import tokenize

CLOSE = re.compile(r"\w*allclose|isclose|assert_close|assert_\w*almost\w*|assertAlmostEqual|approx")
NAMED = re.compile(r"([ar]|abs_|rel_)?tol(erance)?s?|eps(ilon)?", re.IGNORECASE)
SMALL = 0.01  # a float literal below this, where a result is compared or a constant named, is taken for a tolerance
DIRECTIVE = re.compile(r"#\s*(noqa|type:|fmt:|pragma)")
ARITHMETIC = (ast.BinOp, ast.UnaryOp, ast.operator, ast.unaryop, ast.Constant)


def is_small(node):
    """Whether the node is a float literal between 0 and SMALL."""
    return isinstance(node, ast.Constant) and isinstance(node.value, float) and 0 < node.value < SMALL


def small_terms(node):
    """The small literals of an expression that reach its value through arithmetic, max, min or abs alone."""
    if is_small(node):
        yield node
    through = isinstance(node, ast.Call) and getattr(node.func, "id", "") in ("max", "min", "abs", "float")
    if through or isinstance(node, ARITHMETIC):
        for child in ast.iter_child_nodes(node):
            yield from small_terms(child)


def weighed(node):
    """The expressions that the node compares, names or makes a default."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, (ast.Assign, ast.AnnAssign, ast.NamedExpr)):
        return [node.value]
    if isinstance(node, ast.arguments):
        return [*node.defaults, *node.kw_defaults]
    return []


def is_helper(node):
    """Whether the node calls a closeness helper or gives a number to something named a tolerance."""
    if isinstance(node, ast.Call):
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        return bool(CLOSE.fullmatch(name))
    if isinstance(node, ast.keyword):
        return bool(NAMED.fullmatch(node.arg or "")) and isinstance(node.value, ast.Constant)
    return False


def suspects(tree):
    """The lines of a syntax tree at which something is weighed against a small number or a helper's own."""
    for node in ast.walk(tree):
        if is_helper(node):
            yield getattr(node, "func", node.value if isinstance(node, ast.keyword) else node).end_lineno
        for expression in weighed(node):
            yield from (term.lineno for term in small_terms(expression))


def explained(source):
    """The lines of a Python source that carry a comment in words."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return {t.start[0] for t in tokens if t.type == tokenize.COMMENT and not DIRECTIVE.match(t.string)}


def unexplained(source):
    """The lines of a Python source that hold a tolerance without its reason, in order."""
    return sorted(set(suspects(ast.parse(source))) - explained(source))


def complaints(root):
    """A complaint for each unexplained tolerance in the package and the tests."""
    for path in sorted(path for folder in ("fdmath", "tests") for path in (root / folder).rglob("*.py")):
        source = path.read_text(encoding="utf-8")
        for number in unexplained(source):
            line = source.splitlines()[number - 1].strip()
            yield f"{path.relative_to(root)}:{number}: a tolerance without its reason: {line}"
