"""Starting processes: what can be pickled, what forked processes saw, the main guard."""

from __future__ import annotations

import pytest

from xla2tpu.engine import run_source
from xla2tpu.model import FileResult, Mode, Settings

HEAD = "import torch_xla.distributed.xla_multiprocessing as xmp\n\n\n"
WORKER = "def worker(index):\n    print(FLAGS)\n\n\n"
FORK = 'xmp.spawn(worker, start_method="fork")\n'


def run(source: str, launcher: str = "spawn") -> FileResult:
    settings = Settings(
        mode=Mode.MIGRATE, unsafe=True, root="/nowhere", todo=False, launcher=launcher
    )
    return run_source(source.encode(), "/nowhere/example.py", settings)


def reasons(source: str, launcher: str = "spawn") -> list[str | None]:
    result = run(source, launcher)
    assert result.error is None
    return [f.reason for f in result.findings if not f.applied]


def tail(source: str) -> str:
    """What follows the helpers."""
    result = run(source)
    assert result.error is None
    assert result.output is not None, [f.reason for f in result.findings]
    text = result.output.decode()
    return text[max(text.rfind("nprocs=count)\n\n\n"), 0) :].removeprefix("nprocs=count)\n\n\n")


def under_guard(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f'if __name__ == "__main__":\n{lines}'


@pytest.mark.parametrize(
    "set_up",
    [
        "FLAGS = 1",
        "FLAGS, other = 1, 2",
        "for FLAGS in (1, 2):\n    pass",
        "import argparse as FLAGS",
    ],
)
def test_names_set_under_the_guard_are_lost_without_fork(set_up: str) -> None:
    source = HEAD + WORKER + under_guard(f"{set_up}\n{FORK}")
    assert reasons(source) == ["fork-globals"]
    assert reasons(source, launcher="torchrun") == []
    assert reasons(source.replace(', start_method="fork"', "")) == []


@pytest.mark.parametrize("change", ["FLAGS['a'] = 1", "FLAGS.a = 1", "FLAGS.update(a=1)"])
def test_values_changed_under_the_guard_are_lost_too(change: str) -> None:
    source = HEAD + "FLAGS = {}\n\n\n" + WORKER + under_guard(f"{change}\n{FORK}")
    assert reasons(source) == ["fork-globals"]


def test_names_set_by_a_function_of_the_parent_are_lost() -> None:
    main = "FLAGS = None\n\n\ndef main():\n    global FLAGS\n    FLAGS = 1\n    " + FORK
    source = HEAD + main + "\n\n" + WORKER + under_guard("main()")
    assert reasons(source) == ["fork-globals"]


def test_names_read_through_other_functions_count() -> None:
    through = "def worker(index):\n    Trainer().fit()\n\n\n"
    through += "class Trainer:\n    def fit(self):\n        print(FLAGS)\n\n\n"
    assert reasons(HEAD + through + under_guard(f"FLAGS = 1\n{FORK}")) == ["fork-globals"]


@pytest.mark.parametrize(
    "worker",
    [
        "def worker(index):\n    global FLAGS\n    FLAGS = index\n    print(FLAGS)\n\n\n",
        "def worker(FLAGS):\n    print(FLAGS)\n\n\n",
        "def worker(index):\n    FLAGS = 1\n    print(FLAGS)\n\n\n",
    ],
)
def test_names_that_the_worker_sets_are_its_own(worker: str) -> None:
    assert reasons(HEAD + worker + under_guard(f"FLAGS = 1\n{FORK}")) == []


def test_names_set_at_the_top_are_set_in_each_process() -> None:
    source = HEAD + "FLAGS = {'lr': 1}\n\n\n" + WORKER + under_guard(FORK)
    assert tail(source).endswith(under_guard("launch(worker)"))


@pytest.mark.parametrize(
    ("made", "left"),
    [
        ("torch.nn.Linear(1, 1)", True),
        ("nn.Sequential(*layers).to(0)", True),
        ("Net()", True),
        ("{'a': [np.random.rand(3)]}", True),
        ("torch.randn(2)", True),
        ("flags.FLAGS", True),
        ("Plain()", False),
        ("torch.zeros(2)", False),
        ("nn.functional.relu(other)", False),
        ("xmp.MpModelWrapper(Net())", False),
    ],
)
def test_what_each_process_makes_anew(made: str, left: bool) -> None:
    head = "import numpy as np\nimport torch\nfrom absl import flags\nfrom torch import nn\n" + HEAD
    head += "class Base(nn.Module):\n    pass\n\n\nclass Net(Base):\n    pass\n\n\n"
    head += "class Plain:\n    pass\n\n\n"
    source = f"{head}FLAGS = {made}\n\n\n{WORKER}{under_guard(FORK)}"
    assert ("fork-globals" in reasons(source)) == left
    assert "fork-globals" not in reasons(source.replace(', start_method="fork"', ""))
    if "flags" not in made:
        seeded = source.replace("class Base", "torch.manual_seed(0)\n\n\nclass Base")
        assert "fork-globals" not in reasons(seeded)


def test_flags_of_absl_are_parsed_by_the_parent() -> None:
    head = f"from absl import flags\n{HEAD}"
    worker = WORKER.replace("FLAGS", "flags.FLAGS.lr")
    assert reasons(head + worker + under_guard(FORK)) == ["fork-globals"]
    assert reasons(head + WORKER + under_guard(FORK)) == []


@pytest.mark.parametrize(
    ("args", "left"),
    [
        ("(1, [lambda: 1])", True),
        ("({'f': lambda: 1},)", True),
        ("(inner,)", True),
        ("(inner(),)", False),
        ("(list(map(lambda x: x, [])),)", False),
        ("(index, worker, {**index})", False),
        ("index", False),
    ],
)
def test_arguments_that_cannot_be_pickled(args: str, left: bool) -> None:
    source = f"{HEAD}{WORKER}def start(index):\n    def inner():\n        pass\n\n"
    source += f'    xmp.spawn(worker, args={args}, start_method="fork")\n'
    assert reasons(source) == (["unpicklable-worker"] if left else [])


@pytest.mark.parametrize(
    ("call", "spawned", "forked"),
    [
        ("lambda index: index", "unpicklable-worker", "unpicklable-worker"),
        ("inner", "unpicklable-worker", "unpicklable-worker"),
        ("functools.partial(inner, 1)", "unpicklable-worker", "unpicklable-worker"),
        ("named", "unpicklable-worker", "unpicklable-worker"),
        ("self.run", None, "unpicklable-worker"),
        ("given", None, "unpicklable-worker"),
        ("Prepared(worker)", None, "unpicklable-worker"),
        ("worker", None, None),
        ("functools.partial(worker, 1)", None, None),
        ("other.worker", None, None),
        ("imported", None, None),
    ],
)
def test_functions_that_cannot_be_pickled(
    call: str, spawned: str | None, forked: str | None
) -> None:
    source = f"""\
import functools

import other
import torch_xla.distributed.xla_multiprocessing as xmp
from other import Prepared, imported


def worker(index, *more):
    print(index, more)


named = lambda index: index


def start(self, given):
    def inner(index):
        return index

    xmp.spawn({call})
"""
    assert reasons(source) == ([spawned] if spawned else [])
    forking = source.replace(f"({call})", f'({call}, start_method="fork")')
    assert reasons(forking) == ([forked] if forked else [])
    assert reasons(forking, launcher="torchrun") == []


def test_guard_is_put_around_a_call_at_the_top() -> None:
    source = HEAD + "def worker(index):\n    print(index)\n\n\nif 1:\n    xmp.spawn(\n"
    source += "        worker,\n        nprocs=8,  # all\n    )\n\n\ndef later():\n    pass\n"
    assert tail(source).endswith(
        'if 1:\n    if __name__ == "__main__":\n        launch(\n            worker,\n'
        "        )\n\n\ndef later():\n    pass\n"
    )


@pytest.mark.parametrize(
    "source",
    [
        "xmp.spawn(worker)\nprint(1)\n",
        "for fold in range(3):\n    xmp.spawn(worker, args=(fold,))\n",
        "done = xmp.spawn(worker)\n",
        "xmp.spawn(worker); print(1)\n",
        "try:\n    xmp.spawn(worker)\nexcept ValueError:\n    pass\n",
        "def main():\n    xmp.spawn(worker, start_method='fork')\n\n\nmain()\n",
        "def main():\n    xmp.spawn(worker, start_method='fork')\n\n\n"
        "class Run:\n    def run(self):\n        main()\n\n\nRun().run()\n",
    ],
)
def test_what_would_run_again_in_each_process(source: str) -> None:
    assert reasons(HEAD + "def worker(index):\n    print(index)\n\n\n" + source) == ["main-guard"]


def test_guarded_main_is_not_started_at_import() -> None:
    source = "def worker(index):\n    print(index)\n\n\ndef main():\n    xmp.spawn(worker,"
    source += ' start_method="fork")\n\n\n' + under_guard("main()")
    assert reasons(HEAD + source) == []


def test_number_of_processes_from_torch_xla_means_all() -> None:
    source = """\
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp


def worker(index):
    print(index)


def main(flags):
    count = xm.xrt_world_size()
    xmp.spawn(worker, nprocs=count)
    xmp.spawn(worker, nprocs=len(xm.get_xla_supported_devices()))
    xmp.spawn(worker, nprocs=flags.count)
    xmp.spawn(worker, nprocs=None, join=False)
    print(count)
    return xmp.spawn(worker, (), 1)
"""
    lines = [line.strip() for line in tail(source).splitlines() if "worker" in line]
    assert lines == [
        "def worker(index):",
        "launch(worker)",
        "launch(worker)",
        "launch(worker, nprocs=flags.count)",
        "launch(worker)",
        "return launch(worker, args=(), nprocs=1)",
    ]


def test_processes_that_are_given_back() -> None:
    source = HEAD + "def start(worker):\n    context = xmp.spawn(worker, join=False)\n"
    assert reasons(source + "    context.join()\n") == ["unsupported-form"]


def test_names_of_the_file_are_left_to_it() -> None:
    source = """\
import torch_xla.core.xla_model as xm
import torch_xla.distributed.xla_multiprocessing as xmp
import dist


def launch(index, launch_worker):
    return dist.run(index), xm.all_reduce("sum", launch_worker)


def all_reduce(socket):
    return socket


if __name__ == "__main__":
    xmp.spawn(launch, args=(all_reduce,))
"""
    result = run(source)
    assert result.output is not None
    text = result.output.decode()
    assert "    launch_processes(launch, args=(all_reduce,))\n" in text
    assert 'return dist.run(index), all_reduce_tensors("sum", launch_worker)\n' in text
    assert "torch.distributed.init_process_group(" in text
    compile(text, "example.py", "exec")


@pytest.mark.parametrize(
    ("worker", "end"),
    [
        ("def worker(index):\n    print(index)\n", ["dist.destroy_process_group()"]),
        (
            "import torch.distributed as dist\n\n\n"
            "def worker(index):\n    dist.destroy_process_group()\n",
            [],
        ),
        (
            "from engine import worker\n",
            ["if dist.is_initialized():", "    dist.destroy_process_group()"],
        ),
    ],
    ids=["bare", "by the worker", "of another file"],
)
def test_group_is_given_back_once(worker: str, end: list[str]) -> None:
    source = f"{HEAD}{worker}\n\n{under_guard('xmp.spawn(worker)')}"
    body = ['dist.init_process_group("cpu:gloo,tpu:tpu_dist")', "worker(dist.get_rank())", *end]
    result = run(source, "torchrun")
    assert result.output is not None
    assert result.output.decode().endswith(under_guard("\n".join(body)))


@pytest.mark.parametrize(
    "starts",
    [
        "for fold in range(3):\n    xmp.spawn(worker)",
        "xmp.spawn(worker)\nprint(1)\nxmp.spawn(worker)",
    ],
)
def test_groups_of_torchrun_are_made_once(starts: str) -> None:
    source = f"{HEAD}def worker(index):\n    print(index)\n\n\n{under_guard(starts)}"
    result = run(source, "torchrun")
    assert result.output is not None
    text = result.output.decode()
    count = starts.count("spawn")
    assert text.count("if not dist.is_initialized():") == count
    assert text.count("dist.init_process_group(") == text.count("worker(dist.get_rank())") == count
    assert text.count("atexit.register(dist.destroy_process_group)") == count


def test_groups_that_workers_give_back_cannot_be_made_again() -> None:
    worker = "import torch.distributed as dist\n\n\n"
    worker += "def worker(index):\n    dist.destroy_process_group()\n\n\n"
    loop = "for fold in range(3):\n    xmp.spawn(worker)"
    assert reasons(HEAD + worker + under_guard(loop), "torchrun") == ["unsupported-form"]


@pytest.mark.parametrize("launcher", ["spawn", "torchrun"])
@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("print(dist.get_world_size() if dist.is_initialized() else 1)", True),
        ("print(index.is_initialized())", False),
        ("print(dist.is_available())", False),
        ("if not dist.is_initialized(): dist.init_process_group('nccl')", False),
    ],
)
def test_questions_that_the_launcher_answers_otherwise(
    body: str, told: bool, launcher: str
) -> None:
    source = f"import torch.distributed as dist\n{HEAD}def worker(index):\n    {body}\n\n\n"
    result = run(source + under_guard("xmp.spawn(worker, nprocs=8)"), launcher)
    message = next(f.message for f in result.findings if f.rule == "XLA506")
    assert ("`is_initialized()`" in message) == told
    assert message.startswith("`torch_xla.distributed.xla_multiprocessing.spawn` was given")
