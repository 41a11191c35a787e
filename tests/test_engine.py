"""One file in one run: what is counted, where the file stands, what is held back or suppressed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from conftest import check_noop, check_transformed

from xla2tpu import batch, engine
from xla2tpu.model import FileResult, Mode, Settings, Status
from xla2tpu.report import json_
from xla2tpu.runner import Run

XM = "import torch_xla.core.xla_model as xm\n"
SAFE = "xm.mark_step()\n"
UNSAFE = "n = xm.xla_device_count()\n"
MANUAL = "xm.optimizer_step(optimizer, groups=g)\n"


def run(source: str, mode: Mode = Mode.CHECK, **settings: Any) -> FileResult:
    """One run over a file that stands in no project."""
    return engine.run_source(source.encode(), "nowhere/x.py", Settings(mode=mode, **settings))


def text(result: FileResult) -> str | None:
    """The new text of a file, None where nothing is written."""
    return None if result.output is None else result.output.decode()


# -- where a file stands -------------------------------------------------------------------------

CHECKED = {
    "clean": ("import torch\n", Status.CLEAN),
    "safe": (f"{XM}{SAFE}print(1)\n", Status.READY),
    "unsafe": (f"import torch\n{XM}{UNSAFE}", Status.READY),
    "bare import": ("import torch_xla\n", Status.READY),
    "manual": (f"{XM}{MANUAL}", Status.NEEDS_WORK),
    "manual and safe": (f"{XM}{SAFE}{MANUAL}", Status.NEEDS_WORK),
    "string that blocks": (
        'import torch.distributed as dist\n\ndist.init_process_group("xla", pg_options=options)\n',
        Status.NEEDS_WORK,
    ),
    "suppressed": (f"{XM}{MANUAL.rstrip()}  # noqa: XLA501\n", Status.NEEDS_WORK),
    "broken": ("import torch_xla\ndef f(:\n", Status.NEEDS_WORK),
}


@pytest.mark.parametrize("kind", CHECKED)
def test_status_of_a_check(kind: str) -> None:
    source, status = CHECKED[kind]
    result = run(source)
    assert (result.status, result.output, result.error) == (status, None, None)


MIGRATED = {
    "clean": ("import torch\n", Status.CLEAN, Status.CLEAN),
    "safe": (f"{XM}{SAFE}print(1)\n", Status.DONE, Status.DONE),
    "unsafe": (f"import torch\n{XM}{UNSAFE}", Status.DONE, Status.READY),
    "manual and safe": (f"{XM}{SAFE}{MANUAL}", Status.NEEDS_WORK, Status.NEEDS_WORK),
}


@pytest.mark.parametrize("kind", MIGRATED)
def test_status_of_a_migration(kind: str) -> None:
    source, with_unsafe, without = MIGRATED[kind]
    assert run(source, Mode.MIGRATE, unsafe=True).status is with_unsafe
    assert run(source, Mode.MIGRATE, unsafe=False).status is without


def test_text_that_is_the_user_s_own_does_not_block() -> None:
    result = run(f'{XM}{SAFE}mode = "xla"\n', Mode.MIGRATE)
    assert [(f.rule, f.reason, f.blocks) for f in result.findings] == [
        ("XLA101", None, True),
        ("XLA220", "user-option", False),
    ]
    assert result.status is Status.DONE
    assert text(result) == 'mode = "xla"\n'


def test_file_that_cannot_be_decoded() -> None:
    result = engine.run_source(b"\xff\xfe import torch_xla\n", "x.py", Settings())
    assert result.status is Status.ERROR
    assert result.error


def test_file_that_does_not_parse_stays() -> None:
    result = run("import torch_xla\n\nprint 1\n", Mode.MIGRATE)
    assert [(f.rule, f.line, f.reason) for f in result.findings] == [
        ("XLA000", 3, "does-not-parse")
    ]
    assert result.output is None


# -- counts --------------------------------------------------------------------------------------

PROGRAM = f"""\
import importlib.util

import torch
import torch_xla
{XM}
try:
    import torch_xla.runtime as xr
    HAS = True
except ImportError:
    HAS = False

FOUND = importlib.util.find_spec("torch_xla")
NAME = "torch_xla.core.xla_model"


def train(optimizer, x):
    device = xm.xla_device()
    xm.mark_step()  # noqa: XLA101
    xm.optimizer_step(optimizer, groups=g)
    n = xm.xla_device_count()
    torch_xla.sync()
    torch_xla.unheard_of(x)
    return x.to("xla"), device, n, x.is_xla
