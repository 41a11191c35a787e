"""What code may do so that several processes run it as one process of SPMD did.

Only what is known is let pass: calls that do the same in each process, or whose effect can be left
to the first one, and modules that treat the samples of a batch one by one. Anything else is an
`Obstacle`.
"""

from __future__ import annotations

import re

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.nodes import descendants
from xla2tpu.scopes import Binding, Scope
from xla2tpu.spmdsamples import DTYPES, FUNCTIONS, LAYERS, LOSSES, Obstacle, Samples, argument
from xla2tpu.syntax import small_statement_alone

GUARDED = frozenset({"builtins.print", "torch.save"})
_ALIKE = re.compile(
    r"builtins\.(abs|bool|dict|divmod|enumerate|float|getattr|hasattr|int|isinstance|len|list|max"
    r"|min|range|reversed|round|set|sorted|str|sum|super|tuple|zip|\w+Error)\Z"
    r"|torch\.(nn\.(?!parallel|DataParallel|SyncBatchNorm)|optim\.)[\w.]+\Z"
    r"|torch\.(device|manual_seed|no_grad|inference_mode|tensor|as_tensor|arange|linspace|zeros|ones"
    r"|full|eye|empty|cat|stack|zeros_like|ones_like|sin|cos|exp|sqrt|tanh|sigmoid|argmax|softmax"
    r"|rand|randn|randint|randperm|normal|Generator|load|set_default_dtype|set_printoptions"
    r"|set_float32_matmul_precision|accelerator\.(synchronize|current_accelerator))\Z"
    r"|torch\.utils\.data\.(DataLoader|TensorDataset|Subset|ConcatDataset|random_split)\Z"
    r"|torchvision\.datasets\.\w+\Z"
    r"|torchvision\.transforms\.(CenterCrop|Compose|Grayscale|Normalize|Pad|Resize|ToTensor)\Z"
    r"|numpy\.(arange|array|asarray|zeros|ones|linspace|load|mean|sqrt|random\.default_rng)\Z"
    r"|(math|itertools)\.\w+\Z|argparse\.\w+\Z|time\.(time|perf_counter)\Z"
    r"|os\.(environ\.get|getenv|path\.\w+)\Z"
)
_RANDOM = re.compile(
    r"torch\.(rand|randn|randint|randperm|normal)\Z|.*\.random_split\Z"
    r"|torch\.nn\.functional\.(\w*dropout\w*|gumbel_softmax|rrelu_?)\Z"
)
# The parameters of a model are sent to all processes before its optimizer is made.
_INITS = re.compile(r"torch\.nn\.init\.(?!(zeros|ones|constant|eye|dirac)_\Z)\w+\Z")
_READS = frozenset({"numpy.load", "os.path.exists", "os.path.isfile", "torch.load"})
_OF_PROCESS = re.compile(r"RANK|WORLD|MASTER|LOCAL|HOST|NODE|TPU")
# Methods that change nothing outside of the process, whatever they are called on.
_METHODS = frozenset(
    {"abs", "add_argument", "append", "argmax", "backward", "cpu", "detach", "eq", "eval",
     "exp", "extend", "flatten", "float", "format", "get", "get_last_lr", "item", "items",
     "join", "keys", "long", "manual_seed", "max", "mean", "min", "mul", "named_parameters",
     "numel", "numpy", "parameters", "parse_args", "permute", "pow", "requires_grad_",
     "reshape", "size", "split", "sqrt", "square", "squeeze", "startswith", "state_dict",
     "step", "strip", "sum", "to", "tolist", "train", "unsqueeze", "values", "view",
     "zero_grad"}
)  # fmt: skip
# What may be evaluated on the first process alone.
_READ = frozenset(
    {"cpu", "detach", "format", "get_last_lr", "item", "items", "join", "mean", "numel",
     "size", "state_dict", "sum", "tolist"}
)  # fmt: skip
_READ_CALLS = re.compile(r"builtins\.\w+\Z|(math|time|os\.path)\.\w+\Z|os\.(environ\.get|getenv)\Z")

_HANDED_OVER = re.compile(
    r"builtins\.(print|open|exec|eval|compile|input|__import__)\Z|torch\.save\Z"
)


