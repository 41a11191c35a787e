"""`pytest.raises` for programs that have torch and nothing else."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raises(kind: type[BaseException], text: str) -> Iterator[None]:
    """Assert that the block raises ``kind`` with a message that has ``text`` in it."""
    caught = None
    try:
        yield
    except kind as error:
        caught = error
    assert caught is not None, f"no {kind.__name__} was raised"
    assert text in str(caught), f"{caught!r} is without {text!r}"
