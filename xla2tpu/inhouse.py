"""Names outside torch_xla that a user's own rules cover, such as a company's wrappers."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable
from typing import NamedTuple

PACKAGES = ("torch_xla", "torch_xla_py")


# Since 2.3 `torch_xla` has all names of its module `torch_xla`, those of imports too.
_HANDED_ON = {
    "xenv": "torch_xla.core.xla_env_vars",
    "xm": "torch_xla.core.xla_model",
    "xmp": "torch_xla.distributed.xla_multiprocessing",
    "xr": "torch_xla.runtime",
    "xu": "torch_xla.utils.utils",
}


def handed_on(path: str) -> str:
    """The path of the module itself, which `torch_xla` may hand on as `torch_xla.xm`."""
    if not path.startswith("torch_xla.x"):
        return path
    _, name, *rest = path.split(".")
    module = _HANDED_ON.get(name)
    return ".".join([module, *rest]) if module is not None else path


def is_torch_xla(path: str | None) -> bool:
    """Whether a dotted path lies in torch_xla (or in its name of before 1.0)."""
    return path is not None and path.split(".", 1)[0] in PACKAGES


class InHouse(NamedTuple):
    """The covered names: ``exact`` ones, and modules ``below`` which all names are covered."""

    exact: frozenset[str] = frozenset()
    below: frozenset[str] = frozenset()

    @classmethod
    def of(cls, apis: Iterable[str]) -> InHouse:
        """Those among the paths of rules that do not lie in torch_xla."""
        own = [api for api in apis if not is_torch_xla(api)]
        return cls(
            frozenset(api for api in own if not api.endswith(".*")),
            frozenset(api.removesuffix(".*") for api in own if api.endswith(".*")),
        )

    def covers(self, path: str) -> bool:
        """Whether some rule is about this name."""
        if path in self.exact:
            return True
        while self.below and path:
            path = path.rpartition(".")[0]
            if path in self.below:
                return True
        return False

    def leads(self, path: str) -> bool:
        """Whether a name is covered, or has covered names below it."""
        return bool(self) and (path in _above(self) or self.covers(path))

    def imported(self, module: str, name: str | None) -> bool:
        """Whether an import of ``name`` from ``module``, as written, may bring such a name.

        A relative import is judged by its last word alone; name is None for the module itself.
        """
        if not self:
            return False
        if module.startswith("."):
            return not {name, module.rpartition(".")[2]}.isdisjoint(_words(self))
        return self.leads(module if name in (None, "*") else f"{module}.{name}")

    def mentioned(self, data: bytes) -> bool:
        """Whether the bytes of a file spell the last word of any of the names."""
        return bool(self) and _pattern(self).search(data) is not None

    def __bool__(self) -> bool:
        return bool(self.exact or self.below)


NOTHING = InHouse()


@functools.cache
def _above(names: InHouse) -> frozenset[str]:
    """The modules and classes above the covered names."""
    found = set(names.below)
    for path in (*names.exact, *names.below):
        parts = path.split(".")
        found.update(".".join(parts[:length]) for length in range(1, len(parts)))
    return frozenset(path for path in found if "(" not in path)


@functools.cache
def _words(names: InHouse) -> frozenset[str]:
    """The last word of each name, of the class or function where it is of a value."""
    paths = {path.partition("(")[0] for path in (*names.exact, *names.below)}
    return frozenset(path.rpartition(".")[2] for path in paths)


@functools.cache
def _pattern(names: InHouse) -> re.Pattern[bytes]:
    words = b"|".join(re.escape(word.encode()) for word in sorted(_words(names)))
    return re.compile(rb"\b(?:" + words + rb")\b")
