"""Step closures: the function that was put off until the step marker is called at once."""

from __future__ import annotations

import ast
import re

import libcst as cst

from xla2tpu import syntax
from xla2tpu.changes import Builder
from xla2tpu.nodes import descendants
from xla2tpu.sites import Change, Cut, Site, within
from xla2tpu.template import Piece, Slice

_STRINGS = (cst.SimpleString, cst.FormattedString)
_BREAK = re.compile(r"[ \t]*(\r|\n)")
_COMMENT = re.compile(r"#[^\r\n]*")


def step_closure(site: Site, builder: Builder) -> Change | str:
    """Turn ``add_step_closure(f, args=(a, b))`` into ``f(a, b)``.

    A tuple or list that is written out becomes the list of arguments with its layout and
    comments; any other value is unpacked.
    """
    inside = within(builder.sites.values(), builder.tree, site.expression)
    if any(s.path.endswith("metrics_report") for s in inside):
        return "unsupported-form"  # called directly, it would be a print that goes
    if site.bound is None or "closure" not in site.bound.args:
        return "unsupported-form"
    closure = site.bound.args["closure"].value
    given = site.bound.args.get("args")
    receiver = Slice(closure, _wants_parentheses(closure, builder))
    extra: dict[str, Piece] = {"receiver": receiver}
    if given is None:
        match closure:
            case cst.Lambda(body=cst.Call() as body) if not builder.tree.source(closure.params):
                return builder.replace(site, "{body}", extra={"body": Slice(body)})
        return builder.replace(site, "{receiver}()", extra=extra)
    arguments = given.value
    if not isinstance(arguments, (cst.Tuple, cst.List)):
        return builder.replace(site, "{receiver}(*{args})", extra=extra)
    if builder.tree.span(closure)[1] < builder.tree.span(arguments)[0]:
        return _in_place(site, builder, receiver, arguments)
    slots = []
    for index, element in enumerate(arguments.elements):
        star = "*" if isinstance(element, cst.StarredElement) else ""
        extra[f"item{index}"] = Slice(element.value)
        slots.append(f"{star}{{item{index}}}")
    return builder.replace(site, f"{{receiver}}({', '.join(slots)})", extra=extra)


def _in_place(
    site: Site, builder: Builder, receiver: Slice, arguments: cst.Tuple | cst.List
) -> Change:
    """Take away what stands around the function and around the sequence of its arguments."""
    tree = builder.tree
    start, end = tree.span(site.expression)
    first, last = tree.span(receiver.node)
    opening, closing = _brackets(builder, arguments)
    # Comments between the two go behind the parenthesis that opens the new call.
    between = "".join(f"  {c}" for c in _COMMENT.findall(tree.text[last:opening]))
    if between and not _BREAK.match(tree.text, opening + 1):
        between += f"{builder.newline}{builder.line_indent(start)}{builder.unit}"
    before, after = ("(", ")") if receiver.parenthesised else ("", "")
    cuts = [
        Cut(start, first, (before,)),
        Cut(last, opening + 1, (f"{after}({between}",)),
        *_dedented(builder, start, opening, closing, arguments),
        Cut(_content_end(builder, arguments, closing), end, (")",)),
    ]
    kept = [receiver.node, *(e.value for e in arguments.elements)]
    return Change(cuts=cuts, replaced=[site.expression], kept=kept)


def _brackets(builder: Builder, arguments: cst.Tuple | cst.List) -> tuple[int, int]:
    """Where the innermost brackets of the sequence open and close."""
    if isinstance(arguments, cst.List):
        left, right = arguments.lbracket, arguments.rbracket
        return builder.tree.full_span(left)[0], builder.tree.full_span(right)[1] - 1
    left_paren, right_paren = arguments.lpar[-1], arguments.rpar[0]
    return builder.tree.full_span(left_paren)[0], builder.tree.full_span(right_paren)[1] - 1


def _content_end(builder: Builder, arguments: cst.Tuple | cst.List, closing: int) -> int:
    """Where the text ends that stays; the comma of a sequence of one does not."""
    if len(arguments.elements) == 1:
        end = builder.tree.span(arguments.elements[0].value)[1]
        if re.fullmatch(r"[ \t]*,?[ \t]*", builder.tree.text[end:closing]):
            return end
    return closing


def _dedented(
    builder: Builder, start: int, opening: int, closing: int, arguments: cst.CSTNode
) -> list[Cut]:
    """The lines of the arguments, as much less indented as their bracket moves to the left."""
    text, span = builder.tree.text, builder.tree.span
    margin, inner = builder.line_indent(start), builder.line_indent(opening)
    breaks = [m.end() for m in re.compile(r"\r\n|\r|\n").finditer(text, opening, closing)]
    if inner == margin or not inner.startswith(margin) or not breaks:
        return []
    lines = [at for at in breaks if text[at:].lstrip(" \t")[:1] not in ("\r", "\n")]
    if not all(text.startswith(inner, at) for at in lines):
        return []
    strings = [span(n) for n in descendants(arguments) if isinstance(n, _STRINGS)]
    if any(first < at < last for first, last in strings for at in breaks):
        return []
    return [Cut(at + len(margin), at + len(inner), ("",)) for at in lines]


def _wants_parentheses(closure: cst.BaseExpression, builder: Builder) -> bool:
    """Whether the function has to stand in parentheses to be called."""
    if closure.lpar:
        return False
    if syntax.precedence(closure) < syntax.PRIMARY:
        return True
    try:
        # A line break that the brackets of the outer call allowed.
        ast.parse(builder.tree.source(closure), mode="eval")
    except SyntaxError:
        return True
    return False
