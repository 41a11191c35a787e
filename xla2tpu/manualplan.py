"""One plan for each project with an SPMD or FSDP program: all places, in the order of the work.

The engine gives the steps of the files that use torch_xla for it. Added here are those of the
files that they import or are imported by, and the lines outside of the code that start them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence

from xla2tpu import discover, projectfacts
from xla2tpu.config import Configs
from xla2tpu.inhouse import NOTHING
from xla2tpu.kinds import Kind, kind_of
from xla2tpu.model import STAGES, FileResult, ManualPlan, Settings, Step, state_of
from xla2tpu.parallelplan import kinds
from xla2tpu.project import Project, project_of
from xla2tpu.roots import find_root

_ORDER = {stage: index for index, stage in enumerate(STAGES)}
# What the steps of a file are looked for that the programs only import.
_OF_IMPORTED = frozenset(("data", "optimizer", "checkpoint"))
_IMPORTS = {
    "dist": "import torch.distributed as dist",
    "dcp": "import torch.distributed.checkpoint as dcp",
    "nn": "from torch import nn",
    "DeviceMesh": "from torch.distributed.device_mesh import DeviceMesh",
    "init_device_mesh": "from torch.distributed.device_mesh import init_device_mesh",
    "fully_shard": "from torch.distributed.fsdp import fully_shard",
    "MixedPrecisionPolicy": "from torch.distributed.fsdp import MixedPrecisionPolicy",
    "DTensor": "from torch.distributed.tensor import DTensor",
    "Replicate": "from torch.distributed.tensor import Replicate",
    "Shard": "from torch.distributed.tensor import Shard",
    "distribute_module": "from torch.distributed.tensor import distribute_module",
    "distribute_tensor": "from torch.distributed.tensor import distribute_tensor",
    "checkpoint_wrapper": "from torch.distributed.algorithms._checkpoint.checkpoint_wrapper"
    " import checkpoint_wrapper",
    "get_model_state_dict": "from torch.distributed.checkpoint.state_dict"
    " import get_model_state_dict",
    "set_model_state_dict": "from torch.distributed.checkpoint.state_dict"
    " import set_model_state_dict",
    "StateDictOptions": "from torch.distributed.checkpoint.state_dict import StateDictOptions",
    "DistributedSampler": "from torch.utils.data.distributed import DistributedSampler",
}
_WORD = re.compile(r"(?<![\w.\"'])[A-Za-z_]\w*")
_STARTING = re.compile(r"(?:.*\.(?:sh|ya?ml|toml)|(?:Dockerfile|Makefile)[\w.-]*)\Z")
# Words stand apart by spaces, or as items of a list.
_APART = rb"(?:[\"']?[ \t]*,[ \t]*[\"']?|[ \t]+)"
_LINE = re.compile(
    rb"(?:[\w./~${}-]*/)?python[\d.]*%b(?:-u%b)?(-m%b)?([\w./-]+)" % (_APART, _APART, _APART)
)
_LARGEST = 1_000_000
_ALL_OR_NOTHING = "These places change together: the program is wrong with some of them alone."


def plans(
    paths: Sequence[str],
    files: Sequence[tuple[str, Settings]],
    results: Sequence[FileResult],
    configs: Configs,
) -> list[ManualPlan]:
    """The plans of a run, none for projects without such a program; ``paths`` were given.

    Raises `ConfigError`.
    """
    by_path = {result.path: result for result in results}
    projects: dict[str, dict[str, Settings]] = {}
    for path, settings in files:
        projects.setdefault(settings.root or find_root(path), {})[path] = settings
    found = []
    for root, members in projects.items():
        its = [by_path[path] for path in members if path in by_path]
        if any(result.steps for result in its):
            found.append(_plan(root, members, its, paths, configs))
    return found


def _plan(
    root: str, members: dict[str, Settings], results: list[FileResult], paths: Sequence[str],
    configs: Configs,
) -> ManualPlan:  # fmt: skip
    programs = [result for result in results if result.steps]
    sorts = kinds(
        f.rule for r in programs for f in r.findings if f.counts and state_of(f) == "manual"
    )
    steps = [step for result in programs for step in result.steps]
    importers, imported = _neighbours(root, members, [r.path for r in programs])
    for path in (*importers, *imported):
        more = _companion(path, members[path], root, sorts)
        steps += (s for s in more if path in importers or s.stage in _OF_IMPORTED)
    if "spmd" in sorts:
        steps += _variables(results)
        scripts = [r.path for r in programs] + importers
        steps += _launch_lines(paths, root, scripts, configs)
    steps.sort(key=lambda s: (_ORDER[s.stage], s.path.split(os.sep), s.cell or 0, s.line, s.column))
    below = os.path.relpath(root)
    shown = discover.shown(root) if below.startswith(os.pardir) else below
    return ManualPlan(shown, _notes(steps), _imports(steps), tuple(steps))


def _notes(steps: Sequence[Step]) -> tuple[str, ...]:
    notes = [_ALL_OR_NOTHING]
    sizes = sorted({step.devices for step in steps if step.devices is not None})
    if len(sizes) == 1:
        notes.append(f"A mesh of constant shape needs a world size of {sizes[0]}.")
    elif sizes:
        shown = ", ".join(map(str, sizes))
        notes.append(f"Meshes of constant shape need different world sizes ({shown}): no one run.")
    return tuple(notes)


def _imports(steps: Sequence[Step]) -> tuple[str, ...]:
    words = {word for s in steps if s.stage != "launch" for word in _WORD.findall(s.target)}
    return tuple(sorted({line for name, line in _IMPORTS.items() if name in words}))


# -- other files -----------------------------------------------------------------------------------


def _neighbours(
    root: str, members: dict[str, Settings], programs: list[str]
) -> tuple[list[str], list[str]]:
    """The files of the run that import programs, and those that they or programs import."""
    project = project_of(root, NOTHING)
    python = {os.path.abspath(p): p for p in members if kind_of(p) in (Kind.PYTHON, None)}
    wanted = {os.path.abspath(path) for path in programs}
    imports = {file: project.imported_files(file) for file in python}
    importers = [p for f, p in python.items() if f not in wanted and imports[f] & wanted]
    inner = wanted | {os.path.abspath(path) for path in importers}
    reached = {file for f in inner for file in imports.get(f, ())} - inner
    return importers, [python[file] for file in sorted(reached) if file in python]


def _companion(path: str, settings: Settings, root: str, sorts: frozenset[str]) -> list[Step]:
    from dataclasses import replace

    from xla2tpu.engine import companion_steps
    from xla2tpu.rules import load_rules

    in_house = load_rules(settings.rule_files).in_house
    project: Project = project_of(root, in_house)
    data = project.read(os.path.abspath(path))
    if data is None:
        return []
    return companion_steps(data, path, replace(settings, root=root), project, sorts)


def _variables(results: Sequence[FileResult]) -> Iterator[Step]:
    """Where files around the code set the variables; in code the engine has found them."""
    for result in results:
        if kind_of(result.path) in (Kind.PYTHON, Kind.NOTEBOOK):
            continue
        for finding in result.findings:
            if re.match(r"XLA_(?:USE|AUTO)_SPMD", finding.api):
                yield Step(
                    "environment", result.path, finding.line, finding.column,
                    f"the variable {finding.api}", "", "Nothing switches a mode: it goes",
                )  # fmt: skip


def _launch_lines(
    paths: Sequence[str], root: str, scripts: Sequence[str], configs: Configs
) -> Iterator[Step]:
    """Lines of scripts and the like by which Python starts one of these programs."""
    ends = {os.path.relpath(os.path.abspath(s), root).replace(os.sep, "/") for s in scripts}
    for file in projectfacts.texts(paths, (root,)):
        if not _STARTING.match(os.path.basename(file)) or discover.excluded(file, configs):
            continue
        try:
            if os.path.getsize(file) > _LARGEST:
                continue
            with open(file, "rb") as stream:
                lines = stream.read().splitlines()
        except OSError:
            continue  # it is not what the run is about
        for number, line in enumerate(lines, 1):
            if not line.lstrip().startswith(b"#"):
                yield from _starts(file, number, line, root, ends)


def _starts(file: str, number: int, line: bytes, root: str, ends: set[str]) -> Iterator[Step]:
    """The command of one line that starts one of the programs at ``ends`` below ``root``."""
    for match in _LINE.finditer(line):
        script = match[2].decode()
        path = script.replace(".", "/") + ".py" if match[1] else script
        if not _is_one(path, file, root, ends):
            continue
        rest = line[match.end() :].decode(errors="replace").strip()
        if b"," in match[0]:
            rest = " ".join(re.findall(r"[^\"'\s,\[\]]+", rest))
        module = "-m " if match[1] else ""
        start = f"torchrun --nproc_per_node=N {module}{script}"
        yield Step(
            "launch", file, number, match.start() + 1, "line that starts the program",
            "eval \"$(python -m torch.tpu.distributed | sed 's/^/export /')\"\n"
            f"{start} {rest}".rstrip(),
            "N is the number of devices of the host",
        )  # fmt: skip
        return


def _is_one(script: str, file: str, root: str, ends: set[str]) -> bool:
    """Whether a script, as a command in a file names it, is one of the programs.

    Where it stands beside the file or at the root it is that one, else any that ends so.
    """
    script = script.removeprefix("./")
    places = (os.path.join(os.path.dirname(file), script), os.path.join(root, script))
    there = [os.path.relpath(p, root).replace(os.sep, "/") for p in places if os.path.isfile(p)]
    if there:
        return any(place in ends for place in there)
    return any(script.endswith(f"/{end}") or end.endswith(f"/{script}") for end in ends)
