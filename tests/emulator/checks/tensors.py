"""Tensors: making them, moving them, views, errors."""

from __future__ import annotations

import copy
import io
import pickle

import numpy as np
import torch
from expect import raises

TPU = torch.device("tpu")


def same(actual: torch.Tensor, expected: torch.Tensor) -> None:
    assert actual.device == torch.device("tpu:0"), actual.device
    torch.testing.assert_close(actual.cpu(), expected)


def check_factories() -> None:
    for device in ("tpu", "tpu:0", TPU):
        same(torch.zeros(2, 3, device=device), torch.zeros(2, 3))
    same(torch.ones(2, device=TPU, dtype=torch.bfloat16), torch.ones(2, dtype=torch.bfloat16))
    same(torch.full((2,), 7, device=TPU), torch.full((2,), 7))
    same(torch.arange(5, device=TPU), torch.arange(5))
    same(torch.linspace(0, 1, 5, device=TPU), torch.linspace(0, 1, 5))
    same(torch.eye(3, device=TPU), torch.eye(3))
    same(torch.tensor([[1.5, 2], [3, 4]], device=TPU), torch.tensor([[1.5, 2], [3, 4]]))
    same(torch.as_tensor(np.arange(3), device=TPU), torch.arange(3))
    same(torch.tril_indices(3, 3, device=TPU), torch.tril_indices(3, 3))
    assert torch.empty(2, 3, device=TPU).shape == (2, 3)
    assert torch.empty_strided((2, 3), (1, 2), device=TPU).stride() == (1, 2)
    assert torch.rand(4, device=TPU).device.index == 0
    assert sorted(torch.randperm(9, device=TPU).tolist()) == list(range(9))
    nhwc = torch.empty(1, 2, 3, 4, device=TPU, memory_format=torch.channels_last)
    assert nhwc.is_contiguous(memory_format=torch.channels_last)


def check_like() -> None:
    x = torch.ones(2, 3, device=TPU)
    for made in (torch.zeros_like(x), x.new_zeros(2), x.new_tensor([1.0]), torch.rand_like(x)):
        assert made.device.type == "tpu"
    assert torch.zeros_like(x, device="cpu").device.type == "cpu"


def check_default_device() -> None:
    with torch.device("tpu"):
        layer = torch.nn.Linear(2, 2)
        made = torch.zeros(2)
    assert layer.weight.device == made.device == torch.device("tpu:0")
    assert torch.zeros(2).device.type == "cpu"
    torch.set_default_device("tpu")
    try:
        assert (torch.ones(2) + torch.arange(2)).device.type == "tpu"
    finally:
        torch.set_default_device(None)


def check_moves() -> None:
    x = torch.randn(2, 3)
    y = x.to("tpu")
    same(y, x)
    same(x.tpu(), x)
    assert y.to("tpu") is y
    assert y.to("tpu:0", torch.float64).dtype is torch.float64
    assert y.to(x).device.type == "cpu"
    assert x.to(y).device.type == "tpu"
    assert y.cpu().device.type == "cpu"
    y.copy_(torch.zeros(2, 3))
    assert y.sum().item() == 0
    x.copy_(torch.ones(2, 3, device=TPU))
    assert x.sum().item() == 6
    assert y.is_tpu
    assert not x.is_tpu
    assert y.get_device() == 0
    host = torch.arange(4.0)
    moved = host.to(TPU)
    host.zero_()
    assert moved.sum().item() == 6, "a move is a copy"


def check_one_device() -> None:
    with raises(RuntimeError, "Device index 1"):
        torch.ones(2, device="tpu:1")
    with raises(RuntimeError, "Device index 3"):
        torch.ones(2).to("tpu:3")


def check_host_reads() -> None:
    x = torch.tensor([[1.0, 2.0]], device=TPU)
    assert x.tolist() == [[1.0, 2.0]]
    assert x.sum().item() == 3.0
    assert float(x[0, 1]) == 2.0
    assert bool((x > 0).all())
    assert "device='tpu:0'" in repr(x)
    assert "1.0000" in f"{x[0, 0]:.4f}"
    assert [int(v) for v in torch.arange(3, device=TPU)] == [0, 1, 2]
    with raises(TypeError, "can't convert tpu:0 device type tensor to numpy"):
        x.numpy()
    with raises(TypeError, "can't convert tpu:0 device type tensor to numpy"):
        np.asarray(x)
    assert x.cpu().numpy().sum() == 3


