"""`xla2tpu verify`."""

from __future__ import annotations

import json
import re
import sys
import tempfile
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from xla2tpu.commands.execute import ending_cleanly
from xla2tpu.commands.output import die, out

if TYPE_CHECKING:
    from xla2tpu.verify.record import Record
    from xla2tpu.verify.run import Program, Way

_EPILOG = (
    "Exit status: 0 the runs did the same; 1 they differ, or could not be compared as a whole; "
    "2 wrong usage, or an environment in which they cannot run."
)


def _patterns(_: click.Context, __: click.Parameter, values: tuple[str, ...]) -> tuple[str, ...]:
    for value in values:
        try:
            re.compile(value)
        except re.error as error:
            raise click.BadParameter(f"{value}: {error}") from error
    return values


@click.command(epilog=_EPILOG)
@click.argument("target", metavar="SCRIPT_OR_PROJECT")
@click.argument("args", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGS]")
@click.option("--script", metavar="FILE", help="The script to run, if a project is given.")
@click.option("-m", "--module", metavar="NAME", help="The module to run, if a project is given.")
@click.option(
    "--migrated",
    metavar="PATH",
    help="Take this migrated script or project, instead of migrating a copy.",
)
@click.option(
    "--xla-python",
    envvar="XLA2TPU_XLA_PYTHON",
    metavar="PYTHON",
    help="An interpreter with torch_xla; $XLA2TPU_XLA_PYTHON by default.",
)
@click.option(
    "--tpu-python",
    metavar="PYTHON",
    help="An interpreter with torch 2.11 or newer; the one that runs xla2tpu by default.",
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    help="Emulated devices. With more than one, give --baseline or --reference.",
)
@click.option(
    "--reference",
    metavar="SCRIPT",
    help="Compare with this program in plain PyTorch, not with the original.",
)
@click.option("--baseline", metavar="FILE", help="Compare with a record, run no original.")
@click.option("--save-baseline", metavar="FILE", help="Keep the original's record in FILE.")
@click.option("--record-only", is_flag=True, help="With --save-baseline: compare nothing.")
@click.option(
    "--timeout",
    type=click.FloatRange(min=0, min_open=True),
    default=600.0,
    show_default=True,
    help="Seconds for each run.",
)
@click.option("--rtol", type=click.FloatRange(min=0), default=1e-3, show_default=True)
@click.option("--atol", type=click.FloatRange(min=0), default=1e-5, show_default=True)
@click.option(
    "--ignore-lines",
    multiple=True,
    metavar="REGEX",
    callback=_patterns,
    help="Lines of output and of text files that do not count, such as progress.",
)
@click.option(
    "--ignore-text",
    multiple=True,
    metavar="REGEX",
    callback=_patterns,
    help="Parts of lines that do not count, such as times.",
)
@click.option(
    "--ignore-files", multiple=True, metavar="GLOB", help="Files that do not count, such as logs."
)
@click.option("--allow-missing-ops", is_flag=True, help="Run what a TPU has no kernel for.")
@click.option("--config", metavar="FILE", help="Migrate with this configuration.")
@click.option("--output-format", type=click.Choice(("text", "json")), default="text")
def verify(target: str, args: tuple[str, ...], **options: Any) -> None:
    """Run a program under torch_xla and, migrated, on an emulated TPU, and compare.

    Both run in copies of the project's folder, with ARGS.
    """
    _check(options)
    from xla2tpu.verify.run import RunError

    try:
        with ending_cleanly():
            status = _verify(target, args, options)
    except RunError as error:
        die(str(error))
    except KeyboardInterrupt:
        click.echo("xla2tpu: interrupted; both runs are ended", err=True)
        sys.exit(130)
    except Exception:
        # The status of a failure of ours must not be that of a difference.
        traceback.print_exc()
        die("internal error; please report it with the lines above")
    sys.exit(status)


