"""What the swap of devices alone does not give: notes on a file for the report of `migrate`.

Only what the source tells for certain, or nearly so; each note names where it is said. Notes are
no findings: they never change a status or an exit status. Speed and shapes were not tried on a
TPU.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import NamedTuple

import libcst as cst

from xla2tpu.analysis import Analysis
from xla2tpu.inhouse import is_torch_xla
from xla2tpu.model import Note
from xla2tpu.nodes import children, descendants
from xla2tpu.scopes import Scope

_DOCS = "TorchTPU documentation: "


class _Kind(NamedTuple):
    message: str
    advice: str
    source: str


KINDS: dict[str, _Kind] = {
    "host-read-in-loop": _Kind(
        "each step of the loop waits for the device: {what}",
        "Add up on the device and read once after the loop, or every N steps.",
        _DOCS + "performance_profiling, deferred_execution",
    ),
    "no-drop-last": _Kind(
        "the last batch of a training loader may be smaller, and a new shape is compiled anew",
        "Give drop_last=True, or pad the last batch.",
        _DOCS + "compilation_cache",
    ),
    "dynamic-compile": _Kind(
        "torch.compile(dynamic=True) raises on the TPU",
        "Leave dynamic out; a few buckets of sizes are an option of the compiler.",
        _DOCS + "advanced_compile",
    ),
    "not-capturable": _Kind(
        "`{what}` takes its step in a compiled function without capturable=True",
        "Give capturable=True, so that the step count stays on the device.",
        _DOCS + "advanced_compile",
    ),
    "float64": _Kind(
        "float64 is emulated on the TPU, and slow",
        "Use float32, or bfloat16 with torch.set_float32_matmul_precision where it matters.",
        _DOCS + "precision_management",
    ),
    "odd-size": _Kind(
        "sizes that are no multiples of 128 are padded to them: {what}",
        "Where the model may change, take multiples of 128 for features.",
        _DOCS + "performance_profiling; PyTorch blog on TorchTPU",
    ),
    "ddp-device-ids": _Kind(
        "DistributedDataParallel gets device_ids, which a TPU process does not have",
        "Leave device_ids and output_device out.",
        _DOCS + "distributed 101",
    ),
    "collective-under-rank-test": _Kind(
        "`{what}` stands under a test of the rank: ranks that do not come here leave it waiting",
        "Let all ranks run the same collectives in the same order.",
        _DOCS + "distributed 101",
    ),
    "fork": _Kind(
        "a forked process cannot use a TPU that its parent has opened",
        'Start processes by "spawn", and do not touch the TPU before.',
        _DOCS + "performance_profiling; torch_tpu 0.2.0, multiprocessing",
    ),
}

_OPTIMIZERS = frozenset(
    f"torch.optim.{name}"
    for name in ("ASGD", "Adam", "AdamW", "Adamax", "NAdam", "RAdam", "RMSprop", "Rprop")
)
_COMPILERS = frozenset(("torch.compile", "torch_xla.compile"))
_LOADER = "torch.utils.data.DataLoader"
_LOADERS = frozenset(
    (
        _LOADER,
        "torch_xla.distributed.parallel_loader.MpDeviceLoader",
        "torch_xla.distributed.parallel_loader.ParallelLoader",
    )
)
_LOADER_NAME = re.compile(r"(?:\A|_)(?:data_?)?loader\Z|[a-z]Loader\Z")
_AROUND_A_LOADER = frozenset(("enumerate", "tqdm"))
_READS = frozenset(("item", "cpu"))
# The positions of the arguments that are sizes of features.
_SIZES = {
    "torch.nn.Linear": (0, 1),
    "torch.nn.Embedding": (1,),
    "torch.nn.MultiheadAttention": (0,),
}
_SIZE_NAMES = frozenset(("in_features", "out_features", "embedding_dim", "embed_dim"))
_DDP = "DistributedDataParallel"
_RANKS = re.compile(
    r"torch\.distributed\.get_rank|torch_xla\.core\.xla_model\.(?:get_ordinal|is_master_ordinal)"
    r"|torch_xla\.runtime\.global_ordinal"
)
_RANK_NAME = re.compile(r"(?:global_|world_)?rank\Z")
_COLLECTIVES = re.compile(
    r"torch\.distributed\.(?:all_reduce|all_gather\w*|all_to_all\w*|barrier|broadcast\w*|gather\w*"
    r"|monitored_barrier|reduce\w*|scatter\w*)"
    r"|torch_xla\.core\.xla_model\.(?:all_reduce|all_gather|all_to_all|broadcast_master_param"
    r"|collective_broadcast|mesh_reduce|reduce_gradients|reduce_scatter|rendezvous|optimizer_step)"
)
_START_METHODS = frozenset(("start_method", "multiprocessing_context", "mp_context"))
_FORKERS = re.compile(r"(?:torch\.)?multiprocessing\.(?:set_start_method|get_context)")
_ON_CPU = re.compile(r"""\.cpu\(\)|["']cpu["']""")
_CPU_NAME = re.compile(r"(?:\b|_)cpu(?:\b|_)")
_OTHER_DEVICE = re.compile(r"(?:cpu|cuda|meta|mps)\b")
# Without a device they make tensors on the host.
_FACTORIES = re.compile(
    r"torch\.(?:arange|as_tensor|empty|eye|from_numpy|full|linspace|logspace|normal|ones|rand"
    r"|randint|randn|randperm|tensor|zeros)"
)
_SMALLEST_SIZE, _TILE = 64, 128


def notes(it: Analysis) -> list[Note]:
    """The notes on one file, in the order of the source."""
    return sorted(_AfterSwap(it).all(), key=lambda note: (note.line, note.column, note.name))


class _AfterSwap:
    def __init__(self, it: Analysis) -> None:
        self.it, self.tree = it, it.tree
        self.compiled: list[cst.CSTNode] = []
        self.sizes: list[tuple[cst.CSTNode, int]] = []

    def all(self) -> Iterator[Note]:
        for node in descendants(self.tree.module):
            if isinstance(node, cst.Call):
                yield from self._call(node)
            elif isinstance(node, cst.For):
                yield from self._loop(node)
            elif isinstance(node, cst.If):
                yield from self._rank_test(node)
            elif isinstance(node, cst.Attribute) and node.attr.value in ("float64", "double"):
                if self._meaning(node) in ("torch.float64", "torch.double") and self._is_put(node):
                    yield self._note("float64", node)
            elif isinstance(node, cst.FunctionDef) and any(
                self._meaning(d.decorator) in _COMPILERS for d in node.decorators
            ):
                self.compiled.append(node)
        yield from self._optimizers()
        if self.sizes:
            self.sizes.sort(key=lambda pair: self.tree.span(pair[0]))
            shown = ", ".join(str(n) for n in dict.fromkeys(size for _, size in self.sizes))
            yield self._note("odd-size", self.sizes[0][0], shown)

    # -- what is there -----------------------------------------------------------------------

    def _meaning(self, node: cst.CSTNode) -> str | None:
        if isinstance(node, cst.Call):
            node = node.func
        return self.it.builder.meaning(node, self.tree.scope(node))

    def _note(self, name: str, node: cst.CSTNode, what: str = "") -> Note:
        kind, lines = KINDS[name], self.it.plan.lines
        start = self.tree.span(node)[0]
        line = lines.index(start)
        return Note(
            "after-swap", name, self.it.path, line + 1, start - lines.starts[line] + 1,
            kind.message.replace("{what}", what), kind.advice, kind.source,
        )  # fmt: skip

    def _is_put(self, dtype: cst.CSTNode) -> bool:
        """Whether tensors get a dtype here, which is not only compared, listed or looked up."""
        here, above = dtype, self.tree.parent(dtype)
        if isinstance(above, cst.IfExp) and above.test is not dtype:
            here, above = above, self.tree.parent(above)
        if isinstance(above, cst.Assign):
            return above.value is here and not self._is_for_the_host(above)
        call = self.tree.parent(above) if isinstance(above, cst.Arg) else None
        if not isinstance(call, cst.Call) or self._stays_on_host(call):
            return False
        assert isinstance(above, cst.Arg)
        called = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        return called in ("to", "type") or (
            above.keyword is not None and above.keyword.value == "dtype"
        )

    def _is_for_the_host(self, kept: cst.Assign) -> bool:
        """Whether a dtype that was given a name is used only for tensors that are on the host."""
        if len(kept.targets) != 1 or not isinstance(name := kept.targets[0].target, cst.Name):
            return False
        owner = self.tree.scope(name).owner(name.value)
        users = [
            self.tree.parent(arg)
            for arg in descendants(self.tree.module)
            if isinstance(arg, cst.Arg)
            and _name(arg.value) == name.value
            and self.tree.scope(arg.value).owner(name.value) is owner
        ]
        return bool(users) and all(
            isinstance(user, cst.Call) and self._stays_on_host(user) for user in users
        )

    def _stays_on_host(self, call: cst.Call) -> bool:
        """Whether the tensor that a call makes is, by the call or its statement, not on a TPU."""
        if _ON_CPU.search(self.tree.source(call)):
            return True
        statement = self.tree.statement(call)
        if isinstance(statement, cst.Assign) and any(
            _CPU_NAME.search(self.tree.source(target.target)) for target in statement.targets
        ):
            return True
        made: cst.CSTNode = call
        while isinstance(made, cst.Call):
            if _FACTORIES.fullmatch(self._meaning(made) or ""):
                given = {_name(a.keyword): a.value for a in made.args if a.keyword is not None}
                if "device" in given:
                    return _OTHER_DEVICE.match(_text(given["device"])) is not None
                return not self._is_moved(made)
            made = made.func.value if isinstance(made.func, cst.Attribute) else made.func
        return False

    def _is_moved(self, made: cst.CSTNode) -> bool:
        """Whether methods that are called at once on a tensor bring it to some device."""
        above = self.tree.parent(made)
        while isinstance(above, cst.Attribute):
            call = self.tree.parent(above)
            if not (isinstance(call, cst.Call) and call.func is above):
                return False
            if above.attr.value == "to" and any(
                not str(self._meaning(a.value)).startswith("torch.")
                or self._meaning(a.value) == "torch.device"
                for a in call.args
                if a.keyword is None or a.keyword.value == "device"
            ):
                return True
            above = self.tree.parent(call)
        return False

    def _values(self, name: cst.CSTNode) -> list[cst.BaseExpression]:
        """What a name was assigned in the scope where it is found."""
        if not isinstance(name, cst.Name):
            return []
        owner: Scope | None = self.tree.scope(name).owner(name.value)
        bindings = owner.bindings[name.value] if owner is not None else []
        return [b.value for b in bindings if b.kind == "assign" and b.value is not None]

    # -- calls -------------------------------------------------------------------------------

    def _call(self, call: cst.Call) -> Iterator[Note]:
        keywords = {a.keyword.value: a.value for a in call.args if a.keyword is not None}
        # Of torch_xla's own launchers the findings speak.
        ours = is_torch_xla(self._meaning(call))
        for name in _START_METHODS & keywords.keys():
            if _text(keywords[name]) == "fork" and not ours:
                yield self._note("fork", call)
        last = call.func.attr.value if isinstance(call.func, cst.Attribute) else ""
        if (
            last == "double"
            and not call.args
            and self._meaning(call) is None
            and not self._stays_on_host(call)
        ):
            yield self._note("float64", call)
        path = self._meaning(call)
        if path is None:
            return
        if path in _COMPILERS:
            if path == "torch.compile" and _name(keywords.get("dynamic")) == "True":
                yield self._note("dynamic-compile", call)
            self._compiles(call)
        elif path == _LOADER:
            yield from self._loader(call, keywords)
        elif path.rpartition(".")[2] == _DDP and path.startswith("torch.nn.parallel."):
            ids = keywords.get("device_ids")
            # A variable may well be None where there is no GPU.
            if isinstance(ids, cst.List):
                yield self._note("ddp-device-ids", call)
        elif path in _SIZES:
            for index, arg in enumerate(call.args):
                given = arg.keyword.value if arg.keyword is not None else index
                size = arg.value.value if isinstance(arg.value, cst.Integer) else "0"
                if given in _SIZES[path] or given in _SIZE_NAMES:
                    number = int(size, 0)
                    if number >= _SMALLEST_SIZE and number % _TILE:
                        self.sizes.append((call, number))
        elif _FORKERS.match(path) and call.args and _text(call.args[0].value) == "fork":
            yield self._note("fork", call)

    def _compiles(self, call: cst.Call) -> None:
        """Note the function that is compiled by a call or by a decorator with options."""
        above = self.tree.parent(call)
        if isinstance(above, cst.Decorator):
            function = self.tree.parent(above)
            if function is not None:
                self.compiled.append(function)
        elif call.args and isinstance(call.args[0].value, cst.Name):
            name = call.args[0].value
            owner = self.tree.scope(name).owner(name.value)
            for binding in owner.bindings[name.value] if owner is not None else ():
                if binding.kind == "def":
                    function = self.tree.parent(binding.node)
                    self.compiled.append(function if function is not None else binding.node)

    def _loader(self, call: cst.Call, keywords: dict[str, cst.BaseExpression]) -> Iterator[Note]:
        if any(a.star for a in call.args) or {"drop_last", "batch_sampler"} & keywords.keys():
            return
        positional = [a.value for a in call.args if a.keyword is None]
        batched = keywords.get("batch_size") or (positional[1] if len(positional) > 1 else None)
        if batched is None or self.tree.source(batched) in ("1", "None"):
            return
        shuffle = keywords.get("shuffle") or (positional[2] if len(positional) > 2 else None)
        statement = self.tree.statement(call)
        targets = statement.targets if isinstance(statement, cst.Assign) else ()
        into = " ".join(self.tree.source(t.target) for t in targets)
        if _name(shuffle) == "True" or "train" in into.lower():
            yield self._note("no-drop-last", call)

    def _optimizers(self) -> Iterator[Note]:
        seen: set[int] = set()
        for function in self.compiled:
            for node in descendants(function):
                if not (isinstance(node, cst.Call) and isinstance(node.func, cst.Attribute)):
                    continue
                stepping = node.func.value
                if node.func.attr.value == "optimizer_step" and node.args:
                    stepping = node.args[0].value
                elif node.func.attr.value != "step":
                    continue
                for made in self._values(stepping):
                    if id(made) in seen or not isinstance(made, cst.Call):
                        continue
                    path = self._meaning(made)
                    given = {a.keyword.value for a in made.args if a.keyword is not None}
                    stars = any(a.star for a in made.args)
                    if path in _OPTIMIZERS and "capturable" not in given and not stars:
                        seen.add(id(made))
                        yield self._note("not-capturable", made, path.rpartition(".")[2])

    # -- loops and tests ---------------------------------------------------------------------

    def _loop(self, loop: cst.For) -> Iterator[Note]:
        if not self._is_over_loader(loop.iter):
            return
        differentiated = {
            node.func.value.value
            for node in _within(loop.body)
            if isinstance(node, cst.Call)
            and isinstance(node.func, cst.Attribute)
            and node.func.attr.value == "backward"
            and isinstance(node.func.value, cst.Name)
        }
        reads = [
            (node, word)
            for node in _within(loop.body, self._is_now_and_then)
            if isinstance(node, cst.Call) and (word := self._read(node, differentiated))
        ]
        if reads:
            reads.sort(key=lambda pair: self.tree.span(pair[0]))
            shown = ", ".join(dict.fromkeys(f"`{word}`" for _, word in reads))
            yield self._note("host-read-in-loop", reads[0][0], shown)

    def _is_over_loader(self, node: cst.BaseExpression) -> bool:
        while isinstance(node, cst.Call) and node.args:
            func = node.func.attr if isinstance(node.func, cst.Attribute) else node.func
            if _name(func) not in _AROUND_A_LOADER:
                return self._meaning(node) in _LOADERS
            node = node.args[0].value
        if any(
            isinstance(v, cst.Call) and self._meaning(v) in _LOADERS for v in self._values(node)
        ):
            return True
        last = node.attr if isinstance(node, cst.Attribute) else node
        return _LOADER_NAME.search(_name(last)) is not None

    def _is_now_and_then(self, node: cst.CSTNode) -> bool:
        """Whether a block runs on some steps only: the test of it counts steps."""
        return isinstance(node, cst.If) and any(
            isinstance(below, cst.Modulo) for below in _operators(node.test)
        )

    def _read(self, call: cst.Call, differentiated: set[str]) -> str:
        """How a call reads a tensor on the host; empty where it does not."""
        func = call.func
        if isinstance(func, cst.Attribute) and func.attr.value in _READS and not call.args:
            inner = func.value
            # `x.cpu().numpy()` waits once.
            if isinstance(inner, cst.Call) and self._read(inner, differentiated):
                return ""
            return f".{func.attr.value}()"
        if _name(func) == "float" and len(call.args) == 1:
            return "float()" if _name(call.args[0].value) in differentiated else ""
        return ""

    def _rank_test(self, test: cst.If) -> Iterator[Note]:
        if not any(self._is_rank(node) for node in descendants(test.test)):
            return
        other = set() if test.orelse is None else set(self._collectives(test.orelse).values())
        for node, path in self._collectives(test.body).items():
            if path not in other:
                yield self._note("collective-under-rank-test", node, path.rpartition(".")[2])
                return

    def _is_rank(self, node: cst.CSTNode) -> bool:
        if isinstance(node, cst.Call):
            return _RANKS.fullmatch(self._meaning(node) or "") is not None
        if isinstance(node, cst.Name):
            made = [v for v in self._values(node) if isinstance(v, cst.Call)]
            if any(_RANKS.fullmatch(self._meaning(v) or "") for v in made):
                return True
            return _RANK_NAME.match(node.value) is not None
        return False

    def _collectives(self, block: cst.CSTNode) -> dict[cst.CSTNode, str]:
        return {
            node: path
            for node in _within(block)
            if isinstance(node, cst.Call)
            and (path := self._meaning(node))
            and _COLLECTIVES.fullmatch(path)
        }


def _within(
    block: cst.CSTNode, skipped: Callable[[cst.CSTNode], bool] = lambda _: False
) -> Iterator[cst.CSTNode]:
    """The nodes that run with a block: without functions that are only defined there."""
    stack = [block]
    while stack:
        top = stack.pop()
        if isinstance(top, (cst.FunctionDef, cst.Lambda, cst.ClassDef)) or skipped(top):
            continue
        yield top
        stack.extend(children(top))


def _operators(node: cst.CSTNode) -> Iterator[cst.CSTNode]:
    return (n.operator for n in descendants(node) if isinstance(n, cst.BinaryOperation))


def _name(node: cst.CSTNode | None) -> str:
    return node.value if isinstance(node, cst.Name) else ""


def _text(node: cst.CSTNode) -> str:
    value = node.evaluated_value if isinstance(node, cst.SimpleString) else ""
    return value if isinstance(value, str) else ""
