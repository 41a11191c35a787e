"""Where new imports and helpers go: the conventional place, before their first use."""

from __future__ import annotations

import re
import sys
from typing import TYPE_CHECKING

import libcst as cst

from xla2tpu.naming import Import
from xla2tpu.scopes import Scope
from xla2tpu.sites import Site, Text
from xla2tpu.suites import Settled

if TYPE_CHECKING:
    from xla2tpu.plan import Plan
    from xla2tpu.vanished import Vanished


# Longer lines of imports are left to nobody's formatter.
_LINE = 88


def additions(
    plan: Plan,
    active: set[Site],
    settled: Settled,
    partial: dict[int, tuple[cst.CSTNode, list[cst.CSTNode]]],
    vanished: Vanished,
) -> list[Text]:
    """Insertions for the imports and helpers that the active sites need."""
    return _Placer(plan, settled, vanished).run(active)


class _Placer:
    def __init__(self, plan: Plan, settled: Settled, vanished: Vanished) -> None:
        self.plan, self.settled, self.vanished = plan, settled, vanished
        self.tree, self.lines = plan.tree, plan.lines
        self.body = plan.tree.module.body
        self.head = self._head()
        # Places where a blank line has to set the new import off from the section above.
        self.apart: set[int] = set()

    def run(self, active: set[Site]) -> list[Text]:
        active = {s for s in active if not self.vanished.swallows(s)}
        ordered = sorted(active, key=lambda s: self.tree.span(s.node))
        here: dict[str, int | None] = {}
        inner: dict[tuple[int, str], cst.CSTNode] = {}
        for site in ordered:
            assert site.change is not None
            for text in site.change.needs:
                host = self._lazy_host(site)
                if host is not None and not self._hides(text):
                    inner.setdefault((id(host), text), host)
                else:
                    self._note(here, text, self._first_use(site))
        helpers = self.plan.helpers.needed(active)
        present = [
            h for h in helpers
            if self.plan.builder.naming.present(
                self.plan.builder.rules.helpers[h],
                self.plan.builder.naming.helper(self.plan.builder.rules.helpers[h]),
            )
        ]  # fmt: skip
        helpers = [h for h in helpers if h not in present]
        uses = [
            self._first_use(s) for s in ordered
            if s.change is not None and any(h in helpers for h in s.change.helpers)
        ]  # fmt: skip
        first_use = min((u for u in uses if u is not None), default=None)
        edits: list[Text] = []
        module = self.plan.builder.naming.helpers_module
        if helpers and module:
            # What the helpers call themselves is at hand in their module.
            called = {h for s in ordered if s.change is not None for h in s.change.helpers}
            for text in self._from_module(module, sorted(called.intersection(helpers))):
                self._note(here, text, first_use)
            helpers = []
        codes: list[str] = []
        # A helper that runs while the file is imported finds only what stands above it.
        self.plan.builder.naming.at = self.body[first_use] if first_use is not None else None
        for name in helpers:
            needs: list[str] = []
            codes.append(self.plan.helpers.code(name, needs))
            for text in needs:
                self._note(here, text, first_use)
        inner = {k: v for k, v in inner.items() if k[1] not in here}
        edits.extend(self._at_top(here))
        for (_, text), host in inner.items():
            edits.append(self._in_place(text, host))
        if codes:
            edits.append(self._helpers(codes, first_use, {e.start: e.content for e in edits}))
        return edits

    def _from_module(self, module: str, helpers: list[str]) -> list[str]:
        """The imports of helpers from their module: one line, or as many as they fill."""
        naming, rules = self.plan.builder.naming, self.plan.builder.rules
        lines: list[str] = []
        for name in helpers:
            local = naming.helper(rules.helpers[name])
            item = name if local == name else f"{name} as {local}"
            if lines and len(lines[-1]) + len(item) + 2 <= _LINE:
                lines[-1] += f", {item}"
            else:
                lines.append(f"from {module} import {item}")
        return lines

    def _note(self, here: dict[str, int | None], text: str, use: int | None) -> None:
        if text not in here:
            here[text] = use
        elif use is not None:
            known = here[text]
            here[text] = use if known is None else min(known, use)

    def _first_use(self, site: Site) -> int | None:
        """The index of the top statement that uses the site's text when the file is imported."""
        scope: Scope | None = site.scope
        while scope is not None:
            if scope.kind in ("function", "lambda"):
                return None
            scope = scope.parent
        for index, node in enumerate(self.body):
            if self.tree.is_within(site.node, node):
                return index
        return None

    def _lazy_host(self, site: Site) -> cst.CSTNode | None:
        """The import inside a function that brought the name in; new imports go beside it."""
        if site.meaning is None or site.change is None or site.change.helpers:
            return None
        for binding in site.meaning.bindings:
            imported = binding.kind in ("import", "from")
            if imported and binding.scope.kind == "function" and binding.statement is not None:
                return binding.statement
        return None

    def _hides(self, text: str) -> bool:
        """Whether an import in a function would bind anew what the file has imported at its top.

        All of the function would read the name as its own then, also where the import is passed
        over: `import torch.utils.checkpoint` binds `torch`.
        """
        bound = Import.parse(text).name
        return any(b.kind in ("import", "from") for b in self.tree.root.bindings.get(bound, ()))

    # -- imports ---------------------------------------------------------------------------

    def _head(self) -> int:
        """The index of the first statement that may be an import: after docstring and future."""
        index = 0
        body = self.body
        if body and _is_docstring(body[0]):
            index = 1
        while index < len(body) and _from_module(body[index]) == "__future__":
            index += 1
        return index

    def _at_top(self, here: dict[str, int | None]) -> list[Text]:
        places: dict[int, list[tuple[str, bool]]] = {}
        ordered = sorted(here.items(), key=lambda i: (not _is_stdlib(i[0]), _sort_key(i[0])))
        guarded = self._guarded(ordered)
        beside = {text.strip() for text, _ in guarded}
        ordered = [i for i in ordered if i[0] not in beside]
        for text, use in ordered:
            at, after_blank = self._place(text, use)
            places.setdefault(at, []).append((text, after_blank))
        newline = self.plan.newline
        edits = [Text(at, at, text + newline, 1) for text, at in guarded]
        for at, texts in places.items():
            content = ""
            for index, (text, _) in enumerate(texts):
                if index and _is_stdlib(text) != _is_stdlib(texts[index - 1][0]):
                    content += newline
                content += f"{text}{newline}"
            if at == len(self.tree.text) and self.tree.text and self.tree.text[-1] not in "\r\n":
                content = newline + content.removesuffix(newline)
            if texts[-1][1]:
                content += newline
            if at in self.apart:
                content = newline + content
            edits.append(Text(at, at, content, 1))
        return edits

    def _guarded(self, ordered: list[tuple[str, int | None]]) -> list[tuple[str, int]]:
        """The imports that go beside a torch that is imported under a condition, and where.

        The file can be imported without torch, and has to stay so.
        """
        beside = self.plan.builder.naming.guarded_torch
        if beside is None:
            return []
        line = self.tree.parent(beside)
        index = next(i for i, n in enumerate(self.body) if self.tree.is_within(beside, n))
        if not isinstance(line, cst.SimpleStatementLine) or len(line.body) != 1:
            return []
        start = self.tree.span(line)[0]
        indent = self.plan.indent_at(start, line)
        at = self._after_node(line)
        return [
            (indent + text, at)
            for text, use in ordered
            if _package(text) == "torch" and (use is None or use > index)
        ]

    def _place(self, text: str, use: int | None) -> tuple[int, bool]:
        """Where one import statement goes, and whether a blank line has to follow it."""
        limit = use if use is not None else len(self.body)
        imports = [
            i for i, n in enumerate(self.body)
            if i >= self.head and i < max(limit, self.head) and _imports(n)
        ]  # fmt: skip
        leading = self._leading(imports)
        package = _package(text)
        same = [
            i for i in leading
            if not self._gone(i) and _package(self._text(i)) == package
            and self._text(i).split(" ")[0] == text.split(" ")[0]
        ]  # fmt: skip
        if _is_stdlib(text):
            return self._place_stdlib(text, leading)
        before = [i for i in same if _sort_key(self._text(i)) <= _sort_key(text)]
        if before:
            return self._after(before[-1]), False
        if same:
            return self._before(same[0]), False
        if text.startswith("from"):
            plain = [i for i in leading if not self._gone(i) and _package(self._text(i)) == package]
            if plain:
                return self._after(plain[-1]), False
        ours = [i for i in leading if self._mentions_xla(i)]
        if ours:
            first = ours[0]
            return (self._after(first) if self._gone(first) else self._before(first)), False
        if leading:
            return self._among(leading)
        return self._at_head(min(limit, self.head) if use is not None else self.head)

    def _among(self, leading: list[int]) -> tuple[int, bool]:
        """After the last third-party import, else before the project's own."""
        own = [i for i in leading if self._is_own(i)]
        other = [i for i in leading if not self._is_own(i) and not _is_stdlib(self._text(i))]
        if other:
            return self._after(other[-1]), False
        if own:
            return self._before(own[0]), True
        self.apart.add(self._after(leading[-1]))
        return self._after(leading[-1]), False

    def _is_own(self, index: int) -> bool:
        """Whether an import is relative, or of a module of the project."""
        package = _package(self._text(index))
        return package == "" or self.plan.builder.names.is_local(package)

    def _leading(self, imports: list[int]) -> list[int]:
        """The imports of the block at the top: those before the first def, class or long code."""
        found = []
        for i in imports:
            between = self.body[self.head : i]
            if any(isinstance(n, (cst.FunctionDef, cst.ClassDef)) for n in between):
                break
            found.append(i)
        return found or imports

    def _place_stdlib(self, text: str, leading: list[int]) -> tuple[int, bool]:
        std = [
            i for i in leading
            if not self._gone(i) and _package(self._text(i)) in sys.stdlib_module_names
        ]  # fmt: skip
        before = [i for i in std if _sort_key(self._text(i)) <= _sort_key(text)]
        if before:
            return self._after(before[-1]), False
        if std:
            return self._before(std[0]), False
        stay = [i for i in leading if not self._gone(i)]
        if leading and not stay:
            return self._after(leading[0]), False
        if stay:
            return self._before(stay[0]), True
        return self._at_head(self.head)

    def _at_head(self, index: int) -> tuple[int, bool]:
        """Before the first statement, with a blank line after it if that stays."""
        if index < len(self.body):
            return self._before(index), not self._gone(index)
        return self._end(), False

    def _gone(self, index: int) -> bool:
        return id(self.body[index]) in self.settled.gone

    def _mentions_xla(self, index: int) -> bool:
        return _package(self._text(index)) == "torch_xla"

    def _text(self, index: int) -> str:
        return self.tree.source(self.body[index])

    def _after(self, index: int) -> int:
        return self._after_node(self.body[index])

    def _after_node(self, node: cst.CSTNode) -> int:
        start, end = self.tree.span(node)
        return self.lines.end(
            max(start, end - 1) if self.tree.text[end - 1 : end] in "\r\n" else end
        )

    def _before(self, index: int) -> int:
        node = self.body[index]
        start = self.tree.span(node)[0]
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.decorators:
            start = self.tree.span(node.decorators[0])[0]
        return self.lines.start(start)

    def _end(self) -> int:
        return len(self.tree.text)

    def _in_place(self, text: str, host: cst.CSTNode) -> Text:
        for above in self.tree.ancestors(host):
            if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
                break
            if isinstance(above, cst.BaseCompoundStatement) and self.vanished.has(above):
                host = above  # the block around the import makes way as a whole
        start = self.tree.span(host)[0]
        line = self.lines.start(start)
        indent = self.plan.indent_at(start, host)
        if self.tree.text[line:start].strip():
            # The import shares its line with something else.
            return Text(start, start, f"{text}; ", 1)
        return Text(line, line, f"{indent}{text}{self.plan.newline}", 1)

    # -- helpers -----------------------------------------------------------------------------

    def _helpers(self, codes: list[str], use: int | None, added: dict[int, str]) -> Text:
        newline = self.plan.newline
        limit = use if use is not None else len(self.body)
        block = 2 * newline
        text = f"{newline}{block}".join(codes)
        imports = [i for i, n in enumerate(self.body) if i < limit and _holds_imports(n)]
        stops = [
            i for i, n in enumerate(self.body) if isinstance(n, (cst.FunctionDef, cst.ClassDef))
        ]
        first_def = stops[0] if stops else len(self.body)
        leading = [i for i in imports if i < first_def] or imports
        if leading:
            at = self._after(leading[-1])
            blanks = 0
            index = self.lines.index(at) if at < len(self.tree.text) else len(self.lines.starts)
            while self.lines.is_blank(index + blanks):
                blanks += 1
            more = newline * max(0, 2 - blanks) if leading[-1] + 1 < len(self.body) else ""
            lead = "" if at == 0 or self.tree.text[at - 1] in "\r\n" else newline
            if not added and all(self._gone(i) for i in range(leading[-1] + 1)):
                block = ""
            elif at not in added:
                block = newline * max(0, 2 - self._blanks_above(leading[-1], added))
            return Text(at, at, f"{lead}{block}{text}{newline}{more}", 2)
        index = min(limit, self.head)
        if index < len(self.body):
            at = self._before(index)
            lead = newline if index and at else ""
            return Text(at, at, f"{lead}{text}{newline}{block}", 2)
        return Text(self._end(), self._end(), f"{newline}{block}{text}{newline}", 2)

    def _blanks_above(self, index: int, added: dict[int, str]) -> int:
        """The blank lines that end up above a place where statements vanish, 0 where none do.

        Those between vanished statements stay too, up to an import that is put in.
        """
        blanks = 0
        while index >= 0 and self._gone(index):
            at = self._before(index)
            if at in added:
                blanks += added[at].endswith(2 * self.plan.newline)
                break
            line = self.lines.index(at)
            above = 0
            while above < line and self.lines.is_blank(line - 1 - above):
                above += 1
            blanks += above
            if index and self._after(index - 1) in added:
                break
            index -= 1
        return blanks


