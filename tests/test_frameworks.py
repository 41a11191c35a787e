"""Other packages that mean a TPU through torch_xla: names, arguments, projects, accounting."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from xla2tpu.cli import main
from xla2tpu.engine import run_source
from xla2tpu.model import Applicability, FileResult, Mode, Settings, Status
from xla2tpu.prefilter import FRAMEWORKS, interesting, silent
from xla2tpu.rulecheck import problems
from xla2tpu.rulemodel import Rule, RuleError
from xla2tpu.rules import load_rules

RULES = [rule for rule in load_rules().rules.values() if rule.code.startswith("FWK")]
ARGUMENTS = "from transformers import TrainingArguments\n"
LIGHTNING = "import lightning as L\n"


def run(source: str, **options: object) -> FileResult:
    settings = Settings(root="/nowhere", **options)  # type: ignore[arg-type]
    return run_source(source.encode(), "/nowhere/a.py", settings)


def found(source: str) -> list[tuple[str, str]]:
    return [(f.rule, f.api) for f in run(source).findings if f.rule.startswith("FWK")]


def fixed(source: str) -> str:
    output = run(source, mode=Mode.MIGRATE, todo=False).output
    return source if output is None else output.decode()


def check(folder: Path, *options: str) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """The exit status, and for each file its status or rules and whether they block."""
    done = CliRunner().invoke(main, ["check", "--output-format", "json", *options, str(folder)])
    assert done.exit_code in (0, 1), done.output
    files = json.loads(done.stdout)["files"]
    return done.exit_code, {
        Path(file["path"]).name: [(f["rule"], file["status"]) for f in file["findings"]]
        for file in files
        if file["findings"]
    }


def write(folder: Path, files: dict[str, str]) -> Path:
    (folder / "pyproject.toml").touch()
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return folder


# -- names and arguments ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("source", "rule"),
    [
        ("import pytorch_lightning as pl\npl.Trainer(tpu_cores=8)\n", "FWK301"),
        ("from pytorch_lightning import Trainer as T\nT(tpu_cores=[1])\n", "FWK301"),
        ("import pytorch_lightning as pl\nT = pl.Trainer\nT(tpu_cores=8)\n", "FWK301"),
        ("import pytorch_lightning as pl\npl.Trainer(**rest, accelerator='tpu')\n", "FWK301"),
        ("import lightning.pytorch as pl\npl.Trainer(accelerator='tpu')\n", "FWK301"),
        (LIGHTNING + "kind = 'tpu'\nL.Trainer(accelerator=kind)\n", "FWK301"),
        (LIGHTNING + "L.Trainer(accelerator=('tpu' if x else 'cpu'))\n", "FWK301"),
        (LIGHTNING + "def f(n):\n    return L.LightningLite(tpu_cores=n)\n", "FWK301"),
        (LIGHTNING + "L.Fabric('auto', 'xla_fsdp')\n", "FWK301"),
        (LIGHTNING + "L.Trainer(**{'accelerator': 'tpu'})\n", "FWK301"),
        (ARGUMENTS + "d = dict(optim='adamw_torch_xla')\nTrainingArguments(**d)\n", "FWK101"),
        (ARGUMENTS + "d = {'fsdp_config': {'xla': True}}\nTrainingArguments(**d)\n", "FWK105"),
        (LIGHTNING + "class A(L.pytorch.strategies.XLAStrategy): ...\n", "FWK302"),
        (
            "try:\n    import lightning.pytorch as pl\nexcept ImportError:\n"
            "    import pytorch_lightning as pl\npl.Trainer(accelerator='tpu')\n",
            "FWK301",
        ),
        ("from accelerate.state import DistributedType as D\nx = D.TPU\n", "FWK202"),
        ("from optimum import tpu\ntpu.fsdp_v2.use_fsdp_v2()\n", "FWK406"),
        ("import vllm.v1.worker.tpu_worker as w\nw.TPUWorker()\n", "FWK501"),
        ("import vllm.v1.worker.tpu_worker\n", "FWK501"),
        ("from vllm.platforms.tpu import *\n", "FWK501"),
        ("try:\n    from torchprime import a\nexcept ImportError:\n    a = None\n", "FWK407"),
        (ARGUMENTS + "TrainingArguments('o', debug=['tpu_metrics_debug'])\n", "FWK104"),
        (ARGUMENTS + "TrainingArguments('o', fsdp_config={'xla': True, **more})\n", "FWK105"),
    ],
)  # fmt: skip
def test_names_that_lead_there(source: str, rule: str) -> None:
    assert [code for code, _ in found(source)] == [rule]
    assert interesting(source.encode())


@pytest.mark.parametrize(
    "source",
    [
        LIGHTNING + "L.Trainer(**{'accelerator': 'gpu'}, **rest)\n",
        ARGUMENTS + "TrainingArguments('o', tpu_num_cores=None, tpu_metrics_debug=False)\n",
        LIGHTNING + "L.Trainer(accelerator=kind, tpu_cores=None)\n",
        LIGHTNING + "L.Trainer(accelerator='gpu', name='tpu')\n",
        LIGHTNING + "L.Trainer.tpu_cores = 8\n",
        LIGHTNING + "def f(L):\n    L.Trainer(accelerator='tpu')\n",
        "from lightning import Trainer\n\n\nclass Trainer:\n    pass\n\n\nTrainer(tpu_cores=8)\n",
        "from .lightning import Trainer\nTrainer(tpu_cores=8)\n",
        "from keras import Trainer\nTrainer(accelerator='tpu')\n",
        ARGUMENTS + "TrainingArguments('o', fsdp_config={'xla': False})\n",
        ARGUMENTS + "def f(a: 'TrainingArguments', tpu_num_cores=8): ...\n",
        "from lightning.pytorch.strategies import XLAStrategy\ndef f(s: XLAStrategy): ...\n",
        "from accelerate import Accelerator, notebook_launcher\nnotebook_launcher(Accelerator)\n",
    ],
)
def test_what_is_left_alone(source: str) -> None:
    if "XLAStrategy" in source:
        # The import is told where nothing but an annotation uses it.
        assert found(source) == [("FWK302", "lightning.pytorch.strategies.XLAStrategy")]
    else:
        assert found(source) == []


def test_one_place_for_one_call() -> None:
    source = LIGHTNING + "L.Trainer(accelerator='tpu', strategy='xla', profiler='xla')\n"
    (finding,) = (f for f in run(source).findings if f.column > 1 and f.rule == "FWK301")
    assert source.splitlines()[1][finding.column - 1 : finding.end_column - 1] == "accelerator"


def test_a_string_is_told_once() -> None:
    assert [f.rule for f in run(LIGHTNING + "L.Trainer(strategy='xla')\n").findings] == ["FWK301"]


# -- fixes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("tpu_num_cores=8", ""),
        ("'o', tpu_num_cores=8", "'o'"),
        ("  # a (few\n    tpu_num_cores=8", None),
        ("'o', tpu_num_cores=8, seed=1", "'o', seed=1"),
        ("tpu_num_cores=8, seed=1", "seed=1"),
        ("'o', tpu_num_cores=8, tpu_metrics_debug=True,", "'o',"),
        ("tpu_num_cores=8, tpu_metrics_debug=True, seed=1", "seed=1"),
        ("tpu_num_cores=8, seed=1, tpu_metrics_debug=True, run='a'", "seed=1, run='a'"),
        ("\n    'o',\n    tpu_num_cores=8\n", "\n    'o',\n"),
        ("\n    'o',\n    tpu_num_cores=8\n    , seed=1", "\n    'o'\n    , seed=1"),
        ("\n    tpu_num_cores=8\n    , seed=1", "\n    seed=1"),
        ("\n    'o',  # a folder\n    tpu_num_cores=8,\n", "\n    'o',  # a folder\n"),
        ("\n    'o', tpu_num_cores=8,\n    seed=1,\n", "\n    'o',\n    seed=1,\n"),
        ('\n    "o",\n    optim="adamw_torch_xla",\n', '\n    "o",\n    optim="adamw_torch",\n'),
    ],
)
def test_arguments_that_go(before: str, after: str | None) -> None:
    call = ARGUMENTS + "args = TrainingArguments({})\n"
    assert fixed(call.format(before)) == call.format(before if after is None else after)


@pytest.mark.parametrize(
    "arguments",
    [
        "'o', tpu_num_cores=cores()",
        "'o', **more, optim=optim",
        "\n    'o',  # a folder\n    tpu_num_cores=8, seed=1,\n",
        "\n    'o',\n    tpu_num_cores=8,  # one for each\n",
        "'o', optim=f'adamw_{kind}_xla'",
        "'o', **{'tpu_num_cores': 8}",
    ],
)
def test_arguments_that_stay(arguments: str) -> None:
    source = ARGUMENTS + f"args = TrainingArguments({arguments})\n"
    assert fixed(source) == source


# -- projects --------------------------------------------------------------------------------------

ACCELERATOR = "from accelerate import Accelerator\n\naccelerator = Accelerator()\n"
TRAINER = "from transformers import Trainer\n\n\nclass Own(Trainer):\n    pass\n"


@pytest.mark.parametrize(
    ("other", "told"),
    [
        ("import torch_xla\n", True),
        ("def f():\n    import torch_xla.core.xla_model as xm\n", True),
        ('import torch\n\ndevice = torch.device("tpu")\n', True),
        ("from transformers.utils import is_torch_xla_available\n", False),
        ("import torch\n", False),
    ],
)
@pytest.mark.parametrize(("source", "rule"), [(ACCELERATOR, "FWK201"), (TRAINER, "FWK106")])
def test_projects_for_tpus(tmp_path: Path, other: str, told: bool, source: str, rule: str) -> None:
    assert not interesting(source.encode())
    assert silent(source.encode())
    write(tmp_path, {"train.py": source, "lib/device.py": other})
    status, files = check(tmp_path)
    assert files.get("train.py") == ([(rule, "done")] if told else None)
    assert status == (1 if told else files != {})
    # A run on the file alone says the same.
    assert check(tmp_path / "train.py")[1] == ({"train.py": [(rule, "done")]} if told else {})


@pytest.mark.parametrize("name", ["transformers", "src/accelerate", "lightning"])
def test_projects_that_are_such_packages(tmp_path: Path, name: str) -> None:
    package = name.rpartition("/")[2]
    use = f"import torch_xla\nfrom {package} import XLAStrategy\nXLAStrategy()\n"
    files = {
        f"{name}/__init__.py": "def is_torch_xla_available(): ...\n",
        f"{name}/trainer.py": use,
        "examples/train.py": ACCELERATOR + TRAINER,
    }
    assert check(write(tmp_path, files))[1].keys() <= {"trainer.py"}


def test_a_folder_does_not_hide_a_package(tmp_path: Path) -> None:
    files = {"lightning/notes.py": "", "train.py": LIGHTNING + "L.Trainer(accelerator='tpu')\n"}
    assert check(write(tmp_path, files))[1] == {"train.py": [("FWK301", "needs-work")]}
    (tmp_path / "lightning" / "__init__.py").touch()
    assert check(tmp_path)[1] == {}


# -- accounting ------------------------------------------------------------------------------------


def test_what_needs_torch_xla_keeps_a_file_from_being_done() -> None:
    result = run(LIGHTNING + "L.Trainer(accelerator='tpu')\n")
    assert (result.status, result.references) == (Status.NEEDS_WORK, 0)
    (finding,) = result.findings
    assert (finding.counts, finding.blocks, finding.reason) == (False, True, "framework")
    assert finding.applicability is Applicability.MANUAL
    assert "2.6.6" in finding.message


def test_advice_on_a_project_does_not() -> None:
    source = "import torch_xla\n" + ACCELERATOR + "print(torch_xla.device())\n"
    result = run(source, mode=Mode.FIX)
    assert result.status is Status.DONE
    (finding,) = (f for f in result.findings if not f.applied)
    assert (finding.rule, finding.counts, finding.blocks) == ("FWK201", False, False)
    assert finding.reason == "silent-cpu"
    assert result.output is not None
    assert b"TODO" not in result.output


def test_fix_is_all_or_nothing_with_what_blocks() -> None:
    source = f"import torch_xla\n{LIGHTNING}L.Trainer(accelerator='tpu')\ntorch_xla.sync()\n"
    result = run(source, mode=Mode.FIX)
    assert result.output is None
    assert result.held_back is not None


def test_markers_and_suppression(tmp_path: Path) -> None:
    source = LIGHTNING + "trainer = L.Trainer(accelerator='tpu')\n"
    output = run(source, mode=Mode.MIGRATE).output
    assert output is not None
    assert output.decode().splitlines()[1].startswith("# TODO(xla2tpu): FWK301 Move ")
    assert run(output.decode(), mode=Mode.MIGRATE).output is None
    gone = output.decode().replace("'tpu'", "'gpu'")
    assert (
        run(gone, mode=Mode.MIGRATE).output
        == gone.replace(gone.splitlines()[1] + "\n", "").encode()
    )
    quiet = source.replace("')\n", "')  # noqa: FWK301\n")
    assert [f.suppressed for f in run(quiet).findings] == [True]
    write(tmp_path, {"a.py": source})
    for options, status in (((), 1), (("--ignore", "FWK"), 0), (("--select", "FWK3"), 1)):
        assert check(tmp_path, *options)[0] == status


@pytest.mark.parametrize(
    ("source", "found"),
    [
        (["import lightning as L\n", "L.Trainer(accelerator='tpu')"], "FWK301"),
        ('import os\nimport lightning as L\nL.Trainer(accelerator="tpu")\n', "FWK301"),
        (["from accelerate import Accelerator\n", "Accelerator(rng_types=['xla'])"], "FWK204"),
        (["import lightning as L\n", "L.Trainer(accelerator='gpu', tpu_cores=None)"], None),
    ],
)
def test_notebooks(tmp_path: Path, source: str | list[str], found: str | None) -> None:
    cell = {"cell_type": "code", "execution_count": None, "id": "a", "metadata": {}, "outputs": []}
    cells = [{**cell, "source": source}]
    book = {"cells": cells, "metadata": {}, "nbformat": 4, "nbformat_minor": 5}
    write(tmp_path, {"a.ipynb": json.dumps(book)})
    assert check(tmp_path)[1] == ({"a.ipynb": [(found, "needs-work")]} if found else {})


# -- rules -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_the_prefilter_knows_all_names(rule: Rule) -> None:
    for use in rule.uses:
        package, *names = use.path.replace(".*", "").split(".")
        assert package in FRAMEWORKS
        words = [word for some in (*use.args.values(), *use.holds.values()) for word in some]
        if use.argument is not None:
            given = [f"{use.argument}={w if w[:1] == chr(39) else repr(w)}" for w in words]
        else:
            given = [""]
        name = ".".join(["x", *names])
        for argument in given:
            text = f"import {package} as x\n{name}({argument})\n".encode()
            assert silent(text) if use.on_tpu else interesting(text), text
        in_module = len(names) > 1 and names[-2].islower()
        if in_module and not use.on_tpu and use.argument is None:
            text = f"from {package}.{'.'.join(names[:-1])} import {names[-1]}\n".encode()
            assert interesting(text), text


HOUSE = """\
code: FWK990
name: house-fit
title: The house's own trainer
message: "`{{api}}` trains by torch_xla"
why: It calls Lightning.
advice: Write a loop.
effort: small
uses: {uses}
examples:
  - before: |
      import trl

      trl.fit(tpu=True)
    left: 1
