"""What a program of SPMD may do with a batch, of which each process has a part.

Operations that treat the samples one by one are let pass, and losses that are means over them.
Anything else is an `Obstacle`.
"""

from __future__ import annotations

import re

import libcst as cst

from xla2tpu.changes import Builder
from xla2tpu.nodes import descendants
from xla2tpu.scopes import Binding
from xla2tpu.syntax import is_constant

# Layers that treat samples one by one, and draw nothing at random after they are made.
LAYERS = frozenset(
    {"AdaptiveAvgPool1d", "AdaptiveAvgPool2d", "AdaptiveMaxPool2d", "AvgPool1d", "AvgPool2d",
     "Conv1d", "Conv2d", "Conv3d", "ConvTranspose2d", "ELU", "Embedding", "Flatten", "GELU",
     "GroupNorm", "Hardswish", "Identity", "LayerNorm", "LeakyReLU", "Linear", "MaxPool1d",
     "MaxPool2d", "Mish", "ModuleDict", "ModuleList", "Parameter", "RMSNorm", "ReLU",
     "Sequential", "SiLU", "Sigmoid", "Softplus", "Tanh", "ZeroPad2d"}
)  # fmt: skip
DTYPES = frozenset(
    {"bfloat16", "bool", "double", "float", "float16", "float32", "float64", "half", "int", "int32",
     "int64", "long", "pi", "uint8"}
)  # fmt: skip
FUNCTIONS = frozenset(
    {"adaptive_avg_pool2d", "avg_pool2d", "elu", "exp", "gelu", "interpolate", "layer_norm",
     "leaky_relu", "log", "max_pool2d", "pad", "relu", "sigmoid", "silu", "softplus", "sqrt",
     "square", "tanh"}
)  # fmt: skip
_PLAIN_METHODS = frozenset(
    {"abs", "bfloat16", "bool", "clamp", "contiguous", "exp", "float", "log", "long",
     "masked_fill", "pow", "relu", "sigmoid", "sqrt", "square", "tanh", "to"}
)  # fmt: skip
# With the dimension as their first argument (or second, as functions), which must not be the batch.
_OF_DIMENSION = frozenset(
    {"amax", "amin", "flatten", "log_softmax", "mean", "softmax", "squeeze", "sum", "unbind",
     "unsqueeze"}
)  # fmt: skip
_SHAPED = frozenset({"reshape", "view"})
LOSSES = frozenset(
    {"BCELoss", "BCEWithLogitsLoss", "CrossEntropyLoss", "L1Loss", "MSELoss", "NLLLoss"}
)
LOSSFUNCTIONS = frozenset(
    {"binary_cross_entropy", "binary_cross_entropy_with_logits", "cross_entropy", "l1_loss",
     "mse_loss", "nll_loss"}
)  # fmt: skip


class Obstacle(Exception):
    """Why a program is not rewritten as one unit: the place, and what stands against it."""

    def __init__(self, node: cst.CSTNode, why: str) -> None:
        super().__init__(why)
        self.node, self.why = node, why


def argument(call: cst.Call, index: int | None, name: str) -> cst.Arg | None:
    """The argument of a call by its position or keyword; an obstacle where stars hide it."""
    for position, arg in enumerate(call.args):
        if arg.star:
            raise Obstacle(call, "starred arguments hide what is given")
        if arg.keyword is not None:
            if arg.keyword.value == name:
                return arg
        elif position == index:
            return arg
    return None


