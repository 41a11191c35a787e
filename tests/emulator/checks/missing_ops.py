"""The rules TPU2xx against the device: each call that they name raises, and their advice works."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from expect import raises
from torch import distributions as D
from torch import nn

from xla2tpu.rulemodel import Op
from xla2tpu.rules import load_rules

F = nn.functional
TPU = torch.device("tpu")


def t(*size: int) -> torch.Tensor:
    return torch.rand(*size).to(TPU)


def classes(number: int) -> torch.Tensor:
    return torch.zeros(number, dtype=torch.long, device=TPU)


def positive() -> torch.Tensor:
    a = t(3, 3)
    return a @ a.T + torch.eye(3).to(TPU)


def backward(function: Callable[[torch.Tensor], torch.Tensor], *size: int) -> None:
    function(t(*size).requires_grad_()).sum().backward()


def normed(wrap: Callable[[nn.Module], nn.Module]) -> None:
    layer = wrap(nn.Linear(4, 4)).to(TPU)
    layer(t(2, 4)).sum().backward()


def indices(dims: int) -> torch.Tensor:
    return torch.zeros((1,) * (dims + 2), dtype=torch.long, device=TPU)


def scaled() -> None:
    scaler, layer = torch.amp.GradScaler("tpu"), nn.Linear(2, 2).to(TPU)
    optimizer = torch.optim.SGD(layer.parameters(), 0.1)
    scaler.scale(layer(t(2, 2)).sum()).backward()
    scaler.step(optimizer)


def modules(name: str, *args: Any) -> Callable[..., Any]:
    return lambda *inputs: getattr(nn, name)(*args)(*inputs)


X, Y, IMAGE, VOLUME = (lambda: t(4, 4)), (lambda: t(4, 4)), (2, 3, 8, 8), (2, 3, 8, 8, 8)
# One call for each form that a rule names, by the name and the number of the form.
CALLS: dict[str, Callable[[], Any]] = {
    "torch.nn.functional.smooth_l1_loss": lambda: F.smooth_l1_loss(X(), Y()),
    "torch.nn.SmoothL1Loss": lambda: nn.SmoothL1Loss()(X(), Y()),
    "torch.nn.functional.huber_loss": lambda: F.huber_loss(X(), Y()),
    "torch.nn.HuberLoss": lambda: nn.HuberLoss()(X(), Y()),
    "torch.nn.functional.multi_margin_loss": lambda: F.multi_margin_loss(X(), classes(4)),
    "torch.nn.MultiMarginLoss": lambda: nn.MultiMarginLoss()(X(), classes(4)),
    "torch.nn.functional.multilabel_margin_loss": lambda: F.multilabel_margin_loss(
        X(), torch.zeros(4, 4, dtype=torch.long, device=TPU)
    ),
    "torch.nn.MultiLabelMarginLoss": lambda: nn.MultiLabelMarginLoss()(
        X(), torch.zeros(4, 4, dtype=torch.long, device=TPU)
    ),
    "torch.rrelu": lambda: torch.rrelu(X()),
    "torch.hardshrink": lambda: torch.hardshrink(X()),
    "torch.nn.functional.adaptive_max_pool1d": lambda: backward(
        lambda x: F.adaptive_max_pool1d(x, 2), 2, 3, 8
    ),
    "torch.nn.AdaptiveMaxPool1d": lambda: backward(nn.AdaptiveMaxPool1d(2), 2, 3, 8),
    "torch.nn.functional.adaptive_max_pool2d": lambda: backward(
        lambda x: F.adaptive_max_pool2d(x, 2), *IMAGE
    ),
    "torch.nn.AdaptiveMaxPool2d": lambda: backward(nn.AdaptiveMaxPool2d(2), *IMAGE),
    "torch.nn.functional.adaptive_max_pool3d": lambda: F.adaptive_max_pool3d(t(*VOLUME), 2),
    "torch.nn.AdaptiveMaxPool3d": lambda: nn.AdaptiveMaxPool3d(2)(t(*VOLUME)),
    "torch.nn.functional.fractional_max_pool2d": lambda: F.fractional_max_pool2d(
        t(*IMAGE), 2, output_size=4
    ),
    "torch.nn.FractionalMaxPool2d": lambda: nn.FractionalMaxPool2d(2, output_size=4)(t(*IMAGE)),
    "torch.nn.functional.fractional_max_pool3d": lambda: F.fractional_max_pool3d(
        t(*VOLUME), 2, output_size=4
    ),
    "torch.nn.FractionalMaxPool3d": lambda: nn.FractionalMaxPool3d(2, output_size=4)(t(*VOLUME)),
    "torch.nn.functional.max_unpool1d": lambda: F.max_unpool1d(t(1, 1, 1), indices(1), 2),
    "torch.nn.MaxUnpool1d": lambda: nn.MaxUnpool1d(2)(t(1, 1, 1), indices(1)),
    "torch.nn.functional.max_unpool2d": lambda: F.max_unpool2d(t(1, 1, 1, 1), indices(2), 2),
    "torch.nn.MaxUnpool2d": lambda: nn.MaxUnpool2d(2)(t(1, 1, 1, 1), indices(2)),
    "torch.nn.functional.max_unpool3d": lambda: F.max_unpool3d(t(1, 1, 1, 1, 1), indices(3), 2),
    "torch.nn.MaxUnpool3d": lambda: nn.MaxUnpool3d(2)(t(1, 1, 1, 1, 1), indices(3)),
    "torch.nn.functional.interpolate": lambda: F.interpolate(
        t(*VOLUME), scale_factor=2, mode="trilinear"
    ),
    "torch.nn.functional.interpolate 1": lambda: backward(
        lambda x: F.interpolate(x, scale_factor=2, mode="linear"), 2, 3, 8
    ),
    "torch.nn.functional.interpolate 2": lambda: F.interpolate(
        t(*IMAGE), scale_factor=2, mode="bicubic", antialias=True
    ),
    "torch.nn.Upsample": lambda: nn.Upsample(scale_factor=2, mode="trilinear")(t(*VOLUME)),
    "torch.nn.Upsample 1": lambda: backward(nn.Upsample(scale_factor=2, mode="linear"), 2, 3, 8),
    "torch.nn.utils.weight_norm": lambda: normed(nn.utils.weight_norm),
    "torch.nn.utils.parametrizations.weight_norm": lambda: normed(
        nn.utils.parametrizations.weight_norm
    ),
    "torch.nn.utils.parametrizations.orthogonal": lambda: normed(
        nn.utils.parametrizations.orthogonal
    ),
    "torch.nn.SyncBatchNorm": lambda: torch.batch_norm_stats(t(2, 3, 4, 4), 1e-5),
    "torch.mode": lambda: torch.mode(X(), 0),
    "torch.kthvalue": lambda: torch.kthvalue(X(), 2),
    "torch.histogram": lambda: torch.histogram(t(9), 4),
    "torch.histogramdd": lambda: torch.histogramdd(t(9, 2), [4, 4]),
    "torch.unique": lambda: torch.unique(X(), dim=0),
    "torch.nonzero_static": lambda: torch.nonzero_static(X(), size=4),
    "torch.linalg.lstsq": lambda: torch.linalg.lstsq(positive(), t(3, 2)),
    "torch.linalg.householder_product": lambda: torch.linalg.householder_product(t(3, 3), t(3)),
    "torch.linalg.cross": lambda: torch.linalg.cross(t(4, 3), t(4, 3)),
    "torch.cross": lambda: torch.cross(t(4, 3), t(4, 3), dim=1),
    "torch.cholesky_solve": lambda: torch.cholesky_solve(t(3, 2), positive()),
    "torch.triangular_solve": lambda: torch.triangular_solve(t(3, 2), positive()),
    "torch.ormqr": lambda: torch.ormqr(t(3, 3), t(3), t(3, 3)),
    "torch.gcd": lambda: torch.gcd(classes(4), classes(4)),
    "torch.renorm": lambda: torch.renorm(X(), 2, 0, 1.0),
    "torch.triu_indices": lambda: torch.triu_indices(3, 3, device=TPU),
    "torch.logspace": lambda: torch.logspace(0, 1, 4, device=TPU),
    "torch.range": lambda: torch.range(0, 4, device=TPU),
    "torch.binomial": lambda: torch.binomial(X(), X()),
    "torch.addbmm": lambda: torch.addbmm(X(), t(2, 4, 4), t(2, 4, 4)),
    "torch._int_mm": lambda: torch._int_mm(*[torch.ones(32, 32).to(TPU, torch.int8)] * 2),
    "torch._weight_int8pack_mm": lambda: torch._weight_int8pack_mm(
        t(32, 32), torch.ones(32, 32).to(TPU, torch.int8), t(32)
    ),
    "torch.quantize_per_tensor": lambda: torch.quantize_per_tensor(X(), 0.1, 0, torch.quint8),
    "torch.quantize_per_channel": lambda: torch.quantize_per_channel(
        X(), torch.ones(4), torch.zeros(4), 0, torch.quint8
    ),
    "torch.quantize_per_tensor_dynamic": lambda: torch.quantize_per_tensor_dynamic(
        X(), torch.quint8, False
    ),
    "torch.fake_quantize_per_channel_affine": lambda: torch.fake_quantize_per_channel_affine(
        X(), t(4), torch.zeros(4, dtype=torch.int32, device=TPU), 0, 0, 255
    ),
    "torch.sparse.mm": lambda: torch.sparse.mm(X().to_sparse(), Y()),
    "torch.amp.GradScaler": scaled,
    "torch.GradScaler": scaled,
    "torch.distributions.Binomial": lambda: D.Binomial(classes(4) + 5, t(4)).sample(),
    "torch.distributions.LowRankMultivariateNormal": lambda: D.LowRankMultivariateNormal(
        t(3), t(3, 1), t(3) + 1
    ).sample(),
    "torch.distributions.MultivariateNormal": lambda: D.MultivariateNormal(
        t(3), positive()
    ).sample(),
    "torch.distributions.Wishart": lambda: D.Wishart(torch.tensor(3.0).to(TPU), positive()),
    "torch.distributions.LKJCholesky": lambda: D.LKJCholesky(3, torch.tensor(1.0).to(TPU)).sample(),
    "torch.distributions.NegativeBinomial": lambda: D.NegativeBinomial(t(4) + 1, t(4) / 2).sample(),
}
PAIRS = frozenset(("Beta", "Gamma", "FisherSnedecor", "Cauchy", "InverseGamma"))
SQUARE = frozenset(("cholesky_inverse",))


def call_of(op: Op, number: int) -> Callable[[], Any]:
    """The sample of one form, or the call with as many square matrices as the name takes."""
    named = CALLS.get(f"{op.path} {number}" if number else op.path)
    if named is not None:
        return named
    module, _, name = op.path.removeprefix("torch.").rpartition(".")
    if module == "distributions":
        count = 2 if name in PAIRS else 1
        return lambda: getattr(D, name)(*[t(4) + 0.1 for _ in range(count)]).sample()
    if module == "nn":
        return lambda: getattr(nn, name)()(X())
    function: Any = torch
    for part in op.path.split(".")[1:]:
        function = getattr(function, part)
    is_matrix = module == "linalg" or name in SQUARE or name in dir(torch.linalg)
    one = positive if is_matrix else X

    def call() -> Any:
        try:
            return function(one())
        except TypeError:
            return function(one(), one())

    return call


def check_every_name_raises() -> None:
    wrong = []
    numbers: dict[str, int] = {}
    for rule in load_rules().rules.values():
        for op in rule.ops:
            number = numbers[op.path] = numbers.get(op.path, -1) + 1
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    call_of(op, number)()
                except NotImplementedError as error:
                    if not any(f"'aten::{need}'" in str(error) for need in op.needs):
                        wrong.append(f"{op.path}: {error}")
                except Exception as error:
                    wrong.append(f"{op.path}: {error!r}")
                else:
                    wrong.append(f"{op.path} runs")
    assert not wrong, "\n".join(wrong)


def same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(found.cpu(), wanted, rtol=1e-5, atol=1e-5)


def check_work_arounds() -> None:
    """What the advice says gives what the call gives on the CPU."""
    a, b = torch.randn(4, 3), torch.randn(4, 3)
    x, y = a.to(TPU), b.to(TPU)
    d = (x - y).abs()
    same(torch.where(d < 0.5, 0.5 * d * d / 0.5, d - 0.25).mean(), F.smooth_l1_loss(a, b, beta=0.5))
    same(torch.where(d < 0.5, 0.5 * d * d, 0.5 * (d - 0.25)).mean(), F.huber_loss(a, b, delta=0.5))
    same(x * torch.tanh(F.softplus(x)), F.mish(a))
    same(torch.where(x.abs() > 0.5, x, 0.0), F.hardshrink(a))
    same(torch.sign(x) * F.relu(x.abs() - 0.5), F.softshrink(a))
    slopes = torch.empty_like(x).uniform_(0.1, 0.2)
    torch.where(x < 0, x * slopes, x).sum().item()
    same(torch.topk(x.flatten(), 5, largest=False).values[-1], torch.kthvalue(a.flatten(), 5)[0])
    same(torch.sort(x[:3].flatten()).values[4], torch.median(a[:3]))
    same(torch.nan_to_num(x, 0.0).sum(), torch.nansum(a))
    same(torch.diagonal(x).sum(), torch.trace(a))
    same(
        x.roll(-1, -1) * y.roll(1, -1) - x.roll(1, -1) * y.roll(-1, -1),
        torch.linalg.cross(a, b),
    )
    same(1 - torch.erf(x), torch.erfc(a))
    same(torch.sqrt(x * x + y * y), torch.hypot(a, b))
    same(torch.where(y < 0, -x.abs(), x.abs()), torch.copysign(a, b))
    same(torch.where(x == 0, y, (x > 0).to(x.dtype)), torch.heaviside(a, b))
    same(torch.logsumexp(torch.stack([x, y]), 0), torch.logaddexp(a, b))
    same(-torch.xlogy(x.abs(), x.abs()), torch.special.entr(a.abs()))
    same(torch.log(torch.special.ndtr(x)), torch.special.log_ndtr(a))
    same(x * torch.log1p(y.abs()), torch.special.xlog1py(a, b.abs()))
    safe = torch.where(x == 0, 1.0, x)
    same(torch.where(x == 0, 1.0, torch.sin(math.pi * x) / (math.pi * safe)), torch.sinc(a))
    same(x * (1.0 / x.norm(2, 1, keepdim=True)).clamp(max=1), torch.renorm(a, 2, 0, 1.0))
    same(10 ** torch.linspace(0, 1, 4, device=TPU), torch.logspace(0, 1, 4))
    p, q = torch.rand(2, 4, 3), torch.rand(2, 3, 3)
    same(2 * x + 3 * torch.bmm(p.to(TPU), q.to(TPU)).sum(0), torch.addbmm(a, p, q, beta=2, alpha=3))


def check_work_arounds_in_modules() -> None:
    volume = torch.rand(1, 2, 3, 4, 4)
    flat = volume.to(TPU).flatten(1, 2)  # channels and depth
    wide = F.interpolate(flat, scale_factor=2, mode="bilinear").unflatten(1, (2, 3))
    columns = wide.flatten(3).permute(0, 1, 3, 2)  # depth last
    deep = F.interpolate(columns, scale_factor=(1, 2), mode="bilinear")
    found = deep.permute(0, 1, 3, 2).unflatten(3, (8, 8))
    same(found, F.interpolate(volume, scale_factor=2, mode="trilinear"))
    line = torch.rand(1, 2, 5)
    found = F.interpolate(line.to(TPU).unsqueeze(2), scale_factor=(1, 2), mode="bilinear")
    same(found.squeeze(2), F.interpolate(line, scale_factor=2, mode="linear"))
    pooled, where = F.max_pool2d(torch.rand(1, 2, 4, 4), 2, return_indices=True)
    out = torch.zeros(1, 2, 4, 4).to(TPU)
    out.flatten(-2).scatter_(-1, where.to(TPU).flatten(-2), pooled.to(TPU).flatten(-2))
    same(out, F.max_unpool2d(pooled, where, 2))
    normed(lambda layer: nn.utils.parametrizations.orthogonal(layer, orthogonal_map="cayley"))
    scaler = torch.amp.GradScaler("tpu", enabled=False)
    assert scaler.scale(torch.ones(1)) == 1


def check_refusals_are_those_of_the_device() -> None:
    with raises(NotImplementedError, "operator 'aten::median' is not implemented for TPU. Please"):
        torch.median(X())