class Code(Samples):
    """Checks the code of one file.

    ``guards`` are the statements to leave to the first process, ``reached`` the functions and
    classes that were looked into, ``random`` the calls that draw numbers, ``drawn`` those that draw
    them from a generator of their own, ``read`` those that read files.
    """

    def __init__(self, builder: Builder) -> None:
        super().__init__(builder)
        self.guards: list[cst.Expr] = []
        self.reached: dict[int, cst.CSTNode] = {}
        self.random: list[cst.Call] = []
        self.drawn: list[cst.Call] = []
        self.read: list[cst.Call] = []
        self._modules: set[int] = set()

    # -- the same in each process -------------------------------------------------------------

    def alike(self, node: cst.CSTNode) -> None:
        """Let code pass that does the same in each process, but for what it prints and saves."""
        for below in descendants(node):
            match below:
                case cst.Call():
                    self._call(below)
                case cst.Name():
                    self._name(below)
                case cst.Attribute():
                    self._handed_over(below)
                case (
                    cst.AssignTarget(target=cst.Attribute(value=value))
                    | cst.AugAssign(target=cst.Attribute(value=value))
                ):
                    if not self.is_self(value):
                        raise Obstacle(below, "it changes a part of an object, perhaps the model")
                case cst.FunctionDef() | cst.ClassDef() if self._is_inside(below):
                    raise Obstacle(below, "functions in functions are not followed")
                case cst.Subscript():
                    held = self.builder.meaning(below.value, self.tree.scope(below))
                    if held == "os.environ" and _OF_PROCESS.search(self.tree.source(below)):
                        raise Obstacle(below, "it is another one in each process")
                case cst.With():
                    for item in below.items:
                        if not isinstance(item.item, cst.Call) or item.asname is not None:
                            raise Obstacle(below, "what the `with` statement does is not known")
                case (
                    cst.Await()
                    | cst.Yield()
                    | cst.Global()
                    | cst.Nonlocal()
                    | cst.Try()
                    | cst.Del()
                ):
                    raise Obstacle(below, "statements of this kind are not followed")

    def _is_inside(self, node: cst.CSTNode) -> bool:
        return any(isinstance(a, cst.FunctionDef) for a in self.tree.ancestors(node))

    def _name(self, node: cst.Name) -> None:
        """A function that is handed over is called by somebody."""
        parent = self.tree.parent(node)
        if isinstance(parent, cst.Call) and parent.func is node:
            return
        for load, scope in self.tree.loads.get(node.value, []):
            if load is not node:
                continue
            path = self.builder.meaning(node, scope) or ""
            if _HANDED_OVER.match(path) or (
                not isinstance(parent, (cst.Attribute, cst.Decorator)) and self._is_foreign(node)
            ):
                raise Obstacle(node, "who calls it cannot be told")
            if scope.owner(node.value) is self.tree.root:
                for binding in self.tree.root.bindings[node.value]:
                    if binding.kind in ("def", "class") and binding.statement is not None:
                        self.definition(binding.statement)

    def _handed_over(self, node: cst.Attribute) -> None:
        """A function of torch that is handed over may be used as a layer."""
        parent = self.tree.parent(node)
        if isinstance(parent, (cst.Attribute, cst.Decorator)) or (
            isinstance(parent, cst.Call) and parent.func is node
        ):
            return
        if self._is_foreign(node):
            raise Obstacle(node, "who calls it cannot be told")

    def _is_foreign(self, node: cst.Name | cst.Attribute) -> bool:
        """Whether something of torch is handed over that is not known as a layer."""
        scope = self.tree.scope(node)
        path = self.builder.meaning(node, scope) or ""
        if id(node) in self.tree.annotations or not path.startswith(("torch.", "numpy.")):
            return False
        if isinstance(node, cst.Name) and "()" in path:
            return False  # a value that such a call made
        return path.rpartition(".")[2] not in LAYERS | FUNCTIONS | DTYPES

    def _call(self, call: cst.Call) -> None:
        site = self.builder.sites.get(id(call))
        if site is not None:
            return  # the rule of the name knows what becomes of it
        scope = self.tree.scope(call)
        path = self.builder.callee(call, scope)
        if path in GUARDED:
            self._guard(call)
        elif path is not None and _ALIKE.match(path):
            self._known(call, path)
        elif (
            path == "functools.partial"
            and call.args
            and id(call.args[0].value) in (self.builder.sites)
        ):
            return  # a policy of FSDP
        elif not self._own(call, scope):
            raise Obstacle(
                call, f"what `{self.told(call.func)}` does in several processes is not known"
            )

    def _known(self, call: cst.Call, path: str) -> None:
        if _RANDOM.match(path):
            self._draws(call)
        if _INITS.match(path) and not any(
            isinstance(a, cst.ClassDef) for a in self.tree.ancestors(call)
        ):
            self.random.append(call)
        if path.endswith(".DataLoader"):
            shuffle = argument(call, 2, "shuffle")
            if shuffle is not None and self.tree.source(shuffle.value) not in ("False", "None"):
                self.random.append(call)
        if path == "builtins.getattr" and call.args:
            holder = call.args[0].value
            if self.builder.meaning(holder, self.tree.scope(holder)) is not None:
                raise Obstacle(call, "which layer or function it is cannot be told")
        if path in _READS:
            self.read.append(call)
        head, _, name = path.rpartition(".")
        if head.startswith("torch.nn") and name[:1].isupper() and name not in LOSSES:
            self.layer(call, path)
        if path in ("os.environ.get", "os.getenv") and _OF_PROCESS.search(self.tree.source(call)):
            raise Obstacle(call, "it is another one in each process")
        if path == "numpy.random.default_rng" and not call.args:
            raise Obstacle(call, "each process would draw other numbers: give it a seed")
        if path.startswith("torchvision.datasets."):
            download = argument(call, None, "download")
            if download is not None and self.tree.source(download.value) != "False":
                raise Obstacle(call, "each process would download the data: do it before")

    def _draws(self, call: cst.Call) -> None:
        """Numbers may be drawn while things are made, not for each sample or step."""
        method = next(
            (a for a in self.tree.ancestors(call) if isinstance(a, cst.FunctionDef)), None
        )
        of_class = method is not None and self.tree.scope(method).kind == "class"
        looped = any(isinstance(a, (cst.For, cst.While)) for a in self.tree.ancestors(call))
        if looped or (of_class and method is not None and method.name.value != "__init__"):
            raise Obstacle(call, "all processes would draw the same numbers for their samples")
        if argument(call, None, "generator") is None:
            self.random.append(call)
        else:
            self.drawn.append(call)

    def _own(self, call: cst.Call, scope: Scope) -> bool:
        """Whether a call is one of the file's own functions, of a value, or of a known method."""
        func = call.func
        if isinstance(func, cst.Attribute):
            path = self.builder.meaning(func, scope) or ""
            plain = not path or "SpmdFullyShardedDataParallel()" in path
            own = scope.enclosing_class() is not None and (
                self.is_self(func) or self.tree.source(func) == "super().__init__"
            )
            return plain and (func.attr.value in _METHODS or own)
        if isinstance(func, cst.Call):
            path = self.builder.callee(func, scope) or ""
            return path.startswith("torch.nn.")
        if not isinstance(func, cst.Name):
            return False
        owner = scope.owner(func.value)
        bindings = owner.bindings[func.value] if owner is not None else []
        for binding in bindings:
            if binding.kind in ("def", "class") and binding.scope.parent is None:
                assert binding.statement is not None
                self.definition(binding.statement)
            elif binding.kind == "assign" and binding.scope.kind == "function":
                if not isinstance(binding.value, cst.Call):
                    return False
            elif binding.kind != "param":
                return False
        return bool(bindings)

    def definition(self, node: cst.CSTNode) -> None:
        """Let a function or class pass, once: what it does is looked at wherever it is called."""
        if id(node) in self.reached:
            return
        self.reached[id(node)] = node
        if isinstance(node, (cst.FunctionDef, cst.ClassDef)) and node.decorators:
            for decorator in node.decorators:
                path = self.builder.meaning(
                    decorator.decorator.func
                    if isinstance(decorator.decorator, cst.Call)
                    else decorator.decorator,
                    self.tree.root,
                )
                if path not in ("torch.no_grad", "torch.inference_mode"):
                    raise Obstacle(decorator, "what the decorator does is not known")
        if isinstance(node, cst.ClassDef):
            for base in node.bases:
                path = self.builder.meaning(base.value, self.tree.root)
                if path == "torch.nn.Module":
                    self.module(node)
                    return
                if path not in ("torch.utils.data.Dataset", "builtins.object"):
                    raise Obstacle(node, "the class derives from one that is not known")
            for line in node.body.body:
                if not isinstance(line, cst.FunctionDef):
                    continue
                if line.name.value == "__call__":
                    raise Obstacle(line, "who calls its objects cannot be told")
                for below in descendants(line.body):
                    kept = isinstance(below, (cst.AssignTarget, cst.AugAssign)) and isinstance(
                        below.target, cst.Attribute
                    )
                    if kept and line.name.value != "__init__":
                        raise Obstacle(below, "each process keeps what it made of its own samples")
        if isinstance(node, cst.FunctionDef):
            self._defaults(node)
        self.alike(node.body if isinstance(node, (cst.FunctionDef, cst.ClassDef)) else node)

    def _defaults(self, node: cst.FunctionDef) -> None:
        """What a function is given where its caller gives nothing."""
        for param in descendants(node.params):
            if isinstance(param, cst.Param) and param.default is not None:
                self.alike(param.default)

    def may_guard(self, call: cst.Call) -> bool:
        """Note a statement for the first process where nothing in it needs the other ones."""
        try:
            self._guard(call)
        except Obstacle:
            return False
        return True

    def _guard(self, call: cst.Call) -> None:
        """Note a statement for the first process; nothing in it may need the other ones."""
        statement = self.tree.parent(call)
        line = self.tree.parent(statement) if statement is not None else None
        if (
            not isinstance(statement, cst.Expr)
            or not isinstance(line, cst.SimpleStatementLine)
            or not small_statement_alone(self.tree, statement)
        ):
            raise Obstacle(call, "it has to stand on a line of its own, for the first process")
        if any(isinstance(a, cst.ClassDef) for a in self.tree.ancestors(call)):
            raise Obstacle(call, "it may be run by a worker of a loader, which has no rank")
        scope = self.tree.scope(call)
        for below in descendants(call):
            if not isinstance(below, cst.Call) or below is call:
                continue
            method = isinstance(below.func, cst.Attribute) and below.func.attr.value in _READ
            path = self.builder.callee(below, scope) or ""
            if not _READ_CALLS.match(path) and not (method and not path):
                raise Obstacle(
                    below, "it would be evaluated by the first process alone: give it a name before"
                )
        if all(g is not statement for g in self.guards):
            self.guards.append(statement)

    # -- modules ------------------------------------------------------------------------------

    def model(self, node: cst.BaseExpression, scope: Scope) -> None:
        """Let an expression pass that makes a model which treats the samples one by one."""
        if isinstance(node, cst.Call):
            func = node.func
            moved = isinstance(func, cst.Attribute) and func.attr.value in ("to", "train")
            if moved and isinstance(func, cst.Attribute) and isinstance(func.value, cst.Call):
                self.model(func.value, scope)
                return
            path = self.builder.callee(node, scope) or ""
            if path.startswith("torch.nn."):
                self.layer(node, path)
                for arg in node.args:
                    if isinstance(arg.value, cst.Call):
                        self.model(arg.value, scope)
                return
            if isinstance(func, cst.Name) and scope.owner(func.value) is self.tree.root:
                bindings = self.tree.root.bindings[func.value]
                if len(bindings) == 1 and isinstance(bindings[0].statement, cst.ClassDef):
                    self._module_of(bindings[0])
                    return
        raise Obstacle(
            node,
            "the model is not in sight: layers such as BatchNorm would see a part of the batch",
        )

    def _module_of(self, binding: Binding) -> None:
        assert isinstance(binding.statement, cst.ClassDef)
        bases = [self.builder.meaning(b.value, self.tree.root) for b in binding.statement.bases]
        if bases != ["torch.nn.Module"]:
            raise Obstacle(binding.statement, "the model is not a plain torch.nn.Module")
        self.module(binding.statement)

    def module(self, node: cst.ClassDef) -> None:
        """Let a class of modules pass whose layers and methods treat the samples one by one."""
        if id(node) in self._modules:
            return
        self._modules.add(id(node))
        self.reached[id(node)] = node
        for statement in node.body.body:
            if isinstance(statement, cst.FunctionDef):
                if statement.decorators or statement.asynchronous is not None:
                    raise Obstacle(statement, "the method has a decorator, or is asynchronous")
                self._defaults(statement)
                if statement.name.value == "__init__":
                    self._constructor(statement)
                else:
                    self.forward(statement)
            elif any(isinstance(n, cst.Call) for n in descendants(statement)):
                raise Obstacle(statement, "the class calls something while it is made")

    def _constructor(self, node: cst.FunctionDef) -> None:
        self.alike(node.body)
        for below in descendants(node.body):
            func = below.func if isinstance(below, cst.Call) else None
            hooks = isinstance(func, cst.Attribute) and func.attr.value.endswith("hook")
            if hooks or isinstance(below, cst.Lambda):
                raise Obstacle(below, "what it does to a batch is not followed")
            if isinstance(below, cst.Name) and self._is_function(below):
                raise Obstacle(below, "what it does to a batch is not followed")

    def _is_function(self, node: cst.Name) -> bool:
        """Whether a name is a function of the file, or one that is imported by itself."""
        for load, scope in self.tree.loads.get(node.value, []):
            if load is node and scope.owner(node.value) is self.tree.root:
                path = self.builder.meaning(node, scope) or ""
                known = path.rpartition(".")[2] in LAYERS | FUNCTIONS
                kinds = {b.kind for b in self.tree.root.bindings[node.value]}
                return "def" in kinds or ("from" in kinds and not known)
        return False
