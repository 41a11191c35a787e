"""Programs of SPMD rewritten as one unit, run with several processes on the emulated device.

What they train is compared with the original in one process on the CPU, where all that SPMD says of
global tensors changes nothing.
"""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from test_spmd import CURVES, MIXER, POINTS, TAKEN, changed

from xla2tpu.engine import run_source
from xla2tpu.model import Mode, Settings, Status

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
torch = pytest.importorskip("torch")
if importlib.util.find_spec("xla2tpu.emulator") is None:
    pytest.skip("there is no emulator", allow_module_level=True)

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parent.parent
PROGRAMS = ROOT / "fixtures" / "programs"
XLA_PYTHON = os.environ.get("XLA2TPU_XLA_PYTHON")
TORCHRUN = ("-m", "torch.distributed.run", "--standalone")


def migrated(source: str, folder: Path, launcher: str) -> Path:
    settings = Settings(mode=Mode.MIGRATE, unsafe=True, launcher=launcher, root=str(folder))
    result = run_source(source.encode(), str(folder / "before.py"), settings)
    assert result.status is Status.DONE, [(f.line, f.message) for f in result.findings]
    assert result.output is not None
    path = folder / f"{launcher}.py"
    path.write_bytes(result.output)
    return path


def run(path: Path, devices: int, torchrun: bool, arguments: list[str], out: Path) -> str:
    """Start a program as a user would; returns what it printed."""
    command = [sys.executable, "-m", "xla2tpu.emulator", "--devices", str(devices)]
    if torchrun:
        command += [*TORCHRUN, f"--nproc_per_node={devices}"]
    gone = ("TORCH_DEVICE_BACKEND_AUTOLOAD", "RANK", "LOCAL_RANK", "WORLD_SIZE")
    env = {k: v for k, v in os.environ.items() if k not in gone}
    done = subprocess.run(
        [*command, str(path), *arguments],
        capture_output=True, text=True, timeout=300, check=False,
        env=env | {"PYTHONPATH": str(ROOT), "OUT": str(out), "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout


class OrderedLoader(torch.utils.data.DataLoader):  # type: ignore[misc]
    """Shuffles as the sampler of one process does, anew in each epoch."""

    def __init__(
        self, data: Any, batch_size: int = 1, shuffle: bool = False, **options: Any
    ) -> None:
        self.order = torch.utils.data.DistributedSampler(
            data, num_replicas=1, rank=0, shuffle=shuffle
        )
        super().__init__(data, batch_size, sampler=self.order, **options)

    def __iter__(self) -> Any:
        yield from super().__iter__()
        self.order.set_epoch(self.order.epoch + 1)


def stubs() -> dict[str, types.ModuleType]:
    """torch_xla for one process on the CPU: annotations of global tensors change nothing."""

    def module(name: str, **names: Any) -> types.ModuleType:
        made = types.ModuleType(name)
        vars(made).update(names)
        return made

    def nothing(*args: Any, **kwargs: Any) -> None:
        pass

    def device() -> Any:
        return torch.device("cpu")

    core = module(
        "xla_model", xla_device=device, mark_step=nothing, master_print=print,
        optimizer_step=lambda optimizer: optimizer.step(),
    )  # fmt: skip
    spmd = module(
        "spmd", Mesh=nothing, ShardingSpec=nothing, mark_sharding=nothing, get_1d_mesh=nothing,
        set_global_mesh=nothing,
    )  # fmt: skip
    wrap = module("wrap", transformer_auto_wrap_policy=nothing)
    fsdp = module("fsdp", SpmdFullyShardedDataParallel=lambda model, **options: model)
    runtime = module("runtime", use_spmd=nothing, global_runtime_device_count=lambda: 1)
    loaders = module("parallel_loader", MpDeviceLoader=lambda loader, *a, **k: loader)
    return {
        "torch_xla": module("torch_xla", device=device, sync=nothing, runtime=runtime),
        "torch_xla.core": module("core", xla_model=core),
        "torch_xla.core.xla_model": core,
        "torch_xla.runtime": runtime,
        "torch_xla.distributed": module("distributed", spmd=spmd, parallel_loader=loaders),
        "torch_xla.distributed.spmd": spmd,
        "torch_xla.distributed.parallel_loader": loaders,
        "torch_xla.distributed.fsdp": wrap,
        "torch_xla.distributed.fsdp.wrap": wrap,
        "torch_xla.experimental": fsdp,
        "torch_xla.experimental.spmd_fully_sharded_data_parallel": fsdp,
    }


def run_original(
    source: str, arguments: list[str], out: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    for name, module in stubs().items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr(sys, "argv", ["before.py", *arguments])
    monkeypatch.setattr(torch.utils.data, "DataLoader", OrderedLoader)
    monkeypatch.setenv("OUT", str(out))
    main = types.ModuleType("__main__")
    monkeypatch.setitem(sys.modules, "__main__", main)
    exec(compile(source, "before.py", "exec"), vars(main))
    return vars(main)


def check_equal(found: Path, expected: Path) -> None:
    values = torch.load(found, weights_only=True)
    others = torch.load(expected, weights_only=True)
    assert list(values) == list(others)
    for name, value in values.items():
        assert torch.allclose(value, others[name], rtol=1e-4, atol=1e-5), name


@pytest.mark.parametrize("program", ["train_curves", "sort_points"])
@pytest.mark.parametrize(
    ("devices", "torchrun"),
    [(1, False), (2, False), (4, False), (2, True)],
    ids=["one", "two", "four", "torchrun"],
)
def test_data_parallel(
    program: str, devices: int, torchrun: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = PROGRAMS / "spmd_data_parallel_2024" / "before" / f"{program}.py"
    source = file.read_text(encoding="utf-8")
    path = migrated(source, tmp_path, "torchrun" if torchrun else "spawn")
    given = ["--output"] if program == "train_curves" else []
    new, old = tmp_path / "new.pt", tmp_path / "old.pt"
    printed = run(path, devices, torchrun, [*given, *([str(new)] if given else [])], new)
    run_original(source, [*given, *([str(old)] if given else [])], old, monkeypatch)
    check_equal(new, old)
    told = capsys.readouterr().out.replace("1 devices", f"{devices} devices")
    check_printed(printed, told)


@pytest.mark.parametrize("number", [1, 5, 7, 9])
def test_other_words(
    number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    source, pairs, _ = TAKEN[number]
    text = changed(source, *pairs)
    printed = run(migrated(text, tmp_path, "spawn"), 2, False, [], tmp_path / "new.pt")
    run_original(text, [], tmp_path / "old.pt", monkeypatch)
    check_printed(printed, capsys.readouterr().out.replace("1 devices", "2 devices"))


# Other ways to train, which take part in what the processes do together.
TRAINED = {
    "early": changed(
        CURVES,
        ("StepLR(optimizer, step_size=2)", "ReduceLROnPlateau(optimizer, patience=0)"),
        ("        scheduler.step()\n",
         "        scheduler.step(loss)\n        if sum(losses) / len(losses) < 0.3:\n"
         "            print('early', epoch)\n            break\n"),
    ),
    "several batches": changed(
        CURVES,
        ("            optimizer.zero_grad()\n",
         "            optimizer.zero_grad() if step % 3 == 0 else None\n"),
    ),
    "pairs": changed(
        CURVES,
        ("return self.last(self.norm(x))", "return self.last(self.norm(x)), x.mean(1)"),
        ("            loss = loss_fn(model(x), y)",
         "            out, _ = model(x)\n            loss = loss_fn(out, y)"),
        ("(model(x) - y)", "(model(x)[0] - y)"),
    ),
    "blocks twice": changed(
        MIXER, ("            x = block(x)\n", "            x = block(block(x))\n")
    ),
    "sum of sizes": changed(
        MIXER,
        ("    data = sent",
         "    size = sum(p.numel() for p in model.parameters())\n    print(size)\n    data = sent"),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRAINED)
def test_other_ways_to_train(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    text = TRAINED[name]
    printed = run(migrated(text, tmp_path, "spawn"), 2, False, [], tmp_path / "new.pt")
    run_original(text, [], tmp_path / "old.pt", monkeypatch)
    check_printed(printed, capsys.readouterr().out.replace("1 devices", "2 devices"))


# Without shuffling, whose order is that of the sampler afterwards.
IN_ORDER = {
    "curves": CURVES,
    "points": changed(POINTS, ("        shuffle=True,\n", "")),
    "mixer": changed(MIXER, (", shuffle=True", "")),
}


@pytest.mark.skipif(not XLA_PYTHON, reason="XLA2TPU_XLA_PYTHON is not set")
@pytest.mark.parametrize("devices", [2, 4])
@pytest.mark.parametrize("name", IN_ORDER)
def test_against_spmd_of_torch_xla(name: str, devices: int, tmp_path: Path) -> None:
    assert XLA_PYTHON
    new, old = tmp_path / "new.pt", tmp_path / "old.pt"
    path = migrated(IN_ORDER[name], tmp_path, "spawn")
    original = tmp_path / "before.py"
    original.write_text(IN_ORDER[name], encoding="utf-8")
    option = ["--output"] if name == "curves" else []
    printed = run(path, devices, False, [*option, *([str(new)] if option else [])], new)
    environment = {"PJRT_DEVICE": "CPU", "CPU_NUM_DEVICES": str(devices), "OUT": str(old)}
    done = subprocess.run(
        [XLA_PYTHON, str(original), *option, *([str(old)] if option else [])],
        capture_output=True, text=True, timeout=300, check=False,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), **environment},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_printed(printed, done.stdout)
    if name != "mixer":  # which saves nothing
        check_equal(new, old)


def check_printed(found: str, expected: str) -> None:
    """The same lines, numbers to three digits: processes add in another order."""
    lines, others = found.splitlines(), expected.splitlines()
    assert len(lines) == len(others)
    for line, other in zip(lines, others, strict=True):
        words, theirs = line.split(), other.split()
        assert len(words) == len(theirs), (line, other)
        for word, their in zip(words, theirs, strict=True):
            if "." in word:
                assert float(word) == pytest.approx(float(their), abs=2e-4), (line, other)
            else:
                assert word == their, (line, other)


# Runs the main function of a migrated program in one of torchrun's processes, and keeps its model.
DRIVER = """
import argparse, os, sys, torch, torch.distributed as dist
import spawn as program

dist.init_process_group("cpu:gloo,tpu:tpu_dist")
model = program.main(dist.get_rank(), argparse.Namespace(batch=32, epochs=2, dim=32, lr=0.003))
values = {name: value.full_tensor().cpu() for name, value in model.state_dict().items()}
sharded = sum(value.to_local().numel() for value in model.parameters())
whole = sum(value.numel() for value in model.parameters())
assert sharded * dist.get_world_size() <= whole + 200, (sharded, whole)
if dist.get_rank() == 0:
    torch.save(values, os.environ["OUT"])
dist.destroy_process_group()
"""


@pytest.mark.parametrize("devices", [2, 4])
def test_fsdp(
    devices: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    file = PROGRAMS / "fsdpv2_2024" / "before" / "train_mixer.py"
    source = file.read_text(encoding="utf-8")
    path = migrated(source, tmp_path, "spawn")
    new, old = tmp_path / "new.pt", tmp_path / "old.pt"
    printed = run(path, devices, False, [], new)
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER, encoding="utf-8")
    run(driver, devices, True, [], new)
    names = run_original(source, [], old, monkeypatch)
    check_printed(printed, capsys.readouterr().out)
    given = types.SimpleNamespace(batch=32, epochs=2, dim=32, lr=0.003)
    torch.save(names["main"](given).state_dict(), old)
    check_equal(new, old)
