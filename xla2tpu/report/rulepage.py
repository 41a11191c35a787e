"""What the tool says of its rules: the list, the page of one, the answer about a name."""

from __future__ import annotations

import difflib
import json
import textwrap
from typing import Any

from xla2tpu.reasons import REASONS
from xla2tpu.rulemodel import Api, Case, Op, Rule, RuleSet, Use

# The names under which torch_xla's modules are imported by nearly everyone.
ALIASES = {
    "met": "torch_xla.debug.metrics",
    "pl": "torch_xla.distributed.parallel_loader",
    "test_utils": "torch_xla.test.test_utils",
    "xla_model": "torch_xla.core.xla_model",
    "xm": "torch_xla.core.xla_model",
    "xmp": "torch_xla.distributed.xla_multiprocessing",
    "xp": "torch_xla.debug.profiler",
    "xr": "torch_xla.runtime",
    "xs": "torch_xla.distributed.spmd",
    "xser": "torch_xla.utils.serialization",
    "xu": "torch_xla.utils.utils",
}


def listing(ruleset: RuleSet) -> str:
    """One line for each rule."""
    rules = ruleset.rules.values()
    width = max((len(rule.name) for rule in rules), default=0)
    return "".join(f"{r.code}  {r.name:{width}}  {r.title}\n" for r in rules)


def listing_json(ruleset: RuleSet) -> str:
    """The same for programs, with all that a rule says."""
    document = {"version": 1, "rules": [_data(rule) for rule in ruleset.rules.values()]}
    return json.dumps(document, indent=2) + "\n"


def page(rule: Rule) -> str:
    """All about one rule, as a text."""
    parts = [
        f"{rule.code} {rule.name} ({rule.family})\n{rule.title}\n",
        _wrapped(rule.why),
        "What is left to you: " + f"{rule.advice} ({rule.effort})\n",
    ]
    if rule.apis:
        parts.append("Names:\n" + "".join(f"  {api_line(api)}\n" for api in rule.apis.values()))
    if rule.ops:
        parts.append("Names:\n" + "".join(f"  {op_line(rule, op)}\n" for op in rule.ops))
    if rule.uses:
        parts.append("Names:\n" + "".join(f"  {use_line(rule, use)}\n" for use in rule.uses))
    if rule.cases:
        cases = "".join(f"  {case_line(case)}\n" for case in rule.cases)
        parts.append("What becomes of them:\n" + cases)
    for example in rule.examples[:2]:
        file = f" ({example.filename})" if example.filename is not None else ""
        parts.append(f"Before{file}:\n" + textwrap.indent(example.before, "    "))
        if example.after is not None:
            parts.append("After:\n" + textwrap.indent(example.after, "    "))
    if rule.references:
        parts.append("See:\n" + "".join(f"  {link}\n" for link in rule.references))
    return "\n".join(part if part.endswith("\n") else part + "\n" for part in parts)


def answer(ruleset: RuleSet, name: str) -> tuple[str, bool]:
    """What becomes of a torch_xla name or of a module's names, and whether it is known.

    Usual aliases (``xm.mark_step``) and bare names (``mark_step``) are understood.
    """
    found = _meant(ruleset, name)
    if not found and (lines := _of_torch(ruleset, name) + _of_others(ruleset, name)):
        return lines, True
    if not found:
        short = {path.rpartition(".")[2]: path for path in _spellings(ruleset)}
        close = difflib.get_close_matches(name.rpartition(".")[2], short, n=3)
        hint = f" Did you mean {', '.join(short[c] for c in close)}?" if close else ""
        return f"{name}: no rule knows this name.{hint}\n", False
    if len(found) == 1:
        return _full(*found[0]), True
    width = max(len(path) for path, _, _ in found)
    return "".join(f"{path:{width}}  {rule.code} {rule.title}\n" for path, rule, _ in found), True


