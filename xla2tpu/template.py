"""Replacement templates: Python source with placeholders, rendered to pieces of text and source.

A piece is a string or a `Slice` of the original file, so that fixes inside an argument are
kept and unchanged layout is not written again.
"""

from __future__ import annotations

import ast
import functools
import io
import re
import tokenize
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import libcst as cst

from xla2tpu import syntax

_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\*{0,2})(\w+)(?:=([^{}]*))?\}")
_MARK = "xla2tpu_slot_"


@dataclass(frozen=True, slots=True)
class Slice:
    """The source of a node, with fixes inside it applied; ``star`` stands before it."""

    node: cst.CSTNode
    parenthesised: bool = False
    star: str = ""


Piece = str | Slice


@dataclass(frozen=True, slots=True)
class Slot:
    """One placeholder: its parameter, stars, default text, and what its place asks for.

    ``optional`` holds the span of the whole argument of a call in the template, so that it can
    be left out where the parameter is not given.
    """

    name: str
    stars: str
    default: str | None
    precedence: int
    bracketed: bool
    start: int
    end: int
    optional: tuple[int, int] | None


@dataclass(frozen=True, slots=True)
class Template:
    """A parsed template: its marked-up text, slots in order, own precedence and free names."""

    text: str
    slots: tuple[Slot, ...]
    precedence: int
    free: tuple[tuple[str, int], ...]


@functools.cache
def compile_template(source: str, block: bool = False) -> Template:
    """Parse a template; ``block`` for statements. Raises SyntaxError or ValueError."""
    text = ""
    marks: list[tuple[str, str, str | None]] = []
    at = 0
    for match in _PLACEHOLDER.finditer(source):
        text += source[at : match.start()]
        at = match.end()
        if match[0] in ("{{", "}}"):
            text += match[0][0]
            continue
        name = f"{_MARK}{len(marks)}"
        marks.append((match[2], match[1], match[3]))
        text += {"": name, "*": f"*{name}", "**": f"**{name}"}[match[1]]
    text += source[at:]
    if "{" in re.sub(r"\{[^{}]*\}", "", source.replace("{{", "").replace("}}", "")):
        raise ValueError(f"unbalanced braces in the template {source!r}")
    tree = ast.parse(text, mode="exec" if block else "eval")
    offsets = _line_offsets(text)
    slots: dict[int, Slot] = {}
    free: list[tuple[str, int]] = []
    parents = {id(c): p for p in ast.walk(tree) for c in ast.iter_child_nodes(p)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Name):
            continue
        start = offsets[node.lineno - 1] + node.col_offset
        if not node.id.startswith(_MARK):
            free.append((node.id, start))
            continue
        index = int(node.id.removeprefix(_MARK))
        name, stars, default = marks[index]
        start -= len(stars)
        end = start + len(stars) + len(node.id)
        slots[index] = Slot(
            name, stars, default, _asked(node, parents), _bracketed(text, start),
            start, end, _argument(node, parents, offsets, text),
        )  # fmt: skip
    top = 0
    if isinstance(tree, ast.Expression):
        top = _precedence(tree.body)
    return Template(text, tuple(slots[i] for i in sorted(slots)), top, tuple(free))


def _line_offsets(text: str) -> list[int]:
    offsets = [0]
    for line in text.split("\n"):
        offsets.append(offsets[-1] + len(line) + 1)
    return offsets


def _bracketed(text: str, at: int) -> bool:
    before = text[:at]
    return sum(before.count(c) for c in "([{") > sum(before.count(c) for c in ")]}")


def _asked(node: ast.AST, parents: Mapping[int, ast.AST]) -> int:
    parent = parents[id(node)]
    match parent:
        case ast.Attribute():
            return syntax.PRIMARY
        case ast.Subscript():
            return syntax.PRIMARY if parent.value is node else 0
        case ast.Call():
            return syntax.PRIMARY if parent.func is node else syntax.LAMBDA
        case ast.keyword():
            return syntax.LAMBDA
        case ast.BinOp() | ast.UnaryOp() if not (
            isinstance(parent, ast.UnaryOp) and isinstance(parent.op, ast.Not)
        ):
            return syntax.POWER
        case ast.UnaryOp():
            return syntax.NOT
        case ast.Compare():
            return syntax.COMPARE + 1
        case ast.BoolOp():
            return syntax.AND + 1
        case ast.IfExp():
            return syntax.OR
        case ast.Starred():
            return syntax.BIT_OR
        case ast.FormattedValue():
            return syntax.OR
        case ast.Await():
            return syntax.PRIMARY
        case ast.comprehension():
            return syntax.OR
    return 0


def _precedence(node: ast.AST) -> int:
    match node:
        case ast.Lambda():
            return syntax.LAMBDA
        case ast.IfExp():
            return syntax.IF
        case ast.BoolOp():
            return syntax.AND if isinstance(node.op, ast.And) else syntax.OR
        case ast.UnaryOp():
            return syntax.NOT if isinstance(node.op, ast.Not) else syntax.UNARY
        case ast.Compare():
            return syntax.COMPARE
        case ast.Constant() if isinstance(node.value, (int, float)):
            return syntax.AWAIT  # ``1.real`` is not Python
        case ast.BinOp():
            terms = (ast.Mult, ast.Div, ast.FloorDiv, ast.Mod, ast.MatMult)
            if isinstance(node.op, terms):
                return syntax.TERM
            return syntax.SUM if isinstance(node.op, (ast.Add, ast.Sub)) else syntax.BIT_OR
    return syntax.PRIMARY


