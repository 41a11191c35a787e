"""The `torch_tpu` of an emulated process: importing it registers the emulated device."""

import importlib.util
import sys
from pathlib import Path

__version__ = "0.2.0"

if importlib.util.find_spec("xla2tpu") is None:
    # Another interpreter than that of the command, with torch alone: the package is found by
    # where this file stands.
    sys.path.append(str(Path(__file__).resolve().parents[4]))


def _load() -> None:
    """What torch calls when it is imported, as the metadata of this package tells it."""
    from xla2tpu import emulator

    emulator.activate_from_environment()


_load()
