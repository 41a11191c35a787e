"""Builds the change of a site: text for its expression or statement, from the rule's case.

Transforms get the same `Builder`; what they return is a `Change`, or a reason.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

import libcst as cst

from xla2tpu import syntax
from xla2tpu.model import Settings
from xla2tpu.names import Names
from xla2tpu.naming import Import, Naming
from xla2tpu.nodes import descendants
from xla2tpu.rulemodel import Case, RuleSet
from xla2tpu.scopes import Scope
from xla2tpu.sites import Change, Cut, Site
from xla2tpu.template import Piece, Slice, Template, compile_template, render
from xla2tpu.tree import Tree

# Stands for the indentation of the statement's own line, which is known when edits are made.
INDENT = "\x00"

_SEPARATOR = re.compile(r"\s*,(?:[ \t\f]|#[^\r\n]*|\\?(?:\r\n|\r|\n))*")
_TAIL = re.compile(r"(,?)((?:\s|#[^\r\n]*(?:\r\n|\r|\n))*)\)\Z")
_OPENING = re.compile(r"\(((?:\s|#[^\r\n]*(?:\r\n|\r|\n))*)(?:\w+\s*=\s*)?\Z")
_REMARK = re.compile(r",([ \t]*#[^\r\n]*)((?:\r\n|\r|\n)[ \t]*)")
_NEWLINE = re.compile(r"[\r\n]")
_BROKEN = re.compile(r"[\w.]+\(([ \t]*(?:#[^\r\n]*)?(?:\r\n|\r|\n)[ \t]*)")
_ABOVE = re.compile(r",[^\r\n]*[\r\n]\s*((?:#[^\r\n]*(?:\r\n|\r|\n)[ \t]*)+)(?:\w+\s*=\s*)?\Z")
_OF_LAST = re.compile(r"[ \t]*#[^\r\n]*")
_COMMENT_OR_STRING = re.compile(
    r"""#[^\r\n]*|(\"{3}|'{3})(?:\\.|.)*?\1|(["'])(?:\\.|[^\\\r\n])*?\2""", re.DOTALL
)
_EQUAL = re.compile(r"((?:(?! (?:==|and|or|if|not) ).)*) == ([\w\"']+)")

_QUERIES = frozenset(
    (
        "torch.accelerator.current_accelerator",
        "torch.accelerator.current_device_index",
        "torch.accelerator.device_count",
        "torch.device",
        "torch.distributed.get_rank",
        "torch.distributed.get_world_size",
    )
)


# The longest line that a replacement may make where there is a choice.
_LINE = 100


