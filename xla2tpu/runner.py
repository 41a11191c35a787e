"""One run: find the files, ask the engine, write what it gives back, collect the results."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from xla2tpu import discover
from xla2tpu.config import Config, ConfigError, Configs
from xla2tpu.model import (
    FileResult,
    Finding,
    ManualPlan,
    Mode,
    Note,
    Settings,
    Status,
    state_of,
)

Progress = Callable[..., None]


class Refused(Exception):
    """The run does not begin, or does not write; the message says why and what to do."""


class Request(NamedTuple):
    """What the command line asks for. ``select`` and ``ignore`` replace the configured ones
    where they are not None; ``jobs`` is the number of processes at most.
    """

    paths: tuple[str, ...] = (".",)
    mode: Mode = Mode.CHECK
    unsafe: bool = False
    partial: bool = False
    todo: bool = True
    any_hardware: bool = False
    select: tuple[str, ...] | None = None
    ignore: tuple[str, ...] | None = None
    config: str | None = None
    force_exclude: bool = False
    helpers_module: str | None = None
    launcher: str | None = None
    jobs: int = 1
    with_fixes: bool = False
    diff: bool = False
    out_dir: str | None = None
    allow_dirty: bool = False


@dataclass
class Run:
    """What came out. ``notes`` are lines for the person at the terminal, ``facts`` those notes
    on a project that `migrate` makes, ``plans`` what it says of SPMD and FSDP programs.
    """

    mode: Mode
    results: list[FileResult]
    diff: bool = False
    notes: list[str] = field(default_factory=list)
    facts: list[Note] = field(default_factory=list)
    plans: list[ManualPlan] = field(default_factory=list)

    @property
    def remarks(self) -> list[Note]:
        """What is to be known beside the findings: of the project, then of each file."""
        return [*self.facts, *(note for result in self.results for note in result.notes)]

    @property
    def changed(self) -> list[FileResult]:
        """Files whose text the run changed, or would change."""
        return [r for r in self.results if r.output is not None]

    @property
    def errors(self) -> list[FileResult]:
        """Files that could not be read, decoded or written, or on which the tool failed."""
        return [r for r in self.results if r.error is not None]

    def exit_status(self, exit_zero: bool = False) -> int:
        """0 nothing left, 1 something left or different, 2 errors."""
        if self.errors:
            return 2
        if exit_zero:
            return 0
        differs = self.diff and bool(self.changed)
        return int(differs or any(is_left(f) for r in self.results for f in r.findings))


def is_left(finding: Finding) -> bool:
    """Whether the place still stands after the run, and nobody said to leave it."""
    return state_of(finding) in ("fixable", "manual")


def settings_for(path: str, config: Config, request: Request, root: str | None) -> Settings:
    """The settings of one file; its per-file ignores are already among the ignored codes."""
    if request.ignore is not None:
        config = config._replace(ignore=request.ignore)
    return Settings(
        mode=request.mode,
        unsafe=request.unsafe,
        # A selection of codes would hold back nearly every file as a whole.
        partial=request.partial or request.select is not None,
        todo=request.todo,
        any_hardware=request.any_hardware,
        select=config.select if request.select is None else request.select,
        ignore=config.ignored_in(path),
        exclude=config.exclude,
        rule_files=config.rule_files,
        helpers_module=request.helpers_module or config.helpers_module,
        source_version=config.source_version,
        device=config.device,
        launcher=request.launcher or config.launcher,
        processes=config.processes,
        root=root,
        with_fixes=request.with_fixes,
    )


def run(request: Request, progress: Callable[[int], Progress] | None = None) -> Run:
    """Do what ``request`` says. ``progress`` gets the number of files and gives the callback
    that is called after each.

    Raises `Refused` and `config.ConfigError` before anything is written.
    """
    if request.out_dir is not None:
        from xla2tpu import writer

        try:
            writer.check_out_dir(request.out_dir)
        except writer.WriteError as error:
            raise Refused(f"--out-dir {error}") from error
    configs = Configs(request.config)
    found = discover.discover(request.paths, configs, request.force_exclude)
    trees: dict[str, str | None] = {}
    files: list[tuple[str, Settings]] = []
    for file in found.files:
        config = configs.of(file.path)
        root = configs.root(file.path, file.tree)
        files.append((file.path, settings_for(file.path, config, request, root)))
        trees[file.path] = file.tree
    done = Run(request.mode, [FileResult(p, Status.ERROR, error=e) for p, e in found.errors])
    done.diff = request.diff
    check_rule_files({settings.rule_files for _, settings in files})
    if files:
        from xla2tpu import batch

        callback = progress(len(files)) if progress is not None else None
        results = batch.run_project(files, request.jobs, callback)
        if any(result.mentions_torch_xla or result.findings for result in results):
            check_codes({settings for _, settings in files})
        done.results += results
        if request.mode is Mode.MIGRATE and any(r.mentions_torch_xla for r in results):
            from xla2tpu import imported, projectfacts

            roots = dict.fromkeys(s.root for _, s in files if s.root is not None)
            done.facts = projectfacts.facts(request.paths, roots, results, configs)
            done.facts += imported.operators(results, dict(files), configs)
        if any(result.steps for result in results):
            from xla2tpu import manualplan

            done.plans = manualplan.plans(request.paths, files, results, configs)
    elif not found.errors:
        done.notes.append("no files found that are looked at")
    done.results.sort(key=lambda result: result.path.split(os.sep))
    _write(done, request, trees)
    return done


def check_rule_files(every: set[tuple[str, ...]]) -> None:
    """Raise `ConfigError` for a fault in the user's own rules, which is not a run's."""
    for rule_files in every - {()}:
        from xla2tpu.rulecheck import user_problems
        from xla2tpu.rulemodel import RuleError

        try:
            problems = user_problems(rule_files)
        except (RuleError, OSError) as error:
            raise ConfigError(str(error)) from error
        if problems:
            raise ConfigError("\n".join(problems))


def run_stdin(data: bytes, filename: str | None, request: Request) -> Run:
    """The same for one source text that is not on the disk; nothing is written."""
    configs = Configs(request.config)
    path = "-" if filename is None else discover.shown(filename)
    if request.force_exclude and filename is not None and discover.excluded(filename, configs):
        return Run(request.mode, [], request.diff)
    config = configs.of(path)
    check_rule_files({config.rule_files})
    root = None if filename is None else configs.root(filename, None)
    from xla2tpu import batch

    result = batch.run_bytes(data, path, settings_for(path, config, request, root))
    done = Run(request.mode, [result], request.diff)
    if result.output is not None and result.helpers and filename is not None:
        module = request.helpers_module or config.helpers_module
        names = ", ".join(sorted(result.helpers))
        done.notes.append(f"{module} has to hold {names}: a run on the file itself writes them")
    return done


def check_codes(all_settings: set[Settings]) -> None:
    """Raise `ConfigError` for a code prefix that no rule has: it would give a false all clear."""
    given = {
        (prefix, settings.rule_files)
        for settings in all_settings
        for prefix in (*settings.select, *settings.ignore)
    }
    if given:
        from xla2tpu.rules import load_rules

        for prefix, rule_files in sorted(given):
            if not any(code.startswith(prefix) for code in load_rules(rule_files).rules):
                raise ConfigError(
                    f"no rule has a code that starts with {prefix}; `xla2tpu rules` lists them"
                )


def _write(done: Run, request: Request, trees: dict[str, str | None]) -> None:
    if request.diff or request.mode is Mode.CHECK:
        return
    changed = done.changed
    if request.out_dir is not None:
        _write_copy(done, request.paths, request.out_dir)
        return
    if changed and request.mode is Mode.MIGRATE and not request.allow_dirty:
        _refuse_dirty(done, changed)
    from xla2tpu import writer

    # The module of helpers has no settings of its own; what imports from it needs it first.
    changed.sort(key=lambda result: result.path in trees)
    broken = any(r.error is not None and r.path not in trees for r in done.results)
    for result in changed:
        if broken and result.helpers:
            _fail(result, "not written: the module of helpers could not be written")
            continue
        assert result.output is not None
        tree = trees.get(result.path)
        try:
            writer.write(result.path, result.output, tree, result.source)
        except writer.WriteError as error:
            _fail(result, str(error))
            broken = broken or result.path not in trees


def _write_copy(done: Run, paths: Sequence[str], out_dir: str) -> None:
    from xla2tpu import writer

    outputs = {r.path: r.output for r in done.changed if r.output is not None}
    there = [path for path in paths if os.path.exists(path)]
    if not there:
        return
    try:
        writer.copy_tree(there, out_dir, outputs)
    except writer.WriteError as error:
        raise Refused(f"--out-dir {error}") from error
    done.notes.append(f"the migrated copy is in {out_dir}")


def _refuse_dirty(done: Run, changed: list[FileResult]) -> None:
    """Raise `Refused` where git could not bring a file back; say so where there is no git."""
    from xla2tpu import git

    try:
        dirty, outside = git.changed_files(r.path for r in changed if os.path.lexists(r.path))
    except git.GitError as error:
        raise Refused(
            f"cannot tell whether files have uncommitted changes ({error}); "
            "nothing was changed; --allow-dirty goes on without the question"
        ) from error
    if dirty:
        names = "".join(f"\n  {path}" for path in dirty[:10])
        more = f"\n  and {len(dirty) - 10} more" if len(dirty) > 10 else ""
        have = "has" if len(dirty) == 1 else "have"
        raise Refused(
            f"{len(dirty)} of the files to change {have} uncommitted changes:{names}{more}\n"
            "nothing was changed; commit or stash them first, or give --allow-dirty"
        )
    if outside:
        done.notes.append(
            f"{len(outside)} changed files are not under version control: there is no undo"
        )


def _fail(result: FileResult, error: str) -> None:
    """Turn a result into an error: the file stands as it was, so nothing was applied."""
    result.status = Status.ERROR
    result.error = error
    result.output = None
    result.findings = [replace(f, applied=False) if f.applied else f for f in result.findings]
