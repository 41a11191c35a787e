"""Which kind of file a path names: Python, a notebook, or a file around the code.

Told by names alone, so that a walk need not open what it passes by.
"""

from __future__ import annotations

import enum
import os
import re

_PYTHON = (".py", ".pyi")
_SHELL = (".sh", ".bash", ".zsh", ".ksh")


class Kind(enum.StrEnum):
    """What a file is read as. A file that is named and has no other kind is Python."""

    PYTHON = "python"
    NOTEBOOK = "notebook"
    REQUIREMENTS = "requirements"
    PYPROJECT = "pyproject"
    SETUP_CFG = "setup.cfg"
    SETUP_PY = "setup.py"
    TOX = "tox.ini"
    CONDA = "conda"
    DOCKERFILE = "dockerfile"
    SHELL = "shell"
    CI = "ci"
    YAML = "yaml"
    DOTENV = "dotenv"
    LOCK = "lock"


_NAMES = {
    "setup.py": Kind.SETUP_PY,
    "setup.cfg": Kind.SETUP_CFG,
    "tox.ini": Kind.TOX,
    # The same format, with tables of its own.
    "Pipfile": Kind.PYPROJECT,
    "pyproject.toml": Kind.PYPROJECT,
    "uv.lock": Kind.LOCK,
    "poetry.lock": Kind.LOCK,
    "pdm.lock": Kind.LOCK,
    "Pipfile.lock": Kind.LOCK,
    "Dockerfile": Kind.DOCKERFILE,
    "Containerfile": Kind.DOCKERFILE,
    "dockerfile": Kind.DOCKERFILE,
    ".gitlab-ci.yml": Kind.CI,
    ".env": Kind.DOTENV,
    ".envrc": Kind.SHELL,
    "requirements.in": Kind.REQUIREMENTS,
}
_REQUIREMENTS = re.compile(
    r"(?:.*[-_.])?(?:requirements|constraints)(?:[-_.].*)?\.(?:txt|in|pip)\Z"
)
_CONDA = re.compile(r"(?:.*[-_.])?(?:environment|conda)(?:[-_.].*)?\.ya?ml\Z")
_DOCKER = re.compile(
    r"(?:Dockerfile|Containerfile)[-_.].+|.+\.(?:[Dd]ockerfile|[Cc]ontainerfile)\Z"
)
_DOTENV = re.compile(r"\.env\..+|.+\.env\Z")
_CI_PATH = re.compile(
    r"(?:^|/)(?:\.github/workflows/[^/]+\.ya?ml|\.github/actions/.+/action\.ya?ml"
    r"|\.gitlab/.+\.ya?ml|[^/]+\.gitlab-ci\.ya?ml)\Z"
)


def kind_of(path: str) -> Kind | None:
    """The kind of a file by its name and folder; None where a walk passes it by."""
    name = os.path.basename(path)
    known = _NAMES.get(name)
    if known is not None:
        return known
    if name.endswith(_PYTHON):
        return Kind.PYTHON
    if name.endswith(".ipynb"):
        return Kind.NOTEBOOK
    if name.endswith(_SHELL):
        return Kind.SHELL
    if name.endswith((".txt", ".in", ".pip")):
        listed = _REQUIREMENTS.match(name) or os.path.basename(os.path.dirname(path)) in (
            "requirements",
            "constraints",
        )
        return Kind.REQUIREMENTS if listed else None
    if name.endswith((".yml", ".yaml")):
        if _CI_PATH.search(path.replace(os.sep, "/")):
            return Kind.CI
        return Kind.CONDA if _CONDA.match(name) else Kind.YAML
    if _DOCKER.match(name):
        return Kind.DOCKERFILE
    return Kind.DOTENV if _DOTENV.match(name) else None
