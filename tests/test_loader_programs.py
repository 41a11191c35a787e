"""The programs of four eras that load, average and step: migrated, they train the same model.

They run in a single process on the CPU, against plain PyTorch on the same batches.
"""

from __future__ import annotations

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest

os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"
torch = pytest.importorskip("torch")

PROGRAMS = Path(__file__).resolve().parent.parent / "fixtures" / "programs"
FILES = sorted(PROGRAMS.glob("loaders_*/after/*.py"))


def dataset() -> Any:
    generator = torch.Generator().manual_seed(3)
    x = torch.rand(32, 4, generator=generator)
    return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))


def reference() -> Any:
    torch.manual_seed(7)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        for x, y in torch.utils.data.DataLoader(dataset(), batch_size=4):
            optimizer.zero_grad()
            torch.nn.functional.mse_loss(model(x), y).backward()
            optimizer.step()
    return model


def test_there_are_twelve() -> None:
    assert len(FILES) == 12


@pytest.mark.parametrize("file", FILES, ids=lambda f: f"{f.parent.parent.name}-{f.stem}")
def test_trains_the_same_model(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = file.read_text(encoding="utf-8")
    assert "torch_xla" not in text
    # This machine has another device than the one that the program is for.
    text = text.replace('torch.device("tpu")', 'torch.device("cpu")')
    text = text.replace("torch.device('tpu')", "torch.device('cpu')")
    module = types.ModuleType("migrated")
    monkeypatch.setitem(sys.modules, "migrated", module)
    monkeypatch.setitem(sys.modules, "torch_tpu", types.ModuleType("torch_tpu"))
    exec(compile(text, file.name, "exec"), vars(module))
    model = module.train(dataset())
    expected = reference()
    assert torch.allclose(model.weight, expected.weight, atol=1e-6)
    assert torch.allclose(model.bias, expected.bias, atol=1e-6)
