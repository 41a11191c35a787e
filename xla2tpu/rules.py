"""The rules of the package and of users, from their files.

Loading checks the structure only, since it stands in the way of every run that has a hit;
`rulecheck` looks into signatures, templates, helpers and examples.
"""

from __future__ import annotations

import functools
import os
from typing import Any

import yaml

from xla2tpu.inhouse import InHouse
from xla2tpu.model import FAMILIES
from xla2tpu.rulemodel import USER_FAMILY, Helper, Rule, RuleError, RuleSet, fail
from xla2tpu.rulereader import read_helper, read_rule

# The C loader is about eight times as fast; PyYAML without libyaml has only the other one.
_LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def data_folder() -> str:
    """Where the rules lie: inside an installed package, else beside it in the checkout."""
    here = os.path.dirname(os.path.abspath(__file__))
    for folder in (os.path.join(here, "_rules"), os.path.join(os.path.dirname(here), "rules")):
        if os.path.isdir(folder):
            return folder
    raise RuleError(f"no folder of rules beside {here}")


def load_rules(extra: tuple[str, ...] = ()) -> RuleSet:
    """All rules of the package and those of the ``extra`` files; read once in a process.

    Raises `RuleError` for a wrong file and OSError for one that cannot be read.
    """
    return _load(extra)


def forget() -> None:
    """Read the files of all rules anew from now on."""
    _load.cache_clear()


@functools.cache
def _load(extra: tuple[str, ...]) -> RuleSet:
    rules: dict[str, Rule] = {}
    helpers: dict[str, Helper] = {}
    folder = data_folder()
    for family in _listing(folder):
        for file in _listing(os.path.join(folder, family), ".yaml"):
            path = os.path.join(folder, family, file)
            for document in _documents(path):
                if family == "helpers":
                    helper = read_helper(document, path)
                    helpers[helper.name] = helper
                else:
                    _add(rules, read_rule(document, path, family))
    for path in extra:
        documents = _documents(path)
        if not documents:
            raise RuleError(f"{path}: there is no rule in it")
        for document in documents:
            _add(rules, read_rule(document, path, USER_FAMILY))
    own = InHouse.of(a for r in rules.values() if r.family == USER_FAMILY for a in r.apis)
    # The rules about torch_xla come first.
    ordered = sorted(rules.items(), key=lambda item: (FAMILIES.index(item[0][:3]), item[0]))
    return RuleSet(dict(ordered), helpers, in_house=own)


def _listing(folder: str, suffix: str = "") -> list[str]:
    """Names in a folder, sorted; folders where there is no suffix."""
    with os.scandir(folder) as entries:
        return sorted(
            e.name
            for e in entries
            if (e.name.endswith(suffix) if suffix else e.is_dir() and e.name[0] not in "._")
        )


def _documents(path: str) -> list[Any]:
    with open(path, "rb") as file:
        text = file.read()
    try:
        return [d for d in yaml.load_all(text, _LOADER) if d is not None]
    except yaml.YAMLError as error:
        raise RuleError(f"{path}: not valid YAML: {error}") from error


def _add(rules: dict[str, Rule], rule: Rule) -> None:
    other = rules.setdefault(rule.code, rule)
    if other is not rule:
        fail(rule.path, rule.code, "code", f"already taken by {other.path}")
