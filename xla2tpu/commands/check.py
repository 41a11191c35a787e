"""`xla2tpu check`."""

from __future__ import annotations

from typing import Any

import click

from xla2tpu.commands.execute import execute
from xla2tpu.commands.options import EPILOG, common, request_of
from xla2tpu.model import Mode


@click.command(epilog=EPILOG)
@click.argument("paths", nargs=-1)
@click.option("--fix", is_flag=True, help="Apply safe fixes.")
@click.option("--unsafe-fixes", is_flag=True, help="With --fix or --diff: unsafe fixes as well.")
@click.option("--partial", is_flag=True, help="With --fix: leave files half way if need be.")
@click.option("--diff", is_flag=True, help="Show what --fix would change, and change nothing.")
@click.option(
    "--baseline", metavar="FILE", help="Accept the places that FILE counts; report new ones."
)
@click.option(
    "--write-baseline", is_flag=True, help="Make the --baseline file, or lower its counts."
)
@click.option("--stdin-filename", metavar="FILE", help="What the text of `-` is called.")
@common
def check(
    paths: tuple[str, ...],
    fix: bool,
    unsafe_fixes: bool,
    partial: bool,
    diff: bool,
    baseline: str | None,
    write_baseline: bool,
    stdin_filename: str | None,
    **shared: Any,
) -> None:
    """Find what is left of torch_xla in PATHS (the working folder by default; `-` is stdin)."""
    if (unsafe_fixes or partial) and not (fix or diff):
        raise click.UsageError("--unsafe-fixes and --partial need --fix or --diff")
    stdin = "-" in paths
    if stdin and len(paths) > 1:
        raise click.UsageError("`-` stands alone")
    if stdin_filename is not None and not stdin:
        raise click.UsageError("--stdin-filename needs `-`")
    request = request_of(
        shared,
        paths=paths or (".",),
        mode=Mode.FIX if fix or diff else Mode.CHECK,
        unsafe=unsafe_fixes,
        partial=partial,
        diff=diff,
    )
    if write_baseline and baseline is None:
        raise click.UsageError("--write-baseline needs --baseline FILE")
    if write_baseline and (stdin or diff):
        raise click.UsageError("--write-baseline works on files, and without --diff")
    shared.update(baseline=baseline, write_baseline=write_baseline)
    execute(request, shared, stdin=stdin, stdin_filename=stdin_filename)