class Builder:
    """Makes changes for one file. All positions are in characters of the original text."""

    def __init__(
        self,
        tree: Tree,
        names: Names,
        rules: RuleSet,
        naming: Naming,
        settings: Settings,
        newline: str,
    ) -> None:
        self.tree, self.names, self.rules = tree, names, rules
        self.naming, self.settings, self.newline = naming, settings, newline
        self.unit = tree.module.default_indent
        self.quote = "'" if tree.text.count("'") > tree.text.count('"') else '"'
        self.helper_uses: dict[str, int] = {}
        self.sites: dict[int, Site] = {}
        # The places that the user wants left as they are.
        self.suppressed: frozenset[Site] = frozenset()
        # What is worked out once for the whole file, by what works it out.
        self.memory: dict[type, object] = {}

    # -- what transforms and cases ask for --------------------------------------------------

    def replace(
        self,
        site: Site,
        template: str,
        imports: Iterable[str] = (),
        helpers: Iterable[str] = (),
        node: cst.BaseExpression | None = None,
        extra: Mapping[str, Piece] | None = None,
    ) -> Change | str:
        """Put an expression in place of the site's (or of ``node``)."""
        expression = node if node is not None else site.expression
        assert isinstance(expression, cst.BaseExpression)
        change = Change(replaced=[expression])
        # A helper would bring its imports to the top of the file.
        room = None if self._is_lazy(site) else self._room(expression)
        source, imports = self._inlined(template, helpers, imports, change, room)
        compiled = compile_template(source)
        quote = self._quote_at(expression)
        if quote is None and ('"' in source or "'" in source):
            return "unsupported-form"
        pieces = self._render(site, compiled, imports, change, quote or '"', extra)
        if isinstance(pieces, str):
            return "unsupported-form"
        precedence = _precedence(pieces, compiled)
        if precedence < syntax.demanded(self.tree, expression) and not expression.lpar:
            pieces = ["(", *pieces, ")"]
        start, end = self.tree.span(expression)
        if expression.lpar:
            # Keep the parentheses that stand around the expression already.
            start = self.tree.full_span(expression.lpar[-1])[1]
            end = self.tree.full_span(expression.rpar[0])[0]
        cuts = self.cuts(pieces, start, end, compiled.text)
        reason = self._lost(pieces, cuts, expression, site.scope)
        if reason is not None:
            return reason
        change.cuts.extend(cuts)
        change.kept.extend(p.node for p in pieces if isinstance(p, Slice))
        return change

    def statement(
        self,
        site: Site,
        template: str,
        imports: Iterable[str] = (),
        helpers: Iterable[str] = (),
        extra: Mapping[str, Piece] | None = None,
    ) -> Change | str:
        """Put statements in place of the site's own.

        It must stand alone on its line or suite, or the new ones must fit on the line.
        """
        expression = site.expression
        statement = self.tree.statement(expression)
        alone = syntax.small_statement_alone(self.tree, statement)
        whole = isinstance(statement, cst.Expr) and statement.value is expression
        if not alone and (not whole or "\n" in template.strip("\n")):
            return "unsupported-form"
        change = Change(replaced=[expression])
        source, imports = self._inlined(template.strip("\n"), helpers, imports, change)
        compiled = compile_template(source, block=True)
        pieces = self._render(site, compiled, imports, change, self.quote, extra)
        if isinstance(pieces, str):
            return "unsupported-form"
        start, end = self.tree.span(statement)
        suite = self.tree.parent(statement)
        lead = ""
        if isinstance(suite, cst.SimpleStatementSuite) and alone:
            start = self.tree.full_span(suite)[0]
            lead = f"\n{' ' * 4}"
        lines = [self._indented(p) if isinstance(p, str) else p for p in pieces]
        if lead:
            lines = [
                p.replace(INDENT, INDENT + self.unit) if isinstance(p, str) else p for p in lines
            ]
            lines.insert(0, self.newline + INDENT + self.unit)
            if len(lines) > 1 and isinstance(lines[1], str):
                lines[0:2] = [f"{lines[0]}{lines[1]}"]
        cuts = self.cuts(lines, start, end, compiled.text)
        reason = self._lost(lines, cuts, expression, site.scope)
        if reason is not None:
            return reason
        change.cuts.extend(cuts)
        change.kept.extend(p.node for p in pieces if isinstance(p, Slice))
        if "\n" in template.strip("\n") or lead:
            change.deeper.append(statement)
        return change

    def delete(self, site: Site, node: cst.CSTNode | None = None) -> Change | str:
        """Take the statement out that consists of the site (or of ``node``)."""
        target = node if node is not None else site.expression
        statement = self.tree.statement(target)
        if isinstance(statement, cst.Expr) and self._is_all_of(statement, target):
            return Change(deletes=[statement], replaced=[target])
        return self._discard(statement, target)

    def _is_all_of(self, statement: cst.Expr, target: cst.CSTNode) -> bool:
        """Whether nothing but the target and tests without effect would be lost."""
        value: cst.CSTNode = statement.value
        while value is not target:
            match value:
                case cst.BooleanOperation() if syntax.is_pure(value.left):
                    value = value.right
                case cst.IfExp() if syntax.is_pure(value.test):
                    other = value.orelse if self.tree.is_within(target, value.body) else value.body
                    if not syntax.is_pure(other):
                        return False
                    value = value.body if other is value.orelse else value.orelse
                case _:
                    return False
        return True

    def _discard(self, statement: cst.CSTNode, target: cst.CSTNode) -> Change | str:
        parent = self.tree.parent(target)
        if isinstance(statement, cst.Expr) and isinstance(parent, cst.BooleanOperation):
            # ``f() and mark_step()``: what stays is ``f()``.
            start, end = self.tree.span(parent)
            pieces: tuple[Piece, ...] = (Slice(parent.left),)
            return Change(
                cuts=self.cuts(list(pieces), start, end, ""), replaced=[parent], kept=[parent.left]
            )
        if isinstance(target, cst.BaseExpression):
            start, end = self.tree.span(target)
            return Change(cuts=[Cut(start, end, ("None",))], replaced=[target])
        return "unsupported-form"

    def unwrap(self, site: Site) -> Change | str:
        """Take a decorator or a with-item out."""
        parent = self.tree.parent(site.expression)
        if isinstance(parent, cst.Decorator):
            return Change(decorators=[parent], replaced=[site.expression])
        if isinstance(parent, cst.WithItem):
            block = self.tree.parent(parent)
            if parent.asname is None and isinstance(block, cst.With) and block.asynchronous is None:
                return Change(unwraps=[(block, parent)], replaced=[site.expression])
        return "unsupported-form"

    # -- questions ---------------------------------------------------------------------------

    def meaning(self, node: cst.CSTNode | None, scope: Scope) -> str | None:
        """The dotted path that an expression means, None where it is not known for certain."""
        found = self.names.expression(node, scope)
        return None if found.ambiguous else found.path

    def callee(self, call: cst.Call, scope: Scope) -> str | None:
        """The dotted path of what is called; ``builtins.print`` and the like included."""
        return self.meaning(call.func, scope)

    def droppable(self, node: cst.CSTNode, scope: Scope) -> bool:
        """Whether leaving an argument out loses nothing: pure, or a query of torch_xla."""
        if syntax.is_pure(node):
            return True
        for below in descendants(node):
            if isinstance(below, (cst.Await, cst.Yield, cst.NamedExpr)):
                return False
            if isinstance(below, cst.Call):
                site = self.sites.get(id(below))
                queried = site is not None and site.rule.code.startswith(("XLA2", "XLA3"))
                # What such a query is rewritten to, by a run that took only the safe fixes.
                queried = queried or self.callee(below, scope) in _QUERIES
                if not queried and not syntax.is_pure(below.with_changes(args=())):
                    return False
        return True

    def need(self, change: Change, text: str, scope: Scope) -> str:
        """Note that a change needs an import; returns the name to use."""
        needed = Import.parse(text)
        name, statement = self.naming.local(needed, scope)
        if statement is not None:
            change.needs.append(statement)
        change.uses.add(name.split(".")[0])
        return name

    def use_helper(self, change: Change, name: str) -> str:
        """Note that a change calls a helper; returns its name in the file."""
        helper = self.rules.helpers[name]
        local = self.naming.helper(helper)
        if name not in change.helpers:
            change.helpers.append(name)
        change.uses.add(local)
        return local

    # -- text ----------------------------------------------------------------------------------

    def _inlined(
        self,
        template: str,
        helpers: Iterable[str],
        imports: Iterable[str],
        change: Change,
        room: int | None = _LINE,
    ) -> tuple[str, list[str]]:
        """The template with the inline forms of helpers that are called once in the file.

        And where these leave the line as long as lines may be: ``room`` is what is left of it,
        None where the inline form has to be taken.
        """
        needed = list(imports)
        for name in helpers:
            helper = self.rules.helpers[name]
            call = f"{name}()"
            local = self.naming.helper(helper)
            alone = self.helper_uses.get(name, 0) <= 1 and not self.naming.present(helper, local)
            inline = helper.inline
            fits = room is None or (alone and len(inline or "") <= room)
            if inline is not None and fits and template.count(call) == 1:
                template = inline if template == call else template.replace(call, f"({inline})")
                needed.extend(helper.imports)
            else:
                self.use_helper(change, name)
        return template, needed

    def _is_lazy(self, site: Site) -> bool:
        """Whether torch_xla is imported in the function alone, in a file without torch."""
        if site.meaning is None or "torch" in self.tree.root.bindings:
            return False
        return any(
            b.kind in ("import", "from") and b.scope.kind == "function"
            for b in site.meaning.bindings
        )

    def _room(self, node: cst.CSTNode) -> int:
        """How long the text in place of a node may be until its line gets too long."""
        start, end = self.tree.span(node)
        text = self.tree.text
        before = start - (max(text.rfind("\n", 0, start), text.rfind("\r", 0, start)) + 1)
        after = re.match(r"[^\r\n]*", text[end : end + _LINE])
        return _LINE - before - (len(after[0]) if after else 0)

    def _render(
        self,
        site: Site,
        compiled: Template,
        imports: Iterable[str],
        change: Change,
        quote: str,
        extra: Mapping[str, Piece] | None,
    ) -> list[Piece] | str:
        table = {Import.parse(text).name: text for text in imports}

        def rename(name: str) -> str:
            if name in table:
                return self.need(change, table[name], site.scope)
            if name in change.helpers:
                return self.naming.helper(self.rules.helpers[name])
            return name

        bound = site.bound
        pieces = {"call": Slice(site.expression), **(extra or {})}
        return render(
            compiled,
            bound.args if bound else {},
            bound.variadic if bound else (),
            bound.keywords if bound else (),
            rename,
            self.tree.source,
            quote,
            pieces,
        )

    def _indented(self, text: str) -> str:
        """Template text with the file's newline and indentation."""
        lines = text.split("\n")
        out = [lines[0]]
        for line in lines[1:]:
            body = line.lstrip(" ")
            level = (len(line) - len(body)) // 4
            out.append(INDENT + self.unit * level + body)
        return self.newline.join(out)

    def _quote_at(self, node: cst.CSTNode) -> str | None:
        """The quotation mark that new strings take; inside an f-string the one it does not use.

        None where neither can be used before Python 3.12.
        """
        free = {'"', "'"}
        for above in self.tree.ancestors(node):
            if isinstance(above, cst.FormattedString):
                free.discard(above.quote[0])
            elif isinstance(above, cst.SimpleString):
                return None
        if not free:
            return None
        return self.quote if self.quote in free else free.pop()

    def cuts(self, pieces: list[Piece], start: int, end: int, text: str) -> list[Cut]:
        """The cuts that turn the source between ``start`` and ``end`` into the pieces.

        Where the kept parts stand in the order of the source, only what lies between them is
        cut, and the layout of argument lists is kept.
        """
        plain: list[Piece] = []
        for piece in pieces:
            before, after = _around(piece)
            plain.extend(p for p in (before, piece, after) if p != "")
        slices = [(i, p) for i, p in enumerate(plain) if isinstance(p, Slice)]
        spans = [self.tree.span(p.node) for _, p in slices]
        inside = all(start <= a and b <= end for a, b in spans)
        ordered = all(spans[i][1] <= spans[i + 1][0] for i in range(len(spans) - 1))
        if not slices or not inside or not ordered:
            return [Cut(start, end, tuple(_whole(pieces)))]
        gaps: list[tuple[int, int, str]] = []
        at, literal = start, ""
        for piece in plain:
            if isinstance(piece, str):
                literal += piece
            else:
                a, b = self.tree.span(piece.node)
                gaps.append((at, a, literal))
                at, literal = b, ""
        gaps.append((at, end, literal))
        cuts: list[Cut] = []
        for index, (a, b, new) in enumerate(gaps):
            old = self.tree.text[a:b]
            fitted = self._fitted(old, new, index == 0, index == len(gaps) - 1, a)
            if fitted != old:
                cuts.append(_trimmed(a, b, old, fitted))
        return cuts

    def _lost(
        self, pieces: Iterable[Piece], cuts: Sequence[Cut], expression: cst.CSTNode, scope: Scope
    ) -> str | None:
        """Why arguments cannot stand as the pieces have them: their calls, or their comments."""
        kept = [p.node for p in pieces if isinstance(p, Slice)]
        spans = [self.tree.span(node) for node in kept]
        for index, node in enumerate(kept):
            for other, span in zip(kept[index + 1 :], spans[index + 1 :], strict=True):
                earlier = span[1] <= spans[index][0]
                if earlier and not any(self.droppable(n, scope) for n in (node, other)):
                    return "argument-side-effects"
        written = "".join(p for cut in cuts for p in cut.pieces if isinstance(p, str))
        for cut in cuts:
            for at, comment in _comments(self.tree.text, cut.start, cut.end):
                inside = any(a <= at < b for a, b in spans)
                if not inside and comment not in written and self._is_kept(at, expression, spans):
                    return "comments"
        return None

    def _is_kept(self, at: int, expression: cst.CSTNode, kept: Sequence[tuple[int, int]]) -> bool:
        """Whether a comment belongs to one of the arguments that stay.

        It belongs to the last one that ends on its line, else to the next one.
        """
        args = expression.args if isinstance(expression, cst.Call) else ()
        spans = [self.tree.span(arg.value) for arg in args]
        line = self.tree.text.rfind("\n", 0, at) + 1
        owners = [s for s in spans if line < s[1] <= at] or [s for s in spans if s[1] > at][:1]
        return bool(kept) and (not owners or owners[-1] in kept)

    def _fitted(self, old: str, new: str, first: bool, last: bool, at: int) -> str:
        """The new text between two kept parts, in the layout of the old."""
        if first:
            opening = _OPENING.search(old)
            called = re.search(r"\((\w+=)?\Z", new)
            if opening and called and opening[1]:
                return new[: called.start() + 1] + opening[1] + (called[1] or "")
            # The first arguments go: what stays begins on the line where they began.
            broken = _BROKEN.match(old)
            if broken and called and not opening:
                above = _ABOVE.search(old)  # comments on lines of their own, above what stays
                start = broken[1] + (above[1] if above else "")
                return new[: called.start() + 1] + start + (called[1] or "")
            return new
        if last and new.endswith(")"):
            tail = _TAIL.search(old)
            if tail is None:
                return new
            comma, rest = tail[1], tail[2]
            if _NEWLINE.search(old[: tail.start()]):
                rest = _OF_LAST.sub("", rest, count=1) if _OF_LAST.match(rest) else rest
            remark = _REMARK.match(old) if new == ")" else None
            if remark and len(remark[0]) < len(old) - len(tail[0]):
                # The comment of the last argument that stays.
                end = rest if _NEWLINE.search(rest) else remark[2]
                return f",{remark[1]}{end})"
            if new == ")":
                return f"{comma}{rest})"
            if new.startswith(", ") and ("\n" in tail[2] or "\r" in tail[2]):
                line = self.line_indent(at)
                added = re.sub(r"\)\Z", "", new[2:])
                return f",{self.newline}{line}{added}{tail[0]}"
            return new
        keyword = re.fullmatch(r", (\w+=)?", new)
        if keyword:
            separator = _SEPARATOR.match(old)
            if separator:
                return separator[0] + (keyword[1] or "")
        return new

    def line_indent(self, at: int) -> str:
        """The white space at the start of the line that a position stands on."""
        start = max(self.tree.text.rfind("\n", 0, at), self.tree.text.rfind("\r", 0, at)) + 1
        match = re.match(r"[ \t\f]*", self.tree.text[start:])
        return match[0] if match else ""

    def case(self, site: Site, case: Case) -> Change | str:
        """The change that a case of a rule says, or the reason why it cannot be made."""
        if case.action == "replace":
            assert case.template is not None
            parent = self.tree.parent(site.expression)
            equal = _EQUAL.fullmatch(case.template)
            if (
                equal
                and isinstance(parent, cst.UnaryOperation)
                and isinstance(parent.operator, cst.Not)
            ):
                # ``not rank == 0`` reads as nobody would write it.
                unequal = f"{equal[1]} != {equal[2]}"
                return self.replace(site, unequal, case.imports, case.helpers, node=parent)
            return self.replace(site, case.template, case.imports, case.helpers)
        if case.action == "statement":
            assert case.template is not None
            return self.statement(site, case.template, case.imports, case.helpers)
        if case.action == "delete":
            return self.delete(site)
        if case.action == "unwrap":
            return self.unwrap(site)
        return Change()


