"""What `check` and `migrate` do once their options are read: run, report, exit."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from xla2tpu import runner
from xla2tpu.commands.output import coloured, die, out, raw
from xla2tpu.config import ConfigError
from xla2tpu.model import Mode

if TYPE_CHECKING:
    from xla2tpu.runner import Progress, Request, Run


def execute(
    request: Request,
    common: dict[str, Any],
    stdin: bool = False,
    stdin_filename: str | None = None,
) -> NoReturn:
    """Run, report, and exit; a failure of the tool itself has the exit status 2 as well."""
    if request.mode is not Mode.CHECK:
        end_cleanly_when_told()
    try:
        status = _run(request, common, stdin, stdin_filename)
    except KeyboardInterrupt:
        click.echo("xla2tpu: interrupted", err=True)
        sys.exit(130)
    except (click.ClickException, BrokenPipeError):
        raise
    except Exception as error:
        rules_module = sys.modules.get("xla2tpu.rules")
        if rules_module is not None and isinstance(error, rules_module.RuleError):
            die(str(error))
        import traceback

        traceback.print_exc()
        die("internal error; please report it with the lines above")
    sys.exit(status)


def _run(request: Request, common: dict[str, Any], stdin: bool, stdin_filename: str | None) -> int:
    # `check --fix -` has the new text on stdout.
    filters = stdin and request.mode is Mode.FIX and not request.diff
    try:
        if stdin:
            data = sys.stdin.buffer.read()
            run = runner.run_stdin(data, stdin_filename, request)
        else:
            quiet = common["quiet"] or not sys.stderr.isatty()
            run = runner.run(request, None if quiet else _progress)
    except (ConfigError, runner.Refused) as error:
        die(str(error))
    if filters:
        output = run.changed[0].output if run.changed else None
        raw(data if output is None else output)
    _print(run, common, filters)
    _write_report(run, common["report"])
    return run.exit_status(common["exit_zero"])


def _print(run: Run, common: dict[str, Any], err: bool) -> None:
    output_format, quiet = common["output_format"], common["quiet"]
    if run.diff:
        from xla2tpu.report import diff

        patch = diff.render(run)
        raw(diff.coloured(patch) if coloured(common["color"], sys.stdout) else patch)
        for result in run.errors:
            click.echo(f"{result.path}: error: {result.error}", err=True)
        err = True
    elif output_format == "json":
        from xla2tpu.report import json_

        out(json_.render(run), err)
    elif output_format == "github":
        from xla2tpu.report import github

        out(github.render(run), err)
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

        out(statistics_.render(run), err or output_format in ("json", "github"))
    if not quiet:
        for note in run.notes:
            click.echo(f"note: {note}", err=True)
        from xla2tpu.report import summary

        stream = sys.stderr if err or for_programs else sys.stdout
        first, *rest = summary.verdict(run)
        if coloured(common["color"], stream):
            first = click.style(first, bold=True)
        out("".join(line + "\n" for line in (first, *rest)), err or for_programs)


def _write_report(run: Run, file: str | None) -> None:
    if file is None:
        return
    from xla2tpu import writer

    if file.endswith(".json"):
        from xla2tpu.report import json_

        text = json_.render(run)
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


def end_cleanly_when_told() -> None:
    """Let a termination unwind, so that no temporary file is left behind."""
    import signal

    def stop(number: int, _: object) -> NoReturn:
        sys.exit(128 + number)

    signal.signal(signal.SIGTERM, stop)
