"""Steps of a manual plan in plain PyTorch: what ran once, and runs once for each device then."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import libcst as cst

from xla2tpu.analysis import Analysis
from xla2tpu.constants import constant
from xla2tpu.model import Step
from xla2tpu.plansteps import DATA_LOADER, Steps
from xla2tpu.shardings import Sharding
from xla2tpu.signatures import bind

_BATCH_NOTE = (
    "The batch was that of all devices. replicas and part are dist.get_world_size() and"
    ' dist.get_rank() where it is sharded over the whole mesh, mesh["data"].size() and'
    ' mesh["data"].get_local_rank() where over one axis of several, 1 and 0 where all ranks work on'
    " the same batch. Call sampler.set_epoch(epoch) in each epoch; an IterableDataset has to split"
    " itself"
)
_ONCE = "Under `if dist.get_rank() == 0:`, unless it is wanted once for each device"
_LOADER_ARGUMENTS = (
    "(dataset, batch_size=1, shuffle=None, sampler=None, batch_sampler=None, *args, **kwargs)"
)
_RANK_TEST = re.compile(
    r"rank|master|main_process|process_index|ordinal|is_local|is_world|is_first"
)
_WRITERS = re.compile(r"(?:torch\.utils\.tensorboard|tensorboardX)\.SummaryWriter\Z|wandb\.init\Z")
_DCP = re.compile(r"torch\.distributed\.checkpoint\.(?:\w+\.)?(save|load)(?:_state_dict)?\Z")


class PlainSteps(Steps):
    """The steps of one file. ``single_controller``: the program has a process for each host;
    ``batches``: how it shards its batches.
    """

    def __init__(self, it: Analysis, single_controller: bool, batches: list[Sharding]) -> None:
        super().__init__(it)
        self.single_controller, self.batches = single_controller, batches

    def call(self, call: cst.Call) -> Iterator[Step]:
        path = self.meaning(call)
        if path == "builtins.print" or path == "builtins.open":
            writes = path.endswith("print") or self._writes(call)
            if self.single_controller and writes and not self._is_guarded(call):
                what = "print" if path.endswith("print") else "file that is written"
                yield self.step(call, "output", what, "", _ONCE)
        elif _WRITERS.match(path):
            if self.single_controller and not self._is_guarded(call):
                yield self.step(call, "output", f"{path.rpartition('.')[2]} of a log", "", _ONCE)
        elif path == DATA_LOADER:
            if self.single_controller:
                yield from self._loader(call)
        elif path == "torch.manual_seed" and self.single_controller:
            yield self.step(
                call, "ranks", "seed", "",
                "One seed gives plain tensors the same random numbers on all ranks, dropout masks"
                " too: right for weights, not for data",
            )  # fmt: skip
        elif path.startswith("torch.optim.") and path.count(".") == 2:
            if path.rpartition(".")[2][:1].isupper():
                yield self.step(
                    call, "optimizer", "optimizer", self.replaced(call, self.source(call)),
                    "Behind the sharding of the parameters, which it holds",
                )  # fmt: skip
        elif path == "torch.nn.utils.clip_grad_norm_":
            yield self.step(
                call, "optimizer", "clipping of gradients", "",
                "It works on DTensors; the norm is one: .full_tensor() on all ranks before .item()",
            )  # fmt: skip
        elif path in ("torch.save", "torch.load", "torch_xla.core.xla_model.save"):
            yield from self._saved(call, path)
        elif (match := _DCP.match(path)) is not None:
            yield self.step(
                call, "checkpoint", f"{match[1]} of a distributed checkpoint",
                f"dcp.{match[1]}(state_dict, checkpoint_id=folder)",
                "It takes the state_dict of get_state_dict(model, optimizer); all ranks call it",
            )  # fmt: skip

    def _writes(self, call: cst.Call) -> bool:
        modes = [a.value for i, a in enumerate(call.args) if i == 1 and a.keyword is None]
        modes += [a.value for a in call.args if a.keyword and a.keyword.value == "mode"]
        mode = constant(self.tree, modes[0], self.tree.scope(call)) if modes else "r"
        return isinstance(mode, str) and any(c in mode for c in "wax")

    def _is_guarded(self, node: cst.CSTNode) -> bool:
        """Whether a test of the rank stands around it."""
        below = node
        for above in self.tree.ancestors(node):
            tests = above.test if isinstance(above, (cst.If, cst.IfExp)) else None
            if tests is not None and below is not tests and _RANK_TEST.search(self.source(tests)):
                return True
            below = above
        return False

    def _loader(self, call: cst.Call) -> Iterator[Step]:
        bound = bind(_LOADER_ARGUMENTS, call.args, lambda _: False)
        if isinstance(bound, str) or bound.variadic:
            yield self.step(call, "data", "loader", "", _BATCH_NOTE)
            return
        given = {name: self.source(arg.value) for name, arg in bound.args.items()}
        if "DistributedSampler" in given.get("sampler", ""):
            return
        if "batch_sampler" in given or "sampler" in given:
            note = "Its sampler has to give each rank a part of its own. " + _BATCH_NOTE
            yield self.step(call, "data", "loader with a sampler", "", note)
            return
        data, shuffle = given["dataset"], given.get("shuffle", "False")
        size = given.get("batch_size", "1")
        size = size if re.fullmatch(r"[\w.]+", size) else f"({size})"
        rest = f", {self.arguments(bound.keywords)}" if bound.keywords else ""
        lines = [*self._replicas()]
        if not re.fullmatch(r"[\w.]+", data):
            lines.append(f"dataset = {data}")
            data = "dataset"
        lines.append(
            f"sampler = DistributedSampler({data}, num_replicas=replicas, rank=part,"
            f" shuffle={shuffle})"
        )
        new = f"DataLoader({data}, batch_size={size} // replicas, sampler=sampler{rest})"
        lines.append(self.replaced(call, new))
        yield self.step(call, "data", "loader", "\n".join(lines), _BATCH_NOTE)

    def _replicas(self) -> Iterator[str]:
        """How the batch is split, where the annotations of batches in the file agree on it."""
        found = {self._split(sharding) for sharding in self.batches}
        only = found.pop() if len(found) == 1 else None
        if only is not None:
            yield f"replicas, part = {only}"

    def _split(self, sharding: Sharding) -> str | None:
        spec, mesh = sharding.spec, sharding.mesh
        if not spec or sharding.wrong:
            return None
        if spec[0] is None:
            return "1, 0"
        axes = spec[0] if isinstance(spec[0], tuple) else (spec[0],)
        if mesh is None or mesh.axes is None:
            return None
        if len(axes) == len(mesh.axes):
            return "dist.get_world_size(), dist.get_rank()"
        axis = mesh.axes[axes[0]] if isinstance(axes[0], int) else axes[0]
        given = sharding.bound.args.get("mesh")
        if len(axes) > 1 or axis is None or given is None:
            return None
        name = self.source(given.value)
        return f'{name}["{axis}"].size(), {name}["{axis}"].get_local_rank()'

    def _saved(self, call: cst.Call, path: str) -> Iterator[Step]:
        if path == "torch.load":
            if not re.search(r"state|model|optim|ckpt|checkpoint|weights", self.source(call)):
                return
            yield self.step(
                call, "checkpoint", "load of a file",
                "set_model_state_dict(model, state_dict, options=StateDictOptions("
                "full_state_dict=True, broadcast_from_rank0=True))",
                "It takes the state_dict as torch.load gives it, on rank 0 at least",
            )  # fmt: skip
            return
        yield self.step(
            call, "checkpoint", "save of a file",
            "state_dict = get_model_state_dict(model, options=StateDictOptions("
            "full_state_dict=True, cpu_offload=True))\n"
            "if dist.get_rank() == 0:\n    torch.save(state_dict, path)",
            "The first line gathers, on all ranks; torch.distributed.checkpoint keeps the parts",
        )  # fmt: skip

    def entry(self, node: cst.If) -> Iterator[Step]:
        if not self.single_controller or self.tree.parent(node) is not self.tree.module:
            return
        if self.it.settings.notebook:
            return
        if "__name__" not in self.source(node.test):
            return
        yield self.step(
            node, "launch", "entry of the program",
            "eval \"$(python -m torch.tpu.distributed | sed 's/^/export /')\"\n"
            f"torchrun --nproc_per_node=N {shlex.quote(self.it.path.replace(chr(92), '/'))}",
            "N is the number of devices of the host; on several hosts give --nnodes, --node_rank,"
            " --master_addr and --master_port too",
        )  # fmt: skip
