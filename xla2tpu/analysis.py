"""One file with everything that is known of it: names, sites, suppressions."""

from __future__ import annotations

import fnmatch
import functools
import os

import libcst as cst

from xla2tpu import comments as comments_
from xla2tpu import processgroups, spmd
from xla2tpu.changes import Builder
from xla2tpu.environment import other_hardware
from xla2tpu.frameworks import Frameworks
from xla2tpu.hardware import OTHER_HARDWARE
from xla2tpu.helpersmodule import file_of
from xla2tpu.importsites import ImportSites
from xla2tpu.inhouse import is_torch_xla
from xla2tpu.literals import Literals
from xla2tpu.match import Matcher, is_single_controller, settle_dependents
from xla2tpu.missingops import MissingOps
from xla2tpu.model import Settings
from xla2tpu.names import Names
from xla2tpu.naming import Naming
from xla2tpu.plan import Plan
from xla2tpu.prefilter import migrated
from xla2tpu.project import Project
from xla2tpu.rulemodel import RuleSet
from xla2tpu.rules import forget, load_rules
from xla2tpu.shardings import Shardings, explain
from xla2tpu.sites import References, Site, modules_of
from xla2tpu.source import Source
from xla2tpu.tree import Tree

_HARDWARE = "XLA090"
_LAUNCHES = frozenset(("XLA506", "XLA507"))
_NOTEBOOK_LAUNCH = (
    "Write the function to a file (%%writefile train.py) and run it in one cell: !eval"
    """ "$(python -m torch.tpu.distributed | sed 's/^/export /')"; """
    "torchrun --nproc_per_node=8 train.py"
)


@functools.cache
def _modules(rules_key: tuple[str, ...]) -> frozenset[str]:
    return modules_of(load_rules(rules_key))


def forget_rules() -> None:
    """Read the files of all rules anew from now on."""
    forget()
    _modules.cache_clear()


