"""Many files in one run: which matter, in how many processes, and names across them.

Nothing heavy is imported until a file matters, so that a hook on a file without torch_xla ends
at once.
"""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from xla2tpu import prefilter
from xla2tpu.inhouse import NOTHING, InHouse
from xla2tpu.kinds import Kind, kind_of
from xla2tpu.model import FileResult, Mode, Settings, Status
from xla2tpu.project import Project, forget, project_of
from xla2tpu.roots import find_root

if TYPE_CHECKING:
    from xla2tpu.rulemodel import RuleSet

Job = tuple[str, Settings]
Progress = Callable[..., None]

# Starting processes costs more than this many files.
_FILES_FOR_A_POOL = 16
_ROUNDS = 5
_PYTHON = (Kind.PYTHON, Kind.SETUP_PY)
_CODE = (*_PYTHON, Kind.NOTEBOOK)


def run_project(
    files: Sequence[Job], jobs: int = 1, progress: Progress | None = None
) -> list[FileResult]:
    """Run the engine over files that are read here; nothing is written.

    A name at the top of a file that others import goes only if they all stop importing it in
    the same run. Results come in the order of the files; the ``--helpers-module`` is an extra
    one at the end.
    """
    forget()
    projects: dict[str, Project] = {}
    results: dict[str, FileResult] = {}
    matter: list[Job] = []
    waiting: list[Job] = []
    silent: set[str] = set()
    for path, settings in files:
        result, data = _read(path)
        results[path] = result
        if data is None:
            _tell(progress)
            continue
        root = settings.root or find_root(path)
        in_house = _in_house(settings.rule_files)
        project = projects[root] = project_of(root, in_house)
        job = (path, replace(settings, root=root))
        kind = kind_of(path) or Kind.PYTHON
        matters = prefilter.matters(kind, data)
        if kind in _PYTHON:
            project.note(path, data, matters)
        if matters or (kind in _CODE and in_house.mentioned(data)):
            matter.append(job)
        elif kind in _PYTHON:
            waiting.append(job)
            if prefilter.silent(data):
                silent.add(path)
        else:
            _tell(progress)
    for job in waiting:
        project = projects[job[1].root or ""]
        if _leads(project, job[0]) or (job[0] in silent and project.is_on_tpu()):
            matter.append(job)
        else:
            _tell(progress)
    if matter:
        python = any((kind_of(path) or Kind.PYTHON) in _CODE for path, _ in matter)
        if python:
            from xla2tpu import engine  # noqa: F401

        # What is loaded by now stays: the collector need not look at it for each file.
        gc.freeze()
        # Read before processes are forked, so that each need not do it again.
        for project in projects.values() if python else ():
            project.hints()
        for result in _run_all(matter, jobs, progress):
            results[result.path] = result
        if any(s.mode is not Mode.CHECK for _, s in matter):
            _release(matter, projects, results)
    ordered = [results[path] for path, _ in files]
    return [*ordered, *_helper_modules(matter, results)]


def _in_house(rule_files: tuple[str, ...]) -> InHouse:
    """The names that the rules of these files cover outside torch_xla."""
    if not rule_files:
        return NOTHING
    from xla2tpu.rules import load_rules

    return load_rules(rule_files).in_house


def _tell(progress: Progress | None) -> None:
    if progress is not None:
        progress(1)


def _leads(project: Project, path: str) -> bool:
    """Whether a file gets torch_xla names through the project."""
    if not project.may_lead(path):
        return False
    data = project.read(path)
    return data is not None and project.leads_somewhere(data, path)


def _read(path: str) -> tuple[FileResult, bytes | None]:
    # A pipe would be waited for.
    if os.path.exists(path) and not os.path.isfile(path):
        return FileResult(path, Status.ERROR, error="not a regular file"), None
    try:
        with open(path, "rb") as handle:
            return FileResult(path, Status.CLEAN), handle.read()
    except OSError as error:
        text = f"cannot be read: {error.strerror or error}"
        return FileResult(path, Status.ERROR, error=text), None


def run_one(job: Job, released: frozenset[str] = frozenset()) -> FileResult:
    """Run the engine over one file; what fails becomes the file's error."""
    path, settings = job
    result, data = _read(path)
    if data is None:
        return result
    result = run_bytes(data, path, settings, released)
    if result.output is None and not result.findings:
        result.source = None
    return result


def run_bytes(
    data: bytes,
    path: str,
    settings: Settings,
    released: frozenset[str] = frozenset(),
    project: Project | None = None,
) -> FileResult:
    """Run the engine over bytes that were read; a fault of ours becomes the file's error."""
    from xla2tpu import files

    try:
        return files.run_source(data, path, settings, project=project, released=released)
    except Exception as error:  # one file must not end the run
        text = f"internal error, nothing written: {type(error).__name__}: {error}"
        return FileResult(path, Status.ERROR, source=data, error=text)


