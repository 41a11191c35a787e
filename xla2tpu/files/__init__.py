"""All kinds of files: Python goes to the engine, the rest is read here.

`run_source` is the one way in for files of any kind, with the words of `engine.run_source`.
"""

from __future__ import annotations

import ast
import json
import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial

from xla2tpu import prefilter
from xla2tpu.files.places import Document, Place, Program, Work, decode, masked
from xla2tpu.kinds import Kind, kind_of
from xla2tpu.model import FileResult, Settings, Status
from xla2tpu.project import Project, project_of
from xla2tpu.roots import find_root

_PYTHON = (Kind.PYTHON, Kind.SETUP_PY)


def run_source(
    data: bytes,
    path: str,
    settings: Settings,
    *,
    project: Project | None = None,
    released: frozenset[str] = frozenset(),
) -> FileResult:
    """Check, fix or migrate one file of any kind that is held in memory; never raises for its text.

    ``path`` tells the kind. ``project`` and ``released`` are for Python, as `engine.run_source`
    has them.
    """
    result = _run(data, path, settings, project, released)
    if result.output is None or (kind_of(path) or Kind.PYTHON) is Kind.PYTHON:
        return result
    problem = _problem(result, path, settings, project, released)
    if problem is not None:
        codes = ", ".join(sorted({f.rule for f in result.findings if f.applied})) or "XLA096"
        result.output, result.edits = None, ()
        result.status = Status.ERROR
        result.error = f"internal error, nothing written: {problem} ({codes})"
        result.findings = [replace(f, applied=False) for f in result.findings]
    return result


def _run(
    data: bytes, path: str, settings: Settings, project: Project | None, released: frozenset[str]
) -> FileResult:
    kind = kind_of(path) or Kind.PYTHON
    if kind is Kind.NOTEBOOK:
        return _notebook(data, path, settings, project)
    if kind in _PYTHON:
        return _python(data, path, settings, project, released, kind)
    text, encoding, lead = decode(data)
    document = Document(data, text, encoding, lead, _detector(kind, path)(text))
    return Work(document, path, settings, project or _project(path, settings)).result()


def _project(path: str, settings: Settings) -> Project:
    """The project of a file, for what is known of its hardware."""
    return project_of(settings.root or find_root(path))


def _detector(kind: Kind, path: str) -> Callable[[str], list[Place]]:
    """What finds the places of a kind of file."""
    from xla2tpu.files import formats

    if kind is Kind.PYPROJECT:
        from xla2tpu.files.toml import pyproject

        return pyproject
    if kind in (Kind.CONDA, Kind.CI):
        from xla2tpu.files import yamls

        return yamls.conda if kind is Kind.CONDA else yamls.ci
    if kind is Kind.TOX:
        from xla2tpu.files.tox import tox_ini

        return tox_ini
    if kind is Kind.YAML:
        from xla2tpu.files.manifests import manifest

        return manifest
    if kind is Kind.REQUIREMENTS:
        return lambda text: formats.requirements_txt(text, path)
    return {
        Kind.SETUP_CFG: formats.setup_cfg,
        Kind.DOCKERFILE: formats.dockerfile,
        Kind.SHELL: formats.shell,
        Kind.DOTENV: formats.dotenv,
    }.get(kind, formats.lock)


def _python(
    data: bytes, path: str, settings: Settings, project: Project | None,
    released: frozenset[str], kind: Kind,
) -> FileResult:  # fmt: skip
    """A Python file; strings with shells or requirements in them are read here."""
    from xla2tpu import engine

    run = partial(engine.run_source, project=project, released=released)
    if kind is Kind.PYTHON and b"get_ipython()" not in data:
        return run(data, path, settings)
    from xla2tpu.files.pythons import Strings, spans_of

    text, encoding, lead = decode(data)
    strings = Strings(text)
    places = strings.shells() + (strings.setup() if kind is Kind.SETUP_PY else [])
    if not places or encoding != "utf-8":
        return run(data, path, settings)
    from xla2tpu.files.notebook import characters

    at = characters(text)
    inner = data[:lead] + masked(text, spans_of(places)).encode()
    program = Program(
        lambda s: run(inner, path, s),
        lambda start, end: (at(start - lead), at(end - lead)),
        lambda edits: [replace(e, start=at(e.start - lead), end=at(e.end - lead)) for e in edits],
    )
    document = Document(data, text, encoding, lead, places, [program], plain=False)
    return Work(document, path, settings, project or _project(path, settings)).result()


def _notebook(data: bytes, path: str, settings: Settings, project: Project | None) -> FileResult:
    from xla2tpu.files import notebook

    def run(inner: bytes, name: str, how: Settings) -> FileResult:
        if name == path:
            from xla2tpu import engine

            return engine.run_source(inner, name, replace(how, notebook=True), project=project)
        kind = kind_of(name)
        if kind is None or not prefilter.matters(kind, inner):
            return FileResult(name, Status.CLEAN, source=inner)
        return run_source(inner, name, how, project=project)

    try:
        document = notebook.read(data, path, run)
    except notebook.NotNotebook as error:
        return FileResult(path, Status.ERROR, source=data, error=str(error))
    return Work(document, path, settings, project or _project(path, settings)).result()


def _problem(
    result: FileResult, path: str, settings: Settings, project: Project | None,
    released: frozenset[str],
) -> str | None:  # fmt: skip
    """Why an output must not be written; None where it may."""
    assert result.output is not None
    assert result.source is not None
    kind = kind_of(path) or Kind.PYTHON
    if _reads(result.source, kind) and not _reads(result.output, kind):
        return "the result cannot be read"
    again = _run(result.output, path, settings, project, released)
    if again.error is not None:
        return again.error
    return None if again.output is None else "a second run would change the result"


def _reads(data: bytes, kind: Kind) -> bool:
    """Whether a file is well-formed, as far as its kind has a parser."""
    try:
        if kind in _PYTHON:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                ast.parse(data)
        elif kind is Kind.NOTEBOOK:
            json.loads(data)
        elif kind is Kind.PYPROJECT:
            import tomllib

            tomllib.loads(data.decode())
        elif kind in (Kind.CI, Kind.CONDA, Kind.YAML):
            import yaml

            list(yaml.compose_all(data, yaml.SafeLoader))
    except (ValueError, SyntaxError, RecursionError):
        return False
    except Exception as error:  # yaml's errors, without importing it for others
        return not type(error).__module__.startswith("yaml")
    return True
