"""Questions about syntax: precedence, purity, contexts."""

from __future__ import annotations

import re

import libcst as cst

from xla2tpu.nodes import children
from xla2tpu.tree import Tree

# Python's precedence, low to high; an expression needs parentheses where it lands in a place
# that asks for more than it has.
LAMBDA, IF, OR, AND, NOT, COMPARE, BIT_OR, SHIFT, SUM, TERM, UNARY, POWER, AWAIT, PRIMARY = range(
    1, 15
)

_BINARY: dict[type, int] = {
    cst.BitOr: BIT_OR, cst.BitXor: BIT_OR, cst.BitAnd: BIT_OR,
    cst.LeftShift: SHIFT, cst.RightShift: SHIFT,
    cst.Add: SUM, cst.Subtract: SUM,
    cst.Multiply: TERM, cst.Divide: TERM, cst.FloorDivide: TERM, cst.Modulo: TERM,
    cst.MatrixMultiply: TERM, cst.Power: POWER,
}  # fmt: skip

_PURE_CALLS = re.compile(r"^_*(is|has|use|uses|using|should)_\w+$")
_PURE_BUILTINS = frozenset(
    {"bool", "callable", "getattr", "hasattr", "int", "isinstance", "issubclass", "len", "str",
     "find_spec", "getenv", "startswith", "get", "lower", "upper"}
)  # fmt: skip


def precedence(node: cst.BaseExpression) -> int:
    """How tightly an expression binds as it stands, its own parentheses counted."""
    if node.lpar:
        return PRIMARY
    match node:
        case cst.Lambda() | cst.NamedExpr() | cst.Yield():
            return LAMBDA
        case cst.IfExp():
            return IF
        case cst.BooleanOperation():
            return AND if isinstance(node.operator, cst.And) else OR
        case cst.UnaryOperation():
            return NOT if isinstance(node.operator, cst.Not) else UNARY
        case cst.Comparison():
            return COMPARE
        case cst.BinaryOperation():
            return _BINARY.get(type(node.operator), BIT_OR)
        case cst.Await():
            return AWAIT
        case cst.Tuple():
            return 0
        case cst.GeneratorExp():
            return 0
        case cst.Integer() | cst.Float():
            return AWAIT  # ``1.real`` is not Python
        case cst.ConcatenatedString():
            return AWAIT
    return PRIMARY


def demanded(tree: Tree, node: cst.BaseExpression) -> int:
    """The precedence that the place of ``node`` asks for; 0 where anything may stand."""
    if node.lpar:
        return 0
    parent = tree.parent(node)
    match parent:
        case cst.Attribute() | cst.Subscript():
            return PRIMARY if parent.value is node else 0
        case cst.Call():
            return PRIMARY if parent.func is node else 0
        case cst.BinaryOperation():
            return _BINARY.get(type(parent.operator), BIT_OR) + 1
        case cst.Comparison() | cst.ComparisonTarget():
            return COMPARE + 1
        case cst.BooleanOperation():
            return (AND if isinstance(parent.operator, cst.And) else OR) + 1
        case cst.UnaryOperation():
            return NOT if isinstance(parent.operator, cst.Not) else UNARY
        case cst.IfExp():
            return IF if parent.orelse is node else OR
        case cst.FormattedStringExpression():
            return OR
        case cst.CompFor() | cst.CompIf():
            return OR
        case cst.Await():
            return PRIMARY
        case cst.StarredElement() | cst.StarredDictElement():
            return BIT_OR
        case cst.Arg():
            return BIT_OR if parent.star else 0
        case cst.Decorator():
            return LAMBDA
    return 0


def is_pure(node: cst.CSTNode) -> bool:
    """Whether leaving an expression out cannot be noticed: no call but of tests and look-ups."""
    match node:
        case cst.Call():
            name = node.func
            last = name.attr.value if isinstance(name, cst.Attribute) else None
            if isinstance(name, cst.Name):
                last = name.value
            if last is None or not (_PURE_CALLS.match(last) or last in _PURE_BUILTINS):
                return False
            if isinstance(name, cst.Attribute) and not is_pure(name.value):
                return False
            return all(is_pure(a.value) for a in node.args)
        case cst.Await() | cst.Yield() | cst.NamedExpr() | cst.BaseComp():
            return False
        case cst.Lambda():
            return True
    return all(is_pure(c) for c in children(node) if not isinstance(c, cst.Annotation))


def is_constant(node: cst.CSTNode) -> bool:
    """Whether an expression is a literal: a number, a string, None, True, False, or of those."""
    match node:
        case cst.Integer() | cst.Float() | cst.SimpleString() | cst.Imaginary():
            return True
        case cst.Name():
            return node.value in ("None", "True", "False")
        case cst.UnaryOperation():
            return is_constant(node.expression)
        case cst.Tuple() | cst.List():
            return all(is_constant(e.value) for e in node.elements)
    return False


def small_statement_alone(tree: Tree, statement: cst.CSTNode) -> bool:
    """Whether a small statement has its line, or its one-line suite, for itself."""
    parent = tree.parent(statement)
    return (
        isinstance(parent, (cst.SimpleStatementLine, cst.SimpleStatementSuite))
        and len(parent.body) == 1
    )


def context_of(tree: Tree, node: cst.BaseExpression, called: bool) -> str:
    """How an expression is used: one of the contexts of the rule format."""
    parent = tree.parent(node)
    match parent:
        case cst.Decorator():
            return "decorator-call" if called else "decorator"
        case cst.WithItem() if parent.item is node:
            return "with-item" if called else "reference"
        case cst.Expr():
            if not called:
                return "reference"
            return "statement" if small_statement_alone(tree, parent) else "discarded"
        case cst.BooleanOperation() if called and parent.right is node:
            if isinstance(tree.parent(parent), cst.Expr):
                return "discarded"
        case cst.IfExp() if called and parent.test is not node:
            if isinstance(tree.parent(parent), cst.Expr):
                return "discarded"
        case cst.Lambda() if parent.body is node and called:
            return "lambda-body"
    return "value" if called else "reference"
