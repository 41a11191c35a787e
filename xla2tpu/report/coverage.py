"""What becomes of every public name of torch_xla, counted by release, as a page."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

from xla2tpu.model import Applicability
from xla2tpu.report.rulemarkdown import families, table
from xla2tpu.rulemodel import Rule, RuleSet

UNKNOWN = "XLA099"
_HEAD = (
    "<!-- Made by `python -m xla2tpu.docs` from docs/data/torch_xla_names.json; do not edit. -->\n"
    "# Coverage\n\n"
    "The public functions, classes and variables of torch_xla, read from the released packages of\n"
    "2.1, 2.5 and 2.9 and from the sources of 1.5 and 1.13 by\n"
    "[`scripts/torch_xla_names.py`](../scripts/torch_xla_names.py). Each has a rule: either some\n"
    "of its uses are rewritten, or all are left to a person for a stated [reason](reasons.md).\n"
    "Methods are not counted."
)


def uncovered(ruleset: RuleSet, inventory: Mapping[str, Any]) -> list[str]:
    """The names of an inventory that no rule of their own covers."""
    return [name for name, _, rule in _names(ruleset, inventory) if rule is None]


def page(ruleset: RuleSet, inventory: Mapping[str, Any]) -> str:
    """The page: by release, by family of rules, and by the reasons of what is never rewritten.

    ``inventory`` has ``releases``, and in ``names`` for each module its names, each with the
    releases that have it, separated by spaces.
    """
    releases: list[str] = inventory["releases"]
    totals: Counter[str] = Counter()
    rewritten: Counter[str] = Counter()
    by_family: dict[str, Counter[str]] = {family: Counter() for family in families(ruleset)}
    by_reason: dict[str, Counter[str]] = {}
    for _, having, rule in _names(ruleset, inventory):
        for release in having:
            totals[release] += 1
            if rule is None:
                continue
            by_family[rule.family][release] += 1
            if any(case.applicability is not Applicability.MANUAL for case in rule.cases):
                rewritten[release] += 1
                continue
            reason = next((case.reason for case in rule.cases if case.reason), None)
            by_reason.setdefault(reason or "-", Counter())[release] += 1
    by_release = [
        (release, totals[release], rewritten[release], _total(by_reason, release))
        for release in releases
    ]
    return "\n\n".join(
        (
            _HEAD,
            "## By release",
            table(("Release", "Names", "With a rewrite", "By hand"), by_release),
            "## By family of rules",
            _counts("Family", by_family, releases),
            "## By hand, by reason",
            _counts("Reason", dict(sorted(by_reason.items())), releases, "`{}`"),
        )
    )


def _names(
    ruleset: RuleSet, inventory: Mapping[str, Any]
) -> Iterator[tuple[str, list[str], Rule | None]]:
    for module, names in inventory["names"].items():
        for name, having in names.items():
            path = f"{module}.{name}"
            found = ruleset.lookup(path)
            known = found is not None and found[0].code != UNKNOWN
            yield path, having.split(), found[0] if found is not None and known else None


def _total(counts: Mapping[str, Counter[str]], release: str) -> int:
    return sum(counter[release] for counter in counts.values())


def _counts(
    head: str, counts: Mapping[str, Counter[str]], releases: list[str], form: str = "{}"
) -> str:
    rows = (
        (form.format(name), *(counter[release] for release in releases))
        for name, counter in counts.items()
        if counter.total()
    )
    return table((head, *releases), rows)
