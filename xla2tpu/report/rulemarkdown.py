"""The rules as Markdown: the page of one, the index of all, the table of families."""

from __future__ import annotations

import os
import textwrap
from collections.abc import Iterable, Iterator

from xla2tpu.model import Applicability
from xla2tpu.report.rulepage import (
    case_line,
    conditions,
    span,
    use_conditions,
    use_outcome,
)
from xla2tpu.rulemodel import Api, Case, Example, Rule, RuleSet

_WORDS = {
    Applicability.SAFE: "safe",
    Applicability.UNSAFE: "unsafe",
    Applicability.MANUAL: "by hand",
}

_COVERS = {
    "imports": "imports, guards, strings, version tests, and what the tool says of a file",
    "sync": "step markers, step closures, compilation contexts, eager mode",
    "device": "devices, their names, kinds and counts",
    "ranks": "ranks, world sizes, processes and hosts",
    "host": "printing, saving, rate trackers, `utils`, `test_utils`",
    "program": "loaders, process launch, gradients, collectives",
    "numerics": "random state, memory, autocast, optimizers, checkpointing, precision",
    "debug": "metrics, profiler, dumps",
    "parallel": "SPMD, FSDP, kernels, experimental and internal modules",
    "environment": "environment variables, backend names",
    "ops": "calls of torch that torch_tpu has no kernel for",
    "frameworks": "what transformers, accelerate, Lightning and others do by torch_xla",
    "files": "requirements, install lines, images, variables and launchers around the code",
}
_CASES_NOTE = (
    "The first case that holds is taken ([its words](../rule-format.md#conditions)); "
    "where none holds, the place is left to a person."
)


def page(rule: Rule) -> str:
    """All about one rule; a link to the index of its family leads back."""
    source = f"rules/{rule.family}/{os.path.basename(rule.path)}"
    parts = [
        f"<!-- Made by `python -m xla2tpu.docs` from {source}; do not edit. -->",
        f"# {rule.code}: {rule.name}",
        f"{rule.title}. Family [{rule.family}](README.md#{rule.family}), "
        f"rewritten: {how(rule)}; what is left to a person is {rule.effort}.",
        f"> {rule.message}",
        textwrap.fill(" ".join(rule.why.split()), 100, break_on_hyphens=False),
    ]
    if rule.cases:
        cases = "\n".join(_case(case, rule) for case in rule.cases)
        parts += ["## What becomes of it", _CASES_NOTE, cases]
    parts += ["## What is left to a person", rule.advice]
    if rule.apis:
        rows = (_api_row(api) for api in rule.apis.values())
        parts += ["## Names", table(("Name", "Parameters", "Releases"), rows)]
    if rule.ops:
        parts += ["## Names", table(("Name", "Where", "Operators", "What to do"), _ops(rule))]
    if rule.uses:
        parts += ["## Names", table(("Name", "Where", "What becomes of it"), _uses(rule))]
    if rule.examples:
        parts.append("## Examples" if len(rule.examples) > 1 else "## Example")
        for example in rule.examples:
            parts += _example(example)
    if rule.ok:
        parts.append("## No finding")
        parts += [_code(source) for source in rule.ok]
    if rule.references:
        parts += ["## See", "\n".join(f"- <{link}>" for link in rule.references)]
    return "\n\n".join(parts) + "\n"


def index(ruleset: RuleSet) -> str:
    """A table of the rules for each family."""
    parts = [
        "<!-- Made by `python -m xla2tpu.docs`; do not edit. -->",
        "# Rules",
        "`safe` keeps the meaning, `unsafe` is to be reviewed, `by hand` is reported and marked. "
        "A rule may do one or the other, by the way in which the name is used.",
    ]
    for family, rules in families(ruleset).items():
        rows = (
            (f"[{rule.code}]({rule.code}.md)", f"`{rule.name}`", rule.title, how(rule))
            for rule in rules
        )
        parts += [f"## {family}", table(("Code", "Name", "What it finds", "Rewritten"), rows)]
    return "\n\n".join(parts) + "\n"


