"""Runs the checks of one module and prints, as JSON, what became of each: `checks MODULE`."""

from __future__ import annotations

import contextlib
import importlib
import json
import sys
import time
import traceback
from pathlib import Path


def main() -> None:
    sys.path.insert(0, str(Path(__file__).parent))
    module = importlib.import_module(sys.argv[1])
    results = {}
    for name, check in list(vars(module).items()):
        if name.startswith("check_"):
            start = time.perf_counter()
            try:
                with contextlib.redirect_stdout(sys.stderr):
                    check()
                error = ""
            except BaseException:
                error = traceback.format_exc()
            results[name] = [error, time.perf_counter() - start]
    print(json.dumps(results))


if __name__ == "__main__":
    main()
