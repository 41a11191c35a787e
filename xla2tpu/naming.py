"""Which name stands for a module in the file, and which names are free for new things."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass

import libcst as cst

from xla2tpu.inhouse import is_torch_xla
from xla2tpu.names import Names
from xla2tpu.nodes import dotted
from xla2tpu.rulemodel import Helper, RuleSet
from xla2tpu.scopes import Binding, Scope
from xla2tpu.tree import Tree

_FROM = re.compile(r"from\s+([\w.]+)\s+import\s+(\w+)(?:\s+as\s+(\w+))?\Z")
_IMPORT = re.compile(r"import\s+([\w.]+)(?:\s+as\s+(\w+))?\Z")


@dataclass(frozen=True, slots=True)
class Import:
    """An import statement that a replacement needs: the name it binds, and what that is."""

    name: str
    path: str
    statement: str

    @classmethod
    def parse(cls, text: str) -> Import:
        """Read ``import a.b as c`` or ``from a import b``; raises ValueError for other text."""
        match = _FROM.match(text)
        if match:
            return cls(match[3] or match[2], f"{match[1]}.{match[2]}", text)
        match = _IMPORT.match(text)
        if match is None:
            raise ValueError(f"not one import of one name: {text!r}")
        if match[2]:
            return cls(match[2], match[1], text)
        return cls(match[1].split(".")[0], match[1], text)

    @property
    def dotted(self) -> bool:
        """Whether it is a plain ``import a.b``, which binds only ``a``."""
        return (
            self.name != self.path and " as " not in self.statement and "from" not in self.statement
        )


def _parameters(node: cst.FunctionDef | cst.ClassDef) -> str:
    """The parameters of a function as its helper has them, nothing for a class."""
    if isinstance(node, cst.ClassDef):
        return ""
    return f"({cst.Module([]).code_for_node(node.params)})".replace("'", '"')


class Naming:
    """Chooses names for one file; the same choice for each use, so that fixes agree."""

    def __init__(
        self, tree: Tree, names: Names, rules: RuleSet, helpers_module: str | None = None
    ) -> None:
        self.helpers_module = helpers_module
        self.tree = tree
        self.names = names
        self.rules = rules
        self._helper_names: dict[str, str] = {}
        # Names of imports that helpers take, since all their uses are to go.
        self.taken: set[str] = set()
        # The place that names are chosen for, None for helpers.
        self.at: cst.CSTNode | None = None
        # Whether all uses of a name that torch_xla is imported by are going to be rewritten.
        self.vacated: Callable[[str], bool] = lambda name: False

    def local(self, needed: Import, scope: Scope) -> tuple[str, str | None]:
        """The text for a module or name in ``scope``, and the import statement to add or None."""
        existing = self._existing(needed, scope)
        if existing is not None:
            return existing, None
        if self._is_free(needed, scope):
            return needed.name, needed.statement
        if needed.dotted:
            # The name is that of the package above, which brings its modules along: of torch,
            # rules import plainly only those that `import torch` loads as well.
            if self.names.name(needed.name, scope).path == needed.name:
                return needed.name, None
            needed = Import.parse(f"import {needed.name}")
        elif needed.statement.startswith("import ") and needed.name != needed.path:
            # The short name is the user's own: spell the module out.
            whole = Import.parse(f"import {needed.path}")
            top = self.names.name(whole.name, scope)
            if top.path == whole.name:
                plain = any(self._imports(b, needed.path) for b in top.bindings)
                loaded = plain or needed.path.startswith("torch.distributed")
                return needed.path, None if loaded else whole.statement
            if self._is_free(whole, scope):
                return needed.path, whole.statement
        name = f"_{needed.name}"
        while name in self.tree.names:
            name = f"_{name}"
        text = re.sub(r"\s+as\s+\w+\Z", "", needed.statement)
        own = text.startswith("from ") and text.endswith(f" import {name}")
        return name, text if own else f"{text} as {name}"

    @functools.cached_property
    def guarded_torch(self) -> cst.CSTNode | None:
        """The import of torch, where the file has it only ``if is_torch_available():``."""
        found: cst.CSTNode | None = None
        for binding in self.tree.root.bindings.get("torch", []):
            if binding.path != "torch" or binding.statement is None:
                return None
            found = binding.statement
            tests = [a.test for a in self.tree.ancestors(found) if isinstance(a, cst.If)]
            # What asks for torch: any other condition has nothing to do with its being there.
            if not any("torch" in self.tree.source(test).lower() for test in tests):
                return None
        return found

    @functools.cached_property
    def _torch_guard(self) -> cst.CSTNode | None:
        """The suite with the import of torch, where that is under a condition."""
        if self.guarded_torch is None:
            return None
        above = self.tree.ancestors(self.guarded_torch)
        return next((a for a in above if isinstance(a, cst.IndentedBlock)), None)

    @functools.cached_property
    def _imported(self) -> list[Binding]:
        kinds = ("import", "from")
        return [b for b in self.tree.bindings if b.kind in kinds and b.path is not None]

    def _existing(self, needed: Import, scope: Scope) -> str | None:
        for binding in self._imported:
            if needed.dotted:
                if not self._imports(binding, needed.path):
                    continue
            elif binding.path != needed.path:
                continue
            if binding.scope.kind == "class":
                continue
            # An import in a function does not serve the rest of the file, one in a try may fail.
            meaning = self.names.name(binding.name, scope)
            if binding not in meaning.bindings or meaning.ambiguous:
                continue
            if not self._is_certain(binding, scope):
                continue
            if all(b.path == binding.path or b.kind == "none" for b in meaning.bindings):
                return binding.name
        return None

    def _is_certain(self, binding: Binding, scope: Scope) -> bool:
        """Whether an import has run whenever the place is reached."""
        for above in self.tree.ancestors(binding.node):
            if above is self._torch_guard:
                break  # torch itself is there only then, and nothing runs without it
            if isinstance(above, (cst.If, cst.For, cst.While, cst.Match, cst.With)):
                return False
            if isinstance(above, (cst.FunctionDef, cst.ClassDef)):
                break
        here: Scope | None = scope
        while here is not None and here is not binding.scope:
            if here.kind in ("function", "lambda"):
                # Called later: by then the whole file, or the function around, may have run.
                return binding.scope.parent is None or self._is_before(binding)
            here = here.parent
        return self._is_before(binding)

    def _is_before(self, binding: Binding) -> bool:
        if self.at is None:
            return True
        return self.tree.span(binding.node) < self.tree.span(self.at)

    @staticmethod
    def _imports(binding: Binding, path: str) -> bool:
        node = binding.node
        return (
            binding.kind == "import"
            and isinstance(node, cst.ImportAlias)
            and node.asname is None
            and dotted(node.name) == path
        )

    def _is_free(self, needed: Import, scope: Scope) -> bool:
        """Whether the name may be bound at the top of the file and means that in ``scope``."""
        if needed.name not in self.tree.names:
            return True
        owner = scope.owner(needed.name)
        if owner is not None and owner.parent is not None:
            return False
        bindings = [b for b in self.tree.bindings if b.name == needed.name]
        if not bindings:
            return needed.name not in self.tree.loads
        top = needed.path.split(".")[0] if needed.dotted else needed.path
        return all(b.path == top and b.kind in ("import", "from") for b in bindings)

    def helper(self, helper: Helper) -> str:
        """The name under which a helper goes into the file."""
        if helper.name not in self._helper_names:
            self._helper_names[helper.name] = self._choose(helper)
        return self._helper_names[helper.name]

    def _choose(self, helper: Helper) -> str:
        for name in (helper.name, *helper.alternatives):
            if self.present(helper, name) or self._may_take(name):
                return name
        name = f"{helper.name}_"
        while name in self.tree.names and not self.present(helper, name):
            name = f"{name}_"
        return name

    def _may_take(self, name: str) -> bool:
        """Whether a helper may be called so: the name is free, or torch_xla's and gets free."""
        if name not in self.tree.names:
            return True
        bindings = [b for b in self.tree.bindings if b.name == name]
        ours = bool(bindings) and all(
            is_torch_xla(b.path) and b.scope.parent is None for b in bindings
        )
        if not ours or not self.vacated(name):
            return False
        self.taken.add(name)
        return True

    def forget(self) -> None:
        """Choose the names of helpers anew."""
        self._helper_names.clear()
        self.taken.clear()

    def present(self, helper: Helper, name: str) -> bool:
        """Whether the file already holds the helper under ``name``, or imports it by that name.

        An earlier run put it there: a definition at the top with the helper's documentation.
        """
        bindings = self.tree.root.bindings.get(name, [])
        if len(bindings) != 1 or len([b for b in self.tree.bindings if b.name == name]) != 1:
            return False
        node = bindings[0].statement
        if bindings[0].kind == "from":
            ours = f"{self.helpers_module}.{helper.name}"
            return self.helpers_module is not None and bindings[0].path == ours
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)):
            return node.get_docstring() == helper.doc and _parameters(node) in helper.code
        return False
