"""Steps that averaged gradients: the form that is chosen, and what it does when it is run."""

from __future__ import annotations

import os
import socket
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from conftest import check_noop, check_transformed

from xla2tpu import engine
from xla2tpu.model import FileResult, Mode, Settings
from xla2tpu.rules import load_rules

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

XM = "import torch_xla.core.xla_model as xm\n"
DDP = "from torch.nn.parallel import DistributedDataParallel as DDP\n"
GUARD = '\n\nif __name__ == "__main__":\n    main()\n'
DIST = "import torch.distributed as dist\n"
CODE = {name: helper.code for name, helper in load_rules().helpers.items()}
AVERAGE = f"{DIST}\n\n{CODE['average_gradients']}\n\n"
BOTH = f"{AVERAGE}{CODE['average_and_step']}\n\n"


def migrated(source: str, **settings: Any) -> tuple[str, FileResult]:
    options = replace(Settings(mode=Mode.MIGRATE, unsafe=True, root="/nowhere"), **settings)
    result = engine.run_source(source.encode(), "/nowhere/example.py", options)
    assert result.error is None, result.error
    text = (result.output or source.encode()).decode()
    check_transformed(source, text, **settings)
    return text, result


STATEMENTS = {
    "name": ("xm.optimizer_step(opt)", "average_gradients(opt)\nopt.step()"),
    "keyword": ("xm.optimizer_step(optimizer=opt)", "average_gradients(opt)\nopt.step()"),
    "attribute": (
        "xm.optimizer_step(opt.inner, barrier=True)",
        "average_gradients(opt.inner)\nopt.inner.step()",
    ),
    "subscript": (
        "xm.optimizer_step(opt[0])",
        "average_gradients(opt[0])\nopt[0].step()",
    ),
    "no arguments": (
        "xm.optimizer_step(opt, optimizer_args={})",
        "average_gradients(opt)\nopt.step()",
    ),
    "no closure": (
        "xm.optimizer_step(opt, optimizer_args={'closure': None})",
        "average_gradients(opt)\nopt.step(closure=None)",
    ),
    "arguments": (
        "xm.optimizer_step(opt, barrier=False, optimizer_args={'a': 1, \"b\": 2})",
        "average_gradients(opt)\nopt.step(a=1, b=2)",
    ),
    "no groups": (
        "xm.optimizer_step(opt, groups=None, pin_layout=False)",
        "average_gradients(opt)\nopt.step()",
    ),
    "barrier of an attribute": (
        "xm.optimizer_step(opt, barrier=opt.barrier)",
        "average_gradients(opt)\nopt.step()",
    ),
    "semicolons": (
        "a = 1; xm.optimizer_step(opt); b = 2",
        "a = 1; average_gradients(opt); opt.step(); b = 2",
    ),
    "comment": (
        "xm.optimizer_step(opt)  # step",
        "average_gradients(opt)\nopt.step()  # step",
    ),
    "assigned": (
        "loss = xm.optimizer_step(opt)",
        "average_gradients(opt)\nloss = opt.step()",
    ),
    "returned": (
        "return xm.optimizer_step(opt)",
        "average_gradients(opt)\nreturn opt.step()",
    ),
    "one line": (
        "if opt: xm.optimizer_step(opt)",
        "if opt:\n    average_gradients(opt)\n    opt.step()",
    ),
    "one line of two": (
        "if opt: xm.optimizer_step(opt); opt.zero_grad()",
        "if opt: average_gradients(opt); opt.step(); opt.zero_grad()",
    ),
    "branches": (
        "if opt.tpu:\n    xm.optimizer_step(opt, barrier=True)\nelse:\n    opt.step()",
        "if opt.tpu:\n    average_gradients(opt)\n    opt.step()\nelse:\n    opt.step()",
    ),
}

