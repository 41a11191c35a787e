"""Reports of runtime counters: a statement that only prints or logs one goes as a whole."""

from __future__ import annotations

import re

import libcst as cst

from xla2tpu import syntax
from xla2tpu.changes import Builder
from xla2tpu.scopes import Scope
from xla2tpu.sites import Change, Site

_PRINTERS = frozenset(
    {
        "builtins.print",
        "pprint.pprint",
        "sys.stderr.write",
        "sys.stdout.write",
        "torch_xla.core.xla_model.master_print",
        "tqdm.tqdm.write",
    }
)
_LEVELS = frozenset(
    {"critical", "debug", "error", "exception", "fatal", "info", "log", "warn", "warning"}
)
_LOGGER = re.compile(r"log(s|ger|ging)?\d*$", re.IGNORECASE)
_LOGGER_MAKER = re.compile(r"get_?(child|logger)$", re.IGNORECASE)
_STREAMS = frozenset({f"sys.{name}" for name in ("stdout", "stderr", "__stdout__", "__stderr__")})


def metrics_print(site: Site, builder: Builder) -> Change | str:
    """Delete the statement that does nothing but show the report, labels of it included."""
    shown = _with_label(site.expression, builder)
    arg = builder.tree.parent(shown)
    call = builder.tree.parent(arg) if isinstance(arg, cst.Arg) else None
    if not isinstance(call, cst.Call) or not _is_printer(call, site.scope, builder):
        return "no-equivalent"
    if any(a.star or not (a is arg or _is_beside(a, site, builder)) for a in call.args):
        return "no-equivalent"
    if syntax.context_of(builder.tree, call, True) not in ("statement", "discarded"):
        return "no-equivalent"
    return builder.delete(site, call)


def _with_label(node: cst.CSTNode, builder: Builder) -> cst.CSTNode:
    """The expression around the report that adds nothing but text to it."""
    above = builder.tree.parent(node)
    match above:
        case cst.FormattedStringExpression():
            string = builder.tree.parent(above)
            if isinstance(string, cst.FormattedString) and all(
                part is above or isinstance(part, cst.FormattedStringText) for part in string.parts
            ):
                return string
        case cst.BinaryOperation(operator=cst.Add() | cst.Modulo()):
            other = above.left if above.right is node else above.right
            if isinstance(other, cst.SimpleString):
                return _with_label(above, builder)
    return node


def _is_printer(call: cst.Call, scope: Scope, builder: Builder) -> bool:
    if builder.callee(call, scope) in _PRINTERS:
        return True
    if not isinstance(call.func, cst.Attribute) or call.func.attr.value not in _LEVELS:
        return False
    logger = call.func.value
    match logger:
        case cst.Name(value=name) | cst.Attribute(attr=cst.Name(value=name)):
            if _LOGGER.search(name):
                return True
    meaning = builder.names.expression(logger, scope)
    makers = [b.value.func for b in meaning.bindings if isinstance(b.value, cst.Call)]
    return bool(makers) and all(_LOGGER_MAKER.search(builder.tree.source(m)) for m in makers)


def _is_beside(arg: cst.Arg, site: Site, builder: Builder) -> bool:
    """Whether an argument next to the report is nothing that the program wanted to show."""
    if arg.keyword is not None and arg.keyword.value in ("file", "fd"):
        stream = builder.meaning(arg.value, site.scope)
        return stream in _STREAMS or syntax.is_constant(arg.value)
    if arg.keyword is not None:
        return builder.droppable(arg.value, site.scope)
    other = builder.sites.get(id(arg.value))
    if other is not None and other.rule.code == site.rule.code:
        return True
    # A label, or the level that comes first in a call of ``log``.
    level = builder.meaning(arg.value, site.scope) or ""
    return isinstance(arg.value, cst.SimpleString) or level.startswith("logging.")
