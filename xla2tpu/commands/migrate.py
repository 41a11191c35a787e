"""`xla2tpu migrate`."""

from __future__ import annotations

from typing import Any

import click

from xla2tpu.commands.execute import execute
from xla2tpu.commands.options import EPILOG, common, request_of
from xla2tpu.model import Mode


@click.command(epilog=EPILOG)
@click.argument("paths", nargs=-1, required=True)
@click.option("--no-unsafe-fixes", is_flag=True, help="Apply safe fixes only.")
@click.option(
    "--out-dir",
    metavar="DIR",
    help="Leave PATHS as they are: copy them to DIR, new or empty, with the files migrated.",
)
@click.option("--diff", is_flag=True, help="Show what would change, and change nothing.")
@click.option("--no-todo", is_flag=True, help="No TODO comments above what is left by hand.")
@click.option("--allow-dirty", is_flag=True, help="Change files with uncommitted changes too.")
@common
def migrate(
    paths: tuple[str, ...],
    no_unsafe_fixes: bool,
    out_dir: str | None,
    diff: bool,
    no_todo: bool,
    allow_dirty: bool,
    **shared: Any,
) -> None:
    """Rewrite PATHS to TorchTPU in one go, and mark what a person has to do."""
    if "-" in paths:
        raise click.UsageError("migrate works on files; for a text on stdin: check --fix -")
    if diff and out_dir is not None:
        raise click.UsageError("--diff and --out-dir exclude each other")
    request = request_of(
        shared,
        paths=paths,
        mode=Mode.MIGRATE,
        unsafe=not no_unsafe_fixes,
        partial=True,
        todo=not no_todo,
        diff=diff,
        out_dir=out_dir,
        allow_dirty=allow_dirty,
    )
    execute(request, shared)