def _of_torch(ruleset: RuleSet, name: str) -> str:
    """What is said of a name of torch that has no kernel; empty where it has one."""
    ending = "." + name.strip().removesuffix("()").removeprefix("F.").removeprefix("nn.")
    return "".join(
        f"{op_line(rule, op)} [{rule.code} {rule.name}]\n"
        for rule in ruleset.rules.values()
        for op in rule.ops
        if f".{op.path}".endswith(ending)
    )


def _of_others(ruleset: RuleSet, name: str) -> str:
    """What is said of a name of another package: its last words, or the whole path."""
    asked = f".{name.strip().removesuffix('()')}"
    return "".join(
        f"{use_line(rule, use)} [{rule.code} {rule.name}]\n"
        for rule in ruleset.rules.values()
        for use in rule.uses
        for head, _, tail in [f".{use.path}".partition(".*")]
        if (
            f"{head}{tail}".endswith(asked)
            if tail or ".*" not in use.path
            else asked.startswith(head)
        )
        or (tail and asked.startswith(head) and asked.endswith(tail))
    )


def answer_json(ruleset: RuleSet, name: str) -> tuple[str, bool]:
    """The same for programs."""
    names = [
        {
            **_api_data(path, api),
            "rule": rule.code,
            "name": rule.name,
            "why": rule.why,
            "cases": [_case_data(case) for case in rule.cases],
            "advice": rule.advice,
            "effort": str(rule.effort),
        }
        for path, rule, api in _meant(ruleset, name)
    ]
    document = {"version": 1, "query": name, "names": names}
    return json.dumps(document, indent=2) + "\n", bool(names)


def _spellings(ruleset: RuleSet) -> dict[str, str]:
    """Names without the ``()`` of values of calls, to the paths of the rules."""
    # The rule for names that no rule knows would answer for everything.
    paths = (path for rule in ruleset.rules.values() for path in rule.apis if path != "torch_xla.*")
    return {path.replace("()", "").removesuffix(".*"): path for path in paths}


def _meant(ruleset: RuleSet, name: str) -> list[tuple[str, Rule, Api]]:
    """What a spelling may mean: a full name, an alias, all of a module, or the last parts."""
    spellings = _spellings(ruleset)
    name = name.strip().replace("()", "")
    head, dot, rest = name.partition(".")
    full = ALIASES.get(head, head) + dot + rest
    if full in spellings:
        paths = [spellings[full]]
    else:
        paths = sorted(p for s, p in spellings.items() if s.startswith(full + "."))
        paths = paths or sorted(p for s, p in spellings.items() if s.endswith("." + name))
        paths = paths or [full]  # it may lie in a module that is covered as a whole
    found = [(path, ruleset.lookup(path)) for path in paths]
    return [
        (path, *hit) for path, hit in found if hit is not None and "torch_xla.*" not in hit[0].apis
    ]


def _full(path: str, rule: Rule, api: Api) -> str:
    lines = [f"{path}: {rule.code} {rule.name}, {rule.title}"]
    lines += [f"  signature: {s.source}{span(s.since, s.removed)}" for s in api.signatures]
    if api.removed is not None:
        lines.append(f"  gone from torch_xla since {api.removed}")
    elif api.since is not None:
        lines.append(f"  in torch_xla since {api.since}")
    lines += [f"  {case_line(case)}" for case in rule.cases]
    lines.append(textwrap.indent(_wrapped("why: " + rule.why), "  ").rstrip())
    lines.append(f"  by hand: {rule.advice} ({rule.effort})")
    return "\n".join(lines) + "\n"


def api_line(api: Api) -> str:
    """A name with its signatures and releases."""
    spans = span(api.since, api.removed)
    signatures = " / ".join(s.source for s in api.signatures)
    return f"{api.path}{signatures}{spans}"


def op_line(rule: Rule, op: Op) -> str:
    """A name of torch, where it is meant, and what to do instead."""
    where = f" ({conditions(op)})" if op.args else ""
    return f"{op.path}{where}: {op.advice or rule.advice}"


