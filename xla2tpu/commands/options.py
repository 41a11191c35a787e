"""The options that `check` and `migrate` share, and the request that comes of them."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from xla2tpu.runner import Request

EPILOG = (
    "Exit status: 0 nothing left; 1 findings or manual work left, or --diff shows a difference; "
    "2 wrong usage, bad configuration, or a file that could not be handled."
)

_LAUNCHERS = ("spawn", "torchrun")
_FORMATS = ("text", "concise", "json", "github", "gitlab", "sarif", "junit")

Command = Callable[..., Any]


def _codes(
    _: click.Context, __: click.Parameter, values: tuple[str, ...]
) -> tuple[str, ...] | None:
    if not values:
        return None
    from xla2tpu.config import code_prefixes

    try:
        return code_prefixes([c.strip() for value in values for c in value.split(",") if c.strip()])
    except ValueError as error:
        raise click.BadParameter(str(error)) from error


def _report_file(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None and not value.endswith((".md", ".json", ".html")):
        raise click.BadParameter("the name must end in .md, .json or .html")
    return value


def _module(_: click.Context, __: click.Parameter, value: str | None) -> str | None:
    if value is not None:
        from xla2tpu.config import module_name

        try:
            return module_name(value)
        except ValueError as error:
            raise click.BadParameter(str(error)) from error
    return value


def common(command: Command) -> Command:
    """The options that `check` and `migrate` share."""
    codes: dict[str, Any] = {"multiple": True, "callback": _codes, "metavar": "CODES"}
    options = [
        click.option("--select", **codes, help="Only rules with these code prefixes."),
        click.option("--ignore", **codes, help="All rules but those with these code prefixes."),
        click.option("--output-format", type=click.Choice(_FORMATS), default="text"),
        click.option(
            "--report",
            metavar="FILE",
            callback=_report_file,
            help="Write a report to FILE.md, FILE.json or FILE.html as well.",
        ),
        click.option("--statistics", is_flag=True, help="Count places by rule; do not list them."),
        click.option(
            "-j", "--jobs", type=click.IntRange(min=1), help="Processes; all cores by default."
        ),
        click.option("--config", metavar="FILE", help="Take this configuration for all files."),
        click.option("--exit-zero", is_flag=True, help="Exit with 0 where it would be 1."),
        click.option("-q", "--quiet", is_flag=True, help="Only findings and errors."),
        click.option("-v", "--verbose", is_flag=True, help="Every file, every finding."),
        click.option("--color", type=click.Choice(("auto", "always", "never")), default="auto"),
        click.option(
            "--force-exclude", is_flag=True, help="Apply the excludes to named files too."
        ),
        click.option(
            "--helpers-module",
            metavar="NAME",
            callback=_module,
            help="Write helper functions into this module and import them from it.",
        ),
        click.option(
            "--launcher",
            type=click.Choice(_LAUNCHERS),
            help="How migrated programs start their processes: by themselves or by torchrun.",
        ),
        click.option(
            "--any-hardware",
            is_flag=True,
            help="Rewrite projects for other hardware than TPUs too.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def request_of(common: dict[str, Any], **own: Any) -> Request:
    """The request of the shared and a command's own options. Raises `click.UsageError`."""
    from xla2tpu.runner import Request

    output_format = common["output_format"]
    if own["diff"] and output_format != "text":
        raise click.UsageError(f"--diff and --output-format {output_format} exclude each other")
    if common["quiet"] and common["verbose"]:
        raise click.UsageError("--quiet and --verbose exclude each other")
    report = common["report"] or ""
    return Request(
        select=common["select"],
        ignore=common["ignore"],
        config=common["config"],
        force_exclude=common["force_exclude"],
        helpers_module=common["helpers_module"],
        launcher=common["launcher"],
        any_hardware=common["any_hardware"],
        jobs=common["jobs"] or _cores(),
        with_fixes=output_format in ("text", "json", "sarif")
        or report.endswith((".json", ".html")),
        **own,
    )


def _cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
