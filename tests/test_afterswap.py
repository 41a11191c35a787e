"""Notes of `migrate` on what the swap of devices does not give: each where it is right only."""

from __future__ import annotations

import pytest

from xla2tpu.afterswap import KINDS
from xla2tpu.engine import run_source
from xla2tpu.model import FileResult, Mode, Settings

HEAD = """\
import torch
import torch.distributed as dist
import torch_xla.core.xla_model as xm
from torch import nn
from torch.utils.data import DataLoader

device = xm.xla_device()
"""


def run(source: str, mode: Mode = Mode.MIGRATE) -> FileResult:
    settings = Settings(mode=mode, unsafe=True, partial=True, root="/nowhere")
    return run_source((HEAD + source).encode(), "/nowhere/train.py", settings)


def notes(source: str) -> list[tuple[str, int]]:
    """Names and lines, counted from the end of the head."""
    result = run(source)
    assert result.error is None
    return [(note.name, note.line - HEAD.count("\n")) for note in result.notes]


LOADER = "loader = DataLoader(data, 8, drop_last=True)\n"
FOUND = {
    "host-read-in-loop": [
        (LOADER + "for x in loader:\n    total += model(x).item()\n", 3),
        ("for i, x in enumerate(self.val_loader):\n    hits.append(model(x).cpu())\n", 2),
        (
            LOADER
            + "for x in loader:\n    loss = f(x)\n    loss.backward()\n    n += float(loss)\n",
            5,
        ),
        ("for x in tqdm(trainloader_):\n    pass\nfor x in tqdm(dataloader):\n    x.item()\n", 4),
    ],
    "no-drop-last": [
        ("batches = DataLoader(data, batch_size=8, shuffle=True)\n", 1),
        ("train_batches = DataLoader(data, 8)\n", 1),
        ("import torch.utils.data as d\nx = d.DataLoader(data, 8, True)\n", 2),
    ],
    "dynamic-compile": [("step = torch.compile(step, dynamic=True)\n", 1)],
    "not-capturable": [
        (
            "opt = torch.optim.AdamW(p)\n@torch.compile\ndef step(x):\n    f(x).backward()\n"
            "    opt.step()\n",
            1,
        ),
        (
            "opt = torch.optim.Adam(p)\ndef step(x):\n    xm.optimizer_step(opt)\n"
            "fast = torch.compile(step)\n",
            1,
        ),
        (
            "opt = torch.optim.Adam(p)\n@torch.compile(fullgraph=True)\ndef step(x):\n"
            "    opt.step()\n",
            1,
        ),
    ],
    "float64": [
        ("total = torch.zeros(1, dtype=torch.float64, device=device)\n", 1),
        ("total = torch.zeros(1, dtype=torch.float64).to(device)\n", 1),
        ("kind = torch.float64\nx = torch.ones(2, dtype=kind, device=device)\n", 1),
        ("x = y.double()\n", 1),
        ("x = y.to(torch.double)\n", 1),
        ("dtype = torch.float32 if mps else torch.float64\n", 1),
    ],
    "odd-size": [
        ("a = nn.Linear(128, 128)\nb = nn.Linear(784, 256)\nc = nn.Embedding(1000, 300)\n", 2),
        ("a = nn.MultiheadAttention(embed_dim=192, num_heads=3)\n", 1),
    ],
    "ddp-device-ids": [
        ("m = nn.parallel.DistributedDataParallel(model, device_ids=[0])\n", 1),
        (
            "from torch.nn.parallel import DistributedDataParallel as DDP\n"
            "m = DDP(model, device_ids=[i])\n",
            2,
        ),
    ],
    "collective-under-rank-test": [
        ("if dist.get_rank() == 0:\n    save()\n    dist.barrier()\n", 3),
        ("r = xm.get_ordinal()\nif r == 0:\n    xm.rendezvous('saved')\n", 3),
        ("def f(rank):\n    if rank == 0:\n        dist.all_reduce(x)\n", 3),
    ],
    "fork": [
        ("xmp.spawn(f, start_method='fork')\n", 1),
        ("import torch.multiprocessing as mp\nmp.set_start_method('fork')\n", 2),
        ("l = DataLoader(data, multiprocessing_context='fork')\n", 1),
    ],
}
NOTHING = {
    "read every N steps": LOADER
    + "for i, x in enumerate(loader):\n    if i % 10 == 0:\n        print(f(x).item())\n",
    "read in a function": LOADER + "for x in loader:\n    f = lambda: x.item()\n",
    "read after the loop": LOADER + "for x in loader:\n    t += f(x)\nprint(t.item())\n",
    "another loop": "for name in names:\n    print(sizes[name].item())\n",
    "float of a number": LOADER + "for x in loader:\n    n += float(size)\n",
    "evaluation": "test_batches = DataLoader(data, batch_size=8, shuffle=False)\n",
    "batch of one": "train = DataLoader(data, batch_size=1, shuffle=True)\n",
    "own batches": "train = DataLoader(data, batch_sampler=batches)\n",
    "hidden arguments": "train = DataLoader(data, batch_size=8, shuffle=True, **options)\n",
    "another loader": "from mine import DataLoader\ntrain = DataLoader(data, 8, shuffle=True)\n",
    "static compile": "step = torch.compile(step, dynamic=False)\n",
    "capturable": "opt = torch.optim.AdamW(p, capturable=True)\n@torch.compile\ndef step(x):\n"
    "    opt.step()\n",
    "not compiled": "opt = torch.optim.AdamW(p)\ndef step(x):\n    opt.step()\n",
    "no state": "opt = torch.optim.SGD(p)\n@torch.compile\ndef step(x):\n    opt.step()\n",
    "float64 in a table": "sizes = {torch.float64: 8, 'x': torch.float64}\n",
    "float64 in a test": "wide = x.dtype in (torch.float32, torch.float64)\n",
    "float64 without a device": "x = torch.ones(1, dtype=torch.float64)\n",
    "float64 of a new tensor": "x = torch.ones(1).to(torch.float64)\n",
    "doubled on the host": "x = torch.ones(1).double()\n",
    "float64 on another device": "x = torch.ones(1, dtype=torch.float64, device='cuda:0')\n",
    "float64 by its name on the host": "cpu_sums['a'] = x.to(dtype=torch.double)\n",
    "float64 named for the host": "kind = torch.float64\nx = torch.ones(1, dtype=kind)\n",
    "float64 on the host": "x = torch.ones(1, dtype=torch.float64, device='cpu')\n",
    "device_ids of GPUs": "m = nn.parallel.DistributedDataParallel(model, device_ids=ids)\n",
    "float32": "x = torch.zeros(1, dtype=torch.float32).float()\n",
    "even sizes": "a = nn.Linear(1024, 256)\nb = nn.Linear(256, 10)\nc = nn.Linear(n, m)\n",
    "plain DDP": "m = nn.parallel.DistributedDataParallel(model, device_ids=None)\n",
    "collective on all": "if dist.get_rank() == 0:\n    save()\ndist.barrier()\n",
    "both branches": "if dist.get_rank() == 0:\n    x()\n    dist.barrier()\nelse:\n"
    "    dist.barrier()\n",
    "no rank": "if ready:\n    dist.barrier()\n",
    "spawn": "xmp.spawn(f, start_method='spawn')\n",
    "another fork": "os.system('fork')\n",
    "a launcher of torch_xla, of which its finding speaks": (
        "import torch_xla.distributed.xla_multiprocessing as xmp\n"
        "xmp.spawn(f, start_method='fork')\n"
    ),
}


