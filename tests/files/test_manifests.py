"""YAML files that are told apart by what stands in them: Kubernetes, compose, accelerate."""

from __future__ import annotations

import pytest
from helpers_files import migrated, run, told

from xla2tpu.model import Mode, Status

JOB = """\
apiVersion: batch/v1
kind: Job
metadata:
  name: train  # of torch_xla
spec:
  template:
    spec:
      nodeSelector:
        cloud.google.com/gke-tpu-topology: 2x2
      containers:
      - name: train
        image: python:3.12-slim
        # for the run
        env:
        - name: PJRT_DEVICE
          value: TPU  # a comment
        - name: LOG
          value: "1"
        - name: XLA_PERSISTENT_CACHE_PATH
          value: gs://bucket/cache
        command: ["bash", "-c"]
        args:
        - |
          pip install torch_xla[tpu] -f https://storage.googleapis.com/libtpu-releases/index.html
          PJRT_DEVICE=TPU python train.py
        resources:
          limits: {google.com/tpu: 4}
"""


def test_a_job() -> None:
    assert migrated(JOB, "k8s/job.yaml") == (
        JOB.replace("        - name: PJRT_DEVICE\n          value: TPU  # a comment\n", "")
        .replace("XLA_PERSISTENT_CACHE_PATH", "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT")
        .replace(
            "torch_xla[tpu] -f https://storage.googleapis.com/libtpu-releases/index.html",
            "torch_tpu",
        )
        .replace("PJRT_DEVICE=TPU python", "python")
    )
    crlf = JOB.replace("\n", "\r\n")
    assert migrated(crlf, "job.yaml") == migrated(JOB, "job.yaml").replace("\n", "\r\n")


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "    environment:\n      PJRT_DEVICE: TPU\n      A: b\n",
            "    environment:\n      A: b\n",
        ),
        (
            "    environment:\n      - PJRT_DEVICE=TPU\n      - A=b\n",
            "    environment:\n      - A=b\n",
        ),
        ("    environment:\n    - PJRT_DEVICE=TPU\n    - USE_TORCH_XLA=1\n", ""),
        (
            "    environment:\n    - XLA_SYNC_WAIT=true\n",
            "    environment:\n    - TORCH_TPU_LAUNCH_BLOCKING=1\n",
        ),
        ('    env_file: a.env\n    command: bash -c "pip install torch_xla"\n',
         '    env_file: a.env\n    command: bash -c "pip install torch_tpu"\n'),
        ("    command: PJRT_DEVICE=TPU python a.py\n", "    command: python a.py\n"),
    ],
)  # fmt: skip
def test_compose(before: str, after: str) -> None:
    head = "services:\n  train:\n    build: .\n"
    assert migrated(head + before, "docker-compose.yml") == head + after


def test_each_container_is_an_environment_of_its_own() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  initContainers:\n  - name: a\n    args:\n"
        "    - pip install torch==2.1\n  containers:\n  - name: b\n    args:\n"
        "    - pip install torch==2.1 torch_xla==2.1\n"
    )
    after = text.replace("torch==2.1 torch_xla==2.1", "torch torch_tpu")
    assert migrated(text, "pod.yaml") == after


def test_several_documents_and_scripts_of_a_map() -> None:
    text = (
        "apiVersion: v1\nkind: ConfigMap\ndata:\n  PJRT_DEVICE: TPU\n  KEEP: a\n  run.sh: |\n"
        "    export PJRT_DEVICE=TPU\n    python train.py\n  train.py: |\n    import torch_xla\n"
        "---\napiVersion: v1\nkind: Service\n"
    )
    after = text.replace("  PJRT_DEVICE: TPU\n", "").replace("    export PJRT_DEVICE=TPU\n", "")
    assert migrated(text, "map.yaml", todo=False) == after
    left = [("XLA919", "torch_xla", "unsupported-form")]
    assert told(after, "map.yaml") == left


@pytest.mark.parametrize(
    ("env", "rule", "reason"),
    [
        ("- name: XLA_USE_BF16\n      value: '1'\n", "XLA917", "numerics"),
        ("- name: PJRT_DEVICE\n      valueFrom: {b: {c: a}}\n", "XLA917", "environment"),
        ("- name: XLA_SYNC_WAIT\n      valueFrom: {b: {c: a}}\n", "XLA917", "environment"),
        ("- name: XLA_METRICS_FILE\n      valueFrom: {b: a}\n", "XLA917", "unsupported-form"),
        ('- name: PJRT_DEVICE\n      value: "\\x54PU"\n', "XLA917", "unsupported-form"),
        ("- {name: PJRT_DEVICE, value: CPU}\n", "XLA917", "environment"),
    ],
)  # fmt: skip
def test_variables_by_hand(env: str, rule: str, reason: str) -> None:
    text = f"apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a\n    env:\n    {env}"
    assert [(r, why) for r, _, why in told(text, "pod.yaml")] == [(rule, reason)]
    assert migrated(text, "pod.yaml", todo=False) == text


def test_all_settings_go_with_their_key_together_or_not_at_all() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: a\n    env:\n"
        "    - name: PJRT_DEVICE\n      value: TPU\n    - name: XLA_USE_SPMD\n      value: '1'\n"
        "    stdin: true\n"
    )
    assert "env:" not in migrated(text, "pod.yaml")
    held = run(text, "pod.yaml", unsafe=False)
    assert held.output is None


