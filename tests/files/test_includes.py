"""Lists of requirements that include others: the pins of all have to go with one torch_tpu."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from xla2tpu import batch
from xla2tpu.config import Configs
from xla2tpu.discover import discover
from xla2tpu.model import FileResult, Mode, Settings


def migrated(root: Path, **files: str) -> dict[str, FileResult]:
    """The results of a migration of these lists, which is written; a second one changes nothing."""
    for name, text in files.items():
        path = root / name.replace("__", "/").replace("_txt", ".txt")
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    settings = Settings(mode=Mode.MIGRATE, unsafe=True, root=str(root), todo=False)
    found: dict[str, FileResult] = {}
    for again in (False, True):
        jobs = [(f.path, settings) for f in discover([str(root)], Configs()).files]
        for result in batch.run_project(jobs):
            assert result.error is None
            assert not (again and result.output is not None)
            if not again:
                found[os.path.relpath(result.path, root)] = result
            if result.output is not None:
                Path(result.path).write_bytes(result.output)
    return found


def test_pins_of_a_list_move_with_what_it_includes(tmp_path: Path) -> None:
    migrated(
        tmp_path,
        requirements_txt="-r requirements/tpu.txt\ntorch==2.1.0  # pinned\nnumpy<2\nscipy\n",
        requirements__tpu_txt="torch_xla==2.1.0\ntorchvision==0.16\n",
    )
    assert (tmp_path / "requirements.txt").read_text() == (
        "-r requirements/tpu.txt\ntorch>=2.11  # pinned\nnumpy>=2\nscipy\n"
    )
    assert (tmp_path / "requirements" / "tpu.txt").read_text() == (
        "torch_tpu>=0.2.0\ntorchvision>=0.26\n"
    )


@pytest.mark.parametrize(
    "line", ["-r base-requirements.txt", "--requirement=base-requirements.txt  # all",
             "-c base-requirements.txt", "-rbase-requirements.txt"],
)  # fmt: skip
def test_a_pin_that_is_included_is_for_its_users_to_raise(tmp_path: Path, line: str) -> None:
    (tmp_path / "base-requirements.txt").write_text("scipy\ntorch==2.1.0\n")
    found = migrated(tmp_path, requirements_txt=f"{line}\ntorch_xla==2.1.0\n")
    here = found["requirements.txt"]
    assert [(f.rule, f.line, f.reason) for f in here.findings] == [
        ("XLA911", 1, "shared-dependency"),
        ("XLA910", 2, "goes-together"),
    ]
    assert "`torch==2.1.0` in base-requirements.txt" in here.findings[0].advice
    assert here.output is None
    assert found["base-requirements.txt"].findings == []


def test_what_goes_with_torch_tpu_is_no_matter(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("scipy==1.0\ntorch>=2.0\n")
    migrated(tmp_path, requirements_txt="-c constraints.txt\ntorch_xla\n")
    assert (tmp_path / "requirements.txt").read_text() == "-c constraints.txt\ntorch_tpu\n"


def test_includes_of_includes_and_circles(tmp_path: Path) -> None:
    (tmp_path / "c.txt").write_text("-r requirements.txt\ntorch_xla\n")
    migrated(
        tmp_path,
        requirements_txt="-r b.txt\n-r https://example.org/a.txt\n-r $X\n-r gone.txt\ntorch==2.0\n",
        requirements__b_txt="",
    )
    (tmp_path / "b.txt").write_text("-r c.txt\n")
    migrated(tmp_path)
    assert (tmp_path / "requirements.txt").read_text().endswith("\ntorch>=2.11\n")


def test_constraints_install_nothing(tmp_path: Path) -> None:
    found = migrated(
        tmp_path,
        constraints_txt="torch_xla==2.1\n",
        requirements_txt="-c constraints.txt\ntorch==2.1\n",
    )
    assert found["requirements.txt"].findings == []


def test_lists_that_include_one_another_many_times(tmp_path: Path) -> None:
    """Each is read once, or the reading would never end."""
    names = [f"r{n}.txt" for n in range(12)]
    lines = "".join(f"-r {name}\n" for name in names)
    for name in names:
        (tmp_path / name).write_text(lines)
    migrated(tmp_path, requirements_txt=f"{lines}-r requirements.txt\ntorch==2.0\ntorch_xla\n")
    assert (tmp_path / "requirements.txt").read_text().endswith("\ntorch>=2.11\ntorch_tpu\n")


def test_constraints_of_what_is_included_install_nothing_either(tmp_path: Path) -> None:
    (tmp_path / "limits").mkdir()
    (tmp_path / "limits" / "constraints.txt").write_text("torch_xla==2.1\ntorch==2.1\n")
    (tmp_path / "base.txt").write_text("-c limits/constraints.txt\nscipy\n")
    found = migrated(tmp_path, requirements_txt="-r base.txt\ntorch==2.1\n")
    assert found["requirements.txt"].findings == []


def test_the_list_of_a_pin_is_named(tmp_path: Path) -> None:
    (tmp_path / "limits").mkdir()
    (tmp_path / "limits" / "constraints.txt").write_text("torch==2.1\n")
    (tmp_path / "base.txt").write_text("-c limits/constraints.txt\nscipy\n")
    found = migrated(tmp_path, requirements_txt="-r base.txt\ntorch_xla\n")
    pinned = found["requirements.txt"].findings[0]
    assert "`torch==2.1` in limits/constraints.txt" in pinned.advice


def test_pins_of_the_list_itself_are_not_those_of_what_includes_it(tmp_path: Path) -> None:
    (tmp_path / "dev.txt").write_text("-r requirements.txt\nscipy\n")
    migrated(tmp_path, requirements_txt="-r dev.txt\ntorch==2.1\ntorch_xla\n")
    text = (tmp_path / "requirements.txt").read_text()
    assert text == "-r dev.txt\ntorch>=2.11\ntorch_tpu\n"
