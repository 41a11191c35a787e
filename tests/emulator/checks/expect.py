"""`pytest.raises` for programs that have torch and nothing else."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def raises(kind: type[BaseException], text: str) -> Iterator[None]:
    """Assert that the block raises ``kind`` with a message that has ``text`` in it."""
    try:
        yield
    except kind as error:
        assert re.search(re.escape(text), str(error)), f"{error!r} is without {text!r}"
    else:
        raise AssertionError(f"no {kind.__name__} was raised")
