"""Launching one process for each TPU, by a helper or by torchrun."""

from __future__ import annotations

import libcst as cst

from xla2tpu import processgroups, workers
from xla2tpu.changes import Builder
from xla2tpu.match import is_single_controller
from xla2tpu.model import Applicability
from xla2tpu.sites import Change, Site
from xla2tpu.syntax import PRIMARY, precedence
from xla2tpu.template import Piece, Slice

_DIST = ("import torch.distributed as dist",)
_DESTROY = "dist.destroy_process_group()"
_NOTEBOOK = (
    "Write the functions to a file (%%writefile train.py in the first line of a cell) and start it"
    " with !torchrun --nproc_per_node=N train.py after `python -m torch.tpu.distributed`."
)
_AGAIN = "processes are spawned, and run the code at the top of the file again: seed what is random"
_GROUP = (
    "the processes have a process group from the start now, so that `is_initialized()` of"
    " torch.distributed turns true in them: look at what it decides"
)
_FORK = (
    "Hand the values over in args=, or set them at the top of the file: a spawned process imports"
    " the file, does not run what stands under the main guard, and draws what is random anew."
)
_PICKLE = (
    "Make the worker a function at the top of a file and hand what it needs over in args=, or start"
    " the program with torchrun and call the worker directly."
)
_GUARD = (
    'Put what starts the processes, and all that follows it, under `if __name__ == "__main__":`,'
    " since each process imports the file."
)


def launch(site: Site, builder: Builder) -> Change | str:
    """Rewrite ``torch_xla.launch``; ``debug_single_process=True`` is a direct call."""
    assert site.bound is not None
    debug = site.bound.args.get("debug_single_process")
    source = builder.tree.source(debug.value) if debug is not None else "False"
    if source in ("False", "None", "0"):
        return started(site, builder, "")
    if source in ("True", "1"):
        return single(site, builder)
    return started(site, builder, "1 if {debug_single_process} else None")


def single(site: Site, builder: Builder) -> Change | str:
    """Call the function with index 0, as torch_xla did for one process.

    A worker that makes a process group of its own needs the environment that the helper sets.
    """
    if processgroups.calls(builder) or site.context not in ("statement", "discarded"):
        return started(site, builder, "1")
    site.applicability = Applicability.SAFE
    site.fix_title = "Call the function directly"
    template, extra = _called(site, builder, "0")
    return builder.replace(site, template, extra=extra)


def started(site: Site, builder: Builder, nprocs: str) -> Change | str:
    """Start the function with the helper, or let torchrun have started it."""
    assert site.bound is not None
    if is_single_controller(list(builder.sites.values())):
        return "single-controller"
    if workers.is_notebook(builder.tree):
        site.advice = _NOTEBOOK
        return "notebook"
    if processgroups.is_asked_for(builder):
        site.message = f"{site.message or site.rule.message}; {_GROUP}"
    if builder.settings.launcher == "torchrun":
        return _twice(site, builder) or _torchrun(site, builder)
    function = site.bound.args["fn"].value
    forked = _is_forked(site, builder)
    given = site.bound.args.get("args")
    taken = given is None or workers.are_picklable(given.value, site, builder)
    if not taken or not workers.is_picklable(function, site, builder, forked):
        site.advice = _PICKLE
        return "unpicklable-worker"
    if forked and workers.reads_parents_globals(function, site, builder):
        site.advice = _FORK
        return "fork-globals"
    if forked:
        site.message = f"{site.message or site.rule.message}; {_AGAIN}"
    template = "launch({fn}, args={args}"
    refused = _twice(site, builder)
    template += f", nprocs={nprocs})" if nprocs else ")"
    if forked and workers.is_started_at_import(site, builder.tree):
        site.advice = _GUARD
        return "main-guard"
    if not workers.runs_at_import(site, builder.tree):
        return refused or builder.replace(site, template, helpers=["launch"])
    if site.context != "statement" or not workers.may_be_guarded(site, builder.tree):
        site.advice = _GUARD
        return "main-guard"
    guarded = f'if __name__ == "__main__":\n    {template}'
    return refused or builder.statement(site, guarded, helpers=["launch"])


def _twice(site: Site, builder: Builder) -> str | None:
    """Why a worker that makes its own process group is left."""
    if not processgroups.makes_its_own(builder):
        return None
    site.advice = processgroups.TWICE
    return "whole-program"


def _torchrun(site: Site, builder: Builder) -> Change | str:
    assert site.bound is not None
    if site.context != "statement":
        return "unsupported-form"
    site.fix_title = "Call the function in the process that torchrun started"
    call, extra = _called(site, builder, "dist.get_rank()")
    init = 'dist.init_process_group("cpu:gloo,tpu:tpu_dist")'
    if processgroups.is_repeated(site, builder):
        # torchrun's store keeps the addresses of the first group: a second would not be found.
        if processgroups.is_destroyed(builder):
            return "unsupported-form"
        lines = ["if not dist.is_initialized():", f"    {init}"]
        lines += ["    atexit.register(dist.destroy_process_group)", call]
        imports = ["import atexit", *_DIST]
        return builder.statement(site, "\n".join(lines), imports, extra=extra)
    lines = [init, call]
    if not processgroups.is_destroyed(builder):
        # A worker of another file may give its group back itself.
        here = workers.is_defined_here(site.bound.args["fn"].value, site, builder)
        lines += [_DESTROY] if here else ["if dist.is_initialized():", f"    {_DESTROY}"]
    return builder.statement(site, "\n".join(lines), _DIST, extra=extra)


def _called(site: Site, builder: Builder, index: str) -> tuple[str, dict[str, Piece]]:
    """The template of a direct call with the items of ``args`` written out."""
    assert site.bound is not None
    function = site.bound.args["fn"].value
    extra: dict[str, Piece] = {
        "function": Slice(function, not function.lpar and precedence(function) < PRIMARY)
    }
    given = site.bound.args.get("args")
    items = [index]
    if given is not None and isinstance(given.value, (cst.Tuple, cst.List)):
        for number, element in enumerate(given.value.elements):
            star = "*" if isinstance(element, cst.StarredElement) else ""
            extra[f"item{number}"] = Slice(element.value)
            items.append(f"{star}{{item{number}}}")
    elif given is not None:
        items.append("*{args}")
    return f"{{function}}({', '.join(items)})", extra


def _is_forked(site: Site, builder: Builder) -> bool:
    """Whether torch_xla may have forked, so that nothing was pickled and no file imported again."""
    assert site.bound is not None
    method = site.bound.args.get("start_method")
    if method is None:
        return False
    value = method.value.evaluated_value if isinstance(method.value, cst.SimpleString) else None
    return value not in ("spawn", "forkserver")
