"""Notebooks: cells as one program, magics, written files, and the bytes of the JSON."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from xla2tpu.files import run_source
from xla2tpu.files.places import apply
from xla2tpu.model import FileResult, Mode, Settings, Status
from xla2tpu.project import Project
from xla2tpu.report import concise, github, json_, text
from xla2tpu.runner import Run

NOTEBOOKS = Path(__file__).resolve().parents[2] / "fixtures" / "notebooks"
NAMES = sorted(p.name for p in (NOTEBOOKS / "before").glob("*.ipynb"))
ROOT = "/nowhere"
MIGRATE = Settings(mode=Mode.MIGRATE, unsafe=True, root=ROOT, with_fixes=True)
IMPORT = "import torch\nimport torch_xla.core.xla_model as xm"


def notebook(*cells: str, **layout: Any) -> bytes:
    """A notebook of code cells, written as Jupyter writes it."""
    document = {
        "cells": [
            {
                "cell_type": "code",
                "execution_count": None,
                "metadata": {},
                "outputs": [],
                "source": cell.splitlines(keepends=True),
            }
            for cell in cells
        ],
        "metadata": {"kernelspec": {"language": "python", "name": "python3"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return (json.dumps(document, **({"indent": 1, "ensure_ascii": False} | layout)) + "\n").encode()


def run(data: bytes, **settings: Any) -> FileResult:
    result = run_source(
        data, f"{ROOT}/a.ipynb", replace(MIGRATE, **settings), project=Project(ROOT)
    )
    assert result.error is None
    return result


def cells(data: bytes) -> list[str]:
    """The sources of all cells."""
    document = json.loads(data)
    sheets = document.get("worksheets", [document])
    every = [c for sheet in sheets for c in sheet["cells"]]
    sources = [c.get("source", c.get("input")) for c in every]
    return [s if isinstance(s, str) else "".join(s) for s in sources]


def migrated(*sources: str, **settings: Any) -> list[str]:
    """The cells after a migration, which a second one must not change."""
    data = notebook(*sources)
    result = run(data, **settings)
    if result.output is None:
        return cells(data)
    assert run(result.output, **settings).output is None
    return cells(result.output)


# -- the JSON --------------------------------------------------------------------------------------


def without_sources(value: Any) -> Any:
    """A notebook without the texts of its code cells."""
    if isinstance(value, dict):
        code = value.get("cell_type") == "code"
        return {k: without_sources(v) for k, v in value.items() if not (code and k in _SOURCES)} | (
            {"source": None} if code else {}
        )
    return [without_sources(v) for v in value] if isinstance(value, list) else value


_SOURCES = ("source", "input")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_but_sources_changes(name: str) -> None:
    before = (NOTEBOOKS / "before" / name).read_bytes()
    result = run(before)
    after = before if result.output is None else result.output
    old, new = json.loads(before), json.loads(after)
    assert json.dumps(without_sources(old)) == json.dumps(without_sources(new))
    # Every edit lies in the source of one code cell.
    spans = list(_source_spans(before.decode()))
    text_ = before.decode()
    for edit in result.edits:
        start, end = (len(before[:at].decode()) for at in (edit.start, edit.end))
        assert any(a <= start and end <= b for a, b in spans), text_[start:end]
    assert apply(before, result.edits, "utf-8") == after


def test_all_shapes_are_there() -> None:
    """Twenty notebooks and more, of which most are migrated; the rest is to be left alone."""
    written = [n for n in NAMES if (NOTEBOOKS / "after" / n).is_file()]
    assert len(NAMES) >= 20
    assert written == NAMES
    same = [
        n
        for n in NAMES
        if (NOTEBOOKS / "before" / n).read_bytes() == (NOTEBOOKS / "after" / n).read_bytes()
    ]
    assert same == ["15_other_language.ipynb"]
    shapes = "".join((NOTEBOOKS / "before" / n).read_text() for n in NAMES)
    for shape in ("!pip install", "%%time", "%%writefile", "get_ipython().system", "= !ls", "env-"):
        assert shape in shapes


@pytest.mark.parametrize("name", NAMES)
def test_the_migrated_one_is_a_valid_notebook(name: str) -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed")
    before = (NOTEBOOKS / "before" / name).read_bytes()
    output = run(before).output
    for data in (before, before if output is None else output):
        document = json.loads(data)
        nbformat.validate(document)
        assert nbformat.reads(data.decode(), as_version=4).cells is not None


@pytest.mark.parametrize("name", NAMES)
def test_what_stands_beside_the_changed_lines_stays(name: str) -> None:
    """Cells without a change, outputs, metadata and layout are the same bytes in the same order."""
    before = (NOTEBOOKS / "before" / name).read_bytes()
    output = run(before).output
    after = before if output is None else output
    assert after == (NOTEBOOKS / "after" / name).read_bytes()
    old, new = list(_outside(before.decode())), list(_outside(after.decode()))
    assert old == new
    pairs = list(zip(cells(before), cells(after), strict=True))
    same = [text for text, changed in pairs if text == changed]
    assert len(same) < len(pairs) or after == before


def _outside(raw: str) -> Iterator[str]:
    """The text of a notebook without the sources of its cells."""
    start = 0
    for at, end in _source_spans(raw):
        yield raw[start:at]
        start = end
    yield raw[start:]


def _source_spans(raw: str) -> Iterator[tuple[int, int]]:
    decoder = json.JSONDecoder()
    for match in re.finditer(r'"(?:source|input)":\s*', raw):
        _, end = decoder.raw_decode(raw, match.end())
        yield match.end(), end


@pytest.mark.parametrize(
    "layout",
    [
        {"indent": 1},
        {"indent": 4, "ensure_ascii": True},
        {"indent": None},
        {"indent": None, "separators": (",", ":")},
        {"indent": "\t", "sort_keys": True},
    ],
)
def test_layouts(layout: dict[str, Any]) -> None:
    before = notebook(f"# Größe 😀\n{IMPORT}", "x = xm.xla_device()\nprint('é')\n", **layout)
    after = notebook("# Größe 😀\nimport torch", "x = torch.device('tpu')\nprint('é')\n", **layout)
    assert run(before).output == after


def test_a_notebook_that_is_none() -> None:
    settings = Settings(mode=Mode.CHECK)
    for data in (b'{"cells": [torch_xla', b"import torch_xla\n", b"\xff torch_xla"):
        result = run_source(data, "a.ipynb", settings)
        assert result.status is Status.ERROR
        assert (result.error or "").startswith("not a notebook: ")


def test_odd_notebooks_are_looked_past() -> None:
    for data in (b"{}", b'{"cells": [{"cell_type": "code"}], "x": "torch_xla"}', b"[1, null]"):
        assert run(data).status is Status.CLEAN


# -- the program -----------------------------------------------------------------------------------


def test_an_import_goes_with_its_last_use() -> None:
    assert migrated(IMPORT, "x = 1", "print(xm.xla_device())") == [
        "import torch",
        "x = 1",
        'print(torch.device("tpu"))',
    ]


def test_an_import_comes_to_a_cell_of_python() -> None:
    first, second, third, _ = migrated(
        "%%bash\nls",
        "import torch_xla.core.xla_model as xm",
        "%%html\n<b>",
        "print(xm.xla_device())",
    )
    assert (first, second, third) == ("%%bash\nls", "import torch", "%%html\n<b>")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("%time xm.mark_step()\nprint()", "print()"),
        ("%time x = xm.xla_device()", '%time x = torch.device("tpu")'),
        ("%timeit -n3 -r 2 f(xm.xla_device())", '%timeit -n3 -r 2 f(torch.device("tpu"))'),
        ("%%time\nxm.mark_step()\nprint()", "%%time\nprint()"),
        ("%matplotlib inline\nxm.mark_step()", "%matplotlib inline"),
        ("if a:\n    !ls\n    xm.mark_step()", "if a:\n    !ls"),
        ("x = !ls\nxm.mark_step()\nx?", "x = !ls\nx?"),
        ("  xm.mark_step()\n  y = xm.xla_device()", '  y = torch.device("tpu")'),
        ("s = '''\n!ls\n'''\nxm.mark_step()", "s = '''\n!ls\n'''"),
        ("y = (a\n  % b)\nxm.mark_step()", "y = (a\n  % b)"),
        ("!ls \\\n  -l\nxm.mark_step()", "!ls \\\n  -l"),
        ("await f(xm.xla_device())", 'await f(torch.device("tpu"))'),
    ],
)
def test_magics_are_kept(before: str, after: str) -> None:
    assert migrated(IMPORT, before) == ["import torch", after]


def test_an_indented_cell_stays_indented() -> None:
    cell = "    if x:\n        xm.master_print(x)\n    print(xm.xla_device())\n    !echo {xm}"
    assert migrated(IMPORT, cell)[1] == (
        "    if x:\n        if (dist.get_rank() if dist.is_initialized() else 0) == 0:\n"
        '            print(x)\n    print(torch.device("tpu"))\n    # TODO(xla2tpu): XLA005 Say '
        "what the module is used for; TorchTPU has no such module.\n    !echo {xm}"
    )


@pytest.mark.parametrize(
    "cell",
    ["!echo {xm}", "%prun -s x f(xm)", "%%wandb\nf(xm)", "print 'torch_xla', xm", "x = %run $xm"],
)
def test_names_in_what_is_masked_are_used(cell: str) -> None:
    first, second = migrated(IMPORT, cell, todo=False)
    assert (first, second) == (IMPORT, cell)
    rules = [(f.rule, f.cell) for f in run(notebook(IMPORT, cell)).findings]
    assert ("XLA005", 2) in rules


def test_a_cell_that_does_not_parse_is_told() -> None:
    (first, *_) = run(notebook("print 'torch_xla'", f"{IMPORT}\nxm.mark_step()")).findings
    assert (first.rule, first.cell, first.reason) == ("XLA000", 1, "does-not-parse")


def test_markers_never_stand_above_a_cell_magic() -> None:
    cell = "%%wandb\nf(xm)"
    assert migrated(IMPORT, cell) == [IMPORT, cell]


@pytest.mark.parametrize("start", ["xmp.spawn(f, nprocs=8, start_method='fork')", "tx.launch(f)"])
def test_launches_are_left_with_the_recipe(start: str) -> None:
    imports = "import torch_xla as tx\nimport torch_xla.distributed.xla_multiprocessing as xmp"
    data = notebook(imports, "def f(i):\n    print(i)", start)
    (finding,) = [f for f in run(data).findings if f.rule in ("XLA506", "XLA507")]
    assert (finding.reason, finding.cell, finding.line) == ("notebook", 3, 1)
    assert "%%writefile train.py" in finding.advice
    assert "torchrun --nproc_per_node=8" in finding.advice


def test_launches_of_files_are_the_engine_s_business() -> None:
    body = "import torch_xla as tx\n\ntx.launch(print)\n"
    data = notebook(f"%%writefile train.py\n{body}")
    assert "notebook" not in [f.reason for f in run(data).findings]


# -- what stands in cells --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("!pip install torch_xla", "!pip install torch_tpu"),
        ("%pip install -q torch-xla[tpu]", "%pip install -q torch-tpu"),
        ("pip install torch_xla", "pip install torch_tpu"),
        ("%env PJRT_DEVICE=TPU\nx = 1", "x = 1"),
        ("%env XLA_SYNC_WAIT 1", "%env TORCH_TPU_LAUNCH_BLOCKING 1"),
        ("!PJRT_DEVICE=TPU python a.py", "!python a.py"),
        ("!pip install libtpu\n!pip install torch_xla", "!pip install torch_tpu"),
        ("%%bash -e\npip install torch_xla", "%%bash -e\npip install torch_tpu"),
        ("%%script bash\nexport PJRT_DEVICE=TPU\nls", "%%script bash\nls"),
        (
            "%%writefile -a req/requirements.txt\ntorch_xla",
            "%%writefile -a req/requirements.txt\ntorch_tpu",
        ),
        ("%%file a.sh\nexport PJRT_DEVICE=TPU\nls\n", "%%file a.sh\nls\n"),
        ("%%writefile a.md\ntorch_xla", "%%writefile a.md\ntorch_xla"),
        (
            "get_ipython().system('pip install torch_xla')",
            "get_ipython().system('pip install torch_tpu')",
        ),
        ("# !pip install torch_xla", "# !pip install torch_xla"),
    ],
)
def test_shells_and_files(before: str, after: str) -> None:
    assert migrated(before) == [after]


def test_a_written_program_is_a_file_of_its_own() -> None:
    source = f"%%writefile train.py\n{IMPORT}\n\nprint(xm.xla_device())\n"
    assert migrated(IMPORT, source) == [
        IMPORT.split("\n")[0],
        '%%writefile train.py\nimport torch\n\nprint(torch.device("tpu"))\n',
    ]


@pytest.mark.parametrize(
    ("cell", "reason"),
    [("%env XLA_USE_BF16=1", "numerics"), ("%env PJRT_DEVICE CPU", "environment")],
)
def test_variables_by_hand(cell: str, reason: str) -> None:
    (finding,) = run(notebook(cell)).findings
    assert (finding.rule, finding.reason) == ("XLA917", reason)


def test_other_languages_are_left() -> None:
    data = notebook("torch_xla <- 1").replace(b'"language": "python"', b'"language": "R"')
    assert run(data).findings == []


# -- reports and policy ----------------------------------------------------------------------------


def test_places_are_cell_and_line() -> None:
    data = notebook("x = 1", f"{IMPORT}\nü = xm.xla_device()", "!pip install torch_xla")
    result = run(data, mode=Mode.CHECK)
    assert [(f.rule, f.cell, f.line, f.column) for f in result.findings] == [
        ("XLA201", 2, 3, 5),
        ("XLA910", 3, 1, 14),
    ]
    for finding in result.findings:
        assert data[finding.start : finding.end].decode() in ("xm.xla_device", "torch_xla")
    done = Run(Mode.CHECK, [result])
    assert "a.ipynb:cell 2:3:5: XLA201 " in concise.render(done)
    shown = text.render(done)
    assert "  cell 3:1:14 XLA910 " in shown
    assert "    3 | ü = xm.xla_device()\n" in shown
    assert "::cell 2:3:5: XLA201 " in github.render(done)
    assert "line=" not in github.render(done)
    (file,) = json_.document(done)["files"]
    assert [f["cell"] for f in file["findings"]] == [2, 3]


def test_one_fix_is_edits_of_the_json() -> None:
    data = notebook(IMPORT, "print(xm.xla_device())\nxm.mark_step()")
    for finding in run(data, mode=Mode.CHECK).findings:
        assert finding.fix is not None
        fixed = cells(apply(data, finding.fix.edits, "utf-8"))
        assert len(fixed) == 2
        assert fixed[1] in ('print(torch.device("tpu"))\nxm.mark_step()', "print(xm.xla_device())")


def test_held_back_as_a_whole() -> None:
    data = notebook(f"{IMPORT}\nxm.mark_step()", "%env XLA_USE_BF16=1")
    held = run(data, mode=Mode.FIX, unsafe=False)
    assert held.output is None
    assert held.held_back is not None
    assert not any(f.applied for f in held.findings)
    half = run(data, mode=Mode.FIX, unsafe=False, partial=True)
    assert half.output is not None
    assert cells(half.output) == ["import torch", "%env XLA_USE_BF16=1"]


def test_suppressed() -> None:
    cell = f"{IMPORT}\nprint(xm.xla_device())  # xla2tpu: ignore[XLA201]"
    shell = "!pip install torch_xla  # xla2tpu: ignore[XLA910]"
    result = run(notebook(cell, shell))
    assert result.output is None
    assert [(f.rule, f.suppressed) for f in result.findings] == [("XLA201", True), ("XLA910", True)]
