"""The `torch_tpu` of an emulated process: importing it registers the emulated device."""

import importlib.util
import sys
from pathlib import Path

__version__ = "0.2.0"


def _find_xla2tpu() -> None:
    """Import the package that this file is in: another one may be first on the path, or none."""
    folder = Path(__file__).resolve().parents[3]
    spec = importlib.util.spec_from_file_location(
        "xla2tpu", folder / "__init__.py", submodule_search_locations=[str(folder)]
    )
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules["xla2tpu"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)


def _load() -> None:
    """What torch calls when it is imported, as the metadata of this package tells it."""
    if "xla2tpu" not in sys.modules:
        _find_xla2tpu()
    from xla2tpu import emulator

    emulator.activate_from_environment()


_load()
