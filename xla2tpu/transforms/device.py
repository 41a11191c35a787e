"""The device of a TorchTPU process, in the form that its uses ask for."""

from __future__ import annotations

import libcst as cst

from xla2tpu import devices
from xla2tpu.changes import Builder
from xla2tpu.model import Applicability
from xla2tpu.scopes import Scope
from xla2tpu.sites import Change, Cut, Site
from xla2tpu.suites import smalls_of

_INDEXED = 'torch.device("tpu", torch.accelerator.current_device_index())'


def device(site: Site, builder: Builder) -> Change | str:
    """Rewrite ``xm.xla_device()`` and its successors.

    A statement of its own goes, unless it is a probe in a ``try``. A device that is compared,
    hashed or asked for its index gets the indexed form, since ``tpu`` and ``tpu:0`` differ.
    """
    block = _probed(site, builder)
    if block is not None:
        return _availability(site, block, builder)
    if site.context in ("statement", "discarded"):
        return builder.delete(site)
    indexed = devices.needs_index(site, builder)
    if builder.settings.device == "accelerator":
        # The accelerator has no index, so that it equals the device of no tensor.
        if indexed:
            return "unsupported-form"
        lead = "lambda *args, **kwargs: " if site.context == "reference" else ""
        return builder.replace(site, f"{lead}{devices.PORTABLE}", ["import torch"])
    if site.context == "reference":
        return builder.replace(
            site, 'lambda *args, **kwargs: torch.device("tpu")', ["import torch"]
        )
    if indexed and _at_import(site):
        # It asks the runtime, in a parent process that may have to leave the TPU to its children.
        site.applicability = Applicability.UNSAFE
    template = _INDEXED if indexed else 'torch.device("tpu")'
    return builder.replace(site, template, ["import torch"])


def _at_import(site: Site) -> bool:
    scope: Scope | None = site.scope
    while scope is not None and scope.kind not in ("function", "lambda"):
        scope = scope.parent
    return scope is None


def _probed(site: Site, builder: Builder) -> cst.Try | None:
    """The ``try`` that finds out by this call whether there is a device, if that is what it does.

    torch.device("tpu") opens nothing, so its handler would answer another question.
    """
    tree = builder.tree
    statement = tree.statement(site.expression)
    line = tree.parent(statement)
    suite = tree.parent(line) if isinstance(line, cst.SimpleStatementLine) else line
    block = tree.parent(suite) if suite is not None else None
    if not isinstance(block, cst.Try) or block.body is not suite or not block.handlers:
        return None
    if site.context in ("statement", "discarded"):
        return block
    few = len(smalls_of(block.body)) <= 2 and not isinstance(statement, cst.Return)
    return block if few and not _is_used(statement, site, builder) else None


def _is_used(statement: cst.CSTNode, site: Site, builder: Builder) -> bool:
    """Whether the device that a statement assigns is used anywhere."""
    if not isinstance(statement, cst.Assign):
        return True
    targets = [t.target for t in statement.targets]
    names = [t.value for t in targets if isinstance(t, cst.Name)]
    return len(names) != len(targets) or any(n in builder.tree.loads for n in names)


def _availability(site: Site, block: cst.Try, builder: Builder) -> Change | str:
    """Put a test in place of ``try: probe; return True`` with ``except: return False``."""
    tree = builder.tree
    text = tree.source(block)
    if block.orelse or block.finalbody or len(block.handlers) != 1 or "#" in text:
        return "unsupported-form"
    imports = (cst.Import, cst.ImportFrom)
    body = [s for s in smalls_of(block.body) if not isinstance(s, imports)]
    handler = smalls_of(block.handlers[0].body)
    if len(body) != 2 or len(handler) != 1:
        return "unsupported-form"
    yes, no = _outcome(body[1], builder), _outcome(handler[0], builder)
    if yes is None or no is None or yes[0] != no[0] or (yes[1], no[1]) != ("True", "False"):
        return "unsupported-form"
    change = Change(replaced=[block])
    torch = builder.need(change, "import torch", site.scope)
    quote = builder.quote
    test = (
        f"({torch}.accelerator.current_accelerator(check_available=True)"
        f" or {torch}.device({quote}cpu{quote})).type == {quote}tpu{quote}"
    )
    change.cuts.append(Cut(*tree.span(block), (f"{yes[0]}{test}",)))
    site.applicability = Applicability.UNSAFE
    site.fix_title = "Test whether there is a TPU"
    return change


def _outcome(small: cst.CSTNode, builder: Builder) -> tuple[str, str] | None:
    """``("return ", "True")`` or ``("name = ", "True")`` for what ends a branch."""
    if isinstance(small, cst.Return) and isinstance(small.value, cst.Name):
        return "return ", small.value.value
    if not isinstance(small, cst.Assign) or len(small.targets) != 1:
        return None
    target = builder.tree.source(small.targets[0].target)
    return (f"{target} = ", small.value.value) if isinstance(small.value, cst.Name) else None
