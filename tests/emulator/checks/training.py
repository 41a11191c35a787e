"""Modules, gradients, optimizers, autocast, seeds, loaders and `torch.compile`."""

from __future__ import annotations

import torch
from expect import raises
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

TPU = torch.device("tpu")


class Net(nn.Module):
    """A little of everything that images and sequences go through."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, padding=1)
        self.norm = nn.BatchNorm2d(6)
        self.group = nn.GroupNorm(2, 6)
        self.pool = nn.MaxPool2d(2)
        self.up = nn.ConvTranspose2d(6, 4, 2, stride=2)
        self.lstm = nn.LSTM(16, 8, batch_first=True)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.layer = nn.LayerNorm(8)
        self.head = nn.Linear(8, 5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.pool(self.norm(self.conv(x)).relu())
        x = nn.functional.gelu(self.up(self.group(x)))
        x = nn.functional.adaptive_avg_pool2d(x, 4).flatten(2)
        x, _ = self.lstm(x)
        y, _ = self.attention(x, x, x, need_weights=False)
        return self.head(self.layer(x + y).mean(1))


def steps(device: str, make: object, count: int = 4) -> tuple[list[float], dict[str, torch.Tensor]]:
    torch.manual_seed(0)
    model = Net().to(device)
    optimizer = make(model.parameters())
    losses = []
    for step in range(count):
        g = torch.Generator().manual_seed(step)
        x, y = torch.randn(4, 3, 8, 8, generator=g), torch.randint(5, (4,), generator=g)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        losses.append(loss.item())
    return losses, {k: v.cpu() for k, v in model.state_dict().items()}


def optimizers() -> dict[str, object]:
    o = torch.optim
    return {
        "sgd": lambda p: o.SGD(p, lr=0.1, momentum=0.9, nesterov=True),
        "sgd fused": lambda p: o.SGD(p, lr=0.1, fused=True),
        "adam": lambda p: o.Adam(p),
        "adam loop": lambda p: o.Adam(p, foreach=False),
        "adam foreach": lambda p: o.Adam(p, foreach=True, amsgrad=True),
        "adam fused": lambda p: o.Adam(p, fused=True),
        "adam capturable": lambda p: o.Adam(p, capturable=True),
        "adamw": lambda p: o.AdamW(p, weight_decay=0.1),
        "adamw fused": lambda p: o.AdamW(p, fused=True),
        "rmsprop": lambda p: o.RMSprop(p),
        "adagrad": lambda p: o.Adagrad(p),
        "adadelta": lambda p: o.Adadelta(p),
        "adamax": lambda p: o.Adamax(p),
        "nadam": lambda p: o.NAdam(p),
        "radam": lambda p: o.RAdam(p),
        "rprop": lambda p: o.Rprop(p),
        "asgd": lambda p: o.ASGD(p),
        "adafactor": lambda p: o.Adafactor(p),
    }


# These have no gradient but for what rounding leaves of it.
NOISE = {"conv.bias", "norm.running_mean", "attention.in_proj_bias"}


def check_optimizers() -> None:
    makers = optimizers()
    for name, make in makers.items():
        # `capturable` is for devices; its numbers are those of the plain optimizer.
        expected, there = steps("cpu", makers["adam"] if "capturable" in name else make)
        losses, here = steps("tpu", make)
        for a, b in zip(losses, expected, strict=True):
            assert abs(a - b) < 2e-3, (name, losses, expected)
        for key in there.keys() - NOISE:
            torch.testing.assert_close(here[key], there[key], rtol=2e-2, atol=2e-2, msg=name)


def check_optimizer_state_moves() -> None:
    layer = nn.Linear(2, 2).to(TPU)
    optimizer = torch.optim.Adam(layer.parameters())
    layer(torch.ones(1, 2, device=TPU)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    assert state["state"][0]["exp_avg"].device.type == "tpu"
    other = torch.optim.Adam(nn.Linear(2, 2).to(TPU).parameters())
    other.load_state_dict(state)


def check_gradients() -> None:
    x = torch.randn(3, 3, device=TPU, requires_grad=True)
    (g,) = torch.autograd.grad((x * x).sum(), x, create_graph=True)
    (h,) = torch.autograd.grad(g.sum(), x)
    torch.testing.assert_close(h.cpu(), torch.full((3, 3), 2.0))
    with torch.no_grad():
        assert not (x * 2).requires_grad
    with torch.inference_mode():
        assert (x * 2).is_inference()
    y = torch.utils.checkpoint.checkpoint(lambda t: (t * 3).tanh(), x, use_reentrant=False)
    y.sum().backward()
    assert x.grad.device.type == "tpu"
    jacobian = torch.func.jacrev(lambda t: t.sin())(torch.ones(2, device=TPU))
    assert jacobian.device.type == "tpu"
    assert torch.func.vmap(torch.dot)(x.detach(), x.detach()).shape == (3,)

    class Twice(torch.autograd.Function):
        @staticmethod
        def forward(ctx, t):
            ctx.save_for_backward(t)
            return t * 2

        @staticmethod
        def backward(ctx, grad):
            assert ctx.saved_tensors[0].device.type == "tpu"
            return grad * 2

    x.grad = None
    Twice.apply(x).sum().backward()
    assert x.grad.unique().tolist() == [2]


def check_modules() -> None:
    layer = nn.Linear(2, 2)
    weight = layer.weight
    layer.to(TPU)
    # torch makes new parameters for a device of its own kind, so an optimizer comes after it.
    assert layer.weight is not weight
    assert layer.weight.device.type == "tpu"
    layer.cpu()
    assert layer.weight.device.type == "cpu"
    assert layer.tpu().weight.device.type == "tpu"
    assert nn.Linear(2, 2, device="tpu").weight.is_tpu
    with torch.device("meta"):
        empty = nn.Linear(2, 2)
    assert empty.to_empty(device=TPU).weight.device.type == "tpu"
    layer.half()
    assert layer.weight.dtype is torch.float16
    layer.load_state_dict({k: v.cpu().float() for k, v in layer.state_dict().items()})
    nn.init.kaiming_normal_(layer.weight)
    normed = nn.utils.parametrizations.spectral_norm(nn.Linear(3, 3)).to(TPU)
    normed(torch.ones(1, 3, device=TPU)).sum().backward()


def check_autocast() -> None:
    layer = nn.Linear(4, 4).to(TPU)
    x = torch.randn(2, 4, device=TPU)
    assert torch.get_autocast_dtype("tpu") is torch.float16
    with torch.autocast("tpu"):
        assert torch.is_autocast_enabled("tpu")
        assert layer(x).dtype is torch.float16
    with torch.autocast("tpu", dtype=torch.bfloat16):
        y = layer(x)
        assert y.dtype is torch.bfloat16
        loss = nn.functional.mse_loss(y, torch.zeros_like(y))
        assert loss.dtype is torch.float32
        # Not among the operators that torch_tpu changes.
        assert y.softmax(1).dtype is torch.bfloat16
        assert nn.functional.layer_norm(y, (4,)).dtype is torch.bfloat16
    loss.backward()
    assert layer.weight.grad.dtype is torch.float32
    with torch.autocast(device_type="tpu", dtype=torch.bfloat16, enabled=False):
        assert layer(x).dtype is torch.float32

    @torch.autocast("tpu", dtype=torch.bfloat16)
    def run() -> torch.Tensor:
        return layer(x)

    assert run().dtype is torch.bfloat16


def check_grad_scaler() -> None:
    layer = nn.Linear(2, 2).to(TPU)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    off = torch.amp.GradScaler("tpu", enabled=False)
    off.scale(layer(torch.ones(1, 2, device=TPU)).sum()).backward()
    off.step(optimizer)
    off.update()
    scaler = torch.amp.GradScaler("tpu")
    scaler.scale(layer(torch.ones(1, 2, device=TPU)).sum()).backward()
    with raises(NotImplementedError, "is not implemented for TPU. Please file a feature request"):
        scaler.step(optimizer)


def check_seeds() -> None:
    torch.manual_seed(3)
    first = torch.randn(4, device=TPU), torch.rand(2), nn.functional.dropout(torch.ones(50).tpu())
    torch.manual_seed(3)
    again = torch.randn(4, device=TPU), torch.rand(2), nn.functional.dropout(torch.ones(50).tpu())
    for a, b in zip(first, again, strict=True):
        assert torch.equal(a, b)
    torch.manual_seed(5)
    host = torch.rand(3)
    torch.manual_seed(5)
    torch.randn(100, device=TPU)
    nn.functional.dropout(torch.ones(50).tpu())
    torch.ones(4, device=TPU).bernoulli_(0.5)
    assert torch.equal(torch.rand(3), host), "the device does not draw from the CPU's generator"
    generator = torch.Generator(device="tpu").manual_seed(1)
    assert generator.device == torch.device("tpu:0")
    assert isinstance(generator, torch.Generator)
    one = torch.randn(3, device=TPU, generator=generator)
    two = torch.randn(3, device=TPU, generator=torch.Generator("tpu").manual_seed(1))
    assert torch.equal(one, two)
    with raises(RuntimeError, "Expected a 'tpu' device type for generator but found 'cpu'"):
        torch.randn(3, device=TPU, generator=torch.Generator())
    assert isinstance(torch.default_generator, torch.Generator)
    state = torch.tpu.default_generators[0].get_state()
    a = torch.randn(2, device=TPU)
    torch.tpu.set_rng_state(state)
    assert torch.equal(torch.randn(2, device=TPU), a)
    with torch.random.fork_rng(devices=[0], device_type="tpu"):
        torch.manual_seed(0)
        torch.randn(2, device=TPU)
    torch.tpu.manual_seed(8)
    assert torch.tpu.default_generators[0].initial_seed() == 8


def check_dropout() -> None:
    torch.manual_seed(0)
    x = torch.ones(1000, device=TPU, requires_grad=True)
    y = nn.Dropout(0.25)(x)
    kept = (y != 0).float().mean().item()
    assert 0.7 < kept < 0.8
    assert abs(y.max().item() - 1 / 0.75) < 1e-6
    y.sum().backward()
    assert torch.equal(x.grad, y.detach())


def check_loaders() -> None:
    data = TensorDataset(torch.arange(8.0)[:, None], torch.arange(8))
    torch.zeros(1, device=TPU)
    for workers, context in ((0, None), (2, "fork"), (1, "spawn")):
        loader = DataLoader(
            data, 4, num_workers=workers, multiprocessing_context=context, pin_memory=True
        )
        seen = []
        for x, y in loader:
            assert x.is_pinned()
            moved = x.to(TPU, non_blocking=True)
            assert moved.device.type == "tpu"
            seen += y.tpu().tolist()
        assert seen == list(range(8))


class OnDevice(torch.utils.data.Dataset):
    """A data set that uses the device, which a forked worker may not."""

    def __len__(self) -> int:
        return 1

    def __getitem__(self, index: int) -> torch.Tensor:
        return torch.ones(1, device="tpu").cpu()


def check_forked_workers_may_not_use_the_device() -> None:
    torch.zeros(1, device=TPU)
    loader = DataLoader(OnDevice(), num_workers=1, multiprocessing_context="fork")
    with raises(RuntimeError, "cannot access or re-initialize TPU in a forked subprocess"):
        next(iter(loader))


def check_compile() -> None:
    layer = nn.Linear(2, 2).to(TPU)
    x = torch.ones(1, 2, device=TPU)
    compiled = torch.compile(layer)
    assert torch.equal(compiled(x), layer(x))
    assert list(compiled.state_dict()) == ["_orig_mod.weight", "_orig_mod.bias"]
    compiled(x).sum().backward()

    @torch.compile(fullgraph=True)
    def function(t: torch.Tensor) -> torch.Tensor:
        return t * 2

    assert function(x).tolist() == [[2, 2]]
    torch.compile(function, backend="tpu", options={"num_dynamic_buckets": 2})(x)
    layer.compile()
    layer(x)


def check_arguments_of_compile() -> None:
    x = torch.ones(1, device=TPU)

    def double(t: torch.Tensor) -> torch.Tensor:
        return t * 2

    with raises(NotImplementedError, "does not support torch.compile(..., dynamic=True, ...)"):
        torch.compile(double, dynamic=True)(x)
    with raises(RuntimeError, "backend='inductor') on TPU is experimental"):
        torch.compile(double, backend="inductor")(x)
    assert torch.compile(double, backend="inductor")(torch.ones(1)).item() == 2
    with raises(ValueError, "`num_dynamic_buckets` must be an integer between 1 and 8, got 9"):
        torch.compile(double, options={"num_dynamic_buckets": 9})(x)
    with raises(ValueError, "`bucket_size` must be a positive integer, got 0"):
        torch.compile(double, options={"bucket_size": 0})(x)
    with raises(TypeError, "Unexpected keyword arguments: {'mode': 'max-autotune'}"):
        torch.compile(double, mode="max-autotune")(x)
    with raises(RuntimeError, "Either mode or options can be specified"):
        torch.compile(double, mode="default", options={"bucket_size": 1})
    with raises(torch._dynamo.exc.InvalidBackend, "no_such_backend"):
        torch.compile(double, backend="no_such_backend")
