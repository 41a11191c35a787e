"""Python runs this file when it starts, in the program and in every Python that it starts.

It stands first on the path of the runs of `xla2tpu verify` and begins the recording; then the
`sitecustomize` that it hides has its turn.
"""

import importlib.machinery
import importlib.util
import os
import sys
from typing import Any


def _load(name: str, file: str) -> Any:
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


_HERE = os.path.dirname(os.path.abspath(__file__))
if os.environ.get("XLA2TPU_RECORD"):
    _load("_xla2tpu_recorder", os.path.join(os.path.dirname(_HERE), "recorder.py")).start()

_others = [p for p in sys.path if os.path.abspath(p or os.curdir) != _HERE]
_hidden = importlib.machinery.PathFinder.find_spec("sitecustomize", _others)
if _hidden is not None and _hidden.origin:
    _load("_hidden_sitecustomize", _hidden.origin)
