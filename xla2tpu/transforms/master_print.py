"""Printing on the first process, with the arguments evaluated where torch_xla evaluated them."""

from __future__ import annotations

import libcst as cst

from xla2tpu import syntax
from xla2tpu.changes import Builder
from xla2tpu.nodes import descendants
from xla2tpu.signatures import release
from xla2tpu.sites import Change, Site

# The release in which the default changed from the first process of each host to that of the job.
_GLOBAL_SINCE = release("1.8")
_LOCAL_RANK = "dist.get_node_local_rank(fallback_rank=0)"
_DIST = ["import torch.distributed as dist"]
_PRINT = "print({*args}, file={fd}, flush={flush})"


def master_print(site: Site, builder: Builder) -> Change | str:
    """Print behind a rank test, or through a helper.

    torch_xla evaluated the arguments on every process. A call in them that may be a collective,
    or that changes something, has to stay outside the test: then the helper prints.
    """
    local = _is_local(site, builder)
    if local is None or not _may_wait(site, builder):
        return _by_helper(site, builder, local)
    if site.context == "statement":
        if local:
            return builder.statement(site, f"if {_LOCAL_RANK} == 0:\n    {_PRINT}", _DIST)
        block = f"if global_rank() == 0:\n    {_PRINT}"
        return builder.statement(site, block, helpers=["global_rank"])
    if local:
        return builder.replace(site, f"{_PRINT} if {_LOCAL_RANK} == 0 else None", _DIST)
    text = f"{_PRINT} if global_rank() == 0 else None"
    return builder.replace(site, text, helpers=["global_rank"])


def _by_helper(site: Site, builder: Builder, local: bool | None) -> Change | str:
    given = "local={local}" if local is None else "local=True" if local else ""
    middle = f"{given}, " if given else ""
    text = f"master_print({{*args}}, fd={{fd}}, {middle}flush={{flush}})"
    return builder.replace(site, text, helpers=["master_print"])


def _is_local(site: Site, builder: Builder) -> bool | None:
    """Whether the first process of each host prints; None where it is decided at run time."""
    arg = site.bound.args.get("local") if site.bound is not None else None
    if arg is None:
        version = builder.settings.source_version
        return version is not None and release(version) < _GLOBAL_SINCE
    text = builder.tree.source(arg.value)
    return {"True": True, "False": False}.get(text)


def _may_wait(site: Site, builder: Builder) -> bool:
    """Whether the arguments may be left unevaluated on the other processes."""
    call = site.call
    for arg in call.args if call is not None else ():
        if arg.star == "*" and not isinstance(arg.value, (cst.Name, cst.Tuple, cst.List)):
            return False
        for node in descendants(arg.value):
            if isinstance(node, (cst.Await, cst.Yield, cst.NamedExpr)):
                return False
            if isinstance(node, cst.CompFor) and node.asynchronous is not None:
                return False
            if isinstance(node, cst.Call) and not _is_harmless(node, site, builder):
                return False
    return True


def _is_harmless(call: cst.Call, site: Site, builder: Builder) -> bool:
    known = builder.sites.get(id(call))
    if known is not None:
        # What asks for ranks, devices, rates or the time does it without the other processes.
        return not known.rule.code.startswith(("XLA099", "XLA104", "XLA410", "XLA5", "XLA8"))
    if isinstance(call.func, cst.Attribute):
        return call.func.attr.value in _READING
    callee = builder.callee(call, site.scope) or ""
    package, _, name = callee.partition(".")
    if package == "builtins":
        return name not in ("next", "input", "print", "exec", "eval")
    return syntax.is_pure(call)


# Methods that only read what they are called on; a user's own method may be a collective.
_READING = frozenset(
    {"item", "tolist", "numpy", "cpu", "detach", "float", "double", "long", "int", "mean", "sum",
     "max", "min", "std", "var", "norm", "abs", "argmax", "round", "size", "dim", "numel", "rate",
     "global_rate", "format", "join", "strip", "upper", "lower", "title", "split", "replace",
     "ljust", "rjust", "center", "zfill", "keys", "values", "items", "get", "copy", "count",
     "time", "perf_counter", "monotonic", "strftime", "ctime", "now", "isoformat", "total_seconds",
     "sqrt", "log", "exp", "basename", "dirname", "exists", "pformat", "dumps", "get_last_lr",
     "memory_allocated", "max_memory_allocated", "metrics_report"}
)  # fmt: skip
