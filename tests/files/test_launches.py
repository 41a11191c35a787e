"""Variables and commands that start programs, in shell text wherever it stands."""

from __future__ import annotations

from pathlib import Path

import pytest
from helpers_files import migrated, told

from xla2tpu.files import run_source
from xla2tpu.model import Mode, Settings


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("export PJRT_DEVICE=TPU\nls", "ls"),
        ("PJRT_DEVICE=TPU python t.py", "python t.py"),
        ("A=1 PJRT_DEVICE=TPU python t.py", "A=1 python t.py"),
        ("export A=1 PJRT_DEVICE=TPU", "export A=1"),
        ("export PJRT_DEVICE=TPU XLA_IR_DEBUG=1 && ls", "ls"),
        ("env PJRT_DEVICE=TPU python t.py", "env python t.py"),
        ("docker run -e PJRT_DEVICE=TPU -it img", "docker run -it img"),
        ("docker run --env=PJRT_DEVICE=TPU img", "docker run img"),
        ("unset XRT_TPU_CONFIG\nls", "ls"),
        ("if a; then\n  export PJRT_DEVICE=TPU\nfi", "if a; then\n  :\nfi"),
        ("if a; then\n  export PJRT_DEVICE=TPU\n  ls\nfi", "if a; then\n  ls\nfi"),
        ("f() { export PJRT_DEVICE=TPU; }", "f() { :; }"),
        ("XLA_SYNC_WAIT=1 python t.py", "TORCH_TPU_LAUNCH_BLOCKING=1 python t.py"),
        ("export XLA_SYNC_WAIT=true\nls", "export TORCH_TPU_LAUNCH_BLOCKING=1\nls"),
        ("gcloud a --command='PJRT_DEVICE=TPU python t.py'", "gcloud a --command='python t.py'"),
        ('gcloud a --command "PJRT_DEVICE=TPU python t.py"', 'gcloud a --command "python t.py"'),
        ('bash -c "export PJRT_DEVICE=TPU; ls"', 'bash -c "ls"'),
        ("export XLA_FLAGS=--xla_dump_to=d", "export XLA_FLAGS=--xla_dump_to=d"),
        ("export TPU_MEGACORE=a TPUVM_MODE=1", "export TPU_MEGACORE=a TPUVM_MODE=1"),
        ("export LIBTPU_INIT_ARGS=a TPU_NAME=b", "export LIBTPU_INIT_ARGS=a TPU_NAME=b"),
        (
            "cd examples\npython xla_spawn.py --num_cores 8 run.py --x",
            "cd examples\neval \"$(python -m torch.tpu.distributed | sed 's/^/export /')\"\n"
            "torchrun --nproc_per_node=8 run.py --x",
        ),
    ],
)
def test_rewritten(before: str, after: str) -> None:
    assert migrated(f"set -e\n{before}\n", "a.sh") == f"set -e\n{after}\n"


@pytest.mark.parametrize(
    ("text", "rule", "reason"),
    [
        ("export XLA_USE_BF16=1", "XLA917", "numerics"),
        ("PJRT_DEVICE=CPU pytest", "XLA917", "environment"),
        ("export XRT_TPU_CONFIG='x;y'", "XLA917", "environment"),
        ("export TPU_NUM_DEVICES=4", "XLA917", "environment"),
        ('test "$PJRT_DEVICE" = TPU', "XLA917", "environment"),
        ("python -m torch_xla.distributed.xla_dist --tpu=a -- b", "XLA918", "no-equivalent"),
        ("accelerate launch --tpu a.py", "XLA918", "no-equivalent"),
        ("ls && python xla_spawn.py --num_cores 8 a.py", "XLA918", "unsupported-form"),
        ("nohup python xla_spawn.py --flag a.py", "XLA918", "unsupported-form"),
        ("gcloud a --version=tpu-vm-pt-2.0", "XLA916", "base-image"),
        ("docker run gcr.io/tpu-pytorch/xla:r2.0", "XLA919", "unsupported-form"),
        ("git clone https://github.com/pytorch/xla", "XLA919", "unsupported-form"),
        ('python -c "import torch_xla"', "XLA919", "unsupported-form"),
        ("echo x | PJRT_DEVICE=$D python", "XLA917", "environment"),
    ],
)
def test_left_to_a_person(text: str, rule: str, reason: str) -> None:
    assert [(r, why) for r, _, why in told(f"set -e\n{text}\n", "a.sh")] == [(rule, reason)]
    after = migrated(f"set -e\n  {text}\n", "a.sh")
    assert after.startswith(f"set -e\n  # TODO(xla2tpu): {rule} ")
    assert after.endswith(f"\n  {text}\n")


def test_text_that_does_not_close_is_searched_only() -> None:
    assert told("echo 'a\npip install torch_xla\n", "a.sh") == [
        ("XLA919", "torch_xla", "unsupported-form")
    ]


def test_what_is_said_does_no_harm() -> None:
    from helpers_files import run

    (finding,) = run("echo installing torch_xla\n", "a.sh").findings
    assert not finding.blocks


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("PJRT_DEVICE=CUDA pytest\npip install torch_xla\n", "a.sh"),
        ("torch-neuronx\ntorch_xla\n", "requirements.txt"),
        ('dependencies = ["torch_xla", "neuronx-cc"]\n', "pyproject.toml"),
    ],
)
def test_other_hardware_is_left_alone(text: str, name: str) -> None:
    text = "[project]\n" + text if name.endswith("toml") else text
    assert {reason for _, _, reason in told(text, name)} == {"other-hardware"}
    assert migrated(text, name) == text
    assert migrated(text, name, any_hardware=True) != text


def test_code_beside_a_file_tells_its_hardware(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text("import torch_neuronx\n")
    settings = Settings(mode=Mode.MIGRATE, unsafe=True, root=str(tmp_path))
    result = run_source(b"torch_xla\n", str(tmp_path / "requirements.txt"), settings)
    assert [f.reason for f in result.findings] == ["other-hardware"]
    assert result.output is None