def _argument(
    node: ast.AST, parents: Mapping[int, ast.AST], offsets: list[int], text: str
) -> tuple[int, int] | None:
    """The span of the argument that consists of the slot alone, else None."""
    parent = parents[id(node)]
    start = offsets[node.lineno - 1] + node.col_offset  # type: ignore[attr-defined]
    end = start + len(node.id)  # type: ignore[attr-defined]
    if isinstance(parent, ast.keyword):
        begin = offsets[parent.lineno - 1] + parent.col_offset
        return begin, end
    if isinstance(parent, ast.Starred):
        return (start - 1, end) if isinstance(parents[id(parent)], ast.Call) else None
    if isinstance(parent, ast.Call) and parent.func is not node:
        return start, end
    return None


def render(
    template: Template,
    args: Mapping[str, cst.Arg],
    variadic: Sequence[cst.Arg],
    keywords: Sequence[cst.Arg],
    rename: Callable[[str], str],
    source: Callable[[cst.CSTNode], str],
    quote: str,
    extra: Mapping[str, Piece] | None = None,
) -> list[Piece] | str:
    """Fill a template; the pieces, or the name of a parameter that has no text.

    ``rename`` maps the template's free names to those of the file, ``quote`` is the quotation
    mark that new strings take, ``extra`` gives pieces for further placeholders.
    """
    pieces: list[Piece] = []
    names = {at: (name, rename(name)) for name, at in template.free}
    dropped: list[tuple[int, int]] = []
    fills: dict[int, list[Piece]] = {}
    for index, slot in enumerate(template.slots):
        fill = _fill(slot, args, variadic, keywords, source, extra or {})
        if fill is None:
            if slot.optional is None:
                return slot.name
            dropped.append(_with_comma(template.text, slot.optional))
        else:
            fills[index] = fill
    at = 0
    cuts: list[tuple[int, int, list[Piece]]] = [(a, b, []) for a, b in dropped]
    for index, fill in fills.items():
        slot = template.slots[index]
        cuts.append((slot.start, slot.end, fill))
    for start, (name, new) in names.items():
        if name != new:
            cuts.append((start, start + len(name), [new]))
    for start, end, replacement in sorted(cuts, key=lambda c: c[:2]):
        # Arguments left out side by side may both take the comma between them.
        if end <= at:
            continue
        start = max(start, at)
        pieces.append(_quoted(template.text[at:start], quote))
        pieces.extend(replacement)
        at = end
    pieces.append(_quoted(template.text[at:], quote))
    return _joined(pieces)


def _quoted(text: str, quote: str) -> str:
    return text if quote == '"' or "'" in text else text.replace('"', quote)


def _joined(pieces: list[Piece]) -> list[Piece]:
    out: list[Piece] = []
    for piece in pieces:
        if isinstance(piece, str) and out and isinstance(out[-1], str):
            out[-1] += piece
        elif piece != "":
            out.append(piece)
    return out


def _with_comma(text: str, span: tuple[int, int]) -> tuple[int, int]:
    """The argument's span with the comma that goes along when it is left out."""
    start, end = span
    before = re.search(r",\s*$", text[:start])
    if before:
        return before.start(), end
    after = re.match(r"\s*,\s*", text[end:])
    return start, end + (after.end() if after else 0)


def _fill(
    slot: Slot,
    args: Mapping[str, cst.Arg],
    variadic: Sequence[cst.Arg],
    keywords: Sequence[cst.Arg],
    source: Callable[[cst.CSTNode], str],
    extra: Mapping[str, Piece],
) -> list[Piece] | None:
    if slot.stars:
        many = variadic if slot.stars == "*" else keywords
        if not many:
            return None
        pieces: list[Piece] = []
        for arg in many:
            if pieces:
                pieces.append(", ")
            if arg.keyword is not None:
                pieces.append(f"{arg.keyword.value}=")
            pieces.append(
                Slice(arg.value, _needs(arg.value, syntax.LAMBDA, True, source), arg.star)
            )
        return pieces
    if slot.name in extra:
        return [extra[slot.name]]
    arg_ = args.get(slot.name)
    if arg_ is None:
        return [slot.default] if slot.default is not None else None
    value = arg_.value
    return [Slice(value, _needs(value, slot.precedence, slot.bracketed, source))]


def _needs(
    value: cst.BaseExpression, asked: int, bracketed: bool, source: Callable[[cst.CSTNode], str]
) -> bool:
    """Whether an argument needs parentheses in the slot that it goes to."""
    if value.lpar:
        return False
    if isinstance(value, cst.Lambda) and asked <= syntax.LAMBDA:
        return False
    if syntax.precedence(value) < asked or (isinstance(value, cst.NamedExpr) and not bracketed):
        return True
    # Outside brackets, an expression over several lines needs its own.
    return not bracketed and _breaks_outside_brackets(source(value))


def _breaks_outside_brackets(text: str) -> bool:
    if "\n" not in text:
        return False
    depth = 0
    try:
        tokens = list(tokenize.generate_tokens(io.StringIO(f"({text})").readline))
    except (tokenize.TokenError, SyntaxError):
        return True
    for token in tokens:
        if token.type == tokenize.OP:
            depth += (token.string in "([{") - (token.string in ")]}")
        elif token.type == tokenize.NL and depth <= 1:
            return True
    return False
