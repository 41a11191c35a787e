"""What is wrong inside rules: signatures, templates, helpers, transforms, examples.

The loader looks at the structure only, to be fast; this runs in tests and for rule files of
the user.
"""

from __future__ import annotations

import ast
import builtins
import os
import re
from collections.abc import Iterator

from xla2tpu.prefilter import FRAMEWORKS, GUARD_PACKAGES
from xla2tpu.rulemodel import USER_FAMILY, Api, Case, Helper, Op, Rule, RuleSet, Use
from xla2tpu.rules import load_rules

SETTINGS = frozenset(
    ("source-version", "device", "launcher", "processes", "helpers-module", "any-hardware")
)
CONDITIONS = frozenset(("absent", "given", "constant"))
# A placeholder of a template: {name}, {name=TEXT}, {*name}, {**name}; {{ and }} are braces.
PLACEHOLDER = re.compile(r"\{\{|\}\}|\{(\*{0,2})([A-Za-z_]\w*)(?:=([^{}]*))?\}")
_TRANSFORMS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "transforms")
_STAND_IN = "placeholder__"


def problems(ruleset: RuleSet) -> list[str]:
    """One line for each problem: file, rule, key, what is wrong."""
    found = []
    for rule in ruleset.rules.values():
        found += [f"{rule.path}: {rule.code}: {text}" for text in _rule(rule, ruleset)]
    for helper in ruleset.helpers.values():
        found += [f"helper {helper.name}: {text}" for text in _helper(helper, ruleset)]
    return found


def user_problems(rule_files: tuple[str, ...]) -> list[str]:
    """The problems of a user's own rule files. Raises RuleError and OSError as loading does."""
    ruleset = load_rules(rule_files)
    own = {rule.path for rule in ruleset.rules.values() if rule.family == USER_FAMILY}
    return [line for line in problems(ruleset) if line.split(": ")[0] in own]


def _rule(rule: Rule, ruleset: RuleSet) -> Iterator[str]:
    if not rule.examples and not rule.tools:
        yield "examples: missing"
    names: set[str] = set()
    for api in rule.apis.values():
        for signature in api.signatures:
            parameters = _parameters(signature.source)
            if parameters is None:
                yield f"apis.{api.path}: {signature.source!r} is not a list of parameters"
            else:
                names |= parameters
        yield from _api(api)
    for op in rule.ops:
        for fault in _op(op):
            yield f"ops.{op.path}: {fault}"
    for use in rule.uses:
        for fault in _use(use):
            yield f"uses.{use.path}: {fault}"
    for i, case in enumerate(rule.cases):
        for text in _case(case, names, ruleset):
            yield f"cases[{i}].{text}"
    texts = [("message", rule.message), ("advice", rule.advice), ("title", rule.title)]
    for key, text in texts:
        if "\n" in text.strip():
            yield f"{key}: must be one line"
    for i, example in enumerate(rule.examples):
        for key, source in (("before", example.before), ("after", example.after)):
            problem = source and example.filename is None and _syntax(source)
            # What does not parse is the very subject of some rules about the run.
            if problem and not rule.tools:
                yield f"examples[{i}].{key}: {problem}"
        for setting in example.settings.keys() - SETTINGS:
            yield f"examples[{i}].settings.{setting}: unknown setting"
    for i, source in enumerate(rule.ok):
        problem = _syntax(source)
        if problem:
            yield f"ok[{i}]: {problem}"


def _api(api: Api) -> Iterator[str]:
    if not re.fullmatch(r"\w+(\(\))?(\.\w+(\(\))?)*(\.\*)?", api.path):
        yield f"apis.{api.path}: not a dotted name"
    releases = [s.since for s in api.signatures if s.since]
    for release in (*releases, *(s.removed for s in api.signatures), api.since, api.removed):
        if release is not None and not re.fullmatch(r"\d+(\.\d+)+", release):
            yield f"apis.{api.path}: {release!r} is not a release"
            return
    if releases != sorted(releases, key=_key):
        yield f"apis.{api.path}: the newest signature must be last"


def _op(op: Op) -> Iterator[str]:
    if not re.fullmatch(r"\w+(\.\w+)+", op.path):
        yield "not a dotted name"
    if not op.needs:
        yield "needs no operator"
    parameters: set[str] | None = set()
    if op.signature is not None:
        parameters = _parameters(op.signature)
    if parameters is None:
        yield f"{op.signature!r} is not a list of parameters"
        return
    yield from _conditions(op.args, parameters)


def _use(use: Use) -> Iterator[str]:
    if not re.fullmatch(r"\w+(\.\w+)*(\.\*)?(\.\w+)*", use.path):
        yield "not a dotted name"
    if use.path.split(".")[0] not in GUARD_PACKAGES.union(FRAMEWORKS):
        yield "not one of the packages that files are searched for"
    if use.write is not None and not re.fullmatch(r"[\w ./-]+", use.write):
        yield f"write: {use.write!r} is no plain text of a string"
    for key, text in (("message", use.message), ("advice", use.advice)):
        if text is not None and "\n" in text.strip():
            yield f"{key}: must be one line"
    named = {*use.args, *use.holds}
    # Without a signature, arguments are told by their keywords.
    parameters = named if use.signature is None else _parameters(use.signature)
    if parameters is None:
        yield f"{use.signature!r} is not a list of parameters"
        return
    yield from _conditions(use.args, parameters)
    for name in sorted(set(use.holds) - parameters):
        yield f"{name}: no parameter"


