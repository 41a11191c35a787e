"""The files of a project: their texts, the modules that they are, and what they import."""

from __future__ import annotations

import os

from xla2tpu.exports import ImportLine, import_lines


class ProjectFiles:
    """Reads the files below ``root``; ``buffers`` overrides files by unsaved text."""

    def __init__(self, root: str, buffers: dict[str, bytes] | None = None) -> None:
        self.root = os.path.abspath(root)
        self.buffers = buffers or {}
        # Texts that are kept for those who read the files next.
        self._texts: dict[str, bytes] = {}
        self._files: dict[tuple[str, str], str | None] = {}
        self._lines: dict[str, tuple[bytes, list[ImportLine]]] = {}
        self._listings: dict[str, frozenset[str]] = {}

    def read(self, path: str) -> bytes | None:
        """The bytes of a file, None where it cannot be read."""
        if path in self.buffers:
            return self.buffers[path]
        if path in self._texts:
            return self._texts[path]
        if not os.path.isfile(path):
            return None
        try:
            with open(path, "rb") as handle:
                return handle.read()
        except OSError:
            return None

    def module_file(self, module: str, importer: str) -> str | None:
        """The project file that ``module``, as written in ``importer``, stands for."""
        key = (module, os.path.dirname(importer))
        if key not in self._files:
            self._files[key] = self._find(module, importer)
        return self._files[key]

    def _find(self, module: str, importer: str) -> str | None:
        folder = os.path.dirname(os.path.abspath(importer))
        if module.startswith("."):
            level = len(module) - len(module.lstrip("."))
            for _ in range(level - 1):
                folder = os.path.dirname(folder)
            return self._below(folder, module.lstrip("."))
        for base in self._bases(folder):
            found = self._below(base, module)
            if found is not None:
                return found
        return None

    def _bases(self, folder: str) -> list[str]:
        """Where an absolute import may start: beside the script, above its package, root, src."""
        top = folder
        while "__init__.py" in self.entries(top) and top != self.root:
            top = os.path.dirname(top)
        bases = [folder] if top == folder else []
        bases += [top, self.root, os.path.join(self.root, "src")]
        return list(dict.fromkeys(bases))

    def _below(self, base: str, module: str) -> str | None:
        place = os.path.join(base, *module.split(".")) if module else base
        if not place.startswith(self.root):
            return None
        folder, name = os.path.split(place)
        entries = self.entries(folder)
        if name in entries and "__init__.py" in self.entries(place):
            return os.path.join(place, "__init__.py")
        if f"{name}.py" in entries:
            return f"{place}.py"
        for candidate in (os.path.join(place, "__init__.py"), f"{place}.py"):
            if candidate in self.buffers:
                return candidate
        return place if module and name in entries and os.path.isdir(place) else None

    def entries(self, folder: str) -> frozenset[str]:
        """The names in a folder, read once; empty where there is no such folder."""
        if folder not in self._listings:
            try:
                self._listings[folder] = frozenset(os.listdir(folder))
            except OSError:
                self._listings[folder] = frozenset()
        return self._listings[folder]

    def dotted(self, file: str) -> str:
        """The absolute dotted name of a module of the project."""
        folder, name = os.path.split(file.removesuffix(".py"))
        parts = [] if name == "__init__" else [name]
        while "__init__.py" in self.entries(folder) and folder != self.root:
            folder, name = os.path.split(folder)
            parts.insert(0, name)
        return ".".join(parts)

    def imported_files(self, path: str) -> set[str]:
        """The files of the project that a file imports, wherever in it."""
        data = self.read(path)
        found: set[str | None] = set()
        for module, names in self.import_lines_of(path, data) if data is not None else ():
            found.add(self.module_file(module, path))
            for name, _ in names:
                joint = "" if module.endswith(".") else "."
                inner = None if name is None else f"{module}{joint}{name}"
                found.add(None if inner is None else self.module_file(inner, path))
        return {file for file in found if file is not None and file.endswith(".py")}

    def import_lines_of(self, path: str, data: bytes) -> list[ImportLine]:
        """The imports of a file, read once for each text of it."""
        kept = self._lines.get(path)
        if kept is None or kept[0] != data:
            kept = self._lines[path] = data, list(import_lines(data))
        return kept[1]
