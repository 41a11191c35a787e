"""A text parsed by what has changed in it is the tree that the whole text gives."""

from __future__ import annotations

import random
from pathlib import Path

import libcst as cst
import pytest

from xla2tpu import engine, reparse
from xla2tpu.model import Mode, Settings
from xla2tpu.nodes import descendants
from xla2tpu.parsing import BadSyntax, parse
from xla2tpu.project import Project
from xla2tpu.reparse import Memory

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
TEXTS = sorted([*FIXTURES.glob("programs/*/before/*.py"), *FIXTURES.glob("hard/*.before.py")])
SNIPPETS = (
    "x", " ", "\n", "\n\n", "    ", "  ", "\t", "# c\n", "    # c\n", "(", ")", "[", '"""', "'",
    "\\", "\\\n", ";", ":", "pass", "else:\n    pass\n", "elif x:\n  y\n", "except E:\n    z\n",
    "if x:\n  y\n", "if x: y\n", "@d\n", "def f():\n    pass\n", "class C:\n\tx = 1\n", "é😋",
    "\r\n", "\r", "\f", "import torch_xla.core.xla_model as xm\n", "xm.mark_step()\n",
    "    xm.f()\n", "async ", "lambda: ", "for i in x:\n      y\n", "match x:\n    case 1: pass\n",
    "try: x\n", "finally: y\n", "with a:\n    b\n", "f'{x}'", "= 1\n", "0",
)  # fmt: skip
USUAL = """\
# header

import a
import b


def f(x):
    if x:
        return 1
    # last of the block


# of g
@d
def g():
    pass


class C:
    def h(self):
        return xm

    y = 1


if a:
    b
else:
    c
last = 1
# footer
"""


def edited(text: str, dice: random.Random) -> str:
    """The text after one change such as typing, pasting or deleting makes it."""
    at = dice.randrange(len(text) + 1)
    if dice.random() < 0.4:
        at = text.rfind("\n", 0, at) + 1
    end = at
    if dice.random() < 0.5:
        end = min(len(text), at + dice.choice((1, 1, 1, 2, 5, 40, 200)))
    if dice.random() < 0.2:
        end = text.find("\n", end) + 1 or len(text)
    snippet = dice.choice(SNIPPETS) if dice.random() < 0.8 else ""
    return text[:at] + snippet + text[end:]


def same(memory: Memory, text: str) -> bool | None:
    """Parse both ways and compare; whether it was by parts, None where the text is not valid."""
    before = memory._last
    try:
        whole = cst.parse_module(text)
    except (cst.ParserSyntaxError, cst.CSTValidationError):
        with pytest.raises((cst.ParserSyntaxError, cst.CSTValidationError)):
            memory.parse(text)
        return None
    found = memory.parse(text)
    assert found.code == whole.code
    assert found.deep_equals(whole)
    for name in ("default_indent", "default_newline", "has_trailing_newline", "encoding"):
        assert getattr(found, name) == getattr(whole, name), name
    return before is not None and memory._parsed is not None


@pytest.mark.parametrize("seed", range(60))
def test_any_change(seed: int) -> None:
    dice = random.Random(seed)
    data = dice.choice(TEXTS).read_bytes()
    text = USUAL if seed % 3 == 0 else data.decode("utf-8-sig", "replace")
    memory = Memory()
    same(memory, text)
    for _ in range(60):
        new = edited(text, dice)
        by_parts = same(memory, new)
        # A person mends what does not parse, or takes it back.
        if by_parts is not None or dice.random() < 0.1:
            text = new


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("return 1", "return 22"),
        ("    pass", "    pass\n    more"),
        ("return xm", "return xm.x"),
        ("import b", "import b, c"),
        ("last = 1\n# footer\n", "last = 2"),
        ("# header\n", ""),
        ("    y = 1\n", "    y = 1\n\n\ndef new():\n    pass\n"),
    ],
)
def test_usual_changes_are_parsed_by_parts(old: str, new: str) -> None:
    memory = Memory()
    assert same(memory, USUAL) is False
    assert same(memory, USUAL.replace(old, new, 1)) is True
    assert same(memory, USUAL) is True


@pytest.mark.parametrize(
    ("old", "new"),
    [
        # The indentation that is usual in the file is that of its first block.
        ("if a:\n  b\nx = 1\ny = 2\nif c:\n    d\ne\nf\n", "x = 1\ny = 2\nif c:\n    d\ne\nf\n"),
        ("x = 1\ny = 2\nz = 3\nif c:\n    d\ne\n", "x = 1\nif a:\n  b\nz = 3\nif c:\n    d\ne\n"),
        ("x = 1\ny = 2\nz = 3\nif c:\n    d\ne\n", "x = 1\nif a: b\nz = 3\nif c:\n  d\ne\n"),
        ("a\r\nb\nc\nd\ne\n", "a\nb\nc\nd\ne\n"),
        ("a\nb\nc\nd", "a\nb\nc\nd\n"),
        ("if a:\n    b\nc\nd\n", "if a:\n    b\nelse:\n    c\nd\n"),
        ("a\nb\n'''\nc\nd\n'''\ne\n", "a\nb\n\nc\nd\n'''\ne\n'''\n"),
    ],
)
def test_changes_that_reach_further(old: str, new: str) -> None:
    memory = Memory()
    same(memory, old)
    same(memory, new)
    same(memory, old)


def test_places_are_those_of_the_whole() -> None:
    """What is found in the text typed, and where, is what a reader of the whole finds."""
    dice = random.Random(7)
    memory = Memory()
    for path in TEXTS[:40]:
        text = path.read_bytes().decode("utf-8-sig", "replace")
        for _ in range(8):
            changed = edited(text, dice)
            try:
                whole = parse(changed)
            except BadSyntax:
                continue
            with reparse.remembering(memory):
                by_parts = parse(changed)
            # The nodes are others, in the same order.
            pairs = zip(_nodes(whole.module), _nodes(by_parts.module), strict=True)
            for one, other in pairs:
                assert whole.span(one) == by_parts.span(other)
                assert whole.full_span(one) == by_parts.full_span(other)
            text = changed


def test_no_place_is_behind_the_end() -> None:
    """The newline that a file lacks belongs to none of its statements, however it was read."""
    here, everywhere = parse("a\nif b: c"), parse("a\nif b: c")
    everywhere.locate()
    for one, other in zip(_nodes(here.module), _nodes(everywhere.module), strict=True):
        assert here.full_span(one) == everywhere.full_span(other)


def _nodes(module: cst.Module) -> list[cst.CSTNode]:
    return [n for n in descendants(module) if n is not module]


def test_findings_are_the_same() -> None:
    settings = Settings(mode=Mode.CHECK, root="/nowhere")
    project = Project("/nowhere")
    dice = random.Random(3)
    for path in TEXTS[::6]:
        memory = Memory()
        text = path.read_bytes().decode("utf-8-sig", "replace")
        for _ in range(6):
            text = edited(text, dice)
            data = text.encode("utf-8", "replace")
            whole = engine.run_source(data, "/nowhere/a.py", settings, project=project)
            with reparse.remembering(memory):
                by_parts = engine.run_source(data, "/nowhere/a.py", settings, project=project)
            assert by_parts.findings == whole.findings
            assert by_parts.status == whole.status
