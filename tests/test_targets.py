"""Every torch name that a rewrite may write exists in torch and torch_tpu and does not raise.

torch_tpu registers a device only where there is a TPU, and reading some attributes of
``torch.tpu`` starts the runtime. So names are looked up in a child process, with the
registration switched off, and those of ``torch.tpu`` in its tables where that is enough.
"""

from __future__ import annotations

import ast
import importlib.util
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator

import pytest

from xla2tpu.rulemodel import RuleSet
from xla2tpu.rules import load_rules

PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\*{0,2})(\w+)(?:=([^{}]*))?\}")
# What the child answers for each dotted name: empty where all is well.
RESOLVE = """
import importlib, json, sys, warnings

warnings.simplefilter("ignore")
import torch
import torch_tpu  # makes torch.tpu

try:
    import tensorboard
except ImportError:
    tensorboard = None


def resolve(name):
    parts = name.split(".")
    value = importlib.import_module(parts[0])
    path = parts[0]
    for part in parts[1:]:
        if path == "torch.tpu" and part in value.__tt_api_stages__:
            return "" if name == f"{path}.{part}" else "cannot be looked up without a TPU"
        path = f"{path}.{part}"
        if not hasattr(value, part):
            try:
                importlib.import_module(path)
            except ImportError as error:
                if path.startswith("torch.utils.tensorboard") and tensorboard is None:
                    return ""
                return f"{path} does not exist ({error})"
        value = getattr(value, part)
        stage = getattr(value, "__tt_api_stage__", None)
        if stage == "Internal":
            prefer = getattr(value, "__tt_api_prefer__", None)
            return f"{path} raises for user code; use {prefer}"
        if stage == "Deprecated":
            return f"{path} is deprecated"
    return ""


print(json.dumps({name: resolve(name) for name in json.load(sys.stdin)}))
"""


def test_every_name_that_is_written_exists() -> None:
    if importlib.util.find_spec("torch") is None or importlib.util.find_spec("torch_tpu") is None:
        pytest.skip("torch and torch_tpu are not installed")
    places = written_names(load_rules())
    answers = resolved(sorted(places))
    wrong = {
        name: (answer, sorted(places[name])) for name, answer in answers.items() if answer != ""
    }
    assert not wrong
    assert "torch.accelerator.synchronize" in places
    assert "torch.distributed.get_world_size" in places


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("torch.tpu.synchronize", "raises for user code; use torch.accelerator.synchronize"),
        ("torch.tpu.get_rng_state", "raises for user code"),
        ("torch.accelerator.nothing_of_this_name", "does not exist"),
        ("torch.accelerator.random.get_rng_state", "does not exist"),
    ],
)
def test_wrong_names_are_seen(name: str, problem: str) -> None:
    if importlib.util.find_spec("torch_tpu") is None:
        pytest.skip("torch_tpu is not installed")
    assert problem in resolved([name])[name]


def test_modules_that_are_imported_plainly_come_with_torch() -> None:
    """`import torch.utils.dlpack` binds torch, whose own import has to be enough in their place."""
    pytest.importorskip("torch")
    rules = load_rules()
    texts = [text for rule in rules.rules.values() for case in rule.cases for text in case.imports]
    texts += [text for helper in rules.helpers.values() for text in helper.imports]
    modules = {text.split()[1] for text in texts if re.fullmatch(r"import torch\.[\w.]+", text)}
    assert modules
    code = f"import sys, torch; print(sorted({modules} - set(sys.modules)))"
    env = os.environ | {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    assert done.stdout.strip() == "[]", done.stderr


def test_names_are_found_through_imports_and_attributes() -> None:
    assert set(dotted_names("dist.get_rank() + len(x)", ["import torch.distributed as dist"])) == {
        "torch.distributed.get_rank",
        "torch.distributed",
    }
    assert set(dotted_names("walk(torch.Tensor)", ["from torch.utils import _pytree as walk"])) == {
        "torch.utils._pytree",
    }


def resolved(names: list[str]) -> dict[str, str]:
    """What is wrong with each name, asked of one child process."""
    done = subprocess.run(
        [sys.executable, "-c", RESOLVE],
        input=json.dumps(names),
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "TORCH_DEVICE_BACKEND_AUTOLOAD": "0"},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    answers: dict[str, str] = json.loads(done.stdout.splitlines()[-1])
    return answers


def written_names(ruleset: RuleSet) -> dict[str, set[str]]:
    """The torch names that templates, imports and helpers spell, and where they stand."""
    found: dict[str, set[str]] = {}
    for rule in ruleset.rules.values():
        for case in rule.cases:
            source = plain(case.template or "None")
            for name in dotted_names(source, case.imports):
                found.setdefault(name, set()).add(rule.code)
    for helper in ruleset.helpers.values():
        for source in (helper.code, plain(helper.inline or "None")):
            for name in dotted_names(source, helper.imports):
                found.setdefault(name, set()).add(helper.name)
    return found


def plain(template: str) -> str:
    """A template as Python source, its placeholders replaced by a name."""

    def stand_in(match: re.Match[str]) -> str:
        return match[0][0] if match[2] is None else f"{match[1]}placeholder"

    return PLACEHOLDER.sub(stand_in, template)


def dotted_names(source: str, imports: tuple[str, ...] | list[str]) -> Iterator[str]:
    """Full names in torch and torch_tpu that the imports and the source speak of."""
    bound: dict[str, str] = {}
    tree = ast.parse(source)
    inner = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    for statement in (*(ast.parse(text).body[0] for text in imports), *inner):
        assert isinstance(statement, ast.Import | ast.ImportFrom), ast.unparse(statement)
        for alias in statement.names:
            name = alias.name
            if isinstance(statement, ast.ImportFrom):
                name = f"{statement.module}.{name}"
                bound[alias.asname or alias.name] = name
            elif alias.asname:
                bound[alias.asname] = name
            else:
                root = name.partition(".")[0]
                bound[root] = root
            if of_torch(name):
                yield name
    inside = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Attribute)}
    for node in ast.walk(tree):
        if id(node) not in inside:
            chain = full_name(node, bound)
            if chain is not None and of_torch(chain):
                yield chain


def full_name(node: ast.AST, bound: dict[str, str]) -> str | None:
    """The dotted name of a chain of attributes whose root an import binds."""
    if isinstance(node, ast.Name):
        return bound.get(node.id)
    if isinstance(node, ast.Attribute):
        base = full_name(node.value, bound)
        return None if base is None else f"{base}.{node.attr}"
    return None


def of_torch(name: str) -> bool:
    return name.split(".", 1)[0] in ("torch", "torch_tpu")
