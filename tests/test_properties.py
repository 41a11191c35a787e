"""What holds for every program, however odd: generated from idioms, and mutated from fixtures."""

from __future__ import annotations

import ast
import io
import re
import textwrap
import tokenize
import warnings
from functools import cache
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from xla2tpu import engine
from xla2tpu.model import FileResult, Mode, Settings
from xla2tpu.project import project_of
from xla2tpu.report import json_
from xla2tpu.runner import Run

FIXTURES = Path(__file__).resolve().parent.parent / "fixtures"
MODES = {
    "check": Settings(mode=Mode.CHECK),
    "fix": Settings(mode=Mode.FIX),
    "partial": Settings(mode=Mode.FIX, partial=True),
    "unsafe": Settings(mode=Mode.FIX, unsafe=True),
    "migrate": Settings(mode=Mode.MIGRATE, unsafe=True),
    "safe migrate": Settings(mode=Mode.MIGRATE),
    "portable": Settings(mode=Mode.MIGRATE, unsafe=True, device="accelerator"),
}


def examples(number: int) -> settings:
    """The same programs in every run, so that a failure is a change of the code."""
    return settings(
        max_examples=number,
        derandomize=True,
        database=None,
        deadline=None,
        suppress_health_check=list(HealthCheck),
    )


# -- programs ------------------------------------------------------------------------------------