class Samples:
    """Checks what the code of one file does with the samples of a batch."""

    def __init__(self, builder: Builder) -> None:
        self.builder, self.tree = builder, builder.tree

    def told(self, node: cst.CSTNode) -> str:
        """The source of a node in a message, on one line."""
        return " ".join(self.tree.source(node).split())

    def layer(self, call: cst.Call, path: str) -> None:
        name = path.rpartition(".")[2]
        if name not in LAYERS:
            raise Obstacle(call, f"`{name}` may depend on the whole batch, or draws at random")
        if name == "Flatten" and call.args:
            raise Obstacle(call, "it may flatten the batch")
        if name == "Embedding":
            for arg in call.args[2:]:
                if arg.keyword is None or arg.keyword.value not in ("padding_idx", "dtype"):
                    raise Obstacle(arg, "the embedding depends on the samples that are seen")

    def forward(self, node: cst.FunctionDef) -> None:
        if node.name.value.startswith("__"):
            raise Obstacle(node, "special methods of a module are not followed")
        for below in descendants(node.body):
            match below:
                case cst.Call():
                    self._operation(below)
                case cst.Expr(value=cst.Call()):
                    raise Obstacle(below, "the model keeps something of a batch")
                case cst.Attribute() if below.attr.value in ("T", "H", "mT"):
                    raise Obstacle(below, "it may mix the samples of the batch")
                case cst.Attribute() if below.attr.value == "shape":
                    self._shape_parts(below)
                case cst.Subscript():
                    self._indexed(below)
                case cst.BinaryOperation(operator=cst.MatrixMultiply()):
                    if not self.is_self(below.right) and not self._is_deep(below.left):
                        raise Obstacle(below, "it may mix the samples of the batch")
                case cst.BinaryOperation():
                    self._paired(below, below.left, below.right)
                case cst.Comparison():
                    for target in below.comparisons:
                        self._paired(below, below.left, target.comparator)
                case cst.For() | cst.CompFor():
                    if not self._is_of_layers(below.iter):
                        raise Obstacle(below, "it may run over the samples of the batch")
                case cst.Assign(targets=[cst.AssignTarget(target=cst.Tuple())]):
                    if not isinstance(below.value, (cst.Call, cst.Attribute, cst.Tuple)):
                        raise Obstacle(below, "it may take the batch apart")
                case cst.AssignTarget(target=cst.Attribute() | cst.Subscript()):
                    raise Obstacle(below, "the model keeps something of a batch")
                case cst.AugAssign(target=cst.Attribute() | cst.Subscript()):
                    raise Obstacle(below, "the model keeps something of a batch")
                case cst.With() | cst.Try() | cst.Global() | cst.Nonlocal() | cst.FunctionDef():
                    raise Obstacle(below, "statements of this kind are not followed")
            if isinstance(below, cst.BaseExpression) and self._may_ask_batch_size(below):
                self._sized(below)

    def _is_of_layers(self, node: cst.BaseExpression) -> bool:
        """Whether a loop runs over numbers, or over parts of the module."""
        if isinstance(node, cst.Call):
            path = self.builder.callee(node, self.tree.scope(node))
            if path == "builtins.range":
                return True
            if path in ("builtins.enumerate", "builtins.zip"):
                return all(self._is_of_layers(a.value) for a in node.args)
        return self.is_self(node)

    def _paired(
        self, node: cst.CSTNode, left: cst.BaseExpression, right: cst.BaseExpression
    ) -> None:
        """With a dimension more, samples of one side may meet all those of the other."""
        for one, other in ((left, right), (right, left)):
            plain = is_constant(other) or (isinstance(other, cst.Attribute) and self.is_self(other))
            if not plain and self._is_reshaped(one):
                raise Obstacle(node, "it may pair the samples of the batch with one another")

    def _is_widened(self, node: cst.BaseExpression | None, seen: frozenset[str]) -> bool:
        """Whether a dimension was put into a value, or into what it is made of."""
        match node:
            case cst.Call(func=cst.Attribute(attr=cst.Name(value="squeeze" | "flatten"))):
                return False
            case cst.Call(func=func, args=args):
                if isinstance(func, cst.Attribute) and func.attr.value == "unsqueeze":
                    return True
                held = [func.value] if isinstance(func, cst.Attribute) else []
                return any(self._is_widened(n, seen) for n in [*held, *(a.value for a in args)])
            case cst.BinaryOperation():
                return self._is_widened(node.left, seen) or self._is_widened(node.right, seen)
            case cst.Subscript():
                widens = any(self.tree.source(e.slice) == "None" for e in node.slice)
                return widens or self._is_widened(node.value, seen)
            case cst.Name() if node.value not in seen:
                bindings = self.tree.scope(node).bindings.get(node.value, [])
                return any(self._is_widened(b.value, seen | {node.value}) for b in bindings)
        return False

    def _is_reshaped(self, node: cst.BaseExpression | None) -> bool:
        if self._is_widened(node, frozenset()):
            return True
        match node:
            case cst.Call(func=cst.Attribute(attr=cst.Name(value=name))):
                return name in _SHAPED
            case cst.Name():
                scope = self.tree.scope(node)
                bindings = scope.bindings.get(node.value, [])
                return any(
                    self._is_reshaped(b.value)
                    for b in bindings
                    if not isinstance(b.value, cst.Name)
                )
        return False

    def _is_deep(self, node: cst.BaseExpression) -> bool:
        """Whether a value has three dimensions or more, of which the first is the batch's."""
        if isinstance(node, cst.Name):
            scope = self.tree.scope(node)
            bindings = scope.bindings.get(node.value, [])
            values = [b.value for b in bindings]
            return bool(values) and all(
                isinstance(v, cst.Call) and self._is_deep(v) for v in values
            )
        source = self.tree.source(node)
        return re.search(r"\.transpose\((1, ?[2-9]|[2-9], ?[1-9])\)\Z", source) is not None

    def _sized(self, node: cst.BaseExpression) -> None:
        """The size of the batch may be given to a new shape, and to nothing else."""
        parent = self.tree.parent(node)
        if self._is_new_size(node):
            return
        if isinstance(parent, cst.Assign) and len(parent.targets) == 1:
            target = parent.targets[0].target
            if isinstance(target, cst.Name) and self._only_sizes(target):
                return
        raise Obstacle(node, "it depends on how large the batch is")

    def _only_sizes(self, target: cst.Name) -> bool:
        loads = self.tree.loads_of(target.value, self.tree.scope(target))
        return all(self._is_new_size(load) for load, _ in loads)

    def _is_new_size(self, node: cst.BaseExpression) -> bool:
        arg = self.tree.parent(node)
        call = self.tree.parent(arg) if isinstance(arg, cst.Arg) else None
        func = call.func if isinstance(call, cst.Call) else None
        return isinstance(func, cst.Attribute) and func.attr.value in _SHAPED

    def _shape_parts(self, node: cst.BaseExpression) -> None:
        """``x.shape`` is taken apart, and its first part given to new shapes alone."""
        parent = self.tree.parent(node)
        target = parent.targets[0].target if isinstance(parent, cst.Assign) else None
        first = target.elements[0].value if isinstance(target, cst.Tuple) else None
        if isinstance(parent, cst.Subscript) and parent.value is node:
            if re.fullmatch(r".*\[([0-9]|-1)\]", self.tree.source(parent)):
                return
        elif isinstance(first, cst.Name) and self._only_sizes(first):
            return
        raise Obstacle(node, "it depends on how large the batch is")

    def _indexed(self, node: cst.Subscript) -> None:
        base = node.value
        if isinstance(base, cst.Attribute) and base.attr.value == "shape":
            self._shape_parts(base)
            return
        if self.is_self(base):
            return
        first = node.slice[0].slice
        whole = isinstance(first, cst.Slice) and first.lower is None and first.upper is None
        key = isinstance(first, cst.Index) and isinstance(first.value, cst.SimpleString)
        if not (whole and getattr(first, "step", None) is None) and not key:
            raise Obstacle(node, "it may pick samples out of the batch")

    def is_self(self, node: cst.BaseExpression) -> bool:
        while isinstance(node, (cst.Attribute, cst.Subscript)):
            node = node.value
        owner = self.tree.scope(node).enclosing_class()
        return owner is not None and isinstance(node, cst.Name) and node.value == owner[1]

    def _operation(self, call: cst.Call) -> None:
        """Let an operation on a batch pass that treats the samples one by one."""
        func = call.func
        scope = self.tree.scope(call)
        path = self.builder.callee(call, scope)
        if path is not None and path.startswith("builtins."):
            if path.rpartition(".")[2] not in ("len", "range", "enumerate", "zip", "int", "float"):
                raise Obstacle(call, f"`{self.told(func)}` in a forward is not followed")
            return
        if path is not None and path.startswith(("torch.nn.functional.", "torch.")):
            name = path.rpartition(".")[2]
            if path.rpartition(".")[0] not in ("torch", "torch.nn.functional"):
                raise Obstacle(call, f"`{path}` may depend on the whole batch")
            self._named(call, name, 1)
            return
        if isinstance(func, (cst.Attribute, cst.Subscript)) and self.is_self(func):
            if isinstance(func, cst.Attribute) and func.attr.value.endswith("_"):
                raise Obstacle(call, "the model keeps something of a batch")
            return  # a layer of the module, or a method of it
        if isinstance(func, cst.Attribute) and path is None:
            self._named(call, func.attr.value, 0)
            return
        if isinstance(func, cst.Name) and scope.owner(func.value) is scope:
            bindings = scope.bindings[func.value]
            if all(isinstance(self.tree.statement(b.node), cst.For) for b in bindings):
                return  # a layer out of a list of them
        raise Obstacle(call, f"`{self.told(func)}` may depend on the whole batch")

    def _named(self, call: cst.Call, name: str, shift: int) -> None:
        """Judge an operation by its name; ``shift`` is 1 where the tensor is the first argument."""
        if name in (FUNCTIONS if shift else _PLAIN_METHODS):
            return
        if name == "size" and not shift:
            if not call.args:
                self._shape_parts(call)
            return
        if name == "linear" and shift:
            weight = argument(call, 1, "weight")
            if weight is not None and self.is_self(weight.value):
                return
        elif name == "scaled_dot_product_attention":
            query, drop = argument(call, 0, "query"), argument(call, 4, "dropout_p")
            if query is not None and self._is_deep(query.value) and drop is None:
                return
        elif name in _OF_DIMENSION:
            arg = argument(call, shift, "start_dim" if name == "flatten" else "dim")
            last = arg is not None and "-1" in self.tree.source(arg.value)
            if last and name not in ("squeeze", "unsqueeze") and self._may_be_flat(call, shift):
                raise Obstacle(call, f"the last dimension of `{name}` may be that of the batch")
            if arg is not None and self._is_inner(arg.value):
                return
        elif name in ("cat", "stack") and shift:
            arg = argument(call, 1, "dim")
            if arg is not None and self._is_inner(arg.value):
                return
        elif name == "chunk":
            arg = argument(call, shift + 1, "dim")
            if arg is not None and self._is_inner(arg.value):
                return
        elif name == "transpose":
            both = [argument(call, shift, "dim0"), argument(call, shift + 1, "dim1")]
            if all(a is not None and self._is_inner(a.value) for a in both):
                return
        elif name == "permute" and not shift:
            first = argument(call, 0, "dims")
            if first is not None and self.tree.source(first.value) == "0":
                return
        elif name in _SHAPED and not shift and self._keeps_batch(call):
            return
        raise Obstacle(call, f"`{name}` may depend on the whole batch")

    def _may_be_flat(self, call: cst.Call, shift: int) -> bool:
        """Whether a dimension was taken from a tensor, so that the batch's may be its last one."""
        made = call.func.value if isinstance(call.func, cst.Attribute) and not shift else None
        if shift and call.args:
            made = call.args[0].value
        if made is None:
            return False
        values = [made]
        if isinstance(made, cst.Name):
            bindings = self.tree.scope(made).bindings.get(made.value, [])
            values += [b.value for b in bindings if b.value is not None]
        return any(".squeeze(" in self.tree.source(v) for v in values)

    def _is_inner(self, node: cst.BaseExpression) -> bool:
        """Whether a dimension, or each of several, is a literal that is not the batch's."""
        if isinstance(node, (cst.Tuple, cst.List)):
            return all(self._is_inner(e.value) for e in node.elements)
        return re.fullmatch(r"[1-9]\d*|-1", self.tree.source(node)) is not None

    def _keeps_batch(self, call: cst.Call) -> bool:
        """Whether the first size of a new shape is that of the batch."""
        if len(call.args) < 2 or any(a.star or a.keyword for a in call.args):
            return False
        first = call.args[0].value
        if isinstance(first, cst.Name):
            scope = self.tree.scope(call)
            owner = scope.owner(first.value)
            bindings = owner.bindings[first.value] if owner is scope else []
            return len(bindings) == 1 and self._is_batch_size(bindings[0])
        return self._asks_batch_size(first) or (
            self.tree.source(first) == "-1"
            and all(
                is_constant(a.value) and "-" not in self.tree.source(a.value) for a in call.args[1:]
            )
        )

    def _is_batch_size(self, binding: Binding) -> bool:
        statement = binding.statement
        if binding.kind == "assign" and binding.value is not None:
            return self._asks_batch_size(binding.value)
        if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            return False
        target = statement.targets[0].target
        return (
            isinstance(target, cst.Tuple)
            and target.elements[0].value is binding.node
            and self.tree.source(statement.value).endswith((".shape", ".size()"))
        )

    def _asks_batch_size(self, node: cst.BaseExpression) -> bool:
        return (
            re.fullmatch(r"\w+\.(size\(0\)|shape\[0\])|len\(\w+\)", self.tree.source(node))
            is not None
        )

    def _may_ask_batch_size(self, node: cst.BaseExpression) -> bool:
        """Whether it is a size that cannot be told from that of the batch."""
        index: cst.CSTNode
        match node:
            case cst.Call(func=cst.Name(value="len"), args=[arg]):
                return not self.is_self(arg.value)
            case cst.Call(func=cst.Attribute(value=base, attr=cst.Name(value="size")), args=[arg]):
                index = arg.value
            case cst.Subscript(
                value=cst.Attribute(value=base, attr=cst.Name(value="shape")), slice=[element]
            ):
                index = element.slice
            case _:
                return False
        inner = re.fullmatch(r"[1-9]\d*|-1", self.tree.source(index)) is not None
        return not inner and not self.is_self(base)

    def per_sample(self, node: cst.BaseExpression, local: set[str], model: str) -> None:
        """Let an expression over names of one process' batch pass, sample by sample."""
        match node:
            case cst.Name():
                if node.value not in local:
                    self._whole(node)
            case cst.Integer() | cst.Float() | cst.SimpleString():
                return
            case cst.Tuple() | cst.List():
                for element in node.elements:
                    self.per_sample(element.value, local, model)
            case cst.BinaryOperation(
                operator=cst.Add() | cst.Subtract() | cst.Multiply() | cst.Divide() | cst.Power()
            ):
                self._paired(node, node.left, node.right)
                self.per_sample(node.left, local, model)
                self.per_sample(node.right, local, model)
            case cst.UnaryOperation():
                self.per_sample(node.expression, local, model)
            case cst.Subscript():
                self._indexed(node)
                self.per_sample(node.value, local, model)
            case cst.Call(func=cst.Name(value=name)) if name == model:
                for arg in node.args:
                    if arg.star:
                        raise Obstacle(node, "starred arguments hide what is given")
                    self.per_sample(arg.value, local, model)
            case cst.Call() if id(node) not in self.builder.sites:
                path = self.builder.callee(node, self.tree.scope(node)) or ""
                if self._may_ask_batch_size(node) or path.startswith("builtins."):
                    raise Obstacle(node, "it depends on how large the batch is")
                self._operation(node)
                if isinstance(node.func, cst.Attribute) and not self._is_module(node.func.value):
                    self.per_sample(node.func.value, local, model)
                for arg in node.args:
                    if not self._holds(arg.value, local):
                        for below in descendants(arg.value):
                            if isinstance(below, cst.Name):
                                self._whole(below)
                    elif not self._asks_batch_size(arg.value):
                        self.per_sample(arg.value, local, model)
            case _:
                raise Obstacle(node, "what it makes of the batch is not known")

    def _whole(self, node: cst.Name) -> None:
        """A value beside the batch is a number or a device, not a tensor of its size."""
        scope = self.tree.scope(node)
        if not any(node is load for load, _ in self.tree.loads.get(node.value, [])):
            return
        owner = scope.owner(node.value)
        for binding in owner.bindings[node.value] if owner is not None else []:
            if not self._is_small(binding):
                raise Obstacle(node, f"`{node.value}` may be as large as the whole batch")

    def _is_small(self, binding: Binding) -> bool:
        statement = binding.statement
        if binding.kind in ("param", "import", "from"):
            return True  # of the main function, which is given arguments of the program
        if binding.kind == "assign" and binding.value is not None:
            return self._is_number(binding.value)
        if isinstance(statement, cst.AugAssign):
            return self._is_number(statement.value)
        if not isinstance(statement, cst.For) or not isinstance(statement.iter, cst.Call):
            return False
        path = self.builder.callee(statement.iter, self.tree.scope(statement.iter))
        target = statement.target
        if path == "builtins.range":
            return target is binding.node
        first = target.elements[0].value if isinstance(target, cst.Tuple) else None
        return path == "builtins.enumerate" and first is binding.node

    def _is_number(self, node: cst.BaseExpression) -> bool:
        """Whether a value is made of numbers, strings, arguments and devices alone."""
        calls = [n for n in descendants(node) if isinstance(n, cst.Call)]
        for call in calls:
            path = self.builder.callee(call, self.tree.scope(call)) or ""
            plain = re.match(r"builtins\.\w+\Z|math\.\w+\Z|torch\.device\Z", path)
            asked = isinstance(call.func, cst.Attribute) and call.func.attr.value == "item"
            if id(call) not in self.builder.sites and not plain and not asked:
                return False
        names = [n for n in descendants(node) if isinstance(n, cst.Name)]
        held = [n for n in names if any(n is x for x, _ in self.tree.loads.get(n.value, []))]
        for name in held:
            owner = self.tree.scope(name).owner(name.value)
            bindings = owner.bindings[name.value] if owner is not None else []
            if not calls and any(
                b.kind not in ("param", "import", "from")
                and b.value is not node
                and (b.value is None or any(isinstance(n, cst.Call) for n in descendants(b.value)))
                for b in bindings
            ):
                return False
        return True

    def _is_module(self, node: cst.BaseExpression) -> bool:
        return self.builder.meaning(node, self.tree.scope(node)) is not None

    def _holds(self, node: cst.CSTNode, names: set[str]) -> bool:
        return any(True for _ in self.uses(node, names))

    def uses(self, node: cst.CSTNode, names: set[str]) -> list[cst.Name]:
        """The uses of some names in a piece of code."""
        return [
            n
            for n in descendants(node)
            if isinstance(n, cst.Name)
            and n.value in names
            and any(n is load for load, _ in self.tree.loads.get(n.value, []))
        ]

    def mean_loss(self, node: cst.BaseExpression, local: set[str], model: str) -> None:
        """Let a loss pass that is the mean over the samples of the batch."""
        scope = self.tree.scope(node)
        given: list[cst.Call] = []
        if isinstance(node, cst.Call):
            func = node.func
            path = self.builder.callee(node, scope) or ""
            if isinstance(func, cst.Attribute) and func.attr.value == "mean" and not node.args:
                self.per_sample(func.value, local, model)
                return
            made = func
            if isinstance(func, cst.Name):
                owner = scope.owner(func.value)
                bindings = owner.bindings[func.value] if owner is not None else []
                if len(bindings) == 1 and bindings[0].value is not None:
                    made = bindings[0].value
            if isinstance(made, cst.Call):
                maker = self.builder.callee(made, scope) or ""
                head, _, name = maker.rpartition(".")
                if head.startswith("torch.nn") and name in LOSSES:
                    given = [made]
            elif path.removeprefix("torch.nn.functional.") in LOSSFUNCTIONS:
                given = [node]
        if not given or not isinstance(node, cst.Call):
            raise Obstacle(node, "it is not seen that the loss is a mean over the samples")
        if "-100" in self.tree.text or "ignore_index" in self.tree.attributes:
            raise Obstacle(node, "the loss may leave samples out, which have the label -100")
        for arg in given[0].args:
            word = arg.keyword.value if arg.keyword is not None else ""
            text = self.tree.source(arg.value)
            plain = word == "label_smoothing" or (word == "reduction" and text[1:-1] == "mean")
            if given[0] is not node and not plain:
                raise Obstacle(arg, "the loss may weigh samples: their means are not its mean")
            if given[0] is node and word and not plain and word not in ("input", "target"):
                raise Obstacle(arg, "the loss may weigh samples: their means are not its mean")
        values = [
            a for a in node.args if a.keyword is None or a.keyword.value in ("input", "target")
        ]
        if len(values) != 2 or any(a.star for a in node.args):
            raise Obstacle(node, "the loss has more arguments than an output and a target")
        for arg in values:
            self.per_sample(arg.value, local, model)
