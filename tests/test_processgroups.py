"""Process groups of torch_xla: made once, by the launcher or here, and what stands beside them."""

from __future__ import annotations

import pytest
from conftest import check_noop, check_transformed

from xla2tpu.engine import run_source
from xla2tpu.model import FileResult, Mode, Settings

BACKEND = '"cpu:gloo,tpu:tpu_dist"'
IN_FUNCTION = "import torch.distributed as dist\n\n\ndef start(rank, size, options):\n    {0}\n"
GUARDED = "if not dist.is_initialized():\n        {0}"


def migrate(source: str, unsafe: bool = True) -> FileResult:
    settings = Settings(mode=Mode.MIGRATE, unsafe=unsafe, todo=False, root="/nowhere")
    result = run_source(source.encode(), "/nowhere/example.py", settings)
    assert result.error is None
    return result


def reasons(source: str) -> list[tuple[str, str | None]]:
    return [(f.rule, f.reason) for f in migrate(source).findings if not f.applied]


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ('"xla"', BACKEND),
        ("'xla', 'xla://'", "'cpu:gloo,tpu:tpu_dist'"),
        ('backend="xla", init_method="pjrt://"', f"backend={BACKEND}"),
        ('"xla", rank=rank, world_size=size', f"{BACKEND}, rank=rank, world_size=size"),
        ('"gloo", init_method="xla://"', '"gloo"'),
        ('"xla", timeout=options', f"{BACKEND}, timeout=options"),
        ('init_method="xla://"', ""),
    ],
)
def test_arguments(before: str, after: str) -> None:
    old = f"dist.init_process_group({before})"
    new = GUARDED.format(f"dist.init_process_group({after})")
    check_transformed(IN_FUNCTION.format(old), IN_FUNCTION.format(new), todo=False)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ('options, init_method="xla://"', "user-option"),
        ('"nccl", init_method="xla://"', "user-option"),
        ('"xla" if rank else "nccl"', "user-option"),
        ('backend="nccl" if rank else "xla", rank=rank', "user-option"),
        ('"xla", pg_options=options', "argument-not-supported"),
        ('"xla", *options', "starred-arguments"),
        ('"xla", **options', "starred-arguments"),
    ],
)
def test_arguments_that_are_left(arguments: str, reason: str) -> None:
    source = IN_FUNCTION.format(f"dist.init_process_group({arguments})")
    check_noop(source, todo=False)
    assert reasons(source) == [("XLA904", reason)]


def test_program_of_its_own_makes_the_group_without_a_test() -> None:
    source = "import torch.distributed as dist\n\n\ndef main():\n    dist.init_process_group({0})\n"
    source += '\n\nif __name__ == "__main__":\n    main()\n'
    check_transformed(source.format('"xla"'), source.format(BACKEND), todo=False)


def test_program_of_its_own_needs_torchrun() -> None:
    def told(source: str) -> int:
        return sum("started with torchrun" in f.message for f in migrate(source).findings)

    assert told(f"import torch.distributed as dist\n\n{INIT}\n") == 1
    assert told(IN_FUNCTION.format(INIT)) == 0
    assert told(LAUNCHED.format(INIT, "xmp.spawn(worker)")) == 0
    assert told(LAUNCHED.format(INIT, "xmp.spawn(lambda i: worker(i))")) == 0


def test_ranks_of_torch_xla_are_not_asked_before_there_is_a_group() -> None:
    source = """\
import torch.distributed as dist
import torch_xla.core.xla_model as xm

size = xm.xrt_world_size()
dist.init_process_group("xla", rank=xm.get_ordinal(), world_size=size)
"""
    result = migrate(source)
    assert result.output is not None
    assert result.output.decode().endswith(f"dist.init_process_group({BACKEND})\n")
    # Without the call, a rank that is rewritten would be 0 in every process.
    kept = migrate(source, unsafe=False)
    assert kept.output is not None
    assert '"xla", rank=xm.get_ordinal(), world_size=size)' in kept.output.decode()


EARLY = """\
import torch.distributed as dist
import torch_xla.core.xla_model as xm


def set_up(model):
    dist.init_process_group("xla", init_method="xla://")


def main(model):
{0}
    print(xm.get_local_ordinal(), xm.get_ordinal())


if __name__ == "__main__":
    main(1)
"""


@pytest.mark.parametrize(
    ("body", "early"),
    [
        (["rank = xm.get_ordinal()", "set_up(rank)", "print(rank)"], ["XLA302"]),
        (["if xm.xrt_world_size() > 1:", "    set_up(model)"], ["XLA301"]),
        (["if xm.is_master_ordinal(local=False):", "    model.load()", "set_up(1)"], ["XLA304"]),
        (["if xm.is_master_ordinal():", "    model.load()", "set_up(1)"], []),
        (["set_up(model)", "rank = xm.get_ordinal()", "print(rank)"], []),
        (["if model:", "    print(xm.get_ordinal())", "else:", "    set_up(model)"], []),
    ],
)
def test_ranks_before_there_is_a_group_are_left_with_it(body: list[str], early: list[str]) -> None:
    left = sorted(reasons(EARLY.format("".join(f"    {line}\n" for line in body)[:-1])))
    groups = ["XLA904", "XLA904"] if early else []
    assert [r for r, reason in left if reason == "whole-program" and r != "XLA001"] == sorted(
        [*early, *groups]
    )