def _check(options: dict[str, Any]) -> None:
    """Raise `click.UsageError` for options that do not go together."""
    given = [f"--{n}" for n in ("baseline", "reference") if options[n] is not None]
    if len(given) == 2:
        raise click.UsageError("--baseline and --reference exclude each other")
    if given and options["save_baseline"] is not None:
        raise click.UsageError(f"{given[0]} and --save-baseline exclude each other")
    if options["record_only"] and options["save_baseline"] is None:
        raise click.UsageError("--record-only goes with --save-baseline")
    if not given and options["xla_python"] is None:
        raise click.UsageError(
            "the original needs an interpreter with torch_xla: give --xla-python, or a --baseline "
            "that was recorded where there is one"
        )
    if not given and options["devices"] > 1:
        raise click.UsageError(
            "torch_xla cannot run the original with several processes on the CPU: its collectives "
            "hang there. With --devices above 1, give --baseline or --reference"
        )


def _verify(target: str, args: tuple[str, ...], options: dict[str, Any]) -> int:
    from xla2tpu.verify import compare, project, report, run

    program = project.program_of(target, options["script"], options["module"], args)
    timeout = options["timeout"]
    tpu_python = options["tpu_python"] or sys.executable
    with tempfile.TemporaryDirectory(prefix="xla2tpu-verify-") as folder:
        scratch = Path(folder)
        notes: list[str] = []
        if options["baseline"] is not None:
            original = _baseline(options["baseline"], program, notes)
        elif options["reference"] is not None:
            run.check_interpreter(tpu_python, ("torch",), run.OLDEST_TORCH)
            reference = project.program_of(options["reference"], None, None, args)
            original = _run(reference, run.on_torch(tpu_python, timeout), scratch / "reference")
        else:
            run.check_interpreter(options["xla_python"], ("torch", "torch_xla"))
            way = run.on_xla(options["xla_python"], timeout)
            original = _run(program, way, scratch / "original")
        if options["save_baseline"] is not None:
            _save(options["save_baseline"], original)
            if options["record_only"]:
                return _recorded(original)
        run.check_interpreter(tpu_python, ("torch",), run.OLDEST_TORCH)
        copy = scratch / "migrated" / "program"
        if options["migrated"] is None:
            run.copy(program.root, copy)
            notes += project.migrate(copy, options["config"])
        else:
            given = Path(options["migrated"])
            run.copy(given if given.is_dir() else given.parent, copy)
            if given.is_file():
                program = program._replace(target=given.name)
        way = run.on_emulator(tpu_python, options["devices"], options["allow_missing_ops"], timeout)
        migrated = run.record(program._replace(root=copy), way, scratch / "migrated" / "record")
    tolerance = compare.Tolerance(options["rtol"], options["atol"])
    ignored = compare.Ignored(
        options["ignore_lines"], options["ignore_text"], options["ignore_files"]
    )
    found = compare.compare(original, migrated, tolerance, ignored)
    found.notes[:0] = notes
    told = (found, original, migrated, options["baseline"])
    if options["output_format"] == "json":
        out(json.dumps(report.data(*told), indent=2) + "\n")
    else:
        out(report.text(*told))
    return found.exit_status


def _run(program: Program, way: Way, scratch: Path) -> Record:
    from xla2tpu.verify import run

    run.copy(program.root, scratch / "program")
    return run.record(program._replace(root=scratch / "program"), way, scratch / "record")


def _baseline(file: str, program: Program, notes: list[str]) -> Record:
    """The record in a file. Notes where the program has changed since."""
    from xla2tpu.verify import run
    from xla2tpu.verify.record import RecordError, loads

    try:
        record = loads(Path(file).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, RecordError) as error:
        raise run.RunError(f"--baseline {file}: {error}") from error
    if record.args != list(program.args):
        raise run.RunError(
            f"--baseline {file}: recorded with the arguments {record.args}, "
            f"not {list(program.args)}"
        )
    changed = run.changed_sources(record, program.root)
    if changed:
        notes.append(f"changed since the baseline was recorded: {', '.join(changed)}")
    return record


def _save(file: str, record: Record) -> None:
    from xla2tpu import writer
    from xla2tpu.verify.record import dumps

    try:
        writer.write(file, dumps(record).encode("utf-8"))
    except writer.WriteError as error:
        die(f"--save-baseline {file}: {error}")


def _recorded(record: Record) -> int:
    """The exit status of a run that is recorded only; its failure is told."""
    if record.status == 0:
        return 0
    click.echo(record.stderr, err=True, nl=False)
    ending = "the time limit" if record.status is None else f"status {record.status}"
    click.echo(f"xla2tpu: the original ended with {ending}", err=True)
    return 1
