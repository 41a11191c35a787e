"""Rules and helpers from the documents of their files; the structure is checked, no more.

The format is described in ``docs/rule-format.md``.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from typing import Any, NoReturn, cast

from xla2tpu.model import CODE, FAMILIES, Applicability, Effort
from xla2tpu.reasons import REASONS
from xla2tpu.rulemodel import (
    ACTIONS,
    CONTEXTS,
    USER_FAMILY,
    USES,
    Api,
    Case,
    Example,
    Helper,
    Op,
    Rule,
    Signature,
    Use,
    fail,
)

_FLAGS = frozenset(("delete", "unwrap", "keep"))
_CODE = re.compile(CODE + r"\Z")
_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*\Z")
_RULE_NEEDS = frozenset(("code", "name", "title", "message", "why", "advice", "effort"))
_RULE_KEYS = _RULE_NEEDS | frozenset(
    (
        "fix-title",
        "references",
        "apis",
        "detector",
        "ops",
        "uses",
        "tools",
        "cases",
        "examples",
        "ok",
    )
)
_CASE_KEYS = frozenset(ACTIONS) | frozenset(
    (
        "when",
        "applicability",
        "imports",
        "helpers",
        "drops",
        "message",
        "advice",
        "fix-title",
        "effort",
    )
)
_WHEN_KEYS = frozenset(("context", "args", "used-as"))
_API_KEYS = frozenset(("signature", "since", "removed"))
_RELEASE_KEYS = frozenset(("from", "signature", "removed"))
_OP_KEYS = frozenset(("needs", "signature", "when", "advice"))
_USE_KEYS = frozenset(
    (
        "signature",
        "when",
        "holds",
        "write",
        "drop",
        "applicability",
        "on-tpu",
        "message",
        "advice",
    )
)
_EXAMPLE_KEYS = frozenset(("before", "after", "unsafe", "left", "settings", "filename"))
_HELPER_KEYS = frozenset(("name", "alternatives", "doc", "imports", "code", "inline"))


class _Reader:
    """Takes the values of one document and fails with file, code and key."""

    def __init__(self, path: str, code: str) -> None:
        self.path = path
        self.code = code

    def fail(self, key: str, problem: str) -> NoReturn:
        fail(self.path, self.code, key, problem)

    def mapping(
        self, value: Any, known: frozenset[str], key: str, needs: Iterable[str] = ()
    ) -> dict[str, Any]:
        if not isinstance(value, dict):
            self.fail(key, "must be a mapping")
        for name in value:
            if name not in known:
                self.fail(f"{key}.{name}", "unknown key")
        for name in needs:
            if value.get(name) is None:
                self.fail(f"{key}.{name}", "missing")
        return value

    def text(self, data: Mapping[str, Any], key: str) -> str | None:
        value = data.get(key)
        if value is not None and not isinstance(value, str):
            self.fail(key, "must be a text (quote it)")
        return value

    def need(self, data: Mapping[str, Any], key: str) -> str:
        """A text that must be there and not be empty."""
        value = self.text(data, key)
        if not value or not value.strip():
            self.fail(key, "missing")
        return value

    def texts(self, data: Mapping[str, Any], key: str) -> tuple[str, ...]:
        """One text or a list of them."""
        value = data.get(key)
        if value is None:
            return ()
        if isinstance(value, str):
            return (value,)
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            self.fail(key, "must be a list of texts")
        return tuple(value)

    def items(self, data: Mapping[str, Any], key: str) -> list[Any]:
        value = data.get(key, [])
        if not isinstance(value, list):
            self.fail(key, "must be a list")
        return value

    def flag(self, data: Mapping[str, Any], key: str) -> bool:
        value = data.get(key, False)
        if not isinstance(value, bool):
            self.fail(key, "must be true or false")
        return value

    def words(self, data: Mapping[str, Any], key: str, known: frozenset[str]) -> frozenset[str]:
        words = frozenset(self.texts(data, key))
        for word in sorted(words - known):
            self.fail(key, f"unknown word {word!r}")
        return words

    def effort(self, data: Mapping[str, Any]) -> Effort | None:
        value = data.get("effort")
        if value is None:
            return None
        try:
            return Effort(value)
        except ValueError:
            self.fail("effort", f"must be trivial, small or redesign, not {value!r}")


def read_rule(document: Any, path: str, family: str) -> Rule:
    code = document.get("code") if isinstance(document, dict) else None
    read = _Reader(path, str(code) if code is not None else "a rule without a code")
    data = read.mapping(document, _RULE_KEYS, "rule", sorted(_RULE_NEEDS))
    if not isinstance(code, str) or not _CODE.match(code):
        read.fail("code", f"must be {' or '.join(FAMILIES)} and three digits")
    name = read.need(data, "name")
    if not _NAME.match(name):
        read.fail("name", "must be lower-case words with hyphens")
    if family != USER_FAMILY and os.path.basename(path) != f"{code}_{name}.yaml":
        read.fail("name", f"the file must be called {code}_{name}.yaml")
    tools = read.flag(data, "tools")
    detector = read.text(data, "detector")
    apis = data.get("apis")
    ops = data.get("ops")
    uses = data.get("uses")
    finds_by_name = uses is not None and detector is None
    kinds = (apis is not None, detector is not None, ops is not None, finds_by_name, tools)
    if sum(kinds) != 1:
        read.fail("apis", "exactly one of apis, detector, ops, uses and tools must be given")
    if uses is not None and (not isinstance(uses, dict) or not uses):
        read.fail("uses", "must be a mapping of names to their uses")
    if ops is not None and (not isinstance(ops, dict) or not ops):
        read.fail("ops", "must be a mapping of names to operators")
    if apis is not None and (not isinstance(apis, dict) or not apis):
        read.fail("apis", "must be a mapping of names to signatures")
    cases = tuple(
        _case(case, read, f"cases[{i}]") for i, case in enumerate(read.items(data, "cases"))
    )
    if apis is not None and not cases:
        read.fail("cases", "missing")
    return Rule(
        code=code,
        name=name,
        family=family,
        title=read.need(data, "title"),
        message=read.need(data, "message"),
        why=read.need(data, "why").strip(),
        fix_title=read.text(data, "fix-title"),
        advice=read.need(data, "advice").strip(),
        effort=cast(Effort, read.effort(data)),
        references=read.texts(data, "references"),
        apis={str(api): _api(str(api), value, read) for api, value in (apis or {}).items()},
        cases=cases,
        examples=tuple(
            _example(example, read, f"examples[{i}]")
            for i, example in enumerate(read.items(data, "examples"))
        ),
        ok=read.texts(data, "ok"),
        path=path,
        detector=detector,
        ops=tuple(op for name, value in (ops or {}).items() for op in _ops(str(name), value, read)),
        uses=tuple(
            use for name, value in (uses or {}).items() for use in _uses(str(name), value, read)
        ),
        tools=tools,
    )


def _api(path: str, value: Any, read: _Reader) -> Api:
    key = f"apis.{path}"
    if value is None:
        return Api(path)
    if isinstance(value, str):
        return Api(path, (Signature(value),))
    if isinstance(value, list):
        signatures = []
        for item in value:
            data = read.mapping(item, _RELEASE_KEYS, key, ("from", "signature"))
            signatures.append(
                Signature(
                    read.need(data, "signature"),
                    _release(data, "from", read, key),
                    _release(data, "removed", read, key),
                )
            )
        if not signatures:
            read.fail(key, "must not be empty")
        # The name itself is as old as its first signature and gone with its last.
        return Api(path, tuple(signatures), None, signatures[-1].removed)
    data = read.mapping(value, _API_KEYS, key)
    source = read.text(data, "signature")
    since, removed = (_release(data, word, read, key) for word in ("since", "removed"))
    return Api(path, (Signature(source, since, removed),) if source else (), since, removed)


def _ops(path: str, value: Any, read: _Reader) -> Iterable[Op]:
    """The ways to use a name of torch that one entry is about."""
    key = f"ops.{path}"
    for item in value if isinstance(value, list) else [value]:
        form = {"needs": item} if isinstance(item, str) else item
        data = read.mapping(form, _OP_KEYS, key, ("needs",))
        args = _conditions({"args": data.get("when", {})}, read, f"{key}.when")
        signature = read.text(data, "signature")
        if args and signature is None:
            read.fail(f"{key}.signature", "missing; conditions need it")
        yield Op(path, read.texts(data, "needs"), read.text(data, "advice"), signature, args)


def _uses(path: str, value: Any, read: _Reader) -> Iterable[Use]:
    """The ways to use a name of another package that one entry is about."""
    key = f"uses.{path}"
    for item in value if isinstance(value, list) else [value]:
        data = read.mapping({} if item is None else item, _USE_KEYS, key)
        write, drop = read.text(data, "write"), read.flag(data, "drop")
        args = _conditions({"args": data.get("when", {})}, read, f"{key}.when")
        holds = _conditions({"args": data.get("holds", {})}, read, f"{key}.holds")
        applicability = Applicability.MANUAL
        if write is not None or drop:
            if drop and (write is not None or not (args or holds)):
                read.fail(key, "either write, or drop and a condition for the argument")
            applicability = _applicability(data, "drop", read, key)
        elif data.get("applicability") is not None:
            read.fail(f"{key}.applicability", "goes with write or drop only")
        yield Use(
            path, read.text(data, "signature"), args, holds, write, drop, applicability,
            read.flag(data, "on-tpu"), read.text(data, "message"), read.text(data, "advice"),
        )  # fmt: skip


def _release(data: Mapping[str, Any], word: str, read: _Reader, key: str) -> str | None:
    value = data.get(word)
    # Unquoted, 2.10 would be read as the number 2.1.
    if value is not None and not isinstance(value, str):
        read.fail(f"{key}.{word}", "must be a quoted release")
    return value


def _case(document: Any, read: _Reader, key: str) -> Case:
    data = read.mapping(document, _CASE_KEYS, key)
    actions = [word for word in ACTIONS if word in data]
    if len(actions) != 1:
        read.fail(key, f"exactly one action is needed, not {len(actions)}")
    action = actions[0]
    if action in _FLAGS and data[action] is not True:
        read.fail(f"{key}.{action}", "must be true")
    text = None if action in _FLAGS else read.need(data, action)
    if action == "reason" and text not in REASONS:
        read.fail(f"{key}.reason", f"unknown reason {text!r}")
    when = read.mapping(data.get("when", {}), _WHEN_KEYS, f"{key}.when")
    context = read.words(when, "context", CONTEXTS)
    if action == "statement" and context != {"statement"}:
        read.fail(f"{key}.statement", "needs `when: {context: statement}`")
    return Case(
        action=action,
        context=context,
        args=_conditions(when, read, f"{key}.when.args"),
        used_as=read.words(when, "used-as", USES),
        template=text if action in ("replace", "statement") else None,
        transform=text if action == "transform" else None,
        reason=text if action == "reason" else None,
        applicability=_applicability(data, action, read, key),
        imports=read.texts(data, "imports"),
        helpers=read.texts(data, "helpers"),
        drops=frozenset(read.texts(data, "drops")),
        message=read.text(data, "message"),
        advice=read.text(data, "advice"),
        fix_title=read.text(data, "fix-title"),
        effort=read.effort(data),
    )


def _applicability(data: Mapping[str, Any], action: str, read: _Reader, key: str) -> Applicability:
    value = data.get("applicability", "safe" if action == "keep" else None)
    if action == "reason":
        if value is not None:
            read.fail(f"{key}.applicability", "does not go with a reason")
        return Applicability.MANUAL
    if value not in ("safe", "unsafe"):
        read.fail(f"{key}.applicability", "must be safe or unsafe")
    return Applicability(value)


def _conditions(when: Mapping[str, Any], read: _Reader, key: str) -> dict[str, tuple[str, ...]]:
    conditions = when.get("args", {})
    if not isinstance(conditions, dict):
        read.fail(key, "must be a mapping of parameters")
    # A literal may be written bare: YAML's false is Python's False.
    return {
        str(name): tuple(str(word) for word in (words if isinstance(words, list) else [words]))
        for name, words in conditions.items()
    }


def _example(document: Any, read: _Reader, key: str) -> Example:
    data = read.mapping(document, _EXAMPLE_KEYS, key, ("before",))
    left = data.get("left")
    if left is not None and (not isinstance(left, int) or isinstance(left, bool) or left < 1):
        read.fail(f"{key}.left", "must be a number of findings")
    if left is None and "after" not in data:
        read.fail(f"{key}.after", "missing; give `left` where a person must act")
    settings = data.get("settings", {})
    if not isinstance(settings, dict):
        read.fail(f"{key}.settings", "must be a mapping")
    return Example(
        before=read.need(data, "before"),
        after=read.text(data, "after"),
        unsafe=read.flag(data, "unsafe"),
        left=left,
        filename=read.text(data, "filename"),
        settings={str(name): str(value) for name, value in settings.items()},
    )


def read_helper(document: Any, path: str) -> Helper:
    read = _Reader(path, "helper")
    data = read.mapping(document, _HELPER_KEYS, "helper")
    name = read.need(data, "name")
    if os.path.basename(path) != f"{name}.yaml":
        read.fail("name", f"the file must be called {name}.yaml")
    return Helper(
        name=name,
        doc=read.need(data, "doc"),
        code=read.need(data, "code"),
        alternatives=read.texts(data, "alternatives"),
        imports=read.texts(data, "imports"),
        inline=read.text(data, "inline"),
    )