def family_table(ruleset: RuleSet, link: str) -> str:
    """One row for each family; ``link`` is the path of the index of rules."""
    rows = []
    for family, rules in families(ruleset).items():
        rewriting = sum(how(rule) not in ("by hand", "-") for rule in rules)
        codes = f"{rules[0].code} to {rules[-1].code}"
        title = f"[{family}]({link}#{family})"
        rows.append((title, codes, _COVERS.get(family, ""), str(len(rules)), str(rewriting)))
    return table(("Family", "Codes", "What it covers", "Rules", "with a rewrite"), rows) + "\n"


def families(ruleset: RuleSet) -> dict[str, list[Rule]]:
    """The rules by family, in the order of their codes."""
    found: dict[str, list[Rule]] = {}
    for rule in ruleset.rules.values():
        found.setdefault(rule.family, []).append(rule)
    return found


def how(rule: Rule) -> str:
    """How safely a rule rewrites, in words; its examples tell where code finds its places."""
    if rule.cases:
        # A transform may leave a place to a person as well.
        kinds = {case.applicability for case in rule.cases}
        kinds |= {Applicability.MANUAL for case in rule.cases if case.action == "transform"}
    elif rule.uses and rule.detector is None:
        kinds = {use.applicability for use in rule.uses}
    elif rule.ops:
        kinds = {Applicability.MANUAL}  # what an example rewrites, it rewrites by other rules
    else:
        kinds = {_kind(example) for example in rule.examples}
    *rest, last = [_WORDS[kind] for kind in Applicability if kind in kinds] or ["-"]
    return f"{', '.join(rest)} or {last}" if rest else last


def _kind(example: Example) -> Applicability:
    if example.after in (None, example.before):
        return Applicability.MANUAL
    return Applicability.UNSAFE if example.unsafe else Applicability.SAFE


def _case(case: Case, rule: Rule) -> str:
    template = (case.template or "").strip()
    line = case_line(case)
    if "\n" in template:
        line = line.replace(f"`{template}`", "these statements")
        line += ":\n\n" + textwrap.indent(_code(template), "  ") + "\n"
    if case.advice is not None and case.advice != rule.advice:
        line += f". {case.advice}"
    return f"- {line}"


def _api_row(api: Api) -> tuple[str, str, str]:
    whole = span(api.since, api.removed)
    parameters = []
    for signature in api.signatures:
        own = span(signature.since, signature.removed)
        parameters.append(f"`{signature.source}`{'' if own == whole else own}")
    return f"`{api.path}`", "<br>".join(parameters), whole.strip(" []")


def _ops(rule: Rule) -> Iterator[tuple[str, str, str, str]]:
    for op in rule.ops:
        needs = "<br>".join(f"`aten::{need}`" for need in op.needs)
        yield f"`{op.path}`", conditions(op), needs, op.advice or rule.advice


def _uses(rule: Rule) -> Iterator[tuple[str, str, str]]:
    for use in rule.uses:
        advice = use.advice or (rule.advice if use.message is None else "")
        yield f"`{use.path}`", use_conditions(use), use_outcome(use) or advice


def _example(example: Example) -> Iterator[str]:
    language = _language(example.filename)
    yield _code(example.before, language)
    conditions = [f"in `{example.filename}`"] if example.filename is not None else []
    conditions += [f"with `{name} = {value}`" for name, value in example.settings.items()]
    conditions += ["with unsafe fixes"] if example.unsafe else []
    given = f", {' and '.join(conditions)}" if conditions else ""
    if example.after in (None, example.before):
        yield f"is left to a person{given}."
        return
    yield f"becomes{given}:"
    yield _code(example.after or "", language)
    if example.left:
        places = "1 place" if example.left == 1 else f"{example.left} places"
        yield f"and leaves {places} to a person."


def _code(source: str, language: str = "python") -> str:
    return f"```{language}\n{source.rstrip()}\n```"


def _language(filename: str | None) -> str:
    """The word behind a fence for a kind of file."""
    name = filename or "example.py"
    endings = {".py": "python", ".toml": "toml", ".sh": "sh", "Dockerfile": "dockerfile"}
    return next((word for end, word in endings.items() if name.endswith(end)), "text")


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> str:
    """A table in GitHub's Markdown, without a newline at its end."""
    first = [str(cell) for cell in head]
    lines = [first, ["---"] * len(first), *rows]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )
