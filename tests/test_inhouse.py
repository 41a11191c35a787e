"""Rules of users for names outside torch_xla: what they match, and what they leave alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from xla2tpu.cli import main
from xla2tpu.inhouse import NOTHING, InHouse

RULES = """\
code: XLA950
name: acme-sync
title: The company's step marker
message: "`{api}` wraps xm.mark_step"
why: Nothing is to be done on TorchTPU.
advice: Delete the call.
effort: trivial
apis:
  acme.tpu.sync: "(wait=False)"
cases:
  - when: {context: [statement, discarded]}
    delete: true
    applicability: safe
    drops: [wait]
examples:
  - before: |
      from acme.tpu import sync

      print(1)
      sync()
    after: |
      print(1)
---
code: XLA951
name: acme-tracker
title: The company's tracker
message: "`{api}` counts samples"
why: Nobody reads it.
advice: Drop it.
effort: small
apis:
  acme.tpu.Tracker: "()"
  acme.tpu.Tracker().add: "(count)"
  acme.legacy.*: null
cases:
  - reason: no-equivalent
examples:
  - before: |
      import acme.tpu

      tracker = acme.tpu.Tracker()
      tracker.add(1)
    left: 2
ok:
  - |
    import acme.legacy
    from acme.tpu import other

    other(acme.legacy)
"""


def project(tmp_path: Path, **files: str) -> Path:
    (tmp_path / "pyproject.toml").write_text('[tool.xla2tpu]\nrule-files = ["house.yaml"]\n')
    (tmp_path / "house.yaml").write_text(RULES)
    for name, text in files.items():
        path = tmp_path / (name.replace("__", "/") + ".py")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path


def findings(tmp_path: Path, *options: str) -> dict[str, list[str]]:
    done = CliRunner().invoke(main, ["check", "--output-format", "json", *options, str(tmp_path)])
    assert done.exit_code in (0, 1), done.output
    return {
        Path(file["path"]).name: [f"{f['line']} {f['api']}" for f in file["findings"]]
        for file in json.loads(done.stdout)["files"]
        if file["findings"]
    }


IMPORTED = {
    "from": "from acme.tpu import sync\n\nsync()\n",
    "renamed": "from acme.tpu import sync as go\n\ngo()\n",
    "module": "from acme import tpu\n\ntpu.sync()\n",
    "renamed module": "import acme.tpu as at\n\nat.sync()\n",
    "dotted": "import acme.tpu\n\nacme.tpu.sync()\n",
    "alias": "import acme.tpu as at\n\nsync = at.sync\nsync()\n",
}


@pytest.mark.parametrize("text", IMPORTED.values(), ids=IMPORTED)
def test_every_import_of_an_installed_wrapper(tmp_path: Path, text: str) -> None:
    project(tmp_path, train=text)
    found = findings(tmp_path)["train.py"]
    assert set(found) <= {"3 acme.tpu.sync", "4 acme.tpu.sync"}
    assert found


OTHERS = {
    "own function": "def sync():\n    pass\n\n\nsync()\n",
    "other module": "import os\n\nos.sync()\n",
    "other name": "from acme.tpu import synchronize\n\nsynchronize()\n",
    "shadowed": "from acme.tpu import sync\n\n\ndef f(sync):\n    sync()\n",
    "module itself": "import acme.legacy\n\nprint(acme.legacy)\n",
}


@pytest.mark.parametrize("text", OTHERS.values(), ids=OTHERS)
def test_never_by_spelling(tmp_path: Path, text: str) -> None:
    project(tmp_path, train=text)
    assert findings(tmp_path) == {}


def test_through_the_project(tmp_path: Path) -> None:
    project(
        tmp_path,
        src__acme____init__="",
        src__acme__tpu="def sync(wait=False):\n    pass\n\n\ndef f():\n    sync()\n",
        src__acme__near="from .tpu import sync\nfrom . import tpu\n\nsync()\ntpu.sync()\n",
        src__acme__names="from .tpu import sync as flush\n",
        src__acme__far="from acme.names import flush\n\nflush()\n",
    )
    (tmp_path / "src/acme/__init__.py").write_text("from .tpu import sync\n")
    (tmp_path / "main.py").write_text("import acme\n\nacme.sync()\n")
    assert findings(tmp_path) == {
        "near.py": ["4 acme.tpu.sync", "5 acme.tpu.sync"],
        "far.py": ["3 acme.tpu.sync"],
        "main.py": ["3 acme.tpu.sync"],
    }


def test_values_and_whole_modules(tmp_path: Path) -> None:
    text = (
        "from acme.legacy import old\nfrom acme.tpu import Tracker\n\nt = Tracker()\nt.add(old())\n"
    )
    project(tmp_path, train=text)
    assert findings(tmp_path)["train.py"] == [
        "4 acme.tpu.Tracker",
        "5 acme.tpu.Tracker().add",
        "5 acme.legacy.old",
    ]


def test_a_fix_takes_the_import_unless_others_need_it(tmp_path: Path) -> None:
    project(
        tmp_path,
        a="from acme.tpu import sync\n\nsync()\nprint(1)\n",
        b="from acme.tpu import sync\n\nsync()\nprint(1)\n",
        c="from b import sync\n\nprint([sync])\n",
    )
    done = CliRunner().invoke(main, ["check", "--fix", str(tmp_path)])
    assert done.exit_code == 1  # what `c` does with it is left
    assert (tmp_path / "a.py").read_text() == "print(1)\n"
    assert (tmp_path / "b.py").read_text() == "from acme.tpu import sync\n\nprint(1)\n"
    assert (tmp_path / "c.py").read_text() == "from b import sync\n\nprint([sync])\n"


def test_standard_input_and_a_file_agree(tmp_path: Path) -> None:
    project(tmp_path, train="from acme.tpu import sync\n\nsync()\nprint(1)\n")
    path = tmp_path / "train.py"
    text = path.read_text()
    done = CliRunner().invoke(main, ["check", "--fix", "-", "--stdin-filename", str(path)], text)
    assert done.stdout == "print(1)\n"


def test_the_examples_of_users_rules_run(tmp_path: Path) -> None:
    project(tmp_path)
    config = ["--config", str(tmp_path / "pyproject.toml")]
    done = CliRunner().invoke(main, ["rules", "--test", *config])
    assert (done.exit_code, done.output) == (0, "2 rules, 3 examples, 0 problems\n")
    wrong = RULES.replace("after: |\n      print(1)", "after: |\n      print(2)")
    (tmp_path / "other").mkdir()
    project(tmp_path / "other")
    (tmp_path / "other" / "house.yaml").write_text(wrong)
    config = ["--config", str(tmp_path / "other" / "pyproject.toml")]
    done = CliRunner().invoke(main, ["rules", "--test", *config])
    assert done.exit_code == 1
    assert "house.yaml: XLA950: examples[0]: before: becomes\nprint(1)\n" in done.output
    done = CliRunner().invoke(main, ["rules", "--test", "--config", "/dev/null"])
    assert done.exit_code == 2


def test_what_an_import_may_bring() -> None:
    names = InHouse.of(["acme.tpu.sync", "acme.Box().put", "acme.old.*", "torch_xla.sync"])
    assert names.covers("acme.old.a.b")
    assert not names.covers("acme.old")
    assert names.covers("acme.Box().put")
    assert not names.covers("acme.Box")
    assert names.leads("acme")
    assert names.leads("acme.old")
    assert not names.leads("acme.new")
    assert names.imported("acme.tpu", "sync")
    assert names.imported("acme", "tpu")
    assert names.imported("acme.tpu", None)
    assert names.imported(".tpu", "sync")
    assert not names.imported("acme.tpu", "other")
    assert not names.imported(".tpu", "other")
    assert names.mentioned(b"x.Box(1)")
    assert not names.mentioned(b"Boxes")
    assert not NOTHING.mentioned(b"sync")
    assert not NOTHING.leads("acme")