@pytest.mark.parametrize(
    ("name", "source", "line"),
    [(name, *case) for name, cases in FOUND.items() for case in cases],
)
def test_found(name: str, source: str, line: int) -> None:
    assert notes(source) == [(name, line)]


def test_every_kind_is_tested_and_has_a_source() -> None:
    assert set(FOUND) == set(KINDS)
    assert all(kind.source for kind in KINDS.values())


@pytest.mark.parametrize("source", NOTHING.values(), ids=NOTHING)
def test_not_found(source: str) -> None:
    assert notes(source) == []


def test_a_note_says_what_it_is_about() -> None:
    (note,) = run(LOADER + "for x in loader:\n    t += f(x).item() + g(x).cpu().sum()\n").notes
    assert (note.kind, note.path, note.line, note.column) == (
        "after-swap",
        "/nowhere/train.py",
        10,
        10,
    )
    assert "`.item()`, `.cpu()`" in note.message
    (note,) = run("a = nn.Linear(784, 300)\nb = nn.Linear(300, 10)\n").notes
    assert note.message.endswith(": 784, 300")


def test_only_for_migrate_and_only_for_tpus() -> None:
    source = "x = y.double()\n"
    assert run(source, Mode.CHECK).notes == []
    assert run(source, Mode.FIX).notes == []
    assert run("import torch_neuronx\n" + source).notes == []
    settings = Settings(mode=Mode.MIGRATE, root="/nowhere")
    plain = run_source(b"import torch\nx = torch.float64\n", "/nowhere/a.py", settings)
    assert plain.notes == []
    done = run_source(b'import torch\nx = torch.ones(1, device="tpu").double()\n', "a.py", settings)
    assert [note.name for note in done.notes] == ["float64"]
    assert done.output is None