@pytest.mark.parametrize("backend", ['"gloo"', '"nccl"', "args.backend"])
@pytest.mark.parametrize(
    ("before", "rank"), [("pass", "xm.get_ordinal()"), ("rank = xm.get_ordinal()", "rank")]
)
def test_ranks_given_to_a_group_that_stays_are_left(backend: str, before: str, rank: str) -> None:
    source = "import torch.distributed as dist\nimport torch_xla.core.xla_model as xm\n\n\n"
    source += f"def start(args):\n    {before}\n"
    source += f"    dist.init_process_group({backend}, rank={rank}, world_size=args.size)\n"
    check_noop(source, todo=False)
    assert ("XLA302", "whole-program") in reasons(source)


LAUNCHED = """\
import torch.distributed as dist
import torch_xla.distributed.xla_backend
import torch_xla.distributed.xla_multiprocessing as xmp


def worker(index):
    {0}
    print(index)


if __name__ == "__main__":
    {1}
"""
INIT = 'dist.init_process_group("xla", init_method="xla://")'


def test_launched_worker_has_its_group() -> None:
    result = migrate(LAUNCHED.format(INIT, "xmp.spawn(worker)"))
    assert result.output is not None
    text = result.output.decode()
    assert text.count("init_process_group") == 1  # in the helper
    assert "def worker(index):\n    print(index)\n" in text
    assert "import torch.distributed as dist\n" in text
    assert "xla_backend" not in text


def test_suppressed_launcher_keeps_the_group() -> None:
    source = LAUNCHED.format(INIT, "xmp.spawn(worker)  # noqa: XLA506")
    text = (migrate(source).output or source.encode()).decode()
    assert INIT in text
    assert "xla_backend" in text


def test_worker_of_a_launch_that_is_left_makes_its_group_where_there_is_none() -> None:
    result = migrate(LAUNCHED.format(INIT, "xmp.spawn(lambda index: worker(index))"))
    assert result.output is not None
    assert f"    dist.init_process_group({BACKEND})\n" in result.output.decode()


@pytest.mark.parametrize(
    ("form", "reason"),
    [
        (f"group = {INIT}", "unsupported-form"),
        ('dist.init_process_group("xla", pg_options=index)', "argument-not-supported"),
        ('dist.init_process_group(index, init_method="xla://")', "user-option"),
    ],
)
def test_group_that_cannot_go_keeps_the_launch(form: str, reason: str) -> None:
    source = LAUNCHED.format(form, "xmp.spawn(worker)")
    check_noop(source, todo=False)
    assert set(reasons(source)) == {
        ("XLA001", "whole-program"), ("XLA506", "whole-program"), ("XLA904", reason)
    }  # fmt: skip


def test_group_with_more_to_it_is_made_where_there_is_none() -> None:
    form = 'dist.init_process_group("xla", timeout=index)'
    result = migrate(LAUNCHED.format(form, "xmp.spawn(worker)"))
    assert result.output is not None
    own = f"dist.init_process_group({BACKEND}, timeout=index)"
    assert f"    if not dist.is_initialized():\n        {own}\n" in result.output.decode()
    assert "    launch(worker)\n" in result.output.decode()


@pytest.mark.parametrize(
    ("form", "left"),
    [
        ('dist.init_process_group("gloo")', True),
        ('dist.init_process_group("tpu_dist")', True),
        ('if not dist.is_initialized(): dist.init_process_group("gloo")', False),
        ('dist.init_process_group("nccl")', False),
    ],
)
def test_worker_with_a_group_of_its_own(form: str, left: bool) -> None:
    found = reasons(LAUNCHED.format(form, "xmp.spawn(worker)"))
    assert (("XLA506", "whole-program") in found) == left


def test_group_made_before_the_launch_is_left() -> None:
    source = LAUNCHED.format("pass", "xmp.spawn(worker)").replace("\n\n\nif", f"\n\n\n{INIT}\n\nif")
    check_noop(source, todo=False)
    assert ("XLA904", "whole-program") in reasons(source)


def test_single_controller() -> None:
    source = LAUNCHED.format(INIT, "xmp.spawn(worker)")
    source = source.replace(
        "import torch_xla.d", "import torch_xla.runtime as xr\nimport torch_xla.d", 1
    )
    found = reasons(f"{source}    xr.use_spmd()\n")
    assert ("XLA506", "single-controller") in found
    assert ("XLA904", "single-controller") in found


BARRIER = """\
import torch.distributed as dist


def save(model, rank):
    dist.init_process_group("xla")
    {0}
"""


