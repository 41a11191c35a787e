"""The helpers that go into a file."""

from __future__ import annotations

import re

from xla2tpu.changes import Builder
from xla2tpu.naming import Import
from xla2tpu.sites import Site
from xla2tpu.template import compile_template, render
from xla2tpu.tree import Tree


class HelperTexts:
    """Gives the helpers that sites need, as text under the names of the file."""

    def __init__(self, tree: Tree, builder: Builder) -> None:
        self.tree, self.builder = tree, builder

    def needed(self, active: set[Site]) -> list[str]:
        found: list[str] = []
        for site in sorted(active, key=lambda s: self.tree.span(s.node)):
            assert site.change is not None
            for name in site.change.helpers:
                for needed in (*self.required(name), name):
                    if needed not in found:
                        found.append(needed)
        return found

    def required(self, name: str) -> list[str]:
        """The helpers that a helper calls, itself or through others; callers come last."""
        found: list[str] = []
        self._require(name, found, {name})
        return found

    def _require(self, name: str, found: list[str], seen: set[str]) -> None:
        helpers = self.builder.rules.helpers
        free = {n for n, _ in compile_template(_escaped(helpers[name].code), True).free}
        for needed in [n for n in helpers if n in free and n not in seen]:
            seen.add(needed)
            self._require(needed, found, seen)
            found.append(needed)

    def uses(self, active: set[Site]) -> set[str]:
        """The names of the file's own imports that the helpers need, so that these stay."""
        naming = self.builder.naming
        if naming.helpers_module is not None:
            return set()
        naming.at = None
        found: set[str] = set()
        for name in self.needed(active):
            for text in self.builder.rules.helpers[name].imports:
                local, statement = naming.local(Import.parse(text), self.tree.root)
                if statement is None:
                    found.add(local.split(".")[0])
        return found

    def code(self, name: str, needs: list[str]) -> str:
        """The source of a helper under the names of the file; adds to the imports needed."""
        helper = self.builder.rules.helpers[name]
        table = {Import.parse(text).name: text for text in helper.imports}
        naming = self.builder.naming

        def rename(free: str) -> str:
            if free in table:
                local, statement = naming.local(Import.parse(table[free]), self.tree.root)
                if statement is not None:
                    needs.append(statement)
                return local
            if free in self.builder.rules.helpers:
                return naming.helper(self.builder.rules.helpers[free])
            return free

        compiled = compile_template(_escaped(helper.code.strip("\n")), True)
        pieces = render(compiled, {}, (), (), rename, self.tree.source, '"')
        text = "".join(p for p in pieces if isinstance(p, str))
        new = naming.helper(helper)
        text = re.sub(rf"\A(def|class) {name}\b", rf"\1 {new}", text)
        if self.builder.unit != "    ":
            text = "\n".join(self._reindented(line) for line in text.split("\n"))
        return text.replace("\n", self.builder.newline)

    def _reindented(self, line: str) -> str:
        body = line.lstrip(" ")
        return self.builder.unit * ((len(line) - len(body)) // 4) + body


def _escaped(code: str) -> str:
    return code.replace("{", "{{").replace("}", "}}")