def _around(piece: Piece) -> tuple[str, str]:
    if isinstance(piece, str):
        return "", ""
    before = piece.star + ("(" if piece.parenthesised else "")
    return before, ")" if piece.parenthesised else ""


def _whole(pieces: Iterable[Piece]) -> Iterable[Piece]:
    for piece in pieces:
        before, after = _around(piece)
        yield from (p for p in (before, piece, after) if p != "")


def _precedence(pieces: Sequence[Piece], template: Template) -> int:
    """How tightly a rendered template binds; where it is an argument alone, as that does."""
    match pieces:
        case [Slice(node=cst.BaseExpression() as node, parenthesised=False)]:
            return syntax.precedence(node)
    return template.precedence


def _comments(text: str, start: int, end: int) -> Iterator[tuple[int, str]]:
    """Where the comments of an expression or a statement stand, and what they say."""
    for match in _COMMENT_OR_STRING.finditer(text, start, end):
        if match[0].startswith("#"):
            yield match.start(), match[0].rstrip()


def _trimmed(start: int, end: int, old: str, new: str) -> Cut:
    """The cut without what old and new text share at both ends, on whole words."""
    head = 0
    while head < min(len(old), len(new)) and old[head] == new[head]:
        head += 1
    while head and (old[head - 1].isalnum() or old[head - 1] in "_."):
        head -= 1
    tail = 0
    while tail < min(len(old), len(new)) - head and old[-1 - tail] == new[-1 - tail]:
        tail += 1
    while tail and (old[-tail].isalnum() or old[-tail] in "_."):
        tail -= 1
    return Cut(start + head, end - tail, (new[head : len(new) - tail],))