@pytest.mark.parametrize(
    ("body", "count"),
    [
        ("if rank == 0: dist.barrier()", 1),
        ("if dist.get_rank() == 0 and model:\n        model.save()\n        dist.barrier()", 1),
        ("if is_main_process():\n        for _ in model:\n            dist.barrier()", 1),
        ("if not model.is_master:\n        dist.barrier()\n    model.load()", 1),
        ("dist.barrier()", 0),
        ("if model: dist.barrier()", 0),
        ("if rank == 0:\n        dist.barrier()\n    else:\n        dist.barrier()", 0),
        ("if rank: dist.barrier()\n    model.load()\n    if not rank: dist.barrier()", 0),
        ("if rank == 0:\n        if dist.is_initialized():\n            dist.barrier()", 0),
        ("if rank == 0:\n        model.hook = lambda: dist.barrier()", 0),
        ("if rank == 0: model.barrier()", 0),
        ("if rank != 0:\n        return\n    dist.barrier()", 1),
        ("for _ in model:\n        if rank: continue\n        dist.barrier()", 1),
        ("for index in model:\n        if index % 9: continue\n        dist.barrier()", 0),
        ("if rank:\n        dist.barrier()\n        return\n    dist.barrier()", 0),
        ("if rank and not model: return model\n    dist.barrier()", 1),
        ("if not model: return\n    dist.barrier()", 0),
        ("if rank:\n        model = 1\n    dist.barrier()", 0),
        ("dist.barrier() if rank == 0 else None", 1),
        ("dist.barrier() if rank == 0 else dist.barrier()", 0),
        ("rank == 0 and dist.barrier()", 1),
        ("0 == rank or dist.barrier()", 1),
        ("if rank == 0: dist.barrier()\n    if rank == 0: dist.barrier()", 2),
        (
            "if rank: dist.barrier()\n    if 0 == rank:\n        dist.barrier()\n"
            "    if rank > 0: dist.barrier()",
            3,
        ),
        ("if rank not in (-1, 0): dist.barrier()\n    if model.rank in [-1, 0]: dist.barrier()", 0),
        ("if model.is_main: dist.barrier()\n    if rank == 0: dist.barrier()", 2),
        ("if rank < 1: dist.barrier()\n    if rank >= 1: dist.barrier()", 0),
        ("if rank <= 0: dist.barrier()\n    if rank != 0: dist.barrier()", 0),
        ("if rank == model: dist.barrier()\n    if rank != 0: dist.barrier()", 0),
        ("if rank == model: dist.barrier()", 1),
        ("if 0 < rank < 4: dist.barrier()", 1),
    ],
)
def test_barriers_that_wait_now(body: str, count: int) -> None:
    found = reasons(BARRIER.format(body))
    assert found == [("XLA526", "waits-now")] * count


def test_barriers_of_other_backends_are_their_own() -> None:
    source = BARRIER.format("if rank == 0: dist.barrier()").replace('"xla"', '"nccl"')
    check_noop(source)


@pytest.mark.parametrize(
    ("start", "left"),
    [("xmp.spawn(worker)", ["XLA526"]), ("xmp.spawn(worker, nprocs=1)", [])],
)
@pytest.mark.parametrize("launcher", ["spawn", "torchrun"])
def test_barriers_of_the_launched_are_told_before_and_after(
    start: str, left: list[str], launcher: str
) -> None:
    source = LAUNCHED.format("if index == 0: dist.barrier()", start)
    settings = Settings(
        mode=Mode.MIGRATE, unsafe=True, todo=True, root="/nowhere", launcher=launcher
    )
    first = run_source(source.encode(), "/nowhere/example.py", settings)
    assert first.error is None
    assert first.output is not None
    again = run_source(first.output, "/nowhere/example.py", settings)
    assert again.output is None
    for result in (first, again):
        assert [f.rule for f in result.findings if not f.applied] == left


@pytest.mark.parametrize(
    ("form", "end"),
    [
        (INIT, "dist.destroy_process_group()"),
        (INIT, "if dist.is_initialized():\n        dist.destroy_process_group()"),
        ('dist.init_process_group("xla", timeout=index)', "dist.destroy_process_group()"),
    ],
)
def test_worker_leaves_the_group_to_the_launcher(form: str, end: str) -> None:
    source = LAUNCHED.format(f"{form}\n    print(1)\n    {end}", "xmp.spawn(worker)")
    result = migrate(source)
    assert result.output is not None
    worker = result.output.decode().partition("def worker(index):\n")[2]
    assert "destroy_process_group" not in worker
    assert worker.endswith(
        'print(1)\n    print(index)\n\n\nif __name__ == "__main__":\n    launch(worker)\n'
    )


@pytest.mark.parametrize(
    ("form", "end"),
    [(INIT, "end = dist.destroy_process_group"), ("pass", "dist.destroy_process_group()")],
)
def test_group_that_a_worker_gives_back_serves_one_launch(form: str, end: str) -> None:
    once = LAUNCHED.format(f"{form}\n    {end}", "xmp.spawn(worker)")
    assert reasons(once) == []
    twice = f"{once}    xmp.spawn(worker)\n"
    assert reasons(twice).count(("XLA506", "whole-program")) == 2
    assert INIT not in form or INIT in (migrate(twice).output or twice.encode()).decode()
