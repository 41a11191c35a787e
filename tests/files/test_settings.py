"""Files that set variables and run steps: .env, container files, workflows."""

from __future__ import annotations

import pytest
from helpers_files import migrated, run, told


def test_dotenv() -> None:
    before = "# a\nPJRT_DEVICE=TPU\nexport XLA_SYNC_WAIT='1' # b\nXLA_USE_BF16=1\nA=torch_xla\n"
    after = (
        "# a\nexport TORCH_TPU_LAUNCH_BLOCKING='1' # b\n"
        "# TODO(xla2tpu): XLA917 Remove it, and use model.to(torch.bfloat16) or "
        'torch.autocast("tpu", dtype=torch.bfloat16).\nXLA_USE_BF16=1\nA=torch_xla\n'
    )
    assert migrated(before, ".env.tpu") == after


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("ENV PJRT_DEVICE=TPU\nRUN ls", "RUN ls"),
        ("ENV PJRT_DEVICE TPU\nRUN ls", "RUN ls"),
        ("ENV A=1 PJRT_DEVICE=TPU \\\n    B='2 3'", "ENV A=1 \\\n    B='2 3'"),
        ("ENV PJRT_DEVICE=TPU \\\n    B=2", "ENV B=2"),
        ('ENV A="PJRT_DEVICE=TPU"', 'ENV A="PJRT_DEVICE=TPU"'),
        ("ARG XLA_PERSISTENT_CACHE_PATH=/c", "ARG TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT=/c"),
        (
            "RUN pip install torch_xla \\\n # a\n && ls",
            "RUN pip install torch_tpu \\\n # a\n && ls",
        ),
        (
            "RUN pip install torch_xla\nRUN pip install libtpu\nRUN ls",
            "RUN pip install torch_tpu\nRUN ls",
        ),
        (
            "RUN --mount=type=cache,target=/c pip install torch_xla",
            "RUN --mount=type=cache,target=/c pip install torch_tpu",
        ),
        ("CMD PJRT_DEVICE=TPU python a.py", "CMD python a.py"),
    ],
)
def test_dockerfile(before: str, after: str) -> None:
    assert migrated(f"FROM a\n{before}\n", "Dockerfile") == f"FROM a\n{after}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("FROM gcr.io/tpu-pytorch/xla:r2", ("XLA916", "base-image")),
        ('FROM a\nRUN ["pip", "install", "torch_xla"]', ("XLA919", "unsupported-form")),
        ("FROM a\nRUN <<EOF\npip install torch_xla\nEOF", ("XLA919", "unsupported-form")),
        ("FROM a\nENV PJRT_DEVICE=TPU \\\n  # why\n  B=1", ("XLA917", "unsupported-form")),
    ],
)
def test_dockerfile_by_hand(text: str, expected: tuple[str, str]) -> None:
    assert [(rule, reason) for rule, _, reason in told(f"{text}\n", "Dockerfile")] == [expected]


def test_old_pythons_matter_where_torch_tpu_comes() -> None:
    assert told("FROM python:3.9\nRUN pip install torch\n", "Dockerfile") == []
    rules = [r for r, _, _ in told("FROM python:3.9\nRUN pip install torch_xla\n", "Dockerfile")]
    assert rules == ["XLA914", "XLA910"]
    newer = "FROM python:3.11\nRUN pip install torch_xla\n"
    assert [r for r, _, _ in told(newer, "Dockerfile")] == ["XLA910"]


WORKFLOW = ".github/workflows/tpu.yml"
HEAD = "jobs:\n  a:\n"


@pytest.mark.parametrize(
    ("before", "after"),
    [
        (
            "    steps:\n    - run: pip install torch_xla  # x",
            "    steps:\n    - run: pip install torch_tpu  # x",
        ),
        (
            "    steps:\n    - run: 'pip install torch_xla'",
            "    steps:\n    - run: 'pip install torch_tpu'",
        ),
        (
            "    steps:\n    - run: |\n        export PJRT_DEVICE=TPU\n        # é\n        ls",
            "    steps:\n    - run: |\n        # é\n        ls",
        ),
        (
            "    steps:\n    - run: >-\n        pip install\n        torch_xla",
            "    steps:\n    - run: >-\n        pip install\n        torch_tpu",
        ),
        ("    env:\n      PJRT_DEVICE: TPU\n      A: b", "    env:\n      A: b"),
        ("    env:\n      PJRT_DEVICE: TPU\n    steps: []", "    steps: []"),
        ('    env:\n      XLA_SYNC_WAIT: "1"', '    env:\n      TORCH_TPU_LAUNCH_BLOCKING: "1"'),
    ],
)
def test_workflow(before: str, after: str) -> None:
    assert migrated(f"{HEAD}{before}\n", WORKFLOW) == f"{HEAD}{after}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("    env: {PJRT_DEVICE: TPU, A: b}", ("XLA917", "unsupported-form")),
        ("    steps:\n    - run: export PJRT_DEVICE=TPU", ("XLA917", "unsupported-form")),
        ('    steps:\n    - run: "pip install \\"torch_xla\\""', ("XLA919", "unsupported-form")),
        ("    container: gcr.io/tpu-pytorch/xla:r2", ("XLA916", "base-image")),
        ("    uses: a/torch_xla@v1", ("XLA919", "unsupported-form")),
    ],
)
def test_workflow_by_hand(text: str, expected: tuple[str, str]) -> None:
    assert [(rule, reason) for rule, _, reason in told(f"{HEAD}{text}\n", WORKFLOW)] == [expected]


def test_matrix_of_pythons_is_told_where_torch_xla_is_installed() -> None:
    matrix = "    strategy:\n      matrix:\n        python-version: ['3.9', '3.12']\n"
    steps = "    steps:\n    - run: pip install torch_xla\n"
    found = run(HEAD + matrix + steps, WORKFLOW).findings
    assert [(f.rule, f.blocks) for f in found] == [("XLA914", False), ("XLA910", True)]
    assert told(HEAD + matrix, WORKFLOW) == []


def test_gitlab() -> None:
    scripts = "  script:\n    - pip install torch_xla\n    - pip install libtpu\n"
    before = f"variables:\n  PJRT_DEVICE: TPU\na:\n{scripts}"
    after = "a:\n  script:\n    - pip install torch_tpu\n"
    assert migrated(before, ".gitlab-ci.yml") == after


def test_what_is_no_yaml_stays() -> None:
    (finding,) = run("a: [torch_xla\n", WORKFLOW).findings
    assert (finding.reason, finding.blocks) == ("does-not-parse", True)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("Dockerfile", "FROM a\nENV PJRT_DEVICE=TPU XLA_USE_SPMD=1\n"),
        ("run.sh", "export PJRT_DEVICE=TPU XLA_USE_SPMD=1\n"),
        ("a.env", "PJRT_DEVICE=TPU\n"),
    ],
)
def test_what_one_edit_takes_away_goes_together(name: str, text: str) -> None:
    """A safe fix must not take an unsafe one along, nor one that is suppressed."""
    assert "XLA" not in migrated(text, name)
    if "SPMD" in text:
        assert run(text, name, unsafe=False).output is None