def conditions(of: Case | Op) -> str:
    """What arguments have to be, in words."""
    return ", ".join(f"{name}: {' or '.join(words)}" for name, words in of.args.items())


def use_conditions(use: Use) -> str:
    """Where a use of another package's name is meant, in words."""
    parts = [f"{name}: {' or '.join(words)}" for name, words in use.args.items()]
    parts += [f"{name} with {' or '.join(words)}" for name, words in use.holds.items()]
    parts += ["in projects for TPUs"] if use.on_tpu else []
    return ", ".join(parts)


def use_outcome(use: Use) -> str:
    """How the place is rewritten; empty where it is left to a person."""
    if use.drop:
        return f"{use.argument} is left out, {use.applicability}"
    return f'becomes "{use.write}", {use.applicability}' if use.write is not None else ""


def use_line(rule: Rule, use: Use) -> str:
    """A name of another package, where it is meant, and what becomes of it."""
    where = use_conditions(use)
    outcome = use_outcome(use) or use.advice or rule.advice
    return f"{use.path}{f' ({where})' if where else ''}: {outcome}"


def span(since: str | None, removed: str | None) -> str:
    """The releases of torch_xla that have something, as ``  [since 1.5, gone in 2.7]``."""
    words = [f"since {since}"] if since else []
    words += [f"gone in {removed}"] if removed else []
    return f"  [{', '.join(words)}]" if words else ""


def case_line(case: Case) -> str:
    """Where a case holds, what becomes of the place, and how safely."""
    parts = [*sorted(case.context), *([conditions(case)] if case.args else [])]
    parts += [f"used as {word}" for word in sorted(case.used_as)]
    when = f"{', '.join(parts)}: " if parts else ""
    return f"{when}{_action(case)}"


def _action(case: Case) -> str:
    if case.action == "reason":
        return f"by hand: {REASONS[case.reason or '']} ({case.reason})"
    what = {
        "delete": "removed",
        "unwrap": "unwrapped",
        "keep": "kept",
        "transform": f"rewritten by the transform {case.transform}",
    }.get(case.action, f"`{(case.template or '').strip()}`")
    return f"{what} ({case.applicability})"


def _wrapped(text: str) -> str:
    return textwrap.fill(" ".join(text.split()), 96) + "\n"


def _data(rule: Rule) -> dict[str, Any]:
    return {
        "code": rule.code,
        "name": rule.name,
        "family": rule.family,
        "title": rule.title,
        "message": rule.message,
        "why": rule.why,
        "fix_title": rule.fix_title,
        "advice": rule.advice,
        "effort": str(rule.effort),
        "references": list(rule.references),
        "apis": [_api_data(api.path, api) for api in rule.apis.values()],
        "ops": [
            {
                "name": op.path,
                "signature": op.signature,
                "args": {name: list(words) for name, words in op.args.items()},
                "needs": list(op.needs),
                "advice": op.advice,
            }
            for op in rule.ops
        ],
        "uses": [
            {
                "name": use.path,
                "signature": use.signature,
                "args": {name: list(words) for name, words in use.args.items()},
                "holds": {name: list(words) for name, words in use.holds.items()},
                "write": use.write,
                "drop": use.drop,
                "applicability": str(use.applicability),
                "on_tpu": use.on_tpu,
                "advice": use.advice,
            }
            for use in rule.uses
        ],
        "cases": [_case_data(case) for case in rule.cases],
    }


def _api_data(path: str, api: Api) -> dict[str, Any]:
    return {
        "api": path,
        "signatures": [signature.source for signature in api.signatures],
        "since": api.since,
        "removed": api.removed,
    }


def _case_data(case: Case) -> dict[str, Any]:
    return {
        "action": case.action,
        "context": sorted(case.context),
        "args": {name: list(words) for name, words in case.args.items()},
        "used_as": sorted(case.used_as),
        "template": case.template,
        "transform": case.transform,
        "reason": case.reason,
        "applicability": str(case.applicability),
    }
