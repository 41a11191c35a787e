"""`python -m xla2tpu`."""

import os
import sys


def _leave_out_current_folder() -> None:
    """Python puts it first on the path, where a project's file would stand for a library of ours.

    It stays where xla2tpu itself is imported from it.
    """
    here = os.path.realpath(os.curdir)
    own = os.path.realpath(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
    if not sys.flags.safe_path and here != own and os.path.realpath(sys.path[0] or ".") == here:
        del sys.path[0]


if __name__ == "__main__":
    _leave_out_current_folder()
    from xla2tpu.cli import main

    main()