EXPRESSIONS = {
    "call": ("xm.optimizer_step(make(opt))", "average_and_step(make(opt))"),
    "subscript of a call": ("xm.optimizer_step(opt[make()])", "average_and_step(opt[make()])"),
    "choice": (
        "xm.optimizer_step(opt if opt else None)",
        "average_and_step(opt if opt else None)",
    ),
    "conditional": (
        "xm.optimizer_step(opt) if opt else opt.step()",
        "average_and_step(opt) if opt else opt.step()",
    ),
    "and": ("opt and xm.optimizer_step(opt)", "opt and average_and_step(opt)"),
    "lambda": ("f = lambda: xm.optimizer_step(opt)", "f = lambda: average_and_step(opt)"),
    "argument": ("print(xm.optimizer_step(opt))", "print(average_and_step(opt))"),
    "returned in one line": (
        "if opt: return xm.optimizer_step(opt)",
        "if opt: return average_and_step(opt)",
    ),
    "part of a value": ("loss = xm.optimizer_step(opt), 1", "loss = average_and_step(opt), 1"),
    "arguments": (
        "print(xm.optimizer_step(opt, optimizer_args={'a': 1}))",
        "print(average_and_step(opt, a=1))",
    ),
}


def body(text: str) -> str:
    lines = "".join(f"    {line}\n" for line in text.splitlines())
    return f"def update(opt, make=None):\n{lines}"


@pytest.mark.parametrize("name", STATEMENTS)
def test_two_statements(name: str) -> None:
    before, after = STATEMENTS[name]
    result = check_transformed(f"{XM}\n\n{body(before)}", f"{AVERAGE}{body(after)}", unsafe=False)
    (finding,) = result.findings
    assert "several cannot be ruled out" in finding.message


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_one_call_where_there_is_no_place_for_two(name: str) -> None:
    before, after = EXPRESSIONS[name]
    check_transformed(f"{XM}\n\n{body(before)}", f"{BOTH}{body(after)}", unsafe=False)


@pytest.mark.parametrize(
    ("call", "reason"),
    [
        ("xm.optimizer_step(opt, optimizer_args={'closure': make})", "closure-order"),
        ("xm.optimizer_step(opt, optimizer_args=make)", "closure-order"),
        ("xm.optimizer_step(opt, optimizer_args={**make})", "closure-order"),
        ("xm.optimizer_step(opt, optimizer_args={make: 1})", "argument-not-supported"),
        ("xm.optimizer_step(opt, groups=make)", "argument-not-supported"),
        ("xm.optimizer_step(opt, barrier=make())", "argument-side-effects"),
        ("xm.optimizer_step(*opt)", "starred-arguments"),
        ("make(xm.optimizer_step)", "value-escapes"),
        ("xm.optimizer_step()", "arguments-do-not-bind"),
    ],
)
def test_left_to_a_person(call: str, reason: str) -> None:
    result = check_noop(f"{XM}\n\n{body(call)}", todo=False)
    assert [f.reason for f in result.findings] == [reason]


def test_comments_inside_a_call() -> None:
    call = "xm.optimizer_step(\n    opt,  # the optimizer\n    barrier=True,  # barrier\n)  # end"
    text, _ = migrated(f"{XM}\n\n{body(call)}")
    kept = body("average_and_step(\n    opt,  # the optimizer\n)  # end")
    assert text.endswith(kept)
    call = "xm.mesh_reduce(  # reduce\n    'tag',  # tag\n    # how\n    opt,  # value\n    sum\n)"
    text, _ = migrated(f"{XM}\n\n{body(call)}")
    assert text.endswith(body("mesh_reduce(  # reduce\n    # how\n    opt,  # value\n    sum\n)"))
    call = "xm.all_gather(\n    opt,\n    0,\n    pin_layout=False  # dropped\n)"
    text, _ = migrated(f"{XM}\n\n{body(call)}")
    assert text.endswith(body("all_gather(\n    opt,\n    dim=0\n)"))


def test_single_process_by_configuration() -> None:
    calls = [before for before, _ in (*STATEMENTS.values(), *EXPRESSIONS.values())]
    calls.append("xm.optimizer_step(opt, optimizer_args={'closure': make})")
    calls.append("xm.optimizer_step(opt, optimizer_args=make or {})")
    for call in calls:
        text, result = migrated(f"{XM}\n\n{body(call)}", processes="single")
        assert "average" not in text
        assert ".step(" in text
        assert "the configuration says" in result.findings[0].message
    assert "opt.step(**(make or {}))" in text


SCRIPT = f"""import torch
{XM}

def main(opt=None):
    xm.optimizer_step(opt)
"""