"""


def house(folder: Path, uses: str) -> tuple[str, ...]:
    path = folder / "house.yaml"
    path.write_text(HOUSE.format(uses=uses), encoding="utf-8")
    return (str(path),)


@pytest.mark.parametrize(
    ("uses", "problem"),
    [
        ("{}", "must be a mapping of names to their uses"),
        ("{trl.fit: {drop: true, applicability: safe}}", "a condition for the argument"),
        ("{trl.fit: {when: {tpu: given}, drop: true}}", "applicability: must be safe or unsafe"),
        ("{trl.fit: {applicability: safe}}", "applicability: goes with write or drop only"),
        ("{trl.fit: {where: {tpu: given}}}", "trl.fit.where: unknown key"),
    ],
)
def test_wrong_rules(tmp_path: Path, uses: str, problem: str) -> None:
    with pytest.raises(RuleError, match=problem):
        load_rules(house(tmp_path, uses))


@pytest.mark.parametrize(
    ("uses", "problem"),
    [
        ("{keras.fit: null}", "not one of the packages"),
        ("{trl..fit: null}", "not a dotted name"),
        ("{trl.fit: {signature: '(a', when: {tpu: given}}}", "is not a list of parameters"),
        ("{trl.fit: {signature: '(a)', when: {tpu: given}}}", "tpu: no parameter"),
        ("{trl.fit: {holds: {tpu: a}, signature: '()'}}", "tpu: no parameter"),
        ("{trl.fit: {when: {tpu: given}, write: 'a\"b', applicability: safe}}", "no plain text"),
    ],
)
def test_rules_with_faults(tmp_path: Path, uses: str, problem: str) -> None:
    assert [problem in line for line in problems(load_rules(house(tmp_path, uses)))] == [True]


def test_rules_of_users(tmp_path: Path) -> None:
    files = house(tmp_path, "{trl.*.fit: {when: {tpu: given}}}")
    assert problems(load_rules(files)) == []
    source = "from trl import tools\n\ntools.fit(tpu=True)\ntools.fit(tpu=False)\n"
    assert [(f.rule, f.line) for f in run(source, rule_files=files).findings] == [("FWK990", 3)]


@pytest.mark.parametrize(
    ("name", "code"),
    [
        ("XLAStrategy", "FWK302"),
        ("accelerate.state.DistributedType.TPU", "FWK202"),
        ("vllm.platforms.tpu.TpuPlatform", "FWK501"),
        ("is_torch_tpu_available", "XLA006"),
    ],
)
def test_query_knows_them(name: str, code: str) -> None:
    done = CliRunner().invoke(main, ["query", name])
    assert done.exit_code == 0
    assert f"[{code} " in done.output
