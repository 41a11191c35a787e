"""What the device does not have, or not for user code, and how it says so."""

from __future__ import annotations

import os
import subprocess
import sys
import warnings

import torch
from expect import raises
from torch import nn

F = nn.functional
TPU = torch.device("tpu")

# Names of `torch.tpu` that raise, how they are called, and what the message names instead.
REFUSED = {
    "is_available": ((), "torch.accelerator.is_available"),
    "device_count": ((), "torch.accelerator.device_count"),
    "current_device": ((), "torch.accelerator.current_device_index"),
    "set_device": ((0,), "torch.accelerator.set_device_index"),
    "synchronize": ((), "torch.accelerator.synchronize"),
    "current_stream": ((), "torch.accelerator.current_stream"),
    "set_stream": ((None,), "torch.accelerator.set_stream"),
    "device": ((0,), "torch.accelerator.device_index"),
}
SINCE_2_13 = {
    "initial_seed": ((), "torch.accelerator.random.initial_seed"),
    "get_rng_state": ((), "torch.accelerator.random.get_rng_state"),
}


def check_refused_names() -> None:
    refused = dict(REFUSED)
    if torch.__version__ >= "2.13":
        refused |= SINCE_2_13
    for name, (args, instead) in refused.items():
        shown = "_DeviceContext" if name == "device" else name
        message = (
            f"{shown} is internal to TorchTPU and can only be called by the PyTorch framework "
            f"(torch and torch_tpu). Use {instead} instead."
        )
        function = getattr(torch.tpu, name)
        with raises(RuntimeError, message):
            function(*args)


LEGACY = """
import warnings, torch
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    torch.tpu.synchronize()
    torch.tpu.synchronize()
print([str(w.message) for w in caught])
"""


def check_legacy_names_warn() -> None:
    environment = os.environ | {"TORCH_TPU_ALLOW_LEGACY_DEVICE_APIS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", LEGACY], env=environment, capture_output=True, text=True, check=True
    )
    (text,) = eval(done.stdout)
    assert text == (
        "<TorchTpu/ApiStage/InternalApi/> synchronize is internal to TorchTPU and may change or "
        "be removed without notice. Use torch.accelerator.synchronize instead."
    )


def check_accelerator() -> None:
    a = torch.accelerator
    assert a.is_available()
    assert a.device_count() == 1
    assert a.current_accelerator() == TPU
    assert a.current_device_index() == 0
    a.set_device_index(0)
    for index in (1, -2):
        with raises(ValueError, f"Cannot set TPU device to index {index}"):
            a.set_device_index(index)
    a.synchronize()
    a.empty_cache()
    with a.device_index(0):
        torch.ones(1, device=TPU)
    assert a.memory_stats()["allocated_bytes.all.current"] == a.memory_allocated()
    with raises(RuntimeError, "reset_accumulated_memory_stats is not implemented for TPU"):
        a.reset_accumulated_memory_stats()
    a.set_stream(a.current_stream())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        start, end = torch.tpu.Event(enable_timing=True), torch.tpu.Event(enable_timing=True)
        start.record()
        end.record()
        end.synchronize()
        assert start.elapsed_time(end) >= 0
        with torch.tpu.stream(torch.tpu.Stream()):
            torch.ones(1, device=TPU)
        with raises(NotImplementedError, "Streams and Events are not fully implemented"):
            torch.tpu.Stream().query()


def check_experimental_names_warn_once() -> None:
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.tpu.get_device_name()
        torch.tpu.get_device_name()
        assert torch.tpu.EagerMode.DEFER_NEVER
        assert torch.tpu.EagerMode.DEFER_AND_FUSE
    assert [str(w.message) for w in caught] == [
        "<TorchTpu/ApiStage/ExperimentalApi/> get_device_name is experimental and subject to "
        "change: get_device_name() is experimental and subject to change without notice.",
        "<TorchTpu/ApiStage/ExperimentalApi/> 'EagerMode' is experimental and subject to change: "
        "TPU eager execution mode configuration.",
    ]
    assert all(w.category is UserWarning and w.filename == __file__ for w in caught)


def check_modes() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        modes, precisions = torch.tpu.EagerMode, torch.tpu.Precision
        assert torch.tpu.eager_mode == modes.DEFER_NEVER
        with torch.tpu.set_eager_mode(modes.DEFER_AND_FUSE):
            assert torch.tpu.eager_mode == modes.DEFER_AND_FUSE
        torch.tpu.allow_excess_precision = True
        assert torch.tpu.allow_excess_precision
        torch.tpu.allow_excess_precision = False
        with torch.tpu.precision(precisions.HIGHEST):
            torch.ones(1, device=TPU)
    assert torch.get_float32_matmul_precision() == "medium"
    torch.set_float32_matmul_precision("highest")
    assert torch.get_float32_matmul_precision() == "highest"
    torch.set_float32_matmul_precision("medium")
    with raises(ValueError, "expected to be one of 'highest', 'high', or 'medium', got 'low'"):
        torch.set_float32_matmul_precision("low")