def check_views_share_memory() -> None:
    x = torch.zeros(4, 6, device=TPU)
    x[1:3, ::2] = 1
    assert x.sum().item() == 6
    x.t()[0].fill_(5)
    assert x[:, 0].tolist() == [5] * 4
    x.view(-1)[-1] = 9
    assert x[3, 5].item() == 9
    row = x.select(0, 2)
    row.mul_(0)
    assert x[2].abs().sum().item() == 0
    part = torch.as_strided(x, (2, 2), (6, 1), 1)
    part.fill_(-1)
    assert x[0, 1].item() == x[1, 2].item() == -1
    assert x.unfold(1, 2, 2).shape == (4, 3, 2)
    pieces = x.split(2)
    pieces[0].zero_()
    assert x[:2].abs().sum().item() == 0
    assert x.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
    assert x.expand(3, 4, 6).stride() == (0, 6, 1)
    complexes = torch.zeros(3, dtype=torch.complex64, device=TPU)
    torch.view_as_real(complexes)[:, 0] = 2
    assert complexes.cpu().tolist() == [2, 2, 2]
    assert complexes.conj().cpu().tolist() == [2, 2, 2]
    assert (complexes + 1j).conj().imag.cpu().tolist() == [-1, -1, -1]
    ints = torch.ones(2, device=TPU).view(torch.int32)
    assert ints.tolist() == torch.ones(2).view(torch.int32).tolist()


def check_views_know_their_base() -> None:
    x = torch.zeros(4, device=TPU)
    y = x[1:]
    assert y._base is x
    version = x._version
    y.add_(1)
    assert x._version == version + 1
    leaf = torch.ones(4, device=TPU, requires_grad=True)
    with raises(RuntimeError, "leaf Variable"):
        leaf[1:].add_(1)
    twice = leaf * 2
    square = twice.pow(2)
    twice[0] = 0
    with raises(RuntimeError, "modified by an inplace operation"):
        square.sum().backward()


def check_in_place() -> None:
    x = torch.ones(3, device=TPU)
    y = x
    y += 1
    y.mul_(3).clamp_(max=5).neg_()
    same(x, torch.full((3,), -5.0))
    assert x.add_(1) is x
    x.resize_(5)
    assert x.shape == (5,)
    x.data = torch.zeros(2, device=TPU)
    assert x.tolist() == [0, 0]
    x.set_(torch.ones(3, device=TPU))
    assert x.tolist() == [1, 1, 1]


def check_out() -> None:
    out = torch.empty(0, device=TPU)
    torch.add(torch.ones(3, device=TPU), 1, out=out)
    assert out.tolist() == [2, 2, 2]
    torch.cat([out, out], out=out.new_empty(0))
    values, indices = torch.empty(0, device=TPU), torch.empty(0, dtype=torch.long, device=TPU)
    torch.max(torch.eye(2, device=TPU), 1, out=(values, indices))
    assert indices.tolist() == [0, 1]


def check_indexing() -> None:
    cpu = torch.arange(12.0).view(3, 4)
    x = cpu.to(TPU)
    same(x[torch.tensor([0, 2], device=TPU)], cpu[[0, 2]])
    same(x[torch.tensor([0, 2])], cpu[[0, 2]])
    same(x[x > 5], cpu[cpu > 5])
    same(x[:, None, ::3], cpu[:, None, ::3])
    x[x > 5] = 0
    cpu[cpu > 5] = 0
    same(x, cpu)
    x[torch.tensor([1], device=TPU)] = torch.ones(1, 4, device=TPU)
    assert x[1].tolist() == [1] * 4
    assert torch.nonzero(x[0]).flatten().tolist() == [1, 2, 3]


def check_mixed_devices() -> None:
    x, host = torch.ones(3, device=TPU), torch.ones(3)
    message = "Expected all tensors to be on the same device"
    for call in (
        lambda: x + host,
        lambda: host + x,
        lambda: torch.mm(x[None], host[:, None]),
        lambda: torch.cat([x, host]),
        lambda: torch.stack([host, x]),
        lambda: torch.where(x > 0, x, host),
        lambda: torch.nn.Linear(3, 2).to(TPU)(host),
        lambda: torch.nn.Linear(3, 2)(x),
        lambda: torch.nn.functional.mse_loss(x, host),
        lambda: torch.nn.functional.cross_entropy(x[None], torch.tensor([1])),
        lambda: torch.nn.Embedding(3, 2).to(TPU)(torch.tensor([1])),
        lambda: torch.nn.functional.conv1d(x[None, None], host[None, None]),
        lambda: x.add_(host),
        lambda: host.add_(x),
        lambda: torch.add(x, x, out=host),
        lambda: torch.nn.BatchNorm1d(3)(x.expand(2, 3)),
    ):
        with raises(RuntimeError, message):
            call()
    with raises(RuntimeError, "not at the same device"):
        torch.nn.LSTM(3, 2)(x[None])
    with raises(RuntimeError, "to have the same device type"):
        torch.nn.functional.scaled_dot_product_attention(x[None], host[None], x[None])


