"""Names across the files of a project: which torch_xla name does an import of it lead to?

Only the names at the top of modules are read, on demand and once for each file. Nothing here
decides what is rewritten; nothing here writes.
"""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Iterator
from typing import NamedTuple

from xla2tpu.exports import (
    Module,
    direct_names,
    exports_of,
    has_aliases,
    import_lines,
    used_names,
)
from xla2tpu.hardware import is_for_tpu, vendor_in
from xla2tpu.inhouse import NOTHING, PACKAGES, InHouse, is_torch_xla
from xla2tpu.prefilter import FRAMEWORKS, GUARD_PACKAGES, migrated
from xla2tpu.projectfiles import ProjectFiles
from xla2tpu.roots import files_below, packages_used_in
from xla2tpu.words import chains, has_word, stem_of, words_pattern

# A run reads all of its files before names are followed: up to so much is not read again.
_KEPT_BYTES = 48 << 20


@functools.lru_cache(maxsize=8)
def project_of(root: str, in_house: InHouse = NOTHING) -> Project:
    """The names of a project; its files are read once in a process."""
    return Project(root, in_house=in_house)


def forget() -> None:
    """Read all files anew from now on."""
    project_of.cache_clear()
    packages_used_in.cache_clear()


class Lead(NamedTuple):
    """Where a name leads to: a torch_xla path or None; ``doubtful`` if elsewhere too."""

    path: str | None
    doubtful: bool = False


_NOWHERE = Lead(None)