@pytest.mark.parametrize(
    ("source", "alone"),
    [
        (SCRIPT + GUARD, True),
        (SCRIPT, False),
        (
            SCRIPT.replace("import torch\n", "import torch\nimport torch.distributed\n") + GUARD,
            False,
        ),
        (SCRIPT + "    print(xm.get_ordinal())\n" + GUARD, False),
        (SCRIPT + "    xm.rendezvous('x')\n" + GUARD, False),
        (SCRIPT + '\n\nif __name__ == "__main__":\n    start(main)\n', False),
        (SCRIPT.replace("main(opt=None)", "main(rank)") + GUARD, False),
        (SCRIPT + '    os.environ["LOCAL_RANK"]\n' + GUARD, False),
        (SCRIPT + '    parser.add_argument("--local-rank")\n' + GUARD, False),
        ("from own import deco\n" + SCRIPT.replace("def", "@deco\ndef") + GUARD, False),
        ("from own import Base\n" + SCRIPT + "\n\nclass A(Base):\n    pass\n" + GUARD, False),
        ("from own import prepare\n" + SCRIPT + "    prepare()\n" + GUARD, False),
        ("from .own import init\n" + SCRIPT + "    init()\n" + GUARD, False),
        ("from own import *\n" + SCRIPT + "    prepare()\n" + GUARD, False),
        ("from own import Net, load_data\n" + SCRIPT + "    Net(load_data())\n" + GUARD, True),
        (SCRIPT.replace("main", "_mp_fn") + GUARD.replace("main()", "_mp_fn()"), False),
    ],
)
def test_script_of_a_single_process(source: str, alone: bool) -> None:
    text, result = migrated(source, todo=False)
    assert ("average_gradients(opt)" not in text) == alone
    (finding,) = (f for f in result.findings if f.rule == "XLA501")
    assert ("starts no worker function" in finding.message) == alone


WRAPPED = f"""import torch
{XM}{DDP}

def train(net, other, wrap):
    model = DDP(net)
    opt = torch.optim.SGD(model.parameters(), lr=0.1)
    xm.optimizer_step(opt)
"""


@pytest.mark.parametrize(
    ("change", "alone"),
    [
        (("", ""), True),
        (("model = DDP(net)", "net = DDP(net)\n    model = net"), False),
        (("model = DDP(net)", "model = net\n    model = DDP(model)"), True),
        (("model = DDP(net)", "if wrap:\n        model = DDP(net)"), False),
        (("model = DDP(net)", "model = DDP(net) if wrap else net"), False),
        (("model = DDP(net)", "model = DDP(net)\n    model = other"), False),
        (("(model.par", "(other.par"), False),
        (("model.parameters()", "[*model.parameters(), *other.parameters()]"), False),
        (("    xm", "    if wrap:\n        opt = other\n    xm"), False),
        (("    xm", "    for _ in range(2):\n        xm"), True),
        (("    xm", "    with model.no_sync():\n        pass\n    xm"), False),
        (("lr=0.1)", "lr=0.1)\n\n\ndef step(opt):"), False),
    ],
)
def test_wrapped_model(change: tuple[str, str], alone: bool) -> None:
    text, result = migrated(WRAPPED.replace(*change))
    assert ("average_gradients(opt)" not in text) == alone
    (finding,) = (f for f in result.findings if f.rule == "XLA501")
    assert ("`model` is wrapped in DistributedDataParallel" in finding.message) == alone


def test_closure_under_a_wrapped_model() -> None:
    source = WRAPPED.replace("step(opt)", "step(opt, optimizer_args={'closure': wrap})")
    assert "    opt.step(closure=wrap)\n" in migrated(source)[0]


def test_pair_of_fetching_and_summing() -> None:
    pair = "g = xm._fetch_gradients(opt)\nxm.all_reduce({}, g, scale={})"
    ones = ("'sum'", "1.0 / xm.xrt_world_size()"), ("xm.REDUCE_SUM", "1 / xm.xrt_world_size()")
    for kind, scale in ones:
        check_transformed(
            f"{XM}\n\n{body(pair.format(kind, scale))}",
            f"{AVERAGE}{body('average_gradients(opt)')}",
        )
    for kind, scale in (("'max'", ones[0][1]), ("'sum'", "make"), ("'sum'", "2 / make")):
        text, _ = migrated(f"{XM}\n\n{body(pair.format(kind, scale))}")
        assert "g = gradients_of(opt)" in text
    text, _ = migrated(f"{XM}\n\n{body(pair.format(*ones[0]) + chr(10) + 'print(g)')}")
    assert "g = gradients_of(opt)" in text


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("xm.reduce_gradients(opt)", "average_gradients(opt)"),
        ("if opt: xm.reduce_gradients(opt)", "if opt: average_gradients(opt)"),
        ("make(lambda: xm.reduce_gradients(opt))", "make(lambda: average_gradients(opt))"),
        ("xm.reduce_gradients(opt[make()], pin_layout=False)", "average_gradients(opt[make()])"),
    ],
)
def test_averaging_by_hand(before: str, after: str) -> None:
    check_transformed(f"{XM}\n\n{body(before)}", f"{AVERAGE}{body(after)}", unsafe=False)
    text, _ = migrated(f"{XM}\n\n{body(before)}", processes="single")
    assert ("average_gradients" in text) == ("make" in before)