IMPORTS = """\
import torch
import torch_xla
import torch_xla.core.xla_model as xm
from torch_xla.core import xla_model as xm
import torch_xla.runtime as xr
import torch_xla.core.xla_model as xm, torch_xla.runtime as xr
import torch, torch_xla
from torch_xla import runtime as xr, __version__
from torch_xla.core.xla_model import mark_step, xla_device as dev, master_print
from torch_xla.core.xla_model import *
import torch_xla.debug.metrics as met  # metrics
import torch_xla.debug.profiler as xp
import torch_xla.utils.utils as xu
import torch_xla.test.test_utils as test_utils
import torch_xla.distributed.parallel_loader as pl
import torch_xla.distributed.xla_multiprocessing as xmp
import torch_xla.amp.syncfree as syncfree; import os
import numpy as np
import torch.distributed as dist
import torch
from torch_xla.experimental.scan_layers import scan_layers
from torch_xla.experimental.scan import scan
from torch_xla.experimental.custom_kernel import flash_attention, FlashAttention
""".splitlines()
BLOCKS = [
    "try:\n    import torch_xla.core.xla_model as xm\nexcept ImportError:\n    xm = None",
    "try:\n    import torch_xla\n    HAS = True\nexcept ImportError:\n    HAS = False",
    "try: import torch_xla.core.xla_model as xm\nexcept Exception: pass",
    "if HAS:\n    import torch_xla.core.xla_model as xm\n    import torch_xla.runtime as xr",
    "from torch_xla.core.xla_model import (\n    mark_step,  # a\n    rendezvous,\n)",
    "import importlib.util\nHAS = importlib.util.find_spec('torch_xla') is not None",
]
CALLS = """\
xm.mark_step()
xm.mark_step(wait=True)
torch_xla.sync()
torch_xla.sync(wait=flag)
mark_step()
xm.xla_device()
xm.xla_device(1)
xm.xla_device(n=k)
torch_xla.device()
dev()
xm.get_ordinal()
xm.get_ordinal(3)
xm.xrt_world_size()
xr.world_size()
xr.global_ordinal()
xm.is_master_ordinal()
xm.is_master_ordinal(local=False)
xm.get_local_ordinal()
xm.master_print("a", b, flush=True)
xm.master_print(f"{xm.get_ordinal()} of {xm.xrt_world_size()}")
master_print(*args)
xm.save(model.state_dict(), path)
xm.save({"a": xm.get_rng_state()}, path, master_only=False)
xm.rendezvous("x")
xm.optimizer_step(opt, barrier=True)
xm.all_reduce(xm.REDUCE_SUM, x)
xm.mesh_reduce("t", x, np.mean)
xm.wait_device_ops()
xm.add_step_closure(log, args=(x, y))
xm.add_step_closure(lambda: log(x))
xm.RateTracker()
xm.xla_device_hw(d)
xm.get_xla_supported_devices()
xm.get_xla_supported_devices("TPU")[0]
xm.set_rng_state(7)
xm.set_rng_state(7, xm.xla_device())
xm.get_memory_info(xm.xla_device())
xm.send_cpu_data_to_device(x, xm.xla_device())
met.metrics_report()
met.metric_data("A")
met.clear_all()
print(met.metrics_report(), flush=True)
xp.start_server(9012)
xp.Trace("x")
xu.getenv_as("A", int, 3)
xu.SampleGenerator(data=(a, b), sample_count=4)
test_utils.now()
test_utils.print_training_update(xm.xla_device(), 1, 2, 3, 4)
pl.MpDeviceLoader(loader, xm.xla_device())
xmp.spawn(main, args=())
syncfree.AdamW(p, lr=1)
torch.compile(f, backend="openxla")
torch.device("xla")
torch.device("xla:1")
x.to("xla:0")
x.device.type == "xla"
d.type in ("xla", "tpu")
os.environ.get("PJRT_DEVICE")
os.environ.setdefault("XLA_USE_BF16", "1")
dist.init_process_group("xla", init_method="xla://")
torch_xla.__version__ >= "2.1"
torch_xla.unheard.of(x)
getattr(xm, "mark_step")()
xm.save
xm.mark_step
xr
torch_xla.step()
torch_xla.compile()
torch_xla.compile(f)
torch_xla.compile(name="a")(f)
scan_layers(self.layers, x)
scan_layers(layers, input_data=(x, y))
scan(step, x, (y, z))
flash_attention(x, y, z, causal=flag, ab=k)
flash_attention(x, y, z, sm_scale=k, causal=flag)
torch.ops.xla.flash_attention(x, y, z, True)
FlashAttention.DEFAULT_BLOCK_SIZES
FlashAttention.DEFAULT_BLOCK_SIZES["block_q"]
(yield)
helper(x)
""".splitlines()
SHAPES = (
    """\
{e}
{e}  # a comment
{e}; a = 1
a = 1; {e}
a = 1; {e}; {e}
x = {e}
x: int = {e}
x += {e}
x = y = {e}
self.d = {e}
x[{e}] = {e}
if flag: {e}
if {e}: pass
while {e}: break
for i in [{e}]: {e}
assert {e}, {e}
del {e}
return {e}
yield {e}
raise E({e})
a and {e}
not {e} or b
{e} if flag else {e}
x = {e} if {e} else None
x = -{e} + 2 * {e} ** 2
x = {e} == {e}
x = {e} is None
print({e})
print(f"{{{e}}}")
print(f"{{{e}!r:>10}} {{a}}")
x = lambda: {e}
x = lambda d={e}: (d, {e})
x = [{e} for i in y if {e}]
x = {{k: {e} for k in y}}
x = (*y, {e})
f(*{e}, **{e})
x = {e}.type
x = {e}[0]
x = ({e}).items()
(z := {e})
await {e}
x = await {e}
global xm; {e}
xm = {e}
with open({e}) as g: {e}
""".splitlines()
    + [
        "f({e},\n  # inside\n  k={e})",
        "x = (\n    {e}  # one\n    + 1\n)",
        "x = a if b else \\\n    {e}",
    ]
)
HEADS = ["", '"""Doc."""\n', "from __future__ import annotations\n", "\n"]
SUITES = [
    "if flag:\n{s}",
    "if flag:\n{s}\nelse:\n{s}",
    "if flag:\n    log()\nelif xm is not None:\n{s}\nelse:\n{s}",
    "if xm.is_master_ordinal():\n{s}",
    "if HAS:\n{s}",
    "for b in loader:\n{s}",
    "for b in loader:\n{s}\nelse:\n{s}",
    "while flag:\n{s}\n    # the end",
    "try:\n{s}\nexcept E as e:\n{s}\nfinally:\n{s}",
    "try:\n{s}\nfinally:\n    pass",
    "with torch_xla.step():\n{s}",
    "with torch_xla.step(), xp.StepTrace('t', step_num=1) as t:\n{s}",
    "with torch.no_grad(), xp.Trace('a'):\n{s}",
    "with torch_xla.runtime.xla_device():\n{s}",
    'def f(x, d=xm.xla_device()):\n    """Doc."""\n{s}',
    "def f(xm):\n{s}",
    "async def f():\n{s}",
    "@torch_xla.compile\ndef f(x):\n{s}",
    "@torch_xla.step()\n@other\ndef f(x):\n{s}",
    "@xp.trace_me('a')\ndef f(x):\n{s}",
    "class A(xm.RateTracker):\n{s}",
    "class A:\n    # first\n{s}\n\n    def f(self):\n        return xm.get_ordinal()",
    "match x:\n    case 1:\n        pass\n    case _:\n{ss}",
    "t0 = time.time()\n{s0}\nprint(time.time() - t0)",
]