class Analysis:
    """What is found in one file. ``suppressed`` and ``reported`` are among ``sites``."""

    def __init__(
        self,
        data: bytes,
        path: str,
        settings: Settings,
        source: Source,
        tree: Tree,
        rules: RuleSet,
        project: Project,
        released: frozenset[str],
    ) -> None:
        self.data, self.path, self.settings, self.source = data, path, settings, source
        self.tree, self.rules, self.project = tree, rules, project
        self.real = os.path.abspath(path)
        self.released = released
        project.hints()
        modules = _modules(settings.rule_files)
        self.names = Names(
            tree,
            lambda p: project.canonical(p, self.real),
            lambda p: (hit := rules.lookup(p)) is not None and hit[1].path == p,
            lambda p: project.module_of(p, self.real) is not None,
            modules.__contains__,
            rules.in_house,
            lambda p: project.is_doubtful(p, self.real),
        )
        naming = Naming(tree, self.names, rules, self._helpers_module())
        self.builder = Builder(tree, self.names, rules, naming, settings, source.newline)
        references = References(tree, self.names, rules, modules).collect()
        matcher = Matcher(tree, self.names, rules, self.builder, modules)
        self.sites = matcher.sites(references)
        self.plan = Plan(
            tree, self.builder, self.sites, self._is_pinned, self._is_taken,
            os.path.basename(path) == "__init__.py",
        )  # fmt: skip
        self.has_imports = any(g.torch_xla for g in self.plan.groups) or any(
            True for star, _ in tree.stars if _star_of_xla(star)
        )
        uses = self.has_imports or bool(references)
        self.sites += ImportSites(
            tree, rules, self.plan.groups, self._is_pinned,
            os.path.basename(path) == "__init__.py", self.plan.is_quoted,
        ).sites()  # fmt: skip
        self.sites += Literals(tree, rules, self.builder, uses).sites()
        self.comments = comments_.read(source.text)
        self.builder.suppressed = frozenset(s for s in self.sites if self._is_suppressed(s))
        held = {s.root.value for s in self.builder.suppressed if s.root}
        vacated = naming.vacated
        naming.vacated = lambda name: name not in held and vacated(name)
        spmd.decide(self.sites, self.builder, self._is_taken)
        matcher.build(self.sites)
        spmd.mend(self.sites, self.builder)
        processgroups.mend(self.sites, self.builder, is_single_controller(self.sites))
        self._keep_registration()
        self.hardware = self._other_hardware() if uses else None
        refused = self.hardware is not None and not settings.any_hardware
        self.for_tpu = (uses or settings.on_tpu or migrated(data)) and not refused
        if self.hardware is not None and refused:
            self._refuse_hardware(self.hardware)
        elif self.for_tpu:
            self.sites += MissingOps(tree, self.builder).sites()
        if not refused:
            self._add_frameworks()
        if settings.notebook:
            self._refuse_launches()
        settle_dependents(self.sites)
        self.shardings = Shardings(tree, self.builder, self.sites)
        explain(self.sites, self.shardings)
        self.plan.sites = self.sites
        self.suppressed = {s for s in self.sites if self._is_suppressed(s)}
        self.reported = [s for s in self.sites if self.is_selected(s.rule.code)]

    def _add_frameworks(self) -> None:
        """The places of other packages; what their arguments say is said there alone."""
        found = Frameworks(self.tree, self.builder, self._is_own, self._is_on_tpu).sites()
        told = {id(self.tree.parent(s.node)) for s in found if s.node is not s.expression}
        self.sites = [
            s for s in self.sites
            if s.context != "string" or id(self.tree.parent(s.node)) not in told
        ]  # fmt: skip
        self.sites += found

    def _is_own(self, package: str) -> bool:
        """Whether an import gets the project's file; a folder does not hide what is installed."""
        file = self.project.module_of(package, self.real)
        return file is not None and file.endswith(".py")

    def _is_on_tpu(self) -> bool:
        return self.project.is_on_tpu() or (self.for_tpu and not self.project.is_framework())

    def _helpers_module(self) -> str | None:
        """The module to import helpers from; None in that module itself."""
        module, root = self.settings.helpers_module, self.settings.root
        if module is None or root is None:
            return module
        return None if file_of(root, module) == self.real else module

    def _is_pinned(self, name: str) -> bool:
        if name in self.released or (not self.settings.root and not os.path.exists(self.real)):
            return False
        importers = self.project.importers(self.real)
        return bool(importers.get(name))

    def _is_taken(self, name: str) -> bool:
        """Whether another file imports a name from here that is not torch_xla's."""
        if name in self.released or (not self.settings.root and not os.path.exists(self.real)):
            return False
        taken = self.project.taken(self.real)
        return name in taken or "*" in taken

    def _keep_registration(self) -> None:
        """Imports that register the xla backend, or operators, go with the last use of these."""
        operators = self.plan.operators
        for group in self.plan.registering:
            if group.site is not None and group.site.fixable:
                group.site.follows += operators
                held = self.builder.suppressed.intersection(operators)
                if held or not all(s.fixable for s in operators):
                    group.site.refuse("goes-together")
        strings = [s for s in self.sites if s.context == "string"]
        groups = [s for s in strings if s.rule.detector == "rendezvous-url"]
        # The backend may come through a name or an option of the user's own.
        stays = any(not s.fixable for s in groups) or any(
            s.reason == "user-option" for s in strings
        )
        for site in self.sites:
            if site.context != "import" or not site.fixable:
                continue
            swapped = site.change is not None and site.change.swaps
            if not swapped and "_backend" in self.tree.source(site.node):
                site.follows += groups
                if stays:
                    site.refuse("whole-program")

    def _other_hardware(self) -> str | None:
        for binding in self.tree.bindings:
            path = binding.path or ""
            for package, vendor in OTHER_HARDWARE.items():
                if path == package or path.startswith(f"{package}."):
                    return vendor
        for node, _ in self.tree.strings:
            if not isinstance(node, cst.SimpleString) or node.evaluated_value != "PJRT_DEVICE":
                continue
            for text in self._settings_of(node):
                if other_hardware("PJRT_DEVICE", text):
                    return text.upper()
        return self.project.other_hardware(self.real)

    def _settings_of(self, node: cst.CSTNode) -> list[str]:
        """The texts that an environment variable is set to at the place of its name."""
        parent = self.tree.parent(node)
        if isinstance(parent, cst.Arg):
            call = self.tree.parent(parent)
            values = [a.value for a in call.args[1:2]] if isinstance(call, cst.Call) else []
        else:
            statement = self.tree.statement(node)
            values = [statement.value] if isinstance(statement, cst.Assign) else []
        texts = [v.evaluated_value for v in values if isinstance(v, cst.SimpleString)]
        return [t for t in texts if isinstance(t, str)]

    def _refuse_hardware(self, vendor: str) -> None:
        for site in self.sites:
            site.follows = []
            site.refuse("other-hardware")
        rule = self.rules.rules[_HARDWARE]
        first = min((s for s in self.sites), key=lambda s: self.tree.span(s.node), default=None)
        node: cst.CSTNode = first.node if first is not None else self.tree.module.body[0]
        site = Site(rule, vendor, node, node, self.tree.root, "file", counts=False)
        site.refuse("other-hardware")
        self.sites.append(site)

    def _refuse_launches(self) -> None:
        """Other processes cannot import the functions of a notebook, and its kernel has the TPU."""
        for site in self.sites:
            if site.rule.code in _LAUNCHES:
                site.refuse("notebook")
                site.advice = _NOTEBOOK_LAUNCH

    def is_selected(self, code: str) -> bool:
        settings = self.settings
        if settings.select and not code.startswith(settings.select):
            return False
        if settings.ignore and code.startswith(settings.ignore):
            return False
        relative = os.path.relpath(self.real, settings.root) if settings.root else self.path
        for pattern, codes in settings.per_file_ignores:
            if code.startswith(codes) and (
                fnmatch.fnmatch(relative, pattern)
                or fnmatch.fnmatch(os.path.basename(relative), pattern)
            ):
                return False
        return True

    def _is_suppressed(self, site: Site) -> bool:
        if not self.comments.suppressions and self.comments.whole_file is None:
            return False  # positions are not looked up for nothing
        start, end = self.tree.span(site.node)
        lines = self.plan.lines
        first, last = lines.index(start) + 1, lines.index(max(start, end - 1)) + 1
        statement = self.tree.statement(site.node)
        if isinstance(statement, cst.BaseSmallStatement):
            a, b = self.tree.span(statement)
            first, last = lines.index(a) + 1, lines.index(max(a, b - 1)) + 1
        return self.comments.suppress(site.rule.code, range(first, last + 1))

    def release(self) -> None:
        """Cut the cycles between the parts, so that the tree goes without a collection."""
        for part in (self.names, self.builder.naming, self.builder, self.plan, self):
            vars(part).clear()


def _star_of_xla(star: cst.ImportFrom) -> bool:
    module: cst.CSTNode | None = star.module
    while isinstance(module, cst.Attribute):
        module = module.value
    return not star.relative and isinstance(module, cst.Name) and is_torch_xla(module.value)
