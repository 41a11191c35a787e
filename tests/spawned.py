"""How a process that a test has spawned ends."""

from __future__ import annotations

import os
import sys
from typing import NoReturn


def end_worker() -> NoReturn:
    """End a worker whose checks have all passed, without the interpreter's tear-down.

    There, the threads that gloo leaves behind can abort the process (std::terminate), once in
    some hundred runs: that says nothing of what the worker has checked.
    """
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)
