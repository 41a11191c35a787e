"""Finding, reading and refusing configurations."""

from __future__ import annotations

from pathlib import Path

import pytest

from xla2tpu.config import Config, ConfigError, Configs, load
from xla2tpu.patterns import matches
from xla2tpu.project import forget


def write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_every_key(tmp_path: Path) -> None:
    write(tmp_path / "own.yaml", "")
    file = write(
        tmp_path / "pyproject.toml",
        """
[tool.xla2tpu]
select = ["XLA1", "xla201"]
ignore = ["XLA105"]
exclude = ["legacy"]
rule-files = ["own.yaml"]
helpers-module = "pkg.tpu_helpers"
source-version = "2.1"
device = "accelerator"
launcher = "torchrun"
processes = "single"

[tool.xla2tpu.per-file-ignores]
"tests/*" = ["XLA7"]
""",
    )
    assert load(str(file)) == Config(
        folder=str(tmp_path),
        file=str(file),
        select=("XLA1", "XLA201"),
        ignore=("XLA105",),
        per_file_ignores=(("tests/*", ("XLA7",)),),
        exclude=("legacy",),
        rule_files=(str(tmp_path / "own.yaml"),),
        helpers_module="pkg.tpu_helpers",
        source_version="2.1",
        device="accelerator",
        launcher="torchrun",
        processes="single",
    )


def test_own_file_has_its_keys_at_the_top(tmp_path: Path) -> None:
    config = load(str(write(tmp_path / ".xla2tpu.toml", 'device = "accelerator"\n')))
    assert config is not None
    assert config.device == "accelerator"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('selcet = ["XLA1"]', "tool.xla2tpu.selcet: unknown key; did you mean 'select'"),
        ("rule_files = []", "did you mean 'rule-files'"),
        ("qqq = 1", "unknown key; known keys are select, ignore"),
        ('select = "XLA1"', "tool.xla2tpu.select: must be a list of texts"),
        ('select = ["E501"]', "'E501' is no code prefix"),
        ("source-version = 2.10", "must be a quoted torch_xla release"),
        ('source-version = "new"', "must be a quoted torch_xla release"),
        ('device = "gpu"', "must be 'tpu' or 'accelerator'"),
        ('launcher = "slurm"', "must be 'spawn' or 'torchrun'"),
        ('processes = "one"', "must be 'several' or 'single', not 'one'"),
        ('helpers-module = "a-b"', "must be a dotted module name"),
        ("per-file-ignores = []", "must be a table"),
        ('per-file-ignores = {"a" = "XLA1"}', "must be a list of texts"),
        ('rule-files = ["none.yaml"]', "none.yaml: no such file"),
    ],
)
def test_bad_values_name_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    file = write(tmp_path / "pyproject.toml", f"[tool.xla2tpu]\n{text}\n")
    with pytest.raises(ConfigError) as caught:
        load(str(file))
    assert str(caught.value).startswith(f"{file}: tool.xla2tpu.")
    assert message in str(caught.value)


def test_not_a_table(tmp_path: Path) -> None:
    file = write(tmp_path / "pyproject.toml", "[tool]\nxla2tpu = 1\n")
    with pytest.raises(ConfigError, match="must be a table"):
        load(str(file))


def test_broken_toml(tmp_path: Path) -> None:
    file = write(tmp_path / "pyproject.toml", "[tool.xla2tpu\n")
    with pytest.raises(ConfigError, match="not valid TOML"):
        load(str(file))


def test_broken_toml_of_others_is_none_of_our_business(tmp_path: Path) -> None:
    assert load(str(write(tmp_path / "pyproject.toml", "[tool.black\n"))) is None


