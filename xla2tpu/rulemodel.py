"""What rules are made of: names, cases, examples, helpers; and the look-up of a torch_xla name."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn

from xla2tpu.inhouse import NOTHING, InHouse
from xla2tpu.model import Applicability, Effort

ACTIONS = ("delete", "replace", "statement", "unwrap", "keep", "transform", "reason")
CONTEXTS = frozenset(
    (
        "statement",
        "discarded",
        "value",
        "reference",
        "decorator",
        "decorator-call",
        "with-item",
        "lambda-body",
    )
)
USES = frozenset(("subscript", "attribute", "compare", "len", "truth"))
USER_FAMILY = "user"


class RuleError(ValueError):
    """A rule file is wrong; the message names the file, the rule and the key."""


def fail(path: str, code: str, key: str, problem: str) -> NoReturn:
    """Say what is wrong with a key of a rule of a file."""
    raise RuleError(f"{path}: {code}: {key}: {problem}")


@dataclass(frozen=True, slots=True)
class Signature:
    """Parameters of a callable, as ``(wait=False)``, and the releases that had them.

    ``since`` is the first release with it, ``removed`` the first without; None is open.
    """

    source: str
    since: str | None = None
    removed: str | None = None


@dataclass(frozen=True, slots=True)
class Api:
    """One torch_xla name that a rule covers; no signatures where it cannot be called."""

    path: str
    signatures: tuple[Signature, ...] = ()
    since: str | None = None
    removed: str | None = None


@dataclass(frozen=True, slots=True)
class Case:
    """One way in which a name is used, and what becomes of it there.

    Empty ``context``, ``args`` and ``used_as`` hold everywhere. ``template`` is set for
    ``replace`` and ``statement``, ``transform`` and ``reason`` for the actions of that name.
    """

    action: str
    context: frozenset[str] = frozenset()
    args: dict[str, tuple[str, ...]] = field(default_factory=dict)
    used_as: frozenset[str] = frozenset()
    template: str | None = None
    transform: str | None = None
    reason: str | None = None
    applicability: Applicability = Applicability.MANUAL
    imports: tuple[str, ...] = ()
    helpers: tuple[str, ...] = ()
    drops: frozenset[str] = frozenset()
    message: str | None = None
    advice: str | None = None
    fix_title: str | None = None
    effort: Effort | None = None


@dataclass(frozen=True, slots=True)
class Op:
    """A name of torch that does not run on the device unless torch_tpu has all it ``needs``.

    ``needs`` are operators of aten with their overloads (``median.dim_values``). Where ``args``
    are given, as in a case, only calls that fulfil them are meant.
    """

    path: str
    needs: tuple[str, ...]
    advice: str | None = None
    signature: str | None = None
    args: dict[str, tuple[str, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Use:
    """A name of another package, and how it is used where that means torch_xla.

    ``path`` may have one ``*``: in the middle for any modules, at the end for all below. ``args``
    are as in a case; ``holds`` are words in a literal argument. ``write`` is the new string in the
    argument that is tested first, or the last word of the name where none is; ``drop``: the
    argument goes. ``on_tpu``: it is only said in projects for TPUs, and does not keep a file from
    being done.
    """

    path: str
    signature: str | None = None
    args: dict[str, tuple[str, ...]] = field(default_factory=dict)
    holds: dict[str, tuple[str, ...]] = field(default_factory=dict)
    write: str | None = None
    drop: bool = False
    applicability: Applicability = Applicability.MANUAL
    on_tpu: bool = False
    message: str | None = None
    advice: str | None = None

    @property
    def argument(self) -> str | None:
        """The parameter that is tested first, None where none is."""
        return next(iter((*self.args, *self.holds)), None)


@dataclass(frozen=True, slots=True)
class Example:
    """A program before and after; ``left`` counts the findings that stay by hand.

    ``filename`` tells the kind of file where it is not Python.
    """

    before: str
    after: str | None = None
    unsafe: bool = False
    left: int | None = None
    filename: str | None = None
    settings: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule file. ``detector`` names code that finds its places where it has no ``apis``;
    ``ops`` are names of torch, ``uses`` of other packages (beside a detector they only tell what
    to say of them); ``tools`` marks a rule about the run itself, such as a file that does not
    parse.
    """

    code: str
    name: str
    family: str
    title: str
    message: str
    why: str
    advice: str
    effort: Effort
    path: str
    fix_title: str | None = None
    references: tuple[str, ...] = ()
    apis: dict[str, Api] = field(default_factory=dict)
    cases: tuple[Case, ...] = ()
    examples: tuple[Example, ...] = ()
    ok: tuple[str, ...] = ()
    detector: str | None = None
    ops: tuple[Op, ...] = ()
    uses: tuple[Use, ...] = ()
    tools: bool = False


@dataclass(frozen=True, slots=True)
class Helper:
    """A function or class that goes into a migrated file where PyTorch has no one-line equal."""

    name: str
    doc: str
    code: str
    alternatives: tuple[str, ...] = ()
    imports: tuple[str, ...] = ()
    inline: str | None = None


@dataclass(frozen=True, slots=True)
class RuleSet:
    """All rules, sorted by code, and the helpers that their templates call.

    ``in_house`` are the names outside torch_xla that users' rules cover.
    """

    rules: dict[str, Rule]
    helpers: dict[str, Helper]
    _exact: dict[str, tuple[Rule, Api]] = field(default_factory=dict, repr=False)
    _wildcards: dict[str, tuple[Rule, Api]] = field(default_factory=dict, repr=False)
    in_house: InHouse = field(default=NOTHING)

    def __post_init__(self) -> None:
        for rule in self.rules.values():
            for path, api in rule.apis.items():
                table = self._wildcards if path.endswith(".*") else self._exact
                other = table.setdefault(path.removesuffix(".*"), (rule, api))[0]
                if other is not rule:
                    fail(rule.path, rule.code, f"apis.{path}", f"already covered by {other.code}")

    def lookup(self, path: str) -> tuple[Rule, Api] | None:
        """The rule for a full dotted name, values of calls spelled with ``()``.

        An exact entry comes first, then the longest ``prefix.*``, which covers ``prefix`` too.
        """
        found = self._exact.get(path)
        while found is None and path:
            found = self._wildcards.get(path)
            path = path.rpartition(".")[0]
        return found

    def rule(self, code_or_name: str) -> Rule | None:
        """The rule with this code (any case) or this name."""
        found = self.rules.get(code_or_name.upper())
        if found is None:
            found = next((r for r in self.rules.values() if r.name == code_or_name), None)
        return found
