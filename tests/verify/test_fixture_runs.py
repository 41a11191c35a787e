"""The migrated fixtures run on the emulated device as their originals did under torch_xla."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor

import pytest
import verified_rules
from record_fixtures import FIXTURES, FixtureRun, all_runs, left_out

from xla2tpu.verify import report
from xla2tpu.verify.compare import compare
from xla2tpu.verify.record import Record, loads
from xla2tpu.verify.run import changed_sources, on_emulator, on_xla

XLA_PYTHON = os.environ.get("XLA2TPU_XLA_PYTHON") or None
RUNS = all_runs()
needs_torch = pytest.mark.skipif(
    importlib.util.find_spec("torch") is None, reason="torch is not installed"
)
needs_xla = pytest.mark.skipif(
    XLA_PYTHON is None,
    reason="XLA2TPU_XLA_PYTHON names no interpreter with torch_xla 2.9",
)


def recorded(run: FixtureRun) -> Record:
    return loads(run.record.read_text(encoding="utf-8"))


def check(run: FixtureRun, original: Record, other: Record) -> None:
    found = compare(original, other, run.tolerance, run.ignored)
    assert found.verdict == "same", report.text(found, original, other, str(run.record))


@pytest.fixture(scope="module")
def migrated(request: pytest.FixtureRequest) -> Iterator[dict[str, Future[Record]]]:
    """The runs of the migrated programs that are asked for, two at a time."""
    wanted = {
        item.callspec.params["run"]
        for item in request.session.items
        if isinstance(item, pytest.Function) and "migrated" in item.fixturenames
    }
    with ThreadPoolExecutor(2) as pool:
        yield {
            run.name: pool.submit(
                run.on, "after", on_emulator(sys.executable, 1, False, run.timeout)
            )
            for run in sorted(wanted, key=RUNS.index)
        }


@needs_torch
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_migrated_program_does_what_the_original_did(
    run: FixtureRun, migrated: dict[str, Future[Record]]
) -> None:
    check(run, recorded(run), migrated[run.name].result())


@needs_xla
@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_original_still_does_what_was_recorded(run: FixtureRun) -> None:
    assert XLA_PYTHON is not None
    check(run, recorded(run), run.on("before", on_xla(XLA_PYTHON, run.timeout)))


@pytest.mark.parametrize("run", RUNS, ids=lambda run: run.name)
def test_record_is_of_this_program(run: FixtureRun) -> None:
    record = recorded(run)
    assert changed_sources(record, run.folder("before")) == []
    assert record.args == list(run.args)
    assert record.status == 0


def test_every_fixture_is_run_or_has_a_reason() -> None:
    programs = {
        f"{kind}/{path.name}"
        for kind in ("programs", "runnable")
        for path in (FIXTURES / kind).iterdir()
    }
    run = {run.program for run in RUNS}
    assert run | left_out().keys() == programs
    assert not run & left_out().keys()


def test_table_of_verified_rules_is_fresh() -> None:
    assert verified_rules.page() == verified_rules.PAGE.read_text(encoding="utf-8"), (
        "run scripts/verified_rules.py"
    )