def check_missing_operators() -> None:
    x = torch.rand(3, 3, device=TPU, requires_grad=True) + torch.eye(3, device=TPU)
    y = torch.zeros_like(x)
    calls = {
        "smooth_l1_loss.out": lambda: F.smooth_l1_loss(x, y),
        "huber_loss": lambda: nn.HuberLoss()(x, y),
        "mish.out": lambda: F.mish(x),
        "median": lambda: x.median(),
        "kthvalue.values": lambda: x.kthvalue(1),
        "mode": lambda: x.mode(),
        "nansum": lambda: x.nansum(),
        "std_mean.correction": lambda: torch.std_mean(x),
        "trace": lambda: x.trace(),
        "linalg_cholesky_ex.L": lambda: torch.linalg.cholesky(x),
        "_linalg_eigh.eigenvalues": lambda: torch.linalg.eigh(x),
        "_linalg_det.result": lambda: torch.linalg.det(x),
        "erfc.out": lambda: torch.erfc(x),
        "hypot.out": lambda: torch.hypot(x, y),
        "triu_indices": lambda: torch.triu_indices(3, 3, device="tpu"),
        "logspace.out": lambda: torch.logspace(0, 1, 3, device="tpu"),
        "poisson": lambda: torch.poisson(x),
        "adaptive_max_pool2d_backward.grad_input": lambda: (
            F.adaptive_max_pool2d(x[None], 1).sum().backward()
        ),
        "upsample_trilinear3d.out": lambda: F.interpolate(
            x[None, None, None], scale_factor=2, mode="trilinear"
        ),
        "_weight_norm_interface_backward": lambda: (
            nn.utils.parametrizations.weight_norm(nn.Linear(3, 3)).to(TPU)(x).sum().backward()
        ),
        "_amp_foreach_non_finite_check_and_unscale_": lambda: (
            torch._amp_foreach_non_finite_check_and_unscale_(
                [y], torch.zeros(1, device=TPU), torch.ones(1, device=TPU)
            )
        ),
    }
    for name, call in calls.items():
        with raises(
            NotImplementedError,
            f"operator 'aten::{name}' is not implemented for TPU. Please file a feature request",
        ):
            call()