def _run_all(jobs_: list[Job], jobs: int, progress: Progress | None) -> Iterator[FileResult]:
    if jobs > 1 and len(jobs_) >= _FILES_FOR_A_POOL:
        yield from _in_processes(jobs_, jobs, progress)
        return
    for job in jobs_:
        yield run_one(job)
        _tell(progress)


def _in_processes(jobs_: list[Job], jobs: int, progress: Progress | None) -> Iterator[FileResult]:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    waiting = {job[0]: job for job in jobs_}
    try:
        with ProcessPoolExecutor(max_workers=jobs) as pool:
            for result in pool.map(run_one, jobs_, chunksize=4):
                del waiting[result.path]
                yield result
                _tell(progress)
    except BrokenProcessPool:
        # A file that ends its process is found by running what is left one by one.
        for path, job in list(waiting.items()):
            yield _alone(path, job)
            _tell(progress)


def _alone(path: str, job: Job) -> FileResult:
    from concurrent.futures import ProcessPoolExecutor
    from concurrent.futures.process import BrokenProcessPool

    try:
        with ProcessPoolExecutor(max_workers=1) as pool:
            return pool.submit(run_one, job).result()
    except BrokenProcessPool:
        return FileResult(path, Status.ERROR, error="internal error: the parser crashed")


# -- names across files ------------------------------------------------------------------------


def _release(
    jobs_: list[Job], projects: dict[str, Project], results: dict[str, FileResult]
) -> None:
    """Run files again whose exports nobody imports any longer after this run."""
    by_path = {os.path.abspath(path): (path, settings) for path, settings in jobs_}
    released: dict[str, frozenset[str]] = {}
    for _ in range(_ROUNDS):
        changed = False
        for path, settings in jobs_:
            kept = any(f.reason == "imported-elsewhere" for f in results[path].findings)
            if not kept:
                continue
            real = os.path.abspath(path)
            free = frozenset(
                name
                for name, importers in projects[settings.root or ""].importers(real).items()
                if all(i in by_path and _has_let_go(i, real, name, projects[settings.root or ""],
                       results[by_path[i][0]]) for i in importers)
            )  # fmt: skip
            if free - released.get(path, frozenset()):
                released[path] = free
                results[path] = run_one((path, settings), free)
                changed = True
        if not changed:
            return


def _has_let_go(importer: str, file: str, name: str, project: Project, result: FileResult) -> bool:
    """Whether a file, as it will be written, no longer imports ``name`` from ``file``."""
    data = result.output if result.output is not None else project.read(importer)
    return data is not None and name not in project.names_from(file, importer, data)


# -- the module of helpers -----------------------------------------------------------------------


def _helper_modules(jobs_: list[Job], results: dict[str, FileResult]) -> list[FileResult]:
    """The modules that ``--helpers-module`` names, with all helpers that files import from them.

    One that is a file of the run itself gets them into its own result.
    """
    wanted: dict[tuple[str, str, tuple[str, ...]], list[str]] = {}
    for path, settings in jobs_:
        if settings.helpers_module is None or results[path].output is None:
            continue
        key = (settings.root or "", settings.helpers_module, settings.rule_files)
        names = wanted.setdefault(key, [])
        names.extend(n for n in results[path].helpers if n not in names)
    found = []
    for (root, module, rule_files), names in wanted.items():
        if names:
            from xla2tpu.helpersmodule import file_of
            from xla2tpu.rules import load_rules

            file = file_of(root, module)
            known = next((r for p, r in results.items() if os.path.abspath(p) == file), None)
            result = known or _read(os.path.relpath(file))[0]
            _add_helpers(result, file, names, load_rules(rule_files))
            if known is None:
                found.append(result)
            if result.error is not None:
                _leave_those_that_need_it(result, results)
    return found


def _leave_those_that_need_it(module: FileResult, results: dict[str, FileResult]) -> None:
    """What would import from a module that is not written stays as it is."""
    for result in results.values():
        if result.helpers and result is not module:
            result.output = None
            result.status = Status.ERROR
            result.error = f"not written: the helpers cannot be put into {module.path}"
            for finding in result.findings:
                finding.applied = False


def _add_helpers(result: FileResult, file: str, names: list[str], rules: RuleSet) -> None:
    """Put the helpers into the new text of their module; an error where they cannot be."""
    from xla2tpu.helpersmodule import updated

    if result.error is not None and os.path.exists(file):
        return
    result.error = None
    data = _read(file)[1]
    result.status = Status.CLEAN if result.status is Status.ERROR else result.status
    try:
        output = updated(data or b"" if result.output is None else result.output, names, rules)
    except SyntaxError as error:
        result.status, result.error = Status.ERROR, f"not valid Python: {error}"
    except ValueError as error:
        result.status, result.error = Status.ERROR, str(error)
    else:
        result.source = data
        result.output = output if output != data else None
    if result.error is not None:
        result.output = None