def test_a_comment_of_its_own_never_goes_along() -> None:
    text = "services:\n  a:\n    image: b\n    environment:\n    # why\n    - PJRT_DEVICE=TPU\n"
    assert migrated(text, "compose.yaml", todo=False) == text


def test_images_and_words_are_left() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - name: a\n"
        "    image: us-central1-docker.pkg.dev/tpu-pytorch-releases/docker/xla:r2.5\n"
        "    command: [python, -m, torch_xla.distributed.xla_dist, --tpu=a]\n"
    )
    assert told(text, "pod.yaml") == [
        ("XLA916", "us-central1-docker.pkg.dev/tpu-pytorch-releases/docker/xla:r2.5", "base-image"),
        ("XLA919", "torch_xla", "unsupported-form"),
    ]
    assert migrated(text, "pod.yaml").count("# TODO(xla2tpu)") == 2


ACCELERATE = """\
compute_environment: LOCAL_MACHINE
distributed_type: {kind}
downcast_bf16: 'no'
main_training_function: main
num_processes: 8
"""


@pytest.mark.parametrize("kind", ["XLA", "TPU", "'TPU'"])
def test_accelerate(kind: str) -> None:
    text = ACCELERATE.format(kind=kind)
    found = run(text, "default_config.yaml", mode=Mode.CHECK)
    assert [(f.rule, f.line, f.reason) for f in found.findings] == [("XLA918", 2, "no-equivalent")]
    assert "torchrun" in found.findings[0].advice
    assert found.status is Status.NEEDS_WORK


def test_accelerate_for_others() -> None:
    assert told(ACCELERATE.format(kind="MULTI_GPU"), "config.yaml") == []
    text = ACCELERATE.format(kind="FSDP") + "fsdp_config:\n  xla: true\n"
    assert told(text, "config.yaml") == [("XLA918", "fsdp_config: xla", "no-equivalent")]


@pytest.mark.parametrize(
    ("text", "blocks"),
    [
        ("model: a\nkeywords: [torch_xla]\n", False),
        ("{{- if .Values.image }}\ncommand: pip install torch_xla\n", True),
        ("distributed_type: TPU\n", None),
        ("- torch_xla\n", False),
    ],
)
def test_other_yaml_is_searched(text: str, blocks: bool | None) -> None:
    found = run(text, "values.yaml", mode=Mode.CHECK).findings
    assert [f.blocks for f in found] == ([] if blocks is None else [blocks])
    assert migrated(text, "values.yaml", todo=False) == text


def test_data_is_not_parsed() -> None:
    text = "services:\n  a:\n    image: b\n    command: pip install torch_xla\n"
    large = text + "# " + "x" * 500_000 + "\n"
    assert told(text, "a.yaml") == [("XLA910", "torch-xla", None)]
    assert told(large, "a.yaml") == [("XLA919", "torch_xla", "unsupported-form")]


@pytest.mark.parametrize(
    "head",
    [
        "apiVersion: serving.kserve.io/v1alpha1\nkind: InferenceService\nspec:\n",
        "# values.yaml\ntrainer:\n",
    ],
)
def test_variables_as_containers_have_them(head: str) -> None:
    text = f"{head}  image: a\n  env:\n    - name: PJRT_DEVICE\n      value: TPU\n"
    kept = "    - name: A\n      value: b\n"
    assert migrated(text + kept, "values.yaml") == f"{head}  image: a\n  env:\n{kept}"


def test_servers_of_others_keep_their_variables() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: vllm/vllm-tpu:nightly\n"
        "    env:\n    - name: PJRT_DEVICE\n      value: TPU\n    - name: A\n      value: b\n"
    )
    assert told(text, "pod.yaml") == [("XLA917", "PJRT_DEVICE", "shared-dependency")]
    assert migrated(text, "pod.yaml", todo=False) == text


def test_pods_for_other_hardware_are_left_alone() -> None:
    text = (
        "apiVersion: v1\nkind: Pod\nspec:\n  containers:\n  - image: gcr.io/tpu-pytorch/xla:a\n"
        "    env:\n    - name: PJRT_DEVICE\n      value: CUDA\n    - name: XLA_SYNC_WAIT\n"
        '      value: "1"\n'
    )
    assert {reason for _, _, reason in told(text, "pod.yaml")} == {"other-hardware"}
    assert migrated(text, "pod.yaml") == text


SHARED = """\
services:
  a:
    image: x
    environment: &env
      - PJRT_DEVICE=TPU
  b:
    image: y
    environment: *env
"""
SHARED_MAPPING = """\
x-env: &env
  XLA_USE_BF16: "0"
services:
  a:
    image: x
    environment: *env
  b:
    image: y
    environment:
      <<: *env
"""


@pytest.mark.parametrize("text", [SHARED, SHARED_MAPPING])
def test_what_aliases_lead_to_is_left(text: str) -> None:
    """Without it they would lead nowhere, and it stands above them."""
    assert [reason for _, _, reason in told(text, "compose.yaml")] == ["unsupported-form"]
    kept = migrated(text, "compose.yaml").splitlines()
    assert set(text.splitlines()) <= set(kept)


@pytest.mark.parametrize("command", ["&a [x, *a]", '["sh", {x: &b [*b]}]'])
def test_what_refers_to_itself_is_read_once(command: str) -> None:
    text = f"kind: Pod\nspec:\n  containers:\n  - image: torch_xla\n    command: {command}\n"
    assert [reason for _, _, reason in told(text, "pod.yaml")] == ["base-image"]