def check_operators_that_are_there() -> None:
    """Those which the notes on torch_tpu 0.2.0 name as present."""
    x = torch.rand(2, 3, 8, 8, device=TPU, requires_grad=True)
    s = torch.rand(4, 4, device=TPU) + 4 * torch.eye(4, device=TPU)
    sequence = torch.rand(5, 2, 3, device=TPU)
    packed = nn.utils.rnn.pack_padded_sequence(sequence, torch.tensor([5, 3]))

    def packed_with_gradient() -> nn.utils.rnn.PackedSequence:
        leaf = sequence.clone().requires_grad_()
        return nn.utils.rnn.pack_padded_sequence(leaf, torch.tensor([5, 3]))

    log = torch.randn(5, 2, 4, device=TPU).log_softmax(2)
    calls = [
        lambda: nn.Conv2d(3, 3, 3, dilation=2, device="tpu")(x).sum().backward(),
        lambda: nn.ConvTranspose2d(3, 3, 3, device="tpu")(x).sum().backward(),
        lambda: nn.Conv3d(3, 2, 2, device="tpu")(x[:, :, None].expand(2, 3, 4, 8, 8)),
        lambda: nn.BatchNorm2d(3, device="tpu")(x).sum().backward(),
        lambda: nn.GroupNorm(3, 3, device="tpu")(x).sum().backward(),
        lambda: nn.InstanceNorm2d(3, device="tpu")(x).sum().backward(),
        lambda: nn.RMSNorm(8, device="tpu")(x).sum().backward(),
        lambda: nn.LayerNorm(8, device="tpu")(x).sum().backward(),
        lambda: nn.LSTM(3, 4, 2, bidirectional=True, device="tpu")(sequence)[0].sum().backward(),
        lambda: nn.LSTM(3, 4, device="tpu")(packed)[0].data.sum().backward(),
        lambda: nn.GRU(3, 4, device="tpu")(packed_with_gradient())[0].data.sum().backward(),
        lambda: nn.utils.rnn.pad_packed_sequence(packed)[0].sum(),
        lambda: F.ctc_loss(log, torch.ones(2, 2, dtype=int), *torch.tensor([[5, 5], [2, 2]])),
        lambda: nn.GRU(3, 4, device="tpu")(sequence)[0].sum().backward(),
        lambda: nn.RNN(3, 4, device="tpu")(sequence)[0].sum().backward(),
        lambda: nn.LSTMCell(3, 4, device="tpu")(sequence[0])[0].sum().backward(),
        lambda: nn.EmbeddingBag(4, 2, device="tpu")(torch.ones(2, 2, dtype=int, device="tpu")),
        lambda: nn.Embedding(4, 2, device="tpu")(torch.ones(2, dtype=int, device="tpu")).sum(),
        lambda: nn.MultiheadAttention(4, 2, device="tpu")(s, s, s)[0].sum().backward(),
        lambda: F.scaled_dot_product_attention(x, x, x, is_causal=True).sum().backward(),
        lambda: F.ctc_loss(log, torch.ones(2, 2, dtype=int, device="tpu"), (5, 5), (2, 2)),
        lambda: torch.cdist(s, s),
        lambda: F.grid_sample(x, torch.zeros(2, 2, 2, 2, device="tpu")).sum().backward(),
        lambda: F.interpolate(x, scale_factor=2, mode="bicubic").sum().backward(),
        lambda: F.interpolate(x, scale_factor=2, mode="bilinear").sum().backward(),
        lambda: F.pad(x, (1, 1, 1, 1), mode="reflect").sum().backward(),
        lambda: F.fold(F.unfold(x, 2, stride=2), (8, 8), 2, stride=2).sum().backward(),
        lambda: F.cross_entropy(s, torch.ones(4, dtype=int, device="tpu"), label_smoothing=0.1),
        lambda: torch.fft.rfft(x).abs().sum().backward(),
        lambda: torch.stft(s.flatten(), 8, return_complex=True, window=torch.ones(8).tpu()),
        lambda: [torch.linalg.qr(s), torch.linalg.svd(s), torch.linalg.inv(s)],
        lambda: torch.linalg.solve(s, s),
        lambda: s.scatter_add(0, torch.zeros(4, 4, dtype=int, device="tpu"), s),
        lambda: [s.unique(), s.nonzero(), s.masked_select(s > 0), s.topk(2), s.sort()],
        lambda: [s.quantile(0.5), s.cumsum(0), s.multinomial(2), s.argmax(), s.std(), s.var()],
        lambda: torch.tril_indices(3, 3, device="tpu"),
        lambda: torch.repeat_interleave(s, torch.ones(4, dtype=int, device="tpu"), dim=0),
        lambda: F.dropout(x, 0.5).sum().backward(),
        lambda: F.gelu(x, approximate="tanh").sum().backward(),
    ]
    for call in calls:
        call()


def check_not_emulated() -> None:
    for module, name in (("ops", "ragged_dot"), ("optimizers", "Sgd"), ("pallas", "jax_op")):
        function = getattr(getattr(torch.tpu, module), name)
        with raises(NotImplementedError, f"torch.tpu.{module}.{name} is not emulated"):
            function()


def check_operators_of_torch_tpu() -> None:
    import torch.tpu.ops

    x = torch.arange(16.0, device=TPU).view(1, 4, 4)
    pooled = torch.tpu.ops.max_pool2d(x, [2, 2], [2, 2], [0, 0], [1, 1], False)
    assert pooled.tolist() == [[[5, 7], [13, 15]]]
    gradient = torch.tpu.ops.max_pool2d_backward(
        torch.ones_like(pooled), x, [2, 2], [2, 2], [0, 0], [1, 1], False
    )
    assert gradient.sum().item() == 4
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert torch.tpu.ops.optimization_barrier([x])[0] is x
        with torch.tpu.compiler.custom_compiler_options({"xla_optimization_level": "O1"}):
            pass
        assert torch.tpu.distributed.spmd_safe(lambda: 3)() == 3


def check_package() -> None:
    import importlib.metadata
    import importlib.util

    import torch_tpu

    assert torch_tpu.__version__ == importlib.metadata.version("torch_tpu") == "0.2.0"
    spec = importlib.util.find_spec("torch_tpu")
    assert spec is not None
    assert spec.origin == torch_tpu.__file__
    assert importlib.util.find_spec("torch.tpu.distributed") is not None
    assert sys.modules["torch.tpu"] is torch.tpu
    with raises(ModuleNotFoundError, "torch_tpu._internal"):
        import torch_tpu._internal


def check_arguments_of_compile() -> None:
    x = torch.ones(2, device="tpu")
    with raises(torch._dynamo.exc.BackendCompilerFailed, "No module named 'torch_xla'"):
        torch.compile(lambda t: t + 1, backend="openxla")(x)
    with raises(TypeError, "unexpected keyword argument 'bogus'"):
        torch.compile(lambda t: t + 1, bogus=1)
    with raises(TypeError, "unexpected keyword argument 'bogus'"):
        torch.compile(bogus=1)
    assert torch.compile(lambda t: t + 1, backend="tpu")(x).tolist() == [2, 2]
