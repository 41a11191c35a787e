"""The JSON schema of a rule file, for editors; the loader has checks and messages of its own."""

from __future__ import annotations

from typing import Any

from xla2tpu.model import CODE, Applicability, Effort
from xla2tpu.reasons import REASONS
from xla2tpu.rulecheck import SETTINGS
from xla2tpu.rulemodel import ACTIONS, CONTEXTS, USES

_LINE: dict[str, Any] = {"type": "string", "pattern": r"^[^\n]+\n?$"}
_TEXT: dict[str, Any] = {"type": "string", "minLength": 1}
_RELEASE: dict[str, Any] = {"type": "string", "pattern": r"^[0-9]+(\.[0-9]+)+$"}
_PARAMETERS: dict[str, Any] = {"type": "string", "pattern": r"^\(.*\)$"}
_TRUE: dict[str, Any] = {"const": True}
# A literal may be written bare: YAML's false is Python's False.
_WORD: dict[str, Any] = {"type": ["string", "boolean", "number"]}
_EFFORT: dict[str, Any] = {"enum": [str(effort) for effort in Effort]}


def _object(properties: dict[str, Any], *required: str) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(required),
        "additionalProperties": False,
    }


def _one_or_more(items: dict[str, Any]) -> dict[str, Any]:
    return {"anyOf": [items, {"type": "array", "items": items, "minItems": 1}]}


def _exactly_one(*keys: str) -> list[dict[str, Any]]:
    return [{"required": [key]} for key in keys]


def _api() -> dict[str, Any]:
    release = _object(
        {"from": _RELEASE, "signature": _PARAMETERS, "removed": _RELEASE}, "from", "signature"
    )
    whole = _object({"signature": _PARAMETERS, "since": _RELEASE, "removed": _RELEASE})
    many = {"type": "array", "items": release, "minItems": 1}
    return {"anyOf": [{"type": "null"}, _PARAMETERS, many, whole]}


def _op() -> dict[str, Any]:
    form = _object(
        {
            "needs": _one_or_more(_LINE),
            "signature": _PARAMETERS,
            "when": {"type": "object", "additionalProperties": _one_or_more(_WORD)},
            "advice": _LINE,
        },
        "needs",
    )
    return {"anyOf": [_LINE, form, {"type": "array", "items": form, "minItems": 1}]}


def _use() -> dict[str, Any]:
    words = {"type": "object", "additionalProperties": _one_or_more(_WORD)}
    rewrites = [str(a) for a in Applicability if a is not Applicability.MANUAL]
    form = _object(
        {
            "signature": _PARAMETERS,
            "when": words,
            "holds": words,
            "write": _LINE,
            "drop": _TRUE,
            "applicability": {"enum": rewrites},
            "on-tpu": {"type": "boolean"},
            "message": _LINE,
            "advice": _LINE,
        }
    )
    return {"anyOf": [{"type": "null"}, form, {"type": "array", "items": form, "minItems": 1}]}


def _case() -> dict[str, Any]:
    when = _object(
        {
            "context": _one_or_more({"enum": sorted(CONTEXTS)}),
            "args": {"type": "object", "additionalProperties": _one_or_more(_WORD)},
            "used-as": _one_or_more({"enum": sorted(USES)}),
        }
    )
    actions = {
        "delete": _TRUE,
        "replace": _TEXT,
        "statement": _TEXT,
        "unwrap": _TRUE,
        "keep": _TRUE,
        "transform": {"type": "string", "pattern": "^[a-z][a-z0-9_]*$"},
        "reason": {"enum": sorted(REASONS)},
    }
    rewrites = [a for a in Applicability if a is not Applicability.MANUAL]
    case = _object(
        {
            "when": when,
            **{action: actions[action] for action in ACTIONS},
            "applicability": {"enum": [str(a) for a in rewrites]},
            "imports": _one_or_more(_LINE),
            "helpers": _one_or_more(_LINE),
            "drops": _one_or_more(_LINE),
            "message": _LINE,
            "advice": _LINE,
            "fix-title": _LINE,
            "effort": _EFFORT,
        }
    )
    return {**case, "oneOf": _exactly_one(*ACTIONS)}


def schema() -> dict[str, Any]:
    """The schema of one rule, as JSON schema of 2020-12."""
    example = _object(
        {
            "before": _TEXT,
            "after": _TEXT,
            "unsafe": {"type": "boolean"},
            "left": {"type": "integer", "minimum": 1},
            "filename": _LINE,
            "settings": _object({name: {} for name in sorted(SETTINGS)}),
        },
        "before",
    )
    example["anyOf"] = _exactly_one("after", "left")
    rule = _object(
        {
            "code": {"type": "string", "pattern": f"^{CODE}$".replace(r"\d", "[0-9]")},
            "name": {"type": "string", "pattern": "^[a-z][a-z0-9]*(-[a-z0-9]+)*$"},
            "title": _LINE,
            "message": _LINE,
            "why": _TEXT,
            "fix-title": _LINE,
            "advice": _LINE,
            "effort": _EFFORT,
            "references": _one_or_more({"type": "string", "format": "uri"}),
            "apis": {"type": "object", "minProperties": 1, "additionalProperties": _api()},
            "ops": {"type": "object", "minProperties": 1, "additionalProperties": _op()},
            "uses": {"type": "object", "minProperties": 1, "additionalProperties": _use()},
            "detector": _TEXT,
            "tools": {"type": "boolean"},
            "cases": {"type": "array", "items": _case()},
            "examples": {"type": "array", "items": example},
            "ok": _one_or_more(_TEXT),
        },
        "code",
        "name",
        "title",
        "message",
        "why",
        "advice",
        "effort",
    )
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Rule of xla2tpu",
        **rule,
        "oneOf": [
            *_exactly_one("apis", "detector", "ops", "tools"),
            {"required": ["uses"], "not": {"required": ["detector"]}},
        ],
    }
