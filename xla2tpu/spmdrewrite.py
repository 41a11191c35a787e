"""A program of SPMD written anew for one process on each device."""

from __future__ import annotations

import libcst as cst

from xla2tpu.changes import INDENT, Builder
from xla2tpu.scopes import Binding
from xla2tpu.sites import Change, Cut, Insert, Site
from xla2tpu.spmdprogram import Program
from xla2tpu.spmdsamples import Obstacle
from xla2tpu.template import Piece, Slice

_DIST = "import torch.distributed as dist"
_SAMPLER = "from torch.utils.data.distributed import DistributedSampler"
_MESH = "from torch.distributed.device_mesh import init_device_mesh"
_SHARD = "from torch.distributed.fsdp import fully_shard"
_SAMPLERS = ("sampler", "train_sampler", "data_sampler", "distributed_sampler")
_BLOCKS = ("block", "layer", "module", "inner")


class Rewrite:
    """Makes the changes of one program that was read."""

    def __init__(self, program: Program, builder: Builder) -> None:
        self.it, self.builder, self.tree = program, builder, builder.tree
        # What goes: statements, and arguments of calls that stay.
        self.gone: list[cst.CSTNode] = []

    def rewrite(self, site: Site, changes: dict[Site, Change]) -> None:
        """Make the changes: those of the program, put on ``site``, and those of the parts."""
        change = site.change = Change(replaced=[])
        site.fix_title = "Run one process for each device"
        self._start(site, change)
        self._delete(change, changes)
        self._sample(change)
        self._average(change, changes)
        self._print(changes)
        for guard in self.it.code.guards:
            self._on_first(guard, change)

    def _start(self, site: Site, change: Change) -> None:
        params = self.it.main.params.params
        if params:
            at = self.tree.span(params[0])[0]
            change.cuts.append(Cut(at, at, (f"{self.it.rank}, ",), self.it.main))
        else:
            end = self.tree.span(self.it.main.name)[1]
            at = self.tree.text.index("(", end) + 1
            change.cuts.append(Cut(at, at, (self.it.rank,), self.it.main))
        self._launch(site, change)

    def _launch(self, site: Site, change: Change) -> None:
        """The call of the main function starts the processes, or runs in one of torchrun's."""
        call = self.it.started
        change.replaced.append(call)
        change.kept += [call.func, *(a.value for a in call.args)]
        given = [Slice(a.value) for a in call.args]
        pieces: list[Piece]
        if self.builder.settings.launcher == "torchrun":
            dist = self.builder.need(change, _DIST, site.scope)
            init = f'{dist}.init_process_group("cpu:gloo,tpu:tpu_dist")'
            pieces = [init, *self._line(0), Slice(call.func), f"({dist}.get_rank()"]
            for piece in given:
                pieces += [", ", piece]
            pieces += [")", *self._line(0), f"{dist}.destroy_process_group()"]
        else:
            pieces = [f"{self.builder.use_helper(change, 'launch')}(", Slice(call.func)]
            for index, piece in enumerate(given):
                pieces += [", " if index else ", args=(", piece]
            if given:
                pieces.append(",)" if len(given) == 1 else ")")
            pieces.append(")")
        change.cuts.append(Cut(*self.tree.span(call), tuple(pieces), call))

    def _line(self, level: int) -> tuple[str, str]:
        """A new line of the statement that is cut, so many levels further in."""
        return self.builder.newline, INDENT + self.builder.unit * level

    def _delete(self, change: Change, changes: dict[Site, Change]) -> None:
        """SPMD, its mesh and its annotations go, with the names that nothing else reads."""
        sites = self.it.sites
        for site in (*sites("XLA801"), *sites("XLA803"), *sites("XLA804")):
            statement = self.tree.statement(site.expression)
            changes[site] = Change(deletes=[statement], replaced=[site.expression])
            self.gone.append(statement)
        for site in sites("XLA503"):
            given = site.bound.args.get("input_sharding") if site.bound is not None else None
            if given is not None:
                self.gone.append(given.value)
        for site in (*sites("XLA806"), *sites("XLA813")):
            changes[site] = Change()
        if self.it.wrapping is not None:
            assert self.it.wrapping.call is not None
            self.gone += [a.value for a in self.it.wrapping.call.args[1:]]
            changes[self.it.wrapping] = self._shard(self.it.wrapping)
        while True:
            unread = [b for b in self.it.noted if self._is_unread(b)]
            if not unread:
                break
            for binding in unread:
                assert binding.statement is not None
                self.gone.append(binding.statement)
                change.deletes.append(binding.statement)

        for statement in self.gone:
            target = statement.targets[0].target if isinstance(statement, cst.Assign) else None
            at_top = self.tree.scope(statement) is self.tree.root
            if at_top and isinstance(target, cst.Name) and self.it.taken(target.value):
                raise Obstacle(statement, "another file of the project imports it")
        for site in sites("XLA305"):
            stays = not any(self.tree.is_within(site.node, g) for g in self.gone)
            if stays and not self.tree.is_within(site.node, self.it.main):
                raise Obstacle(site.node, "it would be counted before there is a process group")

    def _is_unread(self, binding: Binding) -> bool:
        """Whether what is assigned to a name is read by what goes alone."""
        statement = binding.statement
        if not isinstance(statement, cst.Assign) or len(statement.targets) != 1:
            return False
        if any(statement is g for g in self.gone):
            return False
        loads = self.tree.loads_of(binding.name, binding.scope)
        return all(any(self.tree.is_within(n, g) for g in self.gone) for n, _ in loads)

    def _shard(self, site: Site) -> Change:
        """FSDPv2 becomes a mesh of all processes, and FSDP2 on each block and on the model."""
        it, change, scope = self.it, Change(replaced=[site.expression]), self.it.scope
        target, statement = it.wrapped_target(), it.wrapped_statement
        dist = self.builder.need(change, _DIST, scope)
        mesh = self.builder.need(change, _MESH, scope)
        shard = self.builder.need(change, _SHARD, scope)
        broadcast = self.builder.use_helper(change, "broadcast_model")
        quoted = "{0}tpu{0}, ({1}.get_world_size(),), mesh_dim_names=({0}fsdp{0},)"
        made = quoted.format(self.builder.quote, dist)
        pieces: list[Piece] = []
        if not isinstance(it.wrapped, cst.Name) or it.wrapped.value != target:
            pieces += [f"{target} = ", Slice(it.wrapped), *self._line(0)]
            change.kept.append(it.wrapped)
        pieces += [f"{it.mesh_name} = {mesh}({made})", *self._line(0)]
        pieces += [f"{broadcast}({target})", *self._line(0)]
        if it.block is not None:
            block = self._free(_BLOCKS, statement)
            pieces += [f"for {block} in {target}.modules():", *self._line(1)]
            pieces += [f"if isinstance({block}, {it.block}):", *self._line(2)]
            pieces += [f"{shard}({block}, mesh={it.mesh_name})", *self._line(0)]
        pieces.append(f"{shard}({target}, mesh={it.mesh_name})")
        change.cuts.append(Cut(*self.tree.span(statement), tuple(pieces), statement))
        return change

    def _free(self, names: tuple[str, ...], place: cst.CSTNode) -> str:
        """The first name that the file does not have."""
        for name in names:
            if name not in self.tree.names:
                return name
        raise Obstacle(place, "there is no free name for what comes in its place")

    def _sample(self, change: Change) -> None:
        """The data goes through a sampler, and a batch is the part of one process."""
        statement, given = self.it.loader_statement, self.it.given
        sampler = self.builder.need(change, _SAMPLER, self.it.scope)
        share = self.builder.use_helper(change, "share_of_batch")
        name = self._free(_SAMPLERS, statement)
        data = self.tree.source(given["dataset"].value)
        shuffle = "True" if self.it.shuffled else "False"
        text = f"{name} = {sampler}({data}, shuffle={shuffle}, drop_last=True)"
        change.inserts.append(Insert(statement, (text,)))
        size = given["batch_size"].value
        start, end = self.tree.span(size)
        change.cuts.append(Cut(start, start, (f"{share}(",), statement))
        new = f"sampler={name}"
        shuffled = given.get("shuffle")
        if shuffled is not None:
            change.cuts.append(Cut(end, end, (")",), statement))
            a, b = (
                self.tree.span(shuffled.keyword or shuffled)[0],
                self.tree.span(shuffled.value)[1],
            )
            change.cuts.append(Cut(a, b, (new,), statement))
        else:
            change.cuts.append(Cut(end, end, (f"), {new}",), statement))
        if self.it.shuffled and self.it.epochs is not None:
            self._new_order(name, change)

    def _new_order(self, sampler: str, change: Change) -> None:
        """Each epoch has an order of its own."""
        assert self.it.epochs is not None
        target = self.it.epochs.target
        if not isinstance(target, cst.Name):
            raise Obstacle(self.it.epochs, "the loop of epochs has no plain counter")
        counts = isinstance(self.it.epochs.iter, cst.Call) and (
            self.builder.callee(self.it.epochs.iter, self.it.scope) == "builtins.range"
        )
        if not counts:
            raise Obstacle(self.it.epochs, "the loop of epochs does not count them by `range`")
        epoch = target.value
        if epoch == "_":
            epoch = "epoch"
            if epoch in self.tree.names or self.tree.loads.get("_"):
                raise Obstacle(self.it.epochs, "there is no free name for the number of the epoch")
            a, b = self.tree.span(target)
            change.cuts.append(Cut(a, b, (epoch,), self.it.epochs))
        change.inserts.append(Insert(self.it.epochs, (f"{sampler}.set_epoch({epoch})",)))

    def _average(self, change: Change, changes: dict[Site, Change]) -> None:
        """The model starts alike everywhere; gradients, and a loss that is read, are averaged."""
        if self.it.wrapping is None:
            broadcast = self.builder.use_helper(change, "broadcast_model")
            text = f"{broadcast}({self.it.model})"
            change.inserts.append(Insert(self.it.optimizer_statement, (text,)))
            average = self.builder.use_helper(change, "average_gradients")
            change.inserts.append(Insert(self.it.anchor, (f"{average}({self.it.optimizer})",)))
        name = self.it.loss_name
        loads = self.tree.loads_of(name, self.it.scope) if name is not None else []
        if any(not self.tree.is_within(load, self.it.backward) for load, _ in loads):
            mean = self.builder.use_helper(change, "mean_over_processes")
            change.inserts.append(Insert(self.it.anchor, (f"{name} = {mean}({name})",)))
        for site in self.it.sites("XLA501"):
            changes[site] = Change(
                cuts=[Cut(*self.tree.span(site.expression), (f"{self.it.optimizer}.step()",))],
                replaced=[site.expression],
            )

    def _print(self, changes: dict[Site, Change]) -> None:
        """What the first process printed is a plain print of it, where that needs no other one."""
        for site in self.it.sites("XLA401"):
            call = site.call
            plain = call is not None and site.context == "statement"
            if call is None or not plain or any(a.keyword or a.star for a in call.args):
                continue
            if self.it.code.may_guard(call):
                cut = Cut(*self.tree.span(call.func), ("print",), call)
                changes[site] = Change(cuts=[cut], replaced=[call.func])

    def _on_first(self, statement: cst.Expr, change: Change) -> None:
        start = self.tree.span(statement)[0]
        if self.tree.is_within(statement, self.it.main):
            asked = self.it.rank
        else:
            asked = f"{self.builder.need(change, _DIST, self.tree.scope(statement))}.get_rank()"
        block = f"if {asked} == 0:{self.builder.newline}{INDENT}{self.builder.unit}"
        change.cuts.append(Cut(start, start, (block,), statement))
        change.deeper.append(statement)