def _key(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


def _case(case: Case, parameters: set[str], ruleset: RuleSet) -> Iterator[str]:
    for problem in _conditions(case.args, parameters):
        yield f"when.args.{problem}"
    for name in sorted(case.drops - parameters):
        yield f"drops: {name} is no parameter"
    for name in case.helpers:
        if name not in ruleset.helpers:
            yield f"helpers: {name} does not exist"
    script = os.path.join(_TRANSFORMS, f"{case.transform}.py")
    if case.transform is not None and not os.path.isfile(script):
        yield f"transform: {case.transform} does not exist"
    bound = set(case.helpers)
    for text in case.imports:
        imported = _imported(text)
        if imported is None:
            yield f"imports: {text!r} is not an import"
        else:
            bound |= imported
    if case.template is not None:
        for problem in _template(case, case.template, parameters, bound):
            yield f"{case.action}: {problem}"
        for name in case.helpers:
            if not re.search(rf"\b{name}\b", case.template):
                yield f"helpers: {name} is not called"


def _conditions(args: dict[str, tuple[str, ...]], parameters: set[str]) -> Iterator[str]:
    for name, words in args.items():
        if name not in parameters:
            yield f"{name}: no parameter"
        for word in set(words) - CONDITIONS:
            if _syntax(word, "eval"):
                yield f"{name}: {word!r} is no condition"


def _template(case: Case, template: str, parameters: set[str], bound: set[str]) -> Iterator[str]:
    for match in PLACEHOLDER.finditer(template):
        name = match[2]
        if name is not None and name not in parameters and name != "call":
            yield f"{{{name}}} is no parameter"
        if match[3] is not None and _syntax(match[3], "eval"):
            yield f"{match[0]} has no expression"
    source = PLACEHOLDER.sub(_stand_in, template)
    try:
        tree = ast.parse(source, mode="exec" if case.action == "statement" else "eval")
    except SyntaxError as error:
        yield f"not valid Python: {error.msg}"
        return
    for name in sorted(_free(tree) - bound - set(dir(builtins))):
        yield f"{name} is bound by no import and no helper"


def _stand_in(match: re.Match[str]) -> str:
    if match[2] is None:
        return match[0][0]
    return match[1] + _STAND_IN


def _free(tree: ast.AST) -> set[str]:
    loads: set[str] = set()
    stores = {_STAND_IN}
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            (loads if isinstance(node.ctx, ast.Load) else stores).add(node.id)
        elif isinstance(node, ast.arg):
            stores.add(node.arg)
        elif isinstance(node, ast.alias):
            stores.add(node.asname or node.name.partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            stores.add(node.name)
    return loads - stores


def _helper(helper: Helper, ruleset: RuleSet) -> Iterator[str]:
    bound: set[str] = set()
    for text in helper.imports:
        imported = _imported(text)
        if imported is None:
            yield f"imports: {text!r} is not an import"
        else:
            bound |= imported
    if "\n" in helper.doc.strip():
        yield "doc: must be one line"
    try:
        body = ast.parse(helper.code).body
    except SyntaxError as error:
        yield f"code: not valid Python: {error.msg}"
        return
    kinds = (ast.FunctionDef, ast.ClassDef)
    if len(body) != 1 or not isinstance(body[0], kinds) or body[0].name != helper.name:
        yield f"code: must be one function or class called {helper.name}"
        return
    if ast.get_docstring(body[0]) is None:
        yield "code: has no docstring"
    definition = body[0]
    parameters: set[str] = set()
    if isinstance(definition, ast.FunctionDef):
        parameters = _argument_names(definition.args)
    if helper.inline is not None:
        for match in PLACEHOLDER.finditer(helper.inline):
            if match[2] is not None and match[2] not in parameters:
                yield f"inline: {{{match[2]}}} is no parameter"
        problem = _syntax(PLACEHOLDER.sub(_stand_in, helper.inline), "eval")
        if problem:
            yield f"inline: {problem}"
    own = bound | set(ruleset.helpers) | set(dir(builtins)) | {"self"}
    for name in sorted(_free(definition) - own):
        yield f"code: {name} is not imported"


def _parameters(source: str) -> set[str] | None:
    try:
        definition = ast.parse(f"def f{source}: pass").body[0]
    except SyntaxError:
        return None
    return _argument_names(definition.args) if isinstance(definition, ast.FunctionDef) else None


def _argument_names(args: ast.arguments) -> set[str]:
    listed = [*args.posonlyargs, *args.args, *args.kwonlyargs, args.vararg, args.kwarg]
    return {arg.arg for arg in listed if arg is not None}


def _imported(text: str) -> set[str] | None:
    """The names that an import statement binds; None where it is something else."""
    try:
        body = ast.parse(text).body
    except SyntaxError:
        return None
    if len(body) != 1 or not isinstance(body[0], ast.Import | ast.ImportFrom):
        return None
    return {alias.asname or alias.name.partition(".")[0] for alias in body[0].names}


def _syntax(source: str, mode: str = "exec") -> str | None:
    try:
        compile(source, "<rule>", mode, ast.PyCF_ONLY_AST)
    except SyntaxError as error:
        return f"not valid Python: {error.msg} (line {error.lineno})"
    return None