def check_mixed_devices_in_indexing() -> None:
    x, host = torch.arange(6.0, device=TPU), torch.arange(6.0)
    for index in (torch.tensor([1, 2]), torch.tensor([1, 2], device=TPU)):
        same(x[index], torch.tensor([1.0, 2.0]))
        x[index] = torch.tensor([1.0, 2.0], device=TPU)
        x[index] = torch.tensor(3.0)  # a number
        same(x[index], torch.tensor([3.0, 3.0]))
        x[index] = index.to(TPU, torch.float32)
        with raises(RuntimeError, "Expected all tensors to be on the same device"):
            x.index_put_((index,), torch.ones(2))
    index = torch.tensor([1, 2], device=TPU)

    def put() -> None:
        host.index_put_((index,), torch.ones(2))

    def put_device() -> None:
        host.index_put_((index,), torch.ones(2, device=TPU))

    for call in (lambda: host[index], put, put_device):
        with raises(RuntimeError, "indices should be either on cpu or on the same device"):
            call()
    torch._foreach_copy_([host], [x + 1])
    torch._foreach_copy_([x], [host])
    same(x, torch.arange(1.0, 7.0))


def check_numbers_of_the_cpu_that_are_none() -> None:
    number, x = torch.tensor(1.0), torch.tensor(2.0, device=TPU)
    for call in (
        lambda: torch.stack([x, number]),
        lambda: torch.cat([x[None], number[None]]),
        lambda: torch.stack([number, x]),
        lambda: torch.nn.functional.nll_loss(torch.zeros(2, device=TPU), torch.tensor(1)),
        lambda: torch.ones(3, device=TPU).index_select(0, torch.tensor(1)),
    ):
        with raises(RuntimeError, "Expected all tensors to be on the same device"):
            call()


def check_numbers_of_the_cpu() -> None:
    x = torch.ones(3, device=TPU)
    same(x + torch.tensor(2.0), torch.full((3,), 3.0))
    same(torch.tensor(2.0) * x, torch.full((3,), 2.0))
    same(torch.where(x > 0, x, torch.tensor(0.0)), torch.ones(3))
    same(x.add_(torch.tensor(1.0)), torch.full((3,), 2.0))
    with raises(RuntimeError, "Expected all tensors to be on the same device"):
        torch.tensor(0.0).add_(torch.tensor(1.0, device=TPU))


def check_copies_and_pickles() -> None:
    x = torch.randn(2, 3, device=TPU)
    view = x[0]
    twin, twin_view = copy.deepcopy((x, view))
    same(twin, x.cpu())
    twin_view.zero_()
    assert twin[0].abs().sum().item() == 0
    assert x[0].abs().sum().item() > 0
    again = pickle.loads(pickle.dumps(x))
    same(again, x.cpu())
    layer = torch.nn.Linear(2, 2).to(TPU)
    twin = copy.deepcopy(layer)
    same(twin.weight.detach(), layer.weight.detach().cpu())
    assert twin.weight.requires_grad
    assert isinstance(twin.weight, torch.nn.Parameter)
    again = pickle.loads(pickle.dumps(layer))
    assert again.weight.device.type == "tpu"


def check_save_and_load() -> None:
    state = torch.nn.Linear(2, 2).to(TPU).state_dict()
    state["step"] = 3
    buffer = io.BytesIO()
    torch.save(state, buffer)
    for location, expected in ((None, "tpu"), ("cpu", "cpu"), ("tpu", "tpu"), (TPU, "tpu")):
        buffer.seek(0)
        loaded = torch.load(buffer, map_location=location)
        assert loaded["weight"].device.type == expected, (location, loaded["weight"].device)
        assert torch.equal(loaded["weight"].cpu(), state["weight"].cpu())
    host = io.BytesIO()
    torch.save({"x": torch.ones(2)}, host)
    host.seek(0)
    same(torch.load(host, map_location="tpu", weights_only=True)["x"], torch.ones(2))
    torch.nn.Linear(2, 2).load_state_dict({k: v for k, v in state.items() if k != "step"})


def check_memory_is_freed() -> None:
    import gc

    gc.collect()
    before = torch.accelerator.memory_allocated()
    x = torch.zeros(1000, 1000, device=TPU)
    view = x[0].detach()
    del x
    assert torch.accelerator.memory_allocated() == before + 4_000_000
    del view
    gc.collect()
    assert torch.accelerator.memory_allocated() == before
    assert torch.accelerator.max_memory_allocated() >= before + 4_000_000
    torch.accelerator.reset_peak_memory_stats()
    assert torch.accelerator.max_memory_allocated() == before
    free, total = torch.accelerator.get_memory_info()
    assert total - free == before


def check_storage() -> None:
    x = torch.arange(4.0, device=TPU)
    storage = x.untyped_storage()
    assert storage.device == torch.device("tpu:0")
    assert storage.nbytes() == 16
    assert storage.cpu().nbytes() == 16
    same(x.clone(memory_format=torch.contiguous_format), torch.arange(4.0))
    storage.resize_(0)
    assert storage.nbytes() == 0
    storage.resize_(16)
    x.copy_(torch.ones(4))
    assert x.tolist() == [1] * 4