def test_found_upwards_and_nearest_first(tmp_path: Path) -> None:
    write(tmp_path / "pyproject.toml", '[tool.xla2tpu]\nignore = ["XLA1"]\n')
    write(tmp_path / "a" / "pyproject.toml", "[project]\nname = 'a'\n")
    write(tmp_path / "b" / ".xla2tpu.toml", 'ignore = ["XLA2"]\n')
    configs = Configs()
    assert configs.of(str(tmp_path / "a" / "x" / "f.py")).ignore == ("XLA1",)
    assert configs.of(str(tmp_path / "b" / "x" / "f.py")).ignore == ("XLA2",)
    assert configs.of(str(tmp_path / "f.py")).ignore == ("XLA1",)


def test_explicit_file_holds_for_all(tmp_path: Path) -> None:
    write(tmp_path / "a" / ".xla2tpu.toml", 'ignore = ["XLA2"]\n')
    other = write(tmp_path / "ci.toml", 'ignore = ["XLA3"]\n')
    assert Configs(str(other)).of(str(tmp_path / "a" / "f.py")).ignore == ("XLA3",)


def test_explicit_file_must_say_something(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        Configs(str(tmp_path / "none.toml"))
    with pytest.raises(ConfigError, match="not a file"):
        Configs(str(tmp_path))
    with pytest.raises(ConfigError, match="no section"):
        Configs(str(write(tmp_path / "pyproject.toml", "")))


def test_per_file_ignores(tmp_path: Path) -> None:
    config = Config(
        folder=str(tmp_path),
        ignore=("XLA1",),
        per_file_ignores=(("tests", ("XLA2",)), ("*_old.py", ("XLA3", "XLA1"))),
    )
    assert config.ignored_in(str(tmp_path / "tests" / "a" / "x_old.py")) == ("XLA1", "XLA2", "XLA3")
    assert config.ignored_in(str(tmp_path / "src" / "x.py")) == ("XLA1",)


@pytest.mark.parametrize(
    ("path", "pattern", "expected"),
    [
        ("a/b/c.py", "b", True),
        ("a/b/c.py", "b/", True),
        ("a/b/c.py", "*.py", True),
        ("a/b/c.py", "a/b", True),
        ("a/b/c.py", "a/**", True),
        ("a/b/c.py", "**/c.py", True),
        ("a/c.py", "a/**/c.py", True),
        ("a/b/c.py", "./a/b/c.py", True),
        ("a/b/c.py", "b/c.py", False),
        ("a/b/c.py", "bb", False),
        ("A/b.py", "a", False),
    ],
)
def test_globs(path: str, pattern: str, expected: bool) -> None:
    assert matches(path, pattern) is expected


def test_globs_do_not_test_what_the_user_named() -> None:
    assert not matches("legacy/x.py", "legacy", above=1)
    assert not matches("a/legacy/x.py", "a/legacy", above=2)
    assert matches("legacy/legacy/x.py", "legacy", above=1)


def test_root_is_the_nearest_project(tmp_path: Path) -> None:
    write(tmp_path / "setup.py", "")
    write(tmp_path / "sub" / "pyproject.toml", "")
    configs = Configs()
    assert configs.root(str(tmp_path / "src" / "p" / "f.py"), None) == str(tmp_path)
    assert configs.root(str(tmp_path / "sub" / "p" / "f.py"), None) == str(tmp_path / "sub")


def test_root_without_marks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The home folder may be under version control; it is no project.
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path / "setup.py", "")
    write(tmp_path / "lib" / "pkg" / "__init__.py", "")
    write(tmp_path / "lib" / "pkg" / "sub" / "__init__.py", "")
    file = str(tmp_path / "lib" / "pkg" / "sub" / "f.py")
    assert Configs().root(file, None) == str(tmp_path / "lib")
    assert Configs().root(file, str(tmp_path / "lib" / "pkg")) == str(tmp_path / "lib")
    assert Configs().root(file, str(tmp_path / "lib")) == str(tmp_path / "lib")
    write(tmp_path / "train.py", "from lib.pkg import sub\n")
    forget()
    assert Configs().root(file, str(tmp_path / "lib")) == str(tmp_path)