def _imports(node: cst.CSTNode) -> bool:
    return isinstance(node, cst.SimpleStatementLine) and any(
        isinstance(s, (cst.Import, cst.ImportFrom)) for s in node.body
    )


def _holds_imports(node: cst.CSTNode) -> bool:
    """Whether a top statement is an import or a guard around imports."""
    if isinstance(node, (cst.If, cst.Try, cst.With)):
        body = node.body.body
        return bool(body) and any(_holds_imports(s) for s in body)
    return _imports(node)


def _is_docstring(node: cst.CSTNode) -> bool:
    if not isinstance(node, cst.SimpleStatementLine) or not isinstance(node.body[0], cst.Expr):
        return False
    return isinstance(node.body[0].value, (cst.SimpleString, cst.ConcatenatedString))


def _from_module(node: cst.CSTNode) -> str | None:
    if isinstance(node, cst.SimpleStatementLine) and isinstance(node.body[0], cst.ImportFrom):
        module = node.body[0].module
        if isinstance(module, cst.Name):
            return module.value
    return None


def _is_stdlib(text: str) -> bool:
    return _package(text) in sys.stdlib_module_names


def _package(text: str) -> str:
    match = re.match(r"(?:import|from)\s+([.\w]+)", text)
    return match[1].split(".")[0] if match else ""


def _sort_key(text: str) -> tuple[bool, str]:
    """Plain imports before from-imports, then by module, as isort does within a section."""
    match = re.match(r"(import|from)\s+([.\w]+)", text)
    if match is None:
        return True, text
    return match[1] == "from", match[2].lower()
