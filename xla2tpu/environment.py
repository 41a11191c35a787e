"""Environment variables of torch_xla's run time, and what becomes of code that sets them.

Source of the meanings: torch_xla's documentation of its variables, releases 1.5 to 2.9.
"""

from __future__ import annotations

import re

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.model import Applicability
from xla2tpu.scopes import Scope
from xla2tpu.sites import Change, Cut, Site

Verdict = tuple[Change | None, Applicability, str | None]

_NUMERICS = re.compile(r"XLA_(USE|DOWNCAST)_(BF16|FP16|F16|32BIT_LONG)\Z")
_RENAMED = {"XLA_PERSISTENT_CACHE_PATH": "TORCH_TPU_TIER3_COMPILATION_CACHE_ROOT"}
_OWN = re.compile(
    r"(PJRT_\w+|XRT_\w+|XLA_(IR_DEBUG|HLO_DEBUG|METRICS_\w+|SYNC_WAIT|USE_SPMD|USE_EAGER_DEBUG_MODE"
    r"|AUTO_SPMD\w*|NO_SPECIAL_SCALARS|SAVE_\w+|DUMP_HLO_GRAPH|COMPILATION_CACHE_SIZE|STABLEHLO_COMPILE"
    r"|DISABLE_FUNCTIONALIZATION|ALWAYS_ALLREDUCE|EXPERIMENTAL|LAYOUTS|FNTRACKER_\w+|USE_DUMMY_STORE"
    r"|TENSOR_UPDATE_SYNC|DYNAMO_DEBUG|PERSISTENT_CACHE_\w+|COORDINATOR_PORT|REGISTER_INSTALLED_PLUGINS)"
    r"|PT_XLA_DEBUG\w*|COLAB_TPU_ADDR|TPU_NUM_DEVICES|ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB"
    r"|PTXLA_TPU_LIBRARY_PATH|USE_TORCH_XLA)\Z"
)
# Leaving these out changes nothing that a program could notice on TorchTPU.
_INERT = re.compile(
    r"(PJRT_(SELECT_DEFAULT_DEVICE|DYNAMIC_PLUGINS|CPU_ASYNC_CLIENT|ALLOCATOR_\w+|LOCAL_PROCESS_\w+"
    r"|TPU_MAX_INFLIGHT_COMPUTATIONS)|XLA_(IR_DEBUG|HLO_DEBUG|METRICS_\w+|COMPILATION_CACHE_SIZE"
    r"|STABLEHLO_COMPILE|DISABLE_FUNCTIONALIZATION|FNTRACKER_\w+|USE_DUMMY_STORE|TENSOR_UPDATE_SYNC"
    r"|DYNAMO_DEBUG|REGISTER_INSTALLED_PLUGINS|SYNC_WAIT|USE_EAGER_DEBUG_MODE)|PT_XLA_DEBUG\w*"
    r"|XRT_\w+|ALLREDUCE_GRADIENTS_BUCKET_SIZE_MB|USE_TORCH_XLA)\Z"
)


def is_variable(value: str) -> bool:
    """Whether a string is the name of a variable of torch_xla."""
    return bool(_NUMERICS.match(value) or _OWN.match(value))


def reason(value: str) -> str:
    """Why a variable is left to a person where nothing more is known of it."""
    return "numerics" if _NUMERICS.match(value) else "environment"


def detector(value: str) -> str:
    """The rule that speaks about a variable."""
    return "precision-variable" if _NUMERICS.match(value) else "environment"


def other_hardware(name: str, setting: str) -> bool:
    """Whether setting a variable chooses hardware other than TPUs."""
    return name == "PJRT_DEVICE" and setting.upper() in ("CUDA", "GPU", "NEURON", "ROCM", "XPU")


def blocks(value: str) -> bool:
    """Whether code that still names the variable keeps its file from being done."""
    return is_variable(value) and value != "USE_TORCH_XLA"


