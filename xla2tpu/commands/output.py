"""Writing to the terminal, and leaving."""

from __future__ import annotations

import os
import sys
from typing import IO, NoReturn

import click


def coloured(choice: str, stream: IO[str]) -> bool:
    """Whether a stream gets colours, by `--color`."""
    if choice != "auto":
        return choice == "always"
    if os.environ.get("NO_COLOR"):
        return False
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def out(text: str, err: bool = False) -> None:
    """Print a text whatever the terminal can spell."""
    stream = sys.stderr if err else sys.stdout
    encoding = stream.encoding or "utf-8"
    stream.write(text.encode(encoding, errors="backslashreplace").decode(encoding))
    stream.flush()


def raw(data: bytes) -> None:
    """Write bytes to standard output as they are."""
    sys.stdout.flush()
    sys.stdout.buffer.write(data)
    sys.stdout.buffer.flush()


def die(message: str) -> NoReturn:
    """End with a message and the exit status 2."""
    click.echo(f"xla2tpu: error: {message}", err=True)
    sys.exit(2)
