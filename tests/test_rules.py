"""The loader of rule files, its errors, the look-up, and the deeper validation."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from xla2tpu import rules
from xla2tpu.model import FAMILIES, Applicability, Effort
from xla2tpu.rulecheck import problems
from xla2tpu.rulemodel import Api, Rule, RuleError, RuleSet, Signature
from xla2tpu.rules import load_rules

RULE = """\
code: XLA990
name: house-sync
title: The house's own sync
message: "`{api}` cuts the graph"
why: It wraps the step marker.
advice: Delete the call.
effort: trivial
apis:
  torch_xla.house.sync: "(wait=False)"
cases:
  - when: {context: statement, args: {wait: [absent, false]}}
    delete: true
    applicability: safe
examples:
  - before: |
      import torch_xla
      torch_xla.house.sync()
    after: ""
"""


@pytest.fixture
def write(tmp_path: Path):
    def write_rules(text: str) -> tuple[str, ...]:
        path = tmp_path / "house.yaml"
        path.write_text(text, encoding="utf-8")
        return (str(path),)

    return write_rules


def one(write, text: str) -> Rule:
    found = load_rules(write(text)).rule("XLA990")
    assert found is not None
    return found


def test_every_shipped_rule_is_valid() -> None:
    assert problems(load_rules()) == []


def test_rules_are_sorted_and_named_once() -> None:
    ruleset = load_rules()
    codes = list(ruleset.rules)
    assert codes == sorted(codes, key=lambda code: (FAMILIES.index(code[:3]), code))
    names = [rule.name for rule in ruleset.rules.values()]
    assert len(names) == len(set(names))


def test_loading_is_cached() -> None:
    assert load_rules() is load_rules(())


def test_fields_of_a_user_rule(write) -> None:
    rule = one(write, RULE)
    assert (rule.family, rule.effort) == ("user", Effort.TRIVIAL)
    assert rule.apis["torch_xla.house.sync"].signatures == (Signature("(wait=False)"),)
    (case,) = rule.cases
    assert case.action == "delete"
    assert case.context == {"statement"}
    assert case.args == {"wait": ("absent", "False")}
    assert case.applicability is Applicability.SAFE
    (example,) = rule.examples
    assert (example.after, example.left, example.unsafe) == ("", None, False)
    assert problems(load_rules(write(RULE))) == problems(load_rules())


def test_several_rules_in_one_user_file(write) -> None:
    second = RULE.replace("XLA990", "XLA991").replace("house.sync", "house.other")
    ruleset = load_rules(write(f"{RULE}---\n{second}"))
    assert {"XLA990", "XLA991"} < set(ruleset.rules)


def test_signatures_by_release(write) -> None:
    text = RULE.replace(
        '"(wait=False)"',
        '\n    - {from: "1.5", signature: "(wait=False)", removed: "1.8"}\n'
        '    - {from: "1.8", signature: "(*, wait=False)"}',
    )
    api = one(write, text).apis["torch_xla.house.sync"]
    assert api.signatures == (
        Signature("(wait=False)", "1.5", "1.8"),
        Signature("(*, wait=False)", "1.8", None),
    )
    assert api.removed is None


def test_api_that_cannot_be_called_and_one_that_is_gone(write) -> None:
    text = RULE.replace('"(wait=False)"', '{signature: "(wait=False)", removed: "2.7"}').replace(
        "cases:", "  torch_xla.house.KIND: null\ncases:"
    )
    apis = one(write, text).apis
    assert apis["torch_xla.house.KIND"].signatures == ()
    assert apis["torch_xla.house.sync"].removed == "2.7"


def test_reason_is_manual(write) -> None:
    text = RULE.replace("    delete: true\n    applicability: safe", "    reason: no-equivalent")
    case = one(write, text).cases[0]
    assert (case.action, case.reason) == ("reason", "no-equivalent")
    assert case.applicability is Applicability.MANUAL


@pytest.mark.parametrize(
    ("old", "new", "key"),
    [
        ("code: XLA990", "code: HOUSE1", "code"),
        ("code: XLA990", "code: XLA101", "code"),
        ("name: house-sync", "name: House Sync", "name"),
        ("title: The house's own sync\n", "", "rule.title"),
        ("effort: trivial", "effort: huge", "effort"),
        ("effort: trivial", "effort: trivial\nlevel: 3", "rule.level"),
        ("effort: trivial", "effort: trivial\ndetector: strings", "apis"),
        ('  torch_xla.house.sync: "(wait=False)"', "  torch_xla.sync: null", "apis.torch_xla.sync"),
        (
            '"(wait=False)"',
            "{signature: (wait), removed: 2.7}",
            "apis.torch_xla.house.sync.removed",
        ),
        ('"(wait=False)"', "[]", "apis.torch_xla.house.sync"),
        ("delete: true", "delete: false", "cases[0].delete"),
        ("delete: true", "delete: true\n    unwrap: true", "cases[0]"),
        ("    delete: true\n", "", "cases[0]"),
        ("delete: true", "reason: because", "cases[0].reason"),
        ("delete: true", "reason: no-equivalent", "cases[0].applicability"),
        ("applicability: safe", "applicability: manual", "cases[0].applicability"),
        ("context: statement", "context: everywhere", "context"),
        ("context: statement", "place: statement", "cases[0].when.place"),
        ("context: statement, args", "context: value, args", None),
        ('    after: ""\n', "", "examples[0].after"),
        ('after: ""', 'after: ""\n    left: 0', "examples[0].left"),
        ('after: ""', 'after: ""\n    later: x', "examples[0].later"),
    ],
)
def test_error_names_file_rule_and_key(write, old: str, new: str, key: str | None) -> None:
    assert old in RULE
    paths = write(RULE.replace(old, new))
    if key is None:
        load_rules(paths)
        return
    with pytest.raises(RuleError) as caught:
        load_rules(paths)
    code = re.search(r"code: (\w+)", RULE.replace(old, new))
    assert code is not None
    assert str(caught.value).startswith(f"{paths[0]}: {code[1]}: {key}: ")


def test_yaml_error_names_the_file(write) -> None:
    paths = write("code: [")
    with pytest.raises(RuleError, match=re.escape(paths[0])):
        load_rules(paths)


def test_statement_action_needs_its_context(write) -> None:
    text = RULE.replace("context: statement,", "").replace("delete: true", "statement: pass")
    with pytest.raises(RuleError, match="statement"):
        load_rules(write(text))


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ('"(wait=False)"', '"(wait="', "is not a list of parameters"),
        ("args: {wait:", "args: {hold:", "when.args.hold: no parameter"),
        ("delete: true", 'replace: "print({hold})"', "{hold} is no parameter"),
        ("delete: true", 'replace: "print({wait}"', "not valid Python"),
        ("delete: true", 'replace: "dist.barrier()"', "dist is bound by no import"),
        ("delete: true", "transform: nowhere", "transform: nowhere does not exist"),
        ("delete: true", "delete: true\n    helpers: [nowhere]", "helpers: nowhere does not exist"),
        ("delete: true", "delete: true\n    drops: [hold]", "drops: hold is no parameter"),
        ("delete: true", "delete: true\n    imports: [torch]", "'torch' is not an import"),
        ("torch_xla.house.sync()", "torch_xla.house.sync(", "examples[0].before"),
        ('after: ""', 'after: ""\n    settings: {speed: 3}', "unknown setting"),
        ("examples:", "ok: ['def']\nexamples:", "ok[0]"),
    ],
)
def test_validation_looks_inside(write, old: str, new: str, problem: str) -> None:
    assert old in RULE
    found = [
        line for line in problems(load_rules(write(RULE.replace(old, new)))) if "XLA990" in line
    ]
    assert found
    assert problem in found[0]


@pytest.mark.parametrize(
    ("action", "template"),
    [
        ("replace", '"torch.full({wait=1}, {{}})"'),
        ("replace", '"[torch for torch in {wait}]"'),
        ("replace", '"(lambda wait: wait)({call})"'),
        ("statement", '"if {wait}:\\n    torch.ones(1)"'),
    ],
)
def test_templates_that_are_right(write, action: str, template: str) -> None:
    text = RULE.replace("delete: true", f"{action}: {template}\n    imports: [import torch]")
    assert not [line for line in problems(load_rules(write(text))) if "XLA990" in line]


def test_a_rule_without_examples_is_no_rule(write) -> None:
    text = RULE[: RULE.index("examples:")]
    assert any("examples: missing" in line for line in problems(load_rules(write(text))))


def made(code: str, *paths: str) -> Rule:
    return Rule(
        code=code,
        name=code.lower(),
        family="user",
        title="",
        message="",
        why="",
        advice="",
        effort=Effort.SMALL,
        path=f"{code}.yaml",
        apis={path: Api(path) for path in paths},
    )


def test_lookup_takes_the_exact_name_then_the_longest_wildcard() -> None:
    whole, part, exact = made("XLA901", "a.*"), made("XLA902", "a.b.*"), made("XLA903", "a.b.c")
    ruleset = RuleSet({rule.code: rule for rule in (whole, part, exact)}, {})

    def code(path: str) -> str | None:
        found = ruleset.lookup(path)
        return found and found[0].code

    assert code("a.b.c") == "XLA903"
    assert code("a.b.d") == "XLA902"
    assert code("a.b.c.d") == "XLA902"
    assert code("a.b.C().run") == "XLA902"
    assert code("a.x") == "XLA901"
    assert code("a.b") == "XLA902"
    assert code("a") == "XLA901"
    assert code("ab.c") is None


def test_lookup_of_values() -> None:
    found = load_rules().lookup("torch_xla.distributed.xla_multiprocessing.MpModelWrapper().to")
    assert found is not None
    assert found[0].name == "mp-model-wrapper"


def test_rule_by_code_and_name() -> None:
    ruleset = load_rules()
    assert ruleset.rule("xla101") is ruleset.rule("mark-step") is ruleset.rules["XLA101"]
    assert ruleset.rule("XLA777") is None


def test_data_of_an_installed_package_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "xla2tpu"
    package.mkdir()
    monkeypatch.setattr(rules, "__file__", str(package / "rules.py"))
    with pytest.raises(RuleError, match="no folder of rules"):
        rules.data_folder()
    (tmp_path / "rules").mkdir()
    assert rules.data_folder() == str(tmp_path / "rules")
    (package / "_rules").mkdir()
    assert rules.data_folder() == str(package / "_rules")


def test_pure_python_yaml_reads_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    path = load_rules().rules["XLA101"].path
    fast = rules._documents(path)
    monkeypatch.setattr(rules, "_LOADER", yaml.SafeLoader)
    assert rules._documents(path) == fast