def variable(site: Site, node: cst.SimpleString, value: str, builder: Builder) -> Verdict | None:
    """What becomes of a variable's name in the code; None where it is plain text."""
    manual = Applicability.MANUAL
    use = _use(node, site.scope, builder)
    if use is None:
        return None
    kind, setting, statement = use
    if value in _RENAMED:
        start, end = builder.tree.span(node)
        text = f"{node.prefix}{node.quote}{_RENAMED[value]}{node.quote}"
        change = Change(cuts=[Cut(start, end, (text,))], replaced=[node])
        return change, Applicability.UNSAFE, None
    if _NUMERICS.match(value):
        return None, manual, reason(value)
    if kind == "set" and statement is not None:
        whole = Change(deletes=[statement], replaced=[node])
        text_ = setting.evaluated_value if isinstance(setting, cst.SimpleString) else None
        if value == "PJRT_DEVICE" and isinstance(text_, str) and text_.upper() == "TPU":
            return whole, Applicability.SAFE, None
        if _INERT.match(value) and (setting is None or builder.droppable(setting, site.scope)):
            return whole, Applicability.SAFE, None
    if kind == "unset" and statement is not None and _INERT.match(value):
        return Change(deletes=[statement], replaced=[node]), Applicability.SAFE, None
    return None, manual, "environment"


def _use(
    node: cst.SimpleString, scope: Scope, builder: Builder
) -> tuple[str, cst.CSTNode | None, cst.CSTNode | None] | None:
    """How a variable is used: (set, unset or read; the value; the statement that is all of it)."""
    tree = builder.tree
    parent = tree.parent(node)
    if isinstance(parent, cst.Index):
        element = tree.parent(parent)
        subscript = tree.parent(element) if element is not None else None
        if isinstance(subscript, cst.Subscript):
            return _subscript(subscript, scope, builder)
    if isinstance(parent, cst.Arg):
        call = tree.parent(parent)
        if isinstance(call, cst.Call):
            return _call(call, parent, scope, builder)
    if isinstance(parent, cst.DictElement) and parent.key is node:
        return "read", None, None  # the environment of another process, or an update of this one
    if isinstance(parent, cst.Comparison) and _is_environ(
        parent.comparisons[0].comparator, scope, builder
    ):
        return "read", None, None
    return None


def _subscript(
    node: cst.Subscript, scope: Scope, builder: Builder
) -> tuple[str, cst.CSTNode | None, cst.CSTNode | None] | None:
    if not _is_environ(node.value, scope, builder):
        return None
    parent = builder.tree.parent(node)
    if isinstance(parent, cst.AssignTarget):
        statement = builder.tree.parent(parent)
        assert isinstance(statement, cst.Assign)
        alone = statement if len(statement.targets) == 1 else None
        return "set", statement.value, alone
    if isinstance(parent, cst.Del):
        return "unset", None, parent
    return "read", None, None


def _call(
    call: cst.Call, arg: cst.Arg, scope: Scope, builder: Builder
) -> tuple[str, cst.CSTNode | None, cst.CSTNode | None] | None:
    if call.args[0] is not arg:
        return None
    callee = builder.callee(call, scope) or ""
    if isinstance(call.func, cst.Name):
        # The helpers that an earlier run put in for these functions of torch_xla.
        for helper in ("getenv_as", "check_env_flag"):
            known = builder.rules.helpers.get(helper)
            if known is not None and builder.naming.present(known, call.func.value):
                return "read", None, None
    if callee.startswith("torch_xla") and callee.endswith((".getenv_as", ".check_env_flag")):
        return "read", None, None
    name = callee.removeprefix("os.environ.").removeprefix("os.")
    if not callee.startswith("os."):
        if isinstance(call.func, cst.Attribute) and call.func.attr.value in ("setenv", "delenv"):
            return "read", None, None
        return None
    statement = builder.tree.parent(call)
    alone = statement if isinstance(statement, cst.Expr) else None
    if name in ("setdefault", "putenv"):
        return "set", call.args[1].value if len(call.args) > 1 else None, alone
    if name in ("pop", "unsetenv"):
        return "unset", None, alone
    return "read", None, None


def _is_environ(node: cst.CSTNode, scope: Scope, builder: Builder) -> bool:
    return builder.meaning(node, scope) == "os.environ"
