"""Run the originals of the fixtures under torch_xla, and write what they did to fixtures/records.

    python scripts/record_fixtures.py --xla-python PYTHON [NAME ...]

`fixtures/runs.toml` says which and how. The tests compare the migrated programs with the records.
"""

from __future__ import annotations

import argparse
import signal
import sys
import tempfile
import tomllib
from dataclasses import dataclass, replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from xla2tpu.verify import run as runs  # noqa: E402
from xla2tpu.verify.compare import Ignored, Tolerance  # noqa: E402
from xla2tpu.verify.record import Record, dumps  # noqa: E402

FIXTURES = ROOT / "fixtures"
RECORDS = FIXTURES / "records"


@dataclass(frozen=True)
class FixtureRun:
    """One run of a fixture; ``timeout`` is in seconds."""

    program: str
    script: str
    args: tuple[str, ...] = ()
    rtol: float = 1e-3
    atol: float = 1e-5
    ignore_lines: tuple[str, ...] = ()
    ignore_text: tuple[str, ...] = ()
    timeout: float = 120

    @property
    def name(self) -> str:
        """The fixture's name, which its record has as well."""
        return Path(self.program).name

    @property
    def record(self) -> Path:
        """The file of the original's record."""
        return RECORDS / f"{self.name}.json"

    @property
    def tolerance(self) -> Tolerance:
        """How far numbers may differ."""
        return Tolerance(self.rtol, self.atol)

    @property
    def ignored(self) -> Ignored:
        """What of the lines does not count."""
        return Ignored(self.ignore_lines, self.ignore_text)

    def folder(self, side: str) -> Path:
        """The program's folder, ``before`` or ``after``."""
        return FIXTURES / self.program / side

    def on(self, side: str, way: runs.Way, trace: bool = False) -> Record:
        """What a copy of the program does."""
        with tempfile.TemporaryDirectory(prefix="xla2tpu-fixture-") as folder:
            copy = Path(folder, "program")
            runs.copy(self.folder(side), copy)
            program = runs.Program(copy, self.script, False, self.args)
            return runs.record(program, way, Path(folder, "record"), trace)


def all_runs() -> list[FixtureRun]:
    """The runs that `fixtures/runs.toml` lists."""
    found = []
    for entry in _manifest()["run"]:
        values = {key.replace("-", "_"): value for key, value in entry.items()}
        found.append(
            FixtureRun(**{k: tuple(v) if isinstance(v, list) else v for k, v in values.items()})
        )
    return found


def left_out() -> dict[str, str]:
    """The fixtures that are not run, and why."""
    reasons: dict[str, str] = _manifest().get("left-out", {})
    return reasons


def _manifest() -> dict:
    return tomllib.loads((FIXTURES / "runs.toml").read_text(encoding="utf-8"))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--xla-python", required=True, metavar="PYTHON")
    parser.add_argument("names", nargs="*", metavar="NAME", help="fixtures; all by default")
    options = parser.parse_args()
    known = all_runs()
    unknown = set(options.names) - {run.name for run in known}
    if unknown:
        parser.error(f"not in fixtures/runs.toml: {', '.join(sorted(unknown))}")
    # What runs is ended with this script, however it is told to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    RECORDS.mkdir(exist_ok=True)
    failed = 0
    for run in known:
        if options.names and run.name not in options.names:
            continue
        record = run.on("before", runs.on_xla(options.xla_python, run.timeout), trace=True)
        if record.status != 0:
            print(f"{run.name}: ended with {record.status}\n{record.stderr}", file=sys.stderr)
            failed = 1
            continue
        # Warnings and addresses are no part of what the program did.
        run.record.write_text(dumps(replace(record, stderr="")), encoding="utf-8")
        print(f"{run.name}: recorded")
    return failed


if __name__ == "__main__":
    sys.exit(main())
