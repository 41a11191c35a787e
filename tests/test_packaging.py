"""The package as a wheel, from an sdist, and editable: the rules go along each time."""

from __future__ import annotations

import os
import re
import shutil
import site
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from xla2tpu import __version__

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parent.parent
LOOK = "import json, xla2tpu.rules as r; print(r.data_folder()); print(*r.load_rules().rules)"
NOT_OURS = (".git", "build", "dist", "out", "*.egg-info", "__pycache__", ".*_cache", ".hypothesis",
            "node_modules", "*.vsix")  # fmt: skip


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy to build in, so that nothing is left in the checkout."""
    folder = tmp_path_factory.mktemp("source") / "xla2tpu"
    shutil.copytree(ROOT, folder, ignore=shutil.ignore_patterns(*NOT_OURS))
    return folder


def build(kind: str, source: Path, target: Path) -> Path:
    target.mkdir(exist_ok=True)
    code = f"import setuptools.build_meta as b; b.build_{kind}({str(target)!r})"
    subprocess.run([sys.executable, "-c", code], cwd=source, check=True, capture_output=True)
    (made,) = target.iterdir()
    return made


@pytest.fixture(scope="module")
def sdist(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("sdist", source, tmp_path_factory.mktemp("sdist"))


@pytest.fixture(scope="module")
def wheel(sdist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made from the sdist, as an installer without a fitting wheel does it."""
    folder = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(sdist) as archive:
        archive.extractall(folder, filter="data")
    (unpacked,) = folder.iterdir()
    return build("wheel", unpacked, tmp_path_factory.mktemp("wheel"))


def install(folder: Path, *what: str) -> Path:
    """The scripts of a new environment that sees the dependencies of this one."""
    venv.create(folder, with_pip=False, symlinks=True)
    (packages,) = (folder / "lib").glob("python*/site-packages")
    lines = [*site.getsitepackages(), *map(str, {Path(pytest.__file__).parent.parent})]
    (packages / "dependencies.pth").write_text("\n".join(lines) + "\n")
    pip = [sys.executable, "-m", "pip", "--python", str(folder / "bin" / "python"), "install"]
    flags = ["--no-deps", "--no-build-isolation", "--no-index", "--quiet", "--force-reinstall"]
    subprocess.run([*pip, *flags, *what], check=True, capture_output=True)
    return folder / "bin"


def output(*command: str | Path, cwd: Path) -> str:
    environment = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    done = subprocess.run(
        [*map(str, command)], cwd=cwd, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def check_installed(scripts: Path, elsewhere: Path, rules_in: Path | None) -> None:
    assert output(scripts / "xla2tpu", "--version", cwd=elsewhere).endswith(f"{__version__}\n")
    folder, codes = output(scripts / "python", "-c", LOOK, cwd=elsewhere).splitlines()
    expected = {path.name.partition("_")[0] for path in ROOT.glob("rules/*/???[0-9]*.yaml")}
    assert set(codes.split()) == expected
    if rules_in is not None:
        assert Path(folder) == rules_in
    else:
        assert Path(folder).is_relative_to(scripts.parent)
    (elsewhere / "a.py").write_text("import torch\n")
    assert "nothing of torch_xla" in output(scripts / "xla2tpu", "check", "a.py", cwd=elsewhere)


def test_wheel(wheel: Path, tmp_path: Path) -> None:
    check_installed(install(tmp_path / "env", str(wheel)), tmp_path, None)


def test_editable(source: Path, tmp_path: Path) -> None:
    scripts = install(tmp_path / "env", "--editable", str(source))
    check_installed(scripts, tmp_path, source / "rules")


def test_what_the_wheel_holds(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        (metadata,) = (n for n in names if re.fullmatch(r"[^/]*dist-info/METADATA", n))
        text = archive.read(metadata).decode()
    modules = {str(p.relative_to(ROOT)) for p in (ROOT / "xla2tpu").rglob("*.py")}
    assert modules <= names
    assert "xla2tpu/py.typed" in names
    assert "xla2tpu/emulator/data/torch_tpu-0.2.0.json" in names
    shadow = "xla2tpu/emulator/shadow/torch_tpu-0.2.0.dist-info"
    assert {f"{shadow}/METADATA", f"{shadow}/entry_points.txt"} <= names
    assert "xla2tpu/emulator/data/torch_tpu-0.2.0.json" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert {name.partition("/")[0] for name in names if "dist-info" not in name} == {"xla2tpu"}
    assert "License-Expression: Apache-2.0" in text
    assert "Requires-Python: >=3.11" in text


def test_what_the_sdist_holds(sdist: Path) -> None:
    with tarfile.open(sdist) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    for folder in ("rules", "tests", "docs", "xla2tpu"):
        there = {
            str(path.relative_to(ROOT))
            for path in (ROOT / folder).rglob("*.*")
            if path.is_file() and "__pycache__" not in path.parts
        }
        assert there <= names
    assert {"LICENSE", "setup.cfg", "pyproject.toml", ".pre-commit-hooks.yaml"} <= names


def test_hooks() -> None:
    import yaml

    hooks = {h["id"]: h for h in yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())}
    assert set(hooks) == {"xla2tpu", "xla2tpu-fix"}
    assert all(hook["require_serial"] is True for hook in hooks.values())
    assert hooks["xla2tpu-fix"]["entry"] == "xla2tpu check --fix --force-exclude"