class Project(ProjectFiles):
    """The names of the files below ``root``; those that are ``in_house`` count as torch_xla's."""

    def __init__(
        self,
        root: str,
        buffers: dict[str, bytes] | None = None,
        in_house: InHouse = NOTHING,
    ) -> None:
        super().__init__(root, buffers)
        self.in_house = in_house
        self._kept = 0
        self._modules: dict[str, Module | None] = {}
        self._meant: dict[tuple[str, str], str | None] = {}
        self._answers: dict[tuple[str, str], Lead] = {}
        self._busy: set[tuple[str, str]] = set()
        self._taken: dict[str, frozenset[str]] = {}
        # The files that were searched for names, and those of them that have any.
        self._searched: frozenset[str] = frozenset()
        self._leads: dict[str, frozenset[str]] = {}
        self._importers: dict[str, dict[str, set[str]]] = {}
        self._plain: dict[str, bool] = {}
        self._handing: list[str] = []
        self._handing_set: frozenset[str] = frozenset()
        self._names: frozenset[str] = frozenset()
        self._hints: tuple[tuple[bytes, ...], re.Pattern[bytes]] | None = None
        self._vendors: dict[str, str | None] = {}
        self._on_tpu = False
        self._looked = False
        self._framework: bool | None = None

    # -- what a run has read --------------------------------------------------------------

    def note(self, path: str, data: bytes, matters: bool = True) -> None:
        """Take note of a file that was read anyway, so that `hints` need not read it again.

        ``matters``: it may have to do with TPUs at all.
        """
        real = os.path.abspath(path)
        self._plain[real] = not self._may_bind(data)
        self._on_tpu = self._on_tpu or (matters and is_for_tpu(data))
        if self._hints is None and self._kept < _KEPT_BYTES:
            self._texts[real] = data
            self._kept += len(data)

    def _may_bind(self, data: bytes) -> bool:
        return b"torch_xla" in data or self.in_house.mentioned(data)

    def python_files(self) -> Iterator[str]:
        """The Python files below the root, in a stable order, and all that the run has read."""
        noted = {f for f in self._plain if f.startswith(os.path.join(self.root, ""))}
        for path in files_below(self.root):
            noted.discard(path)
            yield path
        yield from sorted(noted)

    # -- what a path leads to -------------------------------------------------------------

    def canonical(self, path: str, importer: str) -> str | None:
        """The torch_xla path behind a dotted path as ``importer`` writes it, None for none."""
        return self._answer(path, importer).path

    def is_doubtful(self, path: str, importer: str) -> bool:
        """Whether a path leads to torch_xla on some ways and to something else on others."""
        return self._answer(path, importer).doubtful

    def _answer(self, path: str, importer: str) -> Lead:
        if is_torch_xla(path) or self.in_house.covers(path):
            return Lead(path)
        if self._hints is not None and self._names.isdisjoint(path.split(".")):
            return _NOWHERE
        key = (path, os.path.dirname(importer))
        if key not in self._answers:
            self._answers[key] = _NOWHERE  # stops import cycles
            self._answers[key] = self._lead(path, importer)
        return self._answers[key]

    def _lead(self, path: str, importer: str) -> Lead:
        dots = len(path) - len(path.lstrip("."))
        parts = path.lstrip(".").split(".")
        if not dots and self.module_file(parts[0], importer) is None:
            return _NOWHERE
        for length in range(len(parts) - 1, -1, -1):
            module = "." * dots + ".".join(parts[:length])
            if not module:
                continue
            file = self.module_file(module, importer)
            if file is None:
                continue
            if not file.endswith(".py"):
                return _NOWHERE
            if self.in_house:
                whole = ".".join([self.dotted(file), *parts[length:]])
                if self.in_house.covers(whole):
                    return Lead(whole)
            return self._exported(file, parts[length], parts[length + 1 :])
        return _NOWHERE

    def _exported(self, file: str, name: str, rest: list[str]) -> Lead:
        """Where ``name.rest`` of a file leads to."""
        module = self.module(file)
        # `from .name import name` where there is no such module leads back to itself.
        if module is None or (file, name) in self._busy:
            return _NOWHERE
        self._busy.add((file, name))
        try:
            leads = [
                self._answer(".".join([target, *rest]), file) if target else _NOWHERE
                for target in module.exports.get(name, ())
            ]
            if name not in module.exports:
                for star in module.stars:
                    # A star import of torch_xla itself hides its names: they are not followed.
                    if not star.startswith(PACKAGES):
                        join = "" if star.endswith(".") else "."
                        led = self._answer(f"{star}{join}{'.'.join([name, *rest])}", file)
                        leads += [led] if led.path is not None else []
        finally:
            self._busy.discard((file, name))
        paths = {lead.path for lead in leads}
        known = sorted(path for path in paths if path is not None)
        if not known:
            return _NOWHERE
        return Lead(known[0], len(paths) > 1 or any(lead.doubtful for lead in leads))

    def module(self, file: str) -> Module | None:
        """The names at the top of a file, None where they cannot be read."""
        if file not in self._modules:
            self._modules[file] = self._read_module(file)
        return self._modules[file]

    def _read_module(self, file: str) -> Module | None:
        if file in self._searched and not self.may_lead(file):
            return None  # it has none of the names that lead anywhere
        data = self.read(file)
        return exports_of(data) if data is not None and b"import" in data else None

    # -- who imports from here ------------------------------------------------------------

    def leads_somewhere(self, data: bytes, path: str) -> bool:
        """Whether a file without the word torch_xla imports names of it through the project."""
        if b"import" not in data:
            return False
        importer = os.path.abspath(path)
        for module, names in import_lines(data):
            for name, _ in names:
                if name is None:
                    found = self._uses_module(module, importer, data)
                elif name == "*":
                    file = self.module_file(module, importer)
                    found = file is not None and any(
                        n.encode() in data for n in self._leading(file)
                    )
                else:
                    full = f"{module}{'' if module.endswith('.') else '.'}{name}"
                    found = self.canonical(full, importer) is not None or self._uses_module(
                        full, importer, data
                    )
                if found:
                    return True
        return False

    def interface(self, data: bytes) -> object:
        """What other files may take note of in the text of a file, to be compared.

        While it stays equal, the names of the project stay as they are.
        """
        module = exports_of(data) if b"import" in data else None
        self.hints()
        exports = {
            # A function of a file's own hides nothing but a name that a star or others hand on.
            name: targets
            for name, targets in (module.exports if module is not None else {}).items()
            if targets != {""} or name in self._names or (module is not None and module.stars)
        }
        imports = list(import_lines(data))
        return (
            None if module is None else (exports, module.stars),
            imports,
            [chains(local, data) for _, names in imports for _, local in names if local != "*"],
            None if module is None else direct_names(module, self.in_house),
            vendor_in(data),
            is_for_tpu(data),
            {n for n in self._names if has_word(data, n)},
        )

    def _hands_module(self, file: str, name: str) -> bool:
        """Whether a name at the top of a file is a module with names that lead to torch_xla."""
        module = self.module(file)
        for target in module.exports.get(name, ()) if module is not None else ():
            inner = self.module_of(target, file) if target else None
            if inner is not None and inner.endswith(".py") and self._leading(inner):
                return True
        return False

    def module_of(self, path: str, importer: str) -> str | None:
        """The project file that a dotted path means, through names that stand for modules too."""
        key = (path, os.path.dirname(importer))
        if key not in self._meant:
            self._meant[key] = self._module_of(path, importer)
        return self._meant[key]

    def _module_of(self, path: str, importer: str) -> str | None:
        file = self.module_file(path, importer)
        if file is not None or not path.strip("."):
            return file
        head, _, name = path.rpartition(".")
        if not head.strip("."):
            head = path[: len(path) - len(path.lstrip("."))]
        above = self.module_file(head, importer) if head else None
        if above is None or not above.endswith(".py"):
            return None
        module = self.module(above)
        targets = module.exports.get(name, set()) if module is not None else set()
        return self.module_file(next(iter(targets)), above) if len(targets) == 1 else None

    def _uses_module(self, module: str, importer: str, data: bytes) -> bool:
        """Whether a file uses a name of a module of the project that leads to torch_xla."""
        file = self.module_of(module, importer)
        if file is None or not file.endswith(".py"):
            return False
        forms = (b".%b", b'"%b"', b"'%b'")
        return any(f % name.encode() in data for name in self._leading(file) for f in forms)

    def _leading(self, file: str) -> frozenset[str]:
        """The names at the top of a file that lead to torch_xla."""
        if file not in self._leads:
            self._leads[file] = frozenset()  # stops import cycles
            module = self.module(file) if file.endswith(".py") else None
            if module is not None:
                names = set(module.exports)
                for star in module.stars:
                    inner = self.module_file(star, file)
                    if inner is not None:
                        names |= self._leading(inner)
                self._leads[file] = frozenset(
                    n
                    for n in names
                    if self._exported(file, n, []).path or self._hands_module(file, n)
                )
        return self._leads[file]

    def importers(self, file: str) -> dict[str, set[str]]:
        """For each name at the top of ``file``: the other files of the project that take it."""
        real = os.path.abspath(file)
        if real not in self._importers:
            self._importers[real] = {}
            self.hints()
            for path in self._handing:
                self._note_imports(path, real)
        return self._importers[real]

    def hints(self) -> tuple[tuple[bytes, ...], re.Pattern[bytes]]:
        """What a file must hold to import torch_xla names through the project.

        One of the modules' words, and one of the names as a word. It rules out nearly all files
        before `leads_somewhere` follows their imports. The project is read for it twice.
        """
        if self._hints is None:
            names: set[str] = set()
            stems: set[str] = set()
            sources: set[str] = set()
            files = list(self.python_files())
            for file in files:
                if self._plain.get(file):
                    continue
                data = self.read(file)
                if data is None or not self._may_bind(data):
                    continue
                self._on_tpu = self._on_tpu or is_for_tpu(data)
                direct = self._direct(file, data)
                if direct:
                    names |= direct
                    stems.add(stem_of(file))
                    sources.add(file)
            known = -1
            tried: set[str] = set()
            holding: set[str] = set()
            while stems and known != len(names) + len(stems):
                known = len(names) + len(stems)
                # `trainer` is found wherever `trainer_utils` is.
                new = [s for s in stems - tried if not any(t in s and t != s for t in stems)]
                marks = [os.fsencode(s) for s in new]
                tried |= stems
                holding |= {f for f in files if f not in holding and self._holds(f, marks)}
                self._handing = [
                    f for f in files
                    if f in holding and self._hands_on(f, names, stems, words_pattern(names))
                ]  # fmt: skip
            self._names = frozenset(names)
            self._handing_set = frozenset(self._handing) | sources
            self._searched = frozenset(files)
            self._modules = {f: m for f, m in self._modules.items() if f in self._handing_set}
            self._hints = tuple(os.fsencode(s) for s in sorted(stems)), words_pattern(names)
        return self._hints

    def may_lead(self, path: str) -> bool:
        """Whether a file holds what `hints` asks for: cheaper than `leads_somewhere`, and wider."""
        self.hints()
        return os.path.abspath(path) in self._handing_set

    def _direct(self, file: str, data: bytes) -> set[str]:
        """The names at the top of a file that lead out of the project to what is followed."""
        wide = {
            local
            for module, imported in import_lines(data, top=True)
            for name, local in imported
            if module.startswith(PACKAGES) or self.in_house.imported(module, name)
        }
        if "*" not in wide and not has_aliases(data, wide):
            return wide
        module = self.module(file)
        # What does not parse is read by its text.
        return wide - {"*"} if module is None else direct_names(module, self.in_house)

    def _holds(self, file: str, marks: list[bytes]) -> bool:
        data = self.read(file)
        return data is not None and any(m in data for m in marks)

    def _hands_on(
        self, file: str, names: set[str], stems: set[str], pattern: re.Pattern[bytes]
    ) -> bool:
        """Whether a file may import the names; adds those that it binds at its top."""
        data = self.read(file) or b""
        named = any(n.encode() in data for n in names) and pattern.search(data) is not None
        brought: set[str] = set()
        modules: set[str] = set()
        for module, imported in import_lines(data):
            last = module.rpartition(".")[2]
            for name, local in imported:
                if name in names or (name == "*" and last in stems):
                    brought.add(local)
                elif name in stems or (name is None and last in stems):
                    # A module that is handed on is known by a name of its own from here.
                    modules.add(local)
        if brought and named:
            names |= self._bound_from(file, names, brought) - {"*"}
        if modules or (brought and named):
            stems |= {stem_of(file), *modules}
        return named or bool(modules)

    def _bound_from(self, file: str, names: set[str], brought: set[str]) -> set[str]:
        """The names at the top of a file that are bound through others: by import or alias."""
        module = self.module(file)
        if module is None:
            return brought
        return brought | {
            name
            for name, targets in module.exports.items()
            if any(not names.isdisjoint(target.split(".")) for target in targets)
        }

    def taken(self, file: str) -> frozenset[str]:
        """The names that other files take from the top of ``file``, whatever they are.

        ``*`` is among them where a file takes all of them.
        """
        real = os.path.abspath(file)
        if real not in self._taken:
            found: set[str] = set()
            stem = os.fsencode(stem_of(real))
            for path in self.python_files():
                data = self.read(path)
                if data is not None and stem in data and path != real:
                    found |= self.names_from(real, path, data)
                    if any(
                        ("*", "*") in names and self.module_file(module, path) == real
                        for module, names in self.import_lines_of(path, data)
                    ):
                        found.add("*")
            self._taken[real] = frozenset(found)
        return self._taken[real]

    def _note_imports(self, path: str, real: str) -> None:
        for name in self.names_from(real, path, self.read(path) or b""):
            self._importers[real].setdefault(name, set()).add(os.path.abspath(path))

    def names_from(self, real: str, path: str, data: bytes) -> set[str]:
        """The torch_xla names that a file takes from the top of another one, by its text.

        Through an import of the name, of the module or a package above, a star, or a string that
        spells the place.
        """
        found: set[str] = set()
        if os.path.abspath(path) == real:
            return found
        for module, names in self.import_lines_of(path, data):
            for name, local in names:
                if name is None:
                    base = module if local != module.split(".")[0] else local
                    found |= self._attributes(data, local, base, real, path)
                elif name == "*":
                    if self.module_file(module, path) == real:
                        worded = {n for n in self._names if has_word(data, n)}
                        found |= used_names(data, worded) if worded else worded
                else:
                    if self.module_file(module, path) == real:
                        found.add(name)
                    inner = f"{module}{'' if module.endswith('.') else '.'}{name}"
                    found |= self._attributes(data, local, inner, real, path)
        stem = os.fsencode(stem_of(real)) + b"."
        if stem in data:
            for match in re.finditer(rb"[\"'][\w.]*\b" + re.escape(stem) + rb"(\w+)", data):
                found.add(match[1].decode())
        return found

    def _attributes(self, data: bytes, local: str, base: str, real: str, path: str) -> set[str]:
        """The names taken from ``real`` through ``local``, which stands for ``base``."""
        found: set[str] = set()
        if self.module_of(base, path) is None:
            return found
        if self.module_of(base, path) == real:
            asked = rb"\bgetattr\(\s*" + local.encode() + rb"\s*,\s*[\"'](\w+)[\"']"
            found |= {m[1].decode() for m in re.finditer(asked, data)}
        if local.encode() + b"." not in data:
            return found
        for uses in chains(local, data):
            parts = uses.decode().strip(".").split(".")
            for length in range(len(parts)):
                whole = ".".join([base, *parts[:length]])
                if self.module_of(whole, path) == real:
                    found.add(parts[length])
        return found

    # -- hardware -------------------------------------------------------------------

    def is_on_tpu(self) -> bool:
        """Whether some file of the project imports torch_xla, or is written for TorchTPU.

        Never so for the packages that others train with: they are for all hardware.
        """
        self.hints()
        if not self._on_tpu and not self._looked:
            # What was migrated has no torch_xla, and was read only if the run is about it.
            self._looked = True
            texts = (self.read(f) for f in self._searched if f not in self._plain)
            self._on_tpu = any(migrated(data) for data in texts if data is not None)
        return self._on_tpu and not self.is_framework()

    def is_framework(self) -> bool:
        """Whether the project is one of the packages that drove TPUs by torch_xla."""
        if self._framework is None:
            place = os.path.join(self.root, "setup.py")
            files = (
                self.module_file(name, place) for name in (*FRAMEWORKS, *sorted(GUARD_PACKAGES))
            )
            self._framework = any(file and file.endswith("__init__.py") for file in files)
        return self._framework

    def other_hardware(self, file: str) -> str | None:
        """The vendor whose packages a file near ``file`` imports at its top, unguarded.

        Near are the files of its folder and of the packages around it: one project may hold
        examples for several kinds of hardware.
        """
        folder = os.path.dirname(os.path.abspath(file))
        while True:
            vendor = self._vendor_in(folder)
            if vendor is not None or folder == self.root:
                return vendor
            if "__init__.py" not in self.entries(folder):
                return None
            folder = os.path.dirname(folder)

    def _vendor_in(self, folder: str) -> str | None:
        if folder not in self._vendors:
            self._vendors[folder] = None
            for name in sorted(self.entries(folder)):
                data = self.read(os.path.join(folder, name)) if name.endswith(".py") else None
                self._vendors[folder] = vendor_in(data) if data else None
                if self._vendors[folder] is not None:
                    break
        return self._vendors[folder]
