"""The two programs of a comparison: which is meant, its migrated copy, what is left in it."""

from __future__ import annotations

import ast
from pathlib import Path

from xla2tpu import runner
from xla2tpu.model import Mode
from xla2tpu.verify.run import Program, RunError


def program_of(
    target: str, script: str | None, module: str | None, args: tuple[str, ...]
) -> Program:
    """The program that the command line names.

    ``target`` is a script, whose folder is the project, or a project, of which ``script`` or
    ``module`` is run; without them its ``__main__.py`` or its only script. Raises `RunError`.
    """
    path = Path(target)
    if path.is_file():
        if script is not None or module is not None:
            raise RunError(f"{target} is a script: --script and --module go with a folder")
        return Program(path.parent, path.name, False, args)
    if not path.is_dir():
        raise RunError(f"{target}: no such file or folder")
    if module is not None:
        return Program(path, module, True, args)
    if script is None:
        script = _only_script(path)
    elif not (path / script).is_file():
        raise RunError(f"{script}: no such file in {target}")
    return Program(path, script, False, args)


def _only_script(root: Path) -> str:
    if (root / "__main__.py").is_file():
        return "__main__.py"
    found = [path.name for path in sorted(root.glob("*.py")) if _is_script(path)]
    if len(found) == 1:
        return found[0]
    what = f"several scripts ({', '.join(found)})" if found else "no script"
    raise RunError(f"{root} has {what} at its top: say which with --script or --module")


def _is_script(path: Path) -> bool:
    """Whether a file asks if it is the main program."""
    try:
        tree = ast.parse(path.read_bytes())
    except (SyntaxError, ValueError):
        return False
    return any(
        isinstance(node, ast.If) and "__name__" in ast.unparse(node.test) for node in tree.body
    )


def migrate(root: Path, config: str | None) -> list[str]:
    """Migrate a copy of a project in place, as ``migrate`` does; what is left, as notes.

    Raises `RunError`.
    """
    from xla2tpu.config import ConfigError

    request = runner.Request(
        paths=(str(root),),
        mode=Mode.MIGRATE,
        unsafe=True,
        partial=True,
        allow_dirty=True,
        config=config,
    )
    try:
        done = runner.run(request)
    except (ConfigError, runner.Refused) as error:
        raise RunError(str(error)) from error
    top = root.resolve()
    notes = []
    for result in done.results:
        name = Path(result.path).resolve().relative_to(top).as_posix()
        if result.error is not None:
            notes.append(f"{name} is not migrated: {result.error}")
        left = [f for f in result.findings if runner.is_left(f) and f.blocks]
        if left:
            codes = ", ".join(sorted({f.rule for f in left}))
            places = "1 place is" if len(left) == 1 else f"{len(left)} places are"
            notes.append(f"{name}: {places} left to a person ({codes})")
    return notes
