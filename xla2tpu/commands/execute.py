"""What `check` and `migrate` do once their options are read: run, report, exit."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NoReturn

import click

from xla2tpu import runner
from xla2tpu.commands.output import coloured, die, out, raw
from xla2tpu.config import ConfigError
from xla2tpu.model import Mode

if TYPE_CHECKING:
    from xla2tpu.baseline import Baseline
    from xla2tpu.runner import Progress, Request, Run


def execute(
    request: Request,
    common: dict[str, Any],
    stdin: bool = False,
    stdin_filename: str | None = None,
) -> NoReturn:
    """Run, report, and exit; a failure of the tool itself has the exit status 2 as well."""
    try:
        with ending_cleanly():
            status = _run(request, common, stdin, stdin_filename)
    except KeyboardInterrupt:
        click.echo("xla2tpu: interrupted", err=True)
        sys.exit(130)
    except (click.ClickException, BrokenPipeError):
        raise
    except Exception as error:
        model = sys.modules.get("xla2tpu.rulemodel")
        if model is not None and isinstance(error, model.RuleError):
            die(str(error))
        import traceback

        traceback.print_exc()
        die("internal error; please report it with the lines above")
    sys.exit(status)


def _run(request: Request, common: dict[str, Any], stdin: bool, stdin_filename: str | None) -> int:
    # `check --fix -` has the new text on stdout.
    filters = stdin and request.mode is Mode.FIX and not request.diff
    _try_report(common["report"])
    baseline = _baseline(common.get("baseline"))
    try:
        if stdin:
            data = sys.stdin.buffer.read()
            run = runner.run_stdin(data, stdin_filename, request)
        else:
            quiet = common["quiet"] or not sys.stderr.isatty()
            run = runner.run(request, None if quiet else _progress)
    except (ConfigError, runner.Refused) as error:
        die(str(error))
    if baseline is not None:
        _take_baseline(baseline, run, common["write_baseline"])
    if filters:
        output = run.changed[0].output if run.changed else None
        raw(data if output is None else output)
    _print(run, common, filters)
    _write_report(run, common["report"], common["config"])
    return run.exit_status(common["exit_zero"])


def _print(run: Run, common: dict[str, Any], err: bool) -> None:
    output_format, quiet = common["output_format"], common["quiet"]
    if run.diff:
        from xla2tpu.report import diff

        patch = diff.render(run)
        raw(diff.coloured(patch) if coloured(common["color"], sys.stdout) else patch)
        for result in run.results:
            if result.error is not None:
                click.echo(f"{result.path}: error: {result.error}", err=True)
            elif result.held_back is not None:
                click.echo(f"{result.path}: left as it is: {result.held_back}", err=True)
        err = True
    elif output_format == "json":
        from xla2tpu.report import json_

        out(json_.render(run), err)
    elif output_format in ("github", "gitlab", "junit"):
        import importlib

        out(importlib.import_module(f"xla2tpu.report.{output_format}").render(run), err)
    elif output_format == "sarif":
        from xla2tpu.commands.ruleset import rules_of
        from xla2tpu.report import sarif

        out(sarif.render(run, rules_of(common["config"])), err)
    elif common["statistics"]:
        for result in run.errors:
            click.echo(f"{result.path}: error: {result.error}", err=True)
    elif output_format == "concise":
        from xla2tpu.report import concise

        out(concise.render(run), err)
    elif common["verbose"] or any(r.error or r.findings or r.held_back for r in run.results):
        from xla2tpu.report import text

        colour = coloured(common["color"], sys.stderr if err else sys.stdout)
        listing = text.render(run, colour, common["verbose"])
        out(listing + "\n" if listing and not quiet else listing, err)
    # What follows is for people: it must not get into the output that a program reads.
    for_programs = output_format != "text"
    if common["statistics"]:
        from xla2tpu.report import statistics_

        out(statistics_.render(run), err or (for_programs and output_format != "concise"))
    if not quiet:
        if not for_programs:
            from xla2tpu.report import plans, remarks

            out(plans.render(run) + remarks.render(run), err)
        for note in run.notes:
            click.echo(f"note: {note}", err=True)
        from xla2tpu.report import summary

        stream = sys.stderr if err or for_programs else sys.stdout
        first, *rest = summary.verdict(run)
        if coloured(common["color"], stream):
            first = click.style(first, bold=True)
        out("".join(line + "\n" for line in (first, *rest)), err or for_programs)


def _baseline(file: str | None) -> Baseline | None:
    if file is None:
        return None
    from xla2tpu.baseline import Baseline, BaselineError

    try:
        return Baseline(file)
    except BaselineError as error:
        die(str(error))


def _take_baseline(baseline: Baseline, run: Run, write: bool) -> None:
    """Suppress what the baseline knows, and write it where that was asked for."""
    if not baseline.exists and not write:
        die(f"--baseline {baseline.file}: no such file; --write-baseline makes it")
    baseline.accept(run.results)
    if write:
        from xla2tpu import writer

        try:
            writer.write(baseline.file, baseline.text().encode())
        except writer.WriteError as error:
            die(f"--baseline {baseline.file}: {error}")
        if not baseline.exists:
            from xla2tpu.baseline import Baseline

            made = Baseline(baseline.file)
            run.notes.append(f"{made.accept(run.results)} places are in the new {made.file}")
    elif baseline.outdated():
        run.notes.append(
            f"{baseline.file} allows {baseline.outdated()} places that are mended: "
            "--write-baseline lowers it"
        )


def _try_report(file: str | None) -> None:
    """Stop before anything is written where the report could not be."""
    if file is None:
        return
    folder = os.path.dirname(file) or "."
    if os.path.isdir(file):
        die(f"--report {file}: is a folder")
    if not os.path.isdir(folder):
        die(f"--report {file}: there is no folder {folder}")
    if not os.access(folder, os.W_OK):
        die(f"--report {file}: the folder cannot be written to")


def _write_report(run: Run, file: str | None, config: str | None) -> None:
    if file is None:
        return
    from xla2tpu import writer

    if file.endswith(".json"):
        from xla2tpu.report import json_

        text = json_.render(run)
    elif file.endswith(".html"):
        from xla2tpu.commands.ruleset import rules_of
        from xla2tpu.report import html

        text = html.render(run, rules_of(config))
    else:
        from xla2tpu.report import markdown

        text = markdown.render(run)
    try:
        writer.write(file, text.encode("utf-8", errors="backslashreplace"))
    except writer.WriteError as error:
        die(f"--report {file}: {error}")


def _progress(total: int) -> Progress:
    """A bar on stderr that appears when a run turns out to be long."""
    import time

    bar: Any = None
    done = 0
    start = time.monotonic()

    def step(*_: object) -> None:
        nonlocal bar, done
        done += 1
        if bar is not None:
            bar.update(1)
        elif time.monotonic() - start > 1:
            bar = click.progressbar(length=total, label="Reading", file=sys.stderr)
            bar.__enter__()
            bar.update(done)
        if bar is not None and done == total:
            bar.__exit__(None, None, None)

    return step


@contextlib.contextmanager
def ending_cleanly() -> Iterator[None]:
    """Let a termination unwind, so that no temporary file is left behind."""
    import signal
    import threading

    def stop(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGTERM, getattr(signal, "SIGHUP", signal.SIGTERM))
    # `nohup` has one of them ignored.
    kept = {n: signal.getsignal(n) for n in numbers if signal.getsignal(n) != signal.SIG_IGN}
    for number in kept:
        signal.signal(number, stop)
    try:
        yield
    finally:
        for number, before in kept.items():
            signal.signal(number, before)