def test_a_suppressed_half_keeps_the_other() -> None:
    pair = (
        "g = xm._fetch_gradients(opt)  # noqa: XLA502\n"
        "xm.all_reduce('sum', g, scale=1.0 / xm.xrt_world_size())"
    )
    assert "_fetch_gradients(opt)" in migrated(f"{XM}\n\n{body(pair)}")[0]


# -- run ---------------------------------------------------------------------------------------

PROGRAM = f"""import torch
import torch.nn.functional as F
{XM}import torch_xla.distributed.parallel_loader as pl


def train(model, dataset, device, rank=0, world=1, clip=None):
    sampler = torch.utils.data.DistributedSampler(
        dataset, num_replicas=world, rank=rank, shuffle=False)
    loader = torch.utils.data.DataLoader(dataset, batch_size=2, sampler=sampler)
    model = model.to(device)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    tracked = []
    for epoch in range(2):
        para = pl.ParallelLoader(loader, [device])
        for step, (x, y) in enumerate(para.per_device_loader(device)):
            optimizer.zero_grad()
            loss = F.mse_loss(model(x), y)
            loss.backward()
            if clip is not None:
                xm.reduce_gradients(optimizer)
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
                optimizer.step()
            elif step % 2:
                tracked.append(xm.optimizer_step(optimizer))
            else:
                xm.optimizer_step(optimizer, barrier=True)
        del para
    return model
"""


def reference(clip: float | None, world: int) -> Any:
    """Plain PyTorch on all processes' batches at once: the mean loss has the mean gradient."""
    import torch

    model, dataset = setting()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05)
    for _ in range(2):
        for start in range(0, len(dataset), 2 * world):
            x, y = dataset[start : start + 2 * world]
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            if clip is not None:
                torch.nn.utils.clip_grad_norm_(model.parameters(), clip)
            optimizer.step()
    return model


def setting() -> tuple[Any, Any]:
    import torch

    torch.manual_seed(1)
    model = torch.nn.Linear(3, 1)
    return model, torch.utils.data.TensorDataset(torch.rand(16, 3), torch.rand(16, 1))


def worker(rank: int, port: int, folder: str) -> None:
    import torch
    import torch.distributed as dist

    sys.path.insert(0, folder)
    import migrated_program  # type: ignore[import-not-found]

    os.environ.update(
        MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), RANK=str(rank), WORLD_SIZE="2"
    )
    dist.init_process_group("gloo")
    try:
        for clip in (None, 0.01):
            model, dataset = setting()
            model = migrated_program.train(model, dataset, torch.device("cpu"), rank, 2, clip)
            for mine, theirs in zip(
                model.parameters(), reference(clip, 2).parameters(), strict=True
            ):
                assert torch.allclose(mine, theirs, atol=1e-6)
    finally:
        dist.destroy_process_group()


def test_program_trains_the_same_model_in_one_process_and_in_two(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    text, result = migrated(PROGRAM)
    assert "torch_xla" not in text
    assert all(f.applied for f in result.findings)
    space: dict[str, Any] = {}
    exec(text, space)
    for clip in (None, 0.01):
        model, dataset = setting()
        model = space["train"](model, dataset, torch.device("cpu"), clip=clip)
        for mine, theirs in zip(model.parameters(), reference(clip, 1).parameters(), strict=True):
            assert torch.equal(mine, theirs)
    (tmp_path / "migrated_program.py").write_text(text)
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    torch.multiprocessing.spawn(worker, args=(port, str(tmp_path)), nprocs=2)
