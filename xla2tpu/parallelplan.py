"""The places of one file that an SPMD or FSDP program has to change together, with code for each.

Beside the findings that are left these are places of plain PyTorch: what runs once in a program of
a single controller runs once for each device afterwards.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import libcst as cst

from xla2tpu.analysis import Analysis
from xla2tpu.fsdparguments import Wrapping, method
from xla2tpu.model import Step
from xla2tpu.nodes import descendants
from xla2tpu.plainsteps import PlainSteps
from xla2tpu.plansteps import Steps, title
from xla2tpu.shardingsteps import ShardingSteps
from xla2tpu.sites import Site

# Rules whose places make a plan: of a single controller, and of FSDP.
_SPMD = frozenset(f"XLA{n}" for n in (801, 803, 804, 805, 806, 807, 809, 810, 816, 817, 818))
_FSDP = frozenset(("XLA811", "XLA813", "XLA814", "XLA815"))
_VARIABLES = re.compile(r"XLA_(?:USE|AUTO)_SPMD\w*\Z")
# Other findings that are left because of them: rule, stage.
_ALONG = {
    **dict.fromkeys(("XLA506", "XLA507", "XLA508", "XLA509", "XLA510"), "launch"),
    **dict.fromkeys(("XLA525", "XLA904"), "group"),
    **dict.fromkeys(("XLA503", "XLA504", "XLA505"), "data"),
    "XLA819": "optimizer",
    **dict.fromkeys((f"XLA3{n:02}" for n in range(1, 13)), "ranks"),
    "XLA802": "ranks",
    "XLA808": "model",
}
# What averages gradients, which the tool writes out elsewhere.
_AVERAGES = frozenset(("XLA501", "XLA502"))
# What every module has, and what fully_shard leaves as it is.
_OF_MODULES = frozenset(
    (
        *("apply", "children", "eval", "forward", "modules", "named_children", "named_modules"),
        *("named_parameters", "parameters", "register_forward_hook", "requires_grad_", "to"),
        *("train", "training", "zero_grad"),
    )
)
_DTENSOR = {
    "xla_distribute_tensor": "distribute_tensor",
    "xla_distribute_module": "distribute_module",
}
_COUNTS = {
    "global_runtime_device_count": ("dist.get_world_size()", ""),
    "global_device_count": ("dist.get_world_size()", ""),
    "addressable_runtime_device_count": ("1", "a process has one device"),
    "addressable_device_count": ("1", "a process has one device"),
    "local_device_count": ("1", "a process has one device"),
    "process_index": ("dist.get_rank()", "it was the number of the host"),
    "process_count": ("dist.get_world_size()", "it was the number of hosts"),
    "is_spmd": ("False", "keep the branch that is for one process on each device"),
}
_MANAGER = {
    "should_save": ("step % save_interval == 0", ""),
    "save": ('dcp.save(state_dict, checkpoint_id=f"{folder}/{step}")', "All ranks call it"),
    "save_async": (
        'future = dcp.async_save(state_dict, checkpoint_id=f"{folder}/{step}")',
        'It needs init_process_group("cpu:gloo,tpu:tpu_dist")',
    ),
    "restore": ('dcp.load(state_dict, checkpoint_id=f"{folder}/{step}")', "All ranks call it"),
    "all_steps": ("sorted(int(name) for name in os.listdir(folder))", ""),
    "join": ("future.result()", ""),
    "reached_preemption": ("", "A save before a preemption has no counterpart"),
}


def kinds(rules: Iterable[str]) -> frozenset[str]:
    """What a program is whose places with these rules are left: ``spmd``, ``fsdp`` or both."""
    found = set(rules)
    named = (("spmd", _SPMD), ("fsdp", _FSDP))
    return frozenset(kind for kind, codes in named if found & codes)


def steps(it: Analysis, around: frozenset[str] = frozenset()) -> list[Step]:
    """The steps of one file in the order of the source, none where it is no such program.

    ``around``: what the other files are that this one works with.
    """
    plan = _FilePlan(it, around)
    if not plan.kinds:
        return []
    return sorted(plan.all(), key=lambda step: (step.line, step.column))


class _FilePlan(Steps):
    def __init__(self, it: Analysis, around: frozenset[str]) -> None:
        super().__init__(it)
        left = (s for s in it.reported if s.counts and not s.fixable and s not in it.suppressed)
        self.kinds = kinds(s.rule.code for s in left) | around
        self.layouts = ShardingSteps(it)

    def all(self) -> Iterator[Step]:
        for site in self.it.reported:
            if site in self.it.suppressed or not (site.counts or site.rule.code[3] == "9"):
                continue
            if _VARIABLES.match(site.path):
                auto = (
                    "there is no automatic sharding: choose FSDP2 or a plan of parallelize_module"
                )
                yield self.step(
                    site.node, "environment", f"the variable {site.path}", "",
                    auto if "AUTO" in site.path else "nothing switches a mode: it goes",
                )  # fmt: skip
            elif site.rule.code in _AVERAGES:
                yield self._average(site)
            elif not site.fixable:
                yield from self._of_site(site)
        batches = [
            s for site, s in self.it.shardings.of.items() if self.layouts.is_of_batch(site, s)
        ]
        # A program of FSDP alone runs in one process for each device already.
        plain = PlainSteps(self.it, "spmd" in self.kinds, batches)
        for node in descendants(self.tree.module):
            if isinstance(node, cst.Call):
                yield from plain.call(node)
            elif isinstance(node, cst.If):
                yield from plain.entry(node)

    def _of_site(self, site: Site) -> Iterator[Step]:
        code, name = site.rule.code, site.path.rpartition(".")[2]
        shardings = self.it.shardings
        if site in shardings.of:
            yield self.layouts.annotation(site, shardings.of[site])
        elif site in shardings.meshes:
            yield self.layouts.mesh(site, shardings.meshes[site])
        elif site in shardings.wrappings:
            if not self._is_inside_wrapper(site):
                yield self._wrapper(site, shardings.wrappings[site])
        elif code == "XLA801":
            yield self._use_spmd(site)
            if self.it.settings.notebook:
                note = (
                    "Other processes cannot have what a notebook defines, nor the TPU that it uses"
                )
                target = "%%writefile train.py"
                yield self.step(site.node, "launch", "program of a notebook", target, note)
        elif code == "XLA803":
            yield self.layouts.global_mesh(site, name)
        elif code in ("XLA811", "XLA816"):
            yield from self._of_wrapper(site, name)
        elif code == "XLA812":
            arguments = "" if site.call is None else self.arguments(site.call.args)
            yield self.step(
                site.node, "model", "activation checkpointing of a module",
                f"checkpoint_wrapper({arguments})", "Before fully_shard",
            )  # fmt: skip
        elif code == "XLA813":
            yield self.step(
                site.node, "model", "wrap policy", "",
                "FSDP2 takes none: the loop over the modules chooses the blocks",
            )  # fmt: skip
        elif code in ("XLA814", "XLA817", "XLA818"):
            yield from self._checkpoint(site, name)
        elif code == "XLA809" and name in _DTENSOR and site.call is not None:
            new = f"{_DTENSOR[name]}({self.arguments(site.call.args)})"
            target = self.replaced(site.call, new)
            note = 'The mesh is one of init_device_mesh("tpu", ...)'
            yield self.step(site.node, "model", title(site), target, note)
        elif name in ("clear_sharding", "shard_as") and site.call is not None:
            yield self.layouts.relayout(site, name, site.call)
        elif code in _ALONG:
            target, note = _COUNTS.get(name, ("", site.advice or site.rule.advice))
            is_loader = code in ("XLA503", "XLA504") and "()" not in site.path
            if is_loader and site.call is not None and site.call.args:
                target = self.source(site.call.args[0].value)
                note = "The loader itself, whose batches are moved by .to(device) in the loop"
            if target and site.call is not None:
                target = self.replaced(site.call, target)
            yield self.step(site.node, _ALONG[code], title(site), target, note)
        elif code in _SPMD | _FSDP:
            yield self.step(site.node, "rest", title(site), "", site.advice or site.rule.advice)

    def _is_inside_wrapper(self, site: Site) -> bool:
        """Whether it is in what another wrapper gets, such as its auto_wrapper_callable."""
        others = (s.call for s in self.it.shardings.wrappings if s is not site)
        return any(call is not None and self.tree.is_within(site.node, call) for call in others)

    def _wrapper(self, site: Site, wrapping: Wrapping) -> Step:
        statement = self.tree.statement(site.node)
        targets = statement.targets if isinstance(statement, cst.Assign) else []
        is_whole = isinstance(statement, cst.Assign) and statement.value is site.call
        name = self.source(targets[0].target) if is_whole and len(targets) == 1 else ""
        if not name.replace(".", "").isidentifier():
            name = wrapping.module if wrapping.module.isidentifier() else "model"
        notes = ("Before the optimizer is built, and on all ranks", *wrapping.by_hand)
        code = "\n".join(wrapping.lines(name))
        return self.step(site.node, "model", "wrapper of FSDP", code, "; ".join(notes))

    def _use_spmd(self, site: Site) -> Step:
        auto = site.call is not None and bool(site.call.args)
        note = "Before any tensor is put on the device. One process for each device from here on"
        if auto and self.source(site.call or site.node).replace(" ", "").endswith("True)"):
            note += "; there is no automatic sharding: choose FSDP2 or a plan of parallelize_module"
        return self.step(
            site.node, "group", "the switch to SPMD", 'dist.init_process_group("tpu_dist")', note
        )

    def _average(self, site: Site) -> Step:
        """A step that averages gradients, or the averaging alone."""
        target = ""
        if site.rule.code == "XLA501" and site.call is not None and site.call.args:
            target = f"{self.source(site.call.args[0].value)}.step()"
        note = (
            "fully_shard, DistributedDataParallel and DTensors reduce gradients themselves: not a"
            " second time, also where this run writes average_gradients"
        )
        return self.step(site.node, "optimizer", title(site), target, note)

    def _of_wrapper(self, site: Site, name: str) -> Iterator[Step]:
        becomes = method(site.path)
        if becomes is None and "()." in site.path and name in _OF_MODULES:
            return  # it stays as it is
        if becomes is None:
            yield self.step(site.node, "rest", title(site), "", site.advice or site.rule.advice)
            return
        stages = {"get_shard_metadata": "checkpoint", "state_dict": "checkpoint"}
        stages |= {"load_state_dict": "checkpoint", "module": "model"}
        stage = stages.get(name, "optimizer")
        if name == "clip_grad_norm_" and site.call is not None:
            model = self.source(site.call.func)[: -len(".clip_grad_norm_")]
            rest = self.arguments(site.call.args)
            call = f"torch.nn.utils.clip_grad_norm_({model}.parameters(), {rest})"
            target = self.replaced(site.call, call)
            note = "The norm is a DTensor: .full_tensor() on all ranks before .item()"
            yield self.step(site.node, stage, "clipping of gradients", target, note)
        else:
            yield self.step(site.node, stage, f"`{name}` of the wrapper", "", f"It is {becomes}")
        if name == "get_shard_metadata":
            yield self._old_shards(site)

    def _old_shards(self, site: Site) -> Step:
        return self.step(
            site.node, "convert", "checkpoints in one file for each rank",
            "python -m torch_xla.distributed.fsdp.consolidate_sharded_ckpts --ckpt_prefix PREFIX"
            ' --ckpt_suffix "*.pth"',
            "Only torch_xla can join them",
        )  # fmt: skip

    def _checkpoint(self, site: Site, name: str) -> Iterator[Step]:
        if site.rule.code == "XLA814":
            yield self._old_shards(site)
            return
        if "()." in site.path:
            target, note = _MANAGER.get(name, ("", site.rule.advice))
            yield self.step(site.node, "checkpoint", f"`{name}` of the manager", target, note)
        elif name == "CheckpointManager":
            yield self._old_spmd(site)
            yield self.step(
                site.node, "checkpoint", "manager of checkpoints", "",
                "There is none in torch: count the steps and delete old folders in the program",
            )  # fmt: skip
        elif name == "prime_optimizer":
            yield self.step(
                site.node, "checkpoint", "states made for an optimizer", "",
                "It goes: get_state_dict and set_state_dict make the states",
            )  # fmt: skip
        else:
            if name in ("SPMDLoadPlanner", "SPMDSavePlanner"):
                yield self._old_spmd(site)
            yield self.step(
                site.node, "checkpoint", "planner of checkpoints", "",
                "Leave planner= out: the default ones know DTensor",
            )  # fmt: skip

    def _old_spmd(self, site: Site) -> Step:
        return self.step(
            site.node, "convert", "checkpoints of the SPMD program", "",
            "Whether torch.distributed.checkpoint reads them into DTensors is not proven: load them"
            " with the old program and write plain state dicts by torch.save",
        )  # fmt: skip
