"""What a client sets, in its section ``xla2tpu``; the rest comes from the file's configuration."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any, NamedTuple

from xla2tpu.config import code_prefixes, module_name
from xla2tpu.model import Mode
from xla2tpu.runner import Request

# Settings in the same section that are for the client: how to start the server, and the like.
_OF_CLIENTS = frozenset({"command", "trace"})


class Options(NamedTuple):
    """The settings of a client for one file; ``delay`` is in seconds.

    ``rule_pages`` is where the pages of rules stand on the web, None for pages of our own.
    """

    enable: bool = True
    delay: float = 0.2
    unsafe_fixes: bool = False
    partial: bool = False
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    configuration: str | None = None
    helpers_module: str | None = None
    any_hardware: bool = False
    rule_pages: str | None = None

    def request(self, mode: Mode = Mode.CHECK, with_fixes: bool = False) -> Request:
        """The same as the command line would ask for it."""
        return Request(
            mode=mode,
            unsafe=self.unsafe_fixes,
            partial=self.partial,
            any_hardware=self.any_hardware,
            select=self.select,
            ignore=self.ignore,
            config=self.configuration,
            helpers_module=self.helpers_module,
            with_fixes=with_fixes,
        )


def parse(section: object, folder: str | None = None) -> tuple[Options, list[str]]:
    """The options of a client's section, and what is wrong with it.

    What is wrong or null is as if it were not set. ``folder`` is where relative paths start.
    """
    if section is None or section == []:  # an empty table of Lua may be either
        return Options(), []
    if not isinstance(section, dict):
        return Options(), ["xla2tpu: must be an object"]
    found: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in section.items():
        if key in _OF_CLIENTS:
            continue
        if key not in _KEYS:
            problems.append(f"xla2tpu.{key}: unknown setting; known are {', '.join(_KEYS)}")
        elif value is not None:
            name, parser = _KEYS[key]
            try:
                found[name] = parser(value)
            except ValueError as error:
                problems.append(f"xla2tpu.{key}: {error}")
    options = Options(**found)
    if options.configuration is not None and folder is not None:
        file = os.path.join(folder, os.path.expanduser(options.configuration))
        options = options._replace(configuration=file)
    return options, problems


def _flag(value: object) -> bool:
    if not isinstance(value, bool):
        raise ValueError(f"must be true or false, not {value!r}")
    return value


def _seconds(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 <= value <= 60_000:
        raise ValueError(f"must be a number of milliseconds, not {value!r}")
    return value / 1000


def _text(value: object) -> str | None:
    if not isinstance(value, str):
        raise ValueError(f"must be a text, not {value!r}")
    return value or None


def _module(value: object) -> str | None:
    return None if value == "" else module_name(value)


_KEYS: dict[str, tuple[str, Callable[[object], object]]] = {
    "enable": ("enable", _flag),
    "delay": ("delay", _seconds),
    "unsafeFixes": ("unsafe_fixes", _flag),
    "partial": ("partial", _flag),
    "select": ("select", code_prefixes),
    "ignore": ("ignore", code_prefixes),
    "configuration": ("configuration", _text),
    "helpersModule": ("helpers_module", _module),
    "anyHardware": ("any_hardware", _flag),
    "rulePages": ("rule_pages", _text),
}