calls = st.sampled_from(CALLS)


@st.composite
def simple(draw: st.DrawFn) -> str:
    """One statement, with an idiom wherever one may stand."""
    shape = draw(st.sampled_from(SHAPES))
    parts = re.split(r"\{e\}", shape)
    text = parts[0] + "".join(draw(calls) + part for part in parts[1:])
    return text.replace("{{", "{").replace("}}", "}")


def in_suite(children: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    """A compound statement around others."""

    @st.composite
    def build(draw: st.DrawFn) -> str:
        parts = re.split(r"\{(s+0?)\}", draw(st.sampled_from(SUITES)))
        text = ""
        for index, part in enumerate(parts):
            if index % 2 == 0:
                text += part
                continue
            body = "\n".join(draw(st.lists(children, min_size=1, max_size=3)))
            indent = {"s": "    ", "ss": "        ", "s0": ""}[part]
            text += textwrap.indent(body, indent)
        return text

    return build()


statements = st.recursive(simple(), in_suite, max_leaves=6)


@st.composite
def programs(draw: st.DrawFn) -> bytes:
    """A program; most are valid Python, the rest show that the tool can take it."""
    lines = draw(
        st.sampled_from(["", '"""Doc."""\n', "from __future__ import annotations\n", "\n"])
    )
    imports = st.lists(st.sampled_from(IMPORTS + BLOCKS), min_size=1, max_size=6)
    lines += "\n".join(draw(imports)) + "\n"
    body = "\n".join(draw(st.lists(statements, min_size=1, max_size=5)))
    if draw(st.booleans()):
        body = f"async def main():\n{textwrap.indent(body, '    ')}\n"
    text = lines + draw(st.sampled_from(["", "\n", "\n\n# body\n"])) + body
    if draw(st.booleans()):
        text += "\n"
    return written(text, draw(st.sampled_from(["    ", "  ", "\t"])), draw(newlines))


newlines = st.sampled_from(["\n", "\n", "\r\n"])


def written(text: str, indent: str, newline: str) -> bytes:
    """The text with another indentation and newline."""
    text = re.sub(r"^(?: {4})+", lambda m: indent * (len(m[0]) // 4), text, flags=re.M)
    return text.replace("\n", newline).encode()


@cache
def sources() -> list[bytes]:
    """All programs of the fixtures, as they are before the migration."""
    files = [*FIXTURES.glob("programs/*/before/**/*.py"), *FIXTURES.glob("hard/*.before.py")]
    return [file.read_bytes() for file in sorted(files)]


@st.composite
def mutants(draw: st.DrawFn) -> bytes:
    """A fixture with a few lines deleted, doubled, swapped, moved in or out, or joined."""
    data = draw(st.sampled_from(sources()))
    lines = data.splitlines(keepends=True)
    for _ in range(draw(st.integers(1, 4))):
        if not lines:
            break
        at = draw(st.integers(0, len(lines) - 1))
        act = draw(st.sampled_from(["delete", "double", "swap", "in", "out", "join", "cut", "far"]))
        if act == "delete":
            del lines[at]
        elif act == "double":
            lines.insert(at, lines[at])
        elif act == "swap":
            lines[at - 1], lines[at] = lines[at], lines[at - 1]
        elif act == "in":
            lines[at] = b"    " + lines[at]
        elif act == "out":
            lines[at] = lines[at].removeprefix(b"    ")
        elif act == "join":
            lines[at] = lines[at].rstrip(b"\r\n") + b"; "
        elif act == "far":
            lines.insert(draw(st.integers(0, len(lines) - 1)), lines[at])
        else:
            lines = lines[: at + 1]
            lines[-1] = lines[-1].rstrip(b"\r\n")
    return b"".join(lines)


# -- what holds ----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A project of its own: the files around the tests must not lend it any names."""
    return str(tmp_path_factory.mktemp("project"))


def run(data: bytes, root: str, mode: str, **changes: object) -> FileResult:
    """Run the engine over a text that is not on the disk."""
    fields = {name: getattr(MODES[mode], name) for name in Settings.__dataclass_fields__}
    chosen = Settings(**{**fields, "root": root, **changes})
    return engine.run_source(data, f"{root}/example.py", chosen, project=project_of(root))


def compiles(data: bytes) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compile(data, "example.py", "exec", dont_inherit=True)
        except (SyntaxError, ValueError):
            return False
    return True


def decodes(data: bytes) -> bool:
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        data.decode(encoding)
    except (SyntaxError, UnicodeDecodeError):
        return False
    return True


def check_run(data: bytes, root: str, mode: str) -> FileResult:
    """One run, and what has to hold whatever the program is."""
    result = run(data, root, mode)
    if not decodes(data):
        assert result.output is None
        return result
    # An output that does not compile, or that a second run would change, is an error too.
    assert result.error is None
    if result.output is not None:
        assert MODES[mode].mode is not Mode.CHECK
        assert result.output != data
        if compiles(data):
            assert compiles(result.output)
        assert run(result.output, root, mode).output is None
    check_counts(result, data)
    return result


def unbound(data: bytes) -> set[str]:
    """Names that the imports of the idioms bind, where they are used and bound nowhere."""
    nodes = list(ast.walk(ast.parse(data)))
    bound = {n.name for n in nodes if isinstance(n, (ast.FunctionDef, ast.ClassDef))}
    bound |= {n.arg for n in nodes if isinstance(n, ast.arg)}
    used = set()
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            bound |= {(a.asname or a.name).partition(".")[0] for a in node.names}
        elif isinstance(node, ast.Name):
            (used if isinstance(node.ctx, ast.Load) else bound).add(node.id)
    own = {"torch", "torch_xla", "xm", "xr", "met", "xp", "xu", "pl", "xmp", "dist", "dev"}
    return set() if "*" in bound else (used & own) - bound


def check_counts(result: FileResult, data: bytes) -> None:
    """The numbers of the JSON report add up, and positions are those of the text."""
    document = json_.document(Run(Mode.CHECK, [result]))
    (file,) = document["files"]
    states = ("applied", "fixable", "manual", "suppressed")
    for counts in (file, document["summary"]):
        assert counts["references"] == sum(counts[state] for state in states)
    assert file["references"] == sum(f["counts"] for f in file["findings"])
    places = [(f.rule, f.api, f.start, f.end) for f in result.findings if f.counts]
    assert len(set(places)) == len(places), "two references at one place"
    for finding in result.findings:
        assert 0 <= finding.start <= finding.end <= len(data)
        assert finding.line <= finding.end_line
        assert (
            (finding.reason is None) == (finding.fix is not None)
            or finding.suppressed
            or (finding.rule in ("XLA095", "XLA096"))
        )


def check_single_fixes(data: bytes, root: str) -> None:
    """Each fix may be taken alone, as an editor does."""
    result = run(data, root, "check", with_fixes=True)
    for finding in result.findings:
        if finding.fix is None:
            continue
        assert finding.fix.edits, f"{finding.rule}: a fix without edits"
        ends = [(edit.start, edit.end) for edit in finding.fix.edits]
        assert ends == sorted(ends)
        assert all(first[1] <= second[0] for first, second in pairwise(ends))
        if compiles(data):
            fixed = engine.apply_edits(data, finding.fix.edits)
            assert compiles(fixed), f"{finding.rule} alone: {fixed.decode()}"


# Programs that longer searches found.
UNSAFE_LEFT = b"""import torch
import torch_xla.core.xla_model as xm
model.to(xm.xla_device())
if x.device.type == "xla":
    f()
"""
VALUE_LOST = b"""import torch_xla.core.xla_model as xm
from torch_xla.core.xla_model import *
x = xm.get_ordinal().type
if flag:
    x.to("xla:0")
    x = {k: xm.mark_step() for k in y}
"""
GUARDED = b"""try:
    import torch_xla
    HAS = True
except ImportError:
    HAS = False
torch_xla.sync()
"""
# The last line, without a newline, stands further up with one.
TWICE = b"""import torch_xla.core.xla_model as xm
xm.mark_step()
f()
xm.mark_step()"""
DEVICE_FIRST = b"import torch_xla.core.xla_model as xm\nxm.set_rng_state(7, xm.xla_device())\n"


@examples(400)
@example(data=TWICE, mode="migrate")
@example(data=DEVICE_FIRST, mode="safe migrate")
@example(data=UNSAFE_LEFT, mode="safe migrate")
@example(data=UNSAFE_LEFT, mode="partial")
@example(data=VALUE_LOST, mode="migrate")
@given(data=programs(), mode=st.sampled_from(sorted(MODES)))
def test_generated(root: str, data: bytes, mode: str) -> None:
    output = check_run(data, root, mode).output
    if output is not None and compiles(data):
        # All imports of these programs stand at the top.
        assert not unbound(output) - unbound(data)


@examples(400)
@given(data=mutants(), mode=st.sampled_from(sorted(MODES)))
def test_mutated(root: str, data: bytes, mode: str) -> None:
    check_run(data, root, mode)


@examples(100)
@example(data=GUARDED)
@given(data=programs())
def test_fixes_alone(root: str, data: bytes) -> None:
    check_single_fixes(data, root)


@examples(80)
@given(data=programs())
def test_modes_see_the_same(root: str, data: bytes) -> None:
    """Check, fix and migrate find the same references at the same places."""
    seen = [
        [(f.rule, f.start, f.end) for f in run(data, root, mode).findings if f.counts]
        for mode in ("check", "fix", "partial", "migrate")
    ]
    assert seen[0] == seen[1] == seen[2] == seen[3]


@examples(80)
@example(data=UNSAFE_LEFT)
@given(data=programs())
def test_migrated_in_two_steps(root: str, data: bytes) -> None:
    """Safe fixes first and the rest later leave a program that migrates without an error."""
    first = check_run(data, root, "partial")
    check_run(first.output or data, root, "migrate")


@examples(80)
@given(data=programs())
def test_without_torch_xla(root: str, data: bytes) -> None:
    """The same program with the modules of another package is not touched."""
    other = data.replace(b"torch_xla", b"xmanager").replace(b"openxla", b"inductor")
    other = re.sub(rb"\bxla\b", b"cpu", other)
    other = re.sub(rb"PJRT_DEVICE|XLA_USE_BF16", b"HOME", other)
    result = run(other, root, "migrate")
    assert result.error is None
    assert result.output is None
    if compiles(other):
        assert result.findings == []


def test_most_programs_are_valid() -> None:
    """Else the tests above would show little."""
    valid = []

    @examples(100)
    @given(data=programs())
    def count(data: bytes) -> None:
        valid.append(compiles(data))

    count()
    assert sum(valid) > len(valid) / 2
    assert all(ast.parse(call) for call in CALLS)