"""
MODES = {
    "check": Settings(),
    "fix": Settings(mode=Mode.FIX),
    "partial": Settings(mode=Mode.FIX, partial=True),
    "partial, unsafe": Settings(mode=Mode.FIX, partial=True, unsafe=True),
    "migrate": Settings(mode=Mode.MIGRATE, unsafe=True),
    "migrate, safe": Settings(mode=Mode.MIGRATE),
    "migrate, some": Settings(mode=Mode.MIGRATE, unsafe=True, select=("XLA1", "XLA2")),
}
STATES = ("applied", "fixable", "manual", "suppressed")


def report_of(path: Path, settings: Settings) -> dict[str, Any]:
    """The JSON report of a run over one file."""
    return json_.document(Run(settings.mode, batch.run_project([(str(path), settings)])))


@pytest.mark.parametrize("mode", MODES)
def test_references_add_up(tmp_path: Path, mode: str) -> None:
    path = tmp_path / "x.py"
    path.write_text(PROGRAM)
    report = report_of(path, MODES[mode])
    for counted in (report["summary"], *report["files"]):
        assert counted["references"] == sum(counted[state] for state in STATES)
    [file] = report["files"]
    assert file["references"] == sum(f["counts"] for f in file["findings"])
    assert file["applied"] == sum(f["counts"] and f["applied"] for f in file["findings"])
    assert not any(f["applied"] and f["suppressed"] for f in file["findings"])
    for found in file["findings"]:
        assert (found["reason"] is None) == (found["applicability"] != "manual")
        assert (found["fix"] is None) == (found["reason"] is not None or found["suppressed"])


def test_what_counts(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(PROGRAM)
    [file] = report_of(path, MODES["migrate"])["files"]
    assert [file[k] for k in ("status", "references", *STATES)] == ["needs-work", 8, 3, 0, 4, 1]
    assert [f["rule"] for f in file["findings"] if not f["counts"]] == [
        "XLA003",
        "XLA220",
        "XLA221",
    ]
    assert [
        (f["rule"], f["reason"]) for f in file["findings"] if f["applicability"] == "manual"
    ] == [
        ("XLA004", "uses-remain"),
        ("XLA007", "string-reference"),
        ("XLA501", "argument-not-supported"),
        ("XLA099", "unknown-name"),
    ]


def test_check_and_migrate_agree(tmp_path: Path) -> None:
    path = tmp_path / "x.py"
    path.write_text(PROGRAM)
    keys = ("rule", "line", "column", "api", "counts", "blocks", "applicability", "reason")
    seen = [
        [[f[k] for k in keys] for f in report_of(path, MODES[mode])["files"][0]["findings"]]
        for mode in ("check", "fix", "migrate")
    ]
    assert seen[0] == seen[1] == seen[2]


# -- check --fix ---------------------------------------------------------------------------------

HELD = {
    "one unsafe": (
        f"import torch\n{XM}{UNSAFE}{SAFE}",
        "1 unsafe fix held back: --unsafe-fixes",
    ),
    "two unsafe": (
        f"import torch\n{XM}{UNSAFE}{UNSAFE}",
        "2 unsafe fixes held back: --unsafe-fixes",
    ),
    "manual": (
        f"{XM}{SAFE}{MANUAL}",
        "1 safe fix held back: 1 place needs a person first; --partial applies them",
    ),
    "manual and unsafe": (
        f"{XM}{SAFE}{SAFE}{MANUAL}{MANUAL}{UNSAFE}",
        "2 safe fixes, 1 unsafe held back: 2 places need a person first; --partial applies them",
    ),
    "only manual": (f"{XM}{MANUAL}", None),
}


@pytest.mark.parametrize("kind", HELD)
def test_fix_leaves_a_file_that_it_cannot_finish(kind: str) -> None:
    source, message = HELD[kind]
    result = run(source, Mode.FIX)
    assert (result.output, result.held_back) == (None, message)
    assert not any(f.applied for f in result.findings)


def test_fix_finishes_a_file() -> None:
    result = run(f"{XM}{SAFE}print(1)\n", Mode.FIX)
    assert (text(result), result.held_back, result.status) == ("print(1)\n", None, Status.DONE)


def test_unsafe_fixes_are_asked_for() -> None:
    result = run(f"import torch\n{XM}{UNSAFE}", Mode.FIX, unsafe=True)
    assert text(result) == "import torch\nn = torch.accelerator.device_count()\n"
    assert result.status is Status.DONE


def test_partial_goes_half_way_without_markers() -> None:
    result = run(f"import torch\n{XM}{SAFE}{MANUAL}{UNSAFE}", Mode.FIX, partial=True)
    assert text(result) == f"import torch\n{XM}{MANUAL}{UNSAFE}"
    assert (result.status, result.held_back) == (Status.NEEDS_WORK, None)
    assert [f.applied for f in result.findings] == [True, False, False]


def test_partial_of_a_file_that_is_ready() -> None:
    result = run(f"import torch\n{XM}{SAFE}{UNSAFE}", Mode.FIX, partial=True)
    assert text(result) == f"import torch\n{XM}{UNSAFE}"
    assert result.status is Status.READY


def test_select_and_ignore() -> None:
    source = f"import torch\n{XM}{SAFE}d = xm.xla_device()\n"
    device = 'd = torch.device("tpu")\n'
    result = check_transformed(source, source.replace(SAFE, ""), select=("XLA1",))
    assert ([f.rule for f in result.findings], result.status) == (["XLA101"], Status.NEEDS_WORK)
    result = check_transformed(source, f"import torch\n{XM}{SAFE}{device}", ignore=("XLA1",))
    assert ([f.rule for f in result.findings], result.status) == (["XLA201"], Status.NEEDS_WORK)


# -- suppression ---------------------------------------------------------------------------------

SUPPRESSED = {
    "noqa": "# noqa: XLA101",
    "noqa among others": "# noqa: F401,XLA101",
    "noqa with text": "# noqa: XLA101 because",
    "noqa of a family": "# noqa: XLA1",
    "ignore": "# xla2tpu: ignore[XLA101]",
    "ignore with spaces": "# xla2tpu: ignore[XLA201, XLA101]",
}


@pytest.mark.parametrize("form", SUPPRESSED)
def test_suppressed_use_stays(form: str) -> None:
    head = f"import torch\n{XM}\nxm.mark_step()  {SUPPRESSED[form]}\n"
    result = check_transformed(
        f"{head}device = xm.xla_device()\n", f'{head}device = torch.device("tpu")\n'
    )
    counts = [result.count(state) for state in STATES]
    assert (counts, result.status) == ([1, 0, 0, 1], Status.NEEDS_WORK)


def test_comment_on_any_line_of_the_statement_suppresses() -> None:
    result = check_noop(
        f"{XM}\nxm.optimizer_step(\n    optimizer,\n    barrier=True,\n)  # noqa: XLA501\n"
    )
    assert result.count("suppressed") == 1


@pytest.mark.parametrize("comment", ["# noqa", "# noqa: F401", "# type: ignore"])
def test_other_comments_suppress_nothing(comment: str) -> None:
    check_transformed(
        f"{XM.rstrip()}  {comment}\n\nxm.mark_step()  {comment}\nprint(2)\n",
        "print(2)\n",
    )


def test_suppressed_import_keeps_the_file_from_being_done() -> None:
    result = check_noop("import torch_xla  # noqa: XLA001\n\nprint(2)\n")
    assert result.status is Status.NEEDS_WORK


def test_whole_file() -> None:
    result = check_noop(f"# xla2tpu: ignore-file\n{XM}\nxm.mark_step()\nx = xm.xla_device(1)\n")
    assert all(f.suppressed for f in result.findings)
    assert (result.references, result.count("suppressed")) == (2, 2)
    assert result.status is Status.NEEDS_WORK


NOTHING = {
    "noqa": "print(2)  # noqa: XLA101\n",
    "ignore": "print(2)  # xla2tpu: ignore[XLA101]\n",
    "file": "# xla2tpu: ignore-file\nprint(2)\n",
}


@pytest.mark.parametrize("form", NOTHING)
def test_suppression_of_nothing_is_reported(form: str) -> None:
    result = check_noop(NOTHING[form])
    assert [(f.rule, f.counts, f.blocks) for f in result.findings] == [("XLA095", False, False)]
    assert result.status is Status.CLEAN


def test_code_that_suppresses_nothing_beside_one_that_does() -> None:
    result = check_noop(f"{XM}\nxm.mark_step()  # xla2tpu: ignore[XLA101, XLA201]\n")
    assert [(f.rule, f.api) for f in result.findings if not f.suppressed] == [("XLA095", "XLA201")]


# -- markers that are left over ------------------------------------------------------------------

STALE = "# TODO(xla2tpu): XLA501 Call optimizer.step().\n"


def test_stale_marker_is_reported_and_removed() -> None:
    source = f"def train(x):\n    {STALE}    return x\n"
    result = run(source)
    assert [(f.rule, f.line, f.applied) for f in result.findings] == [("XLA096", 2, False)]
    assert result.output is None
    after = "def train(x):\n    return x\n"
    for mode in (Mode.FIX, Mode.MIGRATE):
        assert text(run(source, mode)) == after
        assert run(source, mode).status is Status.CLEAN


def test_stale_marker_stays_without_todo() -> None:
    source = b"# TODO(xla2tpu): XLA520 Do it.\nx = 1\n"
    result = engine.run_source(source, "a.py", Settings(mode=Mode.MIGRATE, todo=False))
    assert result.output is None
    assert [(f.rule, f.applied) for f in result.findings] == [("XLA096", False)]


def test_marker_of_a_place_that_is_left_stays() -> None:
    source = f"{XM}\n{STALE}{MANUAL}"
    assert [f.rule for f in run(source).findings] == ["XLA501"]
    check_noop(source)


def test_marker_is_no_other_comment() -> None:
    assert check_noop("# TODO: XLA501 is next.\nprint(1)\n").findings == []


# -- settings ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("version", "reason"),
    [(None, "signature-by-release"), ("1.13", None)],
)
def test_source_version_decides_between_signatures(version: str | None, reason: str | None) -> None:
    source = (
        "import torch\nimport torch_xla.amp\n\n\ndef f(x):\n"
        "    with torch_xla.amp.autocast(True, torch.bfloat16):\n        return x\n"
    )
    result = run(source, Mode.MIGRATE, unsafe=True, todo=False, source_version=version)
    assert [f.reason for f in result.findings if f.counts] == [reason]


def test_portable_device() -> None:
    check_transformed(
        f'import torch\n{XM}\n\ndef f(x):\n    return x.to(xm.xla_device()), x.to("xla")\n',
        "import torch\n\n\ndef f(x):\n"
        '    return x.to(torch.accelerator.current_accelerator() or torch.device("cpu")),'
        ' x.to(torch.accelerator.current_accelerator() or torch.device("cpu"))\n',
        device="accelerator",
    )


def test_other_hardware() -> None:
    source = f"import torch_neuronx\n{XM}\n{SAFE}"
    result = check_noop(source)
    assert sorted((f.rule, f.reason) for f in result.findings) == [
        ("XLA090", "other-hardware"),
        ("XLA101", "other-hardware"),
    ]
    check_transformed(source, "import torch_neuronx\n", any_hardware=True)


IGNORED = {
    "# xla2tpu: ignore-file\n": (1, []),
    "# xla2tpu: ignore-file[XLA1]\n": (1, []),
    "# xla2tpu: ignore-file[XLA2, XLA101]\n": (1, []),
    "# xla2tpu: ignore-file[XLA2]\n": (0, ["XLA095", "XLA101"]),
    "# xla2tpu: ignore-files\n": (0, ["XLA095", "XLA101"]),
    "# XLA2TPU: ignore[XLA101]\n": (0, ["XLA095", "XLA101"]),
    "# xla2tpu : ignore-file\n": (0, ["XLA095", "XLA101"]),
    "# xla2tpu: ignore[rendezvous]\n": (0, ["XLA095", "XLA101"]),
}


@pytest.mark.parametrize("comment", IGNORED)
def test_comments_that_suppress(comment: str) -> None:
    result = run(f"{comment}{XM}{SAFE}", Mode.CHECK)
    left = sorted({f.rule for f in result.findings if not f.suppressed})
    assert (result.count("suppressed"), left) == IGNORED[comment]


def test_an_import_for_quoted_annotations_is_not_called_fixable() -> None:
    text = (
        f"from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    {XM}\n\n"
        "def f(d: 'xm.MemoryInfo'):\n    pass\n"
    )
    result = run(text, Mode.FIX, unsafe=True, partial=True)
    assert result.output is None
    assert [(f.rule, f.reason) for f in result.findings] == [
        ("XLA001", "annotation"),
        ("XLA007", "annotation"),
    ]


STABLE = {
    "an unused import of spmd": "import torch_xla.runtime as xr\n"
    "from torch_xla.distributed.spmd import auto_policy\n\n"
    "n = xr.global_runtime_device_count()\n",
    "a tag that is spelled like a name": f"{XM}xm.save(x, f)\n"
    'xm.rendezvous("torch_xla.core.xla_model.save")\n',
}


@pytest.mark.parametrize("text", STABLE.values(), ids=STABLE)
def test_a_second_run_finds_nothing_new(text: str) -> None:
    result = run(text, Mode.MIGRATE, unsafe=True)
    assert result.error is None
    assert result.output is not None
    assert b"torch_xla" not in result.output.replace(b'"torch_xla.core', b"")
